"""The tracer: spans in order, decisions apart from telemetry, and nothing that no store could keep."""

from __future__ import annotations

import asyncio
import threading
from typing import Any

import pytest

from holdfast.collect.agent import Tracer
from holdfast.contracts.errors import BadInput, BadRecord, StoreFull, error_line
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from tests.conftest import Clock


@pytest.fixture
def spans() -> list[Span]:
    return []


@pytest.fixture
def trace(spans: list[Span], clock: Clock) -> Tracer:
    return Tracer(spans.append, lambda: clock.now)


def test_spans_are_numbered_when_they_begin_and_recorded_when_they_end(
    trace: Tracer, spans: list[Span], clock: Clock
) -> None:
    began = clock.now
    with trace.span("outer", place="here") as notes:
        clock.advance(1)
        with trace.span("inner"):
            clock.advance(1)
        notes["found"] = 3
    assert [(span.seq, span.name, span.parent) for span in spans] == [(2, "inner", 1), (1, "outer", None)]
    assert [(span.started_at - began, span.ended_at - began) for span in spans] == [(1, 2), (0, 2)]
    assert spans[1].attributes == {"place": "here", "found": 3}
    assert trace.spans == spans


def test_each_kind_of_happening_has_its_kind_of_span(trace: Tracer, spans: list[Span]) -> None:
    trace.message("user", "hello")
    trace.event("cache.miss", size=3)
    trace.tool(ToolCall(tool="calculator", arguments={"left": 1}))
    trace.model(ModelCall(model="m", messages=(), response={}), started_at=1.0)
    with trace.span("thinking"):
        pass
    assert [(span.kind, span.is_decision) for span in spans] == [
        (SpanKind.MESSAGE, False),
        (SpanKind.TELEMETRY, False),
        (SpanKind.TOOL, True),
        (SpanKind.MODEL, True),
        (SpanKind.TELEMETRY, False),
    ]
    assert spans[0].attributes == {"role": "user", "text": "hello"}


def test_a_span_that_ends_by_an_exception_tells_it_and_lets_it_pass(trace: Tracer, spans: list[Span]) -> None:
    with pytest.raises(KeyError), trace.span("doomed"):
        raise KeyError("gone")
    assert spans[0].attributes["error"].startswith("KeyError: 'gone' (test_tracer.py:")


def test_an_instant_inside_a_span_belongs_to_it(trace: Tracer, spans: list[Span]) -> None:
    with trace.span("outer"):
        trace.event("inner")
    trace.event("after")
    assert [(span.name, span.parent) for span in spans] == [("inner", 1), ("outer", None), ("after", None)]


def test_tasks_have_their_own_nesting(trace: Tracer, spans: list[Span]) -> None:
    async def branch(name: str, pause_s: float) -> None:
        with trace.span(name):
            await asyncio.sleep(pause_s)
            trace.event(f"in {name}")

    async def both() -> None:
        await asyncio.gather(branch("slow", 0.02), branch("quick", 0.01))

    asyncio.run(both())
    seq = {span.name: span.seq for span in spans}
    parent = {span.name: span.parent for span in spans}
    assert parent == {"slow": None, "quick": None, "in slow": seq["slow"], "in quick": seq["quick"]}


def test_threads_may_record_at_the_same_time(trace: Tracer, spans: list[Span]) -> None:
    def busy() -> None:
        for _ in range(200):
            trace.event("tick")

    threads = [threading.Thread(target=busy) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(span.seq for span in spans) == list(range(1, 801))


def test_a_clock_that_jumps_back_does_not_lose_the_span(trace: Tracer, spans: list[Span], clock: Clock) -> None:
    with trace.span("backwards"):
        clock.advance(-3600)
    assert spans[0].ended_at == spans[0].started_at


def test_a_reward_of_the_agents_world_becomes_a_signal_and_no_span(trace: Tracer, spans: list[Span]) -> None:
    trace.reward("points", 3, weight=0.5, turn=1)
    (signal,) = trace.signals
    assert (signal.name, signal.value, signal.weight, signal.source, signal.turn) == ("points", 3.0, 0.5, "agent", 1)
    assert type(signal.value) is float
    assert spans == []


class Fraction:
    """A number of another library."""

    def __float__(self) -> float:
        return 0.25


def test_a_number_of_another_library_becomes_a_plain_one(trace: Tracer) -> None:
    trace.reward("share", Fraction())  # type: ignore[arg-type]
    assert type(trace.signals[0].value) is float
    assert trace.signals[0].value == 0.25


@pytest.mark.parametrize("value", [float("nan"), float("inf"), -float("inf")])
def test_a_reward_that_is_not_finite_is_refused(trace: Tracer, value: float) -> None:
    with pytest.raises(BadRecord):
        trace.reward("points", value)
    assert trace.signals == []


class Custom:
    def __repr__(self) -> str:
        return "Custom()"


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (Custom(), "Span.attributes['found'] = Custom(): is of type Custom, not a JSON value; give a JSON value"),
        (
            [1, float("nan")],
            "Span.attributes['found'][1] = nan: is not finite; give a finite number, or leave the record out",
        ),
        ({1: 2}, "Span.attributes['found'][1]: has a key that is not text; write every key as text"),
    ],
)
def test_what_no_store_could_keep_is_refused_where_the_agent_learns_of_it(
    trace: Tracer, spans: list[Span], value: Any, message: str
) -> None:
    with pytest.raises(BadRecord) as caught:
        trace.event("look", found=value)
    assert str(caught.value) == message
    assert spans == trace.spans == []


def test_a_tool_call_that_no_store_could_keep_is_refused(trace: Tracer) -> None:
    with pytest.raises(BadRecord, match=r"Span.tool.result = .*: is of type Custom, not a JSON value"):
        trace.tool(ToolCall(tool="search", arguments={}, result=Custom()))


def test_a_span_that_could_not_be_recorded_is_not_shown_to_the_scorer_either(clock: Clock) -> None:
    def full(span: Span) -> None:
        raise StoreFull("disk")

    trace = Tracer(full, lambda: clock.now)
    with pytest.raises(StoreFull):
        trace.event("look")
    assert trace.spans == []


class Mute(Exception):
    def __str__(self) -> str:
        raise RuntimeError


@pytest.mark.parametrize(
    ("error", "text"),
    [
        (ValueError("no"), "ValueError: no"),
        (ValueError(), "ValueError"),
        (SystemExit(3), "SystemExit: 3"),
        (BadInput("x", why="is wrong", remedy="do y"), "x: is wrong; do y"),  # ours already say what they are
        (Mute(), "Mute: (its text cannot be had: RuntimeError)"),
    ],
)
def test_an_exception_is_told_in_one_text(error: BaseException, text: str) -> None:
    assert error_line(error) == text


def test_what_another_thread_records_is_within_the_outermost_span(trace: Tracer, spans: list[Span]) -> None:
    with trace.span("agent.run"):
        thread = threading.Thread(target=lambda: trace.event("there"))
        thread.start()
        thread.join()
    trace.event("after")
    assert [(span.name, span.parent) for span in spans] == [("there", 1), ("agent.run", None), ("after", None)]
