"""What is proved: scores are measured, compared with an interval, judged in a verdict, and a gate decides.

How intervals and verdicts are computed is `prove`'s business, which verdicts suffice is `promote`'s.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import ClassVar

from holdfast.contracts.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval, both ends included."""

    SCHEMA: ClassVar[int] = 1

    low: float
    high: float
    level: float = field(default=0.95, metadata={"exclusiveMinimum": 0, "exclusiveMaximum": 1})

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low <= self.high):
            raise BadRecord(f"interval {self.low} to {self.high}", why="the ends must be finite and in order")
        if not 0.0 < self.level < 1.0:
            raise BadRecord(f"interval: level = {self.level}", why="must be above 0 and below 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One metric of one version on every task with every seed. There are no holes: a task that was not measured with
    every seed is left out by whoever measured, and reported as missing."""

    SCHEMA: ClassVar[int] = 1

    version: str
    metric: str
    tasks: tuple[str, ...] = field(metadata={"minItems": 1, "uniqueItems": True})
    seeds: tuple[int, ...] = field(metadata={"minItems": 1, "uniqueItems": True})
    values: tuple[tuple[float, ...], ...]  # a row for each task, a column for each seed

    def __post_init__(self) -> None:
        where = f"scores of {self.version}"
        if not self.version.strip() or not self.metric.strip():
            raise BadRecord(where, why=f"version and metric {self.metric!r} must not be blank")
        for name in ("tasks", "seeds"):
            keys = getattr(self, name)
            if not keys or len(set(keys)) < len(keys):
                raise BadRecord(f"{where}: {name}", why="must be there, each of them once")
        if len(self.values) != len(self.tasks):
            raise BadRecord(f"{where}: values", why=f"{len(self.values)} rows for {len(self.tasks)} tasks")
        for task, row in zip(self.tasks, self.values, strict=True):
            if len(row) != len(self.seeds):
                raise BadRecord(f"{where}: task {task}", why=f"{len(row)} values for {len(self.seeds)} seeds")
            if not all(map(isfinite, row)):
                raise BadRecord(f"{where}: task {task}", why="must be finite", remedy="leave the task out as missing")


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """A candidate against a baseline on the same tasks; above 0 the candidate is better."""

    SCHEMA: ClassVar[int] = 1

    metric: str
    baseline: str  # version
    candidate: str  # version
    difference: float  # candidate minus baseline
    interval: Interval  # of the difference
    p_value: float = field(metadata={"minimum": 0, "maximum": 1})
    pairs: int = field(metadata={"minimum": 1})  # how many pairs it rests on
    method: str  # "paired bootstrap", …

    def __post_init__(self) -> None:
        for name in ("metric", "baseline", "candidate", "method"):
            if not getattr(self, name).strip():
                raise BadRecord(f"comparison: {name}", why="must not be blank")
        where = f"comparison of {self.candidate} with {self.baseline}"
        if not isfinite(self.difference):
            raise BadRecord(f"{where}: difference = {self.difference}", why="must be finite")
        if not 0.0 <= self.p_value <= 1.0:
            raise BadRecord(f"{where}: p_value = {self.p_value}", why="must be between 0 and 1")
        if self.pairs < 1:
            raise BadRecord(f"{where}: pairs = {self.pairs}", why="must be at least 1")


class Outcome(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    HOLD = "hold"  # neither is proved yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the evidence says about a candidate, and why; one that holds says how much more it needs."""

    SCHEMA: ClassVar[int] = 1

    outcome: Outcome
    reasons: tuple[str, ...] = field(metadata={"minItems": 1})
    needs: int | None = field(default=None, metadata={"minimum": 1})  # about so many more episodes; only with hold

    def __post_init__(self) -> None:
        if not self.reasons:
            raise BadRecord(f"verdict {self.outcome}", why="must give a reason")
        _check_reasons(f"verdict {self.outcome}", self.reasons)
        if (self.needs is not None) != (self.outcome is Outcome.HOLD):
            raise BadRecord(f"verdict {self.outcome}: needs = {self.needs}", why="goes with hold, and hold needs it")
        if self.needs is not None and self.needs < 1:
            raise BadRecord(f"verdict {self.outcome}: needs = {self.needs}", why="must be at least 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a gate is open, and why. A closed one always says why; missing evidence is a reason."""

    SCHEMA: ClassVar[int] = 1

    open: bool
    reasons: tuple[str, ...]

    def __post_init__(self) -> None:
        if not self.open and not self.reasons:
            raise BadRecord("closed decision", why="must give a reason")
        _check_reasons("decision", self.reasons)


def _check_reasons(where: str, reasons: tuple[str, ...]) -> None:
    if not all(reason.strip() for reason in reasons):
        raise BadRecord(where, why="a reason must not be blank")
