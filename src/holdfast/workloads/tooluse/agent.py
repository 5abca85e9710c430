"""The agent: asks the model, runs the tools it calls, and ends with its answer.

Any model will do that speaks OpenAI's tools. A call that cannot be run gives it an error to read, as a tool's errors
do. What the answer is worth is up to `score`; what is hidden from the agent is taken away before it is called.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.collect.agent import Context, scored_by
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ToolCall
from holdfast.workloads.tooluse.score import MOST, scorer
from holdfast.workloads.tooluse.tasks import ToolTask, from_input
from holdfast.workloads.tooluse.tools import BAD_ARGUMENTS, NAMES, Toolbox, is_error, read_arguments, specs

MAX_TURNS = 6
SEED_STEP = 0x9E3779B97F4A7C15  # far apart, so that no two turns draw the same numbers


@scored_by(scorer, (0.0, MOST), specs(NAMES))
async def agent(task: Any, context: Context) -> str:
    """The final answer; empty where the model was still calling tools when its turns were over.

    Beside the task itself, the input may have `sampling` (an object that is handed to the model as it is) and
    `max_turns`. A resource named `system_prompt` stands before the task's own instructions.
    """
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
    context.trace.message("assistant", answer)
    return answer


def _opening(task: ToolTask, context: Context) -> list[dict[str, Any]]:
    system, *rest = task.messages
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
    context.trace.tool(
        ToolCall(
            tool=name,
            arguments={"text": str(text)} if arguments is None else arguments,
            result=None if failed else result,
            error=result if failed else None,
            call_id=identity,
        ),
        started_at=started_at,
    )
    return {"role": "tool", "tool_call_id": identity, "content": result}


def _dials(task: Mapping[str, Any]) -> tuple[dict[str, Any], int]:
    sampling, max_turns = task.get("sampling") or {}, task.get("max_turns", MAX_TURNS)
    if not isinstance(sampling, Mapping):
        raise BadInput("task.sampling", why="is not an object", remedy='give one such as {"temperature": 1}')
    if isinstance(max_turns, bool) or not isinstance(max_turns, int) or max_turns < 1:
        raise BadInput(f"task.max_turns = {max_turns!r}", why="must be a whole number of at least 1")
    return dict(sampling), max_turns
