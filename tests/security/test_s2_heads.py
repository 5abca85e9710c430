"""S2: what a stranger sends before anybody knows who it is takes little memory, and ends."""

from __future__ import annotations

import asyncio
import threading
import time
from contextlib import ExitStack
from itertools import repeat
from typing import Any

import pytest

from holdfast.collect import endpoint, http_limits
from holdfast.operate import app as room
from holdfast.store.store import Store
from tests.operate.room import listening
from tests.security.conftest import TOKEN, Serve
from tests.security.raw import connect, everything, push, send, status

PIECE = b"a" * 65536
CHUNKED = b"POST / HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n"


@pytest.mark.parametrize(
    "first",
    [
        pytest.param(b"GET /", id="a path without an end"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: ", id="a header without an end"),
        pytest.param(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-", id="a name without an end"),
        pytest.param(CHUNKED + b"1\r\na\r\n0\r\nX-A: ", id="a trailer without an end"),
    ],
)
def test_a_head_or_a_trailer_is_cut_at_64_kib(serve: Serve, first: bytes) -> None:
    with serve() as url:
        taken, _ = send(url, [first, *repeat(PIECE, 512)])
    assert taken < 16 * 2**20  # 32 MiB were offered; the kernel's own buffers take some


def test_a_head_of_60_kib_is_read_and_one_of_80_refused(serve: Serve) -> None:
    with serve() as url:
        for size, expected in ((60, (200, 401, 404)), (80, (431,))):
            head = b"GET / HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nX-A: " + b"a" * (size * 1024)
            assert status(send(url, [head, b"\r\n\r\n"])[1]) in expected


@pytest.mark.parametrize("is_trailer", [False, True])
def test_a_request_has_at_most_100_headers(serve: Serve, is_trailer: bool) -> None:
    many = b"".join(b"X-%d: a\r\n" % number for number in range(101))
    start = CHUNKED + b"0\r\n" if is_trailer else b"GET / HTTP/1.1\r\nHost: localhost\r\n"
    with serve() as url, connect(url) as peer:
        push(peer, [start, many, b"\r\n"])
        assert b" 431 " in everything(peer)


def test_a_trailer_is_no_header_of_the_request(serve: Serve) -> None:
    """Whoever is admitted by what comes later could be admitted by anything."""
    token = f"Authorization: Bearer {TOKEN}\r\n".encode()
    start = CHUNKED.replace(b"POST /", b"POST /v1/chat/completions").replace(
        b"\r\n\r\n", b"\r\nConnection: close\r\n\r\n"
    )
    with serve() as url:
        assert status(send(url, [start, b"0\r\n", token, b"\r\n"])[1]) in (400, 401, 404, 405)


def test_a_full_server_lets_go_of_those_who_wait_and_not_of_new_callers(serve: Serve) -> None:
    with serve(most_connections=8) as url, ExitStack() as held:
        idle = [held.enter_context(connect(url)) for _ in range(20)]
        for peer in idle:
            push(peer, [b"GET / HT"])
        answer = send(url, [b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])[1]
        assert status(answer) in (200, 401, 404)
        assert everything(idle[0]) == b""  # the one that had waited longest was let go of


def test_requests_that_wait_for_the_answers_before_them_are_few(serve: Serve) -> None:
    one = b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n"
    with serve() as url, connect(url) as peer:
        push(peer, [one * 2000])
        assert everything(peer).count(b"HTTP/1.1 ") < 100


@pytest.mark.parametrize("start", [b"", b"GET / HT"], ids=["nothing", "half a head"])
def test_a_caller_who_dawdles_is_let_go_of(serve: Serve, start: bytes) -> None:
    with serve(wait_s=0.2) as url:
        began = time.monotonic()
        send(url, [start])
        assert time.monotonic() - began < 10.0


def test_half_a_body_of_a_stranger_holds_no_place(file_store: Store) -> None:
    """A login is read before anybody is known: 1,024 that did not end kept everybody else out."""
    half = b"POST /login HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: 900\r\n\r\n{"
    with listening(endpoint.server(room.app(file_store), most_connections=8)) as url, ExitStack() as held:
        for _ in range(20):
            push(held.enter_context(connect(url)), [half])
        time.sleep(0.2)
        answer = send(url, [b"GET /healthz HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])[1]
    assert status(answer) == 200


def test_a_login_is_short(file_store: Store) -> None:
    start = b"POST /login HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\nContent-Type: application/json\r\n"
    with listening(endpoint.server(room.app(file_store))) as url:
        assert status(send(url, [start + b"Content-Length: 5000\r\n\r\n" + b" " * 4000])[1]) == 413


class Loop:
    """A server whose loop can be made to stand still, so that it reads from many at once."""

    def __init__(self) -> None:
        self.is_still, self.goes_on = threading.Event(), threading.Event()
        self.may_read, self.bodies = threading.Event(), list[int]()

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["path"] == "/still":
            self.is_still.set()
            self.goes_on.wait(30.0)
        await asyncio.to_thread(self.may_read.wait, 30.0)
        size, more = 0, True
        while more:
            message = await receive()
            size, more = size + len(message.get("body", b"")), message.get("more_body", False)
        self.bodies.append(size)
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", b"0")]})
        await send({"type": "http.response.body", "body": b""})


SIZE, CALLERS = 200_000, 40


def held_back(server: Any, start: bytes, rest: bytes, what: str) -> tuple[int, list[bytes], list[int]]:
    """The bytes that a server holds after so many sent at once; what it answered, and the bodies it took."""
    loop: Loop = server.config.app
    with listening(server) as url, ExitStack() as held:
        peers = [held.enter_context(connect(url)) for _ in range(CALLERS)]
        still = held.enter_context(connect(url))
        push(still, [b"GET /still HTTP/1.1\r\nHost: localhost\r\n\r\n"])
        assert loop.is_still.wait(30.0)
        for peer in peers:
            peer.setblocking(False)
            push(peer, [start + rest])
        loop.goes_on.set()
        time.sleep(0.5)
        size = sum(getattr(one, what) for one in server.server_state.connections)
        loop.may_read.set()
        for peer in peers:
            peer.setblocking(True)
        return size, [peer.recv(64) if what == "_untaken" else b"" for peer in peers], loop.bodies


def test_bodies_that_nobody_has_taken_are_few_and_none_is_lost(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(http_limits, "ALL_BODIES", 2 * SIZE)
    start = b"POST / HTTP/1.1\r\nHost: localhost\r\nContent-Length: %d\r\n\r\n" % SIZE
    size, answers, bodies = held_back(endpoint.server(Loop()), start, b"a" * SIZE, "_untaken")
    assert size < 6 * SIZE  # of 40
    assert [status(answer) for answer in answers] == [200] * CALLERS
    assert sorted(bodies) == [0, *[SIZE] * CALLERS]


def test_heads_that_come_at_once_are_few(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that was let go of counts no more, so that the next one goes."""
    monkeypatch.setattr(http_limits, "ALL_HEADS", 200_000)
    start = b"GET / HTTP/1.1\r\nHost: localhost\r\nX-A: "
    size, _, _ = held_back(endpoint.server(Loop()), start, b"a" * 60_000, "_head")
    assert 60_000 < size <= 200_000
