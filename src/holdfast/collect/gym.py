"""Gymnasium environments as vector environments: `vector_env("CartPole-v1", 64)`.

Observations are flattened; vectors of actions are clipped to their space; a mask comes from `info["action_mask"]`, the
cost of a step from `info["cost"]`.
CartPole-v1 has a faster twin in numba that equals Gymnasium's step by step.
"""

from __future__ import annotations

import pickle
from collections.abc import Callable, Collection, Mapping
from dataclasses import replace
from io import BytesIO
from math import cos, pi, sin
from typing import Any

import gymnasium
import numba
import numpy as np
from gymnasium.spaces import Box, Discrete
from gymnasium.vector import AutoresetMode, SyncVectorEnv
from gymnasium.wrappers import FlattenObservation
from numpy.typing import NDArray

from holdfast.contracts.envs import Bools, Described, Floats, Observation, Spaces, State, StepResult, VectorEnv
from holdfast.contracts.errors import BadInput, boundary

GRAVITY, FORCE, TICK_S = 9.8, 10.0, 0.02
POLE_MASS, HALF_LENGTH = 0.1, 0.5
TOTAL_MASS = POLE_MASS + 1.0
POLE_MOMENT = POLE_MASS * HALF_LENGTH
X_LIMIT, ANGLE_LIMIT = 2.4, 12 * 2 * pi / 360
STEPS = 500
POOL = 32  # starts drawn at a time: one generator call costs as much as a step of all poles

Numbers = NDArray[np.float64]


class CartPoles:
    """`count` poles on carts; action 1 pushes to the right, 0 to the left; every step pays 1."""

    def __init__(self, count: int) -> None:
        self.count = count
        self.spaces = Spaces(observation=4, actions=2)
        self._physics = np.zeros((count, 4))  # x, ẋ, θ, θ̇
        self._age = np.zeros(count, np.int64)  # steps in the current episode
        self._begun = np.zeros(count, np.int64)  # episodes that each pole has begun
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
    """Moves every pole by one tick, with Gymnasium's Euler steps; True if some pole has used its last start."""
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


Make = Callable[[], "gymnasium.Env[Any, Any]"]
RETURNS = {  # the range of an episode's return in Gymnasium's own environments
    "CartPole-v0": (0.0, 200.0),
    "CartPole-v1": (0.0, 500.0),
    "MountainCar-v0": (-200.0, 0.0),
    "MountainCarContinuous-v0": (-100.0, 100.0),
    "Acrobot-v1": (-500.0, 0.0),
    "Pendulum-v1": (-3255.0, 0.0),  # 200 steps, each at least −(π² + 0.1 · 8² + 0.001 · 2²)
    "FrozenLake-v1": (0.0, 1.0),
    "FrozenLake8x8-v1": (0.0, 1.0),
    "Taxi-v3": (-2000.0, 20.0),
    "Taxi-v4": (-2000.0, 20.0),
    "Blackjack-v1": (-1.0, 1.5),
}


def vector_env(env: str | Make, count: int) -> VectorEnv:
    """`count` environments of this name or from this factory; our faster twin if there is one."""
    if count < 1:
        raise BadInput(f"{count} environments of {env}", why="must be at least 1")
    return CartPoles(count) if env == "CartPole-v1" else Gym(env, count)


def describe(env: str | Make) -> Described:
    """Makes the environment once and describes it; BadInput if it cannot be made or its spaces do not fit."""
    with boundary(BadInput, f"environment {env}"):
        one = _flat(env)
    spec, steps = one.spec, None if one.spec is None else one.spec.max_episode_steps
    known = RETURNS.get(env) if isinstance(env, str) else None
    each = getattr(one.unwrapped, "reward_range", None)  # of a step, as Gym had it
    if known is None and each is not None and steps is not None and np.isfinite(each).all():
        known = (min(0.0, float(each[0]) * steps), max(0.0, float(each[1]) * steps))
    described = Described(
        spaces=spaces_of(_size(one.observation_space), one.action_space),
        max_steps=steps,
        threshold=None if spec is None else spec.reward_threshold,
        returns=known,
    )
    one.close()
    return described


