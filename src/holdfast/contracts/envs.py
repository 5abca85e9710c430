"""The seam of environments: what a learner asks of them. Many at a time, seeded, and starting again by themselves.

    reset(seed) → Observation       what is seen, and which actions are allowed
    step(actions) → StepResult      the rewards, the ends (of which kind), and the next Observation

An episode that ends begins anew within the same step: the observation is then the first of the next episode, and
`final` is the last of the one that ended, which a learner needs after a truncation. Gymnasium's environments are in
`collect.gym`.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    from numpy.typing import NDArray

    Floats = NDArray[np.float32]
    Bools = NDArray[np.bool_]
    State = dict[str, NDArray[Any]]
else:  # a contract loads with nothing but the standard library
    Floats = Bools = Any
    State = dict[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Spaces:
    """What goes in and out of one environment."""

    observation: int  # numbers seen
    actions: int  # how many to choose among, or how many numbers to give
    continuous: bool = False
    start: int = 0  # what the environment calls the first choice
    low: tuple[float, ...] = ()  # bounds of the numbers to give; empty: none
    high: tuple[float, ...] = ()


@dataclass(frozen=True, slots=True)
class Observation:
    """What all environments show now."""

    values: Floats  # [B, O]
    mask: Bools | None = None  # [B, A], True where an action is allowed; None: all of them, always
    scripted: NDArray[np.int64] | None = None  # [B], what the environment's own script would do; None: it has none


@dataclass(frozen=True, slots=True)
class StepResult:
    """One step of all environments. The arrays belong to the receiver until the next step, and may be reused then."""

    observation: Observation
    reward: NDArray[np.float64]  # [B]
    terminated: Bools  # [B]; nothing follows
    truncated: Bools  # [B]; cut short, so what would have followed still has a value; never with terminated
    final: Floats  # [B, O], what was last seen; of use only where an episode ended
    cost: NDArray[np.float64] | None = None  # [B], what the step cost beside its reward; None: there are no costs


class Choose(Protocol):
    """Who acts in all environments at once."""

    def __call__(self, observation: Observation, first: Bools, /) -> NDArray[Any]:
        """Actions [B]; `first` [B] is True where an episode begins with this observation."""
        ...


class VectorEnv(Protocol):
    """Environments of one kind, side by side."""

    @property
    def count(self) -> int: ...

    @property
    def spaces(self) -> Spaces: ...

    def reset(self, seed: int) -> Observation:
        """Begin all of them anew. The same seed and actions give the same results."""
        ...

    def step(self, actions: NDArray[Any]) -> StepResult: ...

    def state(self) -> State:
        """All it takes to go on from here in another process, as arrays."""
        ...

    def restore(self, state: State) -> Observation:
        """Go on from there: what is seen now."""
        ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Described:
    """What an environment says about itself; None if it does not."""

    spaces: Spaces
    max_steps: int | None  # of an episode
    threshold: float | None  # the return from which it counts as solved
    returns: tuple[float, float] | None  # the range of an episode's return
    seats: int = 1  # who act in it at once, each with an observation and a reward of its own
    is_clipped: bool = False  # whether a return outside the range counts as its nearer end


class EnvMaker(Protocol):
    """Makes environments that play many at once by themselves, where Gymnasium's would be too slow or know one actor.

    `name` is what runs and policies are recorded with. Environments of several seats give each seat a row of the
    `VectorEnv`, and the i-th environment is the one that `seed + i` names."""

    @property
    def name(self) -> str: ...

    def describe(self) -> Described: ...

    def vector_env(self, count: int) -> VectorEnv:
        """So many of them, to be played from their beginning for as long as one likes."""
        ...

    def training_env(self, count: int) -> VectorEnv:
        """So many of them, to be learnt in: episodes begin anew by themselves."""
        ...


def packed(rng: np.random.Generator) -> NDArray[np.uint8]:
    """The state of a generator as bytes, so that it can lie in a file beside other arrays."""
    import numpy as np

    return np.frombuffer(json.dumps(rng.bit_generator.state).encode(), np.uint8).copy()


def unpacked(state: NDArray[np.uint8]) -> dict[str, Any]:
    """What to set `bit_generator.state` to."""
    kept: dict[str, Any] = json.loads(state.tobytes())
    return kept
