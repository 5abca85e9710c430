"""Any Complete as an OpenAI-compatible server: chat completions whole and streamed, models, health.

What a request may say is in `request`, how an answer looks in `reply`; here are sockets, statuses and who may ask. A
client that leaves cancels its call. Without a token the server listens to this machine alone, and not to web pages
open on it: a request must be JSON and must address this machine by name.
"""

from __future__ import annotations

import asyncio
import hmac
import ipaddress
import re
import secrets
import socket
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from typing import Any, TypeVar

import orjson
import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from holdfast.collect.reply import Chunks, Envelope, Piece, Spell, completion, pieces
from holdfast.collect.request import Request, read_request
from holdfast.contracts.errors import BadInput, Fault, HoldfastError
from holdfast.contracts.policy import Complete
from holdfast.contracts.trace import ModelCall

LARGEST = 8 * 2**20  # bytes of a request
KINDS = {400: "invalid_request_error", 401: "authentication_error", 403: "permission_error", 404: "not_found_error"}
CODES = {401: "invalid_api_key", 404: "not_found", 413: "too_large"}
NOBODY = 499  # the status of an answer that nobody reads: the client is gone
FIELD = re.compile(r"[a-z_]+(\[\d+\]|\.[a-z_]+)*")

T = TypeVar("T")
Numbered = tuple[int, Piece | ModelCall]  # which choice, and what is new of it


def app(
    complete: Complete,
    *,
    name: str,
    choose_version: Callable[[str], Complete] | None = None,
    token: str | None = None,
    spell: Spell | None = None,
    clock: Callable[[], float] = time.time,
    largest: int = LARGEST,
) -> Starlette:
    """The model `name`, answered by `complete`.

    `choose_version` is asked once a request for what answers it, with the request's `user` or a key of its own: a call
    that has begun ends with the version it began with. `spell` gives the bytes of a token for the log-probs.
    """
    door = Door(name=name, token=token, largest=largest)

    async def chat(asked: Asked) -> Response:
        request = await door.read(asked)
        key = secrets.token_hex(12)
        chosen = complete if choose_version is None else choose_version(request.user or key)
        envelope = Envelope(id=f"chatcmpl-{key}", created=int(clock()), spell=spell)
        answer = _streamed if request.stream else _whole
        return await _unless_left(asked.receive, answer(chosen, request, envelope))

    async def models(asked: Asked) -> Response:
        door.admit(asked)
        listed = {"id": name, "object": "model", "created": int(clock()), "owned_by": "holdfast"}
        return _json({"object": "list", "data": [listed]})

    async def health(asked: Asked) -> Response:
        return _json({"status": "ok", "model": name})

    return Starlette(
        routes=[
            Route("/v1/chat/completions", chat, methods=["POST"]),
            Route("/v1/models", models),
            Route("/health", health),
        ],
        exception_handlers={
            HTTPException: _refused,
            ClientDisconnect: _left,
            HoldfastError: _failed,
            Exception: _failed,
        },
    )


class Door:
    """Who may ask, and for what."""

    def __init__(self, *, name: str, token: str | None, largest: int) -> None:
        self._name, self._largest = name, largest
        self._token = None if token is None else f"Bearer {token}".encode()

    def admit(self, asked: Asked) -> None:
        if self._token is not None:
            if not hmac.compare_digest(asked.headers.get("authorization", "").encode(), self._token):
                raise HTTPException(401, "the token is missing or wrong; send 'Authorization: Bearer …'")
        elif not is_loopback(asked.url.hostname or ""):  # a page of elsewhere whose name was pointed at this machine
            raise HTTPException(403, "Host is not this machine's name; without a token only 127.0.0.1 is served")

    async def read(self, asked: Asked) -> Request:
        self.admit(asked)
        if asked.headers.get("content-type", "").partition(";")[0].strip().lower() != "application/json":
            raise HTTPException(415, "Content-Type must be application/json")
        try:
            body = orjson.loads(await self._body(asked))
        except orjson.JSONDecodeError as error:
            raise BadInput("request", why=f"is not JSON: {error}") from None
        request = read_request(body)
        if request.model != self._name:
            raise HTTPException(404, f"model {request.model[:100]!r}: is not served here; there is {self._name!r}")
        return request

    async def _body(self, asked: Asked) -> bytes:
        announced = asked.headers.get("content-length", "0")
        body = bytearray()
        if not announced.isdecimal() or int(announced) <= self._largest:
            async for part in asked.stream():
                body += part
                if len(body) > self._largest:
                    break
            else:
                return bytes(body)
        raise HTTPException(413, f"the request is larger than {self._largest} bytes; send less")


