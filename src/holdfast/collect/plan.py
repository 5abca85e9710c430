"""What one run does and how: made by a workload, carried out by the loop."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.collect.pool import Pace
from holdfast.collect.seats import Seat
from holdfast.contracts.rollout import Task


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """What one run does, and how."""

    tasks: Sequence[Task]
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
