"""Clients of the model as agents use them, unchanged but for address and key, and attempts that run them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import anthropic
import openai

from holdfast.collect.agent import Context
from holdfast.collect.executors import AgentRuntime
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Outcome
from holdfast.contracts.trace import PARTIAL, ModelCall, Span
from tests.collect.agents import no_score
from tests.collect.scene import PATIENCE_S, Sitting
from tests.collect.test_endpoint import CALC, Script

HELLO: list[Any] = [{"role": "user", "content": "What is 2+2?"}]
PARAMETERS = CALC["function"]["parameters"]
FLAT: Any = {"type": "function", "name": "calc", "parameters": PARAMETERS}  # as responses want it
THEIRS: Any = {"name": "calc", "input_schema": PARAMETERS}  # as Anthropic wants it
HOW = {"temperature": 0.9, "seed": 5}  # what no client of the three has names for goes by extra_body


@dataclass
class Told:
    """A script that also says its answer while it makes it, in pieces that carry their tokens."""

    script: Script = field(default_factory=Script)
    breaks: bool = False
    waits: bool = False

    async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
        return await self.script(messages, **sampling)

    async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Any]:
        call = self.script.call(messages, sampling)
        assert call.completion_ids is not None and call.logprobs is not None
        text = str(call.response["content"])
        for place, letter in enumerate(text):
            yield {"content": letter, "token_ids": [call.completion_ids[place]], "logprobs": [call.logprobs[place]]}
            if place == 3 and self.waits:
                await asyncio.sleep(PATIENCE_S)
            if place == 3 and self.breaks:
                raise Fault("model", why="is gone")
        self.script.calls.append(call)
        yield call


@contextmanager
def ran(agent: Any, model: Complete | None, **how: Any) -> Iterator[Callable[..., Awaitable[tuple[Any, list[Span]]]]]:
    """Runs the agent as an attempt; gives its outcome and its spans."""
    home = AgentRuntime(agent, no_score, lambda version: model, time.time, **how)

    async def run(task: Any = "task", **fields: Any) -> tuple[Outcome | None, list[Span]]:
        sitting = Sitting(home.executor())
        return await sitting.run(task, **fields), sitting.spans

    try:
        yield run
    finally:
        home.close()


async def answered(agent: Any, model: Complete | None, **how: Any) -> tuple[Any, list[Span]]:
    with ran(agent, model, **how) as run:
        outcome, spans = await run()
    assert outcome is not None and outcome.error is None, outcome
    return outcome.output, spans


def calls(spans: Sequence[Span]) -> list[ModelCall]:
    return [span.model for span in spans if span.model is not None and PARTIAL not in span.attributes]


# Clients, each unchanged but for address and key: (text, reasoning) as its user sees them


async def chat(context: Context, **how: Any) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        reply = await client.chat.completions.create(model=context.model, messages=HELLO, **HOW, **how)
    return reply.choices[0].message.content or ""


async def chat_streamed(context: Context, **how: Any) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        stream = await client.chat.completions.create(model=context.model, messages=HELLO, stream=True, **HOW, **how)
        return "".join([chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices])


async def response(context: Context, **how: Any) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        reply = await client.responses.create(model=context.model, input=HELLO, extra_body=HOW, **how)
    return reply.output_text


async def response_streamed(context: Context, **how: Any) -> str:
    async with (
        openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client,
        client.responses.stream(model=context.model, input=HELLO, extra_body=HOW, **how) as stream,
    ):
        said = "".join([event.delta async for event in stream if event.type == "response.output_text.delta"])
        assert (await stream.get_final_response()).output_text == said
    return said


async def message(context: Context, **how: Any) -> str:
    async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
        reply = await client.messages.create(model=context.model, messages=HELLO, max_tokens=60, extra_body=HOW, **how)
    return "".join(block.text for block in reply.content if block.type == "text")


async def message_streamed(context: Context, **how: Any) -> str:
    async with (
        anthropic.AsyncAnthropic(base_url=context.anthropic_base_url, api_key=context.api_key) as client,
        client.messages.stream(model=context.model, messages=HELLO, max_tokens=60, extra_body=HOW, **how) as stream,
    ):
        said = "".join([text async for text in stream.text_stream])
        final = await stream.get_final_message()
        assert "".join(block.text for block in final.content if block.type == "text") == said
    return said


async def chat_plainly(context: Context, **how: Any) -> str:
    """The synchronous client: it blocks the loop that it is called on, and is answered all the same."""
    with openai.OpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        reply = client.chat.completions.create(model=context.model, messages=HELLO, **HOW, **how)
    return reply.choices[0].message.content or ""


CLIENTS: Sequence[Callable[..., Awaitable[str]]] = (
    chat,
    chat_streamed,
    response,
    response_streamed,
    message,
    message_streamed,
    chat_plainly,
)


def named(client: Any) -> str:
    return str(getattr(client, "__name__", client))


def asking(client: Callable[..., Awaitable[str]], **how: Any) -> Any:
    async def agent(task: Any, context: Context) -> str:
        return await client(context, **how)

    return agent


async def posted(context: Context, path: str = "v1/chat/completions", key: str | None = None, **body: Any) -> Any:
    headers = {"Authorization": f"Bearer {context.api_key if key is None else key}"}
    said = {"input": HELLO} if "responses" in path else {"messages": HELLO}
    whole = {"model": "m", **said, **({"max_tokens": 9} if "messages" in path else {}), **body}
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{context.anthropic_base_url}/{path}", json=whole, headers=headers) as answer,
    ):
        return answer.status, await answer.json()
