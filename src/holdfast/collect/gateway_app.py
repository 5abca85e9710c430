"""The gateway's side that speaks HTTP: whose call it is, in which dialect, and how it is answered or refused.

What requests and answers look like is in `dialects`; who answers, and what is kept of it, in `access`.
"""

from __future__ import annotations

import re
import secrets
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import replace
from typing import Any

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.requests import Request as Asked
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from holdfast.collect.access import Entry, Gone, Register
from holdfast.collect.client import ModelRefused
from holdfast.collect.dialects import DIALECTS, Spoken, StreamWriter, as_said
from holdfast.collect.endpoint import (
    LARGEST,
    NOBODY,
    OWNER,
    WAIT_S,
    Events,
    RequestReader,
    param_of,
    says,
    status_of,
    unless_left,
)
from holdfast.collect.reply import Envelope, Piece, pieces
from holdfast.collect.request import Request
from holdfast.collect.tracer import failure
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.trace import ModelCall

# Clients put /v1 before a path, or expect it in their base URL, or both: all spellings lead to the same place.
PATH = re.compile(r"/a/(?P<token>[\w.-]+)(?:/v1)*/(?P<what>.+)")
FINAL = {"x-should-retry": "false"}  # clients of both houses obey: the model was asked as often as makes sense


class GatewayApp:
    def __init__(self, register: Register, clock: Callable[[], float]) -> None:
        self._register, self._clock = register, clock

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            return
        asked = Asked(scope, receive)
        found = PATH.fullmatch(scope["path"])
        what = "" if found is None else found["what"]
        dialect = DIALECTS.get(what, DIALECTS["chat/completions"])
        try:
            entry = None if found is None else self._register.find(found["token"])
            if entry is None:
                raise HTTPException(404, "there is nothing at this address; use ctx.base_url as it is")
            response = await self._respond(entry, what, asked)
        except ClientDisconnect:
            response = Response(status_code=NOBODY)
        except Exception as error:
            status, message = _told(error)
            response = _json(dialect.error(status, message, param_of(error)), status, FINAL)
        await response(scope, receive, send)

    async def _respond(self, entry: Entry, what: str, asked: Asked) -> Response:
        door = RequestReader(name=entry.context.model, token=entry.access.key, largest=LARGEST, wait_s=WAIT_S)
        door.admit(asked)
        if what == "models" and asked.method == "GET":
            created = int(self._clock())
            model = {"id": entry.context.model, "object": "model", "created": created, "owned_by": OWNER}
            return _json({"object": "list", "data": [model]})
        if what not in DIALECTS or asked.method != "POST":
            spoken = ", ".join(f"POST /{path}" for path in DIALECTS)
            raise HTTPException(404, f"{asked.method} /{what[:100]} is not answered here; there are {spoken}")
        dialect, body = DIALECTS[what], await door.content(asked)
        if entry.context.complete is None:
            raise BadInput("this run", why="has no model", remedy="give --model")
        request = dialect.read(body, any_sampling=entry.any_sampling)
        request = replace(request, messages=as_said(request.messages, entry.said))
        envelope = Envelope(id=secrets.token_hex(12), created=int(self._clock()))
        return await unless_left(asked.receive, _answered(entry, dialect, request, envelope))


async def _answered(entry: Entry, dialect: Spoken, request: Request, envelope: Envelope) -> Response:
    try:
        if not request.stream:
            call = await entry(request.messages, **request.sampling)
            return _json(dialect.whole(request, call, envelope))
        answer = pieces(entry, request.messages, **request.sampling)
        first = await anext(answer)  # so that a call that cannot begin has a status of its own
    except Exception as error:
        _keep(entry, error)
        raise
    return Events(_events(entry, first, answer, dialect.stream(request, envelope)))


async def _events(
    entry: Entry, first: Piece | ModelCall, answer: AsyncGenerator[Piece | ModelCall, None], writer: StreamWriter
) -> AsyncIterator[bytes]:
    """What goes wrong from here on is an event: the status has been sent."""
    async with aclosing(answer):
        try:
            for event in (*writer.begin(), *writer.add(first)):
                yield event
            async for new in answer:
                for event in writer.add(new):
                    yield event
        except Exception as error:
            _keep(entry, error)
            for event in writer.error(*_told(error)):
                yield event


def _keep(entry: Entry, error: Exception) -> None:
    """An agent's client is told no more than the kind of a foreign exception: the rest is found in the trace."""
    if not isinstance(error, HoldfastError):
        entry.context.trace.event("model.failed", **failure(error))


def _told(error: Exception) -> tuple[int, str]:
    if isinstance(error, HTTPException):
        return error.status_code, error.detail
    if isinstance(error, Gone):
        return 410, str(error)
    return 400 if isinstance(error, ModelRefused) else status_of(error), says(error)


def _json(content: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(orjson.dumps(content), status, headers, media_type="application/json")
