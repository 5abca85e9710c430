"""Any Gymnasium environment as worlds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest

from holdfast.collect.gym import RETURNS, CartPoles, Gym, describe, vector_env
from holdfast.contracts.errors import BadInput
from tests.collect.environments import Corridor, Fixed, Sealed, Signpost


def test_a_name_makes_environments_and_cartpole_is_our_own() -> None:
    assert isinstance(vector_env("CartPole-v1", 2), CartPoles)
    made = vector_env("Acrobot-v1", 2)
    assert isinstance(made, Gym)
    assert (made.spaces.observation, made.spaces.actions, made.spaces.continuous) == (6, 3, False)


def test_they_are_gymnasiums_own_environments_seeded_one_after_the_other() -> None:
    made, theirs = Gym("Acrobot-v1", 2), gymnasium.make("Acrobot-v1")
    view = made.reset(7)
    assert np.array_equal(view.values[1], theirs.reset(seed=8)[0])
    assert np.array_equal(made.step(np.array([0, 2])).observation.values[1], theirs.step(2)[0])


def test_an_end_shows_what_was_last_seen_and_the_next_beginning() -> None:
    made = Gym(Corridor, 1)
    assert made.reset(0).values.tolist() == [[0.5, 1.0, 0.0, 0.0]]  # the light, then the room as one of three
    made.step(np.array([1]))
    result = made.step(np.array([1]))
    assert (result.terminated.tolist(), result.truncated.tolist(), result.reward.tolist()) == ([True], [False], [2.0])
    assert result.final.tolist() == [[0.5, 0.0, 0.0, 1.0]]
    assert result.observation.values.tolist() == [[0.5, 1.0, 0.0, 0.0]]


def test_masks_come_from_the_environment_and_follow_its_state() -> None:
    made = Gym(Corridor, 2)
    assert made.reset(0).mask is not None
    mask = made.step(np.array([1, 1])).observation.mask
    assert mask is not None
    assert mask.tolist() == [[True, True], [True, True]]
    mask = made.step(np.array([0, 1])).observation.mask
    assert mask is not None
    assert mask.tolist() == [[False, True], [False, True]]


def test_numbers_are_cut_to_the_bounds_and_shaped_as_the_environment_wants_them() -> None:
    made = Gym(Fixed, 2)
    made.reset(0)
    result = made.step(np.array([[-7.0], [1.5]], np.float32))
    assert result.reward.tolist() == [-1.0, 1.5]
    assert result.truncated.all()
    assert result.final.tolist() == [[3.0, 3.0], [3.0, 3.0]]


def test_what_cannot_be_used_is_refused_in_one_line() -> None:
    with pytest.raises(BadInput, match="environment Nowhere-v0"):
        vector_env("Nowhere-v0", 1)
    with pytest.raises(BadInput, match="neither one choice nor a vector"):
        Gym(Sealed, 1)
    with pytest.raises(BadInput, match="must be at least 1"):
        vector_env("Acrobot-v1", 0)
    made = Gym(Fixed, 1)
    made.reset(0)
    with pytest.raises(BadInput, match="cannot be saved"):
        made.state()


def test_an_environment_describes_itself() -> None:
    pole = describe("CartPole-v1")
    assert (pole.max_steps, pole.threshold, pole.returns) == (500, 475.0, (0.0, 500.0))
    sign = describe(Signpost)
    assert (sign.max_steps, sign.threshold, sign.returns) == (None, None, None)
    assert (describe(Corridor).spaces.start, describe(Corridor).spaces.observation) == (5, 4)
    assert (describe(Fixed).spaces.low, describe(Fixed).spaces.high) == ((-1.0,), (2.0,))


class Paying(Signpost):
    reward_range = (-1.0, 2.0)


def test_a_range_of_every_step_makes_a_range_of_the_return() -> None:
    def make() -> gymnasium.Env[Any, Any]:
        return gymnasium.make(gymnasium.envs.registration.EnvSpec("Paying-v0", Paying, max_episode_steps=10))

    assert describe(make).returns == (-10.0, 20.0)


@pytest.mark.parametrize("name", ["MountainCar-v0", "Pendulum-v1", "FrozenLake-v1", "Blackjack-v1"])
def test_no_episode_returns_more_or_less_than_is_known_of_its_environment(name: str) -> None:
    envs, rng = Gym(name, 2), np.random.default_rng(0)
    low, high = RETURNS[name]
    envs.reset(0)
    so_far = np.zeros(2)
    for _ in range(250):
        actions = rng.normal(size=(2, 1)) if envs.spaces.continuous else rng.integers(0, envs.spaces.actions, 2)
        result = envs.step(actions)
        so_far += result.reward
        assert (low <= so_far).all() and (so_far <= high).all()
        so_far[result.terminated | result.truncated] = 0.0
