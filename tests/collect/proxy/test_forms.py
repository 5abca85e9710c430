"""What the proxy says of itself is true, however it is asked; and no key is written anywhere meanwhile."""

from __future__ import annotations

import json
import logging
import time
from pathlib import Path
from urllib.request import Request, urlopen

import jsonschema
import pytest

from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.app import REQUESTS, app
from holdfast.collect.proxy.budgets import spell
from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.errors import BadInput
from holdfast.privacy.scrub import Scrub
from holdfast.store.store import Store
from tests.collect.fuzz import fuzz
from tests.collect.proxy.far import HELLO, Far, listing
from tests.collect.proxy.street import running, served
from tests.collect.test_openapi import told_by

OWN, THEIRS = "sk-planted-own-0123456789abcdefghij", "sk-planted-their-0123456789abcdefghij"
DIALECTS = (Chat(), Responses(), Messages())
KEY = b"k" * 32


def test_nothing_that_is_asked_breaks_the_proxy_gets_what_is_not_told_or_leaves_a_key_behind(
    file_store: Store, tmp_path: Path, caplog: pytest.LogCaptureFixture, capfd: pytest.CaptureFixture[str]
) -> None:
    far, attempt, scrub = Far(models=listing({"id": "m"})), running(file_store), Scrub(KEY)
    keys = {"OPENAI_API_KEY": OWN, "ANTHROPIC_API_KEY": OWN}
    asked = [*HELLO, {"role": "user", "content": f"my key is {THEIRS}"}]
    known = {"rollout": attempt.rollout, "number": 1, "x-rollout-id": attempt.rollout, "x-attempt-id": "1"}
    known |= {"messages": asked, "input": asked, "n": None}
    taker = SpanReceiver(file_store, clock=time.time, scrub=scrub.span)

    def make() -> object:
        return app(
            file_store,
            [Upstream(upstream, keys=keys, hold_s=0.05)],
            state_folder=tmp_path / "state",
            scrub=scrub.call,
            scrub_spelt=Scrub(KEY, token_bytes=spell).call,
            dialects=DIALECTS,
            routes=routes(taker),
        )

    def let_go(label: str) -> None:
        if label.endswith("/hold"):
            body = Request(f"{url}/training/proxy/release", b"{}", {"content-type": "application/json"})
            assert json.load(urlopen(body, timeout=60))["held"] is False

    with caplog.at_level(logging.INFO), served(far.app) as upstream, served(make) as url:  # type: ignore[arg-type]
        headers = {"Authorization": f"Bearer {THEIRS}", "x-api-key": THEIRS}
        seen = fuzz(url, tries=6, headers=headers, known=known, after=let_go)
    for dialect in DIALECTS:
        below = seen[f"POST /rollout/{{rollout}}/attempt/{{number}}{dialect.path}"]
        assert below[200] and below[404], below  # some named the attempt that runs, others none
    assert sum(one[400] for one in seen.values()) >= 20
    assert far.asked and file_store.traces.spans(attempt.token)  # some were passed on, and kept
    assert all(sent["authorization"] == f"Bearer {OWN}" for sent, _ in far.asked)
    file_store.close()
    written = {path: path.read_bytes() for path in tmp_path.rglob("*") if path.is_file()}
    assert any(path.name == "proxy-attribution.jsonl" for path in written)
    assert not [path for path, text in written.items() if b"sk-planted" in text]
    told = capfd.readouterr()
    logged = [record.getMessage() for record in caplog.records if not record.name.startswith("urllib3")]
    assert not [text for text in (told.out, told.err, *logged) if "sk-planted" in text]


def test_all_that_the_proxy_serves_is_told(file_store: Store) -> None:
    taker = SpanReceiver(file_store, clock=time.time)
    told_by(app(file_store, [Upstream("http://127.0.0.1:1")], dialects=DIALECTS, routes=routes(taker)))


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Chat(), {"model": "m", "messages": []}),
        (Chat(), {"model": "m", "messages": HELLO, "n": 1, "stream": True, "whatever": [1]}),
        (Responses(), {"model": "m", "input": "hi"}),
        (Responses(), {"model": "m"}),
        (Messages(), {"model": "m", "messages": HELLO, "max_tokens": 5}),
    ],
)
def test_what_a_dialect_reads_fits(dialect: Chat | Responses | Messages, body: dict[str, object]) -> None:
    dialect.read_request(json.dumps(body).encode())
    jsonschema.validate(body, REQUESTS[dialect.path])


@pytest.mark.parametrize(
    ("dialect", "body"),
    [
        (Chat(), {"model": "m", "messages": HELLO, "n": 3}),
        (Chat(), {"model": "", "messages": HELLO}),
        (Responses(), {"model": "m", "input": 5}),
        (Messages(), {"model": "m", "messages": ["hi"]}),
    ],
)
def test_what_does_not_fit_is_refused(dialect: Chat | Responses | Messages, body: dict[str, object]) -> None:
    assert not jsonschema.Draft202012Validator(REQUESTS[dialect.path]).is_valid(body)
    with pytest.raises(BadInput):
        dialect.read_request(json.dumps(body).encode())
