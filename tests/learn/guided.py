"""A small environment with two seats and a script that errs: what a school has to imitate, and can then beat."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.envs import Described, Observation, Spaces, State, StepResult

SEATS, AGE = 2, 4


class Guided:
    """Each seat sees a sign (−1, 1) and a distraction; going with the sign pays 1. The script goes with the sign unless
    the distraction is above one half, which happens every fourth time."""

    action_names = ("left", "right", "never")
    hook: ClassVar[Callable[[], None]] = staticmethod(lambda: None)  # called in every step

    def __init__(self, count: int) -> None:
        self.count, self.spaces = count * SEATS, Spaces(observation=2, actions=3)
        self._seed, self._age = 0, 0

    def reset(self, seed: int) -> Observation:
        self._seed, self._age = seed, 0
        return self._view()

    def step(self, actions: NDArray[Any]) -> StepResult:
        type(self).hook()
        values = self._values()
        reward = ((actions == 1) == (values[:, 0] > 0)).astype(np.float64) * (actions < 2)
        self._age += 1
        is_over = np.full(self.count, self._age % AGE == 0)
        view = self._view()
        return StepResult(view, reward, np.zeros(self.count, np.bool_), is_over, view.values)

    def state(self) -> State:
        return {"at": np.array([self._seed, self._age])}

    def restore(self, state: State) -> Observation:
        self._seed, self._age = (int(one) for one in state["at"])
        return self._view()

    def labels(self, observations: NDArray[Any]) -> dict[str, NDArray[Any]]:
        return {"sign": np.where(observations[:, 0] > 0, "right", "left")}

    def _values(self) -> NDArray[np.float32]:
        """A hash of seed, age and seat (splitmix64): a generator for each of them would take most of a test's time."""
        rows = np.arange(self.count, dtype=np.uint64)
        z = (rows // SEATS + np.uint64(self._seed)) * np.uint64(2**20) + np.uint64(self._age) * SEATS + rows % SEATS
        z = (z + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15)
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        z ^= z >> np.uint64(31)
        signs, share = np.where(z & np.uint64(1), 1.0, -1.0), (z >> np.uint64(11)) / 2.0**53
        return np.stack([signs, share], axis=1).astype(np.float32)

    def _view(self) -> Observation:
        values = self._values()
        is_right = (values[:, 0] > 0) ^ (values[:, 1] > 0.75)
        mask = np.ones((self.count, 3), np.bool_)
        mask[:, 2] = False
        return Observation(values, mask, is_right.astype(np.int64))


class Recalled(Guided):
    """The sign is shown with the first step of an episode only, and holds for all of it: it has to be remembered. The
    script knows it, and never errs."""

    def step(self, actions: NDArray[Any]) -> StepResult:
        reward = (actions == self._signs()).astype(np.float64)
        found = super().step(actions)
        return StepResult(found.observation, reward, found.terminated, found.truncated, found.final)

    def _signs(self) -> NDArray[np.int64]:
        at, self._age = self._age, self._age - self._age % AGE
        signs = (self._values()[:, 0] > 0).astype(np.int64)
        self._age = at
        return signs

    def _view(self) -> Observation:
        seen = super()._view()
        shown = np.where(self._age % AGE == 0, 2 * self._signs() - 1, 0)
        values = np.stack([shown, seen.values[:, 1]], axis=1).astype(np.float32)
        return Observation(values, seen.mask, self._signs())


class GuidedMaker:
    name = "guided"

    def describe(self) -> Described:
        spaces = Spaces(observation=2, actions=3)
        return Described(spaces=spaces, max_steps=AGE, threshold=None, returns=(0.0, float(AGE)), seats=SEATS)

    def vector_env(self, count: int) -> Guided:
        return Guided(count)

    def training_env(self, count: int) -> Guided:
        return Guided(count)


class RecalledMaker(GuidedMaker):
    name = "recalled"

    def vector_env(self, count: int) -> Recalled:
        return Recalled(count)

    def training_env(self, count: int) -> Recalled:
        return Recalled(count)


class Unguided(Guided):
    """The same without a script."""

    def _view(self) -> Observation:
        seen = super()._view()
        return Observation(seen.values, seen.mask)
