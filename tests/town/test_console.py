"""Orders: what each comes to, what is refused and how, and that nothing happens before it is done."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.town import console
from holdfast.town.console import COMMANDS, ROLES, TownView, Wrong
from holdfast.town.env import Env
from holdfast.town.rules import MONEY, UNIT, load


@pytest.fixture(scope="module")
def env() -> Env:
    return Env(load(override={"residents": 8}))


@pytest.fixture
def world(env: Env) -> TownView:
    env.reset(1)
    for _ in range(5):
        env.step(env.scripted())
    return TownView(rules=env.rules, compiled=env.law, state=env.state)


def do(world: TownView, name: str, **args: Any) -> console.CommandPlan:
    plan = console.plan(world, name, args)
    console.do(world, plan.actions)
    return plan


def money(world: TownView) -> int:
    town = world.state.town[0]
    return int(world.state.people["money"].sum() + town["treasury"] + town["outside"])


EVERY: dict[str, dict[str, Any]] = {
    "inspect": {"resident": 1},
    "queues": {},
    "price_spike": {},
    "blackout": {},
    "outage": {},
    "rain": {"ticks": 10},
    "festival": {},
    "arrange_meet": {"a": 0, "b": 1},
    "force_chat": {"a": 0, "b": 1},
    "teleport": {"resident": 1, "x": 23, "y": 16},
    "set_need": {"resident": 1, "need": "hunger", "value": 0.5},
    "give_money": {"resident": 1, "meals": 2},
    "set_tie": {"a": 0, "b": 1, "trust": 0.5},
    "kill": {"resident": 1},
    "toggle_mortality": {"on": False},
}


@pytest.fixture
def near(world: TownView) -> TownView:
    """Residents 0 and 1 stand beside one another, with nothing to do."""
    for who, x in ((0, 23), (1, 24)):
        do(world, "teleport", resident=who, x=x, y=15)
    world.state.people["doing"][0, :2] = -1
    return world


def test_every_command_has_a_case_here() -> None:
    assert EVERY.keys() == COMMANDS.keys()


@pytest.mark.parametrize("name", EVERY)
def test_planning_changes_nothing_and_doing_does(name: str, near: TownView) -> None:
    before = near.state.sha256()
    plan = console.plan(near, name, EVERY[name])
    assert near.state.sha256() == before and plan.summary
    console.do(near, plan.actions)
    assert (near.state.sha256() != before) == bool(plan.actions) == (COMMANDS[name].role != "viewer")


@pytest.mark.parametrize("name", EVERY)
def test_the_town_goes_on_after_every_command_and_no_money_is_lost(name: str, near: TownView, env: Env) -> None:
    before = money(near)
    do(near, name, **EVERY[name])
    for _ in range(60):
        env.step(env.scripted())
    assert money(near) == before
    standing = near.state.people["tile"][0][near.state.people["alive"][0] == 1]
    assert len(set(standing.tolist())) == len(standing)
    alive = np.flatnonzero(near.state.people["alive"][0])
    assert (near.state.who[0, near.state.people["tile"][0, alive]] == alive).all()


def test_each_does_what_it_says(near: TownView) -> None:
    people, town = near.state.people[0], near.state.town[0]
    do(near, "set_need", resident=2, need="energy", value="0.25")
    assert people["need"][2, 2] == UNIT // 4
    had = int(people["money"][2])
    do(near, "give_money", resident=2, meals=1.5)
    assert people["money"][2] == had + 1.5 * MONEY
    do(near, "set_tie", a=2, b=3, trust=0.5, familiarity=0.25, rivalry=0.75)
    for one, other in ((2, 3), (3, 2)):
        k = people["tie_to"][one].tolist().index(other)
        assert [int(people[f"tie_{part}"][one, k]) for part in ("trust", "familiarity", "rivalry")] == [
            UNIT // 2, UNIT // 4, 3 * UNIT // 4,
        ]  # fmt: skip
    do(near, "set_tie", a=2, b=3)
    assert 3 not in people["tie_to"][2] and 2 not in people["tie_to"][3]
    do(near, "toggle_mortality", on="off")
    assert town["mortal"] == 0
    do(near, "kill", resident=4)
    assert people["alive"][4] == 0 and near.state.who[0, people["tile"][4]] != 4
    do(near, "arrange_meet", a=0, b=1)
    assert (town["meeting_a"], town["meeting_b"]) == (0, 1)


def test_a_trouble_lasts_as_long_as_was_said_and_can_be_ended(world: TownView, env: Env) -> None:
    rain = 4
    do(world, "rain", ticks=20)
    assert world.state.town["until"][0, rain] == world.tick + 20
    with pytest.raises(Wrong, match="rain: is on already; end it with ticks=0"):
        console.plan(world, "rain", {})
    do(world, "rain", ticks=0)
    assert world.state.town["until"][0, rain] <= world.tick
    with pytest.raises(Wrong, match="there is none to end"):
        console.plan(world, "rain", {"ticks": 0})


@pytest.mark.parametrize(
    ("name", "args", "code", "message"),
    [
        ("dance", {}, "not_found", "command 'dance': is unknown; there are inspect, queues"),
        ("kill", {}, "usage", "kill: resident: is missing; usage: kill resident=… [cause=eviction]"),
        ("kill", {"resident": 1, "how": 2}, "usage", "kill: how: is unknown"),
        ("kill", {"resident": 99}, "invalid_args", "kill: resident = 99: is out of range; from 0 to 7"),
        ("kill", {"resident": "x"}, "invalid_args", "kill: resident = x: is not a whole number"),
        ("kill", {"resident": 1.5}, "invalid_args", "is not a whole number"),
        ("kill", {"resident": True}, "invalid_args", "is not a whole number"),
        ("kill", {"resident": 1, "cause": "boredom"}, "invalid_args", "one of collapse, eviction, neglect, jobless"),
        ("set_need", {"resident": 1, "need": "hunger", "value": "nan"}, "invalid_args", "is not a number"),
        ("set_need", {"resident": 1, "need": "hunger", "value": 1.1}, "invalid_args", "is out of range; from 0 to 1"),
        ("teleport", {"resident": 1, "x": 0, "y": 0}, "invalid_args", "cannot be stood on"),
        ("teleport", {"resident": 1, "x": 200, "y": 0}, "invalid_args", "is not on the map; stay within 48 × 48"),
        ("give_money", {"resident": 1, "meals": -900}, "invalid_args", "take less"),
        ("set_tie", {"a": 1, "b": 1}, "invalid_args", "is the same resident; name two"),
        ("force_chat", {"a": 0, "b": 1}, "conflict", "are too far apart; arrange a meeting"),
        ("toggle_mortality", {"on": "perhaps"}, "invalid_args", "is neither on nor off"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(
    name: str, args: dict[str, Any], code: str, message: str, world: TownView
) -> None:
    world.state.people["doing"][0] = -1
    if name == "force_chat":
        do(world, "teleport", resident=0, x=23, y=15)
        do(world, "teleport", resident=1, x=23, y=30)
    before = world.state.sha256()
    with pytest.raises(Wrong) as caught:
        console.plan(world, name, args)
    assert caught.value.code == code and message in str(caught.value)
    assert world.state.sha256() == before


def test_who_has_left_is_not_found(world: TownView) -> None:
    do(world, "kill", resident=2)
    with pytest.raises(Wrong, match="has left town") as caught:
        console.plan(world, "inspect", {"resident": 2})
    assert caught.value.code == "not_found"


def test_a_taken_tile_and_a_busy_resident_are_conflicts(near: TownView) -> None:
    with pytest.raises(Wrong, match="1 stands there"):
        console.plan(near, "teleport", {"resident": 0, "x": 24, "y": 15})
    near.state.people["doing"][0, 1] = 0
    with pytest.raises(Wrong, match="1: is busy"):
        console.plan(near, "force_chat", {"a": 0, "b": 1})


def test_a_stage_that_is_off_takes_no_orders() -> None:
    quiet = Env(load(override={"residents": 8, "stages": {"on": ["needs", "work"]}}))
    world = TownView(rules=quiet.rules, compiled=quiet.law, state=quiet.state)
    for name, args in (("rain", {}), ("arrange_meet", {"a": 0, "b": 1}), ("set_tie", {"a": 0, "b": 1})):
        with pytest.raises(Wrong, match="is off; unlock it first") as caught:
            console.plan(world, name, args)
        assert caught.value.code == "unsupported"


def test_docs_and_forms_come_from_the_list() -> None:
    docs = console.docs()
    assert all(f"| `{one.usage}` | {one.role} |" in docs for one in COMMANDS.values())
    assert [one["name"] for one in console.described()] == list(COMMANDS)
    assert {one.role for one in COMMANDS.values()} == set(ROLES)
