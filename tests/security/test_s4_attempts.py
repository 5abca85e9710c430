"""S4: an agent speaks for its own attempt and for no other; what callers tell is bounded, and under their own name."""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import pytest
import requests

from holdfast.collect import endpoint
from holdfast.collect.otlp import wire
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.otlp.wire import OtelEvent, OtelSpan
from holdfast.collect.proxy import attribution
from holdfast.contracts.executor import capability
from holdfast.contracts.rollout import Attempt
from holdfast.store.store import Store
from tests.collect.proxy.far import Road, asking, road, running
from tests.operate.room import listening
from tests.security.conftest import KEY, TOKEN, nobody
from tests.security.raw import connect, push

NS = 10**9
ME = {"Authorization": f"Bearer {TOKEN}"}
IDS = {"holdfast.prompt_ids": [1, 2], "holdfast.completion_ids": [3], "holdfast.logprobs": [-0.5]}
ANSWER = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Four."}]}])
FORGED = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.output.messages": ANSWER, **IDS}


@pytest.fixture
def at(file_store: Store, tmp_path: Path) -> Iterator[Road]:
    taking = routes(SpanReceiver(file_store, clock=time.time), token=TOKEN, key=KEY)
    with road(file_store, token=TOKEN, key=KEY, routes=taking, state_folder=tmp_path) as here:
        yield here


def address(at: Road, attempt: Attempt, *, of: Attempt | None = None) -> str:
    """An attempt's address, with its own capability or that of another."""
    given = capability(KEY, (of or attempt).rollout, (of or attempt).number)
    return attribution.base_url(at.url, attempt.rollout, attempt.number, given)


def eventually(found: Callable[[], object]) -> None:
    patience = time.monotonic() + 30.0
    while not found():
        assert time.monotonic() < patience
        time.sleep(0.01)


def call(url: str, **headers: str) -> requests.Response:
    how = {"Content-Type": "application/json", **headers}
    return requests.post(f"{url}/v1/chat/completions", asking(), headers=how, timeout=30)


def tell(url: str, *events: OtelEvent, **headers: str) -> requests.Response:
    ids = {"trace_id": "a" * 32, "span_id": "b" * 16}
    span = OtelSpan(**ids, name="s", started_ns=NS, ended_ns=2 * NS, attributes=FORGED, events=events)
    how = {"Content-Type": wire.JSON, **headers}
    return requests.post(f"{url}/v1/traces", wire.written([span], wire.JSON), headers=how, timeout=30)


def test_an_agent_calls_its_model_by_its_own_address_and_without_a_token(at: Road, tmp_path: Path) -> None:
    answer = call(address(at, at.attempt), Authorization="Bearer whatever-its-client-sends")
    assert answer.status_code == 200 and len(at.spans()) == 1
    eventually(lambda: at.lines(tmp_path))
    assert at.lines(tmp_path)[0]["path"] == at.path  # without the capability: a log is read by others


def test_an_agent_cannot_write_into_the_attempt_of_another(at: Road, file_store: Store) -> None:
    other = running(file_store)
    mine = capability(KEY, at.attempt.rollout, at.attempt.number)
    named = {"x-rollout-id": other.rollout, "x-attempt-id": f"{other.number}.{mine}"}
    assert call(address(at, other, of=at.attempt)).status_code == 401
    assert call(attribution.base_url(at.url, other.rollout, other.number)).status_code == 401
    assert tell(address(at, other, of=at.attempt)).status_code == 401
    assert call(at.url, **named).status_code == 401
    assert file_store.traces.spans(other.token) == [] and at.far.asked == []
    assert call(attribution.base_url(at.url, other.rollout, other.number), **ME).status_code == 200  # an operator can


def test_an_agent_cannot_forge_what_a_model_said_token_by_token(at: Road, file_store: Store) -> None:
    assert tell(address(at, at.attempt)).status_code == 200
    (span,) = at.spans()
    assert span.model is not None and span.model.response["content"] == "Four."
    assert span.model.prompt_ids is span.model.completion_ids is span.model.logprobs is None


