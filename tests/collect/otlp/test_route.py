"""The real OpenTelemetry SDK sends to us: its spans become spans of an attempt, or rollouts of their own."""

from __future__ import annotations

import gzip
import json
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import BatchSpanProcessor, SpanExportResult
from starlette.applications import Starlette

from holdfast.collect.otlp import wire
from holdfast.collect.otlp.take import FIRST, SpanReceiver, routes
from holdfast.collect.proxy import attribution
from holdfast.contracts.rollout import AttemptState, RolloutState
from holdfast.contracts.run import RunState
from holdfast.contracts.trace import PARTIAL, SpanKind
from holdfast.store.store import Store
from tests.collect.proxy.street import running, served

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
CHAT: dict[str, Any] = {
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
def taker(file_store: Store) -> SpanReceiver:
    return SpanReceiver(file_store, clock=time.time)


@pytest.fixture
def at(taker: SpanReceiver) -> Iterator[str]:
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
        with tracer.start_as_current_span("chat gpt-test", attributes=CHAT) as span:
            span.add_event("first token", {"after": 0.1})


def assert_is_the_act(spans: list[Any]) -> None:
    agent, tool, chat = spans
    assert [span.kind for span in spans] == [SpanKind.TELEMETRY, SpanKind.TOOL, SpanKind.MODEL]
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
    assert {span.trace_id for span in spans} == {rollout.name}
    provider.shutdown()


def test_spans_that_come_before_their_root_wait_for_it(at: str, file_store: Store) -> None:
    provider, tracer = traced(at)
    with tracer.start_as_current_span("root"):
        with tracer.start_as_current_span("chat gpt-test", attributes=CHAT):
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


def test_scores_of_an_evaluator_are_the_reward(at: str, file_store: Store) -> None:
    provider, tracer = traced(at)
    with tracer.start_as_current_span("root") as span:
        score = {"gen_ai.evaluation.name": "exact", "gen_ai.evaluation.score.value": 0.75}
        span.add_event("gen_ai.evaluation.result", score)
    assert provider.force_flush()
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    assert rollout.reward == 0.75
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
    assert [span.seq for span in spans] == [FIRST, FIRST + 1, FIRST + 2]
    assert attempt.status is AttemptState.RUNNING
    provider.shutdown()


def posted(at: str, body: bytes, media_type: str = wire.JSON, **headers: str) -> tuple[int, bytes]:
    request = urllib.request.Request(f"{at}/v1/traces", body, {"Content-Type": media_type, **headers})
    try:
        with urllib.request.urlopen(request) as answer:
            return answer.status, answer.read()
    except urllib.error.HTTPError as error:
        return error.code, error.read()


def span(number: int = 1, *, trace: str = "a" * 32, **more: Any) -> wire.OtelSpan:
    given: dict[str, Any] = {"trace_id": trace, "span_id": f"{number:016x}", "name": "s", "started_ns": number}
    return wire.OtelSpan(**{**given, "ended_ns": number + 1, **more})


@pytest.mark.parametrize("media_type", [wire.JSON, wire.PROTOBUF])
def test_what_is_sent_again_is_kept_once(at: str, file_store: Store, media_type: str) -> None:
    body = wire.written([span(1), span(2, parent_id=f"{1:016x}")], media_type)
    for _ in range(2):
        assert posted(at, body, media_type) == (200, wire.answer(media_type, 0, ""))
    (rollout,) = file_store.views.rollouts(file_store.runs.newest()[0].id)
    (attempt,) = file_store.views.attempts(rollout.id)
    assert len(file_store.traces.spans(attempt.token)) == 2


def test_what_comes_after_the_root_is_refused_and_the_rest_taken(at: str) -> None:
    assert posted(at, wire.written([span(1)], wire.JSON))[0] == 200
    late = [span(2, parent_id=f"{1:016x}"), span(3, trace="b" * 32)]
    status, answer = posted(at, wire.written(late, wire.JSON))
    told = json.loads(answer)["partialSuccess"]
    assert status == 200 and told["rejectedSpans"] == "1" and "it is over" in told["errorMessage"]


def test_spans_that_name_an_attempt_that_does_not_run_are_refused(at: str, file_store: Store) -> None:
    attempt = running(file_store)
    file_store.queue.finish(attempt, AttemptState.SUCCEEDED, now=time.time()).result()
    for named, word in ((attempt.id, "is succeeded"), (attempt.id.replace("-1", "-7"), "there is none")):
        body = wire.written([span(1, resource={"holdfast.attempt": named})], wire.JSON)
        told = json.loads(posted(at, body)[1])["partialSuccess"]
        assert told["rejectedSpans"] == "1" and word in told["errorMessage"]
    head = {"X-Rollout-Id": attempt.rollout, "X-Attempt-Id": "1"}
    assert posted(at, wire.written([span(1)], wire.JSON), **head)[0] == 409
    status, answer = posted(at, wire.written([span(1)], wire.PROTOBUF), wire.PROTOBUF, **{**head, "X-Attempt-Id": "9"})
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
    at: str, body: bytes, media_type: str, headers: dict[str, str], status: int
) -> None:
    assert posted(at, body, media_type, **headers)[0] == status


def test_with_a_token_only_those_who_have_it_are_heard(taker: SpanReceiver, file_store: Store) -> None:
    with served(lambda: Starlette(routes=routes(taker, token=TOKEN))) as at:
        body = wire.written([span(1)], wire.JSON)
        assert posted(at, body)[0] == 401 and not file_store.runs.newest()
        exporter = OTLPSpanExporter(endpoint=f"{at}/v1/traces", headers={"Authorization": f"Bearer {TOKEN}"})
        assert exporter.export([]) is SpanExportResult.SUCCESS
        assert posted(at, body, Authorization=f"Bearer {TOKEN}")[0] == 200 and file_store.runs.newest()


async def test_what_is_open_in_the_end_is_taken_as_it_is(taker: SpanReceiver, file_store: Store) -> None:
    await taker.take([span(2, parent_id=f"{1:016x}")])
    (run,) = file_store.runs.newest()
    assert file_store.views.rollouts(run.id)[0].status is RolloutState.RUNNING
    await taker.close()
    assert file_store.views.rollouts(run.id)[0].status is RolloutState.SUCCEEDED
    assert file_store.runs.get(run.id).state is RunState.COMPLETED
