"""Many CartPoles at once, each the same as Gymnasium's CartPole-v1 with the same seed, step by step.

The i-th one equals `gymnasium.make("CartPole-v1")` reset with seed + i: same physics in float64, same starts, same end
at 500 steps. Any other environment of Gymnasium is in `collect.gym`.
"""

from __future__ import annotations

from math import cos, pi, sin
from typing import Any

import numba
import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.envs import Bools, Floats, Observation, Spaces, State, StepResult

GRAVITY, FORCE, TICK_S = 9.8, 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS = POLE_MASS + 1.0
POLE_MOMENT = POLE_MASS * HALF_LENGTH
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * pi / 360
STEPS = 500
POOL = 32  # starts drawn at a time: one call of a generator costs as much as a step of all poles

Numbers = NDArray[np.float64]


class CartPoles:
    """`count` poles on carts; action 1 pushes to the right, 0 to the left; every step pays 1."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.spaces = Spaces(observation=4, actions=2)
        self._physics = np.zeros((count, 4))  # x, ẋ, θ, θ̇
        self._age = np.zeros(count, np.int64)  # steps since the episode began
        self._begun = np.zeros(count, np.int64)  # episodes begun by each since the seed
        self._seed = 0
        self._reward = np.ones(count)
        self.reset(0)

    def reset(self, seed: int) -> Observation:
        self._seed = seed
        self._age[:], self._begun[:] = 0, 1
        self._draw_starts()
        self._physics[:] = self._pool[:, 0]
        return self._view()

    def step(self, actions: NDArray[Any]) -> StepResult:
        seen = np.empty((self.count, 4), np.float32)
        final = np.empty((self.count, 4), np.float32)
        terminated, truncated = np.empty(self.count, np.bool_), np.empty(self.count, np.bool_)
        used_up = _step(
            self._physics, self._age, self._begun, self._pool, actions, (seen, final), (terminated, truncated)
        )
        if used_up:
            self._refill(terminated | truncated)
        return StepResult(Observation(seen), self._reward, terminated, truncated, final)

    def state(self) -> State:
        return {
            "physics": self._physics.copy(),
            "age": self._age.copy(),
            "begun": self._begun.copy(),
            "seed": np.array(self._seed),
        }

    def restore(self, state: State) -> Observation:
        self._physics, self._age, self._begun = state["physics"].copy(), state["age"].copy(), state["begun"].copy()
        self._seed = int(state["seed"])
        self._draw_starts()
        return self._view()

    def _view(self) -> Observation:
        return Observation(self._physics.astype(np.float32))

    def _draw_starts(self) -> None:
        """A ring of starts for each pole: episode k begins at place k mod POOL."""
        self._rngs = [np.random.Generator(np.random.PCG64(self._seed + i)) for i in range(self.count)]
        self._pool = np.empty((self.count, POOL, 4))
        for i, rng in enumerate(self._rngs):
            done = (int(self._begun[i]) // POOL) * POOL
            rng.bit_generator.advance(4 * done)  # type: ignore[attr-defined]
            self._pool[i] = rng.uniform(-0.05, 0.05, (POOL, 4))

    def _refill(self, ended: Bools) -> None:
        for i in np.flatnonzero(ended & (self._begun % POOL == 0)):
            self._pool[i] = self._rngs[i].uniform(-0.05, 0.05, (POOL, 4))


@numba.njit(cache=True)
def _step(
    physics: Numbers,
    age: NDArray[np.int64],
    begun: NDArray[np.int64],
    pool: Numbers,
    actions: NDArray[np.int64],
    seen_final: tuple[Floats, Floats],
    ends: tuple[Bools, Bools],
) -> bool:
    """Move every pole by one tick, Euler as in Gymnasium, term by term; True if some pole has used its last start."""
    seen, final = seen_final
    terminated, truncated = ends
    used_up = False
    for i in range(age.size):
        x, x_dot, angle, angle_dot = physics[i, 0], physics[i, 1], physics[i, 2], physics[i, 3]
        push = FORCE if actions[i] == 1 else -FORCE
        cosine, sine = cos(angle), sin(angle)
        shared = (push + POLE_MOMENT * (angle_dot * angle_dot) * sine) / TOTAL_MASS
        angle_acc = (GRAVITY * sine - cosine * shared) / (
            HALF_LENGTH * (4.0 / 3.0 - POLE_MASS * (cosine * cosine) / TOTAL_MASS)
        )
        x_acc = shared - POLE_MOMENT * angle_acc * cosine / TOTAL_MASS
        x, x_dot = x + TICK_S * x_dot, x_dot + TICK_S * x_acc
        angle, angle_dot = angle + TICK_S * angle_dot, angle_dot + TICK_S * angle_acc
        age[i] += 1
        terminated[i] = x < -X_LIMIT or x > X_LIMIT or angle < -ANGLE_LIMIT or angle > ANGLE_LIMIT
        truncated[i] = age[i] >= STEPS and not terminated[i]
        final[i, 0], final[i, 1], final[i, 2], final[i, 3] = x, x_dot, angle, angle_dot
        if terminated[i] or truncated[i]:
            place = begun[i] % POOL
            x, x_dot, angle, angle_dot = pool[i, place, 0], pool[i, place, 1], pool[i, place, 2], pool[i, place, 3]
            age[i] = 0
            begun[i] += 1
            used_up |= begun[i] % POOL == 0
        physics[i, 0], physics[i, 1], physics[i, 2], physics[i, 3] = x, x_dot, angle, angle_dot
        seen[i, 0], seen[i, 1], seen[i, 2], seen[i, 3] = x, x_dot, angle, angle_dot
    return used_up
