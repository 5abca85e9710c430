"""Hooks: found by name before a town begins, asked and called at their moments, and the same in every batch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from holdfast.town import hooks
from holdfast.town.env import Env
from holdfast.town.hook_registry import HOOKS, find, hook
from holdfast.town.hooks import HookCall, HookFailed, LostEvents
from holdfast.town.places import REASONS
from holdfast.town.rules import MOVED_ON, BadRules, Rules, load
from tests.town.small import at, put, small, step, told

EAT = 3  # its place among the affordances


def hooked(**by_stage: list[str]) -> Rules:
    """The hamlet, where eating has these hooks."""
    affordances = [dict(entry) for entry in load()["affordance"]]
    affordances[EAT] = {**affordances[EAT], "hooks": by_stage}
    calm = [{"id": "rain", "per_day": 0.0, "duration": [1, 1], "cooldown": 0}]
    return small({"affordance": affordances, "trouble": calm})


def ready(rules: Rules, **how: Any) -> Env:
    """Two residents beside a seat each, hungry, with a meal."""
    env = Env(rules, **how)
    env.state.town["mortal"] = 0
    env.state.people["need"], env.state.people["item"] = 500_000, 1
    put(env, 0, 13, 2)
    return at(env, 1)


@pytest.fixture
def registered() -> Iterator[dict[str, list[HookCall]]]:
    """Hooks of a program, under names that are free again afterwards."""
    before, calls = dict(HOOKS), dict[str, list[HookCall]](noted=[], missed=[])
    hook("after", name="noted")(lambda call: calls["noted"].append(call))
    hook("fail", name="missed")(lambda call: calls["missed"].append(call))
    hook("before", name="never")(lambda call: False)
    hook("before", name="vague")(lambda call: 1)
    hook("after", name="broken")(lambda call: 1 // 0)
    hook("after", name="odd")(lambda call: ["a text"])
    hook("after", name="pays")(lambda call: [call.give_money(-1000.0), call.add_need("energy", 2.0)])
    hook("after", name="lucky")(lambda call: [call.add_need("social", call.random(1000) / 10_000)])
    yield calls
    HOOKS.clear()
    HOOKS.update(before)


def eaten(env: Env, ticks: int = 16) -> None:
    step(env, r0="use:eat")
    for _ in range(ticks):
        step(env)


def test_after_the_end_each_hook_is_called_once_in_order(registered: dict[str, list[HookCall]]) -> None:
    env = ready(hooked(after=["noted", "shared_meal", "noted"]))
    eaten(env, 13)
    assert registered["noted"] == []
    step(env)
    first, second = registered["noted"]
    assert (first.stage, first.affordance, first.resident, first.reason) == ("after", "eat", 0, "")
    assert first.thing == second.thing >= 0 and first.hour == 0
    assert first.need("hunger") > 0.9 and first.item("meal") == 0 and first.near(0) == ()


@pytest.mark.parametrize(("change", "reason"), [({"need": 950_000}, "condition"), ({"item": 0}, "items")])
def test_where_it_fails_the_hook_hears_why(
    change: dict[str, int], reason: str, registered: dict[str, list[HookCall]]
) -> None:
    env = ready(hooked(fail=["missed"]))
    for name, value in change.items():
        env.state.people[name][0, 0] = value
    step(env, r0="use:eat")
    assert [(call.reason, call.thing) for call in registered["missed"]] == [(reason, -1)]


def test_what_is_broken_off_has_failed(registered: dict[str, list[HookCall]]) -> None:
    env = ready(hooked(fail=["missed"]))
    step(env, r0="use:eat")
    step(env, r0="leave")
    assert [(call.reason, call.thing >= 0) for call in registered["missed"]] == [("aborted", True)]


def test_what_a_hook_refuses_is_not_possible_and_fails(registered: dict[str, list[HookCall]]) -> None:
    env = ready(hooked(before=["never"], fail=["missed"]))
    use = env.actions.index("use:eat")
    assert env.look().mask[0, 0, use] == 0 == ready(hooked(fail=["missed"])).look().mask[0, 0, use] - 1
    step(env, r0="use:eat")
    person = env.state.people[0, 0]
    assert person["doing"] == -1 and person["success"] == 0 and person["last_action"] == use
    assert told(env, "failed") == [(0, EAT, REASONS.index("hook"))] and env.state.town["failed"][0] == 1
    assert [call.reason for call in registered["missed"]] == ["hook"]
    env.state.people["need"][0, 0] = (0, 900_000, 900_000, 900_000)  # so hungry that scripts would eat at once
    assert env.scripted()[0, 0] == 0 != ready(hooked()).scripted()[0, 0]


def test_ours_do_what_they_say() -> None:
    env = ready(hooked(before=["in_company"], after=["cheer"], fail=["disappoint"]))
    for i in range(1, 4):
        put(env, i, i, 2)  # in the bedroom
    step(env, r0="use:eat")
    assert told(env, "failed") and env.state.people["need"][0, 0, 3] < 490_000  # alone, and sad about it
    put(env, 1, 14, 2)
    eaten(env)
    assert told(env, "finished")
    lonely = env.state.people["need"][0, :, 3]
    assert lonely[1] - lonely[2] == 20_000 and lonely[2] == lonely[3]


def test_changes_stay_within_what_there_is(registered: dict[str, list[HookCall]]) -> None:
    env = ready(hooked(after=["pays"]))
    money = int(env.state.people["money"][0, 0])
    outside = int(env.state.town["outside"][0])
    eaten(env)
    assert env.state.people["money"][0, 0] == 0 and env.state.town["outside"][0] == outside + money
    assert env.state.people["need"][0, 0, 2] > 990_000


def test_a_town_is_the_same_in_every_batch_and_again(registered: dict[str, list[HookCall]]) -> None:
    rules = hooked(before=["in_company"], after=["lucky", "cheer"], fail=["disappoint"])
    one, three = Env(rules), Env(rules, worlds=3)
    one.reset(5, first_world=1)
    three.reset(5)
    for _ in range(800):
        one.step(one.scripted())
        three.step(three.scripted())
    assert one.state.sha256() == three.state.sha256(1) and one.state.town["finished"][0] > 0
    plain = Env(hooked())
    plain.reset(5, first_world=1)
    for _ in range(800):
        plain.step(plain.scripted())
    assert plain.state.sha256() != one.state.sha256()


@pytest.mark.parametrize(
    ("by_stage", "why"),
    [
        ({"after": ["broken"]}, "hook broken after eat: raised ZeroDivisionError"),
        ({"after": ["odd"]}, "hook odd after eat: gave ['a text'], and must give a list of changes, or None"),
        ({"before": ["vague"]}, "hook vague before eat: gave 1, and must give True or False"),
    ],
)
def test_a_hook_that_breaks_is_named(
    by_stage: dict[str, list[str]], why: str, registered: dict[str, list[HookCall]]
) -> None:
    with pytest.raises(HookFailed) as failed:
        eaten(ready(hooked(**by_stage)))
    assert str(failed.value).startswith(why)


def test_more_than_a_town_remembers_is_told(registered: dict[str, list[HookCall]]) -> None:
    env = ready(hooked(after=["noted"]))
    with pytest.raises(LostEvents, match="take fewer residents"):
        hooks.Hooks(env.rules, env.law).follow(env.state, env.state.town["events"] - 300)


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (["sing"], "eat: hooks: 'sing' is unknown; use shared_meal, cheer, move_on, or module:function"),
        ({"after": ["sing"]}, "eat: hooks.after: 'sing' is unknown; use shared_meal, cheer, move_on"),
        ({"before": ["cheer"]}, "eat: hooks.before: 'cheer' is no hook for 'before', but for after; use in_company"),
        ({"during": ["cheer"]}, "eat: hooks.during: is unknown; use before, after, fail"),
        ({"after": "cheer"}, "eat: hooks.after: 'cheer' is no list of names"),
        (["os:system"], "eat: hooks: 'os:system' is unknown"),  # to read rules imports nothing
    ],
)
def test_an_unknown_hook_is_refused_before_the_town_begins(given: Any, message: str) -> None:
    affordances = [dict(entry) for entry in load()["affordance"]]
    affordances[EAT] = {**affordances[EAT], "hooks": given}
    with pytest.raises(BadRules) as refused:
        load(override={"affordance": affordances})
    (fault,) = refused.value.faults
    assert str(fault).startswith(f"affordance[{EAT}] {message}")


def test_a_users_hook_is_part_of_the_rules_by_its_code() -> None:
    affordances = [dict(entry) for entry in load()["affordance"]]
    affordances[EAT] = {**affordances[EAT], "hooks": {"before": ["mine:is_open"]}}

    def mine(call: HookCall) -> bool:
        """Open at all hours."""
        return True

    rules = load(override={"affordance": affordances}, importer=lambda name: mine)
    found = rules.hooks["mine:is_open"]
    assert found.function is mine and found.summary == "Open at all hours." and len(found.source_sha256) == 64
    other = load(override={"affordance": affordances}, importer=lambda name: np.all)  # from another file
    assert other.sha256 != rules.sha256
    with pytest.raises(BadRules, match="is a int; name a function"):
        load(override={"affordance": affordances}, importer=lambda name: 3)


def test_names_and_stages_are_checked_where_they_are_registered(registered: dict[str, list[HookCall]]) -> None:
    with pytest.raises(ValueError, match="registered already"):
        hook("after", name="noted")(lambda call: None)
    with pytest.raises(ValueError, match="give some of before, after, fail"):
        hook("during")
    eaten(ready(hooked(after=["noted"])))
    with pytest.raises(ValueError, match="'joy' is unknown; there are hunger"):
        registered["noted"][0].need("joy")
    assert find("noted", "after").name == "noted"


def test_a_town_without_hooks_has_none_to_call() -> None:
    env = Env(small())
    assert env._hooks is None
    assert (
        load().sha256 == "af80eedf1e8d972ed320bd78db53e91ea1a0174306857d9cf7a0455392253ee3"
    )  # as before hooks had stages


def test_who_moves_on_is_told_of_and_the_caps_on_exits_hold() -> None:
    rules = small({"hooks": {"sleep": {"after": ["move_on"]}}})
    env = Env(rules)
    env.reset(3)
    env.state.people["born"] = -20 * 1440
    left = []
    for _ in range(6 * 1440):
        env.step(env.scripted())
        if env.state.people["cause"][0].any():
            left.append((int(env.state.town["tick"][0]), int(env.state.people["cause"].max())))
    assert left and {cause for _, cause in left} == {MOVED_ON} and env.state.town["exits"][0] == len(left)
    days = [tick // 1440 for tick, _ in left]
    assert max(days.count(day) for day in days) <= rules["lifecycle"]["exits_per_day"]
    assert (env.state.people["alive"][0] == 1).sum() >= 3  # others come
    full = Env(rules)
    full.state.town["exits_today"] = 2
    assert not hooks.may_leave(full.law, full.state.town, 0)


def test_hooks_beside_the_affordances_are_added_to_theirs() -> None:
    beside = load(override={"hooks": {"eat": {"fail": ["disappoint"]}}})
    assert beside["affordance"][EAT]["hooks"] == {"after": ["shared_meal"], "fail": ["disappoint"]}
    for wrong, message in (
        ({"dance": {"after": ["cheer"]}}, "hooks.dance: is no affordance; use one of sleep, shower"),
        ({"eat": ["cheer"]}, "hooks.eat: ['cheer'] has no lists of names"),
        (3, "hooks: 3 is not a table"),
    ):
        with pytest.raises(BadRules) as refused:
            load(override={"hooks": wrong})
        assert str(refused.value.faults[0]).startswith(message)
