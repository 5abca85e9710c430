"""Spans of other tracers: whose they are, what becomes of them, kept once; and ours on their way out and back."""

from __future__ import annotations

import asyncio
import gzip
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route

from holdfast.collect.otlp import wire
from holdfast.collect.otlp.conventions import batches, given, send
from holdfast.collect.otlp.take import FIRST, LAST, SpanReceiver, as_span, identity_of, routes, told_once
from holdfast.collect.otlp.wire import OtelEvent, OtelSpan
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.attribution import Identity
from holdfast.contracts.errors import BadInput, Fault, NotFound, StaleLease, StoreError
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, RolloutState, Task
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.reward.turns import TurnRewards
from holdfast.store.store import Store, open_store
from tests.collect.proxy.far import running, served
from tests.conftest import Clock, Files

NS = 10**9
ANSWER = json.dumps([{"role": "assistant", "parts": [{"type": "text", "content": "Four."}]}])
CHAT = {"gen_ai.operation.name": "chat", "gen_ai.request.model": "m", "gen_ai.output.messages": ANSWER}
ME = Identity(rollout="run-1/t", number=2)


def span(number: int = 1, *, above: int | None = None, trace: str = "a" * 32, **more: Any) -> OtelSpan:
    given: dict[str, Any] = {"name": f"s{number}", "started_ns": number * NS, "ended_ns": (number + 1) * NS, **more}
    return OtelSpan(
        trace_id=trace, span_id=f"{number:016x}", parent_id=None if above is None else f"{above:016x}", **given
    )


@pytest.fixture
def attempt(file_store: Store, clock: Clock) -> Attempt:
    begun = file_store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="t", who="test", now=clock.now)
    file_store.queue.enqueue(begun.result().id, [Task(name="t", input={})], now=clock.now).result()
    return file_store.queue.claim(begun.result().id, "w", now=clock.now, lease_s=100.0).result()[0].attempt


@pytest.fixture
def taker(file_store: Store, clock: Clock) -> SpanReceiver:
    return SpanReceiver(file_store, clock=lambda: clock.now, lease_s=100.0, quiet_s=50.0)


@pytest.mark.parametrize(
    ("given", "whose"),
    [
        ({}, None),
        ({"resource": {"holdfast.rollout": "run-1/t", "holdfast.attempt": "2"}}, ME),
        ({"resource": {"holdfast.rollout": "run-1/t", "holdfast.attempt": 2}}, ME),
        ({"resource": {"holdfast.attempt": "run-1/t:attempt-2"}}, ME),
        ({"resource": {"holdfast.attempt": "2"}}, None),  # of which rollout?
        ({"resource": {"holdfast.rollout": "run-1/t"}}, None),  # which attempt?
        ({"resource": {"holdfast.rollout": "run-1/u", "holdfast.attempt": "run-1/t:attempt-2"}}, None),  # which now?
        ({"resource": {"holdfast.attempt": "run-9/x:attempt-1"}, "attributes": {"holdfast.attempt": "run-1/t:2"}}, ME),
        ({"state": "other=1,holdfast=run-1/t:attempt-2"}, ME),
        ({"state": "holdfast=nonsense"}, None),
    ],
)
def test_a_span_may_name_its_attempt_in_several_places(given: dict[str, Any], whose: Identity | None) -> None:
    assert identity_of(span(**given)) == whose


def test_a_call_that_failed_or_was_not_recorded_is_never_learnt_from() -> None:
    assert PARTIAL not in as_span(span(attributes=CHAT), 1, None).attributes
    assert as_span(span(attributes=CHAT, error="overloaded"), 1, None).attributes[PARTIAL] == "overloaded"
    silent = {name: value for name, value in CHAT.items() if "messages" not in name}
    assert as_span(span(attributes=silent), 1, None).attributes[PARTIAL] == "no answer was recorded"


def test_what_was_said_is_kept_once_and_what_was_noted_is_kept() -> None:
    message = OtelEvent(name="gen_ai.user.message", at_ns=1, attributes={"content": "hi"})
    other = OtelEvent(name="cache.miss", at_ns=2, attributes={"n": 1})
    given = {**CHAT, "server.address": "x", "holdfast.attempt": "run-1/t:1"}
    made = as_span(span(above=7, attributes=given, events=(message, other), ended_ns=0), 4, 3)
    assert made.attributes == {
        "gen_ai.operation.name": "chat",
        "server.address": "x",
        "parent_span_id": f"{7:016x}",
    }
    assert [event.name for event in made.events] == ["cache.miss"]
    assert made.ended_at == made.started_at == 1.0  # a clock that jumped back


