"""Marks: what a model did with each of many tasks, and what that comes to by family.

The marks of rollouts come from the store, through the loop; `examine` asks a model directly, where there is no store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.collect.agent import Context, Tracer
from holdfast.contracts.engine import Complete
from holdfast.contracts.executor import Assignment
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.score import adoption, metrics, score
from holdfast.workloads.tooluse.tasks import ToolTask, to_input

AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamMark:
    """One task, done well or badly."""

    family: str
    success: bool
    format: bool  # the asked style was kept
    adoption: bool | None  # a needed tool was called and did its work; None: none was needed
    thinking: int  # tokens
    calls: int  # of tools


def mark(task: Mapping[str, Any], signals: Iterable[RewardTerm], spans: Sequence[Span]) -> ExamMark:
    values = {signal.name: signal.value for signal in signals}
    measured = metrics(task, None, spans)
    return ExamMark(
        family=str(task["family"]),
        success=values.get("success", 0.0) > 0,
        format=values.get("format", 0.0) > 0,
        adoption=adoption(task, spans),
        thinking=int(measured["thinking_tokens"]),
        calls=int(measured["tool_calls"]),
    )


def summary(marks: Sequence[ExamMark]) -> dict[str, Any]:
    """Counts and means, over all and by family; a rate is [how many, of how many], for intervals."""
    by_family = {name: [m for m in marks if m.family == name] for name in sorted({m.family for m in marks})}
    return {**_counts(marks), "families": {name: _counts(some) for name, some in by_family.items()}}


def _counts(marks: Sequence[ExamMark]) -> dict[str, Any]:
    adopted = [m.adoption for m in marks if m.adoption is not None]
    return {
        "success": [sum(m.success for m in marks), len(marks)],
        "format": [sum(m.format for m in marks), len(marks)],
        "adoption": [sum(adopted), len(adopted)],
        "thinking_tokens": round(sum(m.thinking for m in marks) / max(1, len(marks)), 2),
        "tool_calls": round(sum(m.calls for m in marks) / max(1, len(marks)), 3),
    }


async def examine(
    complete: Complete, tasks: Sequence[ToolTask], *, seed: int = 0, sampling: Mapping[str, Any] | None = None
) -> list[ExamMark]:
    """Ask the model each task once, many at a time."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def one(place: int, task: ToolTask) -> ExamMark:
        given = {**to_input(task), "sampling": dict(sampling or {})}
        trace = Tracer(record=lambda span: None, clock=lambda: 0.0)
        assignment = Assignment(
            rollout="exam", attempt="exam", number=1, split=None, input=given, resources={}, seed=seed + place
        )
        async with gate:
            output = await agent(given, Context(assignment=assignment, trace=trace, complete=complete))
        return mark(given, score(given, output, trace.spans), trace.spans)

    return list(await asyncio.gather(*(one(place, task) for place, task in enumerate(tasks))))
