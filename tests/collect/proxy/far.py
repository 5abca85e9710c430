"""A proxy on a real socket between a client and an upstream that does as it is told and keeps what it was asked."""

from __future__ import annotations

import asyncio
import json
import threading
import time
from collections import deque
from collections.abc import AsyncIterator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.client import HTTPConnection
from itertools import pairwise
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from holdfast.collect.endpoint import listen, server
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.flag import WITHOUT
from holdfast.contracts.rollout import Attempt, Task
from holdfast.contracts.trace import Span
from holdfast.store.store import Store
from tests.collect.scene import PATIENCE_S

HELLO = [{"role": "user", "content": "hi"}]


def asking(**more: Any) -> bytes:
    return json.dumps({"model": "m", "messages": HELLO, **more}).encode()


def completion(text: str = "hello", **more: Any) -> bytes:
    choice = {"index": 0, "message": {"role": "assistant", "content": text}, "finish_reason": "stop"}
    usage = {"prompt_tokens": 3, "completion_tokens": 5, "total_tokens": 8}
    return json.dumps({"id": "c", "model": "m@1", "choices": [choice], "usage": usage, **more}).encode()


def chunk(finish: str | None = None, **delta: Any) -> bytes:
    choice = {"index": 0, "delta": delta, "finish_reason": finish}
    return b"data: " + json.dumps({"model": "m@1", "choices": [choice]}).encode() + b"\n\n"


WORDS = (chunk(role="assistant", content=""), chunk(content="hel"), chunk(content="lo"), chunk("stop"))
STREAM = (*WORDS, b"data: [DONE]\n\n")


def events(*named: tuple[str, bytes]) -> bytes:
    return b"".join(b"event: %s\ndata: %s\n\n" % (name.encode(), data) for name, data in named)


def cut(text: bytes, places: Sequence[int]) -> list[bytes]:
    """The text in pieces: the same bytes, ended where it says."""
    marks = sorted({place % (len(text) + 1) for place in places} | {0, len(text)})
    return [text[start:end] for start, end in pairwise(marks)]


@dataclass(frozen=True)
class Step:
    answer: bytes | Sequence[bytes] = field(default_factory=completion)  # several: a stream
    status: int = 200
    headers: Mapping[str, str] = field(default_factory=dict)
    pause_s: float = 0.0  # before it answers
    gap_s: float = 0.0  # after each piece
    breaks: bool = False  # after the last piece
    waits_for: threading.Event | None = None  # after the last piece
    decide: Callable[[dict[str, Any]], Step] | None = None  # by what is asked


def listing(*models: Mapping[str, Any]) -> Step:
    """What an upstream says of its models."""
    return Step(json.dumps({"object": "list", "data": list(models)}).encode())


@dataclass
class Far:
    steps: deque[Step] = field(default_factory=deque)  # played first
    usual: Step = field(default_factory=Step)
    asked: list[tuple[dict[str, str], bytes]] = field(default_factory=list)  # headers, body
    paths: list[str] = field(default_factory=list)
    sent: list[bytearray] = field(default_factory=list)  # of each stream, all bytes
    models: Step = field(default_factory=lambda: Step(b'{"error": "no such page"}', 404))
    lists: list[dict[str, str]] = field(default_factory=list)  # the headers with which models were asked for

    async def said(self, request: Request) -> Response:
        body = await request.body()
        self.asked.append((dict(request.headers), body))
        self.paths.append(request.url.path)
        step = self.steps.popleft() if self.steps else self.usual
        if step.decide is not None:
            step = step.decide(json.loads(body))
        await asyncio.sleep(step.pause_s)
        if isinstance(step.answer, bytes):
            return Response(step.answer, step.status, dict(step.headers), media_type="application/json")
        return StreamingResponse(self._pieces(step), step.status, dict(step.headers), media_type="text/event-stream")

    async def _pieces(self, step: Step) -> AsyncIterator[bytes]:
        sent = bytearray()
        self.sent.append(sent)
        for piece in step.answer:
            assert isinstance(piece, bytes)
            sent += piece
            yield piece
            await asyncio.sleep(step.gap_s)
        if step.waits_for is not None:
            await asyncio.to_thread(step.waits_for.wait, 40)
        if step.breaks:
            raise ConnectionResetError("as it was told")

    async def listed(self, request: Request) -> Response:
        self.lists.append(dict(request.headers))
        await asyncio.sleep(self.models.pause_s)
        return Response(
            self.models.answer, self.models.status, dict(self.models.headers), media_type="application/json"
        )

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/models", self.listed), Route("/{path:path}", self.said, methods=["POST"])])


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


def running(store: Store, name: str = "t1", task: Any = None, without: Sequence[str] = (), **settings: Any) -> Attempt:
    """An attempt that runs and will for a while."""
    now = time.time()
    run = store.runs.begin(kind="optimize", model_ref="m", settings=settings, salt="t", who="test", now=now).result().id
    given = Task(name=name, input=task or {}, metadata={WITHOUT: list(without)} if without else {})
    store.queue.enqueue(run, [given], now=now).result()
    return store.queue.claim(run, "w", now=now, lease_s=600.0).result()[0].attempt


@dataclass
class Road:
    """A proxy, what is behind it, and an attempt whose calls go through."""

    store: Store
    far: Far
    url: str
    upstream: str
    attempt: Attempt
    application: Starlette
    loop: asyncio.AbstractEventLoop  # the proxy's

    @property
    def base_url(self) -> str:
        return attribution.base_url(self.url, self.attempt.rollout, self.attempt.number)

    @property
    def path(self) -> str:
        return f"/rollout/{self.attempt.rollout}/attempt/1/v1/chat/completions"

    def post(self, path: str | None = None, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
        connection = HTTPConnection(urlsplit(self.url).netloc, timeout=40)
        named = {"content-type": "application/json"} | {k.replace("_", "-"): value for k, value in headers.items()}
        connection.request("POST", path or self.path, asking() if body is None else body, named)
        answer = connection.getresponse()
        try:
            return answer.status, answer.headers, answer.read()
        finally:
            connection.close()

    def spans(self) -> list[Span]:
        return self.store.traces.spans(self.attempt.token)

    def lines(self, folder: Path) -> list[dict[str, Any]]:
        path = folder / "training" / "proxy-attribution.jsonl"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []


@contextmanager
def road(
    store: Store,
    remote: dict[str, Any] | None = None,
    *,
    far: Far | None = None,
    attempt: Attempt | None = None,
    **more: Any,
) -> Iterator[Road]:
    far, made, loops = far or Far(), list[Starlette](), list[asyncio.AbstractEventLoop]()
    with served(far.app) as upstream:

        def make() -> Starlette:
            made.append(app(store, [Upstream(upstream, **{"is_extended": False, **(remote or {})})], **more))
            loops.append(asyncio.get_running_loop())
            return made[0]

        with served(make) as url:
            yield Road(store, far, url, upstream, attempt or running(store), made[0], loops[0])
