"""Answers in OpenAI's format: whole or in chunks, they say the same, and lose nothing of what was sampled."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.chat_format import (
    Chunks,
    Envelope,
    Piece,
    Request,
    completion,
    cut,
    finish_reason,
    pieces,
    spell_byte,
    usage,
)
from holdfast.contracts.trace import ModelCall

HELLO = ({"role": "user", "content": "hello"},)
ENVELOPE = Envelope(id="chatcmpl-1", created=12, spell=lambda token: bytes([token]))
CALL = ModelCall(
    model="tiny@3",
    messages=HELLO,
    response={"role": "assistant", "content": "hé"},
    finish_reason="stop",
    prompt_tokens=2,
    completion_tokens=3,
    prompt_ids=(7, 8),
    completion_ids=(104, 195, 169),
    logprobs=(-0.1, -1 / 3, 0.0),
    forced=(2,),
)


def request(**fields: Any) -> Request:
    return Request(model="tiny", messages=HELLO, **fields)


def test_a_plain_answer_has_neither_ids_nor_log_probs() -> None:
    assert completion(request(), [CALL], ENVELOPE) == {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 12,
        "model": "tiny@3",
        "choices": [{"index": 0, "message": CALL.response, "finish_reason": "stop", "logprobs": None}],
        "usage": {"prompt_tokens": 2, "completion_tokens": 3, "total_tokens": 5},
    }


def test_ids_and_log_probs_come_when_they_are_asked_for() -> None:
    answer = completion(request(logprobs=True, top_logprobs=1, token_ids=True), [CALL], ENVELOPE)
    (choice,) = answer["choices"]
    assert (answer["prompt_token_ids"], choice["token_ids"], choice["forced"]) == ([7, 8], [104, 195, 169], [2])
    h, e, _ = choice["logprobs"]["content"]
    assert h == {**(top := {"token": "h", "logprob": -0.1, "bytes": [104]}), "top_logprobs": [top]}
    assert (e["token"], e["bytes"], e["logprob"]) == ("�", [195], -1 / 3)  # half of a letter has its byte


def test_a_model_that_gives_no_ids_is_not_made_to() -> None:
    call = ModelCall(model="far", messages=HELLO, response={"role": "assistant", "content": "hi"})
    answer = completion(request(logprobs=True, token_ids=True), [call], ENVELOPE)
    (choice,) = answer["choices"]
    assert (answer["prompt_token_ids"], choice["token_ids"], choice["logprobs"]) == (None, None, None)
    assert (choice["finish_reason"], answer["usage"]) == ("stop", None)


def test_tokens_without_a_spelling_are_named_by_their_ids() -> None:
    answer = completion(request(logprobs=True), [CALL], Envelope(id="a", created=1))
    first = answer["choices"][0]["logprobs"]["content"][0]
    assert first == {"token": "token_id:104", "logprob": -0.1, "bytes": None, "top_logprobs": []}


def test_bytes_are_spelled_by_themselves_and_marks_by_name() -> None:
    assert [spell_byte(token) for token in (104, 195, 263, 300)] == [b"h", b"\xc3", b"<|end|>", b"<|300|>"]


@pytest.mark.parametrize(
    ("reason", "calls", "said"),
    [("stop", True, "tool_calls"), ("stop", False, "stop"), ("length", True, "length"), (None, False, "stop")],
)
def test_an_answer_that_ends_with_a_call_of_a_tool_ended_for_it(reason: str | None, calls: bool, said: str) -> None:
    response = {"content": "", "tool_calls": [{"function": {"name": "f"}}] if calls else None}
    assert finish_reason(ModelCall(model="m", messages=(), response=response, finish_reason=reason)) == said


def test_usage_counts_what_was_read_once() -> None:
    assert usage([CALL, CALL]) == {"prompt_tokens": 2, "completion_tokens": 6, "total_tokens": 8}


texts = st.text(max_size=30)
tool_calls = st.builds(
    lambda number, name, arguments: {
        "id": f"call_{number}",
        "type": "function",
        "function": {"name": name, "arguments": arguments},
    },
    st.integers(0, 9),
    st.text(min_size=1, max_size=9),
    texts,
)


@given(texts, texts, st.lists(tool_calls, max_size=3))
def test_the_pieces_of_a_message_make_it_whole_again(thought: str, text: str, calls: list[dict[str, Any]]) -> None:
    made: dict[str, Any] = {"reasoning_content": "", "content": "", "tool_calls": []}
    for piece in cut({"reasoning_content": thought, "content": text, "tool_calls": calls}):
        for name in ("reasoning_content", "content"):
            made[name] += piece.get(name, "")
        for delta in piece.get("tool_calls", ()):
            if "id" in delta:
                made["tool_calls"].append({**delta, "function": dict(delta["function"])})
            else:
                made["tool_calls"][delta["index"]]["function"]["arguments"] += delta["function"]["arguments"]
    assert (made["reasoning_content"], made["content"]) == (thought, text)
    assert made["tool_calls"] == [{"index": index, **call} for index, call in enumerate(calls)]


def test_chunks_carry_each_token_once_wherever_it_came() -> None:
    chunks = Chunks(request(logprobs=True, token_ids=True, usage=True), ENVELOPE)
    first = {"content": "h", "token_ids": [104], "logprobs": [-0.1]}
    sent = [
        *chunks.begin(),
        chunks.add(0, first),
        chunks.add(0, {"content": "é"}),
        chunks.add(0, CALL),
        *chunks.close(),
    ]
    assert [chunk["choices"][0].get("token_ids") for chunk in sent[:-1]] == [None, [104], None, [195, 169]]
    given_back = [chunk["choices"][0].get("logprobs") or {"content": []} for chunk in sent[:-1]]
    assert [entry["logprob"] for part in given_back for entry in part["content"]] == list(CALL.logprobs or ())
    assert [chunk["choices"][0]["delta"].get("content") for chunk in sent[:-1]] == ["", "h", "é", None]
    assert [chunk["choices"][0]["finish_reason"] for chunk in sent[:-1]] == [None, None, None, "stop"]
    assert (sent[-2]["prompt_token_ids"], sent[-2]["choices"][0]["forced"], sent[-2]["model"]) == (
        [7, 8],
        [2],
        "tiny@3",
    )
    assert (sent[-1]["choices"], sent[-1]["usage"]["total_tokens"]) == ([], 5)


async def test_a_model_that_cannot_stream_is_waited_for_and_cut() -> None:
    async def complete(messages: Any, /, **sampling: Any) -> ModelCall:
        assert (messages, sampling) == (HELLO, {"seed": 3})
        return CALL

    assert [piece async for piece in pieces(complete, HELLO, seed=3)] == [{"content": "hé"}, CALL]


async def test_a_model_that_can_stream_is_heard_while_it_speaks() -> None:
    class Speaker:
        async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
            raise AssertionError("it has a stream")

        async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
            assert (messages, sampling) == (HELLO, {"seed": 3})
            yield {"content": "h", "token_ids": [104], "logprobs": [-0.1]}
            yield CALL

    heard = [piece async for piece in pieces(Speaker(), HELLO, seed=3)]
    assert heard == [{"content": "h", "token_ids": [104], "logprobs": [-0.1]}, {"content": "é"}, CALL]


@given(st.integers(0, 5), st.integers(0, 5), st.lists(tool_calls, max_size=2))
def test_what_a_stream_leaves_out_is_said_before_its_end(thought: int, text: int, calls: list[dict[str, Any]]) -> None:
    response = {"content": "hello", "reasoning_content": "think", "tool_calls": calls}
    call = ModelCall(model="m", messages=HELLO, response=response)

    class Mumbler:
        async def __call__(self, messages: Any, /, **sampling: Any) -> ModelCall:
            raise AssertionError("it has a stream")

        async def stream(self, messages: Any, /, **sampling: Any) -> AsyncIterator[Piece | ModelCall]:
            yield {"reasoning_content": "think"[:thought]}
            yield {"content": "hello"[:text]}
            yield call

    async def hear() -> list[Piece | ModelCall]:
        return [piece async for piece in pieces(Mumbler(), HELLO)]

    *heard, last = asyncio.run(hear())
    assert last is call
    for name in ("content", "reasoning_content"):
        assert "".join(piece.get(name, "") for piece in heard if isinstance(piece, dict)) == response[name]
    begun = [delta for piece in heard if isinstance(piece, dict) for delta in piece.get("tool_calls", ())]
    assert [delta["id"] for delta in begun if "id" in delta] == [call["id"] for call in calls]


def test_usage_tells_thinking_apart_where_it_was_counted() -> None:
    thought = replace(CALL, thinking_tokens=2)
    assert usage([thought, thought]) == {
        "prompt_tokens": 2,
        "completion_tokens": 6,
        "total_tokens": 8,
        "completion_tokens_details": {"reasoning_tokens": 4},
    }
