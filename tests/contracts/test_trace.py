"""Spans, calls and turns refuse what could not have happened."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.trace import DECISIONS, ModelCall, Span, SpanKind, ToolCall, Turn

CALL = ModelCall(model="m", messages=(), response={})
TOOL = ToolCall(tool="search", arguments={})


def span(**changes: Any) -> Span:
    return Span(**{"seq": 2, "kind": SpanKind.TELEMETRY, "name": "s", "started_at": 1.0, **changes})


NAN, INF = float("nan"), float("inf")
BAD_SPANS: list[tuple[dict[str, Any], str]] = [
    # spans are counted from 1
    ({"seq": 0}, "span s: seq = 0: must be at least 1"),
    # times
    ({"started_at": NAN}, "span s: times nan to None are not finite and in order"),
    ({"ended_at": 0.5}, "span s: times 1.0 to 0.5 are not finite and in order"),
    ({"ended_at": INF}, "span s: times 1.0 to inf are not finite and in order"),
    ({"ended_at": NAN}, "span s: times 1.0 to nan are not finite and in order"),
    # a span cannot lie within itself
    ({"parent": 2}, "span s: parent = 2: must be an earlier span than 2"),
    ({"parent": 0}, "span s: parent = 0: must be an earlier span than 2"),
    # a model span without its call, and a call without a model span
    ({"kind": SpanKind.MODEL}, "span s: kind model does not fit its model or tool call"),
    ({"model": CALL}, "span s: kind telemetry does not fit its model or tool call"),
    ({"kind": SpanKind.TOOL, "model": CALL, "tool": TOOL}, "span s: kind tool does not fit its model or tool call"),
    # the same for tools
    ({"kind": SpanKind.TOOL}, "span s: kind tool does not fit its model or tool call"),
    ({"kind": SpanKind.MESSAGE, "tool": TOOL}, "span s: kind message does not fit its model or tool call"),
]


@pytest.mark.parametrize(("changes", "message"), BAD_SPANS)
def test_a_span_that_could_not_have_happened_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        span(**changes)
    assert str(refusal.value) == message


BAD_CALLS: list[tuple[dict[str, Any], str]] = [
    ({"prompt_ids": (1, -1)}, "model call: prompt_ids: token ids must not be negative"),
    ({"completion_ids": (-1,)}, "model call: completion_ids: token ids must not be negative"),
    # log-probs of nothing
    ({"logprobs": (-1.0,)}, "model call: logprobs: 1 values for none completion ids"),
    # one too few
    ({"completion_ids": (1, 2), "logprobs": (-1.0,)}, "model call: logprobs: 1 values for 2 completion ids"),
    # a probability above 1
    ({"completion_ids": (1,), "logprobs": (0.1,)}, "model call: logprobs: must be finite and at most 0"),
    ({"completion_ids": (1,), "logprobs": (-INF,)}, "model call: logprobs: must be finite and at most 0"),
    # scrubbed ranges: of nothing, empty, out of order, beyond the end, and no ranges at all
    ({"scrubbed": ((0, 1),)}, "model call: scrubbed: (0, 1) is empty, out of order or beyond 0 ids"),
    (
        {"prompt_ids": (0,), "scrubbed": ((0, 0),)},
        "model call: scrubbed: (0, 0) is empty, out of order or beyond 1 ids",
    ),
    (
        {"prompt_ids": (0, 0), "scrubbed": ((1, 2), (0, 1))},
        "model call: scrubbed: (0, 1) is empty, out of order or beyond 2 ids",
    ),
    (
        {"prompt_ids": (0,), "scrubbed": ((0, 2),)},
        "model call: scrubbed: (0, 2) is empty, out of order or beyond 1 ids",
    ),
    ({"prompt_ids": (0,), "scrubbed": ((0,),)}, "model call: scrubbed: (0,) is not a start and an end"),
    # what was said is still there
    ({"prompt_ids": (0, 7), "scrubbed": ((0, 2),)}, "model call: scrubbed: the ids of (0, 2) must be 0"),
    # the model would be blamed for what it did not say
    (
        {"prompt_ids": (0,), "completion_ids": (0, 0), "forced": (0,), "scrubbed": ((0, 3),)},
        "model call: scrubbed: completion ids of (0, 3) must be forced",
    ),
]


@pytest.mark.parametrize(("changes", "message"), BAD_CALLS)
def test_a_model_call_that_could_not_have_been_sampled_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        ModelCall(model="m", messages=(), response={}, **changes)
    assert str(refusal.value) == message


def test_the_edges_of_spans_and_calls_are_allowed() -> None:
    span(seq=1, ended_at=1.0)
    span(parent=1)
    ModelCall(model="m", messages=(), response={}, prompt_ids=(0,), completion_ids=(0,), logprobs=(0.0,))
    ModelCall(model="m", messages=(), response={}, prompt_ids=(1, 0), scrubbed=((1, 2),))
    across: dict[str, Any] = {"prompt_ids": (7, 0), "completion_ids": (0, 9), "forced": (0,), "scrubbed": ((1, 3),)}
    assert ModelCall(model="m", messages=(), response={}, **across).scrubbed == ((1, 3),)


def test_model_and_tool_calls_are_the_decisions() -> None:
    assert {SpanKind.MODEL, SpanKind.TOOL} == DECISIONS
    assert span(kind=SpanKind.MODEL, model=CALL).is_decision
    assert span(kind=SpanKind.TOOL, tool=TOOL).is_decision
    assert not span(kind=SpanKind.MESSAGE).is_decision
    assert not span().is_decision


def test_a_turn_opens_with_a_model_call() -> None:
    Turn(index=0, decision=span(kind=SpanKind.MODEL, model=CALL))
    with pytest.raises(BadRecord) as refusal:
        Turn(index=1, decision=span(kind=SpanKind.TOOL, tool=TOOL))
    assert str(refusal.value) == "turn 1: opens with a tool span, not a model call"


def test_turns_are_counted_from_zero() -> None:
    with pytest.raises(BadRecord) as refusal:
        Turn(index=-1, decision=span(kind=SpanKind.MODEL, model=CALL))
    assert str(refusal.value) == "turn -1: the index must not be negative"
