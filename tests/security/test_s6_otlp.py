"""S6: spans that were packed, or say little in many bytes, take no more memory than they are worth."""

from __future__ import annotations

import gzip
import socket
import time
from contextlib import ExitStack, suppress
from urllib.parse import urlsplit

import pytest
import requests
from starlette.applications import Starlette
from starlette.exceptions import HTTPException

from holdfast.collect.endpoint import WaitingBodies
from holdfast.collect.otlp import wire
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.errors import BadInput
from holdfast.store.store import Store
from tests.collect.proxy.far import served
from tests.security.conftest import resident_mb

SIZE, MOST_MB = 8 * 2**20, 64.0


def sized(inner: bytes) -> bytes:
    """With its length before it, as protobuf has it."""
    size, rest = b"", len(inner)
    while rest > 127:
        size, rest = size + bytes([rest & 127 | 128]), rest >> 7
    return size + bytes([rest]) + inner


def attributes(values: bytes) -> bytes:
    """A request whose one span has one attribute with these values."""
    pair = sized(b"\x0a\x01a\x12" + sized(b"\x2a" + sized(values)))
    return b"\x0a" + sized(b"\x12" + sized(b"\x12" + sized(b"\x4a" + pair)))


LITTLE = {
    "groups in protobuf": (wire.PROTOBUF, b"\x0a\0" * (SIZE // 2)),
    "spans in protobuf": (wire.PROTOBUF, b"\x0a" + sized(b"\x12" + sized(b"\x12\0" * (SIZE // 2)))),
    "values in protobuf": (wire.PROTOBUF, attributes(b"\x0a\x02\x18\x01" * (SIZE // 4))),
    "objects in JSON": (wire.JSON, b'{"resourceSpans":[' + b"{}," * (SIZE // 3) + b"{}]}"),
    "lists in JSON": (wire.JSON, b'{"resourceSpans":' + b"[[]," * (SIZE // 4) + b"0" + b"]" * (SIZE // 4) + b"}"),
    "texts in JSON": (wire.JSON, b'{"resourceSpans":[' + b'"",' * (SIZE // 3) + b"0]}"),
}


@pytest.mark.parametrize("what", LITTLE)
def test_a_request_of_very_many_values_is_refused_before_it_is_read(what: str) -> None:
    media_type, body = LITTLE[what]
    rest = resident_mb()
    with pytest.raises(BadInput, match="too many values"):
        wire.read(body, media_type)
    assert resident_mb() - rest < MOST_MB


@pytest.mark.parametrize("media_type", [wire.JSON, wire.PROTOBUF])
def test_long_texts_full_of_commas_and_quotes_are_no_values(media_type: str) -> None:
    said = 'one, "two", {three}, [four], ' * 50_000 + "\\"
    span = wire.OtelSpan(
        trace_id="a" * 32, span_id="b" * 16, name="s", started_ns=1, ended_ns=2, attributes={"a": said}
    )
    (found,), unread = wire.read(wire.written([span], media_type), media_type)
    assert found.attributes["a"] == said and not unread


def test_31_kb_of_gzip_are_refused_while_they_are_unpacked(file_store: Store) -> None:
    packed = gzip.compress(b'{"resourceSpans":[' + b"{}," * 10_000_000)
    assert len(packed) < 40_000
    with served(lambda: Starlette(routes=routes(SpanReceiver(file_store, clock=time.time)))) as at:
        rest = resident_mb()
        how = {"Content-Type": wire.JSON, "Content-Encoding": "gzip"}
        answer = requests.post(f"{at}/v1/traces", packed, headers=how, timeout=60)
        assert answer.status_code == 413 and "packed more than" in answer.text
    assert resident_mb() - rest < MOST_MB


def proxy(store: Store) -> Starlette:
    return app(store, [Upstream("http://127.0.0.1:9")], routes=routes(SpanReceiver(store, clock=time.time)))


def test_many_large_bodies_at_once_are_given_up_and_a_small_one_is_taken(file_store: Store) -> None:
    """They are read before their turn, lest a slow one keep others waiting: 20 of 16 MiB took 320 MB."""
    small = wire.OtelSpan(trace_id="a" * 32, span_id="b" * 16, name="s", started_ns=1, ended_ns=2)
    head = b"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: %s\r\nContent-Length: %d\r\n\r\n"
    head %= wire.JSON.encode(), 2 * SIZE
    said = b"a" * (2 * SIZE - 1)
    with ExitStack() as held:
        at = held.enter_context(served(lambda: proxy(file_store)))
        place, rest, heard = (urlsplit(at).hostname, urlsplit(at).port), resident_mb(), []
        for _ in range(20):
            peer = held.enter_context(socket.create_connection(place, timeout=20))
            peer.sendall(head)
            with suppress(OSError):  # it has been given up
                peer.sendall(said)
            heard.append(peer)
        how = {"Content-Type": wire.JSON}
        answer = requests.post(f"{at}/v1/traces", wire.written([small], wire.JSON), headers=how, timeout=20)
        assert answer.status_code == 200
        assert resident_mb() - rest < 2 * MOST_MB  # both ends are in this process; a server alone takes 38
        heard[0].sendall(b"a")
        assert b" 503 " in heard[0].recv(64)


def test_a_client_that_leaves_amid_its_body_leaves_no_traceback(
    file_store: Store, capfd: pytest.CaptureFixture[str]
) -> None:
    """Sixty lines for each: whoever has a token could fill a disk with them."""
    head = f"POST /v1/traces HTTP/1.1\r\nHost: localhost\r\nContent-Type: {wire.JSON}\r\nContent-Length: 9\r\n\r\nabc"
    with served(lambda: proxy(file_store)) as at:
        for _ in range(3):
            with socket.create_connection((urlsplit(at).hostname, urlsplit(at).port), timeout=20) as peer:
                peer.sendall(head.encode())
                time.sleep(0.1)
        assert requests.get(f"{at}/training/proxy/health", timeout=20).status_code == 200
        time.sleep(0.2)
    assert "Traceback" not in capfd.readouterr().err


def test_a_body_that_was_given_up_pushes_no_other_out() -> None:
    waiting = WaitingBodies(100)
    with waiting.another() as slow, waiting.another() as other, waiting.another() as small:
        slow.began -= 10.0
        slow.write(b"x" * 80)
        small.write(b"x" * 20)
        other.write(b"x" * 70)  # the slow one goes
        with pytest.raises(HTTPException) as refused:
            slow.write(b"x" * 90)
        assert refused.value.status_code == 503
        assert (other.take(), small.take()) == (b"x" * 70, b"x" * 20)
