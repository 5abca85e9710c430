"""The proxy's routes: a call comes in with its identity, goes on to an upstream, and comes back byte for byte."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute
from starlette.types import Receive, Scope, Send

from holdfast.collect import endpoint, openapi
from holdfast.collect.http_limits import WAIT_S
from holdfast.collect.openapi import JSON, TEXT, ApiOperation, ApiRoute, Gives, Schema, obj
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.attribution import AttributionLog, BadHeader, Identity
from holdfast.collect.proxy.budgets import PATH, Grant, ModelInfo, ProxyBudgets, UpstreamModels
from holdfast.collect.proxy.dialect import FORWARDED, Assembler, Chat, Dialect, ModelRequest, Splitter, read_object
from holdfast.collect.proxy.span_recorder import CallRecord, Scrub, SpanRecorder, TokenPrice
from holdfast.collect.proxy.upstream import BrokenOff, Busy, Unreachable, Upstream, UpstreamAnswer, Upstreams, read
from holdfast.contracts.errors import (
    BadInput,
    BadRecord,
    Conflict,
    Fault,
    HoldfastError,
    NotFound,
    StaleLease,
    StoreBusy,
)
from holdfast.contracts.rollout import Attempt
from holdfast.contracts.trace import TAG, ModelCall
from holdfast.store.store import Store

ERROR = obj(("error",), error=obj(("code", "message"), code=TEXT, message=TEXT, type=TEXT))
ANYTHING: Schema = {"type": "object"}
PROXY_STATUS_TEXTS = {
    **openapi.STATUS_TEXTS,
    400: "the request, or a header, is wrong",
    404: "the store has no such rollout or attempt",
    409: "the attempt does not run, or its lease has run out",
    429: "the upstream is held, or full, or too many tokens were wrong; come back after Retry-After",
    502: "the upstream gave no answer, or broke off",
    503: "a model of this process failed, or the store did not answer in time; ask again",
}
OWN: Gives = {"default": ("what the upstream says, as it says it", {JSON: {}})}
REQUESTS: Mapping[str, Schema] = {  # by the path of a dialect
    "/v1/chat/completions": obj(
        ("model", "messages"),
        model=openapi.WORD,
        messages=openapi.listed(ANYTHING),
        n=openapi.optional({"const": 1}),
        stream={},
    ),
    "/v1/responses": obj(
        ("model",), model=openapi.WORD, input={"type": ["string", "array", "null"], "items": ANYTHING}, stream={}
    ),
    "/v1/messages": obj(("model", "messages"), model=openapi.WORD, messages=openapi.listed(ANYTHING), stream={}),
}


def _header(name: str, schema: Schema, *, required: bool = False, says: str = "") -> Mapping[str, Any]:
    return {"name": name, "in": "header", "required": required, "schema": schema, "description": says}


WHOSE = (
    _header("x-rollout-id", openapi.WORD, required=True, says="run/name"),
    _header("x-attempt-id", openapi.WORD, required=True, says="the attempt's id, or its number"),
    _header("x-sequence-id", {"type": "integer", "minimum": 0, "maximum": 2**64 - 1}),
    _header("x-trace-id", TEXT),
    _header("x-tag", TEXT, says="the agent's own word for such calls: `train_on` can choose them"),
)


def refusals(*statuses: int) -> Gives:
    return {status: (PROXY_STATUS_TEXTS[status], {JSON: ERROR}) for status in statuses}


def called(path: str) -> ApiOperation:
    """The operation of calling a model in the dialect at this path."""
    return ApiOperation(
        name=path.removeprefix("/v1/").replace("/", "_"),
        says="A call of a model, passed on as it is and kept as a span of its attempt",
        takes={JSON: REQUESTS.get(path, ANYTHING)},
        gives={
            200: ("the upstream's answer, byte for byte", {JSON: ANYTHING, openapi.EVENTS: TEXT}),
            **refusals(*openapi.BODY, 404, 409, 502, 503),
            **OWN,
        },
        headers=WHOSE,
    )


LIST = ApiOperation(
    name="models",
    says="The models of the upstreams; of a single one as it says it",
    gives={200: ("all of them", {JSON: ANYTHING}), **refusals(401, 403, 404, 429, 502), **OWN},
)
UPSTREAM = obj(("name", "calls", "held"), name=TEXT, calls=openapi.COUNT, held=openapi.FLAG)
HEALTH = ApiOperation(
    name="health",
    says="Whether it is ready, and where calls go",
    gives={
        200: (
            "it is",
            {
                JSON: obj(
                    ("status", "upstreams"), status={"const": "ready"}, upstreams=openapi.listed(UPSTREAM, minItems=1)
                )
            },
        ),
        **refusals(401, 403, 429),
    },
)


def ordered(order: str) -> ApiOperation:
    """The operation `hold` or `release`."""
    return ApiOperation(
        name=order,
        says=f"{order.capitalize()} an upstream, while its weights are exchanged",
        takes={JSON: obj(upstream=TEXT)},
        gives={200: ("how it stands now", {JSON: UPSTREAM}), **refusals(*openapi.BODY)},
    )


CODE = "training_proxy_"
SAYS = "Calls of models, passed on byte for byte, and kept as spans of the attempts that they belong to."
ID = re.compile(r"[0-9a-f]{16}|[0-9a-f]{32}|[0-9a-f]{8}(-[0-9a-f]{4}){3}-[0-9a-f]{12}")  # a trace's, a UUID
BELOW = "/rollout/{rollout:path}/attempt/{number:attempt}"
CAPABILITY = re.compile(r"(/attempt/[0-9]+)\.[0-9a-f]{32}")
# error → status, the documented code, and what the attribution log calls it
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (BadHeader, 400, f"{CODE}missing_or_invalid_attribution_header", "bad_header"),
    (Busy, 429, f"{CODE}upstream_busy", "upstream_busy"),
    (Unreachable, 502, f"{CODE}upstream_request_failed", "upstream_request_failed"),
    (BrokenOff, 502, f"{CODE}upstream_response_read_failed", "upstream_response_read_failed"),
    (NotFound, 404, f"{CODE}unknown_attempt", "unknown_attempt"),
    (StaleLease, 409, f"{CODE}attempt_not_running", "attempt_not_running"),
    (Conflict, 409, f"{CODE}conflict", "conflict"),
    (BadRecord, 500, f"{CODE}failed", "failed"),  # made by our side, whatever was asked
    (BadInput, 400, f"{CODE}invalid_request", "invalid_request"),
    (StoreBusy, 503, f"{CODE}store_busy", "store_busy"),
    (Fault, 503, f"{CODE}model_failed", "model_failed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyLimits:
    largest: int = 64 * 2**20  # bytes of a request
    wait_s: float = WAIT_S  # for a request's body
    amend_s: float = 0.5  # between two writes of a running stream
    unread_s: float = 60.0  # that a client may leave a stream unread before it counts as gone


USUAL = ProxyLimits()


def app(
    store: Store,
    upstreams: Sequence[Upstream],
    *,
    token: str | None = None,
    key: bytes | None = None,
    scrub: Scrub | None = None,
    scrub_spelt: Scrub | None = None,
    prices: Mapping[str, TokenPrice] | None = None,
    state_folder: Path | None = None,
    dialects: Sequence[Dialect] = (Chat(),),
    routes: Sequence[BaseRoute] = (),
    clock: Callable[[], float] = time.time,
    limits: ProxyLimits = USUAL,
) -> Starlette:
    """The proxy before these upstreams.

    The caller closes `state.proxy`. `token` is an operator's; agents have the capability that `key` gives their
    attempts. `routes` are served at the same address and admit their own callers. Without a
    state folder no attribution log is written. `scrub_spelt` replaces `scrub` on calls of our own models, whose tokens
    `budgets.spell` can spell.
    """
    proxy = Proxy(
        Upstreams(upstreams),
        SpanRecorder(store, clock=clock, scrub=scrub, scrub_spelt=scrub_spelt, prices=prices, amend_s=limits.amend_s),
        ProxyBudgets(store, clock=clock),
        endpoint.RequestReader(token=token, key=key, largest=limits.largest, wait_s=limits.wait_s),
        None if state_folder is None else AttributionLog(state_folder),
        dialects,
        unread_s=limits.unread_s,
    )
    places = [*_places(proxy, dialects), *routes]
    application = Starlette(
        routes=openapi.described("holdfast proxy", SAYS, places, proxy.admit, has_token=token is not None),
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: endpoint.left,
            HoldfastError: _failed,
            Exception: _failed,
        },
    )
    application.router.redirect_slashes = False
    application.state.proxy = proxy
    return application


def _places(proxy: Proxy, dialects: Sequence[Dialect]) -> list[ApiRoute]:
    places = []
    for dialect in dialects:
        call, operation = Asgi(partial(proxy.call, dialect)), called(dialect.path)
        places += [ApiRoute(f"{start}{dialect.path}", call, operation, method="POST") for start in (BELOW, "")]
    places += [ApiRoute(f"{start}{PATH}", proxy.models, LIST) for start in (BELOW, "")]
    places.append(ApiRoute("/training/proxy/health", proxy.health, HEALTH))
    for name, order in (("hold", proxy.hold), ("release", proxy.release)):
        path, do = f"/training/proxy/{name}", partial(proxy.order, order)
        places.append(ApiRoute(path, do, ordered(name), method="POST"))
    return places


class Asgi:
    """An ASGI function as an object: a route would call a plain function with a request."""

    def __init__(self, call: Callable[[Scope, Receive, Send], Any]) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._call(scope, receive, send)


@dataclass(slots=True)
class ProxyCall:
    """One call while it passes."""

    dialect: Dialect
    identity: Identity
    model_request: ModelRequest
    headers: Mapping[str, str]  # to pass on
    attempt: Attempt
    path: str
    size: int  # bytes of the request as it came
    began: float  # on the monotonic clock
    grant: Grant | None = None  # of thinking tokens, where the run has budgets
    upstream: Upstream | None = None
    status: int | None = None
    sent: int = 0  # bytes of the answer
    error: BaseException | None = None


class Proxy:
    def __init__(
        self,
        upstreams: Upstreams,
        recorder: SpanRecorder,
        budgets: ProxyBudgets,
        reader: endpoint.RequestReader,
        log: AttributionLog | None,
        dialects: Sequence[Dialect],
        *,
        unread_s: float,
    ) -> None:
        self._unread_s = unread_s
        self.upstreams, self._recorder, self._reader, self._log = upstreams, recorder, reader, log
        self._models, self._budgets, self._dialects = UpstreamModels(upstreams.each), budgets, dialects
        # With a token, the caller's credentials are ours and not an upstream's.
        own = FORWARDED if reader.has_token else FORWARDED | {"authorization", "x-api-key"}
        self._wanted = {dialect.path: {name.encode() for name in own | dialect.forwarded} for dialect in dialects}

    def hold(self, name: str) -> None:
        """New calls of this upstream wait; those under way go on."""
        self.upstreams.named(name).gate.hold()

    def release(self, name: str) -> None:
        upstream = self.upstreams.named(name)
        self._models.forget(upstream)
        upstream.gate.release()

    def admit(self, request: Request) -> None:
        self._reader.admit(request)

    async def close(self) -> None:
        await self._models.close()
        await self.upstreams.close()
        if self._log is not None:
            await self._log.close()

    async def health(self, request: Request) -> Response:
        self._reader.admit(request)
        first = self.upstreams.each[0]
        return endpoint.json_response(
            {
                "schema_version": 1,
                "status": "ready",
                "upstream_chat_completions_url": first.url(Chat.path),
                "attribution_log_path": None if self._log is None else str(self._log.path),
                "attribution_log_failures": 0 if self._log is None else self._log.failures,
                "upstreams": [
                    {"name": upstream.name, "calls": upstream.gate.inside, "held": upstream.gate.is_held}
                    for upstream in self.upstreams.each
                ],
            }
        )

    async def models(self, request: Request) -> Response:
        """The models of the upstreams. The caller's headers tell which dialect's key is sent."""
        self._reader.admit_to(request, attribution.of(request))
        given = request.headers.keys()
        dialect = next(
            (dialect for dialect in self._dialects if not dialect.forwarded.isdisjoint(given)), self._dialects[0]
        )
        listing = await self._models.listed(dialect, self._passed(dialect, request))
        return Response(listing.body, listing.status, listing.headers)

    async def order(self, order: Callable[[str], None], request: Request) -> Response:
        """Holds or releases an upstream while its weights are swapped; says how many calls are under way.

        Without a token every agent of this machine could stop all others."""
        if not self._reader.has_token:
            raise HTTPException(403, "is for operators; start the proxy with a token, and send it")
        given = read_object(await self._reader.content(request))
        upstream = self.upstreams.named(str(given.get("upstream", self.upstreams.each[0].name)))
        order(upstream.name)
        return endpoint.json_response(
            {"name": upstream.name, "calls": upstream.gate.inside, "held": upstream.gate.is_held}
        )

    def _passed(self, dialect: Dialect, request: Request) -> dict[str, str]:
        """The headers that go on to the upstream."""
        wanted = self._wanted[dialect.path]
        return {k.decode("latin-1"): v.decode("latin-1") for k, v in request.headers.raw if k in wanted}

    async def call(self, dialect: Dialect, scope: Scope, receive: Receive, send: Send) -> None:
        call = await self._read(dialect, Request(scope, receive))
        try:
            await endpoint.unless_left(receive, self._pass_on(call, send))
        except ClientDisconnect as left:
            call.error = left
        except BaseException as error:
            call.error = error
            if call.status is None or not isinstance(error, HoldfastError):
                raise
            # The status is sent already: we close the connection, so that the answer does not look whole.
        finally:
            await self._note(call)

    def _admitted(self, request: Request) -> Identity:
        try:
            whose = attribution.of(request) or attribution.from_headers(dict(request.headers.raw))
        except (BadHeader, NotFound):
            self._reader.admit(request)
            raise
        self._reader.admit_to(request, whose)
        return whose

    async def _read(self, dialect: Dialect, request: Request) -> ProxyCall:
        whose = self._admitted(request)
        body = await self._reader.content(request, is_admitted=True)
        trace, tag = await self._scrubbed(whose.trace), await self._scrubbed(whose.tag)
        whose = replace(whose, trace=trace, tag=tag)
        return ProxyCall(
            dialect=dialect,
            identity=whose,
            model_request=dialect.read_request(body),
            headers=self._passed(dialect, request),
            attempt=await self._recorder.running(whose.rollout, whose.number),
            path=CAPABILITY.sub(r"\1", request.scope["path"]),
            size=len(body),
            began=time.monotonic(),
        )

    async def _scrubbed(self, text: str | None) -> str | None:
        """A text beside the call, scrubbed; an id of a usual form is no secret."""
        if text is None or ID.fullmatch(text):
            return text
        call = ModelCall(model="", messages=({"role": "user", "content": text},), response={})
        return str((await self._recorder.scrubbed(call)).messages[0]["content"])

    async def _pass_on(self, call: ProxyCall, send: Send) -> None:
        wanted = await self._budgets.thinking_mode(call.attempt)
        if wanted is None:
            await self._recorded(call, send)
            return
        known = await asyncio.gather(*(self._about(call, upstream) for upstream in self.upstreams.each))
        call.grant, call.model_request = await self._budgets.grant(
            call.attempt, call.model_request, call.dialect, wanted, known
        )
        try:
            await self._recorded(call, send)
        finally:
            call.grant.settle(None)  # frees what was not used

    def _about(self, call: ProxyCall, upstream: Upstream) -> asyncio.Future[ModelInfo]:
        return self._models.about(upstream, call.model_request.model, call.dialect, call.headers)

    async def _recorded(self, call: ProxyCall, send: Send) -> None:
        """Opens the record, asks the upstream and passes its answer on. The record is written meanwhile."""
        notes: dict[str, Any] = {"path": call.dialect.path, "streamed": call.model_request.is_streamed}
        if call.identity.sequence is not None:
            notes["sequence_id"] = call.identity.sequence
        if call.identity.tag is not None:
            notes[TAG] = call.identity.tag
        record = await self._recorder.open(call.attempt, call.model_request, trace_id=call.identity.trace, notes=notes)
        answer: UpstreamAnswer | None = None
        try:
            call.upstream, answer = await self.upstreams.ask(
                call.dialect, call.model_request, call.headers, call.identity.rollout
            )
            record.notes |= {"upstream": call.upstream.name, "status": answer.status}
            await record.not_refused()
            if answer.status == 200 and answer.headers.get("content-type", "").startswith("text/event-stream"):
                await self._stream(call, record, answer, send)
            else:
                await self._whole(call, record, answer, send)
        except BaseException as error:
            await record.give_up(None, _reason(error))
            raise
        finally:
            if answer is not None:
                answer.close()

    async def _whole(self, call: ProxyCall, record: CallRecord, answer: UpstreamAnswer, send: Send) -> None:
        body = await read(answer)
        answer.close()  # frees the place at the upstream while the record is written
        made: ModelCall | None = None
        partial = None
        if answer.status == 200:
            try:
                made = call.dialect.whole(call.model_request, body)
            except (ValueError, BadRecord):
                partial = "the answer could not be read"
        else:
            partial = f"the upstream said {answer.status}"
        await self._close(call, record, made, partial)
        await _start(call, answer, send, len(body))
        call.sent = len(body)
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, call: ProxyCall, record: CallRecord, answer: UpstreamAnswer, send: Send) -> None:
        splitter, assembler = Splitter(), call.dialect.stream(call.model_request)
        await _start(call, answer, send, None)
        try:
            async for chunk in answer.chunks():
                for event in splitter.feed(chunk):
                    assembler.feed(event)
                await record.not_refused()
                if not record.is_closed:
                    record.arrived(assembler.result, is_answer=assembler.has_begun)
                if assembler.is_ended:
                    await self._finish(call, record, assembler)
                call.sent += len(chunk)
                await self._hand(send, chunk)
            await self._finish(call, record, assembler)
        except BaseException as error:
            answer.close()  # the upstream need not go on while the record is written
            so_far = assembler.result()
            _settle(call, record, so_far if assembler.has_begun else None)
            await record.give_up(so_far, _reason(error))
            raise
        await send({"type": "http.response.body", "body": b""})

    async def _hand(self, send: Send, chunk: bytes) -> None:
        """Sends a chunk. A client that does not read for long counts as gone: others wait for its place."""
        try:
            async with asyncio.timeout(self._unread_s):
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
        except TimeoutError:
            raise ClientDisconnect from None

    async def _finish(self, call: ProxyCall, record: CallRecord, assembler: Assembler) -> None:
        """Closes the record; a stream without a finish reason, or with an unreadable event, is partial."""
        if record.is_closed:
            return
        made = assembler.result()
        partial = None if made.finish_reason is not None else "the upstream broke off"
        if assembler.has_holes:
            partial = "an event of the stream could not be read"
        await self._close(call, record, made, partial)

    async def _close(self, call: ProxyCall, record: CallRecord, made: ModelCall | None, partial: str | None) -> None:
        if record.is_closed:
            return
        has_ids = made is not None and (made.prompt_ids is not None or made.completion_ids is not None)
        if has_ids and self._recorder.can_spell and call.upstream is not None:
            record.is_spelt = (await self._about(call, call.upstream)).is_spelt
        _settle(call, record, made)
        await record.close(made, partial=partial)
        if call.grant is not None:
            await call.grant.written()

    async def _note(self, call: ProxyCall) -> None:
        if self._log is None:
            return
        who, error = call.identity, call.error
        self._log.add(
            {
                "timestamp_unix_ms": round(self._recorder.clock() * 1000),
                "method": "POST",
                "path": call.path,
                "upstream_url": None if call.upstream is None else call.upstream.url(call.dialect.path),
                "rollout_id": who.rollout,
                "attempt_id": call.attempt.id,
                "sequence_id": who.sequence,
                "trace_id": who.trace,
                "request_bytes": call.size,
                "response_bytes": call.sent,
                "duration_ms": round((time.monotonic() - call.began) * 1000),
                "status_code": call.status,
                "error_code": None if error is None else _refusal(error)[2],
                "error_message": None if error is None else await self._scrubbed(_reason(error)),
            }
        )


def _settle(call: ProxyCall, record: CallRecord, made: ModelCall | None) -> None:
    if call.grant is not None and (payload := call.grant.settle(made)):
        record.notes["thinking"] = payload


async def _start(call: ProxyCall, answer: UpstreamAnswer, send: Send, size: int | None) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
    if size is not None:
        headers.append((b"content-length", str(size).encode()))
    call.status = answer.status
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})


def _reason(error: BaseException) -> str:
    """The text of our own errors; of others only the type."""
    if isinstance(error, HoldfastError):
        return str(error)
    return "the client left" if isinstance(error, ClientDisconnect | asyncio.CancelledError) else type(error).__name__


def _refusal(error: BaseException) -> tuple[int, str, str]:
    for kind, status, code, short in REFUSALS:
        if isinstance(error, kind):
            return status, code, short
    if isinstance(error, ClientDisconnect):
        return endpoint.NOBODY, f"{CODE}client_left", "client_left"
    return 500, f"{CODE}failed", "failed"


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return endpoint.json_response(
        {"error": {"code": f"{CODE}refused", "message": error.detail}}, error.status_code, error.headers
    )


async def _failed(request: Request, error: Exception) -> Response:
    status, code, _ = _refusal(error)
    headers = {"retry-after": str(Busy.retry_after_s)} if isinstance(error, Busy | StoreBusy) else None
    message = str(error) if isinstance(error, HoldfastError) else f"the proxy failed: {type(error).__name__}"
    return endpoint.json_response(
        {"error": {"code": code, "message": message, "type": code.removeprefix(CODE)}}, status, headers
    )
