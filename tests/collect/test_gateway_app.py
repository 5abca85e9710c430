"""Who may call, how it is refused, and whose fault it is when a call fails."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace
from typing import Any

import anthropic
import openai
import pytest

from holdfast.collect.agent import Context
from holdfast.collect.client import Client
from holdfast.contracts.errors import Fault
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import PARTIAL
from tests.collect.clients import (
    CLIENTS,
    Told,
    answered,
    asking,
    calls,
    chat,
    chat_streamed,
    message_streamed,
    named,
    posted,
    ran,
    response_streamed,
)
from tests.collect.test_endpoint import Script
from tests.endpoint import Scripted, serving


@pytest.mark.parametrize("client", CLIENTS, ids=named)
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


@pytest.mark.parametrize("client", [chat_streamed, response_streamed, message_streamed], ids=named)
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
