"""What is learnt from: steps make a trajectory, trajectories of one task a group, and each trajectory gets advantages.

The convention is dm_env's: a step holds what was seen, the reward that came with it, and then the decision taken there.
So n decisions make n + 1 steps, and the last one is an observation without a decision. Estimating is left to `learn`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from enum import StrEnum
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar, Literal

from holdfast.contracts.errors import BadRecord

Ended = Literal["terminated", "truncated"]


class StepKind(StrEnum):
    BEGUN = "begun"
    ADVANCED = "advanced"
    TERMINATED = "terminated"  # nothing follows: the value of what comes is 0
    TRUNCATED = "truncated"  # cut short by a limit: what would have followed still has a value


ENDS = frozenset({StepKind.TERMINATED, StepKind.TRUNCATED})


@dataclass(frozen=True, slots=True, kw_only=True)
class Step:
    """One observation, the reward that came with it, and the decision taken there.

    Built by begin, advance, terminate and truncate; only the codec fills in the fields itself. There is no `done`: an
    end says which of the two it is."""

    SCHEMA: ClassVar[int] = 1

    kind: StepKind
    observation: Any  # any JSON
    reward: float | None = None  # of the decision before; a begun step has none
    action: Any = None  # any JSON but null, which means that nothing was decided here
    logprob: float | None = None  # of the action, when it was sampled; a density may be above 0
    value: float | None = None  # the policy's own estimate of what is still to come
    span: int | None = field(default=None, metadata={"minimum": 1})  # seq of the deciding span: token ids lie there

    def __post_init__(self) -> None:
        for name in ("reward", "logprob", "value"):
            number = getattr(self, name)
            if number is not None and not isfinite(number):
                raise BadRecord(f"{self.kind} step: {name} = {number}", why="must be finite")
        if (self.reward is None) != (self.kind is StepKind.BEGUN):
            raise BadRecord(f"{self.kind} step: reward = {self.reward}", why="every step has one but the begun one")
        if self.kind in ENDS and self.action is not None:
            raise BadRecord(f"{self.kind} step", why="has an action, but the episode ended there")
        if self.kind is StepKind.TERMINATED and self.value is not None:
            raise BadRecord(
                f"terminated step: value = {self.value}", why="nothing follows, so it is 0 and not estimated"
            )
        if self.action is None and (self.logprob is not None or self.span is not None):
            raise BadRecord(f"{self.kind} step", why="has a logprob or a span, but no action")
        if self.span is not None and self.span < 1:
            raise BadRecord(f"{self.kind} step: span = {self.span}", why="must be at least 1")

    def act(
        self, action: Any, logprob: float | None = None, value: float | None = None, *, span: int | None = None
    ) -> Step:
        """The step with the decision taken there."""
        if action is None:
            raise BadRecord(f"{self.kind} step", why="None is not an action", remedy="name doing nothing, say 'wait'")
        if self.action is not None:
            raise BadRecord(f"{self.kind} step", why=f"has its action already: {self.action!r}")
        return replace(self, action=action, logprob=logprob, value=self.value if value is None else value, span=span)

    def valued(self, value: float) -> Step:
        """The step with an estimate and no decision: what a learner bootstraps from at a truncated or open end."""
        return replace(self, value=value)


def begin(observation: Any) -> Step:
    return Step(kind=StepKind.BEGUN, observation=observation)


def advance(reward: float, observation: Any) -> Step:
    return Step(kind=StepKind.ADVANCED, observation=observation, reward=reward)


def terminate(reward: float, observation: Any) -> Step:
    """The end: there is no future, so nothing is bootstrapped."""
    return Step(kind=StepKind.TERMINATED, observation=observation, reward=reward)


def truncate(reward: float, observation: Any) -> Step:
    """Cut short by a limit of ours: the future was there, so it is bootstrapped."""
    return Step(kind=StepKind.TRUNCATED, observation=observation, reward=reward)


@dataclass(frozen=True, slots=True, kw_only=True)
class Trajectory:
    """One episode, or a part of one, with at least one decision and what came of it.

    It may stay open, its last step neither terminated nor truncated: a part of an episode that goes on elsewhere, as
    when a world that never stops is read in pieces. A learner bootstraps there as after a truncation; what differs is
    that an open episode can be continued, so nobody may count it as finished."""

    SCHEMA: ClassVar[int] = 1

    id: str
    rollout: str | None = None
    attempt: str | None = None  # or the episode's own name, where there is no rollout
    task: str | None = None  # what was tried: trajectories with the same key can be compared in a group
    steps: tuple[Step, ...] = field(metadata={"minItems": 2})
    discount: float = field(default=0.99, metadata={"minimum": 0, "maximum": 1})
    padding: int = field(
        default=0, metadata={"minimum": 0}
    )  # how many transitions are missing on the right; no fake steps
    created_at: float  # unix seconds
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where = f"trajectory {self.id}"
        if not self.id.strip():
            raise BadRecord("trajectory", why="the id must not be blank")
        if not 0.0 <= self.discount <= 1.0:
            raise BadRecord(f"{where}: discount = {self.discount}", why="must be between 0 and 1")
        if self.padding < 0:
            raise BadRecord(f"{where}: padding = {self.padding}", why="must not be negative")
        if not isfinite(self.created_at):
            raise BadRecord(f"{where}: created_at = {self.created_at}", why="must be finite")
        if len(self.steps) < 2:
            raise BadRecord(
                f"{where}: {len(self.steps)} steps", why="needs one decision and what came of it, two at least"
            )
        for index, step in enumerate(self.steps):
            _check_place(f"{where}: steps[{index}]", step, first=index == 0, last=index == len(self.steps) - 1)
        if not isfinite(self.total_return):
            raise BadRecord(f"{where}: total return", why="the rewards add up to more than a number can hold")

    @property
    def end(self) -> Ended | None:
        """How it ended; None while it is open."""
        kind = self.steps[-1].kind
        if kind is StepKind.TERMINATED:
            return "terminated"
        return "truncated" if kind is StepKind.TRUNCATED else None

    @property
    def total_return(self) -> float:
        """The sum of the rewards, not discounted."""
        return sum(step.reward for step in self.steps if step.reward is not None)

    @property
    def transitions(self) -> tuple[tuple[Step, Step], ...]:
        """The step that decided with the step it led to, whose reward is the decision's."""
        return tuple(pairwise(self.steps))


