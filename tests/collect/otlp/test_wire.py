"""What is written is read back the same in both forms; what cannot be read is counted, and never a crash."""

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
from holdfast.contracts.errors import BadInput

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


@pytest.mark.parametrize(
    "broken",
    [
        {"traceId": "", "spanId": "cd" * 8},  # no trace
        {"traceId": "00" * 16, "spanId": "cd" * 8},  # all zeros is no id
        {"traceId": "ab" * 16, "spanId": "zz" * 8},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "-1"},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "soon"},
        {"traceId": "ab" * 16, "spanId": "cd" * 8, "events": 3},
    ],
)
def test_a_span_that_cannot_be_read_is_counted_and_the_others_are_read(broken: dict[str, Any]) -> None:
    times = {"startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    good = {"traceId": "ab" * 16, "spanId": "cd" * 8, **times}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [{**times, **broken}, good]}]}]}
    spans, unread = wire.read(json.dumps(body).encode(), wire.JSON)
    assert len(spans) == 1 and unread == 1


def test_values_that_are_nested_without_end_are_refused_alone() -> None:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(100):
        value = {"arrayValue": {"values": [value]}}
    times = {"traceId": "ab" * 16, "spanId": "cd" * 8, "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    deep = {**times, "attributes": [{"key": "a", "value": value}]}
    body = {"resourceSpans": [{"scopeSpans": [{"spans": [deep, times]}]}]}
    spans, unread = wire.read(json.dumps(body).encode(), wire.JSON)
    assert len(spans) == 1 and unread == 1


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {"stringValue": "x"}
    for _ in range(depth):
        value = {"arrayValue": {"values": [value]}}
    return value


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
