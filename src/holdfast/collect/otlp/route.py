"""`POST /v1/traces`: OTLP over HTTP, protobuf or JSON, gzip or plain; below an attempt's address, or on its own."""

from __future__ import annotations

import asyncio
import zlib

import orjson
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response

from holdfast.collect import endpoint, forms
from holdfast.collect.forms import Gives, Told, obj
from holdfast.collect.openapi import ApiRoute
from holdfast.collect.otlp import wire
from holdfast.collect.otlp.take import Taker
from holdfast.collect.proxy import identity
from holdfast.collect.proxy.identity import Identity
from holdfast.contracts.errors import BadInput, HoldfastError, NotFound, StaleLease, StoreError

LARGEST = 32 * 2**20  # bytes of a request, unpacked
ERROR = {"type": "object"}  # {"message": …} of ours, or {"error": …} of the app around
SAID = {**forms.WORDS, 404: "the store has no such rollout or attempt", 409: "the attempt does not run"}
REFUSED: Gives = {
    status: (SAID[status], {wire.JSON: ERROR, wire.PROTOBUF: forms.TEXT})
    for status in (400, 401, 403, 404, 408, 409, 413, 415, 503)
}
TOLD = Told(
    name="traces",
    says="Spans in OpenTelemetry's format, taken as those of an attempt",
    takes={wire.JSON: obj(resourceSpans=forms.optional(forms.listed({"type": "object"}))), wire.PROTOBUF: forms.TEXT},
    gives={200: ("how many were not taken, and why", {wire.JSON: ERROR, wire.PROTOBUF: forms.TEXT}), **REFUSED},
)
STATUSES: tuple[tuple[type[HoldfastError], int], ...] = (
    (NotFound, 404),
    (StaleLease, 409),
    (BadInput, 400),
    (StoreError, 503),  # those who send try again then
)


def routes(
    taker: Taker, *, token: str | None = None, largest: int = LARGEST, wait_s: float = endpoint.WAIT_S
) -> list[ApiRoute]:
    """For the proxy's app; who may ask is told as there."""
    door = endpoint.RequestReader(name="", token=token, largest=largest, wait_s=wait_s)

    async def traces(request: Request) -> Response:
        door.admit(request)
        media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
        if media_type not in (wire.JSON, wire.PROTOBUF):
            raise HTTPException(415, f"Content-Type must be {wire.PROTOBUF} or {wire.JSON}")
        try:
            whose, body = _whose(request), await _body(request, largest, wait_s)
            # A large one takes a while, and others wait for this loop.
            spans, unread = await asyncio.to_thread(wire.read, body, media_type)
            taken = await taker.take(spans, whose)
        except ModuleNotFoundError as error:
            raise HTTPException(415, f"{error.name} is not installed here; send {wire.JSON}") from None
        except HoldfastError as error:
            status = next((status for kind, status in STATUSES if isinstance(error, kind)), 500)
            return _failed(status, str(error), media_type)
        if unread:
            taken.refuse(unread, "spans without ids or times cannot be read")
        return Response(wire.answer(media_type, taken.refused, taken.why), media_type=media_type)

    return [
        ApiRoute("/v1/traces", traces, TOLD, method="POST"),
        ApiRoute("/rollout/{rollout:path}/attempt/{number:int}/v1/traces", traces, TOLD, method="POST"),
    ]


def _whose(request: Request) -> Identity | None:
    headers = dict(request.headers.raw)
    if "rollout" in request.path_params:
        return identity.from_path(request.path_params["rollout"], request.path_params["number"], headers)
    return identity.from_headers(headers) if identity.ROLLOUT in headers else None


async def _body(request: Request, largest: int, wait_s: float) -> bytes:
    """Unpacked, and never more of it than may be."""
    encoding = request.headers.get("content-encoding", "identity").strip().lower()
    if encoding not in ("identity", "gzip"):
        raise HTTPException(415, f"Content-Encoding {encoding} is unknown; send gzip, or plain")
    unpack = zlib.decompressobj(wbits=31) if encoding == "gzip" else None
    parts, size, came = [], 0, 0
    try:
        async with asyncio.timeout(wait_s):
            async for chunk in request.stream():
                came += len(chunk)
                if unpack is not None and unpack.eof and chunk:
                    raise BadInput("request", why="goes on after the end of its gzip")
                part = chunk if unpack is None else unpack.decompress(chunk, largest + 1 - size)
                size += len(part)
                if max(size, came) > largest:
                    raise HTTPException(413, f"more than {largest} bytes; send fewer spans at a time")
                parts.append(part)
    except TimeoutError:
        raise HTTPException(408, f"the request did not come within {wait_s:g} s", {"Connection": "close"}) from None
    except zlib.error as error:
        raise BadInput("request", why=f"is not gzip: {error}") from None
    except ClientDisconnect:
        raise HTTPException(endpoint.NOBODY, "the client left") from None
    if unpack is not None and not unpack.eof:
        raise BadInput("request", why="is cut short: its gzip has no end")
    if unpack is not None and unpack.unused_data:
        raise BadInput("request", why="goes on after the end of its gzip")
    return b"".join(parts)


def _failed(status: int, message: str, media_type: str) -> Response:
    """A google.rpc.Status, as OTLP wants it: there its second field is the message."""
    headers = {"Retry-After": "1"} if status == 503 else None
    if media_type == wire.JSON:
        return Response(orjson.dumps({"message": message}), status, headers, media_type=media_type)
    text, size = message.encode(), b""
    length = len(text)
    while length > 127:
        size, length = size + bytes([length & 127 | 128]), length >> 7
    return Response(b"\x12" + size + bytes([length]) + text, status, headers, media_type=media_type)
