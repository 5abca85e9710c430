"""The agent: asks the model, runs the tools it calls, and ends with its answer; and its marks on many tasks.

It works with any model that speaks OpenAI's tools. A call that cannot be run returns an error to the model, as a tool
does. `score` judges the answer; hidden fields are removed before the agent is called. Marks of rollouts come from the
store, through the loop; `examine` asks a model directly, without a store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from holdfast.collect.agent import Context, Tracer, scored_by
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput
from holdfast.contracts.executor import Assignment
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span, ToolCall
from holdfast.workloads.tooluse.score import MOST, adoption, metrics, score, scorer
from holdfast.workloads.tooluse.tasks import ToolTask, from_input, to_input
from holdfast.workloads.tooluse.tools import BAD_ARGUMENTS, NAMES, Toolbox, is_error, read_arguments, specs

MAX_TURNS = 6
SEED_STEP = 0x9E3779B97F4A7C15  # far apart, so that no two turns draw the same numbers


@scored_by(scorer, (0.0, MOST), specs(NAMES))
async def agent(task: Any, context: Context) -> str:
    """The final answer; empty where the model was still calling tools when its turns were over.

    Beside the task itself, the input may have `sampling` (an object that is handed to the model as it is) and
    `max_turns`. A resource named `system_prompt` stands before the task's own instructions, one named `system` in
    their place."""
    given = from_input(task)
    sampling, max_turns = _dials(task)
    box, messages = Toolbox(given.world, given.tools), _opening(given, context)
    offered: dict[str, Any] = {"tools": specs(given.tools)} if given.tools else {}  # endpoints refuse an empty list
    context.trace.message("user", given.prompt)
    answer = ""
    for turn in range(max_turns):
        seed = (context.assignment.seed + turn * SEED_STEP) % 2**63
        call = await context.ask(messages, **{**offered, "seed": seed, **sampling})
        calls = call.response.get("tool_calls") or ()
        if not calls:
            answer = str(call.response.get("content") or "")
            break
        messages.append({**call.response, "role": "assistant"})
        messages += [_run(box, asked, context) for asked in calls]
    else:
        context.truncate("max_turns")
    context.trace.message("assistant", answer)
    return answer


def _opening(task: ToolTask, context: Context) -> list[dict[str, Any]]:
    system, *rest = task.messages
    if "system" in context.resources:
        instructions = str(context.resources["system"])
        return [{**system, "content": instructions}, *rest] if instructions else rest
    if prompt := context.resources.get("system_prompt"):
        system = {**system, "content": f"{prompt} {task.system}"}
    return [system, *rest]


def _run(box: Toolbox, asked: Any, context: Context) -> dict[str, Any]:
    """One call as the model wrote it, and the message that answers it."""
    started_at = context.trace.clock()
    asked = asked if isinstance(asked, Mapping) else {}
    function = asked.get("function")
    function = function if isinstance(function, Mapping) else {}
    name, text = str(function.get("name") or ""), function.get("arguments")
    result = box.call(name, text) if isinstance(text, str) else BAD_ARGUMENTS
    arguments = read_arguments(text) if isinstance(text, str) else None
    failed, identity = is_error(result), str(asked.get("id") or "call_0")
    known = {"text": str(text)} if arguments is None else arguments
    outcome = {"error": result} if failed else {"result": result}
    context.trace.tool(ToolCall(tool=name, arguments=known, call_id=identity, **outcome), started_at=started_at)
    return {"role": "tool", "tool_call_id": identity, "content": result}


def _dials(task: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    sampling, max_turns = task.get("sampling") or {}, task.get("max_turns", MAX_TURNS)
    if not isinstance(sampling, Mapping):
        raise BadInput("task.sampling", why="is not an object", remedy='give one such as {"temperature": 1}')
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise BadInput(f"task.max_turns = {max_turns!r}", why="must be a whole number of at least 1")
    return dict(sampling), max_turns


AT_ONCE = 64


@dataclass(frozen=True, slots=True, kw_only=True)
class ExamMark:
    """What a model did with one task."""

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


async def attempt_all(
    complete: Complete,
    tasks: Sequence[ToolTask],
    sampling: Mapping[str, Any],
    *,
    seed: int = 0,
    max_turns: int = MAX_TURNS,
) -> list[tuple[dict[str, Any], str, Sequence[Span]]]:
    """Asks the model each task once, many at a time: what each was given, its answer and its spans."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def attempt(place: int, task: ToolTask) -> tuple[dict[str, Any], str, Sequence[Span]]:
        given = {**to_input(task), "sampling": dict(sampling), "max_turns": max_turns}
        trace = Tracer(record=lambda span: None, clock=lambda: 0.0)
        names: dict[str, Any] = {"rollout": "exam", "attempt": "exam", "number": 1, "split": None, "resources": {}}
        assignment = Assignment(**names, input=given, seed=seed + place)
        async with gate:
            output = await agent(given, Context(assignment=assignment, trace=trace, complete=complete))
        return given, output, trace.spans

    return list(await asyncio.gather(*(attempt(place, task) for place, task in enumerate(tasks))))


async def examine(
    complete: Complete,
    tasks: Sequence[ToolTask],
    *,
    seed: int = 0,
    sampling: Mapping[str, Any] | None = None,
    max_turns: int = MAX_TURNS,
) -> list[ExamMark]:
    done = await attempt_all(complete, tasks, sampling or {}, seed=seed, max_turns=max_turns)
    return [mark(given, score(given, output, spans), spans) for given, output, spans in done]
