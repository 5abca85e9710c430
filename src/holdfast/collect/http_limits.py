"""Limits of every connection to our HTTP servers: heads, trailers, waiting, reading, and how many there are.

`contracts.limits` counts what callers do, `endpoint` reads requests. What is refused here reaches no application.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
from typing import Any

import httptools
from starlette.requests import Request as HttpRequest
from uvicorn.protocols.http.flow_control import HIGH_WATER_LIMIT
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

WAIT_S = 30.0  # for the head of a request, and for its body
UNREAD_S = 60.0  # that a client may leave an answer unread
LARGEST_HEAD = 64 * 1024  # bytes of a head, or of the trailers
MOST_HEADERS = 100
ALL_HEADS = 16 * 2**20  # bytes of unfinished heads of one server
ALL_BODIES = 16 * 2**20  # bytes of bodies that came and that nobody has taken; beyond them nothing is read
LOOK_S = 0.005  # until it is looked whether they were taken
MOST_CONNECTIONS = 1024
SPARE_FILES = 128  # that stay for the store and for upstreams
SLICE, BODY_SLICE = 4096, 64 * 1024  # bytes of a head, and of a body, that are parsed at once
MOST_PIPELINED = 8  # requests that wait for the answers before them on one connection
STATUS_LINES = {431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def address_of(http_request: HttpRequest) -> str:
    """The caller's address, whole or, of IPv6, its network: who has one address there has 2^64 of them."""
    host = http_request.client.host if http_request.client is not None else "?"
    try:
        address = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if address.version == 4 else str(ipaddress.ip_network((address, 64), strict=False).network_address)


