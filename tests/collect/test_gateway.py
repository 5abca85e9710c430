"""The gateway: an agent's own client asks the attempt's model, and the trace has it.

What the client saw is what was recorded, and what was recorded is what the model sampled, token for token.
"""

from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping
from functools import partial
from typing import Any

import aiohttp
import pytest
from pydantic_ai import Agent
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.collect.agent import Context, OneModel, no_model
from holdfast.collect.client import Client
from holdfast.collect.gateway import ModelGateway
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.errors import Fault
from holdfast.contracts.trace import ModelCall
from holdfast.policies import registry, tokens
from holdfast.policies.engine import Local
from tests.collect.agents import no_score
from tests.collect.clients import (
    CLIENTS,
    HELLO,
    HOW,
    Told,
    answered,
    asking,
    calls,
    chat,
    message,
    message_streamed,
    named,
    ran,
)
from tests.collect.scene import Bench, Sitting, until
from tests.collect.test_endpoint import Script
from tests.endpoint import serving

SUM = "What is 417 * 23? Use the tool."


@pytest.fixture(scope="module")
def sprout() -> Iterator[Local]:
    net, manifest = registry.load("sprout")
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


@pytest.mark.parametrize("client", CLIENTS, ids=named)
@pytest.mark.parametrize("kind", [Script, Told])
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


@pytest.mark.parametrize("name", ["do", "do_async"])
async def test_clients_that_know_nothing_of_us_find_the_model_in_the_environment_of_a_process(name: str) -> None:
    with serving() as endpoint:
        recipe = ProcessRecipe(
            f"tests.collect.agents:{name}", no_score, OneModel(partial(Client, "tiny", endpoint.url))
        )
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
from holdfast.collect.gateway import ModelGateway
ModelGateway(time.time).access().url(type("Context", (), {"complete": None}))
assert "uvicorn" not in sys.modules and "starlette" not in sys.modules
"""
    subprocess.run([sys.executable, "-c", code], check=True)
