"""Our spans as OpenTelemetry's, and on their way: to a collector, or into a file of its form.

Ids are made from the attempt's id and the span's number, so that the same span has the same id whenever it is sent;
spans that came from another tracer keep the ids that they came with. An attempt's own spans hang below one root.
"""

from __future__ import annotations

import asyncio
import gzip
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from hashlib import blake2b
from typing import Any

import aiohttp

from holdfast.collect.address import checked, hidden
from holdfast.collect.otlp.conventions import model_attributes, tool_attributes
from holdfast.collect.otlp.wire import NS, PROTOBUF, Noted, OtelSpan, written
from holdfast.contracts.errors import Fault
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.rollout import Attempt, Backoff, Rollout
from holdfast.contracts.trace import Span, SpanKind

SOURCE = "holdfast.exported."  # where it came from: no identity, since nobody runs there any more
PASSING = frozenset({429, 502, 503, 504})
BATCH = 200  # spans in one request
EXAMPLE = "http://127.0.0.1:4318"


def given(
    rollout: Rollout, attempt: Attempt, spans: Sequence[Span], sheet: RewardBreakdown | None = None
) -> list[OtelSpan]:
    """An attempt's spans in their order, the root at the end: it is what says that all has come."""
    resource = {"service.name": "holdfast", f"{SOURCE}rollout": rollout.id, f"{SOURCE}attempt": attempt.id}
    ids = {span.seq: _identity(attempt, span) for span in spans}
    trace, root = _made(attempt.id, 16), _made(f"{attempt.id} root", 8)
    scores = tuple(_score(signal, attempt) for signal in sheet.signals) if sheet is not None else ()
    made = [_given(span, ids, root, resource) for span in spans]
    if any(one.trace_id != trace for one in made) and not any(one.trace_id == trace for one in made):
        return [one if one.parent_id else _with(one, scores) for one in made]
    begun = min([attempt.started_at, *(span.started_at for span in spans)])
    ended = max([attempt.ended_at or begun, *(span.ended_at or span.started_at for span in spans)])
    agent = OtelSpan(
        trace_id=trace,
        span_id=root,
        name=f"invoke_agent {rollout.name}",
        started_ns=round(begun * NS),
        ended_ns=round(ended * NS),
        attributes={"gen_ai.operation.name": "invoke_agent", "gen_ai.agent.name": rollout.name},
        events=scores,
        error=attempt.error,
        resource=resource,
    )
    return [*made, agent]


def _given(span: Span, ids: Mapping[int, tuple[str, str]], root: str, resource: Mapping[str, Any]) -> OtelSpan:
    trace_id, span_id = ids[span.seq]
    is_own = span.span_id is None
    attributes = dict(span.attributes)
    parent: str | None = attributes.pop("parent_span_id", None) if not is_own else root
    if span.parent is not None and span.parent in ids:
        parent = ids[span.parent][1]
    if span.kind is SpanKind.MESSAGE:
        attributes["holdfast.kind"] = "message"
    if span.model is not None:
        attributes |= model_attributes(span.model)
    if span.tool is not None:
        attributes |= tool_attributes(span.tool)
    return OtelSpan(
        trace_id=trace_id,
        span_id=span_id,
        parent_id=parent,
        name=span.name,
        started_ns=round(span.started_at * NS),
        ended_ns=round((span.ended_at or span.started_at) * NS),
        attributes=attributes,
        events=tuple(
            Noted(name=event.name, at_ns=round(event.at * NS), attributes=event.attributes) for event in span.events
        ),
        error=span.tool.error if span.tool is not None else None,
        resource=resource,
    )


def _with(one: OtelSpan, scores: tuple[Noted, ...]) -> OtelSpan:
    return replace(one, events=one.events + scores)


def _score(signal: Any, attempt: Attempt) -> Noted:
    return Noted(
        name="gen_ai.evaluation.result",
        at_ns=round((attempt.ended_at or attempt.started_at) * NS),
        attributes={
            "gen_ai.evaluation.name": signal.name,
            "gen_ai.evaluation.score.value": float(signal.value),
            "holdfast.weight": float(signal.weight),
            "holdfast.source": signal.source,
        },
    )


def _identity(attempt: Attempt, span: Span) -> tuple[str, str]:
    if span.trace_id is not None and span.span_id is not None:
        return span.trace_id, span.span_id
    return _made(attempt.id, 16), _made(f"{attempt.id} {span.seq}", 8)


def _made(text: str, size: int) -> str:
    return blake2b(text.encode(), digest_size=size).hexdigest()


def batches(spans: Iterable[OtelSpan], size: int = BATCH) -> Iterator[list[OtelSpan]]:
    batch: list[OtelSpan] = []
    for span in spans:
        batch.append(span)
        if len(batch) == size:
            yield batch
            batch = []
    if batch:
        yield batch


async def send(
    url: str,
    spans: Iterable[OtelSpan],
    *,
    headers: Mapping[str, str] | None = None,
    timeout_s: float = 30.0,
    tries: int = 5,
    backoff: Backoff = Backoff(initial_s=0.5, cap_s=8.0),
) -> int:
    """To a collector, at `URL/v1/traces` unless the address says another path; how many it took."""
    at = checked("address", url, example=EXAMPLE)
    at = at if at.endswith("/v1/traces") else f"{at}/v1/traces"
    head = {"Content-Type": PROTOBUF, "Content-Encoding": "gzip", **(headers or {})}
    taken = 0
    async with aiohttp.ClientSession(headers=head, timeout=aiohttp.ClientTimeout(total=timeout_s)) as session:
        for batch in batches(spans):
            body = gzip.compress(written(batch, PROTOBUF))
            taken += len(batch) - await _post(session, at, body, tries, backoff)
    return taken


async def _post(session: aiohttp.ClientSession, url: str, body: bytes, tries: int, backoff: Backoff) -> int:
    """How many spans of it were refused; trouble that may pass is waited out."""
    why = ""
    for number in range(1, tries + 1):
        try:
            async with session.post(url, data=body, allow_redirects=False) as response:
                content = await response.read()
                if response.status < 300:
                    return _refused(content)
                given = (value for name, value in session.headers.items() if not name.startswith("Content-"))
                said = hidden(content.decode(errors="replace"), *given)
                why = f"HTTP {response.status}: {said[:200]}"
                if response.status not in PASSING:
                    break
        except (aiohttp.ClientError, TimeoutError, OSError) as error:
            why = f"{type(error).__name__}: {error}"
        if number < tries:
            await asyncio.sleep(backoff.delay_s(number, 0.5))
    raise Fault(f"collector {url}", why=why, remedy="is it running, and does it take OTLP over HTTP?")


def _refused(content: bytes) -> int:
    from google.protobuf.message import DecodeError  # type: ignore[import-untyped]
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse

    response = ExportTraceServiceResponse()
    try:
        response.ParseFromString(content)
    except DecodeError:
        return 0  # it has said that it took them
    return int(response.partial_success.rejected_spans)
