"""Spans of other tracers into the store, from `POST /v1/traces` (OTLP over HTTP: protobuf or JSON, gzip or plain).

The address, headers, the resource or the trace's state may name an attempt. A trace that names none becomes a rollout
of a run of kind `otlp`, which ends when its root arrives. A model call that was recorded already becomes telemetry,
since nothing may be learnt from twice. Spans are on disk before the answer.
"""

from __future__ import annotations

import asyncio
import secrets
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response

from holdfast.collect import endpoint, openapi
from holdfast.collect.agent import TurnTerms
from holdfast.collect.http_limits import WAIT_S
from holdfast.collect.lookups import StoreLookups
from holdfast.collect.openapi import ApiOperation, ApiRoute, Gives, obj
from holdfast.collect.otlp import wire
from holdfast.collect.otlp.conventions import CONTENT_ATTRIBUTES, DETAILS, ROLES, model_call, tool_call
from holdfast.collect.otlp.wire import MOST as MOST_ATTRIBUTES
from holdfast.collect.otlp.wire import NS, OtelSpan
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.attribution import NUMBER, Identity
from holdfast.collect.proxy.dialect import part
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, NotFound, StaleLease, StoreError
from holdfast.contracts.reward import LARGEST_REWARD, RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Attempt, AttemptState, Task
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import PARTIAL, Span, SpanEvent, SpanKind
from holdfast.store.store import Store

# Span numbers here: far above those of the worker, below those of the proxy.
FIRST, LAST = 500_001, 1_000_000
MOST = 2_000  # attempts that are remembered
SCORE = "gen_ai.evaluation.result"
CONTENT = frozenset({*ROLES, DETAILS, SCORE, "gen_ai.choice", "gen_ai.content.prompt", "gen_ai.content.completion"})


@dataclass(slots=True)
class KnownAttempt:
    """An attempt and the spans of it that have come."""

    attempt: Attempt
    is_ours: bool = False  # the trace is a rollout of its own
    has_root: bool = False  # the trace is complete
    is_scored: bool = False
    is_ended: bool = False
    heard_at: float = 0.0
    last: int = FIRST - 1
    numbers: dict[tuple[str, str], int] = field(default_factory=dict)
    signals: list[RewardTerm] = field(default_factory=list)


@dataclass(slots=True)
class ReceivedSpans:
    """How many spans of a request were kept and refused."""

    kept: int = 0
    refused: int = 0
    why: str = ""

    def refuse(self, number: int, why: str) -> None:
        self.refused += number
        self.why = self.why or why


