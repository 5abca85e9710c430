"""The numbers of a town against ones counted by hand, their limits, and the stages they unlock."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town import health
from holdfast.town.env import Env
from holdfast.town.rules import UNIT, load
from holdfast.town.state import TownState


@pytest.fixture(scope="module")
def env() -> Env:
    return Env(load(override={"residents": 8}))


@pytest.fixture
def state(env: Env) -> TownState:
    env.reset(1)
    return env.state


def numbers(env: Env, state: TownState, ticks: int = 1) -> dict[str, float | None]:
    tally = health.begin(state)
    for _ in range(ticks):
        tally = health.add(tally, env.law, state)
    return health.kpis(tally, env.law, state)


def test_numbers_are_those_counted_by_hand(env: Env, state: TownState) -> None:
    people = state.people[0]
    people["need"] = UNIT
    people["need"][0] = 0  # one of eight has nothing
    people["switches"][:4] = 1
    people["reward"] = [UNIT, -UNIT, 0, 0, 0, 0, 0, 0]
    people["tie_to"][0, :2] = [1, 2]
    people["tie_rivalry"][0, 0] = UNIT
    tally = health.begin(state)
    state.town["chats"] += 4
    state.town["failed"] += 1
    state.town["finished"] += 3
    tally = health.add(tally, env.law, state)
    found = health.kpis(tally, env.law, state)
    day = 1440
    assert found["residents"] == 8 and found["alive"] == 1
    assert found["needs_met"] == 7 / 8 and found["starving"] == 1 / 8
    assert found["chats"] == pytest.approx(4 / (8 / day))
    assert found["failures"] == 1 / 4 and found["thrash"] == 4 / 8
    assert found["ties"] == 2 / 8 and found["rivalry"] == 1 / 8
    assert found["reward"] == 0 and found["reward_variance"] == pytest.approx(2 / 8)
    assert found["attendance"] is None  # nobody is due in the first tick of a day
    assert found["slots_ready"] == (256 - 8) / 256


def test_attendance_is_work_done_of_work_due(env: Env, state: TownState) -> None:
    state.town["tick"] = 601  # ten in the morning was the tick before
    starts = np.asarray(env.law.n["job_start"])[state.people["job"][0]]
    ends = np.asarray(env.law.n["job_end"])[state.people["job"][0]]
    due = int(((starts <= 600) & (ends > 600)).sum())
    tally = health.begin(state)
    state.town["worked"] += 2
    found = health.kpis(health.add(tally, env.law, state), env.law, state)
    assert due > 2 and found["attendance"] == 2 / due


@pytest.mark.parametrize(
    ("shares", "index"), [([5, 5, 5, 5], 1.0), ([1, 0, 0, 0], 0.25), ([0, 0], 1.0), ([3, 1], 16 / 20)]
)
def test_jain_tells_how_evenly_a_thing_is_shared(shares: list[int], index: float) -> None:
    assert health.jain(np.array(shares)) == pytest.approx(index)


def test_an_empty_town_is_never_healthy(env: Env, state: TownState) -> None:
    state.people["alive"] = 0
    assert health.faults(numbers(env, state)) == ("empty-town: nobody lives here",)
    assert health.faults({}) == ("empty-town: nobody lives here",)


def test_a_scripted_half_day_is_healthy(env: Env) -> None:
    env.reset(1)
    tally = health.begin(env.state)
    for _ in range(health.WINDOW):
        env.step(env.scripted())
        tally = health.add(tally, env.law, env.state)
    assert health.faults(health.kpis(tally, env.law, env.state)) == ()


@pytest.mark.parametrize("limit", health.LIMITS, ids=lambda limit: limit.alert)
def test_each_limit_speaks_of_a_number_there_is_and_leaves_room_to_clear(
    limit: health.HealthLimit, env: Env, state: TownState
) -> None:
    assert limit.kpi in numbers(env, state)
    edge = limit.above if limit.above is not None else limit.below
    assert edge is not None and not limit.is_bad(limit.clear) and not limit.is_bad(edge)
    beyond = edge + 0.01 if limit.above is not None else edge - 0.01
    assert limit.is_bad(beyond)
    if limit.alert != "empty-town":
        assert health.faults({"residents": 8.0, limit.kpi: beyond})[0].startswith(limit.alert)


ORDER = ("needs", "work", "ties")


@pytest.mark.parametrize(
    ("windows", "overrides", "expected"),
    [
        ([], [], ("needs",)),  # the first is always on
        ([("needs", True)], [], ("needs",)),
        ([("needs", True), ("needs", True)], [], ("needs", "work")),
        ([("needs", True), ("needs", False), ("needs", True)], [], ("needs",)),  # not in a row
        ([("needs", True)] * 2 + [("work", True)] * 2, [], ORDER),
        ([("work", True)] * 2, [], ("needs",)),  # a stage cannot be skipped
        ([("needs", True)] * 2 + [("needs", False)], [], ("needs", "work")),  # what was unlocked stays
        ([], ["ties"], ORDER),  # by hand, with all before it
        ([], ["magic"], ("needs",)),
    ],
)
def test_stages_unlock_after_two_green_windows_of_the_one_before(
    windows: list[tuple[str, bool]], overrides: list[str], expected: tuple[str, ...]
) -> None:
    assert health.unlocked(ORDER, windows, 2, overrides) == expected