async def test_parents_are_found_within_a_request_and_before_it(
    taker: SpanReceiver, file_store: Store, attempt: Attempt
) -> None:
    whose = Identity(rollout=attempt.rollout, number=1)
    taken = await taker.take([span(3, above=2), span(1), span(2, above=1), span(9, above=8)], whose)
    assert (taken.kept, taken.refused) == (4, 0)
    await taker.take([span(4, above=2), span(2, above=1)], whose)
    found = file_store.traces.spans(attempt.token)
    assert [(one.seq, one.name, one.parent) for one in found] == [
        (FIRST, "s1", None),
        (FIRST + 1, "s2", FIRST),
        (FIRST + 2, "s3", FIRST + 1),
        (FIRST + 3, "s9", None),
        (FIRST + 4, "s4", FIRST + 1),
    ]


async def test_another_process_goes_on_where_one_ended(
    taker: SpanReceiver, file_store: Store, attempt: Attempt, clock: Clock
) -> None:
    whose, other = Identity(rollout=attempt.rollout, number=1), SpanReceiver(file_store, clock=lambda: clock.now)
    await taker.take([span(1)], whose)
    await other.take([span(1), span(2)], whose)
    with pytest.raises(StoreError):  # it numbered without knowing of the other: who sends tries again
        await taker.take([span(3)], whose)
    await taker.take([span(3)], whose)
    assert [one.name for one in file_store.traces.spans(attempt.token)] == ["s1", "s2", "s3"]


async def test_an_attempt_that_is_over_takes_no_more(
    taker: SpanReceiver, file_store: Store, attempt: Attempt, clock: Clock
) -> None:
    whose = Identity(rollout=attempt.rollout, number=1)
    with pytest.raises(NotFound):
        await taker.take([span(1)], replace(whose, number=2))
    clock.advance(101.0)
    await file_store.queue.sweep(now=clock.now, chance=0.5)  # its lease ran out, and it was written off
    with pytest.raises(StaleLease):
        await taker.take([span(1)], whose)
    assert file_store.traces.spans(attempt.token) == []


def test_a_call_that_is_kept_already_is_told_once() -> None:
    call = ModelCall(model="m@1", messages=(), response={"role": "assistant", "content": "Four."})
    kept = Span(seq=LAST + 1, kind=SpanKind.MODEL, name="model.m", started_at=1.2, ended_at=1.8, model=call)
    made = as_span(span(attributes=CHAT), FIRST, None)  # from 1 to 2
    again = told_once(made, [kept])
    assert (again.kind, again.model, again.attributes["told_in_span"]) == (SpanKind.TELEMETRY, None, LAST + 1)
    later = replace(kept, started_at=2.5, ended_at=2.8)
    other = replace(kept, model=replace(call, response={"role": "assistant", "content": "Five."}))
    for stranger in (later, other, replace(kept, kind=SpanKind.TELEMETRY, model=None)):
        assert told_once(made, [stranger]) is made


async def test_one_span_that_cannot_be_kept_does_not_take_the_others_with_it(
    taker: SpanReceiver, file_store: Store
) -> None:
    bad = span(2, above=1, attributes={**CHAT, "holdfast.completion_ids": [-1]})
    taken = await taker.take([span(1), bad])
    assert (taken.kept, taken.refused) == (1, 1) and "s2" in taken.why


async def test_scrubbing_comes_before_writing(file_store: Store, clock: Clock) -> None:
    def scrub(one: Span) -> Span:
        return replace(one, name="scrubbed", attributes={})

    await SpanReceiver(file_store, clock=lambda: clock.now, scrub=scrub).take([span(1, attributes={"secret": "x"})])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    (made,) = file_store.traces.spans(file_store.views.attempts(rollout.id)[0].token)
    assert (made.name, made.attributes) == ("scrubbed", {})


