"""The gateway: an agent's own client asks the attempt's model, in any dialect, and the trace has it.

What the client saw is what was recorded, and what was recorded is what the model sampled, token for token.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import aiohttp
import anthropic
import openai
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.collect.agent import Context, OneModel, no_model
from holdfast.collect.client import Client
from holdfast.collect.executors import AgentRuntime, ModelGateway
from holdfast.collect.gateway_app import as_written
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Outcome
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import PARTIAL, ModelCall, Span
from holdfast.policies import tokens
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from tests.collect.agents import no_score
from tests.collect.scene import PATIENCE_S, Bench, Sitting, until
from tests.collect.test_endpoint import CALC, Script
from tests.endpoint import Scripted, serving

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


STREAMED = (chat_streamed, response_streamed, message_streamed)
SUM = "What is 417 * 23? Use the tool."


@pytest.fixture(scope="module")
def sprout() -> Iterator[Local]:
    net, manifest = load_transformer("sprout")
    with Local(net, name="sprout", version=manifest.sha256[:12], deterministic=True) as local:
        yield local


@pytest.mark.parametrize("client", CLIENTS, ids=named)
async def test_what_a_client_saw_is_what_was_recorded_and_what_was_sampled(client: Any, sprout: Local) -> None:
    said, spans = await answered(asking(client), sprout)
    (call,) = calls(spans)
    how = {"max_tokens": 60} if client in (message, message_streamed) else {}
    sampled = await sprout(HELLO, **HOW, **how)  # the same seed gives the same bits
    assert call.completion_ids == sampled.completion_ids and call.logprobs == sampled.logprobs
    assert call.prompt_ids == sampled.prompt_ids == tuple(tokens.prompt(HELLO))  # nothing was added to what it read
    assert call.model == sampled.model and said == (call.response["content"] or "")
    assert [(span.name, span.parent) for span in spans] == [(f"model.{call.model}", 1), ("agent.run", None)]


@pytest.mark.parametrize(
    ("kind", "client"), [*((Script, client) for client in CLIENTS), *((Told, client) for client in STREAMED)], ids=named
)
async def test_so_it_is_with_any_model(client: Any, kind: Any) -> None:
    model = kind()
    said, spans = await answered(asking(client), model)
    (call,) = calls(spans)
    (sampled,) = model.calls if kind is Script else model.script.calls
    assert call == sampled and said == call.response["content"] == "Vier, würde ich sagen. 5"


MODELS: Mapping[str, Any] = {
    "chat": lambda at: OpenAIChatModel(at.model, provider=OpenAIProvider(base_url=at.base_url, api_key=at.api_key)),
    "responses": lambda at: OpenAIResponsesModel(
        at.model, provider=OpenAIProvider(base_url=at.base_url, api_key=at.api_key)
    ),
    "messages": lambda at: AnthropicModel(
        at.model, provider=AnthropicProvider(base_url=at.base_url, api_key=at.api_key)
    ),
}


@pytest.mark.parametrize("dialect", MODELS)
async def test_a_framework_runs_its_tools_in_every_dialect(dialect: str, sprout: Local) -> None:
    async def agent(task: Any, context: Context) -> list[str]:
        adder = Agent(MODELS[dialect](context), model_settings={"temperature": 0.0, "max_tokens": 120})
        adder.tool_plain(calc)
        whole = await adder.run(SUM)
        async with adder.run_stream(SUM) as streamed:
            return [whole.output, await streamed.get_output()]

    def calc(expression: str) -> str:
        """Evaluate an expression."""
        asked.append(expression)
        return "9591"

    asked: list[str] = []
    said, spans = await answered(agent, sprout)
    made = calls(spans)
    assert asked == ["417*23"] * 2 and len(made) == 4
    assert said == [made[1].response["content"], made[3].response["content"]]
    for first, second in (made[:2], made[2:]):
        assert first.prompt_ids and first.completion_ids and first.logprobs and second.prompt_ids
        before = first.prompt_ids + first.completion_ids
        assert second.prompt_ids[: len(before)] == before  # turns join: nothing was tokenised again


# Many at once, and elsewhere


async def test_what_a_client_asked_is_in_the_store_token_for_token(file_bench: Bench) -> None:
    async def agent(task: Any, context: Context) -> str:
        said = await chat(context)
        context.reward("asked", 0.5)
        return said

    model = Script()
    file_bench.enqueue("a")
    await file_bench.work_off(file_bench.pool(agent, model=model))
    (attempt,) = file_bench.attempts()
    assert calls(file_bench.store.traces.spans(attempt.token)) == model.calls
    (signal,) = file_bench.store.traces.breakdown(attempt.token).signals
    assert (signal.name, signal.value, signal.turn) == ("asked", 0.5, 0)
    assert file_bench.output() == model.calls[0].response["content"]


async def test_a_clients_own_word_for_a_call_stands_at_its_span(file_bench: Bench) -> None:
    async def agent(task: Any, context: Context) -> str:
        await chat_streamed(context, extra_headers={"x-tag": "plan"})
        return await chat(context)

    file_bench.enqueue("a")
    await file_bench.work_off(file_bench.pool(agent, model=Script()))
    (attempt,) = file_bench.attempts()
    spans = [span for span in file_bench.store.traces.spans(attempt.token) if span.model is not None]
    assert [span.attributes.get("tag") for span in spans] == ["plan", None]
    assert all("tag" not in span.model.sampling for span in spans if span.model)


async def test_hundreds_of_attempts_at_once_do_not_mix() -> None:
    count, waiting = 300, 0

    async def echo(messages: Any, /, **sampling: Any) -> ModelCall:
        nonlocal waiting
        waiting += 1
        await until(lambda: waiting == count)  # all calls are under way at once
        reply = {"role": "assistant", "content": f"echo: {messages[-1]['content']}"}
        return ModelCall(model="echo", messages=tuple(messages), response=reply)

    async def agent(task: Any, context: Context) -> Any:
        headers = {"Authorization": f"Bearer {context.api_key}"}
        body = {"model": context.model, "messages": [{"role": "user", "content": str(task)}]}
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{context.base_url}/chat/completions", json=body, headers=headers) as answer,
        ):
            return (await answer.json())["choices"][0]["message"]["content"]

    with ran(agent, echo) as run:
        ended = await asyncio.gather(*(run(number, attempt=f"a{number}") for number in range(count)))
    for number, (outcome, spans) in enumerate(ended):
        assert outcome is not None and outcome.output == f"echo: {number}"
        assert [call.response["content"] for call in calls(spans)] == [f"echo: {number}"]


async def test_a_networks_proxy_sees_nothing_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("http_proxy", "HTTP_PROXY"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")  # where nobody is
    for name in ("no_proxy", "NO_PROXY"):
        monkeypatch.setenv(name, "example.org")
    _, spans = await answered(asking(chat), Script())
    assert len(calls(spans)) == 1


async def test_nothing_serves_before_somebody_calls_and_nothing_after_the_pool() -> None:
    _, spans = await answered(asking(chat), Script())
    assert len(calls(spans)) == 1
    assert not [one for one in threading.enumerate() if one.name == "holdfast-gateway"]
    gateway = ModelGateway(time.time)
    gateway.stop()
    with pytest.raises(Fault, match="has been stopped"):
        gateway.address()
    idle = ModelGateway(time.time)
    assert idle.address() == idle.address()
    idle.stop()
    assert not [one for one in threading.enumerate() if one.name == "holdfast-gateway"]


async def test_clients_that_know_nothing_of_us_find_the_model_in_the_environment_of_a_process() -> None:
    with serving() as endpoint:
        recipe = ProcessRecipe("tests.collect.agents:do", no_score, OneModel(partial(Client, "tiny", endpoint.url)))
        sitting = Sitting(ProcessExecutor(recipe))
        try:
            await sitting.seat.prepare()
            for number in (1, 2):  # a process is used again, and each attempt has an address of its own
                outcome = await sitting.run({"do": "sdk"}, number=number, attempt=f"a{number}")
                assert outcome is not None and outcome.output == ["echo: hello", "echo: hello"], outcome
        finally:
            sitting.seat.close()
    assert len(calls(sitting.spans)) == 4


async def test_in_a_process_without_a_model_they_reach_nobody_else() -> None:
    sitting = Sitting(ProcessExecutor(ProcessRecipe("tests.collect.agents:do", no_score, no_model)))
    try:
        await sitting.seat.prepare()
        where = await sitting.run({"do": "where"})
        asked = await sitting.run({"do": "sdk"}, attempt="a2")
    finally:
        sitting.seat.close()
    assert where is not None and where.output[0] == where.output[1] == f"{where.output[2]}/v1"
    assert where.output[0].startswith("http://127.0.0.1:")
    assert asked is not None and "this run: has no model; give --model" in (asked.error or "")


def test_a_process_that_calls_no_gateway_imports_no_server() -> None:
    code = """
