"""A small model endpoint on 127.0.0.1, real down to the socket: it answers as scripted and keeps what it was asked.

The answers have the shape of vLLM's: token ids beside the text, log-probs by token.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections import deque
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from holdfast.collect.client import PROBE

Reply = Callable[[dict[str, Any]], Any]  # the request's body → the answer's


@dataclass(frozen=True)
class Asked:
    headers: Mapping[str, str]
    body: dict[str, Any]
    peer: tuple[str, int]  # one connection, one peer


@dataclass(frozen=True)
class Scripted:
    """What the endpoint does once: a status, a body (JSON unless it is bytes), a pause before it."""

    status: int = 200
    body: Any = None
    pause_s: float = 0.0
    headers: Mapping[str, str] = field(default_factory=dict)


@dataclass
class Endpoint:
    url: str = ""
    asked: list[Asked] = field(default_factory=list)
    script: deque[Scripted] = field(default_factory=deque)  # played first, one a request
    probed: list[str] = field(default_factory=list)
    probe: tuple[int, Any] | None = None  # the status and the answer to such a call; None: it knows every model
    models: Any = None  # what GET /v1/models answers; None: there is no such page
    reply: Reply = field(default=lambda body: completion(f"echo: {body['messages'][-1]['content']}"))

    async def answer(self, request: web.Request) -> web.Response:
        body = await request.json()
        if {name: body.get(name) for name in PROBE} == PROBE:  # whether it knows the model
            self.probed.append(body["model"])
            status, told = (200, completion("hi")) if self.probe is None else self.probe
            return web.json_response(told, status=status)
        self.asked.append(Asked(dict(request.headers), body, request.transport.get_extra_info("peername")))
        step = self.script.popleft() if self.script else Scripted(body=self.reply(body))
        await asyncio.sleep(step.pause_s)
        content = step.body if isinstance(step.body, bytes) else json.dumps(step.body).encode()
        return web.Response(status=step.status, body=content, content_type="application/json", headers=step.headers)

    async def list_models(self, request: web.Request) -> web.Response:
        return web.json_response(self.models, status=404 if self.models is None else 200)


def completion(text: str, **more: Any) -> dict[str, Any]:
    """A chat completion; `more` goes over its top level, `choice` over its one choice."""
    choice = {
        "index": 0,
        "message": {"role": "assistant", "content": text},
        "finish_reason": "stop",
        "token_ids": [5, 6, 7],
        "logprobs": {"content": [{"token": t, "logprob": p} for t, p in (("a", -0.5), ("b", -0.25), ("c", 0.0))]},
    } | more.pop("choice", {})
    usage = {"prompt_tokens": 4, "completion_tokens": 3}
    return {"model": "tiny@1", "choices": [choice], "prompt_token_ids": [1, 2, 3, 4], "usage": usage} | more


@contextmanager
def serving() -> Iterator[Endpoint]:
    """An endpoint that listens while the block lasts, on a thread of its own."""
    endpoint, ready = Endpoint(), threading.Event()
    loop = asyncio.new_event_loop()

    async def start() -> web.AppRunner:
        app = web.Application(client_max_size=2**26)
        app.router.add_post("/v1/chat/completions", endpoint.answer)
        app.router.add_get("/v1/models", endpoint.list_models)
        runner = web.AppRunner(app, shutdown_timeout=0.1)
        await runner.setup()
        site = web.TCPSite(runner, "127.0.0.1", 0)
        await site.start()
        endpoint.url = f"http://127.0.0.1:{runner.addresses[0][1]}/v1"
        return runner

    def serve() -> None:
        asyncio.set_event_loop(loop)
        runner = loop.run_until_complete(start())
        ready.set()
        loop.run_forever()
        loop.run_until_complete(runner.cleanup())
        loop.close()

    thread = threading.Thread(target=serve, name="endpoint")
    thread.start()
    assert ready.wait(20)
    try:
        yield endpoint
    finally:
        loop.call_soon_threadsafe(loop.stop)
        thread.join()
