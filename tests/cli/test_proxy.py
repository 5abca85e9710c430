"""`holdfast proxy` as a program: real clients, the embedded model behind it, and what is left when it is killed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from http.client import HTTPConnection, IncompleteRead
from pathlib import Path
from threading import Event
from typing import Any
from urllib.parse import urlsplit

import openai
import pytest
from starlette.applications import Starlette
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from holdfast.cli.serve import read_bind, read_price
from holdfast.collect import endpoint
from holdfast.collect.chat_format import spell_byte
from holdfast.collect.proxy import attribution
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import AttemptState, Task
from holdfast.policies import tokens
from holdfast.store.store import Store, open_store
from tests.cli.conftest import PATIENCE_S, Cli, first_line, until
from tests.cli.conftest import running as running_program
from tests.collect.proxy.far import WORDS, Far, Step, asking, chunk, running, served

CALC: Any = {
    "type": "function",
    "function": {
        "name": "calc",
        "description": "Evaluate an expression.",
        "parameters": {"type": "object", "properties": {"expression": {"type": "string"}}},
    },
}


@contextmanager
def proxy(folder: Path, upstream: str, *more: str, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    given = {name: value for name, value in os.environ.items() if not name.endswith("_API_KEY")} | environment
    words = ("--upstream", upstream, "--port", "0", *more, "--store", folder / "store.db", "--state-dir", folder)
    with running_program("proxy", *words, env=given) as process:
        said = first_line(process)
        assert said.startswith("proxy at http://127.0.0.1:"), process.communicate(timeout=60)
        yield process, said.split()[2]


@pytest.fixture
def kept(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db", poll_s=0.01) as opened:
        yield opened


class Tee:
    """An app that keeps what it sent: the bytes of each answer."""

    def __init__(self, inner: ASGIApp) -> None:
        self._inner, self.sent, self.state = inner, list[bytearray](), Starlette().state

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        mine = bytearray()
        self.sent.append(mine)

        async def both(message: Message) -> None:
            mine.extend(message.get("body", b""))
            await send(message)

        await self._inner(scope, receive, both)


def test_the_official_client_streams_with_tools_and_gets_the_upstreams_bytes(tmp_path: Path, kept: Store) -> None:
    from holdfast.policies.engine import Local
    from holdfast.policies.model import load_transformer

    net, manifest = load_transformer("sprout")
    attempt = running(kept)
    with Local(net, name="sprout", version=manifest.sha256[:12]) as local:
        tee = Tee(endpoint.app(local, name="sprout", token_bytes=spell_byte))
        received: list[bytes] = []
        with (
            served(lambda: tee) as upstream,  # type: ignore[arg-type, return-value]
            proxy(tmp_path, upstream) as (process, url),
            openai.OpenAI(base_url=f"{attribution.base_url(url, attempt.rollout, 1)}/v1", api_key="none") as client,
        ):
            messages: Any = [{"role": "user", "content": "What is 417 * 23? Use the tool."}]
            how: Any = {"model": "sprout", "tools": [CALC], "temperature": 0, "max_tokens": 120}
            with client.chat.completions.with_streaming_response.create(messages=messages, stream=True, **how) as raw:
                received.append(b"".join(raw.http_response.iter_raw()))
            parts = list(client.chat.completions.create(messages=messages, stream=True, **how))
            whole = client.chat.completions.create(messages=messages, **how)
            process.send_signal(signal.SIGTERM)
            _, errors = process.communicate(timeout=40)
    assert (process.returncode, errors) == (143, "")
    assert received == [bytes(tee.sent[0])]  # byte for byte
    first, second, third = kept.traces.spans(attempt.token)
    for span in (first, second, third):
        assert span.model is not None and "partial" not in span.attributes
        assert span.model.completion_ids is not None and span.model.logprobs is not None
        assert len(span.model.logprobs) == span.model.completion_tokens == len(span.model.completion_ids)
        assert spoken(tokens.read(span.model.completion_ids)) == spoken(span.model.response)  # its own tokens
    assert first.model is not None and second.model is not None and third.model is not None
    assert first.model.completion_ids == second.model.completion_ids == third.model.completion_ids
    assert first.model.prompt_ids == third.model.prompt_ids is not None
    assert whole.choices[0].message.content == third.model.response["content"]
    assert "".join(part.choices[0].delta.content or "" for part in parts) == (second.model.response["content"] or "")
    calls = first.model.response.get("tool_calls")
    assert calls and calls[0]["function"]["name"] == "calc"  # it did use the tool
    log = (tmp_path / "training" / "proxy-attribution.jsonl").read_text().splitlines()
    assert [json.loads(line)["status_code"] for line in log] == [200, 200, 200]


def spoken(message: Any) -> Any:
    """All but the ids of its calls, which are made up for each answer."""
    return message.get("content"), [call["function"] for call in message.get("tool_calls") or ()]


def test_what_had_come_before_a_kill_is_kept_and_the_attempt_is_tried_again(tmp_path: Path, kept: Store) -> None:
    go_on = Event()
    far = Far(usual=Step((*WORDS[:3], chunk(content=" wor")), waits_for=go_on))
    now = time.time()
    run = kept.runs.begin(kind="optimize", model_ref="m", settings={}, salt="t", who="test", now=now).result().id
    kept.queue.enqueue(run, [Task(name="t", input={})], now=now).result()
    attempt = kept.queue.claim(run, "w", now=now, lease_s=600.0).result()[0].attempt
    with served(far.app) as upstream, proxy(tmp_path, upstream) as (process, url):
        connection = HTTPConnection(urlsplit(url).netloc, timeout=PATIENCE_S)
        path = f"/rollout/{attempt.rollout}/attempt/1/v1/chat/completions"
        connection.request("POST", path, asking(stream=True), {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.read1(10_000)
        until(lambda: content(kept, attempt.token) == ["hello "])  # a word that goes on may become a secret
        process.kill()
        with suppress(IncompleteRead, ConnectionError):
            assert b"[DONE]" not in answer.read()
        go_on.set()
        connection.close()
    (span,) = kept.traces.spans(attempt.token)
    assert (span.ended_at, span.attributes["partial"]) == (None, "it never ended")
    kept.queue.finish(attempt, AttemptState.FAULT, now=time.time(), error="the proxy was gone").result()
    until(lambda: kept.queue.claim(run, "w", now=time.time() + 60, lease_s=600.0).result())
    second = kept.views.attempt(attempt.rollout, 2)
    far.usual = Step()
    with served(far.app) as upstream, proxy(tmp_path, upstream) as (_, url):
        with openai.OpenAI(base_url=f"{attribution.base_url(url, attempt.rollout, 2)}/v1", api_key="x") as client:
            client.chat.completions.create(model="m", messages=[{"role": "user", "content": "hi"}])
        with (
            openai.OpenAI(base_url=f"{attribution.base_url(url, attempt.rollout, 1)}/v1", api_key="x") as late,
            pytest.raises(openai.ConflictError, match="it is fault"),
        ):
            late.with_options(max_retries=0).chat.completions.create(
                model="m", messages=[{"role": "user", "content": "hi"}]
            )
    assert content(kept, second.token) == ["hello"] and content(kept, attempt.token) == ["hello "]


def content(store: Store, token: int) -> list[Any]:
    return [span.model.response.get("content") for span in store.traces.spans(token) if span.model is not None]


def test_no_key_is_written_anywhere_and_what_is_kept_is_scrubbed(tmp_path: Path, kept: Store) -> None:
    far, attempt = Far(), running(kept)
    planted = {
        "OPENAI_API_KEY": "sk-proj-Planted0Key1For2This3Test4Abcdefgh",
        "HOLDFAST_TOKEN": "planted-token-123456",
    }
    with served(far.app) as upstream, proxy(tmp_path, upstream, **planted) as (process, url):
        base_url = f"{attribution.base_url(url, attempt.rollout, 1)}/v1"
        with openai.OpenAI(base_url=base_url, api_key=planted["HOLDFAST_TOKEN"]) as client:
            said: Any = [{"role": "user", "content": "mail ann.smith@harbourline.net"}]
            client.chat.completions.create(model="m", messages=said)
        process.send_signal(signal.SIGTERM)
        out, err = process.communicate(timeout=40)
    assert far.asked[0][0]["authorization"] == f"Bearer {planted['OPENAI_API_KEY']}"
    assert b"ann.smith@harbourline.net" in far.asked[0][1]  # passed on as it was
    kept.close()
    written = b"".join(path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()) + (out + err).encode()
    assert attempt.rollout.encode() in written
    assert [secret for secret in (*planted.values(), "ann.smith@harbourline.net") if secret.encode() in written] == []


@pytest.mark.parametrize("flag", ["--prompt-optimization-proxy-", "--training-proxy-"])
def test_the_documented_flags_start_it(tmp_path: Path, flag: str) -> None:
    far = Far()
    with served(far.app) as upstream:
        words = [f"{flag}server", f"{flag}upstream-url", upstream, f"{flag}bind", "127.0.0.1:0"]
        words += [f"{flag}state-dir", str(tmp_path), f"{flag}timeout-ms", "5000"]
        store = ("--prompt-optimization-store-sqlite", tmp_path / "store.db")
        with running_program(*words, *store) as process:
            connection = HTTPConnection(urlsplit(first_line(process).split()[2]).netloc, timeout=PATIENCE_S)
            connection.request("GET", "/training/proxy/health")
            health = json.loads(connection.getresponse().read())
            connection.close()
            process.send_signal(signal.SIGINT)
            process.communicate(timeout=40)
    assert process.returncode == 130
    assert health["upstream_chat_completions_url"] == f"{upstream}/v1/chat/completions"
    assert health["attribution_log_path"] == str(tmp_path / "training" / "proxy-attribution.jsonl")


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--upstream", "ftp://x"], "upstream 'ftp://x': is not an http or https address without a password; "),
        (["--upstream", "http://x", "--host", "0.0.0.0"], "host 0.0.0.0: everyone who reaches this machine could use"),
        (["--upstream", "http://x", "--price", "m=1"], "--price m=1: is not a name and two numbers; as in --price gpt"),
    ],
)
def test_bad_input_is_refused_before_anything_is_made(cli: Cli, tmp_path: Path, words: list[str], message: str) -> None:
    ran = cli("proxy", *words, "--port", 0, "--store", tmp_path / "store.db", "--state-dir", tmp_path)
    assert ran.refusal.startswith(f"holdfast: error: {message}") and not list(tmp_path.iterdir())


def test_prices_and_binds_are_read() -> None:
    name, price = read_price("a=b=1.25,10")
    assert (name, price.read, price.written) == ("a=b", 1.25, 10.0)
    assert read_bind("[::1]:80") == ("::1", 80)
    for text in ("m=1,2,3", "=1,2", "m=1,x", "m=-1,2", "m=nan,2"):
        with pytest.raises(BadInput):
            read_price(text)
    for text in ("8788", "h:", ":1", "h:99999", "h:x"):
        with pytest.raises(BadInput):
            read_bind(text)