class SpanReceiver:
    def __init__(
        self,
        store: Store,
        *,
        clock: Callable[[], float],
        scrub: Callable[[Span], Span] | None = None,
        turns: TurnTerms | None = None,  # what is measured of every turn at a trace's end
        lease_s: float = 600.0,
        quiet_s: float = 300.0,
        keeps_sources: bool = False,
    ) -> None:
        """A trace without a root ends `quiet_s` after its last span. With `keeps_sources` rewards are from whom they
        say, as in a file that whoever owns the store imports."""
        self._store, self._clock, self._scrub, self._turns = store, clock, scrub, turns
        self._lease_s, self._quiet_s, self._keeps_sources = lease_s, quiet_s, keeps_sources
        self._lookups = StoreLookups()
        self._run: str | None = None
        self._known: OrderedDict[str, KnownAttempt] = OrderedDict()  # by rollout and number, or by trace
        self._turn = asyncio.Lock()

    async def take(
        self, spans: Iterable[OtelSpan], whose: Identity | None = None, *, is_agent: bool = False
    ) -> ReceivedSpans:
        """Keeps the spans; NotFound or StaleLease if the request names an attempt that does not run.

        What an agent tells of its own attempt has no token ids: it could teach what no model ever said."""
        taken = ReceivedSpans()
        dropped = 0
        groups: dict[str, tuple[Identity | None, list[OtelSpan]]] = {}
        for span in spans:
            dropped += span.dropped
            named = whose or identity_of(span)
            key = span.trace_id if named is None else f"{named.rollout} {named.number}"
            groups.setdefault(key, (named, []))[1].append(span)
        async with self._turn:
            for key, (named, group) in groups.items():
                try:
                    known = await self._find(key, named)
                    await self._keep(known, group, taken, is_agent=is_agent)
                except (NotFound, StaleLease) as error:
                    if whose is not None:
                        raise
                    taken.refuse(len(group), str(error))
                except StoreError:
                    if named is not None:  # another process may number its spans, too: read them again next time
                        self._known.pop(key, None)
                    raise
            await self._end_quiet()
        if dropped:
            taken.refuse(0, f"{dropped} attributes were dropped: a span may have {MOST_ATTRIBUTES}")
        return taken

    async def close(self) -> None:
        """Ends the open traces and the run."""
        async with self._turn:
            for known in list(self._known.values()):
                await self._end(known)
            if self._run is not None:
                await self._store.runs.end(self._run, RunState.COMPLETED, who="otlp", now=self._clock())
                self._run = None

    async def _find(self, key: str, named: Identity | None) -> KnownAttempt:
        known = self._known.get(key)
        if known is None:
            if named is None:
                known = await self._begin(key)
            else:
                what = f"attempt {named.number} at {named.rollout}"
                known = await self._lookups.ask(what, partial(self._recalled, named))
            self._known[key] = known
        self._known.move_to_end(key)
        while len(self._known) > MOST:
            await self._end(self._known.popitem(last=False)[1])
        return known

    def _recalled(self, named: Identity) -> KnownAttempt:
        """An attempt of a worker's, with the spans that have come before."""
        known = KnownAttempt(self._store.views.attempt(named.rollout, named.number))
        for span in self._store.traces.spans(known.attempt.token):
            if FIRST <= span.seq <= LAST:
                known.last = max(known.last, span.seq)
                known.numbers[span.trace_id or "", span.span_id or ""] = span.seq
        return known

    async def _spans(self, attempt: Attempt) -> list[Span]:
        return await self._lookups.ask(f"attempt {attempt.id}", partial(self._store.traces.spans, attempt.token))

    async def _begin(self, trace_id: str) -> KnownAttempt:
        """Begins a rollout with one attempt for a trace."""
        now = self._clock()
        if self._run is None:
            salt = secrets.token_hex(3)
            run = await self._store.runs.begin(
                kind="otlp", model_ref="otlp", settings={}, salt=salt, who="otlp", now=now
            )
            self._run = run.id
        task = Task(name=trace_id, input={"trace_id": trace_id}, max_attempts=1, max_faults=0)
        await self._store.queue.enqueue(self._run, [task], now=now)
        (claim,) = await self._store.queue.claim(self._run, "otlp", now=now, lease_s=self._lease_s)
        return KnownAttempt(claim.attempt, is_ours=True)

    async def _keep(self, known: KnownAttempt, group: list[OtelSpan], taken: ReceivedSpans, *, is_agent: bool) -> None:
        numbers = known.numbers
        new = {(span.trace_id, span.span_id): span for span in group if (span.trace_id, span.span_id) not in numbers}
        taken.kept += len(group) - len(new)
        if new and known.is_ended:
            raise StaleLease(f"trace of {known.attempt.rollout}", why="its root has come: it is over")
        given: dict[tuple[str, str], int] = {}
        made: list[Span] = []
        for key, otel_span in sorted(new.items(), key=lambda item: (item[1].started_ns, item[1].parent_id is not None)):
            above = (otel_span.trace_id, otel_span.parent_id or "")
            seq = known.last + len(made) + 1
            if seq > LAST:
                taken.refuse(1, f"attempt {known.attempt.id} has {LAST - FIRST + 1} spans of other tracers already")
                continue
            try:
                span = as_span(otel_span, seq, given.get(above, numbers.get(above)))
                span = without_ids(span) if is_agent else span
                made.append(span if self._scrub is None else await asyncio.to_thread(self._scrub, span))
                given[key] = seq
            except (BadRecord, ValueError, TypeError, RecursionError) as error:
                taken.refuse(1, f"span {otel_span.name!r} ({otel_span.span_id}): {error}")
        if not known.is_ours and any(span.model is not None for span in made):
            kept = [span for span in await self._spans(known.attempt) if not FIRST <= span.seq <= LAST]
            made = [told_once(span, kept) for span in made]
        now = self._clock()
        if known.is_ours and new:
            await self._store.queue.beat(
                known.attempt.rollout.partition("/")[0], [known.attempt.token], now=now, lease_s=self._lease_s
            )
        if made:
            await self._store.traces.add(known.attempt, made, now=now)
            known.last += len(made)
            numbers |= given
            taken.kept += len(made)
        known.heard_at = now
        known.signals += [signal for span in new.values() for signal in _signals(span, self._keeps_sources)]
        known.has_root |= any(span.parent_id is None for span in new.values())
        if known.has_root:
            await self._end(known)  # also when it is sent again after a failed write

    async def _end(self, known: KnownAttempt) -> None:
        if not known.is_ours or known.is_ended:
            return
        now, attempt = self._clock(), known.attempt
        try:
            if self._turns is not None and not known.is_scored:
                spans = await self._spans(attempt)
                known.signals = list(self._turns(None, None, spans, known.signals))
            if known.signals and not known.is_scored:
                await self._store.traces.score(attempt, known.signals, now=now)
                known.is_scored = True
            reward = RewardBreakdown(signals=tuple(known.signals)).total
            await self._store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=reward)
        except StaleLease:
            pass  # its lease expired long ago
        known.is_ended = True

    async def _end_quiet(self) -> None:
        before = self._clock() - self._quiet_s
        for known in list(self._known.values()):
            if known.heard_at < before:
                await self._end(known)


