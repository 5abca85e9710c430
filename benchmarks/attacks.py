"""How much memory each attack of the security review takes from a server, above what it has at rest.

A proxy with a token, or the control room, runs in a process of its own; its own kernel's figures tell its peak. Every
attack is by a stranger without the token, but for those on spans, whose sender has it.
"""

from __future__ import annotations

import asyncio
import gzip
import multiprocessing
import os
import resource
import signal
import socket
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from parts import report
from parts.report import Figures, rounded

TOKEN = "a-token-of-this-benchmark"
HELLO = b"GET /training/proxy/health HTTP/1.1\r\nHost: localhost\r\n"
SPANS = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nAuthorization: Bearer {TOKEN}\r\n".encode()
PIECE = b"a" * 65536
MEANINGS = {
    "worst_mb": "the most of all attacks but one; at most 64 are wanted",
    "head_mb": "one connection whose head does not end",
    "heads_mb": "400 connections, each with 60 KiB of a head",
    "trailers_mb": "one connection whose trailers do not end",
    "pipelined_mb": "200 connections, each with 10,000 requests at once",
    "idle_mb": "3,000 connections that say nothing",
    "gzip_mb": "31 kB of gzip that are 30 MB of JSON",
    "values_mb": "32 MiB of empty objects as spans",
    "text_mb": "8 MiB of one text as a span, scrubbed and kept",
    "names_mb": "8 MiB of names as a span",
    "keys_mb": "8 MiB of beginnings of keys as a span",
    "escapes_mb": "8 MiB of escapes as a span",
    "wide_mb": "8 MiB of one text with an emoji in it, so that each letter takes four bytes; not in the worst",
    "bodies_mb": "200 strangers, each with a body of 8 MiB",
    "at_once_mb": "200 bodies of spans of 16 MiB that all come and do not end",
    "burst_mb": "1,000 bodies of 240 kB that come while the server stands still",
    "room_heads_mb": "400 connections to the control room, each with 60 KiB of a head",
    "room_logins_mb": "1,000 logins at the control room that do not end, 64 kB each",
    "room_burst_mb": "1,000 logins of 240 kB that come while the control room stands still",
}
ROOM = "room_"


def serve(pipe: Connection, folder: str, is_room: bool) -> None:
    from holdfast.collect import endpoint
    from holdfast.collect.otlp.take import SpanReceiver, routes
    from holdfast.collect.proxy.app import app
    from holdfast.collect.proxy.upstream import Upstream
    from holdfast.operate.app import app as room
    from holdfast.privacy.scrub import Scrub, key_in
    from holdfast.store.store import open_store

    with open_store(Path(folder) / "store.sqlite") as store, endpoint.listen("127.0.0.1", 0, token=TOKEN) as place:
        taker = SpanReceiver(store, clock=time.time, scrub=Scrub(key_in(Path(folder))).span)
        proxy = app(store, [Upstream("http://127.0.0.1:9")], token=TOKEN, routes=routes(taker, token=TOKEN))
        made = room(store) if is_room else proxy
        pipe.send(place.getsockname()[1])
        asyncio.run(endpoint.server(made).serve(sockets=[place]))


@contextmanager
def server(is_room: bool) -> Iterator[tuple[int, int]]:
    """The process and the port of a fresh server."""
    ours, theirs = multiprocessing.Pipe()
    with tempfile.TemporaryDirectory() as folder:
        given = (theirs, folder, is_room)
        process = multiprocessing.get_context("spawn").Process(target=serve, args=given, daemon=True)
        process.start()
        try:
            assert process.pid is not None
            yield process.pid, ours.recv()
        finally:
            process.terminate()
            process.join()


def status_mb(pid: int, name: str) -> float:
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith(f"{name}:"):
            return int(line.split()[1]) / 1024
    raise KeyError(name)