async def test_a_trace_whose_root_never_comes_ends_when_it_has_long_been_quiet(
    taker: SpanReceiver, file_store: Store, clock: Clock
) -> None:
    await taker.take([span(2, above=1)])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    clock.advance(49.0)
    await taker.take([span(3, above=1, trace="b" * 32)])
    assert file_store.views.rollout(rollout.id).status is RolloutState.RUNNING
    clock.advance(2.0)
    await taker.take([span(4, above=1, trace="b" * 32)])
    assert file_store.views.rollout(rollout.id).status is RolloutState.SUCCEEDED
    assert file_store.views.attempts(rollout.id)[0].status is AttemptState.SUCCEEDED


async def test_the_turns_of_a_trace_are_measured_when_it_ends(file_store: Store, clock: Clock) -> None:
    taker = SpanReceiver(file_store, clock=lambda: clock.now, turns=TurnRewards())
    await taker.take([span(2, above=1, attributes=CHAT), span(1)])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.status is RolloutState.SUCCEEDED and rollout.reward is None
    found = file_store.traces.breakdown(file_store.views.attempts(rollout.id)[0].token)
    assert {one.name for one in found.signals if one.turn == 0} >= {"information_gain", "progress", "turn_reward"}


async def test_a_trace_that_was_written_off_meanwhile_harms_nobody(
    taker: SpanReceiver, file_store: Store, clock: Clock
) -> None:
    await taker.take([span(2, above=1)])
    clock.advance(200.0)
    file_store.queue.sweep(now=clock.now).result()
    taken = await taker.take([span(1)])
    assert taken.refused == 1
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.status is RolloutState.DEAD
    await taker.close()


async def test_scores_that_are_none_or_beyond_all_are_left_out(taker: SpanReceiver, file_store: Store) -> None:
    names = ("gen_ai.evaluation.score.value", "holdfast.weight")
    none = [(value, 1.0) for value in (float("inf"), "good", True, None, 10**400, -1e308)]
    scores = [*none, (1.0, 10**400), (1e308, 1e308)] * 2 + [(0.5, 1.0)]
    noted = tuple(
        OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes=dict(zip(names, one, strict=True)))
        for one in scores
    )
    assert (await taker.take([span(1, events=noted)])).kept == 1
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.reward == 0.5


async def test_a_trace_whose_end_could_not_be_written_ends_when_it_is_sent_again(
    file_store: Store, clock: Clock
) -> None:
    asked = 0

    def now() -> float:
        nonlocal asked
        asked += 1
        if asked == 3:  # the rollout was begun, its span was kept, and now it should end
            raise StoreError("disk", why="is full")
        return clock.now

    taker = SpanReceiver(file_store, clock=now)
    noted = OtelEvent(name="gen_ai.evaluation.result", at_ns=1, attributes={"gen_ai.evaluation.score.value": 0.5})
    with pytest.raises(StoreError, match="is full"):
        await taker.take([span(1, events=(noted,))])
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.status is RolloutState.RUNNING
    assert (await taker.take([span(1, events=(noted,))])).kept == 1
    rollout = file_store.views.rollout(rollout.id)
    assert (rollout.status, rollout.reward) == (RolloutState.SUCCEEDED, 0.5)


async def test_what_was_dropped_is_told_and_refuses_nothing(taker: SpanReceiver) -> None:
    taken = await taker.take([span(1, dropped=3), span(2, above=1, dropped=4)])
    assert (taken.kept, taken.refused) == (2, 0) and taken.why.startswith("7 attributes were dropped")


async def test_others_are_served_while_many_spans_are_scrubbed(file_store: Store, clock: Clock) -> None:
    scrubbed, seen = [], list[int]()

    def scrub(one: Span) -> Span:
        scrubbed.append(one)
        return one

    async def other() -> None:
        while True:
            seen.append(len(scrubbed))
            await asyncio.sleep(0)

    beside = asyncio.create_task(other())
    await SpanReceiver(file_store, clock=lambda: clock.now, scrub=scrub).take([span(n, above=99) for n in range(1, 51)])
    beside.cancel()
    assert set(range(1, 50)) <= set(seen)


