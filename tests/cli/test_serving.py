"""`holdfast release serve` as a program: it answers through every change as the model itself does, keeps what it is
told, and ends cleanly."""

from __future__ import annotations

import asyncio
import json
import select
import signal
import subprocess
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from http.client import HTTPConnection
from itertools import product
from typing import Any

import pytest

from holdfast.cli.serving import banner, prompted
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import ModelCall
from holdfast.operate.service import KIND
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.promote.release import Routing
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.tasks import STYLES, USE
from holdfast.workloads.tooluse.tools import specs
from tests.cli.conftest import PATIENCE_S, Answer, Cli, ended, first_line, running, until
from tests.conftest import Files
from tests.endpoint import Scripted
from tests.endpoint import serving as upstream

POLICY = "tiny"
HELLO = {"model": POLICY, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}


@contextmanager
def line_of(files: Files, policy: str, *sources: str) -> Iterator[Store]:
    """A store with versions of a policy, the first of them live."""
    with open_store(files.fresh(), poll_s=0.01) as opened:
        for source in sources:
            about: dict[str, Any] = {"policy": policy, "kind": PolicyKind.WEIGHTS, "source": source}
            opened.releases.add(**about, who="test", now=time.time()).result()
        go(opened, f"{policy}@1", Stage.LIVE, known_good=True)
        yield opened


@pytest.fixture
def store(files: Files, weights: tuple[str, str]) -> Iterator[Store]:
    """A live version, and two whose weights are not there."""
    with line_of(files, POLICY, f"weights:{weights[0]}", "weights:/nowhere/2", "weights:/nowhere/3") as opened:
        yield opened


def go(store: Store, name: str, to: Stage, **how: Any) -> None:
    expect = store.releases.get(name).stage
    store.releases.move(name, to, expect=expect, who="test", why="told", now=time.time(), **how).result()


