"""The seam of agents: a function `agent(task, ctx)`, async or plain, and the kit that it passes.

`ctx` is a `collect.agent.Context`: the model, the prompts and the rewards of one attempt. How an agent is run and
interrupted is left to `contracts.executor`.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Callable, Sequence
from copy import deepcopy
from typing import Any, Protocol

from holdfast.contracts.checks import require
from holdfast.contracts.errors import BadInput, BadRecord, told
from holdfast.contracts.shapes import Unfit, shape


class Agent(Protocol):
    """Answers a task with any JSON, or an awaitable of it.

    An exception is a failed try, and is data. An attempt that our infrastructure ended is tried again with the same
    seed, and many attempts run at once: an agent keeps nothing of one for another.
    """

    def __call__(self, task: Any, ctx: Any, /) -> Any: ...


def is_async(agent: Agent) -> bool:
    """Whether calling it gives a coroutine, so that it can share one event loop with others."""
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None))  # noqa: B004


def refuse_uncallable(agent: Any, name: str) -> None:
    """BadInput where it cannot be called as agents are."""
    try:
        inspect.signature(agent).bind({}, None)
    except ValueError:
        pass  # some of those written in C do not say what they take
    except TypeError as error:
        raise BadInput(f"agent {name}", why=f"cannot be called with (task, context): {error}") from error


def answer_of(output: Any) -> Any:
    """The answer as plain JSON data, which can then be stored; BadRecord where it is none."""
    try:
        plain = shape(Any).encode(output)
        json.dumps(plain)
    except Unfit as unfit:
        raise BadRecord(f"the agent's answer{unfit.path}", why=unfit.why, remedy="return JSON") from None
    except (ValueError, RecursionError) as error:  # a number of thousands of digits, a list within itself
        raise BadRecord("the agent's answer", why=str(error), remedy="return JSON") from None
    return plain


# The kit for whoever writes an agent


def check_agent(agent: Agent, tasks: Sequence[Any], context: Callable[[Any], Any]) -> None:
    """It can be called, answers in JSON, and says the same of a task again and beside others.

    `context` makes a new one for each attempt at a task, with the same seed and a model that says the same to the same
    messages. What fails is an AssertionError that names the task.
    """
    require(len(tasks) > 1, "fewer than two tasks: whether attempts disturb one another was not checked")
    try:
        refuse_uncallable(agent, type(agent).__name__)
    except BadInput as error:
        raise AssertionError(str(error)) from error

    async def attempts(chosen: Sequence[Any]) -> list[Any]:
        return list(await asyncio.gather(*(_attempt(agent, task, context(task)) for task in chosen)))

    alone = [asyncio.run(attempts([task]))[0] for task in tasks]
    for task, first in zip(tasks, alone, strict=True):
        again = asyncio.run(attempts([task]))[0]
        require(again == first, f"task {task!r:.60}: the same chance gives {again!r:.60} after {first!r:.60}")
    together = asyncio.run(attempts(tasks))
    for task, first, beside in zip(tasks, alone, together, strict=True):
        require(beside == first, f"task {task!r:.60}: answers {beside!r:.60} beside others, {first!r:.60} alone")


async def _attempt(agent: Agent, task: Any, ctx: Any) -> Any:
    shown = deepcopy(task)
    try:
        output = agent(shown, ctx) if is_async(agent) else await asyncio.to_thread(agent, shown, ctx)
        return answer_of(await output if inspect.isawaitable(output) else output)
    except Exception as error:  # foreign code may raise anything
        raise AssertionError(f"task {task!r:.60}: {told(error)}") from error
