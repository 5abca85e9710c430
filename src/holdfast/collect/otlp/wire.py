"""OTLP's trace requests as plain records, read and written as JSON, or as protobuf with the extra `otlp`.

https://opentelemetry.io/docs/specs/otlp/
"""

from __future__ import annotations

import base64
import binascii
import math
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice
from typing import Any

import orjson

from holdfast.contracts.errors import BadInput

JSON, PROTOBUF = "application/json", "application/x-protobuf"
QUOTE = ord('"')
DEEPEST = 32  # levels of nested values
MOST = 4096  # attributes of a span and its events, nested values included, numbers in lists not
NS = 1_000_000_000
# A request of 32 MiB can hold eight million values, of which each takes some hundred bytes when it is read.
MOST_VALUES = 500_000  # brackets and commas of a request in JSON
MOST_MESSAGES = 150_000  # of a request in protobuf, nested ones included
VALUES = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+(?:"|\\?\Z)|[\[{,]', re.DOTALL)
# Fields that are messages, by the message that has them; all others hold numbers or bytes.
FIELDS: Mapping[str, Mapping[int, str]] = {
    "request": {1: "resource spans"},
    "resource spans": {1: "resource", 2: "scope spans"},
    "resource": {1: "pair"},
    "scope spans": {1: "scope", 2: "span"},
    "scope": {3: "pair"},
    "span": {9: "pair", 11: "event", 13: "link", 15: "status"},
    "event": {3: "pair"},
    "link": {4: "pair"},
    "pair": {2: "value"},
    "value": {5: "values", 6: "pairs"},
    "values": {1: "value"},
    "pairs": {1: "pair"},
    "status": {},
}
NUMBERS = frozenset({"intValue", "doubleValue", "boolValue"})
IDS = ("traceId", "spanId", "parentSpanId")
UNREADABLE = (ValueError, TypeError, AttributeError, RecursionError, OverflowError)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelEvent:
    """An event of a span."""

    name: str
    at_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class OtelSpan:
    """A span as OpenTelemetry has it."""

    trace_id: str  # 32 hexadecimal digits
    span_id: str  # 16
    parent_id: str | None = None  # None for the root of its trace
    name: str
    started_ns: int  # unix nanoseconds
    ended_ns: int
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[OtelEvent, ...] = ()
    error: str | None = None  # the message of an error status
    state: str = ""  # W3C's tracestate
    resource: Mapping[str, Any] = field(default_factory=dict)
    dropped: int = 0  # attributes beyond MOST


class Full(Exception):
    """The span has too many attributes."""


class AttributeLimit:
    """Counts the attributes of one span."""

    def __init__(self) -> None:
        self.left, self.dropped = MOST, 0

    def take(self, number: int = 1) -> None:
        if self.left < number:
            raise Full
        self.left -= number


def read(body: bytes, media_type: str, *, is_bounded: bool = True) -> tuple[list[OtelSpan], int]:
    """The spans of a request, and how many could not be read; BadInput if it is no request.

    A bounded one is refused before it is read where it has so many values that they would fill the memory.
    """
    if is_bounded and _count(body, media_type):
        raise BadInput("request", why="has too many values in it", remedy="send fewer spans at once")
    if media_type == JSON:
        try:
            request = orjson.loads(body)
            return _gathered(_from_json(request))
        except (ValueError, TypeError, AttributeError, RecursionError) as error:
            raise BadInput("request", why=f"is no OTLP request in JSON: {error}") from None
    if media_type == PROTOBUF:
        from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
        from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

        message = ExportTraceServiceRequest()
        try:
            message.ParseFromString(body)
        except DecodeError as error:
            raise BadInput("request", why=f"is no OTLP request: {error}") from None
        return _gathered(_from_json(_protobuf_as_json(message)))
    raise BadInput(f"Content-Type {media_type!r}", why="is unknown", remedy=f"send {PROTOBUF} or {JSON}")


def _count(body: bytes, media_type: str) -> bool:
    """Whether a request has too many values."""
    if media_type == PROTOBUF:
        return sum(1 for _ in islice(_messages(body), MOST_MESSAGES + 1)) > MOST_MESSAGES
    if sum(map(body.count, (b"{", b"[", b","))) <= MOST_VALUES:
        return False
    found = (match for match in VALUES.finditer(body) if body[match.start()] != QUOTE)
    return sum(1 for _ in islice(found, MOST_VALUES + 1)) > MOST_VALUES


def _messages(body: bytes) -> Iterator[str]:
    """Every message within a request, by its kind; ends where it cannot be read, which the parser will say."""
    left = [("request", 0, len(body))]
    while left:
        kind, at, end = left.pop()
        while at < end:
            tag, at = _varint(body, at, end)
            if tag & 7 == 2:
                size, at = _varint(body, at, end)
                inner = FIELDS.get(kind, {}).get(tag >> 3)
                if inner is not None and at + size <= end:
                    yield inner
                    left.append((inner, at, at + size))
                at += size
            elif tag & 7 == 0:
                _, at = _varint(body, at, end)
            else:
                at += {1: 8, 5: 4}.get(tag & 7, end)  # others are not in use: the rest cannot be read


def _varint(body: bytes, at: int, end: int) -> tuple[int, int]:
    """A number and where it ends; at the end of the message where it does not end."""
    value = 0
    for place in range(at, min(at + 10, end)):
        value |= (body[place] & 127) << 7 * (place - at)
        if body[place] < 128:
            return value, place + 1
    return 0, end


def written(spans: Iterable[OtelSpan], media_type: str) -> bytes:
    """A request with these spans, grouped by resource."""
    request = {"resourceSpans": [_group(resource, group) for resource, group in _by_resource(spans)]}
    if media_type == JSON:
        return orjson.dumps(request)
    from google.protobuf.json_format import ParseDict  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    for span in _spans(request):
        for name in IDS:  # protobuf's own JSON has bytes in base 64
            span[name] = base64.b64encode(bytes.fromhex(span.get(name, ""))).decode()
    return bytes(ParseDict(request, ExportTraceServiceRequest()).SerializeToString())


def answer(media_type: str, rejected: int, why: str) -> bytes:
    """The answer to a request: empty, or how many spans were not taken and why."""
    if media_type == JSON:
        payload = {"partialSuccess": {"rejectedSpans": str(rejected), "errorMessage": why}} if rejected or why else {}
        return orjson.dumps(payload)
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    if rejected or why:
        response.partial_success.rejected_spans = rejected
        response.partial_success.error_message = why
    return bytes(response.SerializeToString())


def _gathered(found: Iterator[OtelSpan | None]) -> tuple[list[OtelSpan], int]:
    spans, unread = [], 0
    for span in found:
        if span is None:
            unread += 1
        else:
            spans.append(span)
    return spans, unread


def _from_json(request: Any) -> Iterator[OtelSpan | None]:
    for group in _list(request, "resourceSpans"):
        try:
            resource = _attributes(_get(_get(group, "resource") or {}, "attributes"), AttributeLimit())
        except UNREADABLE:
            resource = None  # it is unknown whose spans these are
        for scope in _list(group, "scopeSpans"):
            for span in _list(scope, "spans"):
                try:
                    yield None if resource is None else _json_span(span, resource)
                except UNREADABLE:
                    yield None


def _json_span(span: Any, resource: Mapping[str, Any]) -> OtelSpan:
    status, room = _get(span, "status") or {}, AttributeLimit()
    return OtelSpan(
        trace_id=_hex(_get(span, "traceId"), 32),
        span_id=_hex(_get(span, "spanId"), 16),
        parent_id=_hex(_get(span, "parentSpanId"), 16) if _get(span, "parentSpanId") else None,
        name=str(_get(span, "name") or ""),
        started_ns=_time(_get(span, "startTimeUnixNano")),
        ended_ns=_time(_get(span, "endTimeUnixNano")),
        attributes=_attributes(_get(span, "attributes"), room),
        events=tuple(
            OtelEvent(
                name=str(_get(event, "name") or ""),
                at_ns=_time(_get(event, "timeUnixNano") or 0),
                attributes=_attributes(_get(event, "attributes"), room),
            )
            for event in _list(span, "events")
        ),
        error=str(_get(status, "message") or "error") if _get(status, "code") in (2, "STATUS_CODE_ERROR") else None,
        state=str(_get(span, "traceState") or ""),
        resource=resource,
        dropped=room.dropped,
    )


def _protobuf_as_json(message: Any) -> dict[str, Any]:
    """A protobuf request in OTLP's JSON form: ids in hexadecimal, times always there."""
    from google.protobuf.json_format import MessageToDict

    request: dict[str, Any] = MessageToDict(message)
    for span in _spans(request):
        for name in IDS:
            span[name] = base64.b64decode(span.get(name, "")).hex()
        span.setdefault("startTimeUnixNano", "0")
        span.setdefault("endTimeUnixNano", "0")
    return request


def _spans(request: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    for group in request.get("resourceSpans", ()):
        for scope in group.get("scopeSpans", ()):
            yield from scope.get("spans", ())


def _attributes(pairs: Any, room: AttributeLimit) -> dict[str, Any]:
    """The attributes that there is room for; the others are counted."""
    found = {}
    for pair in pairs or ():
        if not pair.get("key"):
            continue
        before = room.left
        try:
            room.take()
            found[str(pair["key"])] = _from_any(pair.get("value"), room)
        except Full:
            room.left = before
            room.dropped += 1
    return found


def _from_any(value: Any, room: AttributeLimit, depth: int = 0) -> Any:
    """An AnyValue in JSON, where whole numbers are texts."""
    if depth > DEEPEST:
        raise ValueError("nested too deeply")
    if not isinstance(value, dict) or not value:
        return None
    kind, inner = next(iter(value.items()))
    kind = _camel(kind)
    if kind not in NUMBERS and depth:
        room.take()
    if kind == "intValue":
        return _whole(inner)
    if kind == "doubleValue":
        return _finite(float(inner))
    if kind == "arrayValue":
        return [_from_any(one, room, depth + 1) for one in _list(inner, "values")]
    if kind == "kvlistValue":
        pairs = _list(inner, "values")
        room.take(len(pairs))
        return {str(pair["key"]): _from_any(pair.get("value"), room, depth + 1) for pair in pairs if pair.get("key")}
    if kind == "bytesValue":
        base64.b64decode(inner, validate=True)
    return inner if isinstance(inner, str | bool) else None


def _finite(value: Any) -> Any:
    """NaN and infinities as text, since no record can hold them."""
    return value if not isinstance(value, float) or math.isfinite(value) else str(value)


def _whole(value: Any) -> int:
    """A 64-bit integer."""
    number = int(value)
    if not -(2**63) <= number < 2**63:
        raise ValueError("a whole number of more than 64 bits")
    return number


def _any(value: Any) -> dict[str, Any]:
    if isinstance(value, bool):
        return {"boolValue": value}
    if isinstance(value, int):
        return {"intValue": str(value)} if -(2**63) <= value < 2**63 else {"doubleValue": float(value)}
    if isinstance(value, float):
        return {"doubleValue": value}
    if isinstance(value, Mapping):
        return {"kvlistValue": {"values": _pairs(value)}}
    if isinstance(value, list | tuple):
        return {"arrayValue": {"values": [_any(one) for one in value]}}
    return {} if value is None else {"stringValue": str(value)}


def _pairs(attributes: Mapping[str, Any]) -> list[dict[str, Any]]:
    return [{"key": str(key), "value": _any(value)} for key, value in attributes.items() if value is not None]


def _by_resource(spans: Iterable[OtelSpan]) -> list[tuple[Mapping[str, Any], list[OtelSpan]]]:
    groups: list[tuple[Mapping[str, Any], list[OtelSpan]]] = []
    for span in spans:
        if not groups or groups[-1][0] != span.resource:
            groups.append((span.resource, []))
        groups[-1][1].append(span)
    return groups


def _group(resource: Mapping[str, Any], spans: list[OtelSpan]) -> dict[str, Any]:
    scope = {"scope": {"name": "holdfast"}, "spans": [_span(span) for span in spans]}
    return {"resource": {"attributes": _pairs(resource)}, "scopeSpans": [scope]}


def _span(span: OtelSpan) -> dict[str, Any]:
    written: dict[str, Any] = {
        "traceId": span.trace_id,
        "spanId": span.span_id,
        "name": span.name,
        "kind": 1,  # internal
        "startTimeUnixNano": str(span.started_ns),
        "endTimeUnixNano": str(span.ended_ns),
        "attributes": _pairs(span.attributes),
        "events": [
            {"name": event.name, "timeUnixNano": str(event.at_ns), "attributes": _pairs(event.attributes)}
            for event in span.events
        ],
        "status": {} if span.error is None else {"code": 2, "message": span.error},
    }
    if span.parent_id is not None:
        written["parentSpanId"] = span.parent_id
    if span.state:
        written["traceState"] = span.state
    return written


def _get(value: Any, name: str) -> Any:
    """A member under its camel-case name or, as some write it, with underscores."""
    if name in value:
        return value[name]
    return value.get("".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in name))


def _camel(name: str) -> str:
    first, *rest = name.split("_")
    return first + "".join(word.capitalize() for word in rest)


def _list(value: Any, name: str) -> list[Any]:
    found = _get(value, name)
    if found is not None and not isinstance(found, list):
        raise TypeError(f"{name} is no list")
    return found or []


def _hex(text: Any, length: int) -> str:
    try:
        if isinstance(text, str) and len(text) == length and any(bytes.fromhex(text)):
            return text.lower()
    except (ValueError, binascii.Error):
        pass
    raise ValueError(f"{text!r} is no id of {length} hexadecimal digits")


def _time(value: Any) -> int:
    """Unix nanoseconds."""
    at = int(value)
    if not 0 <= at < 2**63:
        raise ValueError(f"{value!r} is no time")
    return at