INPUT = [
    {"role": "user", "parts": [{"type": "text", "content": "What is 2+2?"}]},
    {
        "role": "assistant",
        "parts": [{"type": "tool_call", "id": "c1", "name": "calc", "arguments": {"expression": "2+2"}}],
    },
    {"role": "tool", "parts": [{"type": "tool_call_response", "id": "c1", "response": "4"}]},
]
OUTPUT = [
    {
        "role": "assistant",
        "parts": [{"type": "reasoning", "content": "Easy."}, {"type": "text", "content": "Four."}],
        "finish_reason": "stop",
    }
]
ASKED: dict[str, Any] = {
    "gen_ai.operation.name": "chat",
    "gen_ai.provider.name": "openai",
    "gen_ai.request.model": "gpt-test",
    "gen_ai.request.temperature": 0.5,
    "gen_ai.response.finish_reasons": ["stop"],
    "gen_ai.usage.input_tokens": 12,
    "gen_ai.usage.output_tokens": 3,
    "gen_ai.system_instructions": json.dumps([{"type": "text", "content": "Be brief."}]),
    "gen_ai.input.messages": json.dumps(INPUT),
    "gen_ai.output.messages": json.dumps(OUTPUT),
}
TOKEN = "tell-nobody"


PACKED = gzip.compress(b"{}", mtime=0)
# Blocks of nothing, which unpack to nothing.
STORED = b"\x1f\x8b\x08\0\0\0\0\0\0\xff" + b"\0\0\0\xff\xff" * 250_000


@pytest.fixture
def served_taker(file_store: Store) -> SpanReceiver:
    return SpanReceiver(file_store, clock=time.time)


@pytest.fixture
def at(served_taker: SpanReceiver) -> Iterator[str]:
    with served(lambda: Starlette(routes=routes(served_taker, largest=1_000_000))) as address:
        yield address


@pytest.fixture(scope="module")
def shared_at(shared_store: Store) -> Iterator[str]:
    taker = SpanReceiver(shared_store, clock=time.time)
    with served(lambda: Starlette(routes=routes(taker, largest=1_000_000))) as address:
        yield address


def traced(endpoint: str, *, resource: dict[str, str] | None = None, **more: Any) -> tuple[TracerProvider, Any]:
    provider = TracerProvider(resource=Resource.create({"service.name": "agent", **(resource or {})}))
    provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter(endpoint=f"{endpoint}/v1/traces", **more)))
    return provider, provider.get_tracer("test")


def act(tracer: Any) -> None:
    """An agent that calls a tool and a model."""
    with tracer.start_as_current_span("invoke_agent adder", attributes={"gen_ai.operation.name": "invoke_agent"}):
        tool = {"gen_ai.operation.name": "execute_tool", "gen_ai.tool.name": "calc", "gen_ai.tool.call.id": "c1"}
        tool |= {"gen_ai.tool.call.arguments": '{"expression": "2+2"}', "gen_ai.tool.call.result": "4"}
        with tracer.start_as_current_span("execute_tool calc", attributes=tool):
            pass
        with tracer.start_as_current_span("chat gpt-test", attributes=ASKED) as sent:
            sent.add_event("first token", {"after": 0.1})


def assert_is_the_act(spans: list[Any]) -> None:
    agent, tool, chat = spans
    assert [sent.kind for sent in spans] == [SpanKind.TELEMETRY, SpanKind.TOOL, SpanKind.MODEL]
    assert tool.parent == chat.parent == agent.seq and agent.parent is None
    assert tool.tool.tool == "calc" and tool.tool.arguments == {"expression": "2+2"}
    assert (tool.tool.result, tool.tool.call_id) == (4, "c1")
    call = chat.model
    assert call.messages == (
        {"role": "system", "content": "Be brief."},
        {"role": "user", "content": "What is 2+2?"},
        {
            "role": "assistant",
            "content": None,
            "tool_calls": [
                {"id": "c1", "type": "function", "function": {"name": "calc", "arguments": '{"expression":"2+2"}'}}
            ],
        },
        {"role": "tool", "tool_call_id": "c1", "content": "4"},
    )
    assert call.response == {"role": "assistant", "content": "Four.", "reasoning_content": "Easy."}
    assert (call.finish_reason, call.prompt_tokens, call.completion_tokens) == ("stop", 12, 3)
    assert call.sampling == {"temperature": 0.5} and call.model == "gpt-test"
    assert chat.events[0].name == "first token" and PARTIAL not in chat.attributes
    assert not [name for name in chat.attributes if "messages" in name or "usage" in name]


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
def test_the_sdk_sends_a_trace_and_it_becomes_a_finished_rollout(
    at: str, file_store: Store, compression: Compression
) -> None:
    provider, tracer = traced(at, compression=compression)
    act(tracer)
    assert provider.force_flush()
    (run,) = file_store.runs.newest()
    assert run.kind == "otlp"
    (rollout,) = file_store.views.rollouts(run.id)
    assert rollout.status is RolloutState.SUCCEEDED and rollout.reward is None
    (attempt,) = file_store.views.attempts(rollout.id)
    spans = file_store.traces.spans(attempt.token)
    assert_is_the_act(spans)
    assert {sent.trace_id for sent in spans} == {rollout.name}
    provider.shutdown()


