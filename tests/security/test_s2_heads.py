"""S2: what a stranger sends before anybody knows who it is takes little memory, and ends."""

from __future__ import annotations

import time
from contextlib import ExitStack
from itertools import repeat

import pytest

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