import sys, time
from holdfast.collect.processes import work
from holdfast.collect.executors import ModelGateway
ModelGateway(time.time).access().url(type("Context", (), {"complete": None}))
assert "uvicorn" not in sys.modules and "starlette" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)


@pytest.mark.parametrize("client", [chat, response, message], ids=named)
async def test_without_a_model_the_address_answers_that_there_is_none(client: Any) -> None:
    async def agent(task: Any, context: Context) -> Any:
        assert context.base_url.startswith("http://127.0.0.1:")
        try:
            await client(context)
        except (openai.BadRequestError, anthropic.BadRequestError) as error:
            return error.body

    told, spans = await answered(agent, None)
    found = told.get("error", told)
    assert found["message"] == "this run: has no model; give --model"
    assert calls(spans) == []


async def test_a_call_needs_the_attempts_own_key_and_an_address_that_there_is() -> None:
    async def agent(task: Any, context: Context) -> Any:
        wrong = await posted(context, key="hf-other")
        nobody = await posted(replace(context, proxy_url=context.base_url.partition("/a/")[0]), "a/x.y/v1/messages")
        nothing = await posted(context, "v1/embeddings", input="hi")
        return [wrong, nobody[0], nothing]

    model = Script()
    ((wrong, told), nobody, (nothing, says)), _ = await answered(agent, model)
    assert (wrong, told["error"]["code"]) == (401, "invalid_api_key") and nobody == 404
    assert nothing == 404 and "POST /embeddings is not answered here" in says["error"]["message"]
    assert model.asked == []


