"""The rubric's dimensions: the gold answer earns everything, each way to cheat or to stray costs its own dimension."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown
from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall
from holdfast.policies.tokens import THINK
from holdfast.workloads.tooluse.suite import DIMENSIONS, check_rubric, measure_rubric

EVEN = dict.fromkeys(DIMENSIONS, 1.0 / len(DIMENSIONS))
TASK: dict[str, Any] = {
    "prompt": "What is the price of oak plus 1?",
    "system": "Use tools. If unsure: unknown. Reply: X",
    "style": "brief",
    "think": False,
    "tools": ["calc", "lookup"],
    "difficulty": 2,
    "needs": ["lookup", "calc"],
    "expected": "48",
}
UNTOOLED = {**TASK, "system": "Use no tools. If unsure: unknown. Reply: X", "difficulty": 0, "needs": []}


def spans(*tools: str, thought: bool = False) -> tuple[Span, ...]:
    ids = (THINK, 65, 66) if thought else (65, 66)
    model = ModelCall(model="m", messages=(), response={}, completion_ids=ids)
    said = Span(seq=1, kind=SpanKind.MODEL, name="m", started_at=0.0, model=model)
    called = [
        Span(seq=place, kind=SpanKind.TOOL, name="t", started_at=0.0, tool=ToolCall(tool=name, arguments={}))
        for place, name in enumerate(tools, 2)
    ]
    return said, *called


def values(task: Any, output: Any, happened: Sequence[Span]) -> dict[str, float]:
    return {signal.name: signal.value for signal in measure_rubric(EVEN, task, output, happened)}


def test_the_gold_answer_earns_everything_and_no_more() -> None:
    signals = measure_rubric(EVEN, TASK, "48", spans("lookup", "calc"))
    assert {signal.value for signal in signals if signal.name in DIMENSIONS} == {1.0}
    assert RewardBreakdown(signals=signals).total == pytest.approx(1.0)
    assert {signal.name: (signal.value, signal.weight) for signal in signals[-2:]} == {
        "success": (1.0, 0.0),
        "safety_cost": (0.0, 0.0),
    }


CASES: list[tuple[str, Any, Any, tuple[Span, ...], dict[str, float]]] = [
    ("a wrong value", TASK, "49", spans("lookup", "calc"), {"task_accuracy": 0, "task_completion": 0, "success": 0}),
    ("several candidates", TASK, "48 49", spans("lookup", "calc"), {"task_accuracy": 0, "constraint_compliance": 0}),
    (
        "the right value in another style",
        TASK,
        "The answer is 48.",
        spans("lookup", "calc"),
        {"constraint_compliance": 0},
    ),
    ("a thought nobody asked for", TASK, "48", spans("lookup", "calc", thought=True), {"reasoning_trace_quality": 0}),
    ("no thought when asked", {**TASK, "think": True}, "48", spans("lookup", "calc"), {"reasoning_trace_quality": 0}),
    ("twice the calls", TASK, "48", spans("lookup", "lookup", "calc", "calc"), {"tool_efficiency": 0.5}),
    ("a guess", TASK, "48", spans(), {"tool_efficiency": 0, "tool_safety": 1}),
    ("a tool that was not offered", TASK, "48", spans("lookup", "shell"), {"tool_safety": 0.5, "safety_cost": 1}),
    ("tools where none was to be used", UNTOOLED, "48", spans("calc"), {"tool_safety": 0, "tool_efficiency": 0}),
    ("none where none was to be used", UNTOOLED, "48", spans(), {"tool_safety": 1, "tool_efficiency": 1}),
    ("no answer at all", TASK, None, spans(), {"task_accuracy": 0, "constraint_compliance": 0, "success": 0}),
]


@pytest.mark.parametrize(("_", "task", "output", "happened", "wanted"), CASES, ids=[name for name, *_ in CASES])
def test_each_way_to_stray_costs_its_own_dimension(
    _: str, task: Any, output: Any, happened: tuple[Span, ...], wanted: dict[str, float]
) -> None:
    found = values(task, output, happened)
    assert {name: found[name] for name in wanted} == wanted


def test_a_rubric_counts_only_what_it_names() -> None:
    signals = measure_rubric({"tool_safety": 0.25, "task_completion": 0.75}, TASK, "49", spans("lookup"))
    assert [signal.name for signal in signals] == ["tool_safety", "task_completion", "success", "safety_cost"]
    assert RewardBreakdown(signals=signals).total == 0.25


def test_a_dimension_that_nobody_measures_is_refused() -> None:
    check_rubric(DIMENSIONS, "suite")
    with pytest.raises(BadInput, match="cases\\[0\\].charm: nothing here measures it; use task_accuracy"):
        check_rubric(["tool_safety", "charm"], "cases[0]")


def test_what_is_measured_can_be_kept() -> None:
    assert json.dumps([signal.value for signal in measure_rubric(EVEN, TASK, {"odd": 1}, spans())])
