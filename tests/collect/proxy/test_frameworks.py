"""An agent framework, unchanged, in front of the embedded model: captured by the proxy, and by its own tracer too."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from pydantic_ai import Agent
from pydantic_ai.capabilities import Instrumentation
from pydantic_ai.models.instrumented import InstrumentationSettings
from pydantic_ai.models.openai import OpenAIChatModel
from pydantic_ai.providers.openai import OpenAIProvider

from holdfast.collect import endpoint
from holdfast.collect.chat_format import spell_byte
from holdfast.collect.otlp.take import FIRST, LAST, SpanReceiver, routes
from holdfast.collect.proxy import attribution
from holdfast.collect.proxy.app import app
from holdfast.collect.proxy.upstream import Upstream
from holdfast.contracts.rollout import Attempt, RolloutState
from holdfast.contracts.trace import PARTIAL, SpanKind
from holdfast.policies import registry
from holdfast.policies.engine import Local
from holdfast.store.store import Store
from tests.collect.proxy.far import running, served

QUESTION = "What is 417 * 23? Use the tool."


@pytest.fixture
def attempt(file_store: Store) -> Attempt:
    return running(file_store)


@pytest.fixture(scope="module")
def sprout() -> Iterator[str]:
    net, manifest = registry.load("sprout")
    with (
        Local(net, name="sprout", version=manifest.sha256[:12]) as local,
        served(lambda: endpoint.app(local, name="sprout", token_bytes=spell_byte)) as at,
    ):
        yield at


@pytest.fixture
def base_url(file_store: Store, attempt: Attempt, sprout: str) -> Iterator[str]:
    taking = routes(SpanReceiver(file_store, clock=time.time))
    with served(lambda: app(file_store, [Upstream(sprout, timeout_s=120.0)], routes=taking)) as at:
        yield attribution.base_url(at, attempt.rollout, attempt.number)


def adder(base_url: str, asked: list[str], *capabilities: Instrumentation) -> Agent:
    model = OpenAIChatModel("sprout", provider=OpenAIProvider(base_url=f"{base_url}/v1", api_key="none"))
    agent = Agent(model, model_settings={"temperature": 0.0, "max_tokens": 120}, capabilities=capabilities)

    @agent.tool_plain
    def calc(expression: str) -> str:
        """Evaluate an expression."""
        asked.append(expression)
        return "9591"

    return agent


async def test_an_agent_that_knows_nothing_of_us_is_captured_token_for_token(
    base_url: str, file_store: Store, attempt: Attempt
) -> None:
    asked: list[str] = []
    agent = adder(base_url, asked)
    whole = await agent.run(QUESTION)
    async with agent.run_stream(QUESTION) as streamed:
        said = await streamed.get_output()
    assert said == whole.output and len(asked) == 2
    spans = file_store.traces.spans(attempt.token)
    assert [span.attributes["streamed"] for span in spans] == [False, False, True, True]
    for first, second in (spans[:2], spans[2:]):
        assert first.model is not None and second.model is not None
        assert PARTIAL not in first.attributes and PARTIAL not in second.attributes
        assert first.model.finish_reason == "tool_calls" and second.model.finish_reason == "stop"
        assert second.model.response["content"] == whole.output
        assert second.model.messages[-1]["role"] == "tool" and second.model.messages[-1]["content"] == "9591"
        for call in (first.model, second.model):
            assert call.completion_ids and call.logprobs and len(call.completion_ids) == len(call.logprobs)
        assert first.model.prompt_ids and second.model.prompt_ids
        before = first.model.prompt_ids + first.model.completion_ids  # type: ignore[operator]
        assert second.model.prompt_ids[: len(before)] == before  # turns join: nothing was tokenised again


async def test_its_own_tracer_tells_the_same_story(base_url: str, file_store: Store, attempt: Attempt) -> None:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{base_url}/v1/traces")))
    agent = adder(base_url, [], Instrumentation(settings=InstrumentationSettings(tracer_provider=provider)))
    await agent.run(QUESTION)
    provider.shutdown()
    spans = file_store.traces.spans(attempt.token)
    ours = [span for span in spans if span.seq > LAST]
    told = [span for span in spans if FIRST <= span.seq <= LAST]
    chats = [span for span in told if span.attributes.get("gen_ai.operation.name") == "chat"]
    assert [span.attributes["told_in_span"] for span in chats] == [span.seq for span in ours]
    assert {span.kind for span in chats} == {SpanKind.TELEMETRY}  # what the proxy kept is not learnt from twice
    (tool,) = [span.tool for span in told if span.kind is SpanKind.TOOL]
    assert tool is not None and tool.tool == "calc" and str(tool.result) == "9591" and "expression" in tool.arguments
    assert any("invoke_agent" in span.name for span in told if span.kind is SpanKind.TELEMETRY)


async def test_an_agent_that_is_only_traced_can_be_learnt_from(file_store: Store, base_url: str) -> None:
    """Its calls go past us; what its tracer says is a rollout of its own, with every message in it."""
    at = base_url.partition("/rollout/")[0]
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(OTLPSpanExporter(endpoint=f"{at}/v1/traces")))
    agent = adder(base_url, [], Instrumentation(settings=InstrumentationSettings(tracer_provider=provider)))
    result = await agent.run(QUESTION)
    provider.shutdown()
    run = file_store.runs.newest()[0]
    assert run.kind == "otlp"
    (rollout,) = file_store.views.rollouts(run.id)
    assert rollout.status is RolloutState.SUCCEEDED
    (traced,) = file_store.views.attempts(rollout.id)
    first, second = [span.model for span in file_store.traces.spans(traced.token) if span.model is not None]
    ours = [span.model for span in file_store.traces.spans(1)]
    for theirs, mine in zip((first, second), ours, strict=True):
        assert mine is not None and theirs.model == mine.model
        assert theirs.response.get("tool_calls") == mine.response.get("tool_calls")
        assert (theirs.response["content"] or "") == (mine.response["content"] or "")
        assert (theirs.prompt_tokens, theirs.completion_tokens) == (mine.prompt_tokens, mine.completion_tokens)
        assert theirs.sampling["temperature"] == 0.0 and theirs.finish_reason is not None
        assert theirs.sampling["tools"][0]["function"]["name"] == "calc"
        assert theirs.messages == mine.messages
    assert second.response["content"] == result.output