def _check_place(where: str, step: Step, *, first: bool, last: bool) -> None:
    if first != (step.kind is StepKind.BEGUN):
        raise BadRecord(where, why=f"is {step.kind}", remedy="the first step, and no other, is begun")
    if step.kind in ENDS and not last:
        raise BadRecord(where, why=f"is {step.kind}", remedy="only the last step may end the episode")
    if last and step.action is not None:
        raise BadRecord(
            where, why="the last step has an action", remedy="add the step it led to, or leave the action out"
        )
    if not last and step.action is None:
        raise BadRecord(where, why="has no action", remedy="every step but the last takes one")


def window(trajectory: Trajectory, size: int, pad: bool = False) -> Trajectory:
    """At most the last `size` transitions, for a learner with a fixed width; `pad` counts what is missing on the right.

    How it ended stays as it was: cutting the front off, or padding, ends nothing. The step that becomes the first loses
    its reward, which belonged to a decision that is no longer there. The id stays, so a window is not for the store."""
    if size < 1:
        raise BadRecord(f"window of {size}", why="must be at least 1")
    steps = trajectory.steps
    if len(steps) > size + 1:
        first, *rest = steps[-size - 1 :]
        steps = (replace(first, kind=StepKind.BEGUN, reward=None), *rest)
    return replace(trajectory, steps=steps, padding=size - len(steps) + 1 if pad else 0)


@dataclass(frozen=True, slots=True, kw_only=True)
class Group:
    """Trajectories of one task, to be compared with one another."""

    SCHEMA: ClassVar[int] = 1

    task: str
    trajectories: tuple[Trajectory, ...] = field(metadata={"minItems": 1})

    def __post_init__(self) -> None:
        if not self.trajectories:
            raise BadRecord(f"group {self.task}", why="has no trajectories")
        for trajectory in self.trajectories:
            if trajectory.task != self.task:
                raise BadRecord(f"group {self.task}", why=f"trajectory {trajectory.id} is of task {trajectory.task}")
        if len({trajectory.id for trajectory in self.trajectories}) < len(self.trajectories):
            raise BadRecord(f"group {self.task}", why="holds a trajectory twice")


@dataclass(frozen=True, slots=True, kw_only=True)
class AdvantageBatch:
    """The advantages and returns of one trajectory, one of each per transition."""

    SCHEMA: ClassVar[int] = 1

    id: str
    trajectory: str
    advantages: tuple[float, ...] = field(metadata={"minItems": 1})
    returns: tuple[float, ...] = field(metadata={"minItems": 1})
    value_targets: tuple[float, ...] = ()  # empty where no value function is trained
    normalized: bool  # whether the advantages were
    created_at: float  # unix seconds
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        where, count = f"advantages {self.id}", len(self.advantages)
        if not self.id.strip() or not self.trajectory.strip():
            raise BadRecord(where, why=f"id and trajectory {self.trajectory!r} must not be blank")
        if not count:
            raise BadRecord(where, why="is empty")
        if len(self.returns) != count:
            raise BadRecord(where, why=f"{len(self.returns)} returns for {count} advantages")
        if self.value_targets and len(self.value_targets) != count:
            raise BadRecord(where, why=f"{len(self.value_targets)} value targets for {count} advantages")
        for name in ("advantages", "returns", "value_targets"):
            if not all(map(isfinite, getattr(self, name))):
                raise BadRecord(f"{where}: {name}", why="must be finite")
        if not isfinite(self.created_at):
            raise BadRecord(f"{where}: created_at = {self.created_at}", why="must be finite")
