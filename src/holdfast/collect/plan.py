"""What one run does and how: made by a workload, carried out by the loop.

A run is a course of lessons: in each, rollouts are run and then something is learnt from them. Which lesson comes next
follows from what the earlier ones left in the store alone, so a run that was killed goes on where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import LearnUpdate


@dataclass(frozen=True, slots=True, kw_only=True)
class Learnt:
    """What a lesson left behind: what is told of it, and the policy it made."""

    body: Mapping[str, Any]  # kept in the store: plain JSON
    checkpoint: Checkpoint | None = None  # its files are on disk already


@dataclass(frozen=True, slots=True, kw_only=True)
class Lesson:
    """Rollouts to be run, and what to make of them. `learn` may take its time: it is called in a thread."""

    name: str  # for people: "baseline", "grpo 3"
    tasks: Sequence[Task] = ()
    left: int = 0  # rollouts of later lessons, as far as they are known
    learn: Callable[[Sequence[Experience]], Learnt] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """How far a run has come."""

    run: str
    folder: Path  # the store's own: checkpoints lie in it
    done: Sequence[LearnUpdate]  # one for each lesson that is over


Course = Callable[[Standing], Lesson | None]  # what comes next; None: nothing


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