def identity_of(span: OtelSpan) -> Identity | None:
    """The attempt that a span names, or None."""
    for given in (span.attributes, span.resource):
        rollout, attempt = given.get("holdfast.rollout"), given.get("holdfast.attempt")
        if attempt is not None:
            return _named(rollout, str(attempt))
    for member in span.state.split(","):
        name, _, value = member.strip().partition("=")
        if name == "holdfast":
            return _named(None, value)
    return None


def _named(rollout: Any, attempt: str) -> Identity | None:
    match = NUMBER.fullmatch(attempt)
    named = rollout if isinstance(rollout, str) else match["rollout"] if match else None
    if match is None or named is None or match["rollout"] not in (None, named):
        return None
    return Identity(rollout=named, number=int(match["number"]))


def as_span(one: OtelSpan, seq: int, parent: int | None) -> Span:
    """Our span; what belongs to a call is in the call and not in the attributes."""
    model = model_call(one)
    tool = None if model is not None else tool_call(one)
    attributes: dict[str, Any] = {
        name: value for name, value in one.attributes.items() if not CONTENT_ATTRIBUTES.match(name)
    }
    is_message = attributes.pop("holdfast.kind", None) == "message"
    for name in ("holdfast.rollout", "holdfast.attempt"):
        attributes.pop(name, None)
    if one.parent_id is not None:
        attributes["parent_span_id"] = one.parent_id
    if service := one.resource.get("service.name"):
        attributes["service.name"] = service
    if one.error is not None:
        attributes["error"] = one.error
    if model is not None and (one.error is not None or not model.response):
        attributes.setdefault(PARTIAL, one.error or "no answer was recorded")
    kind = (
        SpanKind.MODEL if model else SpanKind.TOOL if tool else SpanKind.MESSAGE if is_message else SpanKind.TELEMETRY
    )
    return Span(
        seq=seq,
        kind=kind,
        name=one.name or "span",
        started_at=one.started_ns / NS,
        ended_at=max(one.ended_ns, one.started_ns) / NS,
        parent=parent,
        attributes=attributes,
        events=tuple(
            SpanEvent(name=event.name, at=event.at_ns / NS, attributes=event.attributes)
            for event in one.events
            if event.name not in CONTENT
        ),
        model=model,
        tool=tool,
        trace_id=one.trace_id,
        span_id=one.span_id,
    )


def without_ids(span: Span) -> Span:
    """The span; its model call can be judged and imitated, and not be reinforced."""
    if span.model is None:
        return span
    nothing: dict[str, Any] = dict.fromkeys(("prompt_ids", "completion_ids", "logprobs"))
    return replace(span, model=replace(span.model, **nothing, forced=(), scrubbed=()))


def told_once(span: Span, kept: Iterable[Span]) -> Span:
    """The span; a model call that was recorded before (same time, same answer) becomes telemetry."""
    if span.model is None or span.ended_at is None:
        return span
    for other in kept:
        is_at_once = other.started_at < span.ended_at and (other.ended_at or span.ended_at) > span.started_at
        if other.model is not None and is_at_once and _spoken(other) == _spoken(span):
            attributes = {**span.attributes, "told_in_span": other.seq}
            return replace(span, kind=SpanKind.TELEMETRY, model=None, attributes=attributes)
    return span


def _spoken(span: Span) -> tuple[str, list[Any]]:
    response = span.model.response if span.model is not None else {}
    calls = [part(part(call, "function"), "name") for call in response.get("tool_calls") or ()]
    return response.get("content") or "", calls


