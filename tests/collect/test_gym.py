"""Any Gymnasium environment as worlds."""

from __future__ import annotations

from typing import Any

import gymnasium
import numpy as np
import pytest
from gymnasium.spaces import Box, Dict, Discrete, MultiDiscrete

from holdfast.collect.cartpole import CartPoles
from holdfast.collect.gym import Gym, vector_env
from holdfast.contracts.errors import BadInput


class Corridor(gymnasium.Env[Any, Any]):
    """Three rooms: forward (action 6) ends in the last, back (5) is forbidden in the first."""

    observation_space = Dict({"room": Discrete(3), "light": Box(0.0, 1.0, (1,), np.float32)})
    action_space = Discrete(2, start=5)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.room = 0
        return self._seen()

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        assert action in self.action_space
        self.room += 1 if action == 6 else -1
        seen, info = self._seen()
        return seen, float(self.room), self.room == 2, False, info

    def _seen(self) -> tuple[Any, dict[str, Any]]:
        seen = {"room": self.room, "light": np.array([0.5], np.float32)}
        return seen, {"action_mask": np.array([self.room > 0, True])}


class Sealed(gymnasium.Env[Any, Any]):
    observation_space, action_space = Box(0.0, 1.0, (1,), np.float32), MultiDiscrete([2, 2])


class Fixed(gymnasium.Env[Any, Any]):
    """Cannot be pickled."""

    observation_space, action_space = Box(-9.0, 9.0, (2, 1), np.float32), Box(-1.0, 2.0, (1, 1), np.float32)

    def reset(self, *, seed: int | None = None, options: Any = None) -> tuple[Any, dict[str, Any]]:
        super().reset(seed=seed)
        self.open = lambda: None
        return np.zeros((2, 1), np.float32), {}

    def step(self, action: Any) -> tuple[Any, float, bool, bool, dict[str, Any]]:
        return np.full((2, 1), 3.0, np.float32), float(action[0, 0]), False, True, {}


def test_a_name_makes_worlds_and_cartpole_is_our_own() -> None:
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
