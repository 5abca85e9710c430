"""Questions with expected answers: the agent asks the model once, the score compares text.

A task is a string, or an object with a `prompt` and, if it is to be scored, an `expected` text.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.task import TaskItem, task_of
from holdfast.contracts.trace import Span


def prompt_of(task: Any, where: str = "task") -> str:
    item = task_of(task)
    asked = item.input if isinstance(item, TaskItem) else item
    prompt = asked if isinstance(asked, str) else asked.get("prompt") if isinstance(asked, dict) else None
    if not isinstance(prompt, str) or not prompt.strip():
        raise BadInput(where, why="has no prompt", remedy='give a string, or an object with a "prompt" string')
    return prompt


def check(task: Any, where: str, *, is_asked: bool, is_text: bool = True) -> None:
    """Whether the task can be scored by its text and, where a model is asked, has a question in it."""
    expected = task.get("expected") if isinstance(task, dict) else None
    if is_text and expected is not None and not isinstance(expected, str):
        raise BadInput(
            f"{where}.expected = {expected!r}", why="is not text, so no answer could match it", remedy="quote it"
        )
    if is_asked:
        prompt_of(task, where)


async def answer(task: Any, context: Context) -> str:
    """One call: the system prompt in force, then the question."""
    messages = [{"role": "user", "content": prompt_of(task)}]
    system = context.resources.get("system_prompt")
    if system:
        messages.insert(0, {"role": "system", "content": str(system)})
    call = await context.ask(messages)
    return str(call.response.get("content") or "")


def exact_match(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    """1 when the answer is the expected text but for outer spaces, else 0; nothing when nothing was expected."""
    expected = task.get("expected") if isinstance(task, dict) else None
    if not isinstance(expected, str):
        return ()
    return (
        RewardTerm(name="exact_match", value=float(str(output).strip() == expected.strip()), source="rule:exact_match"),
    )
