"""What was proved is what is served: a server answers a request as the model itself does, and adds nothing to it."""

from __future__ import annotations

import asyncio
import json
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import product
from typing import Any

import pytest

from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.trace import ModelCall
from holdfast.operate.service import KIND
from holdfast.policies import registry
from holdfast.policies.engine import Local
from holdfast.store.store import Store, open_store
from holdfast.workloads.tooluse.tasks import STYLES, USE
from holdfast.workloads.tooluse.tools import specs
from tests.cli.test_serving import Served, serving
from tests.conftest import Files

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
    net, _ = registry.load(MODEL)
    with Local(net) as local:
        return [asyncio.run(local(request["messages"], **_sampling(request))) for request in REQUESTS]


def _sampling(request: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in request.items() if name != "messages"}


@pytest.fixture
def store(files: Files) -> Iterator[Store]:
    with open_store(files.fresh(), poll_s=0.01) as opened:
        made = opened.releases.add(
            policy=MODEL, kind=PolicyKind.WEIGHTS, source=f"shelf:{MODEL}", who="test", now=time.time()
        ).result()
        opened.releases.move(
            made.id, Stage.LIVE, expect=Stage.CANDIDATE, who="test", why="told", now=time.time(), known_good=True
        ).result()
        yield opened


@contextmanager
def sprout_serving() -> Iterator[Served]:
    command = [sys.executable, "-m", "holdfast.cli", "sprout", "serve", "--model", MODEL, "--port", "0"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        assert process.stdout is not None
        yield Served(process, process.stdout.readline())
    finally:
        process.kill()
        process.communicate()


def ask(service: Served, request: Mapping[str, Any]) -> Any:
    status, answer = service.post("/chat/completions", {"model": MODEL, "return_token_ids": True, **request})
    assert status == 200, answer
    return answer


def same(answer: Any, call: ModelCall) -> None:
    """The same prompt, the same tokens and the same message: ids of calls are made of both."""
    (choice,) = answer["choices"]
    assert tuple(answer["prompt_token_ids"]) == call.prompt_ids
    assert tuple(choice["token_ids"]) == call.completion_ids
    assert choice["message"] == call.response
    assert choice["finish_reason"] == call.finish_reason


def test_a_promoted_version_answers_200_requests_as_the_model_itself_does(
    store: Store, direct: list[ModelCall]
) -> None:
    assert len(REQUESTS) == 200
    with serving(store, "--no-record") as service:
        for request, call in zip(REQUESTS, direct, strict=True):
            same(ask(service, request), call)


def test_so_does_a_served_model(direct: list[ModelCall]) -> None:
    with sprout_serving() as service:
        for request, call in list(zip(REQUESTS, direct, strict=True))[:20]:
            same(ask(service, request), call)


def test_what_is_kept_of_a_conversation_is_what_the_caller_sent(store: Store) -> None:
    with serving(store) as service:
        answer = ask(service, REQUESTS[0])
        assert service.tell(answer["id"], success=1) == 200
        (run,) = [one for one in store.runs.newest() if one.kind == KIND]
        found = store.experiences.get(f"{run.id}/{answer['id']}")
    assert found is not None
    (span,) = found.spans
    assert span.model is not None
    assert json.loads(json.dumps(list(span.model.messages))) == REQUESTS[0]["messages"]
