"""The flags of the parts of learning: on, in their groups, and off where a deployment or a flag says so, and why."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields, replace
from typing import Any

import pytest

from holdfast.contracts.flag import ALL_ON, Features, Flag, FlagRule
from holdfast.promote.flags import KEYED, SWITCHES, VARIABLES, Snapshot, check, evaluate, features, snapshot

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


def test_every_feature_has_its_documented_flag_and_says_what_its_shares_are_of() -> None:
    assert tuple(SWITCHES) == tuple(part.name for part in fields(Features))
    assert set(SWITCHES.values()) == set(VARIABLES.values()) == set(KEYED)


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
        ([made(LEARNING, enabled=False)], {}, "not enabled", f"holdfast flags enable {LEARNING}"),
        ([made(LEARNING, killed=True)], {}, "killed", f"holdfast flags revive {LEARNING}"),
        ([made(LEARNING, expires_at=4.0)], {}, "expired", f"holdfast flags set {LEARNING} --expires never"),
        ([share(LEARNING, 0.0)], {}, "no rule fits", f"holdfast flags rollout {LEARNING} 100"),
        ([made(GROUP, enabled=False)], {}, "it requires agenticRL.enabled = on", f"holdfast flags enable {GROUP}"),
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
