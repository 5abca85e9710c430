"""The default town lives: residents who plan stay for ten days, work, eat, wash, and know one another."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town.env import Env
from holdfast.town.rules import load

pytestmark = pytest.mark.timeout(600)  # whoever comes first waits for the compiler

DAYS, DAY, NOON = 10, 1440, 720
SEEDS = 2


@pytest.fixture(scope="module")
def life() -> dict[str, np.ndarray]:
    """Ten days of two worlds; what they were like at every noon and at the end of every day."""
    env = Env(load(), worlds=SEEDS)
    env.reset(0)
    state = env.state
    needs, counts = [], []
    founders = state.people["born"].copy()
    for tick in range(DAYS * DAY):
        env.step(env.scripted())
        if tick % DAY == NOON:
            needs.append([state.people["need"][w][state.people["alive"][w] == 1].mean(axis=0) for w in range(SEEDS)])
        if tick % DAY == DAY - 1:
            counts.append(state.town.copy())
    stayed = (state.people["alive"] == 1) & (state.people["born"] == founders)
    return {"needs": np.array(needs) / 1e6, "counts": np.array(counts), "stayed": stayed}


def test_nearly_all_are_there_after_ten_days(life: dict[str, np.ndarray]) -> None:
    assert life["stayed"].mean(axis=1).min() >= 0.95


def test_needs_are_met(life: dict[str, np.ndarray]) -> None:
    hunger, hygiene, energy, social = life["needs"].mean(axis=0).min(axis=0)
    assert hunger > 0.5 and hygiene > 0.5 and energy > 0.5 and social > 0.4
    assert life["needs"].min() > 0.35  # no day is a bad one


def test_shifts_are_worked(life: dict[str, np.ndarray]) -> None:
    shifts = 64 * DAYS
    end = life["counts"][-1]
    assert (end["worked"] / (shifts * 420)).min() > 0.9
    assert (end["absences"] / shifts).max() < 0.03
    assert (end["lates"] / shifts).max() < 0.05


def test_people_meet_every_day(life: dict[str, np.ndarray]) -> None:
    for name in ("chats", "shared_meals"):
        each_day = np.diff(life["counts"][name], axis=0, prepend=0)
        assert each_day.min() > 0, name
    end = life["counts"][-1]
    assert (end["meetings"] > end["missed_meetings"]).all()


def test_nobody_is_stuck(life: dict[str, np.ndarray]) -> None:
    end = life["counts"][-1]
    assert (end["blocked"] / end["moves"]).max() < 0.2
    assert (end["deficit_ticks"] / (64 * DAYS * DAY)).max() < 0.005