class Served:
    """A service in a process of its own."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process, self.said = process, first_line(process)
        self._host = self.said.split("http://")[1].split("/")[0]

    def post(self, path: str, body: Any) -> tuple[int, Any]:
        connection = HTTPConnection(self._host, timeout=PATIENCE_S)
        try:
            connection.request("POST", f"/v1{path}", json.dumps(body), {"Content-Type": "application/json"})
            answer = connection.getresponse()
            return answer.status, json.loads(answer.read())
        finally:
            connection.close()

    def ask(self, **request: Any) -> Any:
        status, answer = self.post("/chat/completions", {**HELLO, **request})
        assert status == 200, answer
        return answer

    def tell(self, identity: str, **said: float) -> int:
        return self.post("/feedback", {"id": identity, **said})[0]

    def end(self, number: signal.Signals) -> Answer:
        self.process.send_signal(number)
        return ended(self.process)


@contextmanager
def serving(store: Store, *words: str) -> Iterator[Served]:
    with running("release", "serve", "--port", "0", "--store", store.url, *words) as process:
        yield Served(process)


def of_service(store: Store) -> Any:
    (run,) = [one for one in store.runs.newest() if one.kind == KIND]
    return run


def test_it_answers_through_every_change_and_what_it_is_told_is_kept(store: Store) -> None:
    with serving(store) as service:
        run = of_service(store)
        assert service.said.startswith("tiny@1 at http://127.0.0.1:")
        assert service.said.endswith("/v1 as 'tiny' (Ctrl-C ends it)\n")

        first = service.ask(user="ann")
        assert service.tell(first["id"], success=1) == 200
        assert service.tell(first["id"], success=1) == 200  # again is harmless
        assert service.tell(first["id"], success=0) == 409  # another word is not
        assert service.tell("chatcmpl-none", success=1) == 404
        found = store.experiences.get(f"{run.id}/{first['id']}")
        assert found is not None and found.breakdown.total == 1.0
        (span,) = found.spans
        assert span.model is not None and span.model.completion_ids and span.model.logprobs

        go(store, "tiny@2", Stage.CANARY, share=100)  # cannot be loaded: it fails whatever it is asked
        until(lambda: bool(service.ask(user="ann")) and store.releases.get("tiny@2").stage is Stage.ROLLED_BACK)
        assert store.releases.live(POLICY) is not None
        entry = store.releases.history(POLICY)[-1]
        assert [one["code"] for one in entry.body["reasons"]] == ["canary_breach_errors"]

        go(store, "tiny@3", Stage.LIVE)  # nor can this one: who was live serves on
        assert select.select([service.process.stderr], [], [], PATIENCE_S)[0]  # it says so
        assert service.ask(user="ann")["model"].startswith("local/tiny@1@")
        ran = service.end(signal.SIGTERM)
    assert ran.code == 143
    told = " ".join(ran.out.split())
    assert told.startswith(
        "tiny@2 went from candidate to canary with 100 %, by test (told) tiny@2: rollback (errors is proved above"
    )
    assert told.endswith(
        "tiny@3 went from candidate to live, by test (told)"
    )  # a person's changes are told as the guard's are
    assert max(map(len, ran.lines)) <= 80
    assert ran.err.startswith("holdfast: versions: local model '/nowhere/3'") and ran.err.endswith("; trying again\n")
    assert len(ran.err.splitlines()) == 1  # once, however often it is tried
    assert store.runs.get(run.id).state is RunState.COMPLETED


def test_nothing_that_was_served_is_lost_when_it_ends(store: Store, weights: tuple[str, str]) -> None:
    about: dict[str, Any] = {"policy": POLICY, "kind": PolicyKind.WEIGHTS, "source": f"weights:{weights[0]}/."}
    twin = store.releases.add(**about, who="test", now=time.time()).result()
    go(store, twin.id, Stage.CANARY, share=50)
    with serving(store, "--no-record", "--no-guard") as service:
        answers = [service.ask(user=f"user-{number}") for number in range(20)]
        assert {answer["model"].rpartition("@")[0] for answer in answers} == {"local/tiny@1", f"local/{twin.id}"}
        assert service.tell(answers[-1]["id"], reward=0.5) == 200
        assert service.tell(answers[-1]["id"], reward=0.6) == 409
        ran = service.end(signal.SIGINT)
        assert (ran.code, ran.out.strip(), ran.err) == (130, "", "holdfast: interrupted\n")  # or its first line's end
    (trial,) = store.trials.all()
    served = store.trials.served(trial.name)
    assert {one.id for one in served} == {answer["id"] for answer in answers}
    assert [one.reward for one in served if one.id == answers[-1]["id"]] == [0.5]
    assert store.runs.newest() == [] and store.releases.get(twin.id).stage is Stage.CANARY


def test_it_begins_by_naming_who_answers_and_what_is_kept() -> None:
    first = "t@1 at http://h:1/v1 as 't' (Ctrl-C ends it)"
    assert banner(Routing(live="t@1"), "http://h:1/v1", "t", None, is_scrubbed=True) == [first]
    both = Routing(live="t@1", canary="t@2", share=5, shadow="t@3", salt="t@2")
    assert banner(both, "http://h:1/v1", "t", "run-1-ab", is_scrubbed=True) == [
        first,
        "  canary t@2 answers 5 % of the callers",
        "  shadow t@3 waits until the canary is decided",
        "  conversations with feedback go to run-1-ab, scrubbed",
    ]
    shadow = banner(Routing(live="t@1", shadow="t@3"), "http://h:1/v1", "t", None, is_scrubbed=True)
    assert shadow[1:] == ["  shadow t@3 answers copies, which nobody sees"]


def test_a_version_that_cannot_be_loaded_from_the_start_is_one_line(cli: Cli, store: Store) -> None:
    go(store, "tiny@2", Stage.LIVE)
    said = cli("release", "serve", "--port", "0", "--store", store.url).refusal
    assert said.startswith("holdfast: error: local model '/nowhere/2': is neither")


@pytest.fixture
def prompts(files: Files) -> Iterator[Store]:
    """A live version of a prompt that was given to a model elsewhere."""
    with open_store(files.fresh(), poll_s=0.01) as opened:
        number = opened.versions.publish({"system_prompt": "Be kind."}, now=time.time()).result().version
        about: dict[str, Any] = {"policy": POLICY, "kind": PolicyKind.PROMPT, "source": f"resources:{number}"}
        opened.releases.add(**about, manifest={"model": "openai/gpt-tiny"}, who="test", now=time.time()).result()
        go(opened, "tiny@1", Stage.LIVE, known_good=True)
        yield opened


def test_without_an_upstream_it_says_what_is_missing(cli: Cli, prompts: Store) -> None:
    missing = cli("release", "serve", "--port", "0", "--store", prompts.url).refusal
    assert "openai/gpt-tiny answers from an address; holdfast release serve tiny --upstream URL" in missing


def test_a_version_whose_model_is_elsewhere_is_served_by_passing_requests_on(
    prompts: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "sk-ours")
    with upstream() as far, serving(prompts, "--upstream", far.url) as service:
        run = of_service(prompts)
        asked = {**HELLO, "user": "ann", "seed": 7, "response_format": {"type": "json_object"}}
        status, answer = service.post("/chat/completions", asked)
        assert (status, answer["choices"][0]["message"]["content"]) == (200, "echo: hi")
        assert service.tell(answer["id"], success=1) == 200
        far.script.append(Scripted(status=400, body={"error": {"message": "no such format"}}))
        refused, why = service.post("/chat/completions", asked)
        assert service.end(signal.SIGINT).code == 130
    sent = {name: value for name, value in far.asked[0].body.items() if name not in ("return_token_ids", "logprobs")}
    wanted = {name: value for name, value in asked.items() if name != "user"}
    assert sent == {**wanted, "model": "gpt-tiny"}  # nothing is added, not even the version's own prompt
    assert far.asked[0].headers["Authorization"] == "Bearer sk-ours"
    assert refused == 400 and "no such format" in why["error"]["message"]
    (told,) = prompted(prompts, Routing(live="tiny@1"))
    assert told == "  tiny@1 has prompts (resources:1): agents put them in, nothing is added here"
    found = prompts.experiences.get(f"{run.id}/{answer['id']}")
    assert found is not None and found.spans[0].model is not None
    assert list(found.spans[0].model.messages) == HELLO["messages"]


# What was proved is what is served: nothing is added to a request

MODEL = "sprout"
QUESTION = {"role": "user", "content": "What is 417 * 23?"}
SYSTEM = {"role": "system", "content": f"{USE} {STYLES['full']}"}
CALL = {"id": "call_1", "type": "function", "function": {"name": "calc", "arguments": '{"expression":"417*23"}'}}
CONVERSATIONS: Sequence[Sequence[Mapping[str, Any]]] = (
    (QUESTION,),  # no instructions: none are added
    ({"role": "system", "content": ""}, QUESTION),
    (SYSTEM, QUESTION),
    ({"role": "developer", "content": "Be kind."}, QUESTION),
    (QUESTION, {"role": "assistant", "tool_calls": [CALL]}, {"role": "tool", "tool_call_id": "call_1", "content": "9"}),
)
SAMPLINGS: Sequence[Mapping[str, Any]] = (
    {},  # as a proof that says nothing of it: the model's own defaults
    {"temperature": 0.7, "top_p": 0.9, "max_tokens": 24, "stop": ["."]},
)
TOOLS: Sequence[Mapping[str, Any]] = ({}, {"tools": specs(["calc", "lookup"])})
REQUESTS = [
    {"messages": list(messages), "seed": seed, **how, **tools}
    for seed, (messages, how, tools) in enumerate(list(product(CONVERSATIONS, SAMPLINGS, TOOLS)) * 10)
]


@pytest.fixture(scope="module")
def direct() -> list[ModelCall]:
    """The answers of the model itself, as an agent in a proof gets them."""
    net, _ = load_transformer(MODEL)
    with Local(net) as local:
        return [asyncio.run(local(one.pop("messages"), **one)) for one in map(dict, REQUESTS)]


def is_same(service: Served, request: Mapping[str, Any], call: ModelCall) -> Any:
    """The same prompt, the same tokens and the same message: ids of calls are made of both."""
    status, answer = service.post("/chat/completions", {"model": MODEL, "return_token_ids": True, **request})
    (choice,) = answer["choices"]
    assert status == 200 and tuple(answer["prompt_token_ids"]) == call.prompt_ids
    assert tuple(choice["token_ids"]) == call.completion_ids
    assert (choice["message"], choice["finish_reason"]) == (call.response, call.finish_reason)
    return answer


@pytest.mark.usefixtures("untraced")
def test_a_promoted_version_answers_200_requests_as_the_model_itself_does(
    files: Files, direct: list[ModelCall]
) -> None:
    assert len(REQUESTS) == 200
    with line_of(files, MODEL, f"shelf:{MODEL}") as store, serving(store) as service:
        first, *_ = [is_same(service, *one) for one in zip(REQUESTS, direct, strict=True)]
        assert service.tell(first["id"], success=1) == 200
        found = store.experiences.get(f"{of_service(store).id}/{first['id']}")
    assert found is not None
    (span,) = found.spans
    assert span.model is not None  # what is kept of a conversation is what the caller sent
    assert json.loads(json.dumps(list(span.model.messages))) == REQUESTS[0]["messages"]


def test_so_does_a_served_model(direct: list[ModelCall]) -> None:
    with running("sprout", "serve", "--model", MODEL, "--port", "0") as process:
        service = Served(process)
        for request, call in list(zip(REQUESTS, direct, strict=True))[:20]:
            is_same(service, request, call)
