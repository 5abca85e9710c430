"""Chat completions, read whole and from their chunks."""

from __future__ import annotations

import json
import time
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.dialect import Event
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "2+2?"}],
    "temperature": 0.5,
    "tools": [{"type": "function"}],
}
ASKED = Chat().read_request(json.dumps(BODY).encode())


def entry(logprob: Any) -> dict[str, Any]:
    return {"token": "t", "logprob": logprob, "bytes": None, "top_logprobs": []}


def assembled(*chunks: Any) -> ModelCall:
    made = Chat().stream(ASKED)
    for chunk in chunks:
        made.feed(Event("message", chunk if isinstance(chunk, bytes) else json.dumps(chunk).encode()))
    return made.result()


def delta(more: dict[str, Any] | None = None, /, **said: Any) -> dict[str, Any]:
    return {"model": "m@2", "choices": [{"index": 0, "delta": said, "finish_reason": None, **(more or {})}]}


def test_a_request_says_what_shapes_the_answer_and_keeps_its_bytes() -> None:
    body = json.dumps(BODY | {"stream": True, "user": "u", "n": 1, "logprobs": None, "stop": None}).encode()
    asked = Chat().read_request(body)
    assert (asked.model, asked.messages, asked.is_streamed) == ("m", tuple(BODY["messages"]), True)
    assert asked.sampling == {"temperature": 0.5, "tools": [{"type": "function"}], "n": 1}
    assert (asked.user, asked.body) == ("u", body)
    assert asked.extended == b'{"return_token_ids":true,' + body[1:]  # the log-probs it has spoken of itself


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"model": None}, "model: is missing"),
        ({"messages": "x"}, "messages: is"),
        ({"messages": [1]}, "messages: is"),
        ({"n": 2}, "n = 2: of several answers nobody could tell which one was gone on with; ask for one at a time"),
        ({"n": "2"}, "n = '2': of several"),  # some upstreams take it for a number
        ({"n": 2.0}, "n = 2.0: of several"),
    ],
)
def test_a_request_that_cannot_be_kept_is_refused(change: dict[str, Any], message: str) -> None:
    with pytest.raises(BadInput, match=message):
        Chat().read_request(json.dumps(BODY | change).encode())


ANSWER: dict[str, Any] = {
    "model": "m@1",
    "prompt_token_ids": [1, 2],
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "4", "extra": {"kept": 1}},
            "finish_reason": "stop",
            "token_ids": [7, 8],
            "logprobs": {"content": [entry(-0.25), entry(1e-9)]},
            "forced": [1],
        }
    ],
    "usage": {"prompt_tokens": 9, "completion_tokens": 2},
}


def test_a_whole_answer_is_kept_as_it_was_sampled() -> None:
    call = Chat().whole(ASKED, json.dumps(ANSWER).encode())
    assert call == ModelCall(
        model="m@1",
        messages=tuple(BODY["messages"]),
        response={"role": "assistant", "content": "4", "extra": {"kept": 1}},
        finish_reason="stop",
        prompt_tokens=9,
        completion_tokens=2,
        prompt_ids=(1, 2),
        completion_ids=(7, 8),
        logprobs=(-0.25, 0.0),  # a hair above 0 is rounding
        forced=(1,),
        sampling={"temperature": 0.5, "tools": [{"type": "function"}]},
    )


@pytest.mark.parametrize("logprobs", [[-0.1], [-0.1, 0.5], [-0.1, None], [-0.1, "x"], [-0.1, True], [-0.1, -(10**400)]])
def test_log_probs_that_cannot_be_are_left_out(logprobs: list[Any]) -> None:
    answer = json.loads(json.dumps(ANSWER))
    answer["choices"][0]["logprobs"]["content"] = [entry(value) for value in logprobs]
    call = Chat().whole(ASKED, json.dumps(answer).encode())
    assert (call.completion_ids, call.logprobs) == ((7, 8), None)


@pytest.mark.parametrize(("told", "kept"), [(1, None), (3, None), (0, None), (2, (7, 8)), (True, (7, 8))])
def test_ids_that_are_not_as_many_as_the_upstream_counts_are_not_kept(told: Any, kept: tuple[int, ...] | None) -> None:
    call = Chat().whole(ASKED, json.dumps(ANSWER | {"usage": {"completion_tokens": told}}).encode())
    assert (call.completion_ids, call.logprobs is None, call.forced) == (kept, kept is None, (1,) if kept else ())


