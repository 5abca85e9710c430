"""Every parser of foreign bytes: whatever comes is read, or refused in one of our own ways.

`make fuzz` tries other examples each time; `make fuzz-bytes` ten minutes for each of these.
"""

from __future__ import annotations

import json
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.collect import endpoint
from holdfast.collect.chat_format import read_request
from holdfast.collect.otlp import wire
from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.dialect import Chat, Splitter
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.rows import read_rows
from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.settings import load_settings
from holdfast.town import record, rules
from tests.operate.room import listening
from tests.security.conftest import nobody
from tests.security.raw import connect, everything, push, status

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=12), inner, max_size=4),
    max_leaves=20,
)
FIELDS = (
    "model",
    "messages",
    "role",
    "content",
    "stream",
    "tools",
    "input",
    "n",
    "resourceSpans",
    "scopeSpans",
    "spans",
)
SHAPED = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.sampled_from(FIELDS), inner, max_size=5),
    max_leaves=25,
).map(lambda value: json.dumps(value).encode())
BYTES = st.binary(max_size=300) | SHAPED
HTTP = st.lists(
    st.sampled_from(
        [b"GET / HTTP/1.1\r\n", b"POST /v1/chat/completions HTTP/1.1\r\n", b"Host: localhost\r\n", b"\r\n", b"\n",
         b"Transfer-Encoding: chunked\r\n", b"Content-Length: 5\r\n", b"Content-Length: -1\r\n", b"5\r\nhello\r\n",
         b"0\r\n", b"ffffffffffffffff\r\n", b"Connection: Upgrade\r\nUpgrade: websocket\r\n", b"Expect: 100\r\n",
         b"X-A: b\r\n", b"\0", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"hello"]
    )
    | st.binary(max_size=40),
    max_size=12,
)  # fmt: skip


@pytest.fixture(scope="module")
def url() -> Any:
    with listening(endpoint.server(endpoint.app(nobody, name="m"), wait_s=0.5)) as at:
        yield at


@given(parts=HTTP)
def test_http(url: str, parts: list[bytes]) -> None:
    """Whatever was sent, the next caller is answered."""
    with connect(url) as peer:
        push(peer, parts)
    with connect(url) as peer:
        push(peer, [b"GET /health HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n"])
        assert status(everything(peer)) == 200


@given(body=BYTES, media_type=st.sampled_from([wire.JSON, wire.PROTOBUF]))
@example(body=b"\n\0\n\x02\x12\0", media_type=wire.PROTOBUF)
def test_otlp(body: bytes, media_type: str) -> None:
    try:
        spans, unread = wire.read(body, media_type)
    except HoldfastError:
        return
    assert isinstance(spans, list) and unread >= 0


@given(body=BYTES, dialect=st.sampled_from([Chat(), Responses(), Messages()]))
def test_requests(body: bytes, dialect: Any) -> None:
    for read in (dialect.read_request, lambda given: read_request(json.loads(given))):
        try:
            read(body)
        except (HoldfastError, ValueError):
            continue


@given(
    chunks=st.lists(SHAPED.map(lambda one: b"data: " + one + b"\n\n") | st.binary(max_size=60), max_size=8),
    dialect=st.sampled_from([Chat(), Responses(), Messages()]),
)
def test_server_sent_events(chunks: list[bytes], dialect: Any) -> None:
    asked = dialect.read_request(b'{"model": "m", "messages": [], "input": "hi", "max_tokens": 1}')
    splitter, assembler = Splitter(), dialect.stream(asked)
    for chunk in chunks:
        for event in splitter.feed(chunk):
            assembler.feed(event)
    assembler.result()


@given(
    body=st.binary(max_size=200) | JSON.map(lambda value: json.dumps(value).encode()),
    kind=st.sampled_from(["json", "toml", "jsonl"]),
)
def test_configs_rows_and_rules(body: bytes, kind: str) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / f"given.{kind}"
        path.write_bytes(body)
        town = (rules.load,) if kind == "toml" else ()
        for read in (load_settings, lambda at: list(read_rows(at)), *town):
            try:
                read(path)
            except (HoldfastError, rules.BadRules):
                continue


@given(body=st.binary(max_size=300))
@example(body=b"PK\x05\x06" + bytes(18))
def test_snapshots_of_a_town(body: bytes) -> None:
    with TemporaryDirectory() as folder:
        path = Path(folder) / "town.npz"
        path.write_bytes(body)
        with pytest.raises(record.BadFile):
            record.inspect(path)
