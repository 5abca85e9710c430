"""Rollouts and attempts: one execution of a task, and each try at it, with the one table of legal moves.

The store repeats the table as database triggers; `tests/store/test_schema.py` compares the two.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord, IllegalMove, check_fields


class Split(StrEnum):
    TRAIN = "train"
    VAL = "val"
    TEST = "test"


class RolloutState(StrEnum):
    QUEUING = "queuing"  # may be claimed now
    REQUEUING = "requeuing"  # waits out its backoff before it may be claimed again
    RUNNING = "running"  # exactly one running attempt holds it
    SUCCEEDED = "succeeded"  # the agent answered; the reward says how well
    FAILED = "failed"  # the agent itself failed on its last try (it raised, or ran out of time): that is data
    DEAD = "dead"  # given up without an answer (lost workers, faults of ours): reported as missing
    CANCELLED = "cancelled"


class OutcomeKind(StrEnum):
    """What came of a rollout that is over: the first thing that anybody wants to know of it, before its state."""

    RIGHT = "right"
    WRONG = "wrong"
    NOT_CHECKED = "not_checked"  # the agent answered, and nobody looked whether that is right
    FAILED = "failed"  # the agent itself failed
    NO_ANSWER = "no_answer"  # given up without an answer, or cancelled


class AttemptState(StrEnum):
    RUNNING = "running"
    SUCCEEDED = "succeeded"
    FAILED = "failed"  # the agent raised
    FAULT = "fault"  # our side failed: the model endpoint, the scorer, a worker that could not start
    TIMEOUT = "timeout"  # reached its wall-clock limit
    UNRESPONSIVE = "unresponsive"  # its worker stopped beating
    CANCELLED = "cancelled"
    RELEASED = "released"  # handed back unharmed by a stopping worker: does not count against max_attempts


R, A = RolloutState, AttemptState

TRANSITIONS: Mapping[RolloutState, frozenset[RolloutState]] = {
    R.QUEUING: frozenset({R.RUNNING, R.CANCELLED}),
    R.REQUEUING: frozenset({R.QUEUING, R.CANCELLED}),
    R.RUNNING: frozenset({R.SUCCEEDED, R.FAILED, R.DEAD, R.REQUEUING, R.QUEUING, R.CANCELLED}),
    R.SUCCEEDED: frozenset(),
    R.FAILED: frozenset({R.QUEUING}),  # an operator's requeue
    R.DEAD: frozenset({R.QUEUING}),
    R.CANCELLED: frozenset({R.QUEUING}),
}
ATTEMPT_TRANSITIONS: Mapping[AttemptState, frozenset[AttemptState]] = {
    A.RUNNING: frozenset(set(A) - {A.RUNNING}),
    **{state: frozenset() for state in A if state is not A.RUNNING},
}
OPEN = frozenset({R.QUEUING, R.REQUEUING, R.RUNNING})
DONE = frozenset(R) - OPEN


def outcome_kind(status: RolloutState, outcome: str | None) -> OutcomeKind | None:
    """Of a rollout's state and of what its check found; None while it is open."""
    if status is RolloutState.SUCCEEDED:
        return OutcomeKind.NOT_CHECKED if outcome is None else OutcomeKind(outcome)
    if status is RolloutState.FAILED:
        return OutcomeKind.FAILED
    return None if status in OPEN else OutcomeKind.NO_ANSWER


ANSWERED = (OutcomeKind.RIGHT, OutcomeKind.WRONG, OutcomeKind.NOT_CHECKED)  # of those, the agent came to an end


def statuses_of(kind: OutcomeKind) -> tuple[RolloutState, ...]:
    """The states that rollouts with this outcome may be in."""
    if kind is OutcomeKind.NO_ANSWER:
        return RolloutState.DEAD, RolloutState.CANCELLED
    return (RolloutState.FAILED if kind is OutcomeKind.FAILED else RolloutState.SUCCEEDED,)