def test_spans_that_come_before_their_root_wait_for_it(at: str, file_store: Store) -> None:
    provider, tracer = traced(at)
    with tracer.start_as_current_span("root"):
        with tracer.start_as_current_span("chat gpt-test", attributes=ASKED):
            pass
        assert provider.force_flush()
        (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
        assert rollout.status is RolloutState.RUNNING
    assert provider.force_flush()
    assert file_store.views.rollout(rollout.id).status is RolloutState.SUCCEEDED
    (attempt,) = file_store.views.attempts(rollout.id)
    chat, root = file_store.traces.spans(attempt.token)
    assert chat.attributes["parent_span_id"] == root.span_id
    provider.shutdown()


def ways(file_store: Store, at: str) -> dict[str, tuple[str, dict[str, Any]]]:
    attempt = running(file_store, "way")
    number = {"x-rollout-id": attempt.rollout, "x-attempt-id": str(attempt.number)}
    return {
        "resource": (at, {"resource": {"holdfast.rollout": attempt.rollout, "holdfast.attempt": "1"}}),
        "attempt alone": (at, {"resource": {"holdfast.attempt": attempt.id}}),
        "headers": (at, {"headers": number}),
        "address": (attribution.base_url(at, attempt.rollout, attempt.number), {}),
    }


@pytest.mark.parametrize("way", ["resource", "attempt alone", "headers", "address"])
def test_spans_that_name_their_attempt_join_it(at: str, file_store: Store, way: str) -> None:
    endpoint, more = ways(file_store, at)[way]
    provider, tracer = traced(endpoint, **more)
    act(tracer)
    assert provider.force_flush()
    (run,) = file_store.runs.newest()
    assert run.kind == "optimize"
    (attempt,) = file_store.views.attempts(f"{run.id}/way")
    spans = file_store.traces.spans(attempt.token)
    assert_is_the_act(spans)
    assert [sent.seq for sent in spans] == [FIRST, FIRST + 1, FIRST + 2]
    assert attempt.status is AttemptState.RUNNING
    provider.shutdown()


def posted(at: str, body: bytes, media_type: str = wire.JSON, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{at}/v1/traces", body, {"Content-Type": media_type, **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def sent(number: int = 1, *, trace: str = "a" * 32, **more: Any) -> wire.OtelSpan:
    given: dict[str, Any] = {"trace_id": trace, "span_id": f"{number:016x}", "name": "s", "started_ns": number}
    return wire.OtelSpan(**{**given, "ended_ns": number + 1, **more})


@pytest.mark.parametrize("media_type", [wire.JSON, wire.PROTOBUF])
def test_what_is_sent_again_is_kept_once(at: str, file_store: Store, media_type: str) -> None:
    body = wire.written([sent(1), sent(2, parent_id=f"{1:016x}")], media_type)
    for _ in range(2):
        assert posted(at, body, media_type) == (200, wire.answer(media_type, 0, ""))
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    (attempt,) = file_store.views.attempts(rollout.id)
    assert len(file_store.traces.spans(attempt.token)) == 2


def test_what_comes_after_the_root_is_refused_and_the_rest_taken(at: str) -> None:
    assert posted(at, wire.written([sent(1)], wire.JSON))[0] == 200
    late = [sent(2, parent_id=f"{1:016x}"), sent(3, trace="b" * 32)]
    status, answer = posted(at, wire.written(late, wire.JSON))
    told = json.loads(answer)["partialSuccess"]
    assert status == 200 and told["rejectedSpans"] == "1" and "it is over" in told["errorMessage"]


def test_spans_that_name_an_attempt_that_does_not_run_are_refused(at: str, file_store: Store) -> None:
    attempt = running(file_store)
    file_store.queue.finish(attempt, AttemptState.SUCCEEDED, now=time.time()).result()
    for named, word in ((attempt.id, "is succeeded"), (attempt.id.replace("-1", "-7"), "there is none")):
        body = wire.written([sent(1, resource={"holdfast.attempt": named})], wire.JSON)
        told = json.loads(posted(at, body)[1])["partialSuccess"]
        assert told["rejectedSpans"] == "1" and word in told["errorMessage"]
    head = {"X-Rollout-Id": attempt.rollout, "X-Attempt-Id": "1"}
    assert posted(at, wire.written([sent(1)], wire.JSON), **head)[0] == 409
    status, answer = posted(at, wire.written([sent(1)], wire.PROTOBUF), wire.PROTOBUF, **{**head, "X-Attempt-Id": "9"})
    assert status == 404 and answer[0] == 0x12 and b"there is none" in answer


@pytest.mark.parametrize(
    ("body", "media_type", "headers", "status"),
    [
        (b"{", wire.JSON, {}, 400),
        (b'{"resourceSpans": 3}', wire.JSON, {}, 400),
        (b"\xff\xff", wire.PROTOBUF, {}, 400),
        (b"{}", "text/plain", {}, 415),
        (b"{}", wire.JSON, {"Content-Encoding": "br"}, 415),
        (b"{}", wire.JSON, {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b"{}", mtime=0)[:-3], wire.JSON, {"Content-Encoding": "gzip"}, 400),
        (gzip.compress(b" " * 50_000_000), wire.JSON, {"Content-Encoding": "gzip"}, 413),  # small when it travels
        (b" " * 1_000_001, wire.JSON, {}, 413),
        (PACKED + b"x" * 100, wire.JSON, {"Content-Encoding": "gzip"}, 400),  # something after its end
        (PACKED + b"x" * 900_000, wire.JSON, {"Content-Encoding": "gzip"}, 400),
        (PACKED + PACKED, wire.JSON, {"Content-Encoding": "gzip"}, 400),
        (STORED, wire.JSON, {"Content-Encoding": "gzip"}, 413),  # larger packed than plain
        (b'{"resourceSpans": [{"resource": {"attributes": [{"key": "a", "value": []}]}}]}', wire.JSON, {}, 200),
        (b'{"resourceSpans": [{"resource": {"attributes": 3}, "scopeSpans": [{"spans": [{}]}]}]}', wire.JSON, {}, 200),
        (b"{}", wire.JSON, {}, 200),
        (b"", wire.PROTOBUF, {}, 200),
        (gzip.compress(b"{}", mtime=0), wire.JSON, {"Content-Encoding": "gzip"}, 200),
    ],
)
def test_what_is_no_request_is_told_so(
    shared_at: str, body: bytes, media_type: str, headers: dict[str, str], status: int
) -> None:
    assert posted(shared_at, body, media_type, **headers)[0] == status


def test_with_a_token_only_those_who_have_it_are_heard(served_taker: SpanReceiver, file_store: Store) -> None:
    with served(lambda: Starlette(routes=routes(served_taker, token=TOKEN))) as at:
        body = wire.written([sent(1)], wire.JSON)
        assert posted(at, body)[0] == 401 and not file_store.runs.newest()
        exporter = OTLPSpanExporter(endpoint=f"{at}/v1/traces", headers={"Authorization": f"Bearer {TOKEN}"})
        assert exporter.export([]) is SpanExportResult.SUCCESS
        assert posted(at, body, Authorization=f"Bearer {TOKEN}")[0] == 200 and file_store.runs.newest()


async def test_what_is_open_in_the_end_is_taken_as_it_is(served_taker: SpanReceiver, file_store: Store) -> None:
    await served_taker.take([sent(2, parent_id=f"{1:016x}")])
    (run,) = file_store.runs.newest()
    assert file_store.views.rollouts(run.id)[0].status is RolloutState.RUNNING
    await served_taker.close()
    assert file_store.views.rollouts(run.id)[0].status is RolloutState.SUCCEEDED
    assert file_store.runs.get(run.id).state is RunState.COMPLETED


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
