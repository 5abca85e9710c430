"""OpenAI's own client, speaking its responses API, against the proxy; the span says it in chat form."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import openai
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.collect.proxy.dialect import Event, Splitter
from holdfast.collect.proxy.responses import Responses
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import PARTIAL, ModelCall
from holdfast.store.store import Store
from tests.collect.proxy.street import Street, cut, events, street

PARAMETERS = {"type": "object", "properties": {"city": {"type": "string"}}}
ASKED: dict[str, Any] = {
    "model": "gpt-test",
    "instructions": "Be brief.",
    "input": "Wie ist das Wetter in Köln?",
    "tools": [
        {"type": "function", "name": "weather", "description": "Tells.", "parameters": PARAMETERS, "strict": True}
    ],
    "tool_choice": {"type": "function", "name": "weather"},
    "max_output_tokens": 300,
    "temperature": 0.5,
    "store": False,
}
THOUGHT: dict[str, Any] = {
    "id": "rs_1",
    "type": "reasoning",
    "summary": [{"type": "summary_text", "text": "Köln:"}, {"type": "summary_text", "text": "I must look."}],
    "encrypted_content": "c2VjcmV0",
}
TEXT: dict[str, Any] = {
    "id": "msg_1",
    "type": "message",
    "status": "completed",
    "role": "assistant",
    "content": [{"type": "output_text", "text": "Let me look.", "annotations": [], "logprobs": []}],
}
CALL: dict[str, Any] = {
    "id": "fc_1",
    "type": "function_call",
    "status": "completed",
    "call_id": "call_1",
    "name": "weather",
    "arguments": '{"city": "Köln"}',
}
OUTPUT = [THOUGHT, TEXT, CALL]
ANSWER: dict[str, Any] = {
    "id": "resp_1",
    "object": "response",
    "created_at": 1,
    "status": "completed",
    "model": "gpt-test-2026",
    "output": OUTPUT,
    "parallel_tool_calls": True,
    "tool_choice": "auto",
    "tools": [],
    "usage": {
        "input_tokens": 20,
        "input_tokens_details": {"cached_tokens": 0},
        "output_tokens": 41,
        "output_tokens_details": {"reasoning_tokens": 9},
        "total_tokens": 61,
    },
}
SAID = {
    "role": "assistant",
    "content": "Let me look.",
    "reasoning_content": "Köln:\n\nI must look.",
    "tool_calls": [
        {"id": "call_1", "type": "function", "function": {"name": "weather", "arguments": '{"city": "Köln"}'}}
    ],
}


def numbered(*named: tuple[str, dict[str, Any]]) -> Iterator[tuple[str, bytes]]:
    for number, (kind, more) in enumerate(named):
        data = json.dumps({"type": kind, "sequence_number": number, **more}, ensure_ascii=False)
        yield kind, data.encode()


def piece(kind: str, place: int, text: str, **more: Any) -> tuple[str, dict[str, Any]]:
    return f"response.{kind}.delta", {"output_index": place, "item_id": "x", "delta": text, **more}


BEGUN: dict[str, Any] = {**ANSWER, "status": "in_progress", "output": [], "usage": None}
NAMED: list[tuple[str, dict[str, Any]]] = [
    ("response.created", {"response": BEGUN}),
    ("response.in_progress", {"response": BEGUN}),
    ("response.output_item.added", {"output_index": 0, "item": {**THOUGHT, "summary": []}}),
    piece("reasoning_summary_text", 0, "Köln:", summary_index=0),
    piece("reasoning_summary_text", 0, "I must ", summary_index=1),
    piece("reasoning_summary_text", 0, "look.", summary_index=1),
    ("response.output_item.done", {"output_index": 0, "item": THOUGHT}),
    ("response.output_item.added", {"output_index": 1, "item": {**TEXT, "status": "in_progress", "content": []}}),
    (
        "response.content_part.added",
        {"output_index": 1, "item_id": "msg_1", "content_index": 0, "part": {**TEXT["content"][0], "text": ""}},
    ),
    piece("output_text", 1, "Let me ", content_index=0, logprobs=[]),
    piece("output_text", 1, "look.", content_index=0, logprobs=[]),
    ("response.output_item.done", {"output_index": 1, "item": TEXT}),
    ("response.output_item.added", {"output_index": 2, "item": {**CALL, "arguments": ""}}),
    piece("function_call_arguments", 2, '{"city": '),
    piece("function_call_arguments", 2, '"Köln"}'),
    ("response.output_item.done", {"output_index": 2, "item": CALL}),
    ("response.completed", {"response": ANSWER}),
]
STREAM = events(*numbered(*NAMED))


@pytest.fixture
def way(file_store: Store) -> Iterator[Street]:
    with street(file_store, [Responses()]) as built:
        yield built


def client(way: Street) -> openai.OpenAI:
    return openai.OpenAI(api_key="sk-planted", base_url=f"{way.base_url}/v1", max_retries=0)


def asked(**more: Any) -> Any:
    return Responses().read_request(json.dumps({**ASKED, **more}).encode())


def fed(named: list[tuple[str, dict[str, Any]]]) -> Any:
    assembler = Responses().stream(asked())
    for name, data in numbered(*named):
        assembler.feed(Event(name, data))
    return assembler


def test_an_event_that_cannot_be_read_leaves_a_hole_unless_the_end_says_all_of_it_again() -> None:
    for output, has_holes in (([], True), ([{"type": "message", "content": "ab"}], False)):
        assembler = Responses().stream(asked())
        assembler.feed(Event("response.output_text.delta", b'{"delta": "\xff"}'))
        assert assembler.has_holes
        end = {"type": "response.completed", "response": {"status": "completed", "output": output}}
        assembler.feed(Event("response.completed", json.dumps(end).encode()))
        assert assembler.has_holes == has_holes


def assert_is_the_answer(call: ModelCall) -> None:
    assert call.response == SAID
    assert call.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "Wie ist das Wetter in Köln?"},
    )
    assert call.model == "gpt-test-2026" and call.finish_reason == "tool_calls"
    assert (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == (20, 41, 9)
    function = {"name": "weather", "description": "Tells.", "parameters": PARAMETERS, "strict": True}
    assert call.sampling == {
        "max_tokens": 300,
        "temperature": 0.5,
        "tool_choice": {"type": "function", "function": {"name": "weather"}},
        "tools": [{"type": "function", "function": function}],
    }


def only(way: Street) -> ModelCall:
    (span,) = way.spans()
    assert span.ended_at is not None and PARTIAL not in span.attributes and span.model is not None
    return span.model


def test_a_whole_answer_reaches_the_client_and_the_store(way: Street) -> None:
    way.upstream.answer = json.dumps(ANSWER).encode()
    got = client(way).responses.create(**ASKED)
    assert got.output_text == "Let me look."
    assert_is_the_answer(only(way))


def test_a_stream_reaches_the_client_and_is_kept_as_the_whole_answer_is(way: Street) -> None:
    way.upstream.answer, way.upstream.pause_s = cut(STREAM, range(0, len(STREAM), 971)), 0.02
    with client(way).responses.stream(**ASKED) as stream:
        got: Any = stream.get_final_response()
    assert got.output_text == "Let me look." and got.output[2].arguments == '{"city": "Köln"}'
    assert_is_the_answer(only(way))
    assert "first_token_s" in way.spans()[0].attributes


def test_bytes_pass_as_they_are_in_both_directions(way: Street) -> None:
    way.upstream.answer = cut(STREAM, range(0, len(STREAM), 13))
    with client(way).responses.with_streaming_response.create(**ASKED, stream=True) as got:
        assert b"".join(got.iter_bytes()) == STREAM
        assert way.upstream.bodies == [got.http_request.content]
    assert way.upstream.heads[0]["authorization"] == "Bearer sk-planted"


def test_before_the_end_is_told_the_pieces_are_what_there_is() -> None:
    assembler = fed(NAMED[:-1])
    assert not assembler.is_ended and assembler.result().response == SAID
    assert assembler.result().finish_reason is None
    for length in range(len(NAMED)):
        half = fed(NAMED[:length]).result().response
        assert SAID["reasoning_content"].startswith(half.get("reasoning_content", ""))  # type: ignore[attr-defined]
        assert "Let me look.".startswith(half["content"] or "")


def test_an_answer_found_again_in_the_next_request_is_the_same_message() -> None:
    """What was said once and is sent back must be told for the same: else no two turns of a conversation join."""
    result = {"type": "function_call_output", "call_id": "call_1", "output": "rain"}
    again = {"role": "user", "content": [{"type": "input_text", "text": "And tomorrow?"}]}
    call = Responses().whole(asked(), json.dumps(ANSWER).encode())
    second = asked(input=[{"role": "user", "content": ASKED["input"]}, *OUTPUT, result, again])
    assert second.messages == (
        *call.messages,
        call.response,
        {"role": "tool", "tool_call_id": "call_1", "content": "rain"},
        {"role": "user", "content": "And tomorrow?"},
    )


def test_pictures_refusals_and_what_has_no_form_in_chat_are_kept() -> None:
    picture = {"type": "input_image", "image_url": "data:image/png;base64,aGk=", "detail": "auto"}
    (_, message) = asked(input=[{"role": "user", "content": [picture]}]).messages
    assert message["content"] == [{"type": "image_url", "image_url": {"url": "data:image/png;base64,aGk="}}]
    searched = {"type": "web_search_call", "id": "ws_1", "status": "completed"}
    refusal = {"type": "message", "role": "assistant", "content": [{"type": "refusal", "refusal": "No."}]}
    call = Responses().whole(asked(), json.dumps({**ANSWER, "output": [searched, refusal]}).encode())
    assert call.response == {"role": "assistant", "content": None, "refusal": "No.", "items": [searched]}
    assert call.finish_reason == "stop"


def test_what_the_upstream_remembers_is_told_as_a_reference() -> None:
    assert asked(previous_response_id="resp_0").sampling["previous_response_id"] == "resp_0"


@pytest.mark.parametrize(
    ("details", "kept"),
    [({"reason": "max_output_tokens"}, "length"), ({"reason": "content_filter"}, "content_filter"), (None, "length")],
)
def test_an_incomplete_answer_says_why(details: Any, kept: str) -> None:
    answer = {**ANSWER, "status": "incomplete", "incomplete_details": details}
    assert Responses().whole(asked(), json.dumps(answer).encode()).finish_reason == kept
    assert fed([*NAMED[:-1], ("response.incomplete", {"response": answer})]).result().finish_reason == kept


@pytest.mark.parametrize("status", ["failed", "queued", "in_progress", "cancelled", None])
def test_what_is_no_answer_yet_or_never_will_be_is_not_read_as_one(status: str | None) -> None:
    with pytest.raises(ValueError, match="a response that is"):
        Responses().whole(asked(), json.dumps({**ANSWER, "status": status}).encode())


def test_a_stream_that_failed_never_counts_as_whole(way: Street) -> None:
    failed = {**BEGUN, "status": "failed", "error": {"code": "server_error", "message": "no"}}
    way.upstream.answer = [events(*numbered(*NAMED[:10], ("response.failed", {"response": failed})))]
    for _ in client(way).responses.create(**ASKED, stream=True):
        pass
    (span,) = way.spans()
    assert span.model is not None and span.model.response["content"] == "Let me "
    assert span.attributes[PARTIAL] == "the upstream broke off"


@pytest.mark.parametrize("body", [b"[]", b"{", b"{}", b'{"model":1}', b'{"model":"m","input":[1]}'])
def test_what_is_no_request_is_refused(body: bytes) -> None:
    with pytest.raises(BadInput):
        Responses().read_request(body)


@given(st.lists(st.integers(0, 20_000), max_size=60))
def test_however_the_stream_is_cut_it_is_read_the_same(places: list[int]) -> None:
    splitter, assembler = Splitter(), Responses().stream(asked())
    for part in cut(STREAM, places):
        for event in splitter.feed(part):
            assembler.feed(event)
    assert assembler.is_ended
    assert_is_the_answer(assembler.result())


STRANGE = [
    "refusal",
    "custom_tool_call",
    "function_call_output",
    "incomplete_details",
    "input_image",
    "image_url",
    "\ud83d",
]
WORDS = st.sampled_from(sorted({word.decode() for word in re.findall(rb"[a-z_.]+", STREAM)}) + STRANGE)
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | WORDS,
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(WORDS, inner, max_size=5),
    max_leaves=12,
)
KINDS = st.sampled_from([*{name for name, _ in NAMED}, "response.incomplete", "response.failed", "error", "?"])
EVENTS = st.builds(
    lambda kind, rest: json.dumps({**rest, "type": kind}).encode(), KINDS, st.dictionaries(WORDS, JSON, max_size=5)
)


@given(st.lists(EVENTS | st.binary(max_size=20), max_size=12))
def test_no_stream_makes_it_fail(said: list[bytes]) -> None:
    assembler = Responses().stream(asked())
    for data in said:
        assembler.feed(Event("message", data))
        assert isinstance(assembler.result(), ModelCall)


@given(st.dictionaries(WORDS, JSON, max_size=6))
def test_no_request_and_no_answer_makes_it_fail_otherwise_than_it_may(body: dict[str, Any]) -> None:
    with suppress(BadInput):
        Responses().read_request(json.dumps({"input": [body, body], **body, "model": "m"}).encode())
    with suppress(ValueError):
        Responses().whole(asked(), json.dumps({"output": [body, body], **body}).encode())
