"""`holdfast release serve` as a program: it answers through every change, keeps what it is told, and ends cleanly."""

from __future__ import annotations

import json
import select
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from http.client import HTTPConnection
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.serving import banner, prompted
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.run import RunState
from holdfast.operate.service import KIND
from holdfast.promote.release import Routing
from holdfast.store.store import Store, open_store
from tests.conftest import Files
from tests.endpoint import Scripted
from tests.endpoint import serving as upstream

POLICY = "tiny"
HELLO = {"model": POLICY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
PATIENCE_S = 60.0


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from holdfast.policies.lm import ModelShape, Transformer
    from holdfast.policies.weights import Manifest, save_transformer

    folder = tmp_path_factory.mktemp("weights") / "tiny"
    model = Transformer(ModelShape(width=16, layers=1, heads=2, context=1024), seed=0)
    save_transformer(folder, model, Manifest(kind="transformer", shape={}, created_at=0.0))
    return folder


@pytest.fixture
def store(files: Files, weights: Path) -> Iterator[Store]:
    """A live version, and two whose weights are not there."""
    with open_store(files.fresh(), poll_s=0.01) as opened:
        for source in (str(weights), "/nowhere/2", "/nowhere/3"):
            opened.releases.add(
                policy=POLICY, kind=PolicyKind.WEIGHTS, source=f"weights:{source}", who="test", now=time.time()
            ).result()
        go(opened, 1, Stage.LIVE, known_good=True)
        yield opened


def go(store: Store, number: int, to: Stage, **how: Any) -> None:
    name = f"{POLICY}@{number}"
    expect = store.releases.get(name).stage
    store.releases.move(name, to, expect=expect, who="test", why="told", now=time.time(), **how).result()


class Served:
    """A service in a process of its own."""

    def __init__(self, process: subprocess.Popen[str], said: str) -> None:
        self.process, self.said = process, said
        self._host = said.split("http://")[1].split("/")[0]

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        connection = HTTPConnection(self._host, timeout=PATIENCE_S)
        try:
            connection.request("POST", f"/v1{path}", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ask(self, user: str) -> Any:
        status, answer = self.post("/chat/completions", {**HELLO, "user": user})
        assert status == 200, answer
        return answer

    def tell(self, identity: str, **said: float) -> int:
        return self.post("/feedback", {"id": identity, **said})[0]

    def end(self, number: signal.Signals) -> tuple[int, str, str]:
        self.process.send_signal(number)
        out, err = self.process.communicate(timeout=PATIENCE_S)
        return self.process.returncode, out, err


@contextmanager
def serving(store: Store, *words: str) -> Iterator[Served]:
    command = [sys.executable, "-m", "holdfast.cli", "release", "serve", "--port", "0", "--store", store.url, *words]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Served(process, process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def until(holds: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE_S
    while not holds():
        assert time.monotonic() < deadline
        time.sleep(0.02)


def test_it_answers_through_every_change_and_what_it_is_told_is_kept(store: Store) -> None:
    with serving(store) as service:
        (run,) = [one for one in store.runs.newest() if one.kind == KIND]
        assert service.said.startswith("tiny@1 at http://127.0.0.1:")
        assert service.said.endswith("/v1 as 'tiny' (Ctrl-C ends it)\n")

        first = service.ask("ann")
        assert service.tell(first["id"], success=1) == 200
        assert service.tell(first["id"], success=1) == 200  # again is harmless
        assert service.tell(first["id"], success=0) == 409  # another word is not
        assert service.tell("chatcmpl-none", success=1) == 404
        found = store.experiences.get(f"{run.id}/{first['id']}")
        assert found is not None and found.sheet.total == 1.0
        (span,) = found.spans
        assert span.model is not None and span.model.completion_ids and span.model.logprobs

        go(store, 2, Stage.CANARY, share=100)  # cannot be loaded: it fails whatever it is asked
        until(lambda: bool(service.ask("ann")) and store.releases.get("tiny@2").stage is Stage.ROLLED_BACK)
        assert store.releases.live(POLICY) is not None
        entry = store.releases.history(POLICY)[-1]
        assert [one["code"] for one in entry.body["reasons"]] == ["canary_breach_errors"]

        go(store, 3, Stage.LIVE)  # nor can this one: who was live serves on
        assert select.select([service.process.stderr], [], [], PATIENCE_S)[0]  # it says so
        assert service.ask("ann")["model"].startswith("local/tiny@1@")
        code, out, err = service.end(signal.SIGTERM)
    assert code == 143
    told = " ".join(out.split())
    assert told.startswith("tiny@2 candidate → canary 100 %, by test (told) tiny@2: rollback (errors is proved above")
    assert told.endswith("tiny@3 candidate → live, by test (told)")  # a person's changes are told as the guard's are
    assert max(map(len, out.splitlines())) <= 80
    assert err.startswith("holdfast: versions: local model '/nowhere/3'") and err.endswith("; trying again\n")
    assert len(err.splitlines()) == 1  # once, however often it is tried
    assert store.runs.get(run.id).state is RunState.COMPLETED


def test_nothing_that_was_served_is_lost_when_it_ends(store: Store, weights: Path) -> None:
    twin = store.releases.add(
        policy=POLICY, kind=PolicyKind.WEIGHTS, source=f"weights:{weights}/.", who="test", now=time.time()
    ).result()
    go(store, twin.number, Stage.CANARY, share=50)
    with serving(store, "--no-record", "--no-guard") as service:
        answers = [service.ask(f"user-{number}") for number in range(20)]
        assert {answer["model"].rpartition("@")[0] for answer in answers} == {"local/tiny@1", f"local/{twin.id}"}
        assert service.tell(answers[-1]["id"], reward=0.5) == 200
        assert service.tell(answers[-1]["id"], reward=0.6) == 409
        code, out, err = service.end(signal.SIGINT)
        assert (code, out.strip(), err) == (130, "", "holdfast: interrupted\n")  # perhaps the end of its first line
    (trial,) = store.trials.all()
    served = store.trials.served(trial.name)
    assert {one.id for one in served} == {answer["id"] for answer in answers}
    assert [one.reward for one in served if one.id == answers[-1]["id"]] == [0.5]
    assert store.runs.newest() == [] and store.releases.get(twin.id).stage is Stage.CANARY


def test_it_begins_by_naming_who_answers_and_what_is_kept() -> None:
    first = "t@1 at http://h:1/v1 as 't' (Ctrl-C ends it)"
    assert banner(Routing(live="t@1"), "http://h:1/v1", "t", None) == [first]
    both = Routing(live="t@1", canary="t@2", share=5, shadow="t@3", salt="t@2")
    assert banner(both, "http://h:1/v1", "t", "run-1-ab") == [
        first,
        "  canary t@2 answers 5 % of the callers",
        "  shadow t@3 waits until the canary is decided",
        "  conversations with feedback go to run-1-ab",
    ]
    shadow = banner(Routing(live="t@1", shadow="t@3"), "http://h:1/v1", "t", None)
    assert shadow[1:] == ["  shadow t@3 answers copies, which nobody sees"]


def test_a_version_that_cannot_be_loaded_from_the_start_is_one_line(store: Store) -> None:
    go(store, 2, Stage.LIVE)
    command = [sys.executable, "-m", "holdfast.cli", "release", "serve", "--port", "0", "--store", store.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert (
        ran.stderr.startswith("holdfast: error: local model '/nowhere/2': is neither")
        and len(ran.stderr.splitlines()) == 1
    )


@pytest.fixture
def prompts(files: Files) -> Iterator[Store]:
    """A live version of a prompt that was given to a model elsewhere."""
    with open_store(files.fresh(), poll_s=0.01) as opened:
        number = opened.versions.publish({"system_prompt": "Be kind."}, now=time.time()).result().version
        opened.releases.add(
            policy=POLICY,
            kind=PolicyKind.PROMPT,
            source=f"resources:{number}",
            manifest={"model": "openai/gpt-tiny"},
            who="test",
            now=time.time(),
        ).result()
        go(opened, 1, Stage.LIVE, known_good=True)
        yield opened


def test_a_version_whose_model_is_elsewhere_is_served_by_passing_requests_on(
    prompts: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    with upstream() as far, serving(prompts, "--upstream", far.url) as service:
        (run,) = [one for one in prompts.runs.newest() if one.kind == KIND]
        asked = {**HELLO, "user": "ann", "seed": 7, "response_format": {"type": "json_object"}}
        status, answer = service.post("/chat/completions", asked)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "echo: hi")
        assert service.tell(answer["id"], success=1) == 200
        far.script.append(Scripted(status=400, body={"error": {"message": "no such format"}}))
        refused, why = service.post("/chat/completions", asked)
        code, _, _ = service.end(signal.SIGINT)
    sent = {name: value for name, value in far.asked[0].body.items() if name not in ("return_token_ids", "logprobs")}
    wanted = {name: value for name, value in asked.items() if name != "user"}
    assert sent == {**wanted, "model": "gpt-tiny"}  # nothing is added, not even the version's own prompt
    assert far.asked[0].headers["Authorization"] == "Bearer sk-ours"
    assert (refused, code) == (400, 130) and "no such format" in why["error"]["message"]
    (told,) = prompted(prompts, Routing(live="tiny@1"))
    assert told == "  tiny@1 has prompts (resources:1): agents put them in, nothing is added here"
    found = prompts.experiences.get(f"{run.id}/{answer['id']}")
    assert found is not None and found.spans[0].model is not None
    assert list(found.spans[0].model.messages) == HELLO["messages"]


def test_without_an_upstream_it_says_what_is_missing(prompts: Store) -> None:
    command = [sys.executable, "-m", "holdfast.cli", "release", "serve", "--port", "0", "--store", prompts.url]
    ran = subprocess.run(command, capture_output=True, text=True, timeout=PATIENCE_S)
    assert (ran.returncode, ran.stdout) == (2, "")
    assert "openai/gpt-tiny answers from an address; holdfast release serve tiny --upstream URL" in ran.stderr
