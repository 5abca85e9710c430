"""Answers of any form are read as they come; what is not whole is never taken for whole, and kept connections serve."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field

import pytest

from holdfast.collect.proxy.connection import MOST_HEAD, MOST_WAITING, BrokenConnection, Connections
from holdfast.contracts.errors import BadInput

OK = b"HTTP/1.1 200 OK\r\n"
SIZED = OK + b"Content-Length: 5\r\nX-Id: 7\r\n\r\nhello"
CHUNKED = OK + b"Transfer-Encoding: chunked\r\nX-Id: 7\r\n\r\n"
CUT = None  # the server hangs up


@dataclass
class Server:
    """Says its pieces in answer to every request, each by itself."""

    pieces: Sequence[bytes | None] = (SIZED,)
    asked: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    async def serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.connections += 1
        try:
            while head := await reader.readuntil(b"\r\n\r\n"):
                length = int(head.lower().partition(b"content-length: ")[2].partition(b"\r\n")[0])
                self.asked.append(head + await reader.readexactly(length))
                for piece in self.pieces:
                    if piece is None:
                        return
                    writer.write(piece)
                    await writer.drain()
                    await asyncio.sleep(0.005)
        except (asyncio.IncompleteReadError, ConnectionError):
            pass
        finally:
            writer.close()


@asynccontextmanager
async def standing(*pieces: bytes | None, read_s: float = 5.0) -> AsyncIterator[tuple[Server, Connections]]:
    server = Server(pieces or (SIZED,))
    listening = await asyncio.start_server(server.serve, "127.0.0.1", 0)
    server.port = listening.sockets[0].getsockname()[1]
    here = Connections(f"http://127.0.0.1:{server.port}/below", connect_s=5.0, read_s=read_s)
    try:
        yield server, here
    finally:
        here.close()
        listening.close()


async def said(here: Connections, body: bytes = b"{}") -> tuple[int, bytes]:
    answer = await here.post("/v1/x", {"content-type": "application/json"}, body)
    parts = []
    while part := await answer.read():
        parts.append(part)
    here.rest(answer)
    return answer.status, b"".join(parts)


@pytest.mark.parametrize(
    ("pieces", "expected", "connections"),
    [
        ((SIZED,), (200, b"hello"), 1),
        ((SIZED[:10], SIZED[10:50], SIZED[50:]), (200, b"hello"), 1),  # cut anywhere
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n2\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n"), (200, b"hello"), 1),
        ((b"HTTP/1.1 103 Early Hints\r\nX-Id: 1\r\n\r\n" + SIZED,), (200, b"hello"), 1),  # a word before the answer
        # what it says of its size is not the answer's
        ((b"HTTP/1.1 103 Early Hints\r\nContent-Length: 9\r\n\r\n", OK + b"\r\nhello", CUT), (200, b"hello"), 2),
        ((b"HTTP/1.1 204 No Content\r\n\r\n",), (204, b""), 1),
        ((b"HTTP/1.1 503 No\r\nContent-Length: 0\r\n\r\n",), (503, b""), 1),
        ((OK + b"\r\nhel", b"lo", CUT), (200, b"hello"), 2),  # as long as the connection
        ((OK + b"Connection: close\r\nContent-Length: 5\r\n\r\nhello", CUT), (200, b"hello"), 2),
        ((SIZED, CUT), (200, b"hello"), 2),  # hung up after it
        ((SIZED + b"HTTP/1.1 200 OK\r\n",), (200, b"hello"), 2),  # more than was asked for: never used again
    ],
)
async def test_an_answer_is_read_whole_in_every_form_and_its_connection_kept_where_it_can_be(
    pieces: tuple[bytes | None, ...], expected: tuple[int, bytes], connections: int
) -> None:
    async with standing(*pieces) as (server, here):
        assert await said(here) == expected
        await asyncio.sleep(0.05)
        assert await said(here, b"[1]") == expected
        assert server.connections == connections
    assert (
        server.asked[1]
        == (
            f"POST /below/v1/x HTTP/1.1\r\nHost: 127.0.0.1:{server.port}\r\nContent-Length: 3\r\n"
            "content-type: application/json\r\n\r\n[1]"
        ).encode()
    )


@pytest.mark.parametrize(
    ("pieces", "why"),
    [
        ((CUT,), "it hung up"),
        ((OK, CUT), "it hung up"),
        ((b"SSH-2.0-OpenSSH\r\n",), "is no HTTP"),
        ((OK + b"Content-Length: 9\r\n\r\nhello", CUT), "it hung up"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\n5\r\nhello\r\n", CUT), "it hung up"),
        ((OK + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n",), "is no HTTP"),
        ((b"HTTP/1.1 999 What\r\nContent-Length: 0\r\n\r\n",), "its status is 999"),
        ((b"HTTP/1.1 099 What\r\nContent-Length: 0\r\n\r\n",), "its status is 99"),
        ((b"HTTP/1.1 101 Switching Protocols\r\nConnection: upgrade\r\nUpgrade: h2c\r\n\r\n",), "its status is 101"),
        ((CHUNKED + b"1\r\nx\r\n0\r\n", *[b"X-More: %s\r\n" % (b"x" * 4000)] * (MOST_HEAD // 4000 + 1)), "larger than"),
        ((OK + b"".join(b"X-%d: %s\r\n" % (n, b"x" * 4000) for n in range(MOST_HEAD // 4000 + 1)),), "larger than"),
    ],
)
async def test_what_is_not_whole_is_never_taken_for_whole(pieces: tuple[bytes | None, ...], why: str) -> None:
    async with standing(*pieces) as (server, here):
        for _ in range(2):
            with pytest.raises(BrokenConnection, match=why):
                await said(here)
        assert server.connections == 2


async def test_the_pieces_come_as_they_are_sent() -> None:
    head = OK + b"Transfer-Encoding: chunked\r\n\r\n"
    async with standing(head, b"2\r\nhe\r\n", b"3\r\nllo\r\n", b"0\r\n\r\n") as (_, here):
        answer = await here.post("/v1/x", {}, b"{}")
        assert answer.headers == {b"transfer-encoding": b"chunked"}
        assert [await answer.read() for _ in range(3)] == [b"he", b"llo", b""]


async def test_silence_ends_an_answer_and_a_word_now_and_then_does_not() -> None:
    async with standing(OK + b"Content-Length: 9\r\n\r\nhello", read_s=0.2) as (_, here):
        answer = await here.post("/v1/x", {}, b"{}")
        assert await answer.read() == b"hello"
        with pytest.raises(TimeoutError):
            await answer.read()
        here.rest(answer)
    async with standing(OK + b"Content-Length: 160\r\n\r\n", *[b"x"] * 160, read_s=0.7) as (_, here):
        assert await said(here) == (200, b"x" * 160)  # 0.8 s in all


async def test_who_reads_slowly_makes_the_upstream_wait_and_is_not_taken_for_silent() -> None:
    size = 64 * MOST_WAITING
    async with standing(OK + b"Content-Length: %d\r\n\r\n" % size, b"x" * size, read_s=0.2) as (_, here):
        answer = await here.post("/v1/x", {}, b"{}")
        await asyncio.sleep(0.6)
        first = await answer.read()
        assert MOST_WAITING < len(first) < size / 2
        rest = [first]
        while part := await answer.read():
            rest.append(part)
        assert sum(map(len, rest)) == size


async def test_an_answer_that_nobody_wants_any_more_ends_its_connection() -> None:
    async with standing(OK + b"Content-Length: 9\r\n\r\nhello") as (server, here):
        for _ in range(2):
            here.rest(await here.post("/v1/x", {}, b"{}"))
        assert server.connections == 2


async def test_a_header_cannot_hold_another() -> None:
    async with standing() as (server, here):
        with pytest.raises(BadInput, match="header 'Authorization'"):
            await here.post("/v1/x", {"Authorization": "Bearer a\r\nX-Evil: 1"}, b"{}")
    assert server.asked == []


async def test_calls_at_the_same_time_have_a_connection_each() -> None:
    async with standing() as (server, here):
        assert await asyncio.gather(*(said(here) for _ in range(5))) == [(200, b"hello")] * 5
        assert await asyncio.gather(*(said(here) for _ in range(5))) == [(200, b"hello")] * 5
        assert server.connections == 5


async def test_what_follows_the_body_changes_nothing_that_was_said_before_it() -> None:
    trailers = b"0\r\nX-Id: 8\r\nContent-Type: text/event-stream\r\n\r\n"
    async with standing(CHUNKED + b"2\r\nhi\r\n" + trailers) as (_, here):
        answer = await here.post("/v1/x", {}, b"{}")
        assert [await answer.read(), await answer.read()] == [b"hi", b""]
        assert answer.headers == {b"transfer-encoding": b"chunked", b"x-id": b"7"}


async def test_many_small_pieces_are_not_taken_for_something_between_them() -> None:
    pieces = MOST_HEAD // 6 + 1000  # six bytes each, one of them the body's
    async with standing(CHUNKED, b"1\r\nx\r\n" * pieces, b"0\r\n\r\n") as (_, here):
        assert await said(here) == (200, b"x" * pieces)


async def test_a_word_that_came_while_nobody_asked_never_answers_the_next_request() -> None:
    stray = b"HTTP/1.1 408 Request Timeout\r\nContent-Length: 5\r\n\r\nSTRAY"
    heard: list[asyncio.StreamWriter] = []

    async def serve(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        heard.append(writer)
        while await reader.read(2**16):
            writer.write(SIZED)

    listening = await asyncio.start_server(serve, "127.0.0.1", 0)
    here = Connections(f"http://127.0.0.1:{listening.sockets[0].getsockname()[1]}", connect_s=5.0, read_s=5.0)
    try:
        assert await said(here) == (200, b"hello")
        heard[0].write(stray)  # sent at once; this loop has no time to hear it before it asks again
        assert await said(here) == (200, b"hello")
        assert len(heard) == 2
    finally:
        here.close()
        listening.close()
