"""Every parser of foreign bytes: whatever comes is read, or refused in one of our own ways.

`make fuzz` tries other examples each time; `make fuzz-bytes` ten minutes for each of these.
"""

from __future__ import annotations

import hashlib
import io
import json
import zipfile
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

import numpy as np
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
from holdfast.policies import hub, weights
from holdfast.policies.chat_template import JinjaTemplate
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.model import folder_of
from holdfast.policies.tool_formats import reader_of
from holdfast.town import record, rules, state
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


# Files: one that is whole, and somewhere in it something else

FLIPS = st.lists(st.tuples(st.integers(0, 2**20), st.integers(1, 255)), max_size=4)
CUT = st.none() | st.integers(0, 2**20)


def spoilt(body: bytes, flips: list[tuple[int, int]], cut: int | None) -> bytes:
    """Some bytes changed, and perhaps the end missing."""
    data = bytearray(body)
    for place, by in flips:
        data[place % len(data)] ^= by
    return bytes(data if cut is None else data[: cut % len(data)])


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any], bytes]:
    """A model's folder with its manifest and tensors."""
    folder = tmp_path_factory.mktemp("model")
    model = Transformer(ModelShape(width=8, layers=1, heads=2, context=16), seed=0)
    weights.save_transformer(folder, model, weights.Manifest(kind="transformer", shape={}, created_at=1.0))
    told = json.loads((folder / weights.MANIFEST).read_text())
    return folder, told, (folder / told["file"]).read_bytes()


@given(
    changes=st.dictionaries(st.sampled_from([*weights.Manifest.__dataclass_fields__, "more"]), JSON, max_size=3),
    shape=st.dictionaries(st.sampled_from([*ModelShape.__dataclass_fields__, "more"]), JSON, max_size=2),
    flips=FLIPS,
    cut=CUT,
    is_tensors=st.booleans(),
)
def test_manifests(
    saved: tuple[Path, dict[str, Any], bytes],
    changes: dict[str, Any],
    shape: dict[str, Any],
    flips: list[tuple[int, int]],
    cut: int | None,
    is_tensors: bool,
) -> None:
    """Of weights: fields that are something else, a damaged file, and tensors that were damaged before the hash."""
    folder, told, content = saved
    given = {**told, "shape": {**told["shape"], **shape}}
    if is_tensors:
        content = spoilt(content, flips, cut)
        sha256 = hashlib.sha256(content).hexdigest()
        given |= {"sha256": sha256, "file": f"weights-{sha256[:16]}.safetensors"}
    body = json.dumps(given | changes).encode()
    (folder / str(given["file"])).write_bytes(content)
    (folder / weights.MANIFEST).write_bytes(body if is_tensors else spoilt(body, flips, cut))
    try:
        weights.transformer(folder)
    except HoldfastError:
        pass
    finally:
        if given["file"] != told["file"]:
            (folder / str(given["file"])).unlink()


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """A model as it is fetched from elsewhere, and its config."""
    pytest.importorskip("transformers")
    folder, source = tmp_path_factory.mktemp("fetched"), folder_of("tiny-tools")
    for one in source.iterdir():
        if one.name != "config.json":
            (folder / one.name).symlink_to(one)
    return folder, json.loads((source / "config.json").read_text())


SMALL = st.recursive(
    st.none() | st.booleans() | st.integers(-5, 300) | st.floats() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=8), inner, max_size=3),
    max_leaves=6,
)


@given(data=st.data(), flips=FLIPS, cut=CUT, is_damaged=st.booleans())
def test_models_of_elsewhere(
    model_folder: tuple[Path, dict[str, Any]], data: Any, flips: Any, cut: int | None, is_damaged: bool
) -> None:
    folder, told = model_folder
    changes = data.draw(st.dictionaries(st.sampled_from([*told, "rope_scaling", "more"]), SMALL, max_size=3))
    body = json.dumps(told | changes).encode()
    (folder / "config.json").write_bytes(spoilt(body, flips, cut) if is_damaged else body)
    for read in (hub.template_of, hub.load):
        try:
            read(folder)
        except HoldfastError:
            continue


TEMPLATE = st.lists(
    st.sampled_from(
        ["{% for m in messages %}", "{% endfor %}", "{{ m.content }}", "{{ m['role'] }}", "{% if tools %}",
         "{% endif %}",
         "{% set x = namespace(a=[]) %}", "{% set x.a = x.a + [1] %}", "{{ messages[0].content[:3] }}", "{{ 1 / 0 }}",
         "{{ raise_exception('no') }}", "{{ tools | tojson }}", "{% macro f() %}{{ f() }}{% endmacro %}", "{{ f() }}",
         "{{ messages | length }}", "{{ ''.__class__.__mro__ }}", "{{ none.x.y }}", "{% include 'x' %}", "{# ", "{%",
         "{{ 'a' * 1000 }}", "<tool_call>", "[TOOL_CALLS]", "<|python_tag|>", "{{ m.tool_calls[0].function.name }}"]
    )
    | st.text(max_size=12),
    max_size=8,
).map("".join)  # fmt: skip
MESSAGES = st.lists(
    st.fixed_dictionaries(
        {"role": st.sampled_from(["system", "user", "assistant", "tool"]) | st.text(max_size=4)},
        optional={"content": JSON, "tool_calls": JSON, "reasoning_content": JSON},
    ),
    max_size=4,
)


