"""Needs run down by their rates, shifts are worked or missed: with rates, wages and fines worked by hand."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.town.compiled_rules import FESTIVAL, RAIN
from holdfast.town.env import Env
from holdfast.town.life import pass_by
from holdfast.town.rules import MONEY, NEEDS
from holdfast.town.state import ABSENT, AFTER, BEFORE, DUE, LATE, OFF, ON_TIME
from tests.town.small import at, put, small, step, told

JOBS = [
    {"id": "clerk", "venue": "office", "start": 100, "end": 400, "wage": 0.01, "slots": 4},
    {"id": "never", "venue": "cafe", "start": 1200, "end": 1440, "wage": 0.02, "slots": 4},
]
RULES = {"job": JOBS, "trouble": [{"id": "rain", "per_day": 0.0, "duration": [1, 1], "cooldown": 0}]}
OFFICE, ROAD = (12, 8), (5, 5)


@pytest.fixture
def env() -> Env:
    """Resident 0 is a clerk; the tick before the shift."""
    env = Env(small(RULES))
    env.state.town["mortal"] = 0
    env.state.people["need"] = 1_000_000
    return env


def of_first(env: Env, kind: str) -> list[tuple[int, int, int]]:
    return [event for event in told(env, kind) if event[0] == 0]


def shift(env: Env) -> int:
    return int(env.state.people["shift"][0, 0])


def test_a_shift_is_due_an_hour_before(env: Env) -> None:
    assert int(env.state.people["job"][0, 0]) == 0
    step(at(env, 39))
    assert shift(env) == BEFORE
    step(at(env, 40))
    assert shift(env) == DUE


def test_who_is_there_within_the_grace_is_on_time_and_earns(env: Env) -> None:
    put(env, 0, *ROAD)
    step(at(env, 100))
    put(env, 0, *OFFICE)
    at(env, 105)  # the grace is five ticks
    money = int(env.state.people["money"][0, 0])
    step(env, r0="work")
    assert shift(env) == ON_TIME
    assert int(env.state.people["money"][0, 0]) == money + 100  # 0.01 of 10,000
    assert int(env.state.town["treasury"][0]) == -100
    assert not of_first(env, "late")


def test_who_comes_later_is_late_once_and_fined_once(env: Env) -> None:
    put(env, 0, *ROAD)
    step(at(env, 100))
    for tick in range(101, 110):
        step(at(env, tick))
    money = 3 * MONEY - MONEY // 10
    assert of_first(env, "late") == [(0, 0, 0)]
    put(env, 0, *OFFICE)
    step(env)
    assert (shift(env), int(env.state.people["money"][0, 0])) == (LATE, money)


def test_who_stays_away_is_absent_and_can_no_longer_earn(env: Env) -> None:
    put(env, 0, *ROAD)
    for tick in range(100, 131):
        step(at(env, tick))
    assert shift(env) == ABSENT
    assert of_first(env, "absent") == [(0, 0, 31)]
    put(env, 0, *OFFICE)
    money = int(env.state.people["money"][0, 0])
    assert money == 3 * MONEY - 1000 - 2000
    step(env, r0="work")
    assert int(env.state.people["money"][0, 0]) == money
    assert not env.state.people["success"][0, 0]


def test_nobody_owes_money(env: Env) -> None:
    env.state.people["money"][0] = 1
    put(env, 0, *ROAD)
    for tick in range(100, 131):
        step(at(env, tick))
    assert env.state.people["money"][0].tolist() == [0, 1, 0, 1]  # clerks 0 and 2 were absent
    assert int(env.state.town["treasury"][0]) == 2


def test_the_third_absence_in_a_week_costs_the_job_and_another_comes_later(env: Env) -> None:
    put(env, 0, *ROAD)
    env.state.people["absent"][0, 0] = [0, 1, 1, 0, 0, 0, 0]
    for tick in range(100, 131):
        step(at(env, tick))
    assert of_first(env, "fired") == [(0, 0, 3)]
    person = env.state.people[0, 0]
    assert (person["job"], person["shift"], person["hire_at"]) == (-1, OFF, 130 + 720)
    step(at(env, 130 + 719))
    assert env.state.people["job"][0, 0] == -1
    step(at(env, 130 + 720))
    assert env.state.people["job"][0, 0] >= 0


def test_only_so_many_lose_their_jobs_in_a_day(env: Env) -> None:
    env.state.people["absent"][0, :, 1:4] = 1
    env.state.people["job"][0] = 0
    env.state.people["job_slot"][0] = [0, 1, 2, 3]
    for i, x in enumerate((4, 5, 6, 7)):
        put(env, i, x, 5)
    for tick in range(100, 131):
        step(at(env, tick))
    assert len(told(env, "absent")) == 4
    assert [one[0] for one in told(env, "fired")] == [0, 1]


def test_who_leaves_before_the_end_is_noted(env: Env) -> None:
    put(env, 0, *OFFICE)
    step(at(env, 100))
    step(env, r0="work")
    put(env, 0, *ROAD)
    step(at(env, 399))
    step(at(env, 400))
    assert shift(env) == AFTER
    assert of_first(env, "departed_early") == [(0, 0, 1)]


def test_places_at_work_are_given_once(env: Env) -> None:
    people = env.state.people[0]
    pairs = [(int(one["job"]), int(one["job_slot"])) for one in people if one["job"] >= 0]
    assert len(set(pairs)) == len(pairs) == 4
    assert {job for job, _ in pairs} == {0, 1}  # jobs fill alike


DECAY = {"hunger": 1.44, "hygiene": 0.72, "energy": 1.44, "social": 0.288}  # a day of 1440: 1000, 500, 1000, 200 a tick
PLAIN = {"needs": {need: {"decay": decay} for need, decay in DECAY.items()}}


def worn(override: dict[str, Any], *, x: int, y: int, trouble: int | None = None, profile: int = 0) -> dict[str, int]:
    """What resident 0 loses in a tick at a place."""
    env = Env(small(override))
    state = env.state
    state.people["need"][0] = 500_000
    state.people["profile"][0] = profile
    if trouble is not None:
        state.town["until"][0, trouble] = 10
    put(env, 0, x, y)
    pass_by(env.law, state.town[0], state.people[0], state.events[0])
    return dict(zip(NEEDS, (500_000 - state.people["need"][0, 0]).tolist(), strict=True))


INDOORS, STREET, PARK = {"x": 8, "y": 3}, {"x": 5, "y": 5}, {"x": 18, "y": 8}


def test_a_tick_takes_its_share_of_a_day() -> None:
    assert worn(PLAIN, **INDOORS) == {"hunger": 1000, "hygiene": 500, "energy": 1000, "social": 200}


def test_rain_wears_those_who_are_outside() -> None:
    assert worn(PLAIN, **STREET, trouble=RAIN) == {"hunger": 1000, "hygiene": 750, "energy": 1500, "social": 200}
    assert worn(PLAIN, **INDOORS, trouble=RAIN) == worn(PLAIN, **INDOORS)


def test_a_feast_does_good_to_those_in_the_park() -> None:
    assert worn(PLAIN, **PARK, trouble=FESTIVAL)["social"] == -800
    assert worn(PLAIN, **STREET, trouble=FESTIVAL)["social"] == 200


def test_nature_changes_what_is_lost_where_natures_are_on() -> None:
    socialite = {"hunger": 1000, "hygiene": 475, "energy": 900, "social": 230}
    assert worn(PLAIN, **INDOORS, profile=1) == socialite
    off = {**PLAIN, "stages": {"on": ["needs", "work", "ties"]}}
    assert worn(off, **INDOORS, profile=1) == worn(PLAIN, **INDOORS)


def test_alone_nobody_misses_company() -> None:
    assert worn({**PLAIN, "stages": {"on": ["needs", "work"]}}, **INDOORS)["social"] == 0


@pytest.mark.parametrize(("start", "end"), [(400, 0), (0, 0), (1_000_000, 999_000)])
def test_a_need_stays_within_its_bounds(start: int, end: int) -> None:
    env = Env(small(PLAIN))
    env.state.people["need"][0, 0, 0] = start
    pass_by(env.law, env.state.town[0], env.state.people[0], env.state.events[0])
    assert env.state.people["need"][0, 0, 0] == end


def test_who_has_left_does_not_wear() -> None:
    env = Env(small(PLAIN))
    env.state.people["alive"][0, 1] = 0
    before = env.state.people["need"][0, 1].copy()
    pass_by(env.law, env.state.town[0], env.state.people[0], env.state.events[0])
    assert np.array_equal(env.state.people["need"][0, 1], before)
