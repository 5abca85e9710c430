"""Rewards: hand-worked values, shaping that telescopes, ends that cost their price, and tricks that do not pay."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.town.env import Env
from holdfast.town.rewards import potential, squash
from holdfast.town.rules import MONEY, NEEDS, UNIT, load
from tests.town.small import at, put, small, step, told

QUIET = [{"id": "rain", "per_day": 0.0, "duration": [1, 1], "cooldown": 0}]
NOTHING = {"alive": 0.0, "deficit": 0.0, "wage": 0.0, "punctual": 0.0, "chat": 0.0, "avoid": 0.0}
HUNGER = NEEDS.index("hunger")
TO_SHOWER = 3 + 2  # after home, work and meeting: the third type of things


def quiet(override: dict[str, Any] | None = None) -> Env:
    return Env(small({"trouble": QUIET, **(override or {})}))


def test_the_squash_is_smooth_odd_and_never_flat() -> None:
    assert [squash(value, 200_000) for value in (0, 200_000, -200_000, 600_000)] == [0, 100_000, -100_000, 150_000]
    values = [squash(value, 200_000) for value in range(-2_000_000, 2_000_001, 10_000)]
    assert values == sorted(set(values))
    assert max(values) < 200_000


def test_a_tick_of_work_is_worth_its_wage_and_its_punctuality() -> None:
    env = quiet({"rewards": {"shaping": 0.0}})
    env.state.people["need"] = UNIT
    put(env, 0, 2, 8)
    at(env, 420)
    seen = step(env, r0="work")
    deficit = (UNIT - env.state.people["need"][0, 0]).astype(np.int64)
    weights = [UNIT, 600_000, 800_000, 300_000]
    rules = env.rules["rewards"]
    lost = sum(
        w * (int(d) ** 2 // UNIT) // UNIT * round(rules["deficit"] * UNIT) // UNIT
        for w, d in zip(weights, deficit, strict=True)
    )
    wage = round(env.rules["job"][0]["wage"] * MONEY) * UNIT // MONEY
    value = round(rules["alive"] * UNIT) - lost + wage + round(rules["punctual"] * UNIT)
    assert round(float(seen.reward[0, 0]) * UNIT) == value * 200_000 // (200_000 + value)


@pytest.mark.parametrize("gamma", [1.0, 0.999, 0.9])
def test_shaping_telescopes(gamma: float) -> None:
    """Σ γᵗ rₜ = shaping × (γᵀ Φ_T − Φ_0), whatever was done between, but for rounding to whole units."""
    env = quiet({"rewards": {**NOTHING, "gamma": gamma, "shaping": 0.5, "no_positive_before_exit": 0}})
    env.state.town["mortal"] = 0
    seen = env.step(env.scripted())  # the first tick of a life is not shaped
    phi = [potential(env.law, env.state.people[0, i]) for i in range(4)]
    total, ticks, rng = np.zeros(4), 300, np.random.default_rng(1)
    for t in range(ticks):
        mask = seen.mask
        seen = env.step((rng.random(mask.shape) * mask).argmax(axis=2))
        total += gamma**t * seen.reward[0].astype(float)
    end = np.array([potential(env.law, env.state.people[0, i]) for i in range(4)])
    assert np.ptp(end - phi) > 10_000  # something has happened
    expected = 0.5 * (gamma**ticks * end - np.array(phi)) / UNIT
    assert np.abs(total - expected).max() < 3 * ticks / UNIT


@pytest.mark.parametrize("cause", ["collapse", "eviction", "neglect", "jobless"])
def test_having_to_leave_costs_its_price_outside_the_squash(cause: str) -> None:
    env = quiet()
    at(env, 5000)
    person = env.state.people[0, 0]
    person["need"] = 900_000
    if cause == "collapse":
        person["need"][HUNGER], person["low_ticks"] = 0, 100
    elif cause == "eviction":
        person["unpaid"] = 2
    elif cause == "neglect":
        person["neglect"] = 400
    else:
        person["job"], person["jobless_since"], person["hire_at"] = -1, 0, 1 << 30
    seen = step(env)
    price = env.rules["rewards"]["terminal"][cause]
    assert bool(seen.terminated[0, 0]) and not seen.alive[0, 0]
    assert seen.reward[0, 0] == np.float32(price)
    assert abs(price) > env.rules["rewards"]["squash"]
    assert step(env).reward[0, 0] == 0  # and nothing more afterwards


@pytest.mark.parametrize("how", ["hunger", "neglect"])
def test_nothing_good_is_paid_shortly_before_an_end(how: str) -> None:
    """At work, with the wage of a hundred: what would be paid is far above nothing."""
    env = quiet({"job": [{"id": "gold", "venue": "grocer", "start": 0, "end": 1440, "wage": 1.0, "slots": 4}]})
    env.state.town["mortal"] = 0
    person = env.state.people[0, 0]
    put(env, 0, 2, 8)
    paid = {}
    for ticks in (1, 19, 20, 29) if how == "hunger" else (1, 349, 350, 400):
        person["need"] = 900_000
        person["low_ticks" if how == "hunger" else "neglect"] = ticks - 1
        if how == "hunger":
            person["need"][HUNGER] = 0
        else:
            person["need"][1] = 50_000
        person["shaped"] = potential(env.law, person)
        paid[ticks] = float(step(env, r0="work").reward[0, 0])
        assert person["earned"] == MONEY
    far, near = list(paid.values())[:2], list(paid.values())[2:]
    assert min(far) > 0.1 and near == [0.0, 0.0]


def test_talk_earns_nothing_while_a_need_is_desperate() -> None:
    for hunger, is_paid in ((900_000, True), (100_000, False)):
        env = quiet({"rewards": {"shaping": 0.0, "alive": 0.0, "deficit": 0.0}, "ties": {"chat": {"base": 1.0}}})
        at(env, 1)
        put(env, 0, 5, 5)
        put(env, 1, 6, 5)
        env.state.people["need"][0] = 900_000
        env.state.people["need"][0, 0, HUNGER] = hunger
        reward = float(step(env, r0="chat").reward[0, 0])
        assert (reward > 0) == is_paid


# Tricks -------------------------------------------------------------------------------------------------------------


def a_day(deeds: dict[str, str], ticks: int = 1440) -> tuple[Env, float]:
    """What a day brings resident 0 beside resident 1, with needs that stay as they are."""
    env, total = quiet(), 0.0
    env.state.town["mortal"] = 0
    put(env, 0, 5, 5)
    put(env, 1, 6, 5)
    for _ in range(ticks):
        env.state.people["need"][0, :2] = 900_000
        total += float(step(env, **deeds).reward[0, 0])
    return env, total


def wages_of_a_day() -> float:
    rules = load()
    job, rewards = rules["job"][0], rules["rewards"]
    tick = job["wage"] * rewards["wage"] + rewards["punctual"]
    return float((job["end"] - job["start"]) * tick)


def test_talking_all_day_does_not_pay() -> None:
    env, farmed = a_day({"r0": "chat", "r1": "chat"})
    _, waited = a_day({})
    assert len(told(env, "chat")) > 10
    assert farmed - waited < 0.1 * wages_of_a_day()


def test_a_day_in_line_pays_no_more_than_a_day_of_waiting() -> None:
    rewards = []
    for deed in ("use:shower", "wait"):
        env = quiet()
        env.state.town["mortal"], total = 0, 0.0
        put(env, 0, 10, 3)  # within reach of the shower
        put(env, 1, 10, 2)
        shower = env.law.tile["thing_at"][1 * 20 + 10]
        assert shower >= 0
        for _ in range(200):
            env.state.people["need"][0, :2] = 500_000
            env.state.people["left"][0, 1] = 10  # resident 1 never ends
            env.state.people["goal"][0, 0], env.state.people["goal_kind"][0, 0] = shower, TO_SHOWER
            total += float(step(env, r0=deed, r1="use:shower").reward[0, 0])
        if deed != "wait":
            assert env.state.people["queue"][0, 0] == shower and env.state.people["waited"][0, 0] > 100
        rewards.append(total)
    assert rewards[0] <= rewards[1]


def test_joining_and_leaving_a_line_behind_a_rival_does_not_pay() -> None:
    """Half the day in and half out, behind a rival who never ends: less than a twentieth of a day's wages."""
    returns = []
    for is_trick in (True, False):
        env = quiet()
        env.state.town["mortal"], total = 0, 0.0
        put(env, 1, 10, 2)
        step(env, r1="use:shower")
        shower = int(env.state.people["using"][0, 1])
        put(env, 0, 10, 3)
        for tick in range(1440):
            people = env.state.people[0]
            people["need"][:2], people["left"][1] = 500_000, 10
            people["tie_to"][0, 0], people["tie_rivalry"][0, 0] = 1, 900_000
            people["goal"][0], people["goal_kind"][0] = shower, TO_SHOWER
            deed = ("use:shower", "leave")[tick % 2] if is_trick else "wait"
            total += float(step(env, r0=deed).reward[0, 0])
        returns.append(total)
    assert 0 < returns[0] - returns[1] < 0.05 * wages_of_a_day()


def test_to_leave_and_come_again_does_not_pay() -> None:
    """Whoever lives as scripted has more to expect than any way of leaving costs, so that nobody leaves for gain."""
    env = Env(load())
    env.reset(3)
    total, ticks = np.zeros(env.residents), 2880
    for _ in range(ticks):
        total += env.step(env.scripted()).reward[0]
    ahead = np.median(total) / ticks / (1 - env.rules["rewards"]["gamma"])
    assert ahead > max(env.rules["rewards"]["terminal"].values())


def test_starving_for_a_new_beginning_pays_less_than_eating() -> None:
    returns = []
    for is_starving in (True, False):
        env = quiet()
        env.state.people["need"][0, 0, HUNGER] = 60_000  # low enough to collapse within the hour or so
        total = 0.0
        for tick in range(300):
            actions = env.scripted().copy()
            if is_starving and tick < 80:
                actions[0, 0] = 0
            total += float(env.step(actions).reward[0, 0])
        assert (int(env.state.town["exits"][0]) == 1) == is_starving
        returns.append(total)
    assert returns[0] < returns[1] - 3
