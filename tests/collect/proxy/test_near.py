"""Policies of this process behind the proxy: chosen for each call, and kept like any other."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import openai
import pytest

from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.upstream import Near
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.trace import ModelCall
from holdfast.store.store import Store
from tests.collect.proxy.far import HELLO, asking
from tests.collect.proxy.street import running, served


async def parrot(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
    return ModelCall(
        model="parrot@1",
        messages=tuple(messages),
        response={"role": "assistant", "content": messages[-1]["content"]},
        finish_reason="stop",
        prompt_tokens=1,
        completion_tokens=2,
        prompt_ids=(1,),
        completion_ids=(104, 105),
        logprobs=(-0.1, -1 / 3),
        sampling=sampling,
    )


@pytest.mark.parametrize("is_streamed", [False, True])
def test_a_local_policy_answers_and_its_tokens_are_kept_exactly(file_store: Store, is_streamed: bool) -> None:
    keys: list[str] = []
    attempt = running(file_store)
    with (
        served(lambda: app(file_store, [], choose_version=lambda key: keys.append(key) or parrot)) as url,
        openai.OpenAI(base_url=f"{attribution.base_url(url, attempt.rollout, 1)}/v1", api_key="x") as client,
    ):
        messages: Any = HELLO
        for more in ({}, {"user": "ann"}):
            made: Any = client.chat.completions.create(model="m", messages=messages, stream=is_streamed, **more)
            if is_streamed:
                assert "".join(part.choices[0].delta.content or "" for part in made) == "hi"
            else:
                assert made.choices[0].message.content == "hi"
    assert keys == [attempt.rollout, "ann"]
    for span in file_store.traces.spans(attempt.token):
        assert span.model is not None and span.ended_at is not None and "partial" not in span.attributes
        assert (span.model.prompt_ids, span.model.completion_ids) == ((1,), (104, 105))
        assert (span.model.logprobs, span.model.model) == ((-0.1, -1 / 3), "parrot@1")


async def test_only_chat_is_spoken_and_a_wrong_request_is_the_callers() -> None:
    class Other(Chat):
        path = "/v1/other"

    near, request = Near(lambda key: parrot), Chat().read_request(asking())
    with pytest.raises(BadInput, match="is not spoken by local policies"):
        await near.ask(Other(), request, {}, "r")
    with pytest.raises(BadInput, match="temperature = 9"):
        await near.ask(Chat(), Chat().read_request(asking(temperature=9)), {}, "r")
    answer = await near.ask(Chat(), request, {}, "r")
    assert near.gate.inside == 1
    body = b"".join([chunk async for chunk in answer.chunks()])
    assert json.loads(body)["choices"][0]["token_ids"] == [104, 105]
    answer.close()
    answer.close()
    assert near.gate.inside == 0


def test_policies_and_upstreams_together_are_refused(file_store: Store) -> None:
    from holdfast.collect.proxy.upstream import Remote

    with pytest.raises(BadInput, match="local policies answer already"):
        app(file_store, [Remote("http://x")], choose_version=lambda key: parrot)


def test_an_answer_that_breaks_its_own_contract_is_the_policys_fault(file_store: Store) -> None:
    async def broken(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        raise BadRecord("model call: logprobs", why="must be finite and at most 0")

    attempt = running(file_store)
    with (
        served(lambda: app(file_store, [], choose_version=lambda key: broken)) as url,
        openai.OpenAI(
            base_url=f"{attribution.base_url(url, attempt.rollout, 1)}/v1", api_key="x", max_retries=0
        ) as client,
    ):
        messages: Any = HELLO
        with pytest.raises(openai.InternalServerError, match="must be finite") as caught:
            client.chat.completions.create(model="m", messages=messages)
        assert caught.value.status_code == 500
    (span,) = file_store.traces.spans(attempt.token)
    assert "must be finite" in span.attributes["partial"]
