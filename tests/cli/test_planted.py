"""Secrets and people planted in conversations, by each way in: none is in the store, a log or a page afterwards."""

from __future__ import annotations

import json
import signal
import time
from http.client import HTTPConnection
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest

from holdfast.collect.proxy import attribution
from holdfast.contracts.release import PolicyKind
from holdfast.operate.conversation import rollout
from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.cli.test_proxy import proxy
from tests.cli.test_serving import POLICY, Stage, go, serving
from tests.collect.proxy.far import Far, Step, asking, completion, running, served

PLANTED = {
    "key": "sk-ant-api03-" + "aB3xY9qT" * 11 + "-7wZkAA",
    "mail": "ann.leeuwen@corp-mail.net",
    "card": "4539 5787 6362 1486",
    "password": "Zebra!94-lake",
    "iban": "DE89 3704 0044 0532 0130 00",
}
ASKED = (
    f"Hi, write to {PLANTED['mail']}. My password is {PLANTED['password']}, the card {PLANTED['card']}, "
    f"and my account {PLANTED['iban']}."
)
MESSAGES = [{"role": "user", "content": ASKED}]
SAID = f"Stored. export ANTHROPIC_API_KEY={PLANTED['key']}"


def by_import(cli: Cli, folder: Path) -> None:
    file = folder / "logs.jsonl"
    file.write_text(json.dumps({"messages": [*MESSAGES, {"role": "assistant", "content": SAID}], "reward": 1}))
    said = cli("import", file, "--store", folder / "store.db").done()
    assert not planted_in(said.out + said.err)
    file.unlink()


def by_traces(cli: Cli, folder: Path) -> None:
    texts = {"gen_ai.input.messages": ("user", ASKED), "gen_ai.output.messages": ("assistant", SAID)}
    given = {
        name: [{"role": role, "parts": [{"type": "text", "content": text}]}] for name, (role, text) in texts.items()
    }
    told = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m"}
    told |= {name: json.dumps(value) for name, value in given.items()}
    attributes = [{"key": name, "value": {"stringValue": value}} for name, value in told.items()]
    span = {"traceId": "1" * 32, "spanId": "2" * 16, "name": "chat m", "startTimeUnixNano": "1", "endTimeUnixNano": "2"}
    span |= {"attributes": attributes}
    file = folder / "spans.json"
    file.write_text(json.dumps({"resourceSpans": [{"scopeSpans": [{"spans": [span]}]}]}))
    said = cli("traces", "import", file, "--store", folder / "store.db").done()
    assert not planted_in(said.out + said.err)
    file.unlink()


def by_proxy(cli: Cli, folder: Path) -> None:
    far = Far(usual=Step(completion(SAID)))
    with open_store(folder / "store.db") as store:
        attempt = running(store)
    with served(far.app) as upstream, proxy(folder, upstream) as (process, url):
        address = urlsplit(attribution.base_url(url, attempt.rollout, 1))
        connection = HTTPConnection(address.netloc, timeout=60)
        body = asking(messages=MESSAGES)
        connection.request("POST", f"{address.path}/v1/chat/completions", body, {"content-type": "application/json"})
        answer = connection.getresponse()
        assert answer.status == 200 and SAID.encode() in answer.read()  # passed on as it is
        connection.close()
        process.send_signal(signal.SIGTERM)
        said = process.communicate(timeout=60)
    assert not planted_in("".join(said))


def by_service(cli: Cli, folder: Path, weights: str) -> None:
    with open_store(folder / "store.db", poll_s=0.01) as store:
        for twin in ("", "/."):
            about: dict[str, Any] = {"policy": POLICY, "kind": PolicyKind.WEIGHTS, "source": f"weights:{weights}{twin}"}
            store.releases.add(**about, who="test", now=time.time()).result()
        go(store, f"{POLICY}@1", Stage.LIVE, known_good=True)
        go(store, f"{POLICY}@2", Stage.CANARY, share=50)  # so that requests are recorded with their callers
        with serving(store) as service:
            for place in range(4):
                answer = service.ask(messages=MESSAGES, user=f"{place}{PLANTED['mail']}")
                assert service.tell(answer["id"], success=1) == 200
            said = service.end(signal.SIGTERM)
        assert not planted_in(said.out + said.err)
        assert len(store.trials.served(store.trials.all()[0].name)) == 4


def planted_in(text: str) -> list[str]:
    """The names of what is in a text, in any of its spellings."""
    bare = "".join(text.split())
    return [name for name, value in PLANTED.items() if value in text or "".join(value.split()) in bare]


@pytest.mark.parametrize("way", [by_import, by_traces, by_proxy, by_service])
def test_what_was_planted_is_nowhere(cli: Cli, tmp_path: Path, weights: tuple[str, str], way: Any) -> None:
    assert sorted(planted_in(ASKED + SAID)) == sorted(PLANTED)
    if way is by_service:
        by_service(cli, tmp_path, weights[0])
    else:
        way(cli, tmp_path)
    written = cli("store", "export", "--store", tmp_path / "store.db").done().out
    assert "<email:" in written and "<card:" in written  # the conversation is there
    with open_store(tmp_path / "store.db") as store:
        names = [one.id for run in store.runs.newest() for one in store.views.rollouts(run.id)]
        pages = json.dumps([rollout(store, name, now=time.time()) for name in names])
    assert names and "<email:" in pages
    logs = "".join(file.read_bytes().decode(errors="replace") for file in tmp_path.rglob("*") if file.is_file())
    assert {"store": planted_in(written), "pages": planted_in(pages), "files": planted_in(logs)} == {
        "store": [],
        "pages": [],
        "files": [],
    }