@pytest.mark.parametrize("client", CLIENTS, ids=named)
async def test_a_fault_of_the_model_is_no_failure_of_the_agent(client: Any) -> None:
    model = Script(fails=Fault("model endpoint", why="HTTP 500"))
    with ran(asking(client), model) as run:
        outcome, _ = await run()
    assert outcome is not None and (outcome.state, outcome.error) == (AttemptState.FAULT, "model endpoint: HTTP 500")
    assert len(model.asked) == 1  # the client was told not to ask again: whoever answers has done so already


@pytest.mark.parametrize("client", STREAMED, ids=named)
async def test_nor_is_one_in_the_midst_of_a_stream(client: Any) -> None:
    with ran(asking(client), Told(breaks=True)) as run:
        outcome, spans = await run()
    assert outcome is not None and (outcome.state, outcome.error) == (AttemptState.FAULT, "model: is gone")
    assert [span.attributes[PARTIAL] for span in spans if span.model is not None] == ["model: is gone"]


async def test_a_fault_that_was_got_over_excuses_nothing_that_comes_later() -> None:
    model = Script(fails=Fault("model endpoint", why="HTTP 500"))

    async def agent(task: Any, context: Context) -> None:
        with suppress(openai.InternalServerError):
            await chat(context)
        model.fails = None
        await chat(context)
        raise KeyError("nope")

    with ran(agent, model) as run:
        outcome, _ = await run()
    assert outcome is not None and outcome.state is AttemptState.FAILED


