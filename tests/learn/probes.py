"""Tiny worlds that each catch one kind of bug in a learner: no memory, lost credit, ignored masks, broken Gaussians,
ignored costs.

Each is solved within seconds by a learner that works, and never by one with that bug. All come from one form: what an
episode hides (its cue), what is seen of it and when, what pays. Environments worth playing for themselves are in `gym`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.envs import Bools, Observation, Spaces, State, StepResult, packed, unpacked
from holdfast.contracts.errors import BadInput

Numbers = NDArray[np.float64]
Ints = NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class ProbeWorld:
    """One kind of tiny world; the functions work on all environments at once, [B] each."""

    spaces: Spaces
    steps: int  # length of an episode
    draw: Callable[[np.random.Generator, int], Numbers]  # cues of new episodes
    see: Callable[[Numbers, Ints], Numbers]  # cue, age → observation [B, O]
    pay: Callable[[Numbers, Ints, Any, Any], Numbers]  # cue, age, action, the episode's first action → reward
    allow: Callable[[Numbers, Ints], Bools] | None = None  # cue, age → mask [B, A]
    cost: Callable[[Numbers, Ints, Any], Numbers] | None = None  # cue, age, action → what it costs beside the reward
    cut: bool = False  # its end is a truncation
    solved: float  # mean return of a learner without the bug; the best possible is a little above


def _sign(rng: np.random.Generator, count: int) -> Numbers:
    return rng.choice([-1.0, 1.0], count)


def _uniform(rng: np.random.Generator, count: int) -> Numbers:
    return rng.uniform(-1.0, 1.0, count)


def _right(cue: Numbers, action: NDArray[Any]) -> Numbers:
    return np.where((action == 1) == (cue > 0), 1.0, -1.0)


# The cue is seen once; when it is asked for, four steps later, only a memory has it. Without one the mean is 0.
MEMORY = ProbeWorld(
    spaces=Spaces(observation=2, actions=2),
    steps=5,
    draw=_sign,
    see=lambda cue, age: np.stack([np.where(age == 0, cue, 0.0), age == 4], axis=1),
    pay=lambda cue, age, action, first: np.where(age == 4, _right(cue, action), 0.0),
    solved=0.9,
)

# What is done in the first step is paid in the twelfth: advantages that run the wrong way in time, or stop, never tell.
DELAYED = ProbeWorld(
    spaces=Spaces(observation=2, actions=2),
    steps=12,
    draw=_sign,
    see=lambda cue, age: np.stack([np.where(age == 0, cue, 0.0), age / 12], axis=1),
    pay=lambda cue, age, action, first: np.where(age == 11, _right(cue, first), 0.0),
    solved=0.9,
)

# Nothing is seen, and only the highest allowed action pays: the mask must reach the policy when it acts and when it
# learns. A forbidden action is an error.
MASKED = ProbeWorld(
    spaces=Spaces(observation=1, actions=4),
    steps=1,
    draw=lambda rng, count: rng.integers(1, 16, count).astype(np.float64),
    see=lambda cue, age: np.ones((len(cue), 1)),
    pay=lambda cue, age, action, first: (action == np.floor(np.log2(cue))) * 1.0,
    allow=lambda cue, age: (cue.astype(np.int64)[:, None] >> np.arange(4)) & 1 == 1,
    solved=0.95,
)

# The answer to x is a = −x/2: a log-prob with a wrong sign, scale or sum drifts away from it. The best is 0.
CONTINUOUS = ProbeWorld(
    spaces=Spaces(observation=1, actions=1, continuous=True),
    steps=1,
    draw=_uniform,
    see=lambda cue, age: cue[:, None],
    pay=lambda cue, age, action, first: -np.square(action[:, 0] + 0.5 * cue),
    solved=-0.02,
)

# Every step pays 1 and nothing ever ends, but it is cut after 8 steps: it is worth 1 / (1 − γ), if the cut is no end.
ENDLESS = ProbeWorld(
    spaces=Spaces(observation=1, actions=2),
    steps=8,
    draw=lambda rng, count: np.ones(count),
    see=lambda cue, age: cue[:, None],
    pay=lambda cue, age, action, first: np.ones(len(cue)),
    cut=True,
    solved=8.0,
)

# Taking pays x and costs 1. Without a budget everything is taken, for ½ in the mean. With a budget d the best is to
# take where x > 1 − d, which pays (1 − (1 − d)²) / 2, and the price of cost is then exactly 1 − d.
TEMPTING = ProbeWorld(
    spaces=Spaces(observation=1, actions=2),
    steps=1,
    draw=lambda rng, count: rng.uniform(0.0, 1.0, count),
    see=lambda cue, age: 2.0 * cue[:, None] - 1.0,
    pay=lambda cue, age, action, first: np.where(action == 1, cue, 0.0),
    cost=lambda cue, age, action: (action == 1) * 1.0,
    solved=0.47,
)


class Probes:
    """`count` worlds of one kind, side by side, with one source of chance."""

    def __init__(self, probe: ProbeWorld, count: int) -> None:
        self.probe, self.count, self.spaces = probe, count, probe.spaces
        self._first: NDArray[Any] = np.zeros((count, probe.spaces.actions) if probe.spaces.continuous else count)
        self.reset(0)

    def reset(self, seed: int) -> Observation:
        self._rng = np.random.default_rng(seed)
        self._age = np.zeros(self.count, np.int64)
        self._cue = self.probe.draw(self._rng, self.count)
        return self._view()

    def step(self, actions: NDArray[Any]) -> StepResult:
        probe = self.probe
        if probe.allow is not None and not probe.allow(self._cue, self._age)[np.arange(self.count), actions].all():
            raise BadInput("a forbidden action", why="the mask did not allow it", remedy="choose among the allowed")
        begun = (self._age == 0).reshape(-1, *[1] * (actions.ndim - 1))
        self._first = np.where(begun, actions, self._first)
        reward = probe.pay(self._cue, self._age, actions, self._first)
        cost = None if probe.cost is None else probe.cost(self._cue, self._age, actions)
        self._age += 1
        ended = self._age == probe.steps
        final = probe.see(self._cue, self._age).astype(np.float32)
        self._cue[ended] = probe.draw(self._rng, int(ended.sum()))
        self._age[ended] = 0
        never = np.zeros(self.count, np.bool_)
        terminated, truncated = (never, ended) if probe.cut else (ended, never)
        return StepResult(self._view(), reward, terminated, truncated, final, cost)

    def state(self) -> State:
        arrays = {"cue": self._cue, "age": self._age, "first": self._first, "rng": packed(self._rng)}
        return {name: array.copy() for name, array in arrays.items()}

    def restore(self, state: State) -> Observation:
        self._cue, self._age, self._first = state["cue"].copy(), state["age"].copy(), state["first"].copy()
        self._rng.bit_generator.state = unpacked(state["rng"])
        return self._view()

    def _view(self) -> Observation:
        allow = self.probe.allow
        mask = None if allow is None else allow(self._cue, self._age)
        return Observation(self.probe.see(self._cue, self._age).astype(np.float32), mask)