def move(rollout_id: str, old: RolloutState, new: RolloutState) -> RolloutState:
    """The new state, or IllegalMove with what would have been allowed."""
    if new not in TRANSITIONS[old]:
        allowed = ", ".join(sorted(TRANSITIONS[old])) or "nothing: it is final"
        why, remedy = f"cannot go from {old} to {new}", f"from {old} it may go to {allowed}"
        raise IllegalMove(f"rollout {rollout_id}", why=why, remedy=remedy)
    return new


TASK_NAME_RULE = "must be 1 to 200 characters without '/' or outer spaces"


def is_task_name(name: str) -> bool:
    """Whether the queue takes it: names are parts of rollout ids, which are split at '/'."""
    return 0 < len(name) <= 200 and name == name.strip() and "/" not in name


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """What a producer hands to the queue: an input, and how it may be tried."""

    SCHEMA: ClassVar[int] = 1

    name: str  # unique within the run; enqueuing the same name and content twice is one rollout
    input: Any  # any JSON
    split: Split | None = None
    priority: int = 0  # higher first
    max_attempts: int = field(default=3, metadata={"minimum": 1})
    timeout_s: float | None = field(default=None, metadata={"exclusiveMinimum": 0})  # wall-clock limit of one attempt
    resources: int | None = None  # resource version in force
    metadata: Mapping[str, Any] = field(default_factory=dict)
    step: str | None = None  # the durable step that it belongs to
    version: str | None = None  # of the policy that has to act
    max_faults: int = field(default=5, metadata={"minimum": 0})  # infrastructure faults; they use up no attempt

    def __post_init__(self) -> None:
        if not is_task_name(self.name):
            raise BadRecord(f"task name {self.name!r}", why=TASK_NAME_RULE)
        check_fields(f"task {self.name}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Rollout:
    """One execution of one task, as the store sees it from outside."""

    SCHEMA: ClassVar[int] = 1

    id: str  # "<run>/<task name>"
    run: str
    name: str
    input: Any
    split: Split | None
    status: RolloutState
    priority: int
    max_attempts: int
    timeout_s: float | None
    resources: int | None
    metadata: Mapping[str, Any]
    attempt_count: int  # attempts ever started, released ones included
    faults: int  # attempts that failed by the agent's own fault: they count against max_attempts
    enqueued_at: float  # unix seconds
    ready_at: float  # not claimable before
    started_at: float | None
    ended_at: float | None
    reason: str | None  # why it failed, was given up or cancelled
    final_attempt: str | None  # the one attempt that decided it
    reward: float | None  # total of the final attempt's breakdown; None is missing, never zero
    step: str | None = None  # the durable step that it belongs to
    version: str | None = None  # of the policy that has to act
    outcome: str | None = None  # right or wrong; None: not checked
    max_faults: int = 5
    interruptions: int = 0  # attempts that infrastructure ended; they count against max_faults


@dataclass(frozen=True, slots=True, kw_only=True)
class Attempt:
    """One try at a rollout, held under a lease by one worker."""

    SCHEMA: ClassVar[int] = 1

    id: str  # "<rollout>:attempt-<n>"
    rollout: str
    number: int  # 1, 2, …
    worker: str
    token: int  # fencing token: grows with every claim of the store; an old one is refused
    status: AttemptState
    started_at: float
    beat_at: float
    lease_until: float
    deadline: float | None  # wall-clock limit; a lease never reaches past it
    ended_at: float | None
    error: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Backoff:
    """How long a rollout waits before its next attempt: doubling, capped, with up to half of it left to chance."""

    initial_s: float = 0.5
    cap_s: float = 30.0

    def __post_init__(self) -> None:
        if not (isfinite(self.cap_s) and 0 <= self.initial_s <= self.cap_s):
            what = f"backoff {self.initial_s} to {self.cap_s} s"
            raise BadRecord(what, why="must be 0 <= initial <= cap, and finite")

    def delay_s(self, faults: int, chance: float) -> float:
        """After the first fault: initial · [½, 1), then twice that, and so on; chance in [0, 1)."""
        full = min(self.cap_s, self.initial_s * 2.0 ** min(faults - 1, 62))
        return full * (0.5 + 0.5 * chance)


@dataclass(frozen=True, slots=True, kw_only=True)
class Claim:
    """What a worker gets: the rollout and the attempt it now holds."""

    rollout: Rollout
    attempt: Attempt
