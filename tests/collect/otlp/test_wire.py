"""What is written is read back the same in every form; what cannot be read is counted, and never a crash."""

from __future__ import annotations

import base64
import json
from dataclasses import replace
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import (
    ExportTraceServiceRequest,
    ExportTraceServiceResponse,
)

from holdfast.collect.otlp import wire
from holdfast.collect.otlp.conventions import (
    CONTENT_ATTRIBUTES,
    model_attributes,
    model_call,
    tool_attributes,
    tool_call,
)
from holdfast.collect.otlp.wire import JSON, PROTOBUF, OtelEvent, OtelSpan, read, written
from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.trace import ModelCall, ToolCall

TEXT = st.text(st.characters(codec="utf-8"), max_size=8)
VALUES = st.recursive(
    st.booleans() | st.integers(-(2**63), 2**63 - 1) | st.floats(allow_nan=False, allow_infinity=False) | TEXT,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TEXT.filter(bool), inner, max_size=3),
    max_leaves=6,
)
ATTRIBUTES = st.dictionaries(TEXT.filter(bool), VALUES, max_size=4)


def ids(digits: int) -> st.SearchStrategy[str]:
    return st.integers(1, 16**digits - 1).map(lambda number: f"{number:0{digits}x}")


TIMES = st.integers(0, 2**63 - 1)
SPANS = st.builds(
    wire.OtelSpan,
    trace_id=ids(32),
    span_id=ids(16),
    parent_id=st.none() | ids(16),
    name=TEXT,
    started_ns=TIMES,
    ended_ns=TIMES,
    attributes=ATTRIBUTES,
    events=st.lists(st.builds(wire.OtelEvent, name=TEXT, at_ns=TIMES, attributes=ATTRIBUTES), max_size=2).map(tuple),
    error=st.none() | TEXT.filter(bool),
    state=TEXT,
    resource=ATTRIBUTES,
)


@pytest.mark.parametrize("media_type", [wire.JSON, wire.PROTOBUF])
@given(st.lists(SPANS, max_size=4))
def test_spans_come_back_as_they_were_written(media_type: str, spans: list[wire.OtelSpan]) -> None:
    assert wire.read(wire.written(spans, media_type), media_type) == (spans, 0)


def test_json_may_be_written_with_underscores_and_numbers_as_numbers() -> None:
    body = {
        "resource_spans": [
            {
                "scope_spans": [
                    {
                        "spans": [
                            {
                                "trace_id": "AB" * 16,
                                "span_id": "cd" * 8,
                                "start_time_unix_nano": 5,
                                "end_time_unix_nano": "7",
                                "attributes": [
                                    {"key": "n", "value": {"int_value": 3}},
                                    {"key": "nan", "value": {"doubleValue": "NaN"}},
                                    {"key": "b", "value": {"bytesValue": base64.b64encode(b"hi").decode()}},
                                ],
                                "status": {"code": "STATUS_CODE_ERROR"},
                            }
                        ]
                    }
                ]
            }
        ]
    }
    ((span,), unread) = wire.read(json.dumps(body).encode(), wire.JSON)
    assert (span.trace_id, span.started_ns, span.ended_ns, span.error, unread) == ("ab" * 16, 5, 7, "error", 0)
    assert span.attributes == {"n": 3, "nan": "nan", "b": "aGk="}


def test_protobuf_is_what_other_tools_read() -> None:
    one = wire.OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2, attributes={"a": [1]})
    message = ExportTraceServiceRequest.FromString(wire.written([one], wire.PROTOBUF))
    (span,) = message.resource_spans[0].scope_spans[0].spans
    assert span.trace_id == b"\xab" * 16 and span.attributes[0].value.array_value.values[0].int_value == 1


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return value


@pytest.mark.parametrize(
    "broken",
    [
        {"traceId": "", "spanId": "cd" * 8},  # no trace
        {"traceId": "00" * 16, "spanId": "cd" * 8},  # all zeros is no id
        {"traceId": "ab" * 16, "spanId": "zz" * 8},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "-1"},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "soon"},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "events": 3},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "attributes": [{"key": "a", "value": nested(100)}]},
    ],
)
def test_a_span_that_cannot_be_read_is_counted_and_the_others_are_read(broken: dict[str, Any]) -> None:
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    good = {"traceId": "ab" * 16, "spanId": "cd" * 8, **times}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{**times, **broken}, good]}]}]}
    spans, unread = wire.read(json.dumps(body).encode(), wire.JSON)
    assert len(spans) == 1 and unread == 1


