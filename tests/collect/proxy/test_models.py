"""The list of models is the upstreams' own; what they say of a model is remembered, and asked again in time."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import openai
import pytest

from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.budgets import FRESH_S, UNKNOWN_S, ModelInfo, UpstreamModels, spell
from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.upstream import Unreachable, Upstream
from holdfast.policies import tokens
from holdfast.store.store import Store
from tests.collect.proxy.far import Far, Step, listing
from tests.collect.proxy.street import served
from tests.conftest import Clock

OURS = {"id": "sprout", "object": "model", "owned_by": "holdfast", "tokenizer": "bytes"}
THEIRS = {"id": "llama", "object": "model", "owned_by": "vllm"}
NOWHERE = "http://127.0.0.1:9"


@contextmanager
def upstreams(*fars: Far) -> Iterator[list[str]]:
    with ExitStack() as open_ones:
        yield [open_ones.enter_context(served(far.app)) for far in fars]


async def test_of_one_upstream_the_answer_is_its_own_byte_for_byte_with_our_key() -> None:
    far = Far(models=Step(b'{"data": [ {"id": "a"} ], "x": 1}', headers={"x-request-id": "r", "set-cookie": "no"}))
    with upstreams(far) as (url,):
        models = UpstreamModels([Upstream(url, keys={"OPENAI_API_KEY": "sk-own"})])
        found = await models.listed(Chat(), {"authorization": "Bearer theirs", "openai-beta": "b"})
        far.models = Step(b"no", 401)
        refused = await models.listed(Messages(), {"x-api-key": "theirs"})
        await models.close()
    assert (found.status, found.body) == (200, b'{"data": [ {"id": "a"} ], "x": 1}')
    assert found.headers["x-request-id"] == "r" and "set-cookie" not in found.headers
    assert (refused.status, refused.body, refused.entries) == (401, b"no", [])
    assert far.lists[0]["authorization"] == "Bearer sk-own" and far.lists[0]["openai-beta"] == "b"
    assert far.lists[1]["x-api-key"] == "theirs"  # of the other API there is no key of ours


async def test_several_upstreams_have_what_each_has_and_one_that_is_silent_takes_nothing_away() -> None:
    first, second = Far(models=listing(OURS)), Far(models=listing(THEIRS, {**OURS, "owned_by": "other"}))
    with upstreams(first, second) as urls:
        models = UpstreamModels([Upstream(url) for url in (*urls, NOWHERE)])
        found = await models.listed(Chat(), {})
        assert sorted(found.entries, key=str) == sorted([OURS, THEIRS], key=str)
        first.models = second.models = Step(b"{}", 403)
        assert (await models.listed(Chat(), {})).status == 403
        await models.close()
    alone = UpstreamModels([Upstream(NOWHERE), Upstream("http://127.0.0.1:8")])
    with pytest.raises(Unreachable):
        await alone.listed(Chat(), {})
    await alone.close()


async def test_what_a_model_is_is_asked_once_in_a_while_and_after_a_swap(clock: Clock) -> None:
    far = Far(models=listing(THEIRS, OURS))
    with upstreams(far) as (url,):
        remote = Upstream(url)
        models = UpstreamModels([remote], clock=lambda: clock.now)
        about = lambda name: models.about(remote, name, Chat(), {})  # noqa: E731
        assert await about("sprout") == ModelInfo(owner="holdfast", is_spelt=True)
        assert await about("llama") == ModelInfo(owner="vllm")
        assert await about("alias") == ModelInfo(owner="vllm")  # not all of them are spelt
        assert await about("sprout") == ModelInfo(owner="holdfast", is_spelt=True) and len(far.lists) == 3
        far.models = Step(b"gone", 503)
        models.forget(remote)
        assert await about("sprout") == ModelInfo() and await about("sprout") == ModelInfo() and len(far.lists) == 4
        far.models = listing(OURS)
        clock.now += UNKNOWN_S
        assert (await about("sprout")).is_spelt and len(far.lists) == 5
        clock.now += FRESH_S
        assert (await about("sprout")).is_spelt and len(far.lists) == 6
        await models.close()


async def test_who_leaves_while_it_is_asked_for_takes_it_from_nobody() -> None:
    far = Far(models=Step(listing(OURS).answer, pause_s=0.2))
    with upstreams(far) as (url,):
        remote = Upstream(url)
        models = UpstreamModels([remote])
        one, other = (asyncio.ensure_future(models.about(remote, "sprout", Chat(), {})) for _ in range(2))
        await asyncio.sleep(0)
        one.cancel()
        assert (await other).is_spelt and len(far.lists) == 1
        await models.close()


@pytest.mark.parametrize("answer", [b"[]", b"nope", b'{"data": 1}', b'{"data": [1]}', b'{"data": [{"owned_by": 1}]}'])
async def test_a_list_that_is_none_tells_nothing(answer: bytes) -> None:
    with upstreams(Far(models=Step(answer))) as (url,):
        models = UpstreamModels([Upstream(url)])
        assert await models.about(Upstream(url), "m", Chat(), {}) == ModelInfo()
        await models.close()


def test_only_our_own_tokens_are_spelt() -> None:
    assert spell(104) == b"h" and spell(tokens.END) == b"<|end|>"
    with pytest.raises(LookupError):
        spell(tokens.VOCABULARY)


def test_a_client_finds_the_models_at_the_proxy_and_below_an_attempt(file_store: Store) -> None:
    far = Far(models=listing({**THEIRS, "created": 1}))
    with upstreams(far) as (upstream,), served(lambda: app(file_store, [Upstream(upstream)], token="tok")) as url:
        for base in (f"{url}/v1", f"{url}/rollout/run-1%2Fx/attempt/1/v1"):
            with openai.OpenAI(base_url=base, api_key="tok", max_retries=0) as client:
                assert [one.id for one in client.models.list()] == ["llama"]
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="wrong", max_retries=0)
        with client, pytest.raises(openai.AuthenticationError):
            client.models.list()
    assert len(far.lists) == 2 and not any("tok" in json.dumps(headers) for headers in far.lists)


def test_a_proxy_whose_upstream_is_gone_says_so(file_store: Store) -> None:
    with served(lambda: app(file_store, [Upstream(NOWHERE)])) as url:
        client = openai.OpenAI(base_url=f"{url}/v1", api_key="x", max_retries=0)
        with client, pytest.raises(openai.APIStatusError) as caught:
            client.models.list()
    body: Any = caught.value.body
    assert caught.value.status_code == 502 and body["code"] == "training_proxy_upstream_request_failed"