def test_an_agent_cannot_make_rollouts_hold_others_or_see_them(at: Road, file_store: Store) -> None:
    before = len(file_store.runs.newest())
    assert tell(at.url).status_code == 401
    assert len(file_store.runs.newest()) == before
    for order in ("hold", "release"):
        for headers in ({}, {"Authorization": "Bearer whatever"}):
            how: dict[str, Any] = {"json": {}, "headers": headers, "timeout": 30}
            assert requests.post(f"{at.url}/training/proxy/{order}", **how).status_code == 401
    assert not at.application.state.proxy.upstreams.each[0].gate.is_held


def test_without_a_token_nobody_holds_anybody(file_store: Store) -> None:
    with road(file_store) as here:
        assert here.post("/training/proxy/hold", b"{}")[0] == 403
        assert here.post()[0] == 200  # the documented address works as ever


@pytest.mark.parametrize(("value", "weight", "reward"), [(1e50, 1.0, None), (1.0, 1e50, None), (0.5, 1.0, 0.5)])
def test_a_reward_that_is_sent_is_bounded_and_from_whom_it_is(
    at: Road, file_store: Store, value: float, weight: float, reward: float | None
) -> None:
    given = {"gen_ai.evaluation.score.value": value, "holdfast.weight": weight, "holdfast.source": "person:ann"}
    assert tell(at.url, OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes=given), **ME).status_code == 200
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.reward == reward
    terms = file_store.traces.breakdown(file_store.views.attempt(rollout.id, 1).token).signals
    assert [one.source for one in terms] == ([] if reward is None else ["otlp:score"])


@pytest.mark.parametrize("said", [{"reward": 1e9}, {"reward": -1001}, {"safety_cost": 1e9}])
def test_feedback_is_bounded(said: dict[str, float]) -> None:
    async def taken(identity: str, outcome: Any) -> bool:
        return True

    with listening(endpoint.server(endpoint.app(nobody, name="m", feedback=taken))) as url:
        body = {"id": "chatcmpl-1", **said}
        assert requests.post(f"{url}/v1/feedback", json=body, timeout=30).status_code == 400


def test_an_attempt_with_5000_digits_is_not_found(at: Road) -> None:
    url = f"{at.url}/rollout/{at.attempt.rollout}/attempt/{'1' * 5000}"
    assert call(url, **ME).status_code == 404
    assert tell(url, **ME).status_code == 404


@pytest.mark.parametrize("digits", ["0" * 5000, "0" * 21 + "9" * 30], ids=["5,000 zeros", "more than 64 bits"])
def test_a_sequence_of_many_digits_is_no_failure_of_ours(at: Road, digits: str) -> None:
    """It was: a stranger without a token filled the log with tracebacks."""
    answer = call(f"{at.url}{at.path.partition('/v1/')[0]}", **{"x-sequence-id": digits})
    assert answer.status_code in (400, 401)
    own = address(at, at.attempt)
    assert call(own, **ME, **{"x-sequence-id": digits}).status_code == (400 if "9" in digits else 200)


def test_a_trace_id_is_not_longer_than_its_call(at: Road) -> None:
    assert call(address(at, at.attempt), **ME, **{"x-trace-id": "a" * 60_000}).status_code == 400


def test_an_agent_that_sends_its_spans_slowly_keeps_no_other_waiting(at: Road, file_store: Store) -> None:
    other = running(file_store)
    slow = f"POST {urlsplit(address(at, at.attempt)).path}/v1/traces HTTP/1.1\r\nHost: localhost\r\n"
    with connect(at.url) as peer:
        push(peer, [f"{slow}Content-Type: application/json\r\nContent-Length: 1000\r\n\r\n{{".encode()])
        time.sleep(0.2)
        began = time.monotonic()
        assert tell(address(at, other)).status_code == 200
        assert time.monotonic() - began < 10.0