async def test_what_a_model_raises_is_found_in_the_trace() -> None:
    with ran(asking(chat), Script(fails=ValueError("broken"))) as run:
        outcome, spans = await run()
    assert outcome is not None and outcome.state is AttemptState.FAILED
    assert "the model failed: ValueError" in (outcome.error or "") and "broken" not in (outcome.error or "")
    (kept,) = [span for span in spans if span.name == "model.failed"]
    assert kept.attributes["error"].startswith("ValueError: broken (test_endpoint.py:")
    assert "raise self.fails" in kept.attributes["traceback"]


async def test_what_an_endpoint_refuses_is_the_agents_own_error() -> None:
    with serving() as endpoint, ran(asking(chat), Client("tiny", endpoint.url)) as run:
        endpoint.script.append(Scripted(status=422, body={"error": {"message": "no such thing"}}))
        outcome, _ = await run()
    assert outcome is not None and outcome.state is AttemptState.FAILED
    assert "BadRequestError" in (outcome.error or "") and "no such thing" in (outcome.error or "")
    assert len(endpoint.asked) == 1


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


# Tools, turn after turn


async def chat_tools(context: Context) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.chat.completions.create, model=context.model, tools=[CALC])
        first = (await ask(messages=HELLO)).choices[0].message
        (call,) = first.tool_calls or ()
        result = {"role": "tool", "tool_call_id": call.id, "content": "4"}
        again: list[Any] = [*HELLO, first.model_dump(exclude_none=True), result]
        return (await ask(messages=again)).choices[0].message.content or ""


async def response_tools(context: Context) -> str:
    async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.responses.create, model=context.model, tools=[FLAT])
        first = await ask(input=HELLO)
        (call,) = [item for item in first.output if item.type == "function_call"]
        result = {"type": "function_call_output", "call_id": call.call_id, "output": "4"}
        again: Any = [*HELLO, *(item.model_dump(exclude_none=True) for item in first.output), result]
        return (await ask(input=again)).output_text


async def message_tools(context: Context) -> str:
    async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
        ask = partial(client.messages.create, model=context.model, tools=[THEIRS], max_tokens=60)
        first = await ask(messages=HELLO)
        assert first.stop_reason == "tool_use"
        (call,) = [block for block in first.content if block.type == "tool_use"]
        assert call.input == {"expression": "2+2"}
        said = [block.model_dump(exclude_none=True) for block in first.content]
        result = {"type": "tool_result", "tool_use_id": call.id, "content": "4"}
        again: Any = [*HELLO, {"role": "assistant", "content": said}, {"role": "user", "content": [result]}]
        return "".join(block.text for block in (await ask(messages=again)).content if block.type == "text")


@pytest.mark.parametrize("client", [chat_tools, response_tools, message_tools], ids=named)
async def test_the_second_turn_begins_with_the_tokens_of_the_first(client: Any) -> None:
    said, spans = await answered(asking(client), Script())
    first, second = calls(spans)
    assert said == second.response["content"] == "It is 4."
    assert second.messages[-1] == {"role": "tool", "tool_call_id": "call_0", "content": "4"}
    # Its client may have written the arguments anew; what the model reads is what it said, to the letter.
    assert second.messages[1]["tool_calls"] == first.response["tool_calls"]
    if client is not chat_tools:  # which has no way to give a thought back
        assert first.prompt_ids and first.completion_ids and second.prompt_ids
        before = first.prompt_ids + first.completion_ids
        assert second.prompt_ids[: len(before)] == before