@pytest.mark.parametrize(
    "value",
    [
        {"intValue": "abc"},
        {"intValue": "9" * 4000},
        {"intValue": "9" * 5000},
        {"intValue": str(2**63)},
        {"doubleValue": "abc"},
        {"bytesValue": "***"},
        {"bytesValue": 5},
        nested(40),
        nested(300),
    ],
)
def test_spans_below_a_resource_that_cannot_be_read_are_refused_and_the_others_read(value: dict[str, Any]) -> None:
    times = {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    bad = {"resource": {"attributes": [{"key": "a", "value": value}]}, "scopeSpans": [{"spans": [times, times]}]}
    body = {"resourceSpans": [bad, {"scopeSpans": [{"spans": [times]}]}]}
    spans, unread = wire.read(json.dumps(body).encode(), wire.JSON)
    assert len(spans) == 1 and unread == 2


def test_protobuf_spans_below_a_resource_that_is_nested_too_deeply_are_refused() -> None:
    one = wire.OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2)
    deep: Any = "x"
    for _ in range(40):
        deep = [deep]
    other = replace(one, span_id="ef" * 8, resource={"a": deep})
    assert wire.read(wire.written([one, other], wire.PROTOBUF), wire.PROTOBUF) == ([one], 1)


@pytest.mark.parametrize("media_type", [wire.JSON, wire.PROTOBUF])
def test_a_span_has_so_many_attributes_and_what_is_more_is_counted(media_type: str) -> None:
    def read(**more: Any) -> wire.OtelSpan:
        one = wire.OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2, **more)
        ((found,), unread) = wire.read(wire.written([one], media_type), media_type)
        assert unread == 0
        return found

    many = {f"k{number}": "v" for number in range(wire.MOST + 5)}
    found = read(attributes=many)
    assert found.attributes == dict(list(many.items())[: wire.MOST]) and found.dropped == 5
    noted = wire.OtelEvent(name="e", at_ns=1, attributes={"a": "x", "b": "y"})
    found = read(attributes=dict(list(many.items())[: wire.MOST - 1]), events=(noted,))
    assert found.events[0].attributes == {"a": "x"} and found.dropped == 1  # its events have no room of their own
    found = read(attributes={"all": many, "list": list(many.values()), "one": "x"})
    assert found.attributes == {"one": "x"} and found.dropped == 2
    ids = {"ids": list(range(10 * wire.MOST))}
    assert read(attributes=ids).attributes == ids  # a long answer has many


def test_the_answer_says_what_was_refused() -> None:
    assert wire.answer(wire.JSON, 0, "") == b"{}" and wire.answer(wire.PROTOBUF, 0, "") == b""
    told = ExportTraceServiceResponse.FromString(wire.answer(wire.PROTOBUF, 3, "no")).partial_success
    assert (told.rejected_spans, told.error_message) == (3, "no")


WORDS = ["resourceSpans", "scopeSpans", "spans", "resource", "attributes", "key", "value", "arrayValue", "values"]
WORDS += ["traceId", "spanId", "events", "status", "code", "kvlistValue", "intValue", "name"]
ANY = st.recursive(
    st.none() | st.booleans() | st.integers() | st.sampled_from(WORDS),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(WORDS), inner, max_size=4),
    max_leaves=20,
)


@given(
    ANY.map(lambda value: json.dumps(value).encode()) | st.binary(max_size=40),
    st.sampled_from([wire.JSON, wire.PROTOBUF]),
)
def test_nothing_that_is_sent_makes_it_fail_otherwise_than_it_may(body: bytes, media_type: str) -> None:
    try:
        wire.read(body, media_type)
    except BadInput as error:
        assert "request" in str(error)


