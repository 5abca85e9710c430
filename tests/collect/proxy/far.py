"""An upstream that does one thing after another as it is told, and keeps what it was asked and every byte it sent."""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

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
        assert isinstance(self.models.answer, bytes)
        return Response(
            self.models.answer, self.models.status, dict(self.models.headers), media_type="application/json"
        )

    def app(self) -> Starlette:
        return Starlette(routes=[Route("/v1/models", self.listed), Route("/{path:path}", self.said, methods=["POST"])])


def listing(*models: Mapping[str, Any]) -> Step:
    """What an upstream says of its models."""
    return Step(json.dumps({"object": "list", "data": list(models)}).encode())
