"""What one run does and how: made by a workload, carried out by the loop.

A run is a course of lessons: in each, rollouts are run and then something is learnt from them, or a candidate is
proposed. Which lesson comes next follows from what the earlier ones left in the store alone, so a run that was killed
goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.errors import StoreError
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import StepRecord


class Lost(StoreError):
    """The checkpoint that a run would go on from is missing or damaged."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Proposal:
    """A candidate, what it is to take the place of, and how it is judged. All but `decide` may take their time."""

    policy: str  # the line of versions
    kind: PolicyKind
    baseline: str  # the source of what the candidate was measured against
    candidate: str  # its own source: "checkpoint:run-1-20-ab12…"
    manifest: Mapping[str, Any]
    samples: bytes  # every episode of both, as they are kept
    weigh: Callable[[str, str, str], Evidence]  # from the ids of both releases and the hash of the samples
    decide: Callable[[Evidence], Decision]
    publish: Callable[[Evidence, Decision], Mapping[str, Any]]  # writes the reports; what is told of them
    to: Stage = Stage.LIVE  # where an open gate leads
    share: int | None = None  # of a canary


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a lesson left behind: what is told of it, the policy it made, and whether that should go into service."""

    body: Mapping[str, Any]  # kept in the store: plain JSON
    checkpoint: Checkpoint | None = None  # its files are on disk already
    proposal: Proposal | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Follow:
    """Rewarded train rollouts of another run: wait until there are so many new ones, or that run is over."""

    run: str
    least: int
    taken: frozenset[str] = frozenset()  # names of those that were learnt from; what is slow comes after what is quick


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Rollouts to be run, and what to make of them. `learn` may take its time: it is called in a thread."""

    name: str  # for people: "baseline", "grpo 3"
    tasks: Sequence[Task] = ()
    left: int = 0  # rollouts of later lessons, as far as they are known
    learn: Callable[[Sequence[Experience]], Learnt] | None = None
    follow: Follow | None = None  # what others did is learnt from as well


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a run has come."""

    run: str
    folder: Path  # the store's own: checkpoints lie in it
    done: Sequence[StepRecord]  # one for each lesson that is over
    live: Release | None = None  # what is in service of the plan's policy
    reports: Path = Path("reports")
    features: Features = ALL_ON  # as they are when the lesson begins
    between: Callable[[], None] = lambda: None  # called between two steps of learning: waits, or raises Interrupted


Course = Callable[[Standing], Lesson | None]  # what comes next; None: nothing. Lost, where it cannot go on from there


def once(tasks: Sequence[Task]) -> Course:
    """A course of one lesson in which nothing is learnt."""
    return lambda standing: None if standing.done else Lesson(name="rollouts", tasks=tasks)


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does, and how."""

    kind: str = "optimize"
    course: Course
    resources: Mapping[str, Any]
    model_ref: str
    policy: str | None = None  # the line of versions that it improves
    settings: Mapping[str, Any]  # kept with the run, so that it can be resumed
    seats: Callable[[], Seat]
    close: Callable[[], None]  # lets go of what the seats share
    workers: int
    pace: Pace
    seed: int = 0
    queue_limit: int | None = None
    timeout_s: float | None = None  # of the whole run
    drain_s: float = 25.0  # how long running work may take to finish once drained
    report_s: float = 0.5  # how often watchers are told
    look_s: float = 0.06  # at most so often we ask whether all is done
