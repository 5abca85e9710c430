"""A model behind an upstream, asked over real sockets: what was asked for is what is sent, and trouble has its kind."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast.collect.proxy.upstream import Relay, Upstream, Upstreams
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall
from tests.collect.proxy.far import HELLO, STREAM, WORDS, Far, Step, chunk, completion
from tests.collect.proxy.street import served

QUICK = Backoff(initial_s=0.001, cap_s=0.002)
SECRET = "sk-tell-nobody"
CALL = {"index": 0, "id": "a", "type": "function", "function": {"name": "calc", "arguments": "{}"}}


@pytest.fixture
def far() -> Far:
    return Far()


@pytest.fixture
def address(far: Far) -> Iterator[str]:
    with served(far.app) as at:
        yield at


@pytest.fixture
def relay(address: str) -> Relaying:
    return Relaying(address)


class Relaying:
    """Each call with connections of its own, which end with it; whatever happens, its place is given back."""

    def __init__(self, address: str) -> None:
        self._address = address

    async def __call__(self, **sampling: Any) -> ModelCall:
        async with self._open() as relay:
            return await relay(HELLO, **sampling)

    async def stream(self, **sampling: Any) -> list[Any]:
        async with self._open() as relay:
            return [piece async for piece in relay.stream(HELLO, **sampling)]

    @asynccontextmanager
    async def _open(self) -> AsyncIterator[Relay]:
        remote = Upstream(self._address, keys={"OPENAI_API_KEY": SECRET}, timeout_s=5.0)
        upstreams = Upstreams([remote], backoff=QUICK)
        try:
            yield Relay(upstreams, "small", key="p@1")
        finally:
            assert remote.gate.inside == 0
            await upstreams.close()


async def test_what_was_asked_for_is_sent_under_the_models_name_and_nothing_is_added_that_it_sees(
    far: Far, relay: Relaying
) -> None:
    given = {"temperature": 0.5, "seed": 3, "response_format": {"type": "json_object"}}
    call = await relay(**given, stream_options={"include_usage": True})
    ((headers, body),) = far.asked
    extras = {"return_token_ids": True, "logprobs": True}
    assert json.loads(body) == {"model": "small", "messages": HELLO, **given, **extras}
    assert headers["authorization"] == f"Bearer {SECRET}"
    assert (call.response["content"], call.model, call.finish_reason) == ("hello", "m@1", "stop")
    assert (call.prompt_tokens, call.completion_tokens, call.sampling) == (3, 5, given)


async def test_ids_and_log_probs_are_kept_where_the_upstream_gives_them(far: Far, relay: Relaying) -> None:
    choice = {"index": 0, "message": {"role": "assistant", "content": "hi"}, "finish_reason": "stop"}
    choice |= {"token_ids": [7, 8], "logprobs": {"content": [{"logprob": -0.5}, {"logprob": -0.25}]}}
    usage = {"prompt_tokens": 1, "completion_tokens": 2}
    far.usual = Step(completion(choices=[choice], usage=usage, prompt_token_ids=[1]))
    call = await relay()
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((1,), (7, 8), (-0.5, -0.25))


async def test_a_stream_comes_piece_by_piece_and_the_finished_call_last(far: Far, relay: Relaying) -> None:
    far.usual = Step(STREAM)
    *pieces, call = await relay.stream(max_tokens=5)
    assert pieces == [{"content": "hel"}, {"content": "lo"}]
    assert isinstance(call, ModelCall) and call.response["content"] == "hello" and call.finish_reason == "stop"
    assert json.loads(far.asked[0][1])["stream"] is True


async def test_calls_of_tools_are_streamed_too(far: Far, relay: Relaying) -> None:
    far.usual = Step((chunk(tool_calls=[CALL]), chunk("tool_calls"), b"data: [DONE]\n\n"))
    piece, call = await relay.stream()
    assert piece == {"tool_calls": [CALL]}
    assert [one["function"]["name"] for one in call.response["tool_calls"]] == ["calc"]


@pytest.mark.parametrize(
    "step",
    [
        Step(WORDS[:2], breaks=True),
        Step(WORDS[:2]),  # it ends, and has not said that it is over
        Step((WORDS[0], b'data: {"error": {"message": "out of memory"}}\n\n')),
    ],
)
async def test_a_stream_that_breaks_off_is_the_upstreams_fault(far: Far, relay: Relaying, step: Step) -> None:
    far.usual = step
    with pytest.raises(Fault, match="upstream model small"):
        await relay.stream()


@pytest.mark.parametrize(
    ("status", "kind", "says"),
    [
        (400, BadInput, "the upstream refuses it: too long"),
        (422, BadInput, "the upstream refuses it: too long"),
        (404, Fault, "HTTP 404: too long"),
        (500, Fault, "HTTP 500: too long"),
        (503, Fault, "HTTP 503: too long"),
        (401, Fault, "does not take our key"),
    ],
)
async def test_a_bad_request_is_the_callers_and_all_else_the_upstreams_fault(
    far: Far, relay: Relaying, status: int, kind: type[Exception], says: str
) -> None:
    message = "too long" if status != 401 else f"no such key: {SECRET}"
    far.usual = Step(json.dumps({"error": {"message": message}}).encode(), status)
    for ask in (relay(), relay.stream()):
        with pytest.raises(kind, match=says) as raised:
            await ask
        assert SECRET not in str(raised.value)


async def test_an_answer_that_is_none_and_an_upstream_that_is_not_there_are_faults(far: Far, relay: Relaying) -> None:
    far.usual = Step(b'{"hello": 1}')
    with pytest.raises(Fault, match="cannot be read"):
        await relay()
    nowhere = Relay(Upstreams([Upstream("http://127.0.0.1:9")], backoff=QUICK), "small", key="p@1")
    with pytest.raises(Fault, match="upstream model small"):
        await nowhere(HELLO)