class Slip(Script):
    def answer(self, messages: Any, sampling: Mapping[str, Any]) -> dict[str, Any]:
        if messages[-1]["role"] == "tool":
            return super().answer(messages, sampling)
        return {"content": "", "tool_calls": [{"function": {"name": "calc", "arguments": '{"expression": "2+'}}]}


async def test_arguments_that_are_no_json_reach_the_agent_and_come_back_as_they_were() -> None:
    async def agent(task: Any, context: Context) -> Any:
        async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
            ask = partial(client.messages.create, model=context.model, tools=[THEIRS], max_tokens=60)
            (call,) = [block for block in (await ask(messages=HELLO)).content if block.type == "tool_use"]
            async with client.messages.stream(
                model=context.model, tools=[THEIRS], max_tokens=60, messages=HELLO
            ) as stream:
                streamed = (await stream.get_final_message()).content[-1]
            assert streamed.type == "tool_use" and streamed.input == call.input
            said = {"role": "assistant", "content": [call.model_dump(exclude_none=True)]}
            result = {"type": "tool_result", "tool_use_id": call.id, "content": "?"}
            again: Any = [*HELLO, said, {"role": "user", "content": [result]}]
            await ask(messages=again)
        return call.input

    given, spans = await answered(agent, Slip())
    assert given == {"raw_arguments": '{"expression": "2+'}
    first, _, last = calls(spans)
    assert last.messages[1]["tool_calls"] == first.response["tool_calls"]


@pytest.mark.parametrize(
    ("given", "limit"), [({"type": "enabled", "budget_tokens": 64}, 64), ({"type": "disabled"}, 0)]
)
async def test_anthropics_thinking_is_a_limit_of_thinking(given: Any, limit: int) -> None:
    model = Script()
    await answered(asking(message, thinking=given), model)
    assert model.asked[0]["thinking"] == limit


