"""The bundled agent: right from left to right, wrong about precedence, and brief only when told."""

from __future__ import annotations

import asyncio
import time
from typing import Any

import pytest

from holdfast.collect.agent import Context, Tracer
from holdfast.collect.questions import exact_match
from holdfast.contracts.checks import KnownAnswer, KnownCase, check_reward
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import SpanKind
from holdfast.reward.breakdown import normalised
from holdfast.workloads.arithmetic import agent
from tests.collect.scene import assignment


def context(prompt: str = "You are a concise assistant.") -> Context:
    given = assignment(resources={"system_prompt": prompt} if prompt else {})
    return Context(assignment=given, trace=Tracer(lambda span: None, time.time), complete=None)


@pytest.mark.parametrize(
    ("question", "answer"),
    [
        ("What is 2 + 2?", "4"),
        ("What is 9 - 12?", "-3"),
        ("What is 100 / 4 - 5?", "20"),
        ("What is 7 / 2?", "3"),  # whole numbers only
        ("What is 2 + 3 * 4?", "20"),  # it knows no precedence
        ("What is 12?", "12"),
        ("What?", "0"),
    ],
)
def test_it_calculates_from_left_to_right(question: str, answer: str) -> None:
    assert asyncio.run(agent({"prompt": question}, context())) == answer


@pytest.mark.parametrize(
    ("prompt", "answer"),
    [
        ("Be BRIEF.", "4"),
        ("Give only the number.", "4"),
        ("Be shortsighted.", "The answer is 4."),  # a word, not a piece of one
        ("Be kind.", "The answer is 4."),
        ("", "The answer is 4."),
    ],
)
def test_it_is_brief_only_when_its_prompt_asks_for_that(prompt: str, answer: str) -> None:
    assert asyncio.run(agent("What is 2 + 2?", context(prompt))) == answer


def test_every_step_is_a_tool_call_between_two_messages() -> None:
    given = context()
    asyncio.run(agent("What is 2 + 3 * 4?", given))
    kinds = [span.kind for span in given.trace.spans]
    assert kinds == [SpanKind.MESSAGE, SpanKind.TOOL, SpanKind.TOOL, SpanKind.MESSAGE]
    calls = [span.tool for span in given.trace.spans if span.tool is not None]
    assert [(call.arguments, call.result) for call in calls] == [
        ({"left": 2, "sign": "+", "right": 3}, 5),
        ({"left": 5, "sign": "*", "right": 4}, 20),
    ]


@pytest.mark.parametrize(
    ("task", "error"),
    [("What is 1 / 0?", ZeroDivisionError), ("What is 1 + + 2?", Exception), ({"question": "?"}, BadInput)],
)
def test_what_it_cannot_do_it_fails_at(task: Any, error: type[Exception]) -> None:
    with pytest.raises(error):
        asyncio.run(agent(task, context()))


def test_its_answers_are_scored_by_a_comparison_that_passes_the_kit() -> None:
    answers = {
        prompt: asyncio.run(agent({"prompt": "What is 2 + 2?"}, context(prompt))) for prompt in ("Be brief.", "")
    }
    hasty = asyncio.run(agent({"prompt": "What is 2 + 3 * 4?"}, context()))
    cases = [
        KnownCase(
            name="sum",
            task={"prompt": "What is 2 + 2?", "expected": "4"},
            gold=KnownAnswer(name="brief", output=answers["Be brief."]),
            cheats=(KnownAnswer(name="a sentence where a number was wanted", output=answers[""]),),
        ),
        KnownCase(
            name="precedence",
            task={"prompt": "What is 2 + 3 * 4?", "expected": "14"},
            gold=KnownAnswer(name="right", output="14"),
            cheats=(
                KnownAnswer(name="from left to right", output=hasty),
                KnownAnswer(name="both", output=f"14 or {hasty}"),
            ),
        ),
    ]
    check_reward(exact_match, cases, normalised, outcome="exact_match")
