"""An experience knows its model calls in order, and whether it was cut short."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.contracts.experience import Ended, Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind, ToolCall


def call(finish: str) -> ModelCall:
    return ModelCall(model="m", messages=(), response={}, finish_reason=finish)


def experience(*finishes: str, ended: Ended | None = None) -> Experience:
    spans = [
        Span(seq=2 * n + 1, kind=SpanKind.MODEL, name="m", started_at=1.0, model=call(finish))
        for n, finish in enumerate(finishes)
    ]
    spans.append(Span(seq=2, kind=SpanKind.TOOL, name="t", started_at=1.0, tool=ToolCall(tool="calc", arguments={})))
    return Experience(
        rollout="run-1/a",
        run="run-1",
        task="a",
        split=Split.TRAIN,
        is_final=True,
        state=RolloutState.SUCCEEDED,
        spans=tuple(reversed(spans)),
        sheet=None,
        ended=ended,
    )


def test_its_model_calls_come_in_order_and_tool_calls_are_none_of_them() -> None:
    assert [c.finish_reason for c in experience("tool_calls", "stop").calls] == ["tool_calls", "stop"]


def test_a_call_that_was_cut_short_is_no_turn() -> None:
    whole = experience("stop", "stop")
    cut = replace(whole.spans[-1], attributes={PARTIAL: "the client left"})
    assert [c.finish_reason for c in replace(whole, spans=(*whole.spans[:-1], cut)).calls] == ["stop"]


@pytest.mark.parametrize(
    ("finishes", "ended", "is_truncated"),
    [
        (("stop",), None, False),
        (("stop", "length"), None, True),  # the last call ran into its limit
        (("length", "stop"), None, False),  # an earlier one did, and it went on
        ((), None, False),
        (("stop",), "truncated", True),  # what is said goes over what is guessed
        (("length",), "terminated", False),
    ],
)
def test_it_was_cut_short_when_its_last_call_was_or_when_it_says_so(
    finishes: tuple[str, ...], ended: Ended | None, is_truncated: bool
) -> None:
    assert experience(*finishes, ended=ended).is_truncated is is_truncated
