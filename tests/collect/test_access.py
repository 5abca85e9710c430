"""One attempt's addresses: they end with it, and what is under way ends, too."""

from __future__ import annotations

import asyncio
import time
from dataclasses import replace
from typing import Any

import openai
import pytest

from holdfast.collect.agent import Context
from holdfast.collect.executors import AgentRuntime
from holdfast.contracts.trace import PARTIAL
from tests.collect.agents import no_score
from tests.collect.clients import (
    HELLO,
    Told,
    answered,
    asking,
    calls,
    chat,
    posted,
    ran,
)
from tests.collect.scene import PATIENCE_S, Sitting, until
from tests.collect.test_endpoint import Script


@pytest.mark.parametrize("path", ["v1/chat/completions", "v1/messages"])
async def test_a_call_after_the_attempt_is_refused_and_not_recorded(path: str) -> None:
    kept: list[Context] = []

    async def agent(task: Any, context: Context) -> str:
        kept.append(context)
        return context.base_url

    model = Script()
    with ran(agent, model) as run:
        _, spans = await run()
        status, told = await posted(kept[0], path)
        late = await posted(replace(kept[0], complete=Script()), path)  # even at an address that is new
    assert status == late[0] == 410 and told["error"]["message"].startswith("this attempt: has ended")
    assert model.asked == [] and calls(spans) == [] == calls(kept[0].trace.spans)


@pytest.mark.parametrize("how", ["returned", "cancelled"])
async def test_a_call_under_way_is_dropped_with_its_attempt(how: str) -> None:
    told: list[Any] = []

    async def agent(task: Any, context: Context) -> str:
        left = asyncio.create_task(posted(context))
        left.add_done_callback(lambda task: told.append(None if task.cancelled() else task.result()))
        await until(model.waiting.is_set)
        if how == "cancelled":
            await asyncio.sleep(PATIENCE_S)
        return "done"

    model = Script(waits=True)
    home = AgentRuntime(agent, no_score, lambda version: model, time.time)
    sitting = Sitting(home.executor())
    try:
        running = asyncio.create_task(sitting.run())
        await until(model.waiting.is_set)
        if how == "cancelled":
            sitting.seat.interrupt()
        outcome = await running
        await until(model.cancelled.is_set)
        await until(lambda: told)
    finally:
        home.close()
    assert (outcome is None) == (how == "cancelled")
    assert told[0] is None or told[0][0] == 410
    assert calls(sitting.spans) == [] == model.calls


async def test_a_plain_agent_that_waits_for_its_client_ends_when_it_is_interrupted() -> None:
    def agent(task: Any, context: Context) -> str:
        with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            return str(client.chat.completions.create(model=context.model, messages=HELLO))

    model = Script(waits=True)
    home = AgentRuntime(agent, no_score, lambda version: model, time.time)
    sitting = Sitting(home.executor())
    try:
        running = asyncio.create_task(sitting.run())
        await until(model.waiting.is_set)
        sitting.seat.interrupt()
        assert await running is None and home.left_behind == 0  # its connection was ended: it did not sleep on in C
    finally:
        home.close()


async def test_a_stream_that_nobody_hears_to_its_end_is_kept_as_partial() -> None:
    async def agent(task: Any, context: Context) -> str:
        said = ""
        async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            stream = await client.chat.completions.create(model=context.model, messages=HELLO, stream=True)
            async for chunk in stream:
                said += chunk.choices[0].delta.content or ""
                if len(said) == 4:
                    break
            await stream.close()
        await until(lambda: any(span.model is not None for span in context.trace.spans))
        context.reward("early", 1.0)
        return said

    with ran(agent, Told(waits=True)) as run:
        outcome, spans = await run()
    assert outcome is not None and outcome.output == "Vier"
    (cut,) = [span for span in spans if span.model is not None]
    assert cut.model is not None and cut.attributes[PARTIAL] == "nobody listened to its end"
    assert cut.model.response["content"] == "Vier" and len(cut.model.completion_ids or ()) == 4
    assert cut.model.finish_reason is None and len(cut.model.logprobs or ()) == 4
    assert outcome.signals[0].turn is None  # it decided nothing, and is no turn


async def test_thinking_budgets_hold_for_calls_of_an_agents_own_client() -> None:
    model = Script()
    _, spans = await answered(asking(chat), model, has_budgets=True)
    granted = model.asked[0]["thinking"]
    assert granted > 0 and spans[-2].attributes["thinking"]["granted"] == granted


async def test_each_model_of_an_attempt_has_an_address_of_its_own() -> None:
    other = Script()

    async def agent(task: Any, context: Context) -> bool:
        second = replace(context, complete=other)
        await chat(second)
        assert context.base_url == replace(context).base_url and context.api_key == second.api_key
        return context.base_url != second.base_url

    model = Script()
    apart, spans = await answered(agent, model)
    assert apart and (len(model.calls), len(other.calls), len(calls(spans))) == (0, 1, 1)
