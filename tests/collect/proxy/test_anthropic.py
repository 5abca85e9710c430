"""Anthropic's own client against the proxy: it gets what the upstream sent, and the span says it in chat form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import anthropic
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.dialect import Event, Splitter
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import encode
from holdfast.contracts.trace import PARTIAL, ModelCall
from holdfast.store.store import Store
from tests.collect.proxy.street import Street, cut, events, street

WEATHER: Any = {
    "name": "weather",
    "description": "Tells the weather.",
    "input_schema": {"type": "object", "properties": {"city": {"type": "string"}}},
}
ASKED: dict[str, Any] = {
    "model": "claude-test",
    "max_tokens": 300,
    "system": [{"type": "text", "text": "Be brief.", "cache_control": {"type": "ephemeral"}}],
    "messages": [{"role": "user", "content": "Wie ist das Wetter in Köln?"}],
    "tools": [WEATHER],
    "tool_choice": {"type": "any"},
    "stop_sequences": ["END"],
    "temperature": 0.5,
}
OTHERS = {"temperature": 0.5}  # known to the API, no longer to its client
KNOWN = {name: value for name, value in ASKED.items() if name not in OTHERS}
CONTENT: list[dict[str, Any]] = [
    {"type": "thinking", "thinking": "Köln: I must look.", "signature": "c2ln"},
    {"type": "text", "text": "Let me look."},
    {"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {"city": "Köln", "days": [1, 2]}},
]
USAGE = {"input_tokens": 20, "cache_read_input_tokens": 100, "cache_creation_input_tokens": 3, "output_tokens": 41}
ANSWER: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "role": "assistant",
    "model": "claude-test-20260101",
    "content": CONTENT,
    "stop_reason": "tool_use",
    "stop_sequence": None,
    "usage": USAGE | {"output_tokens_details": {"thinking_tokens": 9}},
}
SAID = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "Köln: I must look.",
    "tool_calls": [
        {
            "id": "toolu_1",
            "type": "function",
            "function": {"name": "weather", "arguments": '{"city":"Köln","days":[1,2]}'},
        }
    ],
}


def told(kind: str, **more: Any) -> tuple[str, bytes]:
    return kind, json.dumps({"type": kind, **more}, ensure_ascii=False).encode()


def delta(index: int, kind: str, **more: Any) -> tuple[str, bytes]:
    return told("content_block_delta", index=index, delta={"type": kind, **more})


START = told(
    "message_start", message={**ANSWER, "content": [], "stop_reason": None, "usage": {**USAGE, "output_tokens": 1}}
)
OPENING = told("content_block_start", index=0, content_block={"type": "text", "text": ""})
STREAM = events(
    START,
    told("content_block_start", index=0, content_block={"type": "thinking", "thinking": "", "signature": ""}),
    told("ping"),
    delta(0, "thinking_delta", thinking="Köln: "),
    delta(0, "thinking_delta", thinking="I must look."),
    delta(0, "signature_delta", signature="c2ln"),
    told("content_block_stop", index=0),
    told("content_block_start", index=1, content_block={"type": "text", "text": ""}),
    delta(1, "text_delta", text="Let me "),
    delta(1, "text_delta", text="look."),
    told("content_block_stop", index=1),
    told(
        "content_block_start",
        index=2,
        content_block={"type": "tool_use", "id": "toolu_1", "name": "weather", "input": {}},
    ),
    delta(2, "input_json_delta", partial_json=""),
    delta(2, "input_json_delta", partial_json='{"city": "Kö'),
    delta(2, "input_json_delta", partial_json='ln", "days": [1, 2]}'),
    told("content_block_stop", index=2),
    told(
        "message_delta",
        delta={"stop_reason": "tool_use", "stop_sequence": None},
        usage={"output_tokens": 41, "output_tokens_details": {"thinking_tokens": 9}},
    ),
    told("message_stop"),
)


@pytest.fixture
def way(file_store: Store) -> Iterator[Street]:
    with street(file_store, [Messages()]) as built:
        yield built


def client(way: Street) -> anthropic.Anthropic:
    return anthropic.Anthropic(api_key="sk-ant-planted", base_url=way.base_url, max_retries=0)


def only(way: Street) -> ModelCall:
    (span,) = way.spans()
    assert span.ended_at is not None and PARTIAL not in span.attributes and span.model is not None
    return span.model


def assert_is_the_answer(call: ModelCall) -> None:
    assert call.response == SAID
    assert call.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Wie ist das Wetter in Köln?"},
    )
    assert call.model == "claude-test-20260101" and call.finish_reason == "tool_calls"
    assert (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == (123, 41, 9)
    function = {"name": "weather", "description": "Tells the weather.", "parameters": WEATHER["input_schema"]}
    assert call.sampling == {
        "max_tokens": 300,
        "stop": ["END"],
        "temperature": 0.5,
        "tool_choice": "required",
        "tools": [{"type": "function", "function": function}],
    }


def test_a_whole_answer_reaches_the_client_and_the_store(way: Street) -> None:
    way.upstream.answer = json.dumps(ANSWER).encode()
    got: Any = client(way).messages.create(**KNOWN, extra_body=OTHERS)
    assert got.content[2].input == {"city": "Köln", "days": [1, 2]}
    assert_is_the_answer(only(way))


def test_a_stream_reaches_the_client_and_is_kept_as_the_whole_answer_is(way: Street) -> None:
    way.upstream.answer, way.upstream.pause_s = cut(STREAM, range(0, len(STREAM), 371)), 0.02
    with client(way).messages.stream(**KNOWN, extra_body=OTHERS) as stream:
        got: Any = stream.get_final_message()
    assert [block.type for block in got.content] == ["thinking", "text", "tool_use"]
    assert got.content[2].input == {"city": "Köln", "days": [1, 2]}
    assert_is_the_answer(only(way))
    assert "first_token_s" in way.spans()[0].attributes


def test_the_upstream_gets_the_request_byte_for_byte_with_the_headers_of_the_dialect(way: Street) -> None:
    way.upstream.answer = json.dumps(ANSWER).encode()
    sent = client(way).messages.with_raw_response.create(
        **KNOWN, extra_body=OTHERS, extra_headers={"x-secret": "planted"}
    )
    assert way.upstream.bodies == [sent.http_request.content]
    (head,) = way.upstream.heads
    assert head["authorization"] == "Bearer sk-ant-planted" and head["anthropic-version"]
    assert head["anthropic-version"] == sent.http_request.headers["anthropic-version"]
    assert "x-secret" not in head and "user-agent" not in head


def test_the_bytes_of_a_stream_pass_as_they_are(way: Street) -> None:
    way.upstream.answer = cut(STREAM, range(0, len(STREAM), 11))
    with client(way).messages.with_streaming_response.create(**KNOWN, extra_body=OTHERS, stream=True) as got:
        assert b"".join(got.iter_bytes()) == STREAM


def test_an_answer_found_again_in_the_next_request_is_the_same_message() -> None:
    """What was said once and is sent back must be told for the same: else no two turns of a conversation join."""
    results: list[dict[str, Any]] = [{"type": "tool_result", "tool_use_id": "toolu_1", "is_error": True}]
    results[0]["content"] = [{"type": "text", "text": "rain"}]
    results.append({"type": "text", "text": "And tomorrow?"})
    later = {**ASKED, "messages": [*ASKED["messages"], {"role": "assistant", "content": CONTENT}]}
    later["messages"] += [{"role": "user", "content": results}]
    dialect = Messages()
    first = dialect.read_request(json.dumps(ASKED).encode())
    call = dialect.whole(first, json.dumps(ANSWER).encode())
    second = dialect.read_request(json.dumps(later).encode())
    assert second.messages == (
        *call.messages,
        call.response,
        {"role": "tool", "tool_call_id": "toolu_1", "content": "rain", "is_error": True},
        {"role": "user", "content": "And tomorrow?"},
    )


def test_pictures_and_what_has_no_form_in_chat_are_kept() -> None:
    picture = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "aGk="}}
    paper = {"type": "document", "source": {"type": "text", "data": "paper"}}
    body = {"model": "m", "messages": [{"role": "user", "content": [picture, paper]}]}
    (message,) = Messages().read_request(json.dumps(body).encode()).messages
    assert message["content"] == [
        {"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}},
        paper,
    ]
    searched = {"type": "server_tool_use", "id": "s1", "name": "web_search", "input": {"query": "x"}}
    call = Messages().whole(asked(), json.dumps({**ANSWER, "content": [searched]}).encode())
    assert call.response == {"role": "assistant", "content": None, "items": [searched]}


@pytest.mark.parametrize(
    ("reason", "kept"),
    [
        ("end_turn", "stop"),
        ("stop_sequence", "stop"),
        ("max_tokens", "length"),
        ("refusal", "content_filter"),
        ("pause_turn", "pause_turn"),
        (None, None),
    ],
)
def test_reasons_are_told_in_the_words_of_chat_completions(reason: str | None, kept: str | None) -> None:
    assert Messages().whole(asked(), json.dumps({**ANSWER, "stop_reason": reason}).encode()).finish_reason == kept


@pytest.mark.parametrize(
    "body",
    [b"[]", b"{", b"{}", b'{"model":"m"}', b'{"model":"m","messages":[1]}', b'{"model":1,"messages":[]}'],
)
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        Messages().read_request(body)


@pytest.mark.parametrize("body", [b"", b"[]", b"{}", b'{"content":1}', b'{"type":"error","error":{}}'])
def test_what_is_no_answer_is_told_as_such(body: bytes) -> None:
    with pytest.raises(ValueError, match=r".*"):
        Messages().whole(asked(), body)


def test_a_stream_that_ends_with_an_error_never_counts_as_whole(way: Street) -> None:
    broken = told("error", error={"type": "overloaded_error", "message": "Overloaded"})
    way.upstream.answer = [events(START, OPENING, delta(0, "text_delta", text="Hal"), broken)]
    with pytest.raises(anthropic.APIStatusError), client(way).messages.stream(**KNOWN, extra_body=OTHERS) as stream:
        stream.get_final_message()
    (span,) = way.spans()
    assert span.model is not None and span.model.response["content"] == "Hal"
    assert span.attributes[PARTIAL] == "the upstream broke off"


def test_an_event_that_cannot_be_read_leaves_a_hole() -> None:
    assembler = Messages().stream(asked())
    assembler.feed(Event(*delta(0, "text_delta", text="a")))
    assert not assembler.has_holes
    assembler.feed(Event("content_block_delta", delta(0, "text_delta", text="b")[1].replace(b"b", b"\xff")))
    assembler.feed(Event(*told("message_stop")))
    assert assembler.has_holes


def test_arguments_that_were_cut_off_are_kept_as_far_as_they_came() -> None:
    assembler = Messages().stream(asked())
    for name, data in (
        told(
            "content_block_start",
            index=0,
            content_block={"type": "tool_use", "id": "t", "name": "weather", "input": {}},
        ),
        delta(0, "input_json_delta", partial_json='{"city": "Kö'),
    ):
        assembler.feed(Event(name, data))
    (call,) = assembler.result().response["tool_calls"]
    assert call["function"] == {"name": "weather", "arguments": '{"city": "Kö'}
    assert assembler.has_begun and not assembler.is_ended and assembler.result().finish_reason is None


def asked() -> Any:
    return Messages().read_request(json.dumps(ASKED).encode())


@given(st.lists(st.integers(0, 10_000), max_size=60))
def test_however_the_stream_is_cut_it_is_read_the_same(places: list[int]) -> None:
    splitter, assembler = Splitter(), Messages().stream(asked())
    for piece in cut(STREAM, places):
        for event in splitter.feed(piece):
            assembler.feed(event)
    assert assembler.is_ended
    assert_is_the_answer(assembler.result())


STRANGE = ["tool_result", "source", "image", "system", "messages", "tools", "tool_choice", "error", "\ud83d"]
WORDS = st.sampled_from(sorted({word.decode() for word in re.findall(rb"[a-z_.]+", STREAM)}) + STRANGE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)
KINDS = st.sampled_from(
    ["message_start", "content_block_start", "content_block_delta", "message_delta", "message_stop", "error", "?"]
)
EVENTS = st.builds(
    lambda kind, rest: json.dumps({**rest, "type": kind}).encode(), KINDS, st.dictionaries(WORDS, JSON, max_size=5)
)


@given(st.lists(EVENTS | st.binary(max_size=20), max_size=12))
def test_no_stream_makes_it_fail(said: list[bytes]) -> None:
    assembler = Messages().stream(asked())
    for data in said:
        assembler.feed(Event("message", data))
        assert isinstance(assembler.result(), ModelCall)


@given(st.dictionaries(WORDS, JSON, max_size=6))
def test_no_request_and_no_answer_makes_it_fail_otherwise_than_it_may(body: dict[str, Any]) -> None:
    text = json.dumps({"model": "m", "messages": [body], **body}).encode()
    with suppress(BadInput):
        Messages().read_request(text)
    with suppress(ValueError):
        encode(Messages().whole(asked(), json.dumps({"content": [body, body], **body}).encode()))