class LimitedProtocol(HttpToolsProtocol):
    """A connection within limits. uvicorn has none: it waits for ever, and keeps heads and trailers of any size.

    Where a server is full, the connection that has waited longest for a request makes room, or else for the rest of
    one; where all heads together are too large, the one with the largest does. While too much of bodies waits for
    the application, nothing is read.
    """

    wait_s = WAIT_S
    unread_s = UNREAD_S
    most_connections = MOST_CONNECTIONS
    _late: asyncio.TimerHandle | None = None
    _unread: asyncio.TimerHandle | None = None
    _head = 0  # bytes since the request, or the last part of its body, began
    _is_body = False
    _has_moved = False  # a request began or ended, or a part of its body came, in these bytes
    _trailers = 0
    _status = 400
    # Of all connections of a server:
    _arrived = 0  # bytes of bodies since it was last counted how many wait; it takes a while to count them
    _is_full = False  # nothing is read

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > self.most_connections:
            others = [protocol for protocol in self._all() if protocol is not self]
            waiting = [protocol for protocol in others if protocol.is_waiting or protocol.cycle.more_body]
            if not waiting:
                self.refuse(503)
                return
            min(waiting, key=lambda protocol: (not protocol.is_waiting, protocol._since))._let_go()
        self._expect()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return self.cycle is None or self.cycle.response_complete  # type: ignore[redundant-expr]

    def _all(self) -> list[LimitedProtocol]:
        """The open connections of this server."""
        protocols = [connection for connection in self.connections if isinstance(connection, LimitedProtocol)]
        return [protocol for protocol in protocols if not protocol.transport.is_closing()]

    def data_received(self, data: bytes) -> None:
        start = 0
        while start < len(data) and not self.transport.is_closing():
            part = data[start : start + (BODY_SLICE if self._is_body else SLICE)]
            start, self._has_moved = start + len(part), False
            super().data_received(part)
            self._head = 0 if self._has_moved else self._head + len(part)
            if self._head > LARGEST_HEAD:
                self.refuse(431)
        if self.transport.is_closing():
            return
        if self._head > SLICE:
            self._limit_heads()
        if self._late is None and self.is_waiting:
            self._expect()

    def _limit_heads(self) -> None:
        every = self._all()
        if sum(protocol._head for protocol in every) > ALL_HEADS:
            max(every, key=lambda protocol: protocol._head)._let_go()

    def _let_go(self) -> None:
        """Hangs up and forgets at once what came: the loop reads from many others before it ends this connection."""
        self._head, self.headers, self.parser = 0, [], httptools.HttpRequestParser(self)
        self.transport.abort()

    def refuse(self, status: int) -> None:
        """Answers and hangs up."""
        self._status = status
        self.send_400_response(STATUS_LINES[status])

    def send_400_response(self, msg: str) -> None:
        line = f"HTTP/1.1 {self._status} {STATUS_LINES.get(self._status, 'Bad Request')}\r\n"
        head = f"{line}content-type: text/plain\r\ncontent-length: {len(msg)}\r\nconnection: close\r\n\r\n"
        self.transport.write(f"{head}{msg}".encode())
        self.transport.close()

    def on_message_begin(self) -> None:
        self._has_moved, self._is_body, self._trailers = True, False, 0
        super().on_message_begin()

    def on_header(self, name: bytes, value: bytes) -> None:
        """Trailers are counted and dropped: they came after the request was admitted."""
        if self._is_body:
            self._trailers += 1
        else:
            super().on_header(name, value)
        if max(self._trailers, len(self.headers)) > MOST_HEADERS:
            self._status = 431
            raise ValueError(f"more than {MOST_HEADERS} headers")

    def on_headers_complete(self) -> None:
        self._relax()
        self._since = self.loop.time()
        self._has_moved = self._is_body = True
        if len(self.pipeline) >= MOST_PIPELINED:
            self._status = 503
            raise ValueError(f"more than {MOST_PIPELINED} requests at once")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        super().on_body(body)
        server = type(self)
        server._arrived += len(body)
        if server._arrived > ALL_BODIES:
            self._limit_bodies()

    @property
    def _untaken(self) -> int:
        return 0 if self.cycle is None else len(self.cycle.body)  # type: ignore[redundant-expr]

    def _limit_bodies(self) -> None:
        """The loop reads from many before any of their requests is looked at, also from those that are refused."""
        every, server = self._all(), type(self)
        server._arrived = sum(protocol._untaken for protocol in every)
        if server._arrived > ALL_BODIES:
            self.flow.pause_reading()
            if not server._is_full:
                server._is_full = True
                for protocol in every:
                    protocol.flow.pause_reading()
                self.loop.call_later(LOOK_S, self._go_on)

    def _go_on(self) -> None:
        every = self._all()
        if sum(protocol._untaken for protocol in every) > ALL_BODIES:
            self.loop.call_later(LOOK_S, self._go_on)
            return
        type(self)._is_full = False
        for protocol in every:
            if protocol._untaken <= HIGH_WATER_LIMIT and not protocol.pipeline:
                protocol.flow.resume_reading()

    def on_message_complete(self) -> None:
        self._has_moved, self._is_body = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
        if self.cycle.response_complete:
            self.cycle.body = bytearray()  # of a request that was refused unread
        super().on_response_complete()

    def pause_writing(self) -> None:
        super().pause_writing()
        self._unread = self._unread or self.loop.call_later(self.unread_s, self.transport.abort)

    def resume_writing(self) -> None:
        super().resume_writing()
        self._read()

    def connection_lost(self, exc: Exception | None) -> None:
        self._relax()
        self._read()
        super().connection_lost(exc)

    def _unsupported_upgrade_warning(self) -> None:
        """Nothing is logged: anybody can ask for an upgrade, and is answered as without."""

    def _expect(self) -> None:
        self._late = self.loop.call_later(self.wait_s, self.transport.abort)

    def _relax(self) -> None:
        if self._late is not None:
            self._late.cancel()
            self._late = None

    def _read(self) -> None:
        if self._unread is not None:
            self._unread.cancel()
            self._unread = None


def limited(**limits: Any) -> type[LimitedProtocol]:
    """The protocol of one server, with fewer connections where the process may not open as many files."""
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    most = limits.pop("most_connections", MOST_CONNECTIONS)
    if files != resource.RLIM_INFINITY:
        most = min(most, max(files - SPARE_FILES, files // 2))
    return type("LimitedProtocol", (LimitedProtocol,), {"most_connections": most, **limits})
