"""A flag's value: the order of what may switch it off, who is in, who stays in, and what is refused."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from datetime import UTC, datetime
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy.stats import binomtest, chi2_contingency

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_ON, Condition, Features, Flag, FlagRule
from holdfast.contracts.release import Experiment
from holdfast.promote.experiment import KIND, Design, assign, settings_of
from holdfast.promote.flags import (
    MOST_DEEP,
    SWITCHES,
    VARIABLES,
    FlagValue,
    Snapshot,
    Why,
    check,
    evaluate,
    features,
    governed,
    kill_variable,
    needed_by,
    snapshot,
    units_of,
)

NOW = 1000.0
PEOPLE = [f"user-{number}" for number in range(8_000)]


def flag(name: str = "f", **given: Any) -> Flag:
    told = {"variants": {"on": True, "off": False}, "off": "off", "enabled": True, "rules": (FlagRule(variant="on"),)}
    return Flag(name=name, **{**told, **given})


def look(*flags: Flag, context: Mapping[str, Any] | None = None, **environment: str) -> FlagValue:
    """Of the first of them."""
    known = {one.name: one for one in flags}
    return evaluate(flags[0].name, known, context or {}, now=NOW, environment=environment)


def key(name: str, **attributes: Any) -> dict[str, Any]:
    return {"targetingKey": name, **attributes}


def those_in(one: Flag) -> set[str]:
    return {person for person in PEOPLE if look(one, context=key(person)).value}


def test_a_rule_for_everybody_is_static() -> None:
    expected = FlagValue(value=True, variant="on", reason=Why.STATIC, detail="rule 1")
    assert look(flag()) == expected


def test_a_flag_that_does_not_exist_is_an_error_and_no_value() -> None:
    found = evaluate("g", {"f": flag()}, {}, now=NOW, environment={})
    assert (found.value, found.variant, found.reason, found.error) == (None, None, Why.ERROR, "FLAG_NOT_FOUND")


@pytest.mark.parametrize(
    ("changes", "reason", "detail"),
    [
        # what stands earlier in the order is what is told
        ({"killed": True, "enabled": False}, Why.DISABLED, "killed"),
        ({"enabled": False, "expires_at": NOW - 1}, Why.DISABLED, "not enabled"),
        ({"expires_at": NOW, "requires": {"g": "on"}}, Why.DISABLED, "expired"),
        ({"requires": {"g": "on"}, "rules": ()}, Why.DEFAULT, "it requires g = on, which is off (not enabled)"),
        ({"rules": ()}, Why.DEFAULT, "no rule fits"),
        ({"rules": (FlagRule(variant="on", percent=0.0),)}, Why.DEFAULT, "no rule fits"),
    ],
)
def test_whatever_fails_on_the_way_gives_the_off_variant_and_says_why(
    changes: dict[str, Any], reason: Why, detail: str
) -> None:
    found = look(flag(**changes), flag("g", enabled=False))
    assert found == FlagValue(value=False, variant="off", reason=reason, detail=detail)


def test_a_flag_is_on_until_the_moment_it_expires() -> None:
    assert look(flag(expires_at=NOW + 0.001)).value is True


@pytest.mark.parametrize(
    ("text", "is_killed"),
    [("1", True), ("true", True), ("please", True), ("", False), ("0", False), (" False ", False), ("off", False)],
)
def test_the_environment_kills_stronger_than_anything_else(text: str, is_killed: bool) -> None:
    found = look(flag("new.parser"), HOLDFAST_KILL_NEW_PARSER=text)
    assert found.value is not is_killed
    assert (found.detail == "killed by HOLDFAST_KILL_NEW_PARSER") is is_killed


def test_a_kill_reaches_those_who_require_it() -> None:
    above, below = flag("above", requires={"below": "on"}), flag("below")
    assert look(above, below).value is True
    found = look(above, below, HOLDFAST_KILL_BELOW="1")
    assert found.value is False
    assert found.detail == "it requires below = on, which is off (killed by HOLDFAST_KILL_BELOW)"


@pytest.mark.parametrize(
    ("name", "variable"),
    [
        ("extendedThinking.enabled", "HOLDFAST_KILL_EXTENDEDTHINKING_ENABLED"),
        ("new-parser", "HOLDFAST_KILL_NEW_PARSER"),
        ("größe", "HOLDFAST_KILL_GR__E"),
    ],
)
def test_a_variable_can_be_written_in_a_shell(name: str, variable: str) -> None:
    assert kill_variable(name) == variable


CONTEXT = {
    "targetingKey": "ann@example.org",
    "group": ["beta", "staff"],
    "plan": "gold",
    "age": 40,
    "paid": True,
    "since": datetime(2020, 1, 1, tzinfo=UTC),
}


@pytest.mark.parametrize(
    ("attribute", "operator", "value", "expected"),
    [
        ("plan", "equals", "gold", True),
        ("plan", "equals", "Gold", False),
        ("age", "equals", 40.0, True),
        ("paid", "equals", True, True),
        ("paid", "equals", 1, False),  # true is not 1
        ("age", "in", [39, 40], True),
        ("paid", "in", [1], False),
        ("group", "in", ["staff"], True),  # one of hers is enough
        ("group", "in", ["alpha"], False),
        ("group", "not_in", ["alpha"], True),
        ("group", "not_in", ["alpha", "beta"], False),
        ("group", "in", [], False),
        ("plan", "prefix", "go", True),
        ("plan", "suffix", "go", False),
        ("targetingKey", "suffix", "@example.org", True),
        ("age", "prefix", "4", False),  # not a text
        ("age", "above", 39.5, True),
        ("age", "above", 40, False),
        ("age", "below", 41, True),
        ("paid", "above", 0, False),  # not a number
        ("plan", "below", 5, False),
        ("since", "below", 1_600_000_000, True),
        # what the context does not tell holds for nothing
        ("country", "equals", "CH", False),
        ("country", "not_in", ["CH"], False),
        # a condition that nobody checked is never met, and breaks nothing
        ("plan", "in", 7, False),
        ("plan", "not_in", "gold", False),
        ("plan", "prefix", 7, False),
        ("age", "above", "39", False),
    ],
)
def test_a_condition_holds_or_not(attribute: str, operator: str, value: Any, expected: bool) -> None:
    rule = FlagRule(variant="on", conditions=(Condition(attribute=attribute, operator=operator, value=value),))
    found = look(flag(rules=(rule,)), context=CONTEXT)
    assert found.value is expected
    assert found.reason is (Why.TARGETING_MATCH if expected else Why.DEFAULT)


def test_all_conditions_of_a_rule_must_hold_and_the_first_rule_that_fits_decides() -> None:
    gold = Condition(attribute="plan", operator="equals", value="gold")
    old = Condition(attribute="age", operator="above", value=50)
    rules = (
        FlagRule(variant="c", conditions=(gold, old)),
        FlagRule(variant="b", conditions=(gold,)),
        FlagRule(variant="a"),
    )
    many = flag(variants={"a": 1, "b": 2, "c": 3}, off="a", rules=rules)
    assert [look(many, context=c).value for c in (CONTEXT, {"plan": "gold", "age": 51}, {})] == [2, 3, 1]


@given(st.text(min_size=1).filter(str.strip), st.floats(0, 100))
def test_a_key_gets_the_same_answer_every_time(name: str, percent: float) -> None:
    one = flag(rules=(FlagRule(variant="on", percent=percent),))
    assert look(one, context=key(name)) == look(one, context=key(name))


@given(st.text(min_size=1).filter(str.strip), st.floats(0, 100), st.floats(0, 100))
def test_whoever_is_in_at_a_small_share_is_in_at_every_larger_one(name: str, one: float, other: float) -> None:
    small, large = (
        look(flag(rules=(FlagRule(variant="on", percent=percent),)), context=key(name)).value
        for percent in sorted((one, other))
    )
    assert large or not small


def test_a_ramp_only_ever_adds_people_and_each_share_is_as_large_as_it_says() -> None:
    before: set[str] = set()
    for percent in (0.0, 1.0, 10.0, 25.0, 50.0, 99.0, 100.0):
        now = those_in(flag(rules=(FlagRule(variant="on", percent=percent),)))
        assert before <= now
        assert binomtest(len(now), len(PEOPLE), percent / 100).pvalue > 0.001
        before = now


def test_a_share_for_a_group_is_a_share_of_that_group_and_of_nobody_else() -> None:
    staff = Condition(attribute="group", operator="in", value=["staff"])
    one = flag(rules=(FlagRule(variant="on", conditions=(staff,), percent=50.0), FlagRule(variant="on", percent=10.0)))
    inside = sum(look(one, context=key(person, group="staff")).value for person in PEOPLE)
    outside = sum(look(one, context=key(person, group="guest")).value for person in PEOPLE)
    assert binomtest(inside, len(PEOPLE), 0.5).pvalue > 0.001  # not 0.55: who missed 50 % is not in 10 % either
    assert binomtest(outside, len(PEOPLE), 0.1).pvalue > 0.001


def test_flags_divide_people_independently_unless_they_share_a_salt() -> None:
    half = (FlagRule(variant="on", percent=50.0),)
    f, g = those_in(flag("f", rules=half)), those_in(flag("g", rules=half))
    table = [[len(f & g), len(f - g)], [len(g - f), len(PEOPLE) - len(f | g)]]
    assert chi2_contingency(table).pvalue > 0.001
    assert those_in(flag("f", rules=half, salt="s")) == those_in(flag("g", rules=half, salt="s"))


@pytest.mark.parametrize("context", [{}, {"targetingKey": ""}, {"targetingKey": "  "}, {"targetingKey": 7}])
def test_without_a_key_nobody_is_in_a_share_and_the_reason_says_so(context: dict[str, Any]) -> None:
    one = flag(rules=(FlagRule(variant="on", percent=99.9),))
    found = look(one, context=context)
    assert (found.value, found.reason) == (False, Why.DEFAULT)
    assert found.detail == "no rule fits; shares were passed over, for the context has no targeting key"
    found = look(replace(one, rules=(*one.rules, FlagRule(variant="on"))), context=context)
    assert (found.value, found.reason) == (True, Why.STATIC)  # a rule for everybody needs no key
    assert found.detail == "rule 2; shares were passed over, for the context has no targeting key"


def test_a_split_is_told_as_one() -> None:
    one = flag(rules=(FlagRule(variant="on", percent=99.9),))
    assert look(one, context=key("user-1")).reason is Why.SPLIT


def test_flags_that_require_one_another_are_off_and_an_error() -> None:
    found = look(flag("a", requires={"b": "on"}), flag("b", requires={"c": "on"}), flag("c", requires={"b": "on"}))
    assert (found.value, found.variant, found.reason, found.error) == (False, "off", Why.ERROR, "GENERAL")
    assert found.detail == "what it requires goes in a circle: b → c → b"


def test_a_required_flag_that_is_gone_is_an_error_and_off() -> None:
    found = look(flag(requires={"gone": "off"}))
    assert (found.value, found.reason) == (False, Why.ERROR)
    assert found.detail == "it requires gone, and there is no such flag"


def test_a_very_long_chain_is_an_error_and_not_a_crash() -> None:
    chain = [flag(f"f{n}", requires={f"f{n + 1}": "on"}) for n in range(5000)]
    found = look(*chain, flag("f5000"))
    assert found.detail == f"what it requires goes deeper than {MOST_DEEP} flags"


def test_what_many_flags_require_is_looked_at_once() -> None:
    """Thirty floors of two flags each, both of which require both below: 2³⁰ ways down."""
    floors = 30
    flags = {"top": flag("top", requires={"a0": "on", "b0": "on"})}
    for n in range(floors):
        below = {f"a{n + 1}": "on", f"b{n + 1}": "on"} if n < floors - 1 else {}
        flags |= {name: flag(name, requires=below) for name in (f"a{n}", f"b{n}")}
    assert evaluate("top", flags, {}, now=NOW, environment={}).value is True
    check(flags["top"], flags)


def condition(operator: str, value: Any) -> Flag:
    return flag(rules=(FlagRule(variant="on", conditions=(Condition(attribute="x", operator=operator, value=value),)),))


@pytest.mark.parametrize(
    ("one", "others", "expected"),
    [
        (flag(requires={"g": "on"}), [], "flag f: requires g: there is no such flag; put it first"),
        (
            flag(requires={"g": "blue"}),
            [flag("g")],
            "flag f: requires g = blue: that flag has no such variant; use one of on, off",
        ),
        (
            flag(requires={"g": "on"}),
            [flag("g", requires={"h": "on"}), flag("h", requires={"f": "on"})],
            "flag f: requires: goes in a circle: f → g → h → f; leave one of them out",
        ),
        (
            flag(variants={"yes": True, "off": False}, rules=()),
            [flag("g", requires={"f": "on"})],
            "flag f: variants: g requires its variant on; keep it, or change g first",
        ),
        (
            flag(requires={"f0": "on"}),
            [*(flag(f"f{n}", requires={f"f{n + 1}": "on"}) for n in range(MOST_DEEP)), flag(f"f{MOST_DEEP}")],
            f"flag f: requires: goes deeper than {MOST_DEEP} flags",
        ),
        (condition("in", "staff"), [], "flag f: x in 'staff': in needs a list"),
        (condition("above", True), [], "flag f: x above True: above needs a number"),
        (condition("prefix", 7), [], "flag f: x prefix 7: prefix needs a text"),
        (condition("equals", None), [], "flag f: x equals None: equals needs a text, a number, true or false"),
    ],
)
def test_a_flag_that_could_never_work_is_refused(one: Flag, others: list[Flag], expected: str) -> None:
    with pytest.raises(BadInput) as refused:
        check(one, {other.name: other for other in others})
    assert str(refused.value) == expected


def test_a_sound_flag_is_accepted_beside_others_and_in_place_of_itself() -> None:
    others = {one.name: one for one in (flag(), flag("g", requires={"f": "on"}))}
    check(flag("h", requires={"g": "on", "f": "off"}), others)
    check(replace(flag(), enabled=False), others)
    longest = [flag(f"f{n}", requires={f"f{n + 1}": "on"}) for n in range(MOST_DEEP)]
    longest.append(flag(f"f{MOST_DEEP}"))
    check(longest[0], {one.name: one for one in longest})
    assert look(*longest).value is True  # what is accepted can be evaluated


def test_those_who_require_a_flag_can_be_named() -> None:
    others = {one.name: one for one in (flag("h", requires={"f": "on"}), flag(), flag("g", requires={"f": "on"}))}
    assert needed_by("f", others) == ["g", "h"]


DOCUMENTED = {
    "extendedThinking": {"enabled", "budgetManagement", "adaptiveAllocation"},
    "rewardHackingPrevention": {"enabled", "astAnalysis", "scaffoldingDetection"},
    "agenticRL": {"enabled", "turnLevelRewards", "trainingPipeline"},
    "intelligentEvaluation": {"enabled", "modelJudges", "combinedScoring"},
}
LEARNING, GROUP = SWITCHES["learning"], "agenticRL.enabled"


def off(**environment: str) -> set[str]:
    flags = {flag.name: flag for flag in features(environment, owner="ann")}
    return {name for name in flags if not evaluate(name, flags, {}, now=0.0, environment={}).value}


def seen(flags: Sequence[Flag] = (), **environment: str) -> Snapshot:
    return snapshot(flags, now=5.0, environment=environment)


def made(name: str, **how: Any) -> Flag:
    """The flag as `init` makes it, changed."""
    return replace(next(flag for flag in features({}, owner="ann") if flag.name == name), **how)


def share(name: str, percent: float) -> Flag:
    return made(name, rules=(FlagRule(variant="on", percent=percent),))


def test_the_documented_flags_are_all_there_and_on() -> None:
    names = {flag.name for flag in features({}, owner="ann")}
    assert names - {"agenticRL.toolTraining"} == {
        f"{group}.{part}" for group in DOCUMENTED for part in DOCUMENTED[group]
    }
    assert off() == set()


def test_each_can_be_put_in_the_order_they_are_given() -> None:
    before: dict[str, Flag] = {}
    for flag in features({}, owner="ann"):
        check(flag, before)
        before[flag.name] = flag
        assert flag.owner == "ann" and flag.description


@pytest.mark.parametrize(("variable", "name"), VARIABLES.items())
def test_a_documented_variable_that_says_no_turns_its_part_off_and_nothing_else(variable: str, name: str) -> None:
    assert off(**{variable: "true"}) == off(**{variable: ""}) == set()
    assert off(**{variable: "0"}) == off(**{variable: " No "}) == {name}


def test_a_part_is_off_without_its_group() -> None:
    flags = {flag.name: flag for flag in features({}, owner="ann")}
    kill = {"HOLDFAST_KILL_AGENTICRL_ENABLED": "1"}
    assert evaluate(LEARNING, flags, {}, now=0.0, environment=kill).value is False


def test_every_flag_switches_a_feature_and_says_what_its_shares_are_of() -> None:
    assert tuple(SWITCHES) == tuple(part.name for part in fields(Features))
    assert set(VARIABLES.values()) < set(SWITCHES.values())
    for flag in features({}, owner="ann"):
        off = seen([replace(flag, killed=True)]).features("r")
        assert off.off == tuple(name for name in SWITCHES if name in governed(flag.name)) != ()
        assert units_of(flag.name) == ("runs" if governed(flag.name) == ("learning",) else "tasks")
    assert governed("my.own") == governed("my.enabled") == () and units_of("my.own") == ""


@pytest.mark.parametrize(
    ("flags", "is_alike"),
    [
        ((), True),
        ((made(GROUP, enabled=False),), True),
        ((share(LEARNING, 100.0), share(SWITCHES["judges"], 0.0)), True),
        ((share(LEARNING, 50.0),), False),
        ((share(GROUP, 1.0),), False),  # what others require counts for them
        ((made(LEARNING, requires={"mine": "on"}), flag("mine", rules=(FlagRule(variant="on", percent=5.0),))), False),
    ],
)
def test_where_all_keys_get_the_same_that_is_asked_once(flags: tuple[Flag, ...], is_alike: bool) -> None:
    look = seen(flags)
    assert (look.everybody() is not None) is is_alike
    if is_alike:
        assert {look.features(f"key-{number}") for number in range(50)} == {look.everybody()}


TRIAL = Experiment(
    name="budgets-1",
    kind=KIND,
    arms={"off": 0.5, "on": 0.5},
    salt="trial/budgets-1",
    created_at=0.0,
    settings=settings_of(Design(flag=SWITCHES["budgets"], until=10.0)),
)


@pytest.mark.parametrize("percent", [0.0, 100.0])  # what the flag's own rules say
def test_while_an_experiment_runs_its_arms_are_the_flags_values(percent: float) -> None:
    flags = [share(SWITCHES["budgets"], percent)]
    look = snapshot(flags, now=5.0, environment={}, trials=[TRIAL])
    keys = [f"task-{number}" for number in range(200)]
    arms = {key: assign(TRIAL, key) for key in keys}
    assert 70 <= sum(arm == "on" for arm in arms.values()) <= 130
    assert {key: look.features(key).budgets for key in keys} == {key: arm == "on" for key, arm in arms.items()}
    assert all(look.exposures(key, ("budgets",)) == {"budgets-1": arm} for key, arm in arms.items())
    assert look.somebody().budgets and look.features(keys[0]).judges
    after = snapshot(flags, now=10.0, environment={}, trials=[TRIAL])  # its time is over
    assert {after.features(key).budgets for key in keys} == {percent == 100.0}
    assert after.exposures(keys[0], ("budgets",)) == {}


def test_who_could_not_tell_the_arms_apart_is_in_no_experiment() -> None:
    """A run without budgets, a unit that a rule with conditions decides about, and everybody while it is killed."""
    look = snapshot([], now=5.0, environment={}, trials=[TRIAL])
    assert look.exposures("a", ("judges", "turn_rewards")) == look.exposures("a", ("learning",)) == {}
    name = SWITCHES["budgets"]
    dead = snapshot([made(name, killed=True)], now=5.0, environment={}, trials=[TRIAL])
    assert dead.exposures("a", ("budgets",)) == {} and not dead.features("a").budgets
    staff = FlagRule(variant="on", conditions=(Condition(attribute="group", operator="equals", value="staff"),))
    flags = {name: made(name, rules=(staff, FlagRule(variant="on", percent=0.0)), requires={})}
    how: Any = {"now": 5.0, "environment": {}, "trials": {name: TRIAL}}
    for key in ("a", "b", "c"):
        mine = evaluate(name, flags, {"targetingKey": key, "group": "staff"}, **how)
        assert (mine.variant, mine.experiment) == ("on", None)
        assert evaluate(name, flags, {"targetingKey": key}, **how).experiment == "budgets-1"
    assert evaluate(name, flags, {}, **how).experiment is None  # nobody in particular


@pytest.mark.parametrize(
    ("there", "environment"),
    [
        ((), {}),
        ((), {"ENABLE_RL_TRAINING": "0"}),
        ((), {"HOLDFAST_KILL_AGENTICRL_ENABLED": "1"}),
        ((), {"HOLDFAST_KILL_AGENTICRL_TRAININGPIPELINE": "1"}),
        ((made(GROUP, enabled=False),), {}),  # the group alone was written down, and is off
        ((made(LEARNING, killed=True, requires={}),), {}),  # as a fuse leaves it
        ((share(LEARNING, 50.0),), {}),
    ],
)
def test_writing_the_defaults_down_changes_nothing(there: tuple[Flag, ...], environment: Mapping[str, str]) -> None:
    names = {flag.name for flag in there}
    written = (*there, *(flag for flag in features(environment, owner="ann") if flag.name not in names))
    before, after = seen(there, **environment), seen(written, **environment)
    for key in ("a", "b", "c", "d"):
        assert before.features(key) == after.features(key)


def test_where_no_flag_says_anything_all_is_on_unless_a_variable_says_no() -> None:
    assert seen().features("r") == ALL_ON and seen().off("r") == {}
    without = replace(ALL_ON, learning=False)
    assert seen(HOLDFAST_KILL_AGENTICRL_TRAININGPIPELINE="1").features("r") == without
    assert seen(ENABLE_RL_TRAINING="false").features("r") == without


@pytest.mark.parametrize(("feature", "name"), SWITCHES.items())
def test_one_switch_moves_one_feature(feature: str, name: str) -> None:
    dead = [replace(flag, killed=flag.name == name) for flag in features({}, owner="ann")]
    assert seen(dead).features("r") == replace(ALL_ON, **{feature: False})


@pytest.mark.parametrize("feature", SWITCHES)
@pytest.mark.parametrize("percent", [0.0, 10.0, 50.0, 90.0, 100.0])
def test_a_share_is_given_to_so_many_keys_and_each_keeps_what_it_got(feature: str, percent: float) -> None:
    look = seen([share(SWITCHES[feature], percent)])
    keys = [f"run-{number}" for number in range(200)]
    found = [getattr(look.features(key), feature) for key in keys]
    assert abs(sum(found) - 2 * percent) <= (0 if percent in (0.0, 100.0) else 20)  # of 200; 20 are four deviations
    assert found == [getattr(look.features(key), feature) for key in keys]
    assert getattr(look.somebody(), feature) is (percent > 0.0)
    assert {key for key, is_on in zip(keys, found, strict=True) if not is_on} == {
        key for key in keys if feature in look.off(key)
    }


@pytest.mark.parametrize(
    ("there", "environment", "why", "remedy"),
    [
        ([made(LEARNING, enabled=False)], {}, "not enabled", f"holdfast release flags enable {LEARNING}"),
        ([made(LEARNING, killed=True)], {}, "killed", f"holdfast release flags revive {LEARNING}"),
        ([made(LEARNING, expires_at=4.0)], {}, "expired", f"holdfast release flags set {LEARNING} --expires never"),
        ([share(LEARNING, 0.0)], {}, "no rule fits", f"holdfast release flags rollout {LEARNING} 100"),
        (
            [made(GROUP, enabled=False)],
            {},
            "it requires agenticRL.enabled = on",
            f"holdfast release flags enable {GROUP}",
        ),
        ([], {"HOLDFAST_KILL_AGENTICRL_ENABLED": "1"}, "it requires", "unset HOLDFAST_KILL_AGENTICRL_ENABLED"),
        ([], {"ENABLE_RL_TRAINING": "off"}, "not enabled", "unset ENABLE_RL_TRAINING"),
    ],
)
def test_what_is_off_says_by_which_flag_why_and_what_turns_it_on(
    there: list[Flag], environment: Mapping[str, str], why: str, remedy: str
) -> None:
    found = seen(there, **environment).off("r")["learning"]
    assert (found.feature, found.flag, found.remedy) == ("learning", LEARNING, remedy)
    assert found.why.startswith(why)
