"""Our CartPoles against Gymnasium's, step by step."""

from __future__ import annotations

import gymnasium
import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.collect.gym import POOL, CartPoles


def balance(observation: NDArray[np.float32]) -> int:
    x, x_dot, angle, angle_dot = observation
    return int(angle + 0.3 * angle_dot + 0.05 * x + 0.1 * x_dot > 0.0)


@pytest.mark.parametrize("skill", [0.0, 1.0], ids=["at random", "balanced to the limit"])
def test_each_pole_is_gymnasiums_with_its_own_seed(skill: float) -> None:
    poles, rng = CartPoles(3), np.random.default_rng(1)
    theirs = [gymnasium.make("CartPole-v1") for _ in range(3)]
    seen = np.array([env.reset(seed=40 + i)[0] for i, env in enumerate(theirs)])
    assert np.array_equal(poles.reset(40).values, seen)
    ends = {"terminated": 0, "truncated": 0}
    for _ in range(1_100):
        actions = np.array([balance(row) if rng.random() < skill else int(rng.integers(2)) for row in seen])
        result = poles.step(actions)
        for i, env in enumerate(theirs):
            after, reward, terminated, truncated, _ = env.step(actions[i])
            assert result.final[i] == pytest.approx(after, abs=1e-6)
            assert (result.reward[i], result.terminated[i], result.truncated[i]) == (reward, terminated, truncated)
            ends["terminated"] += terminated
            ends["truncated"] += truncated
            seen[i] = env.reset()[0] if terminated or truncated else after
        assert result.observation.values == pytest.approx(seen, abs=1e-6)
    if skill:
        assert ends == {"terminated": 0, "truncated": 6}
    else:
        assert ends["terminated"] > 3 * POOL  # so the pool of starts was drawn anew


def test_restored_poles_go_on_through_new_starts() -> None:
    poles, other = CartPoles(2), CartPoles(2)
    poles.reset(3)
    push = np.ones(2, np.int64)
    for _ in range(10 * POOL - 5):  # falling takes about ten steps, so the pool is nearly used up
        poles.step(push)
    other.restore(poles.state())
    for _ in range(10 * POOL):
        assert np.array_equal(poles.step(push).observation.values, other.step(push).observation.values)