REFUSED: Sequence[tuple[str, Mapping[str, Any], str]] = (
    ("v1/chat/completions", {"response_format": {"type": "json_object"}}, "response_format"),
    ("v1/chat/completions", {"logit_bias": {"5": 1}}, "logit_bias"),
    ("v1/chat/completions", {"min_p": 0.1}, "min_p"),
    ("v1/chat/completions", {"frequency_penalty": 0.5}, "frequency_penalty"),
    ("v1/chat/completions", {"presence_penalty": -1}, "presence_penalty"),
    ("v1/chat/completions", {"repetition_penalty": 1.1}, "repetition_penalty"),
    ("v1/chat/completions", {"n": 2}, "n = 2"),
    ("v1/chat/completions", {"tool_choice": "required", "tools": [CALC]}, "tool_choice"),
    ("v1/chat/completions", {"reasoning_effort": "high"}, "reasoning_effort"),
    ("v1/chat/completions", {"messages": [{"role": "user", "content": [{"type": "image_url"}]}]}, "messages[0]"),
    ("v1/responses", {"messages": HELLO}, "messages"),
    ("v1/responses", {"input": "hi", "text": {"format": {"type": "json_object"}}}, "response_format"),
    ("v1/responses", {"input": "hi", "previous_response_id": "resp_1"}, "previous_response_id"),
    ("v1/responses", {"input": "hi", "truncation": "auto"}, "truncation"),
    ("v1/responses", {"input": "hi", "reasoning": {"effort": "low"}}, "reasoning_effort"),
    ("v1/messages", {"tool_choice": {"type": "any"}, "tools": [THEIRS]}, "tool_choice"),
    ("v1/messages", {"thinking": {"type": "adaptive"}}, "thinking"),
    ("v1/messages", {"output_config": {"effort": "low"}}, "output_config"),
    ("v1/messages", {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0].type"),
    ("v1/messages", {"messages": [{"role": "assistant", "content": [{"type": "server_tool_use"}]}]}, "messages[0]"),
)


NEUTRAL: Sequence[tuple[str, Mapping[str, Any]]] = (
    (
        "v1/chat/completions",
        {"response_format": {"type": "text"}, "n": 1, "logit_bias": {}, "frequency_penalty": 0, "presence_penalty": 0.0}
        | {"min_p": 0, "stop": None, "user": "me", "store": False, "parallel_tool_calls": True, "tool_choice": "auto"},
    ),
    (
        "v1/responses",
        {"input": "hi", "text": {"format": {"type": "text"}, "verbosity": "medium"}, "include": []}
        | {"truncation": "disabled", "reasoning": {}, "store": False, "parallel_tool_calls": True, "background": False},
    ),
    ("v1/messages", {"metadata": {"user_id": "me"}, "service_tier": "auto", "tool_choice": {"type": "auto"}}),
)


async def test_what_the_model_does_not_know_is_refused_by_name_and_what_changes_nothing_is_taken() -> None:
    async def agent(task: Any, context: Context) -> Any:
        return [await posted(context, path, **body) for path, body, *_ in (*REFUSED, *NEUTRAL)]

    model = Script()
    answers, spans = await answered(agent, model)
    for (path, _, name), (status, told) in zip(REFUSED, answers, strict=False):
        assert status == 400 and told["error"]["message"].startswith(name), name
        assert told["error"]["type"] == "invalid_request_error" and (path != "v1/messages" or told["type"] == "error")
    assert [status for status, _ in answers[len(REFUSED) :]] == [200] * len(NEUTRAL)
    assert len(model.calls) == len(calls(spans)) == len(NEUTRAL)
    assert all(set(sampling) <= {"max_tokens"} for sampling in model.asked)


async def test_an_endpoint_judges_itself_what_it_is_asked_for() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True}}
    flat = {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}

    async def agent(task: Any, context: Context) -> Any:
        first = await posted(context, response_format=form, min_p=0.1, tool_choice="required", tools=[CALC])
        second = await posted(context, "v1/responses", text={"format": flat}, reasoning={"effort": "low"})
        return [first[0], first[1]["choices"][0]["message"]["content"], second[0]]

    with serving() as endpoint:
        said, spans = await answered(agent, Client("tiny", endpoint.url))
    first, second = (one.body for one in endpoint.asked)
    assert said == [200, "echo: What is 2+2?", 200] and len(calls(spans)) == 2
    assert (first["response_format"], first["min_p"], first["tool_choice"]) == (form, 0.1, "required")
    assert first["model"] == second["model"] == "tiny"  # by whatever name it was asked for
    assert (second["response_format"], second["reasoning_effort"]) == (form, "low")


# Whole and streamed


def call_of(name: str, arguments: str, identity: str) -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


ANSWERS: Mapping[str, tuple[dict[str, Any], str]] = {
    "text": ({"content": "Four, I  think.\n"}, "stop"),
    "thought": ({"reasoning_content": "2 + 2", "content": "Four."}, "stop"),
    "only a thought": ({"reasoning_content": "2 + 2", "content": ""}, "length"),
    "cut": ({"content": "Four, I"}, "length"),
    "filtered": ({"content": "Fo"}, "content_filter"),
    "nothing": ({"content": None}, "stop"),
    "calls": (
        {"content": "Let me see.", "tool_calls": [call_of("calc", '{"x": "1"}', "a"), call_of("look", "", "b")]},
        "stop",
    ),
    "a slip": ({"content": "", "tool_calls": [call_of("calc", "[1, 2]", "a")]}, "tool_calls"),
}


def saying(answer: str) -> Any:
    response, reason = ANSWERS[answer]

    async def say(messages: Any, /, **sampling: Any) -> ModelCall:
        said = {"role": "assistant", **response}
        return ModelCall(
            model="m@1",
            messages=tuple(messages),
            response=said,
            finish_reason=reason,
            prompt_tokens=3,
            completion_tokens=2,
        )

    return say


