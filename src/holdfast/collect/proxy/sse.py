"""Server-sent events out of a stream of bytes, however it is cut into chunks. Reading never changes what is passed on.

Lines end with LF, CRLF or CR, and a blank one ends an event:
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

from typing import NamedTuple

LARGEST = 64 * 2**20  # bytes of one event: what is larger is passed on unread


class Event(NamedTuple):
    name: str  # "message" where the stream names none
    data: bytes


class Splitter:
    """Feed it chunks; it gives the events that they complete."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._rest: list[bytes] = []  # of an event that is not whole yet: joined only when a line ends
        self._size, self._largest = 0, largest
        self._begun = self._is_cr_open = False
        self.is_overfull = False  # one event was too large: nothing is read from there on

    def feed(self, chunk: bytes) -> list[Event]:
        if self.is_overfull or not chunk:
            return []
        text = self._lines(chunk)
        self._rest.append(text)
        self._size += len(text)
        if self._size > self._largest:
            self.is_overfull, self._rest = True, []
            return []
        if b"\n" not in text:
            return []
        text = b"".join(self._rest)
        if not self._begun:
            self._begun, text = True, text.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        *blocks, rest = text.split(b"\n\n")
        self._rest, self._size = [rest], len(rest)
        return [event for block in blocks if (event := _read(block)) is not None]

    def _lines(self, chunk: bytes) -> bytes:
        """With LF alone. A CR at the end is a line's end already; a LF that follows it belongs to it."""
        if self._is_cr_open and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._is_cr_open = chunk.endswith(b"\r")
        if b"\r" not in chunk:
            return chunk
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _read(block: bytes) -> Event | None:
    """None for a comment, or an event without data."""
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly all of them
        return Event("message", block[6:])
    name, data = "message", []
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode(errors="replace") or "message"
    return Event(name, b"\n".join(data)) if data else None
