"""Trouble: begins by chance within its limits, does what it says, and invites residents fairly."""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pytest

from holdfast.town.compiled_rules import BLACKOUT, MEETING, OUTAGE, SPIKE
from holdfast.town.env import Env
from holdfast.town.life import begin_trouble, is_hard
from holdfast.town.places import price
from holdfast.town.rules import TROUBLES
from tests.town.small import at, put, small, step, told


def often(*kinds: str, **more: Any) -> list[dict[str, Any]]:
    return [{"id": kind, "per_day": 24.0, "duration": [30, 30], "cooldown": 100, **more} for kind in kinds]


def lived(trouble: list[dict[str, Any]], scheduler: dict[str, Any], ticks: int = 1440) -> Env:
    env = Env(small({"trouble": trouble, "scheduler": scheduler}))
    env.state.town["mortal"] = 0
    for _ in range(ticks):
        step(env)
    return env


def spans(env: Env) -> list[tuple[int, int, int]]:
    """Every trouble that is remembered: its kind, its first tick, and the first after it."""
    ring = env.state.events[0]
    begins = ring[ring["kind"] == 18]
    return [(int(one["a"]), int(one["tick"]), int(one["tick"] + one["value"])) for one in np.sort(begins, order="tick")]


def test_each_kind_rests_after_it_was_there() -> None:
    env = lived(often("rain"), {"cooldown": 0})
    found = spans(env)
    assert len(found) >= 5
    assert all(after[1] - before[2] >= 100 for before, after in itertools.pairwise(found))


def test_there_is_a_pause_after_any_and_only_so_much_at_once() -> None:
    kinds = ("price_spike", "blackout", "outage", "rain", "festival")
    found = spans(lived(often(*kinds), {"cooldown": 12, "most_at_once": 2}))
    assert {kind for kind, _, _ in found} == {TROUBLES.index(kind) for kind in kinds}
    starts = [start for _, start, _ in found]
    assert min(np.diff(starts)) >= 12
    for start in starts:
        assert sum(begin <= start < end for _, begin, end in found) <= 2


def test_off_means_none() -> None:
    env = Env(small({"trouble": often(*TROUBLES), "stages": {"on": ["needs", "work", "ties"]}}))
    for _ in range(200):
        step(env)
    assert not told(env, "trouble_begins")


def begun(kind: int, length: int = 20, override: dict[str, Any] | None = None) -> Env:
    env = Env(small({"trouble": often("rain", per_day=0.0), "scheduler": {"per_resident": 50}, **(override or {})}))
    s = env.state
    at(env, 500)
    s.people["job"], s.people["hire_at"] = -1, 1 << 30  # nobody is kept from a meeting
    assert begin_trouble(env.law, s.town[0], s.people[0], s.events[0], kind, length)
    return env


def test_prices_rise_while_they_are_high() -> None:
    env = begun(SPIKE, 20, {"trouble": often("price_spike", per_day=0.0, factor=1.5)})
    buy = [entry["id"] for entry in env.rules["affordance"]].index("buy")
    assert price(env.law, env.state.town[0], buy) == 7500  # half a meal, and half as much again
    at(env, 520)
    assert price(env.law, env.state.town[0], buy) == 5000


@pytest.mark.parametrize("kind", [SPIKE, BLACKOUT, OUTAGE])
def test_nobody_has_to_leave_in_hard_times_nor_shortly_after(kind: int) -> None:
    env = begun(kind)
    assert is_hard(env.state.town[0])
    env.state.people["unpaid"][0, 0] = 2
    gone = next(tick for tick in range(500, 700) if not step(env).alive[0, 0])
    assert gone == 520 + 60  # the trouble, then the grace


def test_a_blackout_breaks_off_what_needs_power_and_gives_back_what_it_took() -> None:
    env = Env(small())
    s = env.state
    put(env, 0, 9, 1)  # between the stove and the shower
    s.people["need"][0, 0], s.people["item"][0, 0] = 900_000, [1, 0]
    step(env, r0="use:cook")
    assert (s.people["doing"][0, 0] >= 0, s.people["item"][0, 0].tolist()) == (True, [0, 0])
    s.town["until"][0, BLACKOUT] = s.town["tick"][0] + 5
    step(env)
    assert (s.people["doing"][0, 0], s.people["item"][0, 0].tolist()) == (-1, [1, 0])
    assert len(told(env, "aborted")) == 1


def test_the_worst_rivals_are_invited_and_meet_where_they_walk() -> None:
    env = Env(small({"trouble": often("rain", per_day=0.0)}))
    s = env.state
    at(env, 500)
    s.people["tie_to"][0, 3, 0], s.people["tie_rivalry"][0, 3, 0] = 1, 600_000
    s.people["tie_to"][0, 0, 0], s.people["tie_rivalry"][0, 0, 0] = 2, 300_000
    assert begin_trouble(env.law, s.town[0], s.people[0], s.events[0], MEETING, 200)
    assert (s.town["meeting_a"][0], s.town["meeting_b"][0]) == (3, 1)
    for _ in range(100):
        step(env, r1="go:meeting", r3="go:meeting")
    assert told(env, "met") == [(3, 1, 400_000)]  # 0.2 less of rivalry
    assert s.people["tokens"][0].tolist() == [1, 0, 1, 0]


def test_a_meeting_that_nobody_goes_to_is_missed() -> None:
    env = begun(MEETING)
    for _ in range(25):
        step(env)
    assert len(told(env, "missed")) == 1
    assert env.state.town["meeting_a"][0] == -1


def test_who_was_invited_lately_or_too_often_is_not_invited() -> None:
    env = begun(MEETING)
    s = env.state
    first = {int(s.town["meeting_a"][0]), int(s.town["meeting_b"][0])}
    for _ in range(25):
        step(env)
    assert begin_trouble(env.law, s.town[0], s.people[0], s.events[0], MEETING, 20)
    assert first.isdisjoint({int(s.town["meeting_a"][0]), int(s.town["meeting_b"][0])})
    for _ in range(25):
        step(env)
    assert not begin_trouble(env.law, s.town[0], s.people[0], s.events[0], MEETING, 20)  # nobody has a token left