@pytest.fixture(scope="module")
def tokenizer() -> Any:
    transformers = pytest.importorskip("transformers")
    return transformers.AutoTokenizer.from_pretrained(folder_of("tiny-tools"), local_files_only=True)


@given(template=TEMPLATE, messages=MESSAGES, ids=st.lists(st.integers(0, 300), max_size=20))
def test_chat_templates(tokenizer: Any, template: str, messages: list[dict[str, Any]], ids: list[int]) -> None:
    """Whatever a model's folder has as its template, and a caller as messages."""
    tokenizer.chat_template = template
    chat = JinjaTemplate(tokenizer, frozenset({tokenizer.eos_token_id}))
    try:
        assert all(isinstance(token, int) for token in chat.prompt(messages))
        if messages:
            chat.answer(messages)
    except HoldfastError:
        pass
    assert chat.read(ids)["role"] == "assistant"


FORMS = ("[TOOL_CALLS]", "<function=", "<|tool_call|>", "<|python_tag|>", "<tool_call>")
SAID = st.lists(
    st.sampled_from(
        [*FORMS, "</tool_call>", "</function>", "<|/tool_call|>", "[ARGS]", "<parameter=a>", "</parameter>", "add",
         '{"name": "add", "arguments": {"a": 1}}', '{"name": 1}', "[", "]", "{", "}", ";", "[{", "}]", "\n", '"',
         "1e999"]
    )
    | st.text(max_size=8)
    | SHAPED.map(bytes.decode),
    max_size=10,
).map("".join)  # fmt: skip


@given(text=SAID, form=st.sampled_from(FORMS))
@example(text='<tool_call>{"name": "f", "arguments": ' + "[" * 100_000 + "}</tool_call>", form="<tool_call>")
@example(text="[TOOL_CALLS]" + "[" * 100_000, form="[TOOL_CALLS]")
@example(text='{"a":' * 100_000, form="<|python_tag|>")
def test_calls_of_tools(text: str, form: str) -> None:
    """What a model says: it is read, with its calls or without."""
    rest, calls = reader_of(form)(text)
    assert isinstance(rest, str) and all(isinstance(name, str) for name, _ in calls)


@pytest.fixture(scope="module")
def town(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, rules.Rules, bytes]:
    """A snapshot of a town."""
    path, given = tmp_path_factory.mktemp("town") / "town.npz", rules.load()
    record.save(path, state.blank(1, 2, 2, 2, 2), given)
    return path, given, path.read_bytes()


def with_about(body: bytes, changes: dict[str, Any]) -> bytes:
    """The snapshot with another account of itself; its own where nothing is changed."""
    out = io.BytesIO()
    with zipfile.ZipFile(io.BytesIO(body)) as packed, zipfile.ZipFile(out, "w") as made:
        for one in packed.namelist():
            content = packed.read(one)
            if one == "about.npy" and changes:
                told = json.loads(np.load(io.BytesIO(content)).tobytes()) | changes
                content = npy(json.dumps(told).encode())
            made.writestr(one, content)
    return out.getvalue()


def npy(body: bytes) -> bytes:
    out = io.BytesIO()
    np.save(out, np.frombuffer(body, np.uint8))
    return out.getvalue()


ABOUT = ("format", "schema", "rules", "state", "tick", "notes", "arrays")
ARRAYS = st.dictionaries(st.sampled_from(["people", "town", "things"]), JSON, max_size=3)


@given(
    flips=FLIPS,
    cut=CUT,
    about=st.dictionaries(st.sampled_from(ABOUT), JSON | ARRAYS, max_size=2),
    noise=st.none() | st.binary(max_size=300),
)
@example(flips=[], cut=None, about={}, noise=b"PK\x05\x06" + bytes(18))
def test_snapshots_of_a_town(
    town: tuple[Path, rules.Rules, bytes],
    flips: list[tuple[int, int]],
    cut: int | None,
    about: dict[str, Any],
    noise: bytes | None,
) -> None:
    path, given, whole = town
    path.write_bytes(spoilt(with_about(whole, about), flips, cut) if noise is None else noise)
    for read in (record.inspect, lambda at: record.load(at, given)):
        try:
            read(path)
        except record.BadFile:
            continue


SCRIPT = ("replay", "seed", "rules", "tick", "name", "args", "ticks", "state")


@given(lines=st.lists(st.dictionaries(st.sampled_from(SCRIPT), JSON, max_size=6) | JSON, max_size=5), noise=st.binary())
@example(lines=[], noise=b"[" * 100_000)
def test_replays_of_a_town(town: tuple[Path, rules.Rules, bytes], lines: list[Any], noise: bytes) -> None:
    path = town[0].with_name("town.replay")
    for body in ("\n".join(map(json.dumps, lines)).encode(), noise):
        path.write_bytes(body)
        try:
            script = record.read_script(path)
        except record.BadFile:
            continue
        assert isinstance(script.seed, int) and isinstance(script.ticks, int)
