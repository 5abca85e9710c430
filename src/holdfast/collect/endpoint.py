"""Any Complete as an OpenAI-compatible server, and the HTTP kit of all our servers.

A client that leaves cancels its call. Without a token only this machine is served, and no web page open on it: a
request must be JSON and name this machine in its Host header.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
import time
import zlib
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass
from functools import lru_cache, partial
from io import BytesIO
from math import ceil
from typing import Any, NoReturn, Protocol, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as HttpRequest
from starlette.responses import Response, StreamingResponse
from starlette.types import ASGIApp, Receive, Scope, Send

from holdfast.collect import openapi
from holdfast.collect.chat_format import (
    BYTES,
    KNOWN,
    Chunks,
    Envelope,
    Piece,
    Request,
    TokenBytes,
    completion,
    pieces,
    read_passing,
    read_request,
    spell_byte,
)
from holdfast.collect.http_limits import WAIT_S, LimitedProtocol, address_of, limited
from holdfast.collect.openapi import ApiRoute, described
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, HoldfastError, reason_of
from holdfast.contracts.executor import capability
from holdfast.contracts.limits import GUESSES, GUESSES_PER_S, RateLimiter, check_token
from holdfast.contracts.reward import LARGEST_REWARD
from holdfast.contracts.trace import ModelCall

OWNER = "holdfast"  # of the models here, as the list of models says
SAYS = "Chat completions in OpenAI's format, with what vLLM adds for training under vLLM's names."
LARGEST = 8 * 2**20  # bytes of a request
MOST_UNPACKED, LEAST_UNPACKED = 100, 2**20  # times its size that a gzip may hold, beyond the first bytes
GRACE_S = 0.5  # that calls under way have when the server ends
KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
CODES = {401: "invalid_api_key", 404: "not_found", 410: "attempt_over", 413: "too_large"}
NOBODY = 499  # the status when the client is gone
FIELD = re.compile(r"(?:sampling\.)?(([a-z_]+)(?:\[\d+\]|\.[a-z_]+)*)(?: = .*)?", re.DOTALL)
HOST = re.compile(r"(?:\[([0-9a-f:.]+)\]|([0-9a-z.-]+))(?::\d{1,5})?", re.IGNORECASE)

REQUEST: ContextVar[str] = ContextVar("request")  # the id of the answer to the current request

T = TypeVar("T")
Feedback = Callable[[str, Mapping[str, float]], Awaitable[bool]]  # takes the answer's id; False: no such answer
Numbered = tuple[int, Piece | ModelCall]  # the choice's index and its next piece


def app(
    complete: Complete,
    *,
    name: str,
    choose_version: Callable[[str], Complete] | None = None,
    token: str | None = None,
    feedback: Feedback | None = None,
    token_bytes: TokenBytes | None = None,
    is_passed_on: bool = False,
    clock: Callable[[], float] = time.time,
    largest: int = LARGEST,
    wait_s: float = WAIT_S,
) -> Starlette:
    """The model `name`, answered by `complete`.

    `choose_version` picks the model once a request, by its `user` or a key of its own, so a call ends with the version
    it began with. `feedback` gets what callers send to /v1/feedback. `token_bytes` gives the bytes of a token for the
    log-probs. `is_passed_on`: another server answers, which may know fields that ours do not.
    """
    read = read_passing if is_passed_on else read_request
    reader = RequestReader(name=name, token=token, largest=largest, wait_s=wait_s, read=read)
    model = _ServedModel(complete, name, reader, choose_version, feedback, token_bytes, clock)
    handlers: Any = {HTTPException: _refused, ClientDisconnect: left, HoldfastError: _failed, Exception: _failed}
    routes = described(f"holdfast: {name}", SAYS, model.routes(), reader.admit, has_token=token is not None)
    application = Starlette(routes=routes, exception_handlers=handlers)
    application.router.redirect_slashes = False  # a redirect would go wherever Host says
    return application


@dataclass(frozen=True, slots=True)
class _ServedModel:
    complete: Complete
    name: str
    reader: RequestReader
    choose_version: Callable[[str], Complete] | None
    feedback: Feedback | None
    token_bytes: TokenBytes | None
    clock: Callable[[], float]

    def routes(self) -> list[ApiRoute]:
        routes = [
            ApiRoute("/v1/chat/completions", self._chat, openapi.CHAT, method="POST"),
            ApiRoute("/v1/models", self._models, openapi.LIST),
            ApiRoute("/health", self._health, openapi.UP),
        ]
        if self.feedback is not None:
            routes.append(
                ApiRoute("/v1/feedback", partial(self._take_feedback, self.feedback), openapi.TELL, method="POST")
            )
        return routes

    async def _chat(self, http_request: HttpRequest) -> Response:
        request = await self.reader.read(http_request)
        key = secrets.token_hex(12)
        envelope = Envelope(id=f"chatcmpl-{key}", created=int(self.clock()), token_bytes=self.token_bytes)
        REQUEST.set(envelope.id)
        chosen = self.complete if self.choose_version is None else self.choose_version(request.user or key)
        return await unless_left(http_request.receive, answered(chosen, request, envelope))

    async def _models(self, http_request: HttpRequest) -> Response:
        self.reader.admit(http_request)
        listed = {"id": self.name, "object": "model", "created": int(self.clock()), "owned_by": OWNER}
        if self.token_bytes is spell_byte:
            listed["tokenizer"] = BYTES
        return json_response({"object": "list", "data": [listed]})

    async def _health(self, http_request: HttpRequest) -> Response:
        return json_response({"status": "ok", "model": self.name})

    async def _take_feedback(self, feedback: Feedback, http_request: HttpRequest) -> Response:
        identity, outcome = _feedback(await self.reader.json(http_request))
        if not await feedback(identity, outcome):
            raise HTTPException(404, f"answer {identity[:100]!r}: is not known, or nothing is compared at the moment")
        return json_response({"id": identity, "object": "feedback", "taken": True})


class Attributed(Protocol):
    """What a request says of the attempt that it is for."""

    @property
    def rollout(self) -> str: ...

    @property
    def number(self) -> int: ...

    @property
    def capability(self) -> str | None: ...


class RequestReader:
    """Admits requests and reads their bodies within limits."""

    def __init__(
        self,
        *,
        name: str = "",
        token: str | None,
        key: bytes | None = None,
        largest: int = LARGEST,
        wait_s: float = WAIT_S,
        read: Callable[[Any], Request] = read_request,
    ) -> None:
        """`key` gives attempts the capabilities that `admit_to` asks for."""
        self._name, self._largest, self._wait_s, self._read = name, largest, wait_s, read
        self._token = None if token is None else f"Bearer {token}".encode()
        self._key, self._guesses = key, RateLimiter(GUESSES_PER_S, GUESSES)
        self.has_token = token is not None

    def admit(self, http_request: HttpRequest) -> None:
        if self._token is not None:
            given = http_request.headers.get("authorization") or f"Bearer {http_request.headers.get('x-api-key', '')}"
            if not hmac.compare_digest(given.encode(), self._token):
                self.refuse_guess(http_request, "the token is missing or wrong; send 'Authorization: Bearer …'")
        elif not all(map(is_this_machine, http_request.headers.getlist("host") or [""])):  # a web page of another site
            raise HTTPException(403, "Host is not this machine's name; without a token only 127.0.0.1 is served")

    def admit_to(self, http_request: HttpRequest, whose: Attributed | None) -> bool:
        """Admits one who speaks for an attempt; whether by its capability alone, and so for no other."""
        is_unknowable = self._key is None and not self.has_token  # everybody on this machine is let in anyway
        if whose is None or whose.capability is None or is_unknowable:
            self.admit(http_request)
            return False
        known = "" if self._key is None else capability(self._key, whose.rollout, whose.number)
        if not hmac.compare_digest(known, whose.capability):
            why = "the attempt's address is wrong; use context.base_url as it is, with scrub.key as the store has it"
            self.refuse_guess(http_request, why)
        return True

    def refuse_guess(self, http_request: HttpRequest, why: str) -> NoReturn:
        """Counts a wrong token; after some, the address gets 429. A good token always passes."""
        if wait_s := self._guesses.take(address_of(http_request)):
            late = {"Retry-After": str(ceil(wait_s))}
            raise HTTPException(429, f"too many wrong tokens; try again in {ceil(wait_s)} s", late)
        raise HTTPException(401, why)

    async def read(self, http_request: HttpRequest) -> Request:
        request = self._read(await self.json(http_request))
        if request.model != self._name:
            raise HTTPException(404, f"model {request.model[:100]!r}: is not served here; there is {self._name!r}")
        return request

    async def json(self, http_request: HttpRequest) -> Any:
        try:
            return orjson.loads(await self.content(http_request))
        except orjson.JSONDecodeError as error:
            raise BadInput("request", why=f"is not JSON: {error}") from None

    async def content(
        self,
        http_request: HttpRequest,
        media_types: Sequence[str] = (openapi.JSON,),
        *,
        takes_gzip: bool = False,
        is_admitted: bool = False,
        into: BytesIO | None = None,
    ) -> bytes:
        """The body of an admitted request of one of these media types, as it came; `unpack` undoes its gzip."""
        if not is_admitted:
            self.admit(http_request)
        if media_type_of(http_request) not in media_types:
            raise HTTPException(415, f"Content-Type must be {' or '.join(media_types)}")
        if takes_gzip and (encoding := encoding_of(http_request)) not in ("identity", "gzip"):
            raise HTTPException(415, f"Content-Encoding {encoding} is unknown; send gzip, or plain")
        return await read_body(http_request, largest=self._largest, wait_s=self._wait_s, into=into)

    def unpack(self, http_request: HttpRequest, body: bytes) -> bytes:
        """The body of a request that may be packed. It takes a while: call it in a thread."""
        return unpacked(body, self._largest) if encoding_of(http_request) == "gzip" else body


async def read_body(http_request: HttpRequest, *, largest: int, wait_s: float, into: BytesIO | None = None) -> bytes:
    """The body of a request, within the limits of size and time."""
    body = BytesIO() if into is None else into  # gives its bytes without another copy of them
    try:
        async with asyncio.timeout(wait_s):
            async for part in http_request.stream():
                body.write(part)
                if body.tell() > largest:
                    raise HTTPException(413, f"the request is larger than {largest} bytes; send less")
    except TimeoutError:
        late = f"the request did not come within {wait_s:g} s; send it again"
        raise HTTPException(408, late, {"Connection": "close"}) from None
    return body.getvalue()


class WaitingBodies:
    """Bodies that are being read, or wait for their turn: when they are too much together, one is given up, by its size
    and the time that it has taken.

    So none that sends much, or slowly, keeps others from sending little."""

    def __init__(self, most: int) -> None:
        self._most, self._bodies = most, list[WaitingBody]()

    @contextmanager
    def another(self) -> Iterator[WaitingBody]:
        body = WaitingBody(self._fit)
        self._bodies.append(body)
        try:
            yield body
        finally:
            self._bodies.remove(body)

    def _fit(self) -> None:
        now = time.monotonic()
        while len(sent := [body for body in self._bodies if len(body)]) > 1 and sum(map(len, sent)) > self._most:
            max(sent, key=lambda body: len(body) * (now - body.began)).give_up()


class WaitingBody(BytesIO):
    def __init__(self, fit: Callable[[], None]) -> None:
        super().__init__()
        self._fit, self._is_given_up, self.began = fit, False, time.monotonic()

    def __len__(self) -> int:
        return self.tell()

    def write(self, part: Any, /) -> int:
        self.check()
        size = super().write(part)
        self._fit()
        self.check()
        return size

    def give_up(self) -> None:
        self._is_given_up = True
        self._empty()

    def take(self) -> bytes:
        """All of it; it waits no longer."""
        self.check()
        body = self.getvalue()
        self._empty()
        return body

    def _empty(self) -> None:
        self.seek(0)
        self.truncate()

    def check(self) -> None:
        if self._is_given_up:
            raise HTTPException(503, "too much is being sent at once; send it again", {"Retry-After": "1"})


def unpacked(packed: bytes, largest: int) -> bytes:
    """A body out of its gzip: never more of it than allowed, and never much more than was sent."""
    gzip, most = zlib.decompressobj(wbits=31), LEAST_UNPACKED + len(packed) * MOST_UNPACKED
    try:
        body = gzip.decompress(packed, min(largest, most) + 1)
    except zlib.error as error:
        raise BadInput("request", why=f"is not gzip: {error}") from None
    if len(body) > largest:
        raise HTTPException(413, f"the request is larger than {largest} bytes; send less")
    if len(body) > most:
        raise HTTPException(413, f"the request is packed more than {MOST_UNPACKED} times; send it plain")
    if not gzip.eof:
        raise BadInput("request", why="is cut short: its gzip has no end")
    if gzip.unused_data:
        raise BadInput("request", why="goes on after the end of its gzip")
    return body


RANGES = {
    "success": (0.0, 1.0),
    "reward": (-LARGEST_REWARD, LARGEST_REWARD),
    "safety_cost": (0.0, LARGEST_REWARD),
}


def _feedback(body: Any) -> tuple[str, dict[str, float]]:
    """`{"id": "chatcmpl-…", "success": 1, "reward": 0.5, "safety_cost": 0}`: the id and any of the three."""
    if not isinstance(body, dict) or not isinstance(body.get("id"), str) or not body["id"]:
        raise BadInput("id", why="is missing", remedy="send the id of the answer, as in chatcmpl-…")
    said = {}
    for name, value in body.items():
        if name == "id":
            continue
        if name not in RANGES:
            raise BadInput(name[:60], why="is unknown", remedy=f"send {', '.join(RANGES)}")
        if isinstance(value, bool) and name == "success":
            value = float(value)
        low, high = RANGES[name]
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadInput(f"{name} = {value!r:.60}", why=f"must be a number from {low:g} to {high:g}")
        said[name] = float(value)
    if not said:
        raise BadInput("feedback", why="says nothing", remedy=f"send one or more of {', '.join(RANGES)}")
    return body["id"], said


class Events(StreamingResponse):
    """Server-sent events until the client leaves."""

    media_type = "text/event-stream"

    def __init__(self, content: Any, *, ended: Callable[[], None] = lambda: None, **how: Any) -> None:
        super().__init__(content, **how)
        self._ended = ended

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await unless_left(receive, self.stream_response(send))
        except ClientDisconnect:
            pass  # its call is cancelled with it
        finally:
            self._ended()
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def answered(complete: Complete, request: Request, envelope: Envelope) -> Response:
    """The answer as a response: whole, or as events."""
    return await (_streamed if request.stream else _whole)(complete, request, envelope)


async def _whole(complete: Complete, request: Request, envelope: Envelope) -> Response:
    tasks = [asyncio.ensure_future(complete(request.messages, **how)) for how in request.samplings()]
    try:
        return json_response(completion(request, await asyncio.gather(*tasks), envelope))
    finally:
        for task in tasks:
            task.cancel()


async def _streamed(complete: Complete, request: Request, envelope: Envelope) -> Response:
    """Waits for the first piece, so that a call that cannot begin gets an HTTP status."""
    answers = _merged([pieces(complete, request.messages, **how) for how in request.samplings()])
    first = await anext(answers)
    return Events(_events(first, answers, Chunks(request, envelope)))


async def _events(first: Numbered, answers: AsyncGenerator[Numbered, None], chunks: Chunks) -> AsyncIterator[bytes]:
    """The status has been sent, so later errors become events."""
    async with aclosing(answers):
        for chunk in chunks.begin():
            yield sse_data(chunk)
        try:
            yield sse_data(chunks.add(*first))
            async for index, piece in answers:
                yield sse_data(chunks.add(index, piece))
            for chunk in chunks.close():
                yield sse_data(chunk)
        except Exception as error:
            yield sse_data(error_form(status_of(error), says(error)))
            if not isinstance(error, HoldfastError):
                raise
    yield b"data: [DONE]\n\n"


async def _merged(streams: Sequence[AsyncGenerator[Piece | ModelCall, None]]) -> AsyncGenerator[Numbered, None]:
    """The pieces of several streams as they come, each with its stream's index."""
    waiting: asyncio.Queue[Numbered | Exception | None] = asyncio.Queue(maxsize=64)

    async def forward(index: int, stream: AsyncGenerator[Piece | ModelCall, None]) -> None:
        piece: Piece | ModelCall = {}
        try:
            async with aclosing(stream):
                async for piece in stream:
                    await waiting.put((index, piece))
            if not isinstance(piece, ModelCall):
                raise Fault("model", why="its stream broke off", remedy="ask again")
            await waiting.put(None)
        except Exception as error:
            await waiting.put(error)

    tasks = [asyncio.create_task(forward(*numbered)) for numbered in enumerate(streams)]
    try:
        ended = 0
        while ended < len(tasks):
            found = await waiting.get()
            if isinstance(found, Exception):
                raise found
            if found is None:
                ended += 1
            else:
                yield found
    finally:
        await _cancelled(*tasks)