class Attacker:
    def __init__(self, pid: int, port: int, held: ExitStack) -> None:
        self._pid, self._port, self._held = pid, port, held

    def connect(self) -> socket.socket:
        return self._held.enter_context(socket.create_connection(("127.0.0.1", self._port), timeout=20.0))

    def send(self, *parts: bytes, answered: bool = True) -> socket.socket:
        peer = self.connect()
        with suppress(OSError):  # it hung up
            for part in parts:
                peer.sendall(part)
            if answered:
                peer.recv(65536)
        return peer

    def burst(self, head: bytes, body: bytes, count: int) -> None:
        """All at once: the server finds them when it goes on."""
        peers = [self.connect() for _ in range(count)]
        time.sleep(0.5)
        os.kill(self._pid, signal.SIGSTOP)
        for peer in peers:
            peer.setblocking(False)
            with suppress(OSError):  # no more goes into its buffer
                peer.send(head + body)
        os.kill(self._pid, signal.SIGCONT)

    def spans(self, body: bytes, *, packed: bool = False) -> None:
        head = SPANS + b"Content-Type: application/json\r\nContent-Length: %d\r\n" % len(body)
        self.send(head + (b"Content-Encoding: gzip\r\n\r\n" if packed else b"\r\n"), body)

    def says(self, text: str, end: str = "") -> None:
        """8 MiB of it."""
        self.spans(body_of(text * (8 * 2**20 // len(text)) + end))


def body_of(text: str) -> bytes:
    """A request with one span, which says this."""
    from holdfast.collect.otlp import wire

    ids = {"trace_id": "a" * 32, "span_id": "b" * 16}
    said = {"a": text}
    return wire.written([wire.OtelSpan(**ids, name="s", started_ns=1, ended_ns=2, attributes=said)], wire.JSON)


def attacks(scale: int) -> dict[str, Callable[[Attacker], Any]]:
    little = b'{"resourceSpans":[' + b"{}," * (32 * 2**20 // 3 - 20) + b"{}]}"
    chunked = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n0\r\nX-A: "
    plain = b"POST /v1/chat/completions HTTP/1.1\r\nHost: localhost\r\nContent-Length: 8388608\r\n\r\n"
    unfinished = SPANS + b"Content-Type: application/json\r\nContent-Length: 16777216\r\n\r\n"
    login = (
        b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 8388608\r\n\r\n"
    )

    def heads(by: Attacker) -> None:
        for _ in range(400):
            by.send(HELLO, b"X-A: ", PIECE[:61440], answered=False)

    return {
        "head": lambda by: by.send(HELLO, b"X-A: ", *[PIECE] * (4096 // scale)),
        "heads": heads,
        "trailers": lambda by: by.send(chunked, *[PIECE] * (4096 // scale)),
        "pipelined": lambda by: [by.send((HELLO + b"\r\n") * 10_000, answered=False) for _ in range(200 // scale)],
        "idle": lambda by: [by.connect() for _ in range(3000 // scale)],
        "gzip": lambda by: [by.spans(gzip.compress(little), packed=True) for _ in range(3)],
        "values": lambda by: [by.spans(little) for _ in range(3)],
        "text": lambda by: by.says("lorem ipsum "),
        "names": lambda by: by.says("John "),
        "keys": lambda by: by.says("sk-ant-\n"),
        "escapes": lambda by: by.says("%41%42%43 "),
        "wide": lambda by: by.says("lorem ipsum ", "\U0001f600"),
        "at_once": lambda by: [by.send(unfinished, *[PIECE] * 255, answered=False) for _ in range(200 // scale)],
        "bodies": lambda by: [by.send(plain, *[PIECE] * 64) for _ in range(200 // scale)],
        "burst": lambda by: by.burst(plain, PIECE * 4, 1000),
        "room_heads": heads,
        "room_logins": lambda by: [by.send(login, PIECE[:64000], answered=False) for _ in range(1000)],
        "room_burst": lambda by: by.burst(login, PIECE * 4, 1000),
    }


def measure(quick: bool) -> Figures:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (min(hard, max(soft, 8192)), hard))
    found: dict[str, float] = {}
    for name, attack in attacks(4 if quick else 1).items():
        with server(name.startswith(ROOM)) as (pid, port), ExitStack() as held:
            by = Attacker(pid, port, held)
            by.send(HELLO + b"\r\n")
            rest = status_mb(pid, "VmRSS")
            attack(by)
            time.sleep(0.5)
            by.send(HELLO + b"\r\n")  # it still answers
            found[f"{name}_mb"] = rounded(status_mb(pid, "VmHWM") - rest)
    return {**found, "worst_mb": max(value for name, value in found.items() if name != "wide_mb")}


if __name__ == "__main__":
    report.main(__doc__ or "", measure, MEANINGS)