def _signals(one: OtelSpan, keeps_sources: bool) -> Iterable[RewardTerm]:
    """The scores of evaluators in a span's events; they reward a trace that is its own rollout.

    Who sends them cannot speak for anybody else: their source is `otlp`, whatever they say."""
    for event in one.events:
        given: Mapping[str, Any] = event.attributes
        value, weight = given.get("gen_ai.evaluation.score.value"), given.get("holdfast.weight", 1.0)
        if event.name == SCORE and type(value) in (int, float) and type(weight) in (int, float):
            name = str(given.get("gen_ai.evaluation.name") or "score")
            source = str((keeps_sources and given.get("holdfast.source")) or f"otlp:{name}")
            try:
                signal = RewardTerm(name=name, value=float(value), weight=float(weight), source=source)  # type: ignore[arg-type]
            except (HoldfastError, OverflowError):
                continue
            if max(abs(signal.value), abs(signal.weight), abs(signal.value * signal.weight)) <= LARGEST_REWARD:
                yield signal


LARGEST = 32 * 2**20  # bytes of a request, unpacked
ASIDE = 2**20  # bytes of others that may wait beside the largest one
MEDIA_TYPES = (wire.PROTOBUF, wire.JSON)
ERROR = {"type": "object"}  # {"message": …}, or {"error": …} of the surrounding app
STATUS_TEXTS = {
    **openapi.STATUS_TEXTS,
    404: "the store has no such rollout or attempt",
    409: "the attempt does not run",
}
REFUSED: Gives = {
    status: (STATUS_TEXTS[status], {wire.JSON: ERROR, wire.PROTOBUF: openapi.TEXT})
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 429, 503)
}
OPERATION = ApiOperation(
    name="traces",
    says="Spans in OpenTelemetry's format, taken as those of an attempt",
    takes={
        wire.JSON: obj(resourceSpans=openapi.optional(openapi.listed({"type": "object"}))),
        wire.PROTOBUF: openapi.TEXT,
    },
    gives={200: ("how many were not taken, and why", {wire.JSON: ERROR, wire.PROTOBUF: openapi.TEXT}), **REFUSED},
)
STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFound, 404),
    (StaleLease, 409),
    (BadInput, 400),
    (StoreError, 503),  # senders try again
)


def routes(
    taker: SpanReceiver,
    *,
    token: str | None = None,
    key: bytes | None = None,
    largest: int = LARGEST,
    wait_s: float = WAIT_S,
) -> list[ApiRoute]:
    """The routes, for the proxy's app; callers are admitted as there."""
    reader = endpoint.RequestReader(token=token, key=key, largest=largest, wait_s=wait_s)
    one_at_a_time, waiting = asyncio.Lock(), endpoint.WaitingBodies(largest + ASIDE)

    async def traces(request: Request) -> Response:
        media_type = endpoint.media_type_of(request)
        try:
            try:
                whose = attribution.of(request)
            except HoldfastError:
                reader.admit(request)
                raise
            is_agent = reader.admit_to(request, whose)
            with waiting.another() as sent:
                # Before its turn: an agent that sends slowly must not keep the others waiting.
                await reader.content(request, MEDIA_TYPES, takes_gzip=True, is_admitted=True, into=sent)
                async with one_at_a_time:  # what a request says takes more memory than the request
                    # A large one takes a while, and others wait for this loop.
                    body = await asyncio.to_thread(reader.unpack, request, sent.take())
                    spans, unread = await asyncio.to_thread(wire.read, body, media_type)
                    del body
                    taken = await taker.take(spans, whose, is_agent=is_agent)
        except ModuleNotFoundError as error:
            raise HTTPException(415, f"{error.name} is not installed here; send {wire.JSON}") from None
        except HoldfastError as error:
            status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
            return _failed(status, str(error), media_type)
        if unread:
            taken.refuse(unread, "spans without ids or times cannot be read")
        return Response(wire.answer(media_type, taken.refused, taken.why), media_type=media_type)

    return [
        ApiRoute("/v1/traces", traces, OPERATION, method="POST"),
        ApiRoute("/rollout/{rollout:path}/attempt/{number:attempt}/v1/traces", traces, OPERATION, method="POST"),
    ]


def _failed(status: int, message: str, media_type: str) -> Response:
    """A google.rpc.Status, as OTLP requires; its second field is the message."""
    headers = {"Retry-After": "1"} if status == 503 else None
    if media_type == wire.JSON:
        return Response(orjson.dumps({"message": message}), status, headers, media_type=media_type)
    text, size = message.encode(), b""
    length = len(text)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return Response(b"\x12" + size + bytes([length]) + text, status, headers, media_type=media_type)