async def unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """The result of the work, which is cancelled when the client leaves."""
    task, has_left = asyncio.current_task(), False
    assert task is not None

    async def leaving() -> None:
        nonlocal has_left
        while (await receive())["type"] != "http.disconnect":
            pass
        has_left = True
        task.cancel()

    gone = asyncio.create_task(leaving())
    try:
        return await work
    except asyncio.CancelledError:
        if has_left:
            raise ClientDisconnect() from None
        if not task.cancelling():  # the work was cancelled, not we
            raise Fault("model", why="gave the call up", remedy="ask again") from None
        raise
    finally:
        gone.cancel()
        if has_left:
            task.uncancel()


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


@lru_cache(maxsize=64)
def is_this_machine(host: str) -> bool:
    """Whether a Host header names this machine."""
    named = HOST.fullmatch(host)
    return named is not None and is_loopback((named[1] or named[2]).lower())


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A listening socket; an address that other machines can reach needs a token."""
    if token is None and not is_loopback(host):
        why = "everyone who reaches this machine could use the model"
        raise BadInput(f"host {host}", why=why, remedy="give a token, or listen at 127.0.0.1")
    if token is not None:
        check_token(token)
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except OSError as error:
        raise BadInput(f"{host}:{port}", why=reason_of(error), remedy="choose another --host or --port") from None
    except OverflowError as error:
        raise BadInput(f"{host}:{port}", why=str(error), remedy="choose another --host or --port") from None


class Server(uvicorn.Server):
    """Ends soon: after a moment it closes open connections, which cancels their calls."""

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        hang_up = asyncio.get_running_loop().call_later(GRACE_S, self._hang_up)
        await super().shutdown(sockets)
        hang_up.cancel()

    def _hang_up(self) -> None:
        for connection in list(self.server_state.connections):
            if isinstance(connection, LimitedProtocol):
                connection.transport.abort()


def server(application: ASGIApp, **limits: Any) -> uvicorn.Server:
    """`server(app).run(sockets=[listen(…)])` serves until a signal, or until `should_exit` is set.

    `limits` are attributes of `LimitedProtocol`, as in `wait_s=5.0`.
    """
    return Server(
        uvicorn.Config(
            application,
            loop="uvloop",
            http=limited(**limits),
            ws="none",
            lifespan="off",
            log_level="error",  # warnings are about what strangers send, who could fill the log
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_keep_alive=5,
            timeout_graceful_shutdown=2,  # if closing connections is not enough
        )
    )


def status_of(error: Exception) -> int:
    """The HTTP status; a BadRecord is the server's error, although it is a BadInput."""
    statuses = ((BadRecord, 500), (BadInput, 400), (Conflict, 409), (Fault, 503))
    return next((status for kind, status in statuses if isinstance(error, kind)), 500)


def says(error: Exception) -> str:
    """The text of our own errors; of others only the type, since strangers read it."""
    return str(error) if isinstance(error, HoldfastError) else f"the model failed: {type(error).__name__}"


def error_form(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": CODES.get(status)}}


def param_of(error: Exception) -> str | None:
    """The request field that is wrong, if it is one."""
    field = FIELD.fullmatch(error.what) if isinstance(error, BadInput) else None
    return field[1] if field and field[2] in KNOWN else None


async def _refused(http_request: HttpRequest, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return json_response(error_form(error.status_code, error.detail), error.status_code, error.headers)


async def _failed(http_request: HttpRequest, error: Exception) -> Response:
    return json_response(error_form(status_of(error), says(error), param_of(error)), status_of(error))


async def left(http_request: HttpRequest, error: Exception) -> Response:
    """The client went away before its request was there: nobody is answered, and it is no fault of ours."""
    return Response(status_code=NOBODY)


def encoding_of(http_request: HttpRequest) -> str:
    return http_request.headers.get("content-encoding", "identity").strip().lower()


def media_type_of(http_request: HttpRequest) -> str:
    return http_request.headers.get("content-type", "").partition(";")[0].strip().lower()


def json_response(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def sse_data(content: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"
