"""A small agent that needs no model and no network: a pocket calculator that works from left to right.

It answers "What is 2 + 2?". It knows no precedence, so it gets "2 + 3 * 4" wrong, and it only answers with the bare
number when its system prompt asks for short answers: there is something to measure, and a prompt that matters.
"""

from __future__ import annotations

import operator
import re
from collections.abc import Callable
from typing import Any

from holdfast.collect.agent import Context
from holdfast.collect.questions import prompt_of
from holdfast.contracts.trace import ToolCall

OPERATIONS: dict[str, Callable[[int, int], int]] = {
    "+": operator.add,
    "-": operator.sub,
    "*": operator.mul,
    "/": operator.floordiv,
}
SHORT = re.compile(r"\b(concise|brief|short|only the number)\b", re.IGNORECASE)


async def agent(task: Any, context: Context) -> str:
    context.trace.message("user", prompt_of(task))
    first, *rest = re.findall(r"\d+|[-+*/]", prompt_of(task)) or ["0"]
    result = int(first)
    for sign, number in zip(rest[::2], rest[1::2], strict=True):
        before, started_at = result, context.trace.clock()
        result = OPERATIONS[sign](result, int(number))
        arguments = {"left": before, "sign": sign, "right": int(number)}
        call = ToolCall(tool="calculator", arguments=arguments, result=result)
        context.trace.tool(call, started_at=started_at)
    is_short = SHORT.search(str(context.resources.get("system_prompt", "")))
    answer = str(result) if is_short else f"The answer is {result}."
    context.trace.message("assistant", answer)
    return answer
