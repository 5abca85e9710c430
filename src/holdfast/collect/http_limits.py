"""Limits of all our HTTP servers: heads, trailers, connections, wrong tokens, open streams, tokens that can be guessed.

`endpoint` reads requests and answers them; what is refused here never reaches an application.
"""

from __future__ import annotations

import asyncio
import ipaddress
import resource
import time
from collections import Counter, OrderedDict
from collections.abc import Callable
from typing import Any

from starlette.requests import Request as Asked
from uvicorn.protocols.http.httptools_impl import HttpToolsProtocol

from holdfast.contracts.errors import BadInput

WAIT_S = 30.0  # for the head of a request, and for its body
UNREAD_S = 60.0  # that a client may leave an answer unread
LARGEST_HEAD = 64 * 1024  # bytes of a head, or of the trailers
MOST_HEADERS = 100
ALL_HEADS = 16 * 2**20  # bytes of unfinished heads of one server
MOST_CONNECTIONS = 1024
SPARE_FILES = 128  # that stay for the store and for upstreams
SLICE, BODY_SLICE = 4096, 64 * 1024  # bytes of a head, and of a body, that are parsed at once
MOST_PIPELINED = 8  # requests that wait for the answers before them on one connection
SHORTEST_TOKEN = 20
MOST_KNOWN = 4096  # keys that a limiter remembers
GUESSES_PER_S, GUESSES = 0.1, 5.0  # wrong tokens of one address
REFUSALS = {431: "Request Header Fields Too Large", 503: "Service Unavailable"}


def check_token(token: str, what: str = "token") -> str:
    """Refuses a token that can be guessed, or cannot stand in a header."""
    remedy = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
    if not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise BadInput(what, why="cannot stand in a header", remedy=remedy)
    if len(token) < SHORTEST_TOKEN:
        raise BadInput(what, why=f"has {len(token)} characters, and needs {SHORTEST_TOKEN}", remedy=remedy)
    return token


def address_of(asked: Asked) -> str:
    """The caller's address, whole or, of IPv6, its network: who has one address there has 2^64 of them."""
    host = asked.client.host if asked.client is not None else "?"
    try:
        found = ipaddress.ip_address(host.partition("%")[0])
    except ValueError:
        return host
    return host if found.version == 4 else str(ipaddress.ip_network((found, 64), strict=False).network_address)


class RateLimiter:
    """A token bucket for each key: so many requests a second, and a burst."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, float(burst), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → how many were left, when

    def take(self, key: str) -> float:
        """Counts a request and returns 0, or returns the seconds to wait."""
        wait_s = self.wait_s(key)
        if wait_s == 0.0:
            self.spend(key)
        return wait_s

    def wait_s(self, key: str) -> float:
        """Seconds until the next may pass; counts nothing."""
        left = self._now(key)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def spend(self, key: str) -> None:
        """Counts one, whatever is left."""
        self._left[key] = (max(0.0, self._now(key) - 1.0), self._clock())
        self._left.move_to_end(key)
        while len(self._left) > MOST_KNOWN:  # the longest quiet keys have full buckets again
            self._left.popitem(last=False)

    def _now(self, key: str) -> float:
        left, at = self._left.get(key, (self._burst, self._clock()))
        return min(self._burst, left + max(0.0, self._clock() - at) * self._per_s)


class StreamLimiter:
    """At most so many open streams for each key."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, Counter[str]()

    def open(self, key: str) -> bool:
        """Counts one more, unless all are in use."""
        if self._open[key] >= self._most:
            return False
        self._open[key] += 1
        return True

    def close(self, key: str) -> None:
        self._open[key] -= 1
        self._open += Counter()  # forgets keys without a stream


class LimitedProtocol(HttpToolsProtocol):
    """A connection within limits. uvicorn has none: it waits for ever, and keeps heads and trailers of any size.

    Where a server is full, the connection that has waited longest for a request makes room; where all heads together
    are too large, the one with the largest does.
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

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._since = self.loop.time()
        if len(self.connections) > self.most_connections:
            waiting = [one for one in self._others() if one.is_waiting]
            if not waiting:
                self.refuse(503)
                return
            min(waiting, key=lambda one: one._since).transport.abort()
        self._expect()

    @property
    def is_waiting(self) -> bool:
        """Whether no request is being answered."""
        return (self.cycle is None or self.cycle.response_complete) and not self.transport.is_closing()  # type: ignore[redundant-expr]

    def _others(self) -> list[LimitedProtocol]:
        return [one for one in self.connections if isinstance(one, LimitedProtocol) and one is not self]

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
        heads = {one: one._head for one in (*self._others(), self)}
        if sum(heads.values()) > ALL_HEADS:
            max(heads, key=lambda one: one._head).transport.abort()

    def refuse(self, status: int) -> None:
        """Answers and hangs up."""
        self._status = status
        self.send_400_response(REFUSALS[status])

    def send_400_response(self, msg: str) -> None:
        line = f"HTTP/1.1 {self._status} {REFUSALS.get(self._status, 'Bad Request')}\r\n"
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
        self._has_moved = self._is_body = True
        if len(self.pipeline) >= MOST_PIPELINED:
            self._status = 503
            raise ValueError(f"more than {MOST_PIPELINED} requests at once")
        super().on_headers_complete()

    def on_body(self, body: bytes) -> None:
        self._has_moved = True
        super().on_body(body)

    def on_message_complete(self) -> None:
        self._has_moved, self._is_body = True, False
        super().on_message_complete()

    def on_response_complete(self) -> None:
        self._since = self.loop.time()
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
