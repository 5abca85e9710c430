"""Answers whose outcome a program knows: gathered, twinned, labelled as a program's, judged by the embedded head."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from random import Random

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import Maker
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.policies.verifier import load, probabilities
from holdfast.reward.judges.calibration import auroc
from holdfast.workloads.tooluse.tasks import generate, to_input
from holdfast.workloads.tooluse.verifier import (
    PADDINGS,
    Answered,
    VerifierRecipe,
    answered,
    conversation,
    data_sha256,
    eval_item,
    labels,
    plant,
    styled,
    twins,
)


@pytest.fixture(scope="module")
def found() -> list[Answered]:
    """What both models in the package answer to wordings that neither has seen."""
    return answered("test", 16, first=901)


def made(output: str, *, is_right: bool, style: str = "brief") -> Answered:
    task = next(task for task in generate("train", 3, 200) if task.style == style and task.expected == "unknown")
    given = to_input(task)
    return Answered(task=given, messages=conversation(given, output, ()), author="a", is_right=is_right)


def test_each_answer_ends_its_conversation_and_is_as_the_hidden_check_finds_it(found: list[Answered]) -> None:
    own = [one for one in found if one.kind == "own"]
    assert len(own) == 32 and {one.author for one in own} == {"sprout", "sprout-weak"}
    assert 0 < sum(one.is_right for one in own) < 32
    for one in found:
        assert one.messages[-1]["role"] == "assistant" and one.messages[-1]["content"] == one.output
        assert one.messages[0]["role"] == "system"
    assert any(message.get("role") == "tool" for one in own for message in one.messages)


def test_twins_are_wrong_by_the_same_check() -> None:
    right = made("unknown", is_right=True)
    padded, swapped = twins([right, made("42", is_right=False)], Random(1), PADDINGS["train"], 1.0)[:2]
    assert (padded.kind, padded.is_right) == ("padded", False)
    assert "unknown" in padded.output and padded.output != "unknown"
    assert swapped.kind == "swapped"


def test_the_paddings_of_the_test_are_not_learnt_from() -> None:
    assert not set(PADDINGS["train"]) & set(PADDINGS["test"])


@pytest.mark.parametrize(("style", "text"), [("brief", "7"), ("full", "The answer is 7."), ("json", '{"answer":"7"}')])
def test_a_value_is_put_into_the_style_that_was_asked_for(style: str, text: str) -> None:
    assert styled("7", style) == text


def test_a_conversation_is_what_the_last_call_saw_and_the_answer() -> None:
    given = to_input(generate("train", 1, 1)[0])
    call = ModelCall(model="m", messages=({"role": "user", "content": "q"},), response={"content": "4"})
    span = Span(seq=1, kind=SpanKind.MODEL, name="m", started_at=0.0, model=call)
    assert [m["content"] for m in conversation(given, "4", [span])] == ["q", "4"]
    assert [m["role"] for m in conversation(given, "4", [])] == ["system", "user", "assistant"]


def test_a_judge_is_not_shown_what_is_hidden(found: list[Answered]) -> None:
    for one in found[:10]:
        shown = eval_item(one)
        assert shown.expected is None and shown.output == one.output and shown.author == one.author
        assert "expected" not in shown.detail


def test_labels_are_a_programs_and_are_called_so(found: list[Answered]) -> None:
    given = labels(found, "correctness@1", now=2.0)
    assert {(one.maker, one.who) for one in given} == {(Maker.PROGRAM, "rule:tooluse")}
    assert [one.holds for one in given] == [one.is_right for one in found]
    assert data_sha256(found) == data_sha256(list(found)) != data_sha256(found[1:])
    with pytest.raises(BadInput, match="there are none"):
        data_sha256([])


def test_the_embedded_verifier_tells_right_from_wrong_on_wordings_nobody_has_seen(found: list[Answered]) -> None:
    said = probabilities(load(), [eval_item(one) for one in found])
    known = [(p, one.is_right) for p, one in zip(said, found, strict=True) if p is not None]
    area = auroc([p for p, _ in known], [right for _, right in known])
    assert area is not None and area > 0.9
    padded = [p for p, one in zip(said, found, strict=True) if one.kind == "padded" and p is not None]
    assert padded and sum(p >= 0.5 for p in padded) <= len(padded) // 10


def test_what_holds_no_conversation_has_no_probability(found: list[Answered]) -> None:
    bare = replace(eval_item(found[0]), detail={})
    assert probabilities(load(), [bare]) == [None]


def test_a_head_can_be_planted_and_taken_up(found: list[Answered], tmp_path: Path) -> None:
    manifest = plant(found, tmp_path / "v", VerifierRecipe(seed=3), created_at=1.0)
    assert manifest.notes["answers"] + sum(one is None for one in load()([x.conversation for x in found])) == len(found)
    assert manifest.data == data_sha256(found)
    assert load(tmp_path / "v").version == manifest.sha256[:12]
