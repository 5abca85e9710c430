"""Questions: how a task is read, asked and scored."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Mapping, Sequence
from typing import Any

import pytest

from holdfast.collect.agent import Context, Tracer
from holdfast.collect.questions import answer, check, exact_match, prompt_of
from holdfast.contracts.checks import KnownAnswer, KnownCase, check_reward
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall
from holdfast.reward.breakdown import normalised
from tests.collect.scene import assignment


@pytest.mark.parametrize("task", ["What is 2 + 2?", {"prompt": "What is 2 + 2?"}, {"prompt": "What is 2 + 2?", "x": 1}])
def test_a_task_is_a_text_or_an_object_with_one(task: Any) -> None:
    assert prompt_of(task) == "What is 2 + 2?"


@pytest.mark.parametrize("task", [None, 4, [], {}, "", "  ", {"prompt": ""}, {"prompt": 4}, {"question": "?"}])
def test_a_task_without_a_prompt_is_refused_with_its_place(task: Any) -> None:
    with pytest.raises(BadInput) as caught:
        prompt_of(task, "validate[3]")
    says = 'validate[3]: has no prompt; give a string, or an object with a "prompt" string'
    assert str(caught.value) == says


@pytest.mark.parametrize("expected", [4, 4.0, True, ["4"], {}])
def test_an_expectation_that_no_answer_could_match_is_refused(expected: Any) -> None:
    with pytest.raises(BadInput) as caught:
        check({"prompt": "2 + 2?", "expected": expected}, "optimize[0]", is_asked=False)
    why = "is not text, so no answer could match it; quote it"
    assert str(caught.value) == f"optimize[0].expected = {expected!r}: {why}"


@pytest.mark.parametrize(
    "task", ["2 + 2?", {"prompt": "2 + 2?"}, {"prompt": "?", "expected": "4"}, {"prompt": "?", "expected": None}]
)
def test_a_task_that_can_be_asked_and_scored_passes(task: Any) -> None:
    check(task, "optimize[0]", is_asked=True)


def test_only_a_task_that_a_model_is_asked_needs_a_prompt() -> None:
    check({"board": "x.o"}, "optimize[0]", is_asked=False)
    with pytest.raises(BadInput, match="has no prompt"):
        check({"board": "x.o"}, "optimize[0]", is_asked=True)


def asked(task: Any, resources: Mapping[str, Any], content: Any = "4") -> tuple[list[Any], str]:
    """The messages the model saw, and what the agent made of its answer."""
    seen: list[Any] = []

    async def model(messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        seen.extend(messages)
        return ModelCall(model="m", messages=tuple(messages), response={"role": "assistant", "content": content})

    trace = Tracer(lambda span: None, time.time)
    context = Context(assignment=assignment(task, resources=resources), trace=trace, complete=model)
    return seen, asyncio.run(answer(task, context))


def test_the_model_is_asked_once_with_the_system_prompt_in_force() -> None:
    messages, found = asked({"prompt": "2 + 2?"}, {"system_prompt": "Be brief."})
    assert messages == [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "2 + 2?"}]
    assert found == "4"


def test_without_a_system_prompt_the_question_stands_alone() -> None:
    assert asked("2 + 2?", {"style": "kind"})[0] == [{"role": "user", "content": "2 + 2?"}]


def test_a_model_that_says_nothing_answers_with_nothing() -> None:
    assert asked("2 + 2?", {}, content=None)[1] == ""


@pytest.mark.parametrize(
    ("output", "value"),
    [
        ("42", 1.0),  # the gold answer
        (" 42\n", 1.0),  # outer spaces do not matter
        (42, 1.0),  # nor whether it is a number or its text
        ("41", 0.0),
        ("", 0.0),
        (None, 0.0),
        ("42 43 44", 0.0),  # the cheat: name them all
        ("The answer is 42.", 0.0),
        ("4 2", 0.0),
        (["42"], 0.0),
    ],
)
def test_an_answer_scores_one_when_it_is_the_expected_text(output: Any, value: float) -> None:
    (signal,) = exact_match({"prompt": "6 * 7?", "expected": "42"}, output, ())
    assert (signal.name, signal.value, signal.source) == ("exact_match", value, "rule:exact_match")


@pytest.mark.parametrize("task", ["6 * 7?", {"prompt": "6 * 7?"}, {"prompt": "6 * 7?", "expected": None}])
def test_where_nothing_was_expected_there_is_no_score_and_not_a_zero(task: Any) -> None:
    assert exact_match(task, "42", ()) == ()


def test_the_comparison_passes_the_kit_before_it_may_judge_anyone() -> None:
    cheats = ("5", "4 or 5", "The answer is 4.", "4\n4", "", None, ["4"])
    case = KnownCase(
        name="sum",
        task={"prompt": "What is 2 + 2?", "expected": "4"},
        gold=KnownAnswer(name="right", output="4"),
        cheats=tuple(KnownAnswer(name=repr(output), output=output) for output in cheats),
        plain=(KnownAnswer(name="with spaces", output=" 4 "),),
    )
    check_reward(exact_match, [case], normalised, outcome="exact_match")
