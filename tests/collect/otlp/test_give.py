"""Our spans on their way out: with ids that stay, to a real receiver, and back into another store as they were."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.collect.otlp.conventions import batches, given, send
from holdfast.collect.otlp.take import SpanReceiver, routes
from holdfast.collect.otlp.wire import OtelSpan
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Backoff
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.store.store import Store, open_store
from tests.collect.proxy.street import running, served
from tests.conftest import Files

AT = 1_700_000_000.0
CALL = ModelCall(
    model="m",
    messages=({"role": "user", "content": "2+2?"},),
    response={"role": "assistant", "content": "4"},
    finish_reason="stop",
    prompt_ids=(1, 2),
    completion_ids=(3,),
    logprobs=(-0.25,),
)
SPANS = [
    Span(seq=1, kind=SpanKind.TELEMETRY, name="plan", started_at=AT, ended_at=AT + 9, attributes={"depth": [1, 2]}),
    Span(
        seq=2,
        kind=SpanKind.MESSAGE,
        name="message.added",
        started_at=AT + 1,
        ended_at=AT + 1,
        attributes={"role": "user", "text": "2+2?"},
    ),
    Span(
        seq=3,
        kind=SpanKind.MODEL,
        name="model.m",
        started_at=AT + 2,
        ended_at=AT + 3,
        parent=1,
        model=CALL,
        events=(SpanEvent(name="e", at=AT + 2.5),),
    ),
    Span(
        seq=4,
        kind=SpanKind.TOOL,
        name="tool.t",
        started_at=AT + 4,
        ended_at=AT + 5,
        parent=1,
        tool=ToolCall(tool="t", arguments={"a": 1}, error="no"),
    ),
]


def told(store: Store) -> list[OtelSpan]:
    attempt = running(store)
    now = time.time()
    store.traces.add(attempt, SPANS, now=now).result()
    store.traces.score(
        attempt, [RewardTerm(name="exact", value=0.5, weight=2.0, source="rule:exact")], now=now
    ).result()
    store.queue.finish(attempt, AttemptState.SUCCEEDED, now=now, reward=1.0).result()
    rollout = store.views.rollout(attempt.rollout)
    return given(rollout, attempt, store.traces.spans(attempt.token), store.traces.breakdown(attempt.token))


def test_ids_are_the_same_whenever_a_span_is_sent(file_store: Store) -> None:
    first = told(file_store)
    assert len({one.span_id for one in first}) == 5 and len({one.trace_id for one in first}) == 1
    plan, message, model, tool, root = first
    assert root.parent_id is None and plan.parent_id == message.parent_id == root.span_id
    assert model.parent_id == tool.parent_id == plan.span_id and tool.error == "no"
    rollout = file_store.views.rollouts(file_store.runs.newest()[0].id)[0]
    (attempt,) = file_store.views.attempts(rollout.id)
    again = given(rollout, attempt, file_store.traces.spans(attempt.token))
    assert [(one.trace_id, one.span_id, one.parent_id) for one in again] == [
        (one.trace_id, one.span_id, one.parent_id) for one in first
    ]


async def test_what_is_sent_to_another_store_is_the_same_there(file_store: Store, files: Files) -> None:
    with open_store(files.fresh()) as other:
        with served(lambda: Starlette(routes=routes(SpanReceiver(other, clock=time.time)))) as at:
            assert await send(at, told(file_store)) == 5
            assert await send(f"{at}/v1/traces", told_again(file_store)) == 5  # the same spans: kept once
        (run,) = other.runs.newest()
        (rollout,) = other.views.rollouts(run.id)
        assert rollout.reward == 1.0
        (attempt,) = other.views.attempts(rollout.id)
        root, *found = other.traces.spans(attempt.token)
        assert root.name == "invoke_agent t1" and len(found) == 4
        for before, after in zip(SPANS, found, strict=True):
            assert (after.kind, after.name, after.model) == (before.kind, before.name, before.model)
            assert (after.tool, after.started_at, after.ended_at) == (before.tool, before.started_at, before.ended_at)
            assert before.attributes.items() <= after.attributes.items() and after.events == before.events
        assert found[2].parent == found[0].seq
        # and what came from elsewhere keeps its ids when it goes on
        onward = given(rollout, attempt, [root, *found], other.traces.breakdown(attempt.token))
        assert {(one.trace_id, one.span_id, one.parent_id) for one in onward} == {
            (one.trace_id, one.span_id, one.parent_id) for one in told_again(file_store)
        }
        assert next(one for one in onward if one.parent_id is None).events[-1].name == "gen_ai.evaluation.result"


def told_again(store: Store) -> list[OtelSpan]:
    rollout = store.views.rollouts(store.runs.newest()[0].id)[0]
    (attempt,) = store.views.attempts(rollout.id)
    return given(rollout, attempt, store.traces.spans(attempt.token), store.traces.breakdown(attempt.token))


async def test_a_collector_that_is_not_there_is_told_as_such() -> None:
    one = OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2)
    with pytest.raises(Fault, match="is it running"):
        await send("http://127.0.0.1:9", [one], tries=2, backoff=Backoff(initial_s=0.01, cap_s=0.01))
    with pytest.raises(BadInput, match="is not http"):
        await send("localhost:4318", [one])


async def test_a_key_that_a_collector_says_back_is_not_told() -> None:
    async def refuse(request: Request) -> Response:
        return Response(f"no: {request.headers['authorization']}", 401)

    one = OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2)
    place = Route("/v1/traces", refuse, methods=["POST"])
    with served(lambda: Starlette(routes=[place])) as at, pytest.raises(Fault, match="HTTP 401: no: ") as caught:
        await send(at, [one], headers={"authorization": "Bearer tell-nobody"})
    assert "tell-nobody" not in str(caught.value)


async def test_what_a_collector_refuses_is_not_counted(file_store: Store) -> None:
    with served(lambda: Starlette(routes=routes(SpanReceiver(file_store, clock=time.time)))) as at:
        one = OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2)
        lost = replace(one, span_id="ef" * 8, resource={"holdfast.attempt": "run-9/t:attempt-1"})
        assert await send(at, [one, lost]) == 1


def test_batches_have_all_and_none_is_too_large() -> None:
    one = OtelSpan(trace_id="ab" * 16, span_id="cd" * 8, name="x", started_ns=1, ended_ns=2)
    assert [len(batch) for batch in batches([one] * 7, 3)] == [3, 3, 1] and list(batches([])) == []
