"""Many callers of one address, each with one connection and one call at a time; what they cost is little.

An answer that is not a 200, or not whole, is a failure and is counted apart. What is behind the address is `ways`'
business.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import httptools
import uvloop

TOKEN = re.compile(rb'"content": ?"[^"]')  # the first one that says something
TOO_LONG_S = 60.0
NUMBERS = itertools.count(10_000_000)  # every call asks what none has asked before
TOOLS = [
    {
        "type": "function",
        "function": {
            "name": name,
            "description": f"{name} in the shop's own records, by number",
            "parameters": {"type": "object", "properties": {"number": {"type": "string"}}, "required": ["number"]},
        },
    }
    for name in ("find_order", "find_parcel", "cancel_order")
]
EARLIER = [
    {"role": "system", "content": "You answer for a shop. Look things up before you say them. Be brief. " * 8},
    {"role": "user", "content": "Good morning. I would like to know where my parcels are."},
    {"role": "assistant", "content": "Good morning! Tell me the number of an order and I shall look it up."},
]


@dataclass(slots=True)
class Lap:
    """What a number of calls gave; times in seconds from the moment that a request was written."""

    wall_s: float = 0.0
    firsts_s: list[float] = field(default_factory=list)  # until the first token of a stream
    ends_s: list[float] = field(default_factory=list)  # until the last byte
    failed: int = 0

    @property
    def calls(self) -> int:
        return len(self.ends_s)

    @property
    def per_s(self) -> float:
        return self.calls / self.wall_s


def request(model: str, *, is_streamed: bool) -> dict[str, Any]:
    text = f"Where is order {next(NUMBERS)}, please? It was to be here by Friday, and I need it for a journey."
    asked: dict[str, Any] = {"model": model, "messages": [*EARLIER, {"role": "user", "content": text}], "tools": TOOLS}
    return asked | ({"stream": True, "stream_options": {"include_usage": True}} if is_streamed else {})


class Caller(asyncio.Protocol):
    def __init__(self, path: str, headers: Mapping[str, str]) -> None:
        lines = [f"POST {path}/v1/chat/completions HTTP/1.1", "Host: 127.0.0.1", "Content-Type: application/json"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        self._head = "\r\n".join([*lines, "Content-Length: "]).encode()
        self._ended: asyncio.Future[None] | None = None
        self.body = b""
        self.status, self.began, self.first_s = 0, 0.0, 0.0

    def connection_made(self, transport: Any) -> None:
        self._transport = transport

    async def call(self, asked: Mapping[str, Any]) -> float:
        """Seconds until the end; `status`, `body` and `first_s` are there then."""
        content = json.dumps(asked).encode()
        self._parser = httptools.HttpResponseParser(self)
        self._parts: list[bytes] = []
        self._ended = asyncio.get_running_loop().create_future()
        self.first_s, self.began = 0.0, time.perf_counter()
        self._transport.write(self._head + str(len(content)).encode() + b"\r\n\r\n" + content)
        async with asyncio.timeout(TOO_LONG_S):
            await self._ended
        self.body = b"".join(self._parts)
        return time.perf_counter() - self.began

    def data_received(self, data: bytes) -> None:
        self._parser.feed_data(data)

    def on_body(self, body: bytes) -> None:
        self._parts.append(body)
        if not self.first_s and TOKEN.search(b"".join(self._parts)):
            self.first_s = time.perf_counter() - self.began

    def on_message_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self._ended is not None and not self._ended.done():
            self._ended.set_result(None)

    def connection_lost(self, error: Exception | None) -> None:
        if self._ended is not None and not self._ended.done():
            self._ended.set_exception(ConnectionError("it hung up"))

    def close(self) -> None:
        self._transport.close()


async def connect(port: int, path: str, headers: Mapping[str, str]) -> Caller:
    _, caller = await asyncio.get_running_loop().create_connection(lambda: Caller(path, headers), "127.0.0.1", port)
    return caller


def lap(
    port: int,
    paths: Sequence[str],
    headers: Mapping[str, str],
    *,
    model: str,
    is_streamed: bool,
    for_s: float = float("inf"),
    calls: float = float("inf"),
) -> Lap:
    """As many callers as paths, until the time is over or the calls are made; those under way are waited for."""
    counted, found = itertools.count(1), Lap()

    async def one(path: str, until: float) -> None:
        caller = await connect(port, path, headers)
        while time.perf_counter() < until and next(counted) <= calls:
            try:
                took = await caller.call(request(model, is_streamed=is_streamed))
            except (OSError, TimeoutError, httptools.HttpParserError):
                found.failed += 1
                caller.close()
                try:
                    caller = await connect(port, path, headers)
                except OSError:
                    return  # nobody is there any more
                continue
            if caller.status != 200 or not is_whole(caller.body, is_streamed):
                found.failed += 1
                continue
            found.ends_s.append(took)
            if is_streamed:
                found.firsts_s.append(caller.first_s)
        caller.close()

    async def every() -> None:
        began = time.perf_counter()
        await asyncio.gather(*(one(path, began + for_s) for path in paths))
        found.wall_s = time.perf_counter() - began

    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(every())
    return found


def is_whole(body: bytes, is_streamed: bool) -> bool:
    return b"[DONE]" in body[-40:] if is_streamed else body.endswith(b"}")


def said(port: int, path: str, headers: Mapping[str, str], *, is_streamed: bool) -> str:
    """The text of one answer, or what came in its place."""

    async def ask() -> str:
        caller = await connect(port, path, headers)
        await caller.call(request("instant", is_streamed=is_streamed))
        caller.close()
        if caller.status != 200:
            return f"{caller.status} {caller.body[:300].decode(errors='replace')}"
        return text_of(caller.body, is_streamed)

    return asyncio.run(ask())


def text_of(body: bytes, is_streamed: bool) -> str:
    if not is_streamed:
        return str(json.loads(body)["choices"][0]["message"]["content"])
    lines = [line[6:] for line in body.split(b"\n") if line.startswith(b"data: {")]
    choices = [choice for line in lines for choice in json.loads(line)["choices"]]
    return "".join(choice["delta"].get("content") or "" for choice in choices)