class Gym:
    """Gymnasium environments side by side in one process; the i-th is seeded with seed + i."""

    def __init__(self, make: str | Make, count: int) -> None:
        called = make if isinstance(make, str) else f"{make.__module__}:{getattr(make, '__qualname__', make)}"
        self.count, self._where = count, f"environment {called}"
        with boundary(BadInput, self._where):
            self._envs = SyncVectorEnv([lambda: _flat(make)] * count, autoreset_mode=AutoresetMode.SAME_STEP)
        self._action = self._envs.single_action_space
        self.spaces = spaces_of(_size(self._envs.single_observation_space), self._action)
        self._mask: Bools | None = None
        self._seen: Floats = np.zeros((count, self.spaces.observation), np.float32)

    def reset(self, seed: int) -> Observation:
        seen, info = self._envs.reset(seed=seed)
        return self._observation(seen, info)

    def step(self, actions: NDArray[Any]) -> StepResult:
        if isinstance(self._action, Discrete):
            sent = actions + self.spaces.start
        else:
            assert isinstance(self._action, Box)
            sent = np.clip(actions, self._action.low.ravel(), self._action.high.ravel())
            sent = sent.reshape(self.count, *self._action.shape).astype(self._action.dtype)
        with boundary(BadInput, self._where):
            seen, reward, terminated, truncated, info = self._envs.step(sent)
            cost = _cost(info)
        final = np.array(seen, np.float32)
        for i in np.flatnonzero(terminated | truncated):
            final[i] = info["final_obs"][i]
        observation = self._observation(seen, info)
        return StepResult(observation, reward.copy(), terminated.copy(), truncated & ~terminated, final, cost)

    def state(self) -> State:
        return frozen((self._envs.envs, self._seen, self._mask))

    def restore(self, state: State) -> Observation:
        self._envs.envs, self._seen, self._mask = thawed(state, self._envs.envs)
        return Observation(self._seen.copy(), self._mask)

    def close(self) -> None:
        self._envs.close()

    def _observation(self, seen: NDArray[Any], info: dict[str, Any]) -> Observation:
        mask = info.get("action_mask")
        if mask is not None:
            self._mask = np.stack(list(mask)).astype(np.bool_)
        elif self._mask is not None:
            raise BadInput("action_mask", why="the environment gave one before, and now gives none")
        self._seen = np.array(seen, np.float32)
        return Observation(self._seen.copy(), self._mask)


def _cost(info: Mapping[str, Any]) -> Numbers | None:
    """What the step cost in each environment; what the last step of an episode cost is told apart from the rest."""
    told = [part["cost"] for part in (info, info.get("final_info", {})) if "cost" in part]
    return np.sum(told, axis=0, dtype=np.float64) if told else None


def frozen(parts: Any) -> State:
    """The pickled environments: Gymnasium has no other way to save them. In one pickle, so that shared objects stay
    shared."""
    with boundary(BadInput, "this environment cannot be saved, so a run in it cannot be resumed"):
        pickled = pickle.dumps(parts)
    return {"pickled": np.frombuffer(pickled, np.uint8).copy()}


def thawed(state: State, like: Any) -> Any:
    """What was frozen. Unpickling runs code: it finds what the environments here (`like`) are made of, and nothing
    else. The caller has verified the hash that the run recorded."""
    sample = (np.zeros(1), np.float64(0.0), np.random.default_rng(0))  # what any environment may come to hold
    known = _Globals(pickle.dumps((like, sample)))
    known.load()
    with boundary(BadInput, "this state of the environments cannot be read"):
        return _Globals(state["pickled"].tobytes(), known.seen).load()


class _Globals(pickle.Unpickler):
    """Reads a pickle and notes the names it asks for; with `allowed`, only these are given, and classes beside them."""

    def __init__(self, data: bytes, allowed: Collection[tuple[str, str]] | None = None) -> None:
        super().__init__(BytesIO(data))
        self.seen, self._allowed = set[tuple[str, str]](), allowed

    def find_class(self, module: str, name: str) -> Any:
        self.seen.add((module, name))
        if self._allowed is None or (module, name) in self._allowed:
            return super().find_class(module, name)
        if module.partition(".")[0] in {one.partition(".")[0] for one, _ in self._allowed} - {"builtins"}:
            found = super().find_class(module, name)
            if isinstance(found, type):  # a part that the environments got on the way
                return found
        raise pickle.UnpicklingError(f"{module}.{name} is no part of the environments")


def _flat(make: str | Make) -> gymnasium.Env[Any, Any]:
    env = gymnasium.make(make) if isinstance(make, str) else make()
    space = env.observation_space
    if not (isinstance(space, Box) and len(space.shape) == 1):
        env = FlattenObservation(env)
    if not isinstance(env.action_space, Box | Discrete):
        raise BadInput(f"actions {env.action_space}", why="neither one choice nor a vector", remedy="wrap it into one")
    return env


def spaces_of(observation: int, action: gymnasium.Space[Any]) -> Spaces:
    """The spaces of observations of this size with these actions, which are one choice or a vector."""
    if isinstance(action, Discrete):
        return Spaces(observation=observation, actions=int(action.n), start=int(action.start))
    assert isinstance(action, Box)
    low, high = (tuple(float(end) for end in ends.ravel()) for ends in (action.low, action.high))
    is_bounded = bool(np.isfinite([*low, *high]).all())  # a policy's manifest is JSON, without infinities
    spaces = Spaces(observation=observation, actions=_size(action), continuous=True)
    return replace(spaces, low=low, high=high) if is_bounded else spaces


def _size(space: gymnasium.Space[Any]) -> int:
    return int(np.prod(space.shape or (1,)))