MESSAGES = (
    {"role": "system", "content": "Be brief."},
    {"role": "user", "content": "2+2?"},
    {
        "role": "assistant",
        "content": None,
        "tool_calls": [{"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"a":2}'}}],
    },
    {"role": "tool", "tool_call_id": "c1", "content": "4"},
)
ANSWER = {"role": "assistant", "content": "Four."}
CALL = {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"a":2}'}}
BASE = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}


def foreign(attributes: dict[str, Any] | None = None, *events: tuple[str, dict[str, Any]], **more: Any) -> OtelSpan:
    noted = tuple(OtelEvent(name=name, at_ns=1, attributes=body) for name, body in events)
    given: dict[str, Any] = {"trace_id": "ab" * 16, "span_id": "cd" * 8, "name": "x", "started_ns": 1, "ended_ns": 2}
    return OtelSpan(**given, attributes=attributes or {}, events=noted, **more)


PARTS = [
    {"role": "user", "parts": [{"type": "text", "content": "2+2?"}]},
    {"role": "assistant", "parts": [{"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"a": 2}}]},
    {"role": "user", "parts": [{"type": "tool_call_response", "id": "c1", "name": "calc", "result": "4"}]},
]
TODAY = {
    "gen_ai.system_instructions": [{"type": "text", "content": "Be brief."}],
    "gen_ai.input.messages": PARTS,
    "gen_ai.output.messages": [
        {"role": "assistant", "parts": [{"type": "text", "content": "Four."}], "finish_reason": "stop"}
    ],
}
BODIES: list[tuple[str, dict[str, Any]]] = [
    ("gen_ai.system.message", {"content": "Be brief."}),
    ("gen_ai.user.message", {"content": "2+2?"}),
    ("gen_ai.assistant.message", {"tool_calls": [CALL]}),
    ("gen_ai.tool.message", {"id": "c1", "content": "4"}),
    ("gen_ai.choice", {"index": 0, "finish_reason": "stop", "message": {"role": "assistant", "content": "Four."}}),
]
NUMBERED = {
    "gen_ai.prompt.0.role": "system",
    "gen_ai.prompt.0.content": "Be brief.",
    "gen_ai.prompt.1.role": "user",
    "gen_ai.prompt.1.content": "2+2?",
    "gen_ai.prompt.2.role": "assistant",
    "gen_ai.prompt.2.tool_calls.0.id": "c1",
    "gen_ai.prompt.2.tool_calls.0.name": "calc",
    "gen_ai.prompt.2.tool_calls.0.arguments": '{"a":2}',
    "gen_ai.prompt.3.role": "tool",
    "gen_ai.prompt.3.content": "4",
    "gen_ai.prompt.3.tool_call_id": "c1",
    "gen_ai.completion.0.role": "assistant",
    "gen_ai.completion.0.content": "Four.",
    "gen_ai.completion.0.finish_reason": "stop",
}
FORMS = {
    "today, structured": foreign({**BASE, **TODAY}),
    "today, as JSON": foreign({**BASE, **{name: json.dumps(value) for name, value in TODAY.items()}}),
    "today, in an event": foreign(BASE, ("gen_ai.client.inference.operation.details", TODAY)),
    "an event a message": foreign(BASE, *BODIES),
    "an event a message, flat": foreign(
        BASE,
        *((name, {k: v if isinstance(v, str) else json.dumps(v) for k, v in body.items()}) for name, body in BODIES),
    ),
    "events in an attribute": foreign({**BASE, "events": json.dumps([{"event.name": n, **b} for n, b in BODIES])}),
    "by number": foreign({**BASE, **NUMBERED}),
    "whole": foreign(
        BASE,
        ("gen_ai.content.prompt", {"gen_ai.prompt": json.dumps(MESSAGES)}),
        ("gen_ai.content.completion", {"gen_ai.completion": json.dumps([{**ANSWER, "finish_reason": "stop"}])}),
    ),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_form_says_the_same(form: str) -> None:
    call = model_call(FORMS[form])
    assert call is not None and call.messages == MESSAGES
    assert call.response == ANSWER and call.finish_reason == "stop" and call.model == "m"


@pytest.mark.parametrize(
    ("attributes", "kept"),
    [
        ({"gen_ai.usage.input_tokens": 5, "gen_ai.usage.output_tokens": 6}, (5, 6, None)),
        ({"gen_ai.usage.prompt_tokens": 5, "gen_ai.usage.completion_tokens": 6}, (5, 6, None)),
        ({"gen_ai.usage.output_tokens": 6, "gen_ai.usage.reasoning.output_tokens": 2}, (None, 6, 2)),
        ({"gen_ai.usage.input_tokens": -1, "gen_ai.usage.prompt_tokens": "5"}, (None, None, None)),
    ],
)
def test_usage_has_older_names(attributes: dict[str, Any], kept: Any) -> None:
    call = model_call(foreign({**BASE, **attributes}))
    assert call is not None and (call.prompt_tokens, call.completion_tokens, call.thinking_tokens) == kept


@pytest.mark.parametrize(
    "attributes",
    [
        {},
        {"gen_ai.operation.name": "invoke_agent", "gen_ai.request.model": "m", "gen_ai.input.messages": PARTS},
        {"gen_ai.operation.name": "embeddings", "gen_ai.request.model": "m"},
        {"gen_ai.operation.name": "chat"},  # of which model?
        {"http.method": "POST"},
    ],
)
def test_what_is_no_call_of_a_model_is_not_taken_for_one(attributes: dict[str, Any]) -> None:
    assert model_call(foreign(attributes)) is None and tool_call(foreign(attributes)) is None


def test_tools_have_older_names_and_errors() -> None:
    old = {"gen_ai.tool.name": "calc", "tool_arguments": '{"a":2}', "tool_response": '"4"'}
    assert tool_call(foreign(old)) == ToolCall(tool="calc", arguments={"a": 2}, result="4")
    failed = tool_call(foreign({**old, "gen_ai.operation.name": "execute_tool"}, error="no"))
    assert failed is not None and failed.error == "no"


CALLS = [
    ModelCall(model="m", messages=(), response={}),
    ModelCall(
        model="m",
        messages=(*MESSAGES, {"role": "user", "content": [{"type": "image_url", "image_url": {"url": "data:x"}}]}),
        response={"role": "assistant", "content": "Ja.", "reasoning_content": "Hm.", "tool_calls": [CALL]},
        finish_reason="tool_calls",
        prompt_tokens=7,
        completion_tokens=4,
        thinking_tokens=1,
        prompt_ids=(1, 2, 0),
        completion_ids=(3, 0, 5),
        logprobs=(-0.1, 0.0, -2.5),
        forced=(1,),
        scrubbed=((2, 3), (4, 5)),
        sampling={
            "temperature": 0.7,
            "top_k": 5,
            "stop": ["END"],
            "thinking": 12,
            "tools": [{"type": "function", "function": {"name": "calc", "parameters": {"type": "object"}}}],
        },
    ),
    ModelCall(  # arguments in a form of their own stay as they were sampled
        model="m",
        messages=({"role": "user", "content": "x"},),
        response={
            "role": "assistant",
            "content": None,
            "tool_calls": [{"id": None, "type": "function", "function": {"name": "f", "arguments": '{"a" : 1'}}],
        },
        finish_reason="length",
    ),
]


@pytest.mark.parametrize("media_type", [JSON, PROTOBUF])
@pytest.mark.parametrize("call", CALLS)
def test_a_call_of_ours_comes_back_exactly(call: ModelCall, media_type: str) -> None:
    ((span,), _) = read(written([foreign(model_attributes(call))], media_type), media_type)
    assert model_call(span) == call
    assert all(CONTENT_ATTRIBUTES.match(name) for name in span.attributes if "messages" in name or "holdfast." in name)


def test_a_tool_of_ours_comes_back_exactly() -> None:
    call = ToolCall(tool="calc", arguments={"a": [1, "ü"]}, result={"b": None}, error="e", call_id="c1")
    assert tool_call(foreign(tool_attributes(call), error="e")) == call


NAMES = st.sampled_from(
    [*TODAY, *NUMBERED, "events", "gen_ai.tool.definitions", "gen_ai.prompt", "holdfast.prompt_ids"]
)
TERMS = st.sampled_from(
    ["role", "parts", "type", "content", "tool_call", "arguments", "text", "id", "name", "function"]
)
TERM_VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | TERMS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(TERMS, inner, max_size=3),
    max_leaves=8,
)


@given(
    st.dictionaries(NAMES, TERM_VALUES | TERM_VALUES.map(json.dumps), max_size=5),
    st.lists(
        st.tuples(st.sampled_from([n for n, _ in BODIES]), st.dictionaries(TERMS, TERM_VALUES, max_size=3)), max_size=3
    ),
)
def test_no_attributes_make_it_fail_otherwise_than_it_may(attributes: dict[str, Any], events: list[Any]) -> None:
    """What cannot be a record is refused as one span; see take."""
    try:
        model_call(foreign({**BASE, **attributes}, *events))
    except (BadRecord, ValueError, TypeError):
        assert "holdfast.prompt_ids" in attributes