@pytest.mark.parametrize("absurd", [-1, 2**53 + 1, 10**25, 10**400, 1.5, "3"])
def test_a_count_that_nobody_can_have_counted_to_counts_as_not_told(absurd: Any) -> None:
    counts = {"prompt_tokens": absurd, "completion_tokens": absurd}
    usage = {**counts, "completion_tokens_details": {"reasoning_tokens": absurd}}
    call = Chat().whole(ASKED, json.dumps(ANSWER | {"usage": usage}).encode())
    counted = (call.prompt_tokens, call.completion_tokens, call.thinking_tokens)
    assert counted == (2, 2, None)  # as many as there are ids
    assert Chat().whole(ASKED, json.dumps(ANSWER | {"prompt_token_ids": [absurd]}).encode()).prompt_ids is None


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"choices": []}', b'{"choices": [{"message": 1}]}', b"null"])
def test_what_is_no_completion_is_not_read(body: bytes) -> None:
    with pytest.raises(ValueError, match="no chat completion|JSON|Expecting"):
        Chat().whole(ASKED, body)


def test_chunks_are_put_together_with_tools_thoughts_ids_and_usage() -> None:
    call = assembled(
        delta(role="assistant", content=""),
        delta({"token_ids": [1], "logprobs": {"content": [entry(-0.5)]}}, reasoning_content="hm"),
        delta({"token_ids": [2], "logprobs": {"content": [entry(-0.25)]}}, reasoning_content="m"),
        delta(tool_calls=[{"index": 0, "id": "c1", "type": "function", "function": {"name": "calc", "arguments": ""}}]),
        delta(tool_calls=[{"index": 0, "function": {"arguments": '{"e":'}}, {"index": 1, "id": "c2"}]),
        delta(
            {"token_ids": [3], "logprobs": {"content": [entry(-1)]}},
            tool_calls=[{"index": 0, "function": {"arguments": "1}"}}],
        ),
        {"choices": [{"index": 1, "delta": {"content": "another choice"}}]},
        {"prompt_token_ids": [5], "choices": [{"index": 0, "delta": {}, "finish_reason": "tool_calls"}]},
        {"choices": [], "usage": {"prompt_tokens": 4, "completion_tokens": 3}},
        b"[DONE]",
    )
    assert call.response == {
        "role": "assistant",
        "content": "",
        "reasoning_content": "hmm",
        "tool_calls": [
            {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"e":1}'}},
            {"id": "c2", "type": "function", "function": {"name": "", "arguments": ""}},
        ],
    }
    assert (call.model, call.finish_reason, call.prompt_tokens, call.completion_tokens) == ("m@2", "tool_calls", 4, 3)
    assert (call.prompt_ids, call.completion_ids, call.logprobs) == ((5,), (1, 2, 3), (-0.5, -0.25, -1.0))


def test_a_long_answer_in_single_tokens_is_put_together_in_a_moment() -> None:
    word = {"token_ids": [1], "logprobs": {"content": [entry(-0.5)]}}
    call = {"index": 0, "function": {"arguments": "x"}}
    event = Event("message", json.dumps(delta(word, content="a", tool_calls=[call])).encode())
    made = Chat().stream(ASKED)
    started = time.process_time()
    for _ in range(40_000):
        made.feed(event)
    assert time.process_time() - started < 3.0  # each list anew for each of them took ten
    assert made.result().completion_ids == (1,) * 40_000
    assert made.result().response["tool_calls"][0]["function"]["arguments"] == "x" * 40_000


@pytest.mark.parametrize("unreadable", [b'{"choices": [{"delta": {"content": "\xff"}}]}', b"{", b"5", b"NaN"])
def test_an_event_that_cannot_be_read_leaves_a_hole(unreadable: bytes) -> None:
    made = Chat().stream(ASKED)
    for data in (json.dumps(delta(content="a")).encode(), unreadable, b"[DONE]"):
        assert made.has_holes == (data == b"[DONE]")
        made.feed(Event("message", data))
    assert made.has_holes


def test_what_has_come_so_far_can_be_had_at_any_time() -> None:
    made = Chat().stream(ASKED)
    assert made.result().response == {"role": "assistant", "content": None} and not made.has_begun
    made.feed(Event("message", json.dumps(delta(role="assistant", content="")).encode()))
    assert not made.has_begun
    made.feed(Event("message", json.dumps(delta(content="fo")).encode()))
    assert made.has_begun and not made.is_ended
    assert (made.result().response["content"], made.result().finish_reason) == ("fo", None)
    made.feed(Event("message", b"[DONE]"))
    assert made.is_ended


KEYS = (
    *("choices", "index", "delta", "content", "tool_calls", "function", "name", "arguments", "logprobs", "logprob"),
    *("token_ids", "usage", "model", "prompt_token_ids", "prompt_tokens", "forced", "finish_reason", "id"),
)
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=3),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(KEYS),
            inner,
            max_size=5,
        )
    ),
    max_leaves=30,
)


@given(st.lists(ANYTHING.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=20), max_size=6))
def test_nothing_that_an_upstream_sends_breaks_the_reading(chunks: list[bytes]) -> None:
    assert assembled(*chunks).messages == ASKED.messages
    for chunk in chunks:
        try:
            Chat().whole(ASKED, chunk)
        except ValueError:
            continue