def without_ids(dumped: Any) -> Any:
    """Names that are new in every answer are left out; those of calls are the model's own."""
    if isinstance(dumped, list):
        return [without_ids(one) for one in dumped]
    if not isinstance(dumped, dict):
        return dumped
    own = ("id", "created_at", "completed_at") if dumped.get("type") != "tool_use" else ()
    return {name: without_ids(value) for name, value in dumped.items() if name not in own}


async def test_a_stream_of_responses_adds_up_to_the_whole_response() -> None:
    async def both(context: Context) -> Any:
        async with openai.AsyncOpenAI(base_url=context.base_url, api_key=context.api_key) as client:
            whole = await client.responses.create(model=context.model, input=HELLO)
            async with client.responses.stream(model=context.model, input=HELLO) as stream:
                events = [event async for event in stream]
            raw = await client.responses.create(model=context.model, input=HELLO, stream=True)
            last = [event async for event in raw][-1]
        assert [event.sequence_number for event in events] == list(range(len(events)))
        return [whole.model_dump(mode="json"), last.response.model_dump(mode="json")]

    async def agent(task: Any, context: Context) -> Any:
        return {answer: await both(replace(context, complete=saying(answer))) for answer in ANSWERS}

    for answer, (whole, streamed) in (await answered(agent, None))[0].items():
        assert without_ids(streamed) == without_ids(whole), answer
        cut = {"length": "max_output_tokens", "content_filter": "content_filter"}.get(ANSWERS[answer][1])
        ended = ("completed", None) if cut is None else ("incomplete", {"reason": cut})
        assert (whole["status"], whole["incomplete_details"]) == ended
        assert whole["usage"]["total_tokens"] == 5


async def test_a_stream_of_messages_adds_up_to_the_whole_message() -> None:
    async def both(context: Context) -> Any:
        async with anthropic.AsyncAnthropic(base_url=context.base_url, api_key=context.api_key) as client:
            whole = await client.messages.create(model=context.model, messages=HELLO, max_tokens=9)
            async with client.messages.stream(model=context.model, messages=HELLO, max_tokens=9) as stream:
                streamed = await stream.get_final_message()
        return [whole.model_dump(mode="json"), streamed.model_dump(mode="json")]

    async def agent(task: Any, context: Context) -> Any:
        return {answer: await both(replace(context, complete=saying(answer))) for answer in ANSWERS}

    reasons = {"calls": "tool_use", "a slip": "tool_use", "only a thought": "max_tokens", "cut": "max_tokens"}
    for answer, (whole, streamed) in (await answered(agent, None))[0].items():
        for block in streamed["content"]:
            block.pop("parsed_output", None)  # the stream's own
        assert without_ids({**streamed, "model": ""}) == without_ids({**whole, "model": ""}), answer
        assert whole["stop_reason"] == {**reasons, "filtered": "refusal"}.get(answer, "end_turn")


@pytest.mark.parametrize(
    ("given", "said", "read"),
    [
        ('{"a":1}', '{"a": 1}', '{"a": 1}'),  # written anew
        ('{"a":2}', '{"a": 1}', '{"a":2}'),  # changed: it is what the agent says now
        ("{}", "", ""),  # no arguments at all
        ('{"raw_arguments":"{\\"a"}', '{"a', '{"a'),  # what was no JSON
        ("also no json", "no json", "also no json"),
    ],
)
def test_arguments_are_read_as_the_model_wrote_them(given: str, said: str, read: str) -> None:
    before = [call_of("calc", '{"b": 1}', "a"), call_of("calc", said, "a"), call_of("look", '{"a" : 1}', "a")]
    messages = [*HELLO, {"role": "assistant", "content": None, "tool_calls": [call_of("calc", given, "a")]}]
    question, answer = as_written(messages, before)
    assert question == HELLO[0] and answer["tool_calls"] == [call_of("calc", read, "a")]
    assert as_written(messages, ()) == tuple(messages)
