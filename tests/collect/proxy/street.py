"""A proxy on a real socket between a client and an upstream that says what it was told to, cut where it was told to."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.collect.endpoint import listen, server
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.dialect import Dialect
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.rollout import Attempt, Task
from holdfast.contracts.trace import Span
from holdfast.store.store import Store
from tests.collect.scene import PATIENCE_S


@dataclass
class Scripted:
    """An upstream with one answer: whole where it is one body, else a stream of these pieces."""

    answer: bytes | Sequence[bytes] = b""
    status: int = 200
    pause_s: float = 0.0  # between two pieces
    heads: list[dict[str, str]] = field(default_factory=list)
    bodies: list[bytes] = field(default_factory=list)

    async def said(self, request: Request) -> Response:
        self.heads.append(dict(request.headers))
        self.bodies.append(await request.body())
        if isinstance(self.answer, bytes):
            return Response(self.answer, self.status, media_type="application/json")
        return StreamingResponse(self._pieces(self.answer), media_type="text/event-stream")

    async def _pieces(self, pieces: Sequence[bytes]) -> AsyncIterator[bytes]:
        for piece in pieces:
            yield piece
            await asyncio.sleep(self.pause_s)

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/{path:path}", self.said, methods=["POST"])])


@contextmanager
def served(make: Callable[[], Starlette]) -> Iterator[str]:
    """The app at an address of its own, in a thread of its own; its proxy, should it have one, ends with it."""
    place = listen("127.0.0.1", 0, token=None)
    ended: list[Any] = []

    async def serve() -> None:
        application = make()
        made = server(application)
        ended.append(made)
        await made.serve(sockets=[place])
        if (proxy := getattr(application.state, "proxy", None)) is not None:
            await proxy.close()

    thread = threading.Thread(target=lambda: asyncio.run(serve()), daemon=True)
    thread.start()
    patience = time.monotonic() + PATIENCE_S
    while not (ended and ended[0].started):
        assert thread.is_alive() and time.monotonic() < patience
        time.sleep(0.005)
    try:
        yield f"http://127.0.0.1:{place.getsockname()[1]}"
    finally:
        ended[0].should_exit = True
        thread.join(PATIENCE_S)


def running(store: Store, name: str = "t1") -> Attempt:
    """An attempt that runs and will for a while."""
    now = time.time()
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="t", who="test", now=now).result().id
    store.queue.enqueue(run, [Task(name=name, input={})], now=now).result()
    return store.queue.claim(run, "w", now=now, lease_s=600.0).result()[0].attempt


@dataclass
class Street:
    """The proxy's address for one attempt, and what was kept of it."""

    store: Store
    attempt: Attempt
    proxy: str
    upstream: Scripted

    @property
    def base_url(self) -> str:
        return attribution.base_url(self.proxy, self.attempt.rollout, self.attempt.number)

    def spans(self) -> list[Span]:
        return self.store.traces.spans(self.attempt.token)


@contextmanager
def street(store: Store, dialects: Sequence[Dialect], **more: Any) -> Iterator[Street]:
    upstream = Scripted()
    with (
        served(upstream.app) as address,
        served(lambda: app(store, [Upstream(address)], dialects=dialects, **more)) as at,
    ):
        yield Street(store, running(store), at, upstream)


def events(*named: tuple[str, bytes]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in named)


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    """The text in pieces: the same bytes, ended where it says."""
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(marks)]
