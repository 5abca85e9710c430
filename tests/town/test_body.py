"""Needs run down by their rates: hand-worked numbers, nature, rain and feasts."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.town.compiled_rules import FESTIVAL, RAIN
from holdfast.town.env import Env
from holdfast.town.life import wear
from holdfast.town.rules import NEEDS
from tests.town.small import put, small

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
    wear(env.law, state.town[0], state.people[0])
    return dict(zip(NEEDS, (500_000 - state.people["need"][0, 0]).tolist(), strict=True))


INDOORS, ROAD, PARK = {"x": 8, "y": 3}, {"x": 5, "y": 5}, {"x": 18, "y": 8}


def test_a_tick_takes_its_share_of_a_day() -> None:
    assert worn(PLAIN, **INDOORS) == {"hunger": 1000, "hygiene": 500, "energy": 1000, "social": 200}


def test_rain_wears_those_who_are_outside() -> None:
    assert worn(PLAIN, **ROAD, trouble=RAIN) == {"hunger": 1000, "hygiene": 750, "energy": 1500, "social": 200}
    assert worn(PLAIN, **INDOORS, trouble=RAIN) == worn(PLAIN, **INDOORS)


def test_a_feast_does_good_to_those_in_the_park() -> None:
    assert worn(PLAIN, **PARK, trouble=FESTIVAL)["social"] == -800
    assert worn(PLAIN, **ROAD, trouble=FESTIVAL)["social"] == 200


def test_nature_changes_what_is_lost_where_natures_are_on() -> None:
    socialite = {"hunger": 1000, "hygiene": 550, "energy": 1000, "social": 260}
    assert worn(PLAIN, **INDOORS, profile=1) == socialite
    off = {**PLAIN, "stages": {"on": ["needs", "work", "ties"]}}
    assert worn(off, **INDOORS, profile=1) == worn(PLAIN, **INDOORS)


def test_alone_nobody_misses_company() -> None:
    assert worn({**PLAIN, "stages": {"on": ["needs", "work"]}}, **INDOORS)["social"] == 0


@pytest.mark.parametrize(("start", "end"), [(400, 0), (0, 0), (1_000_000, 999_000)])
def test_a_need_stays_within_its_bounds(start: int, end: int) -> None:
    env = Env(small(PLAIN))
    env.state.people["need"][0, 0, 0] = start
    wear(env.law, env.state.town[0], env.state.people[0])
    assert env.state.people["need"][0, 0, 0] == end


def test_who_has_left_does_not_wear() -> None:
    env = Env(small(PLAIN))
    env.state.people["alive"][0, 1] = 0
    before = env.state.people["need"][0, 1].copy()
    wear(env.law, env.state.town[0], env.state.people[0])
    assert np.array_equal(env.state.people["need"][0, 1], before)
