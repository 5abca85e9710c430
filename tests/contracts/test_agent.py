"""The kit of agents: built-in ones and users' pass, and each promise is broken once."""

from __future__ import annotations

import asyncio
import itertools
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.collect import questions
from holdfast.collect.agent import Context, Tracer
from holdfast.contracts.agent import Agent, check_agent, is_async
from holdfast.contracts.trace import ModelCall
from tests.collect.scene import assignment

TASKS = [{"prompt": f"question {n}"} for n in range(3)]


async def echo(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
    await asyncio.sleep(0)
    response = {"role": "assistant", "content": str(messages[-1]["content"]).upper()}
    return ModelCall(model="m", messages=tuple(messages), response=response)


def context(task: Any) -> Context:
    return Context(assignment=assignment(task), trace=Tracer(lambda span: None, time.time), complete=echo)


async def asking(task: Any, ctx: Context) -> Any:
    return (await ctx.ask([{"role": "user", "content": task["prompt"]}])).response["content"]


def plain(task: Any, ctx: Context) -> Any:
    return {"is": [task["prompt"], ctx.seed]}


def awaitable(task: Any, ctx: Context) -> Any:
    return asking(task, ctx)


GOOD: list[Agent] = [questions.answer, asking, plain, awaitable]


@pytest.mark.parametrize("agent", GOOD)
def test_an_agent_that_keeps_to_itself_passes(agent: Agent) -> None:
    check_agent(agent, TASKS, context)
    assert is_async(agent) == (agent in (questions.answer, asking))


class Remembering:
    """Of all attempts at once it knows one task."""

    async def __call__(self, task: Any, ctx: Context) -> Any:
        self.task = task["prompt"]
        await asyncio.sleep(0)
        return self.task


class Slow:
    def __call__(self, task: Any, ctx: Context) -> Any:
        self.task = task["prompt"]
        time.sleep(0.05)
        return self.task


counted = itertools.count()

WRONG: list[tuple[Any, str]] = [
    (lambda task: task, "cannot be called with"),
    (lambda task, ctx: object(), "the agent's answer"),
    (lambda task, ctx: {"score": float("nan")}, "the agent's answer"),
    (lambda task, ctx: 1 / 0, "ZeroDivisionError"),
    (lambda task, ctx: next(counted), "the same chance gives"),
    (Remembering(), "answers 'question 2' beside others, 'question 0' alone"),
    (Slow(), "beside others"),
]


@pytest.mark.parametrize(("agent", "says"), WRONG, ids=[says for _, says in WRONG])
def test_an_agent_that_breaks_a_promise_fails_the_kit(agent: Any, says: str) -> None:
    with pytest.raises(AssertionError, match=says):
        check_agent(agent, TASKS, context)


def test_one_task_does_not_show_whether_attempts_disturb_one_another() -> None:
    with pytest.raises(AssertionError, match="fewer than two tasks"):
        check_agent(plain, TASKS[:1], context)


def test_a_task_is_the_agents_own_copy() -> None:
    def changing(task: Any, ctx: Context) -> Any:
        return task.pop("prompt")

    check_agent(changing, TASKS, context)
    assert TASKS[0] == {"prompt": "question 0"}
