"""The proxy's routes: a call comes in with its identity, goes on to an upstream, and comes back byte for byte.

Who may ask is `endpoint.Door`'s business, whose call it is `identity`'s, what is said a dialect's, where it goes
`upstream`'s and what is kept `keep`'s; here they meet. Bodies are never written anew: what passes is what came.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import orjson
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import BaseRoute, Route
from starlette.types import Receive, Scope, Send

from holdfast.collect import endpoint
from holdfast.collect.proxy import identity
from holdfast.collect.proxy.attribution import Log
from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.dialect import FORWARDED, Asked, Dialect, read_object
from holdfast.collect.proxy.gate import Answer, Busy
from holdfast.collect.proxy.identity import BadHeader, Identity
from holdfast.collect.proxy.keep import Keeper, Price, Record, Scrub
from holdfast.collect.proxy.near import Near
from holdfast.collect.proxy.sse import Splitter
from holdfast.collect.proxy.upstream import LARGEST, BrokenOff, Unreachable, Upstream, Upstreams
from holdfast.collect.reply import Spell
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, HoldfastError, NotFound, StaleLease
from holdfast.contracts.policy import Complete
from holdfast.contracts.rollout import Attempt
from holdfast.contracts.trace import ModelCall
from holdfast.store.store import Store

CODE = "training_proxy_"
# error → status, the documented code, and what the attribution log calls it
REFUSALS: tuple[tuple[type[Exception], int, str, str], ...] = (
    (BadHeader, 400, f"{CODE}missing_or_invalid_attribution_header", "bad_header"),
    (Busy, 429, f"{CODE}upstream_busy", "upstream_busy"),
    (Unreachable, 502, f"{CODE}upstream_request_failed", "upstream_request_failed"),
    (BrokenOff, 502, f"{CODE}upstream_response_read_failed", "upstream_response_read_failed"),
    (NotFound, 404, f"{CODE}unknown_attempt", "unknown_attempt"),
    (StaleLease, 409, f"{CODE}attempt_not_running", "attempt_not_running"),
    (Conflict, 409, f"{CODE}conflict", "conflict"),
    (BadInput, 400, f"{CODE}invalid_request", "invalid_request"),
    (Fault, 503, f"{CODE}model_failed", "model_failed"),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Limits:
    largest: int = 64 * 2**20  # bytes of a request
    wait_s: float = endpoint.WAIT_S  # for a request's body
    amend_s: float = 0.5  # between two writings of a stream that runs


USUAL = Limits()


def app(
    store: Store,
    upstreams: Sequence[Upstream],
    *,
    token: str | None = None,
    choose_version: Callable[[str], Complete] | None = None,
    spell: Spell | None = None,
    scrub: Scrub | None = None,
    prices: Mapping[str, Price] | None = None,
    state_folder: Path | None = None,
    dialects: Sequence[Dialect] = (Chat(),),
    routes: Sequence[BaseRoute] = (),
    clock: Callable[[], float] = time.time,
    limits: Limits = USUAL,
) -> Starlette:
    """The proxy before these upstreams, or before policies: `choose_version` gives one for a call's user or rollout.

    `state.proxy` of it has `hold` and `release` of an upstream, and must be closed in the end. `routes` are others that
    are served at the same address, with their own ways to tell who may ask. Without a state folder no log is written.
    """
    if choose_version is not None:
        if upstreams:
            raise BadInput("upstream", why="local policies answer already", remedy="give the one or the other")
        upstreams = [Near(choose_version, spell=spell, clock=clock)]
    proxy = Proxy(
        Upstreams(upstreams),
        Keeper(store, clock=clock, scrub=scrub, prices=prices, amend_s=limits.amend_s),
        endpoint.Door(name="", token=token, largest=limits.largest, wait_s=limits.wait_s),
        None if state_folder is None else Log(state_folder),
        is_shared=token is not None,
    )
    paths = []
    for dialect in dialects:
        call = partial(proxy.call, dialect)
        paths += [
            Route(f"/rollout/{{rollout:path}}/attempt/{{number:int}}{dialect.path}", Asgi(call), methods=["POST"]),
            Route(dialect.path, Asgi(call), methods=["POST"]),
        ]
    application = Starlette(
        routes=[
            *paths,
            Route("/training/proxy/health", proxy.health),
            Route("/training/proxy/{order}", proxy.order, methods=["POST"]),
            *routes,
        ],
        exception_handlers={HTTPException: _refused, HoldfastError: _failed, Exception: _failed},
    )
    application.router.redirect_slashes = False
    application.state.proxy = proxy
    return application


class Asgi:
    """A function of ASGI, in a form that a route does not take for one of a request."""

    def __init__(self, call: Callable[[Scope, Receive, Send], Any]) -> None:
        self._call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self._call(scope, receive, send)


@dataclass(slots=True)
class Call:
    """One call while it passes."""

    dialect: Dialect
    identity: Identity
    asked: Asked
    headers: Mapping[str, str]  # to pass on
    attempt: Attempt
    path: str
    began: float  # of a clock that never jumps
    upstream: Upstream | None = None
    status: int | None = None
    sent: int = 0  # bytes of the answer
    error: BaseException | None = None


class Proxy:
    def __init__(
        self, upstreams: Upstreams, keeper: Keeper, door: endpoint.Door, log: Log | None, *, is_shared: bool
    ) -> None:
        self.upstreams, self._keeper, self._door, self._log = upstreams, keeper, door, log
        self._is_shared = is_shared  # whoever asks has shown our token in place of an upstream's key

    def hold(self, name: str) -> None:
        """New calls of this upstream wait; those under way go on, see `idle`."""
        self.upstreams.named(name).gate.hold()

    def release(self, name: str) -> None:
        self.upstreams.named(name).gate.release()

    async def idle(self, name: str) -> None:
        """Until none of its calls is under way."""
        await self.upstreams.named(name).gate.idle()

    async def close(self) -> None:
        await self.upstreams.close()
        if self._log is not None:
            await self._log.close()

    async def health(self, request: Request) -> Response:
        self._door.admit(request)
        first = self.upstreams.each[0]
        return _json(
            {
                "schema_version": 1,
                "status": "ready",
                "upstream_chat_completions_url": first.url(Chat.path),
                "attribution_log_path": None if self._log is None else str(self._log.path),
                "attribution_log_failures": 0 if self._log is None else self._log.failures,
                "upstreams": [
                    {"name": one.name, "calls": one.gate.inside, "held": one.gate.is_held}
                    for one in self.upstreams.each
                ],
            }
        )

    async def order(self, request: Request) -> Response:
        """`hold` or `release` of an upstream, for whoever swaps its weights; the answer says how many are under way."""
        order = request.path_params["order"]
        if order not in ("hold", "release"):
            raise HTTPException(404, "there is /training/proxy/health, …/hold and …/release")
        given = read_object(await self._door.content(request))
        one = self.upstreams.named(str(given.get("upstream", self.upstreams.each[0].name)))
        (one.gate.hold if order == "hold" else one.gate.release)()
        return _json({"name": one.name, "calls": one.gate.inside, "held": one.gate.is_held})

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
            # The status is with the client: an answer that is not whole must not look as if it were, so we hang up.
        finally:
            self._note(call)

    async def _read(self, dialect: Dialect, request: Request) -> Call:
        body = await self._door.content(request)
        headers = dict(request.headers.raw)
        whose = (
            identity.from_path(request.path_params["rollout"], request.path_params["number"], headers)
            if "rollout" in request.path_params
            else identity.from_headers(headers)
        )
        wanted = FORWARDED | dialect.forwarded
        if not self._is_shared:
            wanted |= {"authorization", "x-api-key"}
        return Call(
            dialect=dialect,
            identity=whose,
            asked=dialect.read_request(body),
            headers={name: value for name, value in request.headers.items() if name in wanted},
            attempt=self._keeper.attempt(whose.rollout, whose.number),
            path=request.url.path,
            began=time.monotonic(),
        )

    async def _pass_on(self, call: Call, send: Send) -> None:
        """The opening of the record is on its way to the disk while the upstream works."""
        notes: dict[str, Any] = {"path": call.dialect.path, "streamed": call.asked.is_streamed}
        if call.identity.sequence is not None:
            notes["sequence_id"] = call.identity.sequence
        if call.asked.choices != 1:
            notes["choices"] = call.asked.choices
        record = self._keeper.open(call.attempt, call.asked, trace_id=call.identity.trace, notes=notes)
        answer: Answer | None = None
        try:
            call.upstream, answer = await self.upstreams.ask(
                call.dialect, call.asked, call.headers, call.identity.rollout
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

    async def _whole(self, call: Call, record: Record, answer: Answer, send: Send) -> None:
        parts, size = [], 0
        async for chunk in answer.chunks():
            parts.append(chunk)
            size += len(chunk)
            if size > LARGEST:
                raise BrokenOff("the upstream", why=f"its answer is larger than {LARGEST} bytes")
        body = b"".join(parts)
        answer.close()  # others may go in while the record is written
        made: ModelCall | None = None
        partial = None
        if answer.status == 200:
            try:
                made = call.dialect.whole(call.asked, body)
            except (ValueError, BadRecord):
                partial = "the answer could not be read"
        else:
            partial = f"the upstream said {answer.status}"
        await record.close(made, partial=partial)
        await _start(call, answer, send, size)
        call.sent = size
        await send({"type": "http.response.body", "body": body})

    async def _stream(self, call: Call, record: Record, answer: Answer, send: Send) -> None:
        splitter, assembler = Splitter(), call.dialect.stream(call.asked)
        await _start(call, answer, send, None)
        try:
            async for chunk in answer.chunks():
                for event in splitter.feed(chunk):
                    assembler.feed(event)
                await record.not_refused()
                if not record.is_closed:
                    record.arrived(assembler.result, is_answer=assembler.has_begun)
                if assembler.is_ended:
                    await _finish(record, assembler.result())
                call.sent += len(chunk)
                await send({"type": "http.response.body", "body": chunk, "more_body": True})
            await _finish(record, assembler.result())
        except BaseException as error:
            answer.close()  # nobody listens: the upstream need not go on while the record is written
            await record.give_up(assembler.result(), _reason(error))
            raise
        await send({"type": "http.response.body", "body": b""})

    def _note(self, call: Call) -> None:
        if self._log is None:
            return
        who, error = call.identity, call.error
        self._log.add(
            {
                "timestamp_unix_ms": round(self._keeper.clock() * 1000),
                "method": "POST",
                "path": call.path,
                "upstream_url": None if call.upstream is None else call.upstream.url(call.dialect.path),
                "rollout_id": who.rollout,
                "attempt_id": call.attempt.id,
                "sequence_id": who.sequence,
                "trace_id": who.trace,
                "request_bytes": len(call.asked.body),
                "response_bytes": call.sent,
                "duration_ms": round((time.monotonic() - call.began) * 1000),
                "status_code": call.status,
                "error_code": None if error is None else _refusal(error)[2],
                "error_message": None if error is None else _reason(error),
            }
        )


async def _finish(record: Record, made: ModelCall) -> None:
    """A stream that never said why it ended was cut."""
    await record.close(made, partial=None if made.finish_reason is not None else "the upstream broke off")


async def _start(call: Call, answer: Answer, send: Send, size: int | None) -> None:
    headers = [(name.encode("latin-1"), value.encode("latin-1")) for name, value in answer.headers.items()]
    if size is not None:
        headers.append((b"content-length", str(size).encode()))
    call.status = answer.status
    await send({"type": "http.response.start", "status": answer.status, "headers": headers})


def _reason(error: BaseException) -> str:
    """Our own errors are written for people; of others no more than the kind is told."""
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
    return _json({"error": {"code": f"{CODE}refused", "message": error.detail}}, error.status_code, error.headers)


async def _failed(request: Request, error: Exception) -> Response:
    status, code, _ = _refusal(error)
    headers = {"retry-after": str(Busy.retry_after_s)} if isinstance(error, Busy) else None
    message = str(error) if isinstance(error, HoldfastError) else f"the proxy failed: {type(error).__name__}"
    return _json({"error": {"code": code, "message": message, "type": code.removeprefix(CODE)}}, status, headers)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")
