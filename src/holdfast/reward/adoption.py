"""Whether tools are used where they are needed, and only there; by tool, model, version and time.

The unit is the task, never the call: who calls more is not better by any of these rates. Several tries at one task are
averaged first. What is needed is what the task says. How a proportion gets its interval is handed in; what to do when a
rate falls is `operate.alerts`' business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, replace
from math import floor, isfinite
from typing import ClassVar

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.reward.tools import CallMark

BY = ("tool", "model", "version", "window")
DAY_S = 86_400.0
ANYTHING = Interval(low=0.0, high=1.0)  # nothing was seen

Proportion = Callable[[float, float], Interval]  # of so many successes in so many trials


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolAttempt:
    """One attempt at a task, with its tool calls judged."""

    task: str
    model: str | None
    version: str | None
    at: float  # unix seconds
    needs: tuple[str, ...] | None  # None: unknown, and then nothing is said of adoption and over-use
    offered: tuple[str, ...] | None = None  # None: unknown
    marks: tuple[CallMark, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class AdoptionRate:
    """A share of tasks, and how sure it is."""

    SCHEMA: ClassVar[int] = 1

    of: int = 0  # tasks
    tries: int = 0  # at them
    hits: float = 0.0  # the tasks' shares of tries, added up
    interval: Interval = ANYTHING

    @property
    def share(self) -> float | None:
        """None where there was no task to count."""
        return self.hits / self.of if self.of else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """The rates of one tool under one model, version and window; None where they are taken together."""

    SCHEMA: ClassVar[int] = 1

    tool: str | None
    model: str | None
    version: str | None
    window: float | None  # its beginning, unix seconds
    adoption: AdoptionRate  # of tasks that need the tool: those whose first call of it was well formed
    overuse: AdoptionRate  # of tasks that have it and do not need it: those that called it
    formed: AdoptionRate  # of tasks that called it: those with no call of it that was badly formed
    worked: AdoptionRate  # of tasks that called it: those whose first call gave a result, busy ones aside
    mended: AdoptionRate  # of tasks in which it failed: those in which the right thing was done about every failure


@dataclass(slots=True)
class _Count:
    """Hits and tries by task."""

    tasks: dict[str, list[int]] = field(default_factory=dict)

    def add(self, task: str, hit: bool | None) -> None:
        if hit is not None:
            found = self.tasks.setdefault(task, [0, 0])
            found[0] += hit
            found[1] += 1

    def rate(self, interval: Proportion) -> AdoptionRate:
        if not self.tasks:
            return AdoptionRate()
        hits = sum(hit / tries for hit, tries in self.tasks.values())
        hits = min(hits, float(len(self.tasks)))
        tries = sum(tries for _, tries in self.tasks.values())
        return AdoptionRate(of=len(self.tasks), tries=tries, hits=hits, interval=interval(hits, len(self.tasks)))


def tally(
    records: Iterable[ToolAttempt],
    interval: Proportion,
    *,
    by: Collection[str] = ("tool", "model", "version"),
    window_s: float = DAY_S,
) -> tuple[Row, ...]:
    """A row for each of what `by` names, in order; what it does not name is taken together."""
    if unknown := sorted(set(by) - set(BY)):
        raise BadInput(f"adoption by {unknown[0]}", why="is unknown", remedy=f"use {', '.join(BY)}")
    if not (isfinite(window_s) and window_s > 0.0):
        raise BadInput(f"adoption: a window of {window_s} s", why="must be finite and above 0")
    counts: dict[tuple[str | float | None, ...], dict[str, _Count]] = {}
    for record in records:
        begins = floor(record.at / window_s) * window_s
        for tool in sorted({*(record.needs or ()), *(record.offered or ()), *(mark.tool for mark in record.marks)}):
            full = {"tool": tool, "model": record.model, "version": record.version, "window": begins}
            key = tuple(full[name] if name in by else None for name in BY)
            mine = counts.setdefault(key, {})
            for name, hit in _hits(record, tool).items():
                mine.setdefault(name, _Count()).add(record.task, hit)
    ordered = sorted(counts.items(), key=lambda one: [(part is not None, part) for part in one[0]])
    return tuple(_row(key, found, interval) for key, found in ordered)


def _hits(record: ToolAttempt, tool: str) -> dict[str, bool | None]:
    """What each rate makes of one attempt; None: it is no case of it."""
    mine = [mark for mark in record.marks if mark.tool == tool]
    is_needed = None if record.needs is None else tool in record.needs
    lasting = [mark for mark in mine if not mark.is_passing]
    failed = [mark for mark in mine if not mark.has_worked]
    judged = [mark.structure != 0.0 for mark in mine if mark.structure is not None]
    return {
        "adoption": bool(mine) and mine[0].structure != 0.0 if is_needed else None,
        "overuse": bool(mine) if is_needed is False else None,
        "formed": all(judged) if judged else None,
        "worked": bool(lasting) and lasting[0].has_worked if mine else None,
        "mended": all(mark.error_handling == 1.0 for mark in failed) if failed else None,
    }


def _row(key: tuple[str | float | None, ...], found: dict[str, _Count], interval: Proportion) -> Row:
    tool, model, version, window = key
    rates = {name: count.rate(interval) for name, count in found.items()}
    return Row(tool=tool, model=model, version=version, window=window, **rates)  # type: ignore[arg-type]


def drop(now: AdoptionRate, before: AdoptionRate) -> float | None:
    """By how much a rate has certainly fallen: the low end of what it was less the high end of what it is.

    Above 0 the intervals are apart. None where one of them has no tasks.
    """
    return before.interval.low - now.interval.high if now.of and before.of else None


def of_version(record: ToolAttempt) -> ToolAttempt:
    """The record of a model that is called name@version, as the name and the version apart."""
    if record.model is None or record.version is not None:
        return record
    name, at, version = record.model.rpartition("@")
    return replace(record, model=name, version=version) if at and name and version else record
