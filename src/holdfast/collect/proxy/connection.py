"""HTTP/1.1 to one upstream: kept connections, one request at a time on each, and a gate that limits and holds calls.

It costs a tenth of a general client because it does nothing else: no redirects, cookies, compression or proxies.
"""

from __future__ import annotations

import asyncio
import re
import select
import ssl
from collections.abc import Mapping
from typing import Any

import httptools
from yarl import URL

from holdfast.contracts.errors import BadInput, HoldfastError


class Busy(HoldfastError):
    """The upstream is held or full."""

    retry_after_s = 1


class Gate:
    """Lets so many calls in at a time, and none while it is held."""

    def __init__(self, most: int, hold_s: float) -> None:
        self._most, self._hold_s = most, hold_s
        self.inside = 0
        self.is_held = False
        self._waiting: list[asyncio.Future[None]] = []

    def hold(self) -> None:
        """New calls wait; those inside go on."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._let_in()

    async def enter(self) -> None:
        """Waits for a place; Busy if that takes too long."""
        if not self.is_held and self.inside < self._most and not self._waiting:
            self.inside += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._hold_s):
                await place
        except BaseException as error:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.done() and not place.cancelled():
                self.leave()  # it was let in at the moment it gave up
            if isinstance(error, TimeoutError):
                why = "is held" if self.is_held else f"has {self.inside} calls under way"
                raise Busy("the upstream", why=why, remedy="come back a little later") from None
            raise

    def leave(self) -> None:
        self.inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and not self.is_held and self.inside < self._most:
            place = self._waiting.pop(0)
            if not place.done():
                self.inside += 1
                place.set_result(None)


KEEP_S = 30.0  # an idle connection is not used again after this
MOST_HEAD = 2**17  # bytes that are no body: before, between and after its pieces
MOST_WAITING = 2**19  # unread bytes of a body; beyond them we stop reading
LISTEN_S = 0.01
UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # in a header


class BrokenConnection(OSError):
    """The upstream does not speak HTTP, or stopped in the middle."""


class Connections:
    """The connections to one address."""

    def __init__(self, base: str, *, connect_s: float, read_s: float) -> None:
        url = URL(base, encoded=True)
        self._host, self._port, self._below = url.host or "", url.port or 0, url.raw_path.rstrip("/")
        self._named = url.host_port_subcomponent or ""
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._connect_s, self._read_s = connect_s, read_s
        self._resting: list[Connection] = []  # the last used comes last

    async def post(self, path: str, headers: Mapping[str, str], body: bytes) -> Connection:
        """The connection once the answer's head is there; TimeoutError or OSError if none comes."""
        lines = [f"POST {self._below}{path} HTTP/1.1", f"Host: {self._named}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        for line in lines:
            if UNFIT.search(line):
                raise BadInput(f"header {line.partition(':')[0][:60]!r}", why="has a letter that no header can hold")
        connection = self._rested() or await self._new()
        try:
            await connection.ask("\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace") + body)
        except BaseException:
            connection.abort()
            raise
        return connection

    def rest(self, connection: Connection) -> None:
        """Keeps a connection whose answer was read; closes any other."""
        if not connection.can_rest:
            connection.abort()
            return
        connection.rested_at = now = asyncio.get_running_loop().time()
        self._resting.append(connection)
        while now - self._resting[0].rested_at > KEEP_S:
            self._resting.pop(0).abort()

    def close(self) -> None:
        while self._resting:
            self._resting.pop().abort()

    def _rested(self) -> Connection | None:
        while self._resting:
            connection = self._resting.pop()
            if connection.is_quiet and asyncio.get_running_loop().time() - connection.rested_at <= KEEP_S:
                return connection
            connection.abort()
        return None

    async def _new(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            return (
                await loop.create_connection(
                    lambda: Connection(loop, self._read_s), self._host, self._port, ssl=self._tls
                )
            )[1]


class Connection(asyncio.Protocol):
    """`status` and `headers` are those of the last answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_s: float) -> None:
        self._loop, self._read_s = loop, read_s
        self._transport: Any = None
        self._parser: Any = None  # while an answer is expected
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_lost = False
        self.rested_at = 0.0

    @property
    def can_rest(self) -> bool:
        return self._is_whole and self._is_kept and not self._is_paused and not self.is_lost

    @property
    def is_quiet(self) -> bool:
        """Open, and without unread data, which would be taken for the next answer."""
        if self.is_lost or self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    async def ask(self, request: bytes) -> None:
        self.status, self.headers = 0, dict[bytes, bytes]()
        self._parts: list[bytes] = []
        self._waiting = self._bare = 0
        self._has_head = self._is_whole = self._is_kept = self._is_framed = self._is_paused = False
        self._error: BaseException | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._read_s, self._late)
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """The bytes since the last read; empty at the end. TimeoutError or OSError if it breaks off."""
        while not self._parts:
            if self._is_whole:
                return b""
            await self._more()
        found = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._is_paused and not self.is_lost:
            self._is_paused, self._heard = False, self._loop.time()
            self._transport.resume_reading()
        return found

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def abort(self) -> None:
        self._rest()
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def _rest(self) -> None:
        self._parser = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, is_sure: bool = False) -> None:
        """Times out after silence; while we pause reading, the upstream is not silent."""
        now = self._loop.time()
        left_s = self._read_s if self._is_paused else self._heard + self._read_s - now
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._late)
        elif not is_sure:  # data may be waiting while this loop was busy
            self._timer = self._loop.call_later(LISTEN_S, self._late, True)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: BaseException) -> None:
        if self._parser is not None:
            self._error = error
            self._wake()
        self.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()  # without a request
            return
        self._heard = self._loop.time()
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            why = error.__context__
            self._fail(
                why if isinstance(why, BrokenConnection) else BrokenConnection(f"its answer is no HTTP: {error}")
            )
            return
        if self._bare > MOST_HEAD and not self._is_whole:
            what = "what it sends between the pieces of its answer" if self._has_head else "the head of its answer"
            self._fail(BrokenConnection(f"{what} is larger than {MOST_HEAD} bytes"))
        elif self._waiting > MOST_WAITING and not self._is_paused and not self.is_lost:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._parser is not None and self._has_head and not self._is_framed and error is None:
            self._is_whole = True  # its end is the connection's end
            self._rest()
            self._wake()
        self._fail(error if isinstance(error, OSError) else BrokenConnection("it hung up"))

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise BrokenConnection("it says more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer must not change the head
        name = name.lower()
        self._is_framed |= name in (b"content-length", b"transfer-encoding")
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status == 101 or not 100 <= self.status <= 599:
            raise BrokenConnection(f"its status is {self.status}")
        if self.status >= 200:  # below: an interim response
            self._has_head = True
            self._is_framed |= self.status in (204, 304)
            self._wake()

    def on_body(self, body: bytes) -> None:
        self._bare = 0
        self._parts.append(body)
        self._waiting += len(body)
        self._wake()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole, self._is_kept = True, self._parser.should_keep_alive()
            self._rest()
            self._wake()
        else:
            self.headers.clear()
            self._is_framed = False