class Events(StreamingResponse):
    """Server-sent events, for as long as somebody listens."""

    media_type = "text/event-stream"

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await _unless_left(receive, self.stream_response(send))
        except ClientDisconnect:
            pass  # its call is cancelled with it
        finally:
            await self.body_iterator.aclose()  # type: ignore[attr-defined]


async def _whole(complete: Complete, request: Request, envelope: Envelope) -> Response:
    tasks = [asyncio.ensure_future(complete(request.messages, **how)) for how in request.samplings()]
    try:
        return _json(completion(request, await asyncio.gather(*tasks), envelope))
    finally:
        for task in tasks:
            task.cancel()


async def _streamed(complete: Complete, request: Request, envelope: Envelope) -> Response:
    """Waits for the first piece, so that a call that cannot begin has a status of its own."""
    answers = _merged([pieces(complete, request.messages, **how) for how in request.samplings()])
    first = await anext(answers)
    return Events(_events(first, answers, Chunks(request, envelope)))


async def _events(first: Numbered, answers: AsyncGenerator[Numbered, None], chunks: Chunks) -> AsyncIterator[bytes]:
    """What goes wrong from here on is an event: the status has been sent."""
    async with aclosing(answers):
        for chunk in chunks.begin():
            yield _event(chunk)
        try:
            yield _event(chunks.add(*first))
            async for index, piece in answers:
                yield _event(chunks.add(index, piece))
            for chunk in chunks.close():
                yield _event(chunk)
        except Exception as error:
            yield _event(_error(_status(error), _says(error)))
            if not isinstance(error, HoldfastError):
                raise
    yield b"data: [DONE]\n\n"


async def _merged(streams: Sequence[AsyncGenerator[Piece | ModelCall, None]]) -> AsyncGenerator[Numbered, None]:
    """What several streams give, each piece with its stream's number, as it comes."""
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


async def _unless_left(receive: Receive, work: Coroutine[Any, Any, T]) -> T:
    """What the work gives; it is cancelled when the client leaves first."""

    async def leaving() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, gone = asyncio.create_task(work), asyncio.create_task(leaving())
    try:
        await asyncio.wait({task, gone}, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await _cancelled(task, gone)
    if not task.cancelled():
        return task.result()
    raise Fault("model", why="gave the call up", remedy="ask again") if gone.cancelled() else ClientDisconnect()


async def _cancelled(*tasks: asyncio.Task[Any]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


def is_loopback(host: str) -> bool:
    with suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    return host == "localhost"


def listen(host: str, port: int, *, token: str | None) -> socket.socket:
    """A socket at the address; one that others can reach needs a token."""
    if token is None and not is_loopback(host):
        why = "everyone who reaches this machine could use the model"
        raise BadInput(f"host {host}", why=why, remedy="give a token, or listen at 127.0.0.1")
    if token is not None and not (token.isascii() and token.isprintable() and token.strip() == token != ""):
        raise BadInput("token", why="cannot stand in a header", remedy="use letters and digits")
    try:
        family = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0][0]
        return socket.create_server((host, port), family=family, backlog=2048)
    except (OSError, OverflowError) as error:
        raise BadInput(f"{host}:{port}", why=str(error), remedy="choose another --host or --port") from None


def server(application: Starlette) -> uvicorn.Server:
    """`server(app).run(sockets=[listen(…)])` serves until it is told to end by a signal, or by `should_exit`."""
    return uvicorn.Server(
        uvicorn.Config(
            application,
            loop="uvloop",
            http="httptools",
            ws="none",
            lifespan="off",
            log_level="warning",
            access_log=False,
            server_header=False,
            proxy_headers=False,
            timeout_graceful_shutdown=5,
        )
    )


def _status(error: Exception) -> int:
    return 400 if isinstance(error, BadInput) else 503 if isinstance(error, Fault) else 500


def _says(error: Exception) -> str:
    """Our own errors are written for people; of others no more than the kind is told to strangers."""
    return str(error) if isinstance(error, HoldfastError) else f"the model failed: {type(error).__name__}"


def _error(status: int, message: str, param: str | None = None) -> dict[str, Any]:
    kind = KINDS.get(status, "invalid_request_error" if status < 500 else "server_error")
    return {"error": {"message": message, "type": kind, "param": param, "code": CODES.get(status)}}


async def _refused(asked: Asked, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    return _json(_error(error.status_code, error.detail), error.status_code, error.headers)


async def _failed(asked: Asked, error: Exception) -> Response:
    field = FIELD.match(error.what) if isinstance(error, BadInput) else None
    return _json(_error(_status(error), _says(error), field and field.group()), _status(error))


async def _left(asked: Asked, error: Exception) -> Response:
    return Response(status_code=NOBODY)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")


def _event(content: Mapping[str, Any]) -> bytes:
    return b"data: " + orjson.dumps(content) + b"\n\n"
