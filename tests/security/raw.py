"""Bytes that no client would send, to a server in this process."""

from __future__ import annotations

import socket
from collections.abc import Iterable
from urllib.parse import urlsplit

PATIENCE_S = 30.0


def connect(url: str) -> socket.socket:
    at = urlsplit(url)
    assert at.hostname and at.port
    return socket.create_connection((at.hostname, at.port), timeout=PATIENCE_S)


def send(url: str, parts: Iterable[bytes]) -> tuple[int, bytes]:
    """How many bytes the server took before it hung up, and what it said."""
    with connect(url) as peer:
        taken = push(peer, parts)
        return taken, everything(peer)


def push(peer: socket.socket, parts: Iterable[bytes]) -> int:
    taken = 0
    try:
        for part in parts:
            peer.sendall(part)
            taken += len(part)
    except OSError:  # it hung up
        pass
    return taken


def everything(peer: socket.socket) -> bytes:
    """What comes until the server hangs up."""
    found = b""
    try:
        while part := peer.recv(65536):
            found += part
    except OSError:
        pass
    return found


def status(answer: bytes) -> int:
    return int(answer.split(b" ", 2)[1]) if answer.startswith(b"HTTP/1.1 ") else 0
