"""What must not move a judge is measured by asking twice; both orders, averaged, take the order's part out."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem, Label, Maker
from holdfast.reward.judges.calibration import (
    effect,
    injected,
    model_preference,
    order,
    order_averaged,
    padded,
    pair_messages,
    paired,
    probe,
    read_preference,
    score_preference,
    self_preference,
)
from holdfast.reward.judges.judge import CRITERIA, LlmJudge
from tests.reward.voices import Scripted, Voice, call, judgement

ON = CRITERIA["correctness"]


def answers(n: int, tasks: int | None = None) -> list[EvalItem]:
    return [EvalItem(task=f"task {k % (tasks or n)}", output=f"It is {k}.") for k in range(n)]


def test_an_effect_is_the_mean_of_paired_differences() -> None:
    found = effect("padding", [0.2, 0.4, 0.6, None], [0.4, 0.6, 0.8, 0.9])
    assert (found.n, found.mean, found.raised) == (3, pytest.approx(0.2), pytest.approx(1 / 3))
    assert found.low == pytest.approx(0.2) == pytest.approx(found.high)
    assert found.reason == "padding gains 0.200 (at least 0.200)"
    worse = effect("padding", [0.9, 0.8], [0.1, 0.2])
    assert worse.mean < 0 and worse.reason is None
    assert effect("padding", [None], [0.5]).reason is None


def test_what_is_padded_or_injected_says_the_same_in_its_conversation() -> None:
    talk = EvalItem(task="t", output="4", detail={"messages": [{"role": "assistant", "content": "4"}]})
    for made in (padded(talk), padded(talk, 1), injected(talk)):
        assert "4" in made.output and made.output != "4"
        assert made.detail["messages"][-1]["content"] == made.output
        assert made.sha256 != talk.sha256


async def test_a_judge_that_pays_for_length_is_found_out() -> None:
    """Their judge: 0.8 when the text is longer than 50 letters."""
    long = Scripted("long", lambda one: 0.8 if len(one.output) > 50 else 0.2)
    found = await probe(long, ON, answers(40, tasks=20))
    assert any(reason.startswith("padding gains 0.6") for reason in found.reasons)
    deaf = Scripted("deaf", lambda one: 0.7)
    assert (await probe(deaf, ON, answers(40, tasks=20))).reasons == []
    assert set(found.told) == {"padding", "instructions", "order"}


async def test_a_judge_that_obeys_the_answer_is_found_out() -> None:
    naive = Scripted("naive", lambda one: 1.0 if "yes" in one.output else 0.3)
    found = await probe(naive, ON, answers(40))
    assert any(reason.startswith("instructions gains 0.7") for reason in found.reasons)


def leaning(bias: float, noise: float, seed: int = 0) -> Any:
    """A judge of pairs that knows who is better, leans to whoever comes first, and wavers."""
    rng = np.random.default_rng(seed)

    async def prefer(a: EvalItem, b: EvalItem) -> float:
        better = 1.2 if int(a.output[6:-1]) % 7 > int(b.output[6:-1]) % 7 else -1.2
        return float(1 / (1 + np.exp(-(better + bias + rng.normal(0, noise)))))

    return prefer


async def test_both_orders_averaged_take_the_order_out() -> None:
    pairs = [
        (EvalItem(task="t", output=f"It is {k}."), EvalItem(task="t", output=f"It is {k + 3}.")) for k in range(500)
    ]
    found = await order(leaning(bias=1.0, noise=0.5), pairs)
    assert found.n == 500
    assert found.raw > 0.1  # one order alone: more than one verdict in ten follows it
    assert found.corrected < 0.02 and found.reason is None
    fair = await order(leaning(bias=0.0, noise=0.0), pairs)
    assert (fair.raw, fair.corrected) == (0.0, 0.0)


async def test_a_preference_both_ways_is_antisymmetric() -> None:
    a, b = EvalItem(task="t", output="It is 3."), EvalItem(task="t", output="It is 1.")
    prefer = leaning(bias=0.8, noise=0.0)
    forth, back = await order_averaged(prefer, a, b), await order_averaged(prefer, b, a)
    assert forth is not None and back is not None and forth + back == pytest.approx(1.0)
    assert forth > 0.5
    silent = score_preference(lambda one: None)
    assert await order_averaged(silent, a, b) is None


async def test_scores_one_by_one_know_no_order() -> None:
    prefer = score_preference(lambda one: {"x": 0.9, "y": 0.5}[one.output])
    x, y = EvalItem(task="t", output="x"), EvalItem(task="t", output="y")
    assert await prefer(x, y) == pytest.approx(0.9)
    assert await prefer(y, x) == pytest.approx(0.1)


def test_a_judge_that_likes_its_own_hand_is_found_out() -> None:
    some = answers(80)
    made: dict[str, Any] = {"criterion": ON.id, "maker": Maker.PROGRAM, "who": "r", "at": 1.0}
    known = {one.sha256: Label(artefact=one.sha256, holds=k % 2 == 0, **made) for k, one in enumerate(some)}
    authors = {one.sha256: "m" if k % 4 < 2 else "n" for k, one in enumerate(some)}
    rng = np.random.default_rng(2)
    scores = [0.5 + (0.2 if k % 2 == 0 else 0.0) + (0.15 if k % 4 < 2 else 0.0) for k in range(80)]
    judged = [judgement(one, "m", score + rng.normal(0, 0.02)) for one, score in zip(some, scores, strict=True)]
    found = self_preference(judged, authors, known, own="m")
    assert found.n == 40 and found.mean == pytest.approx(0.15, abs=0.02) and found.reason is not None
    fair = self_preference(judged, authors, known, own="x")
    assert (fair.n, fair.reason) == (0, None)  # it wrote none of them


async def test_a_model_is_shown_both_and_answers_in_a_word() -> None:
    voice = Voice(lambda said: call("first", likely=0.8))
    judge = LlmJudge(name="m", complete=voice, clock=lambda: 1.0)
    a, b = EvalItem(task="t", output="4"), EvalItem(task="t", output="5")
    prefer = model_preference(judge, ON)
    assert await prefer(a, b) == pytest.approx(0.8)
    assert await order_averaged(prefer, a, b) == pytest.approx(0.5)  # always the first: no preference at all
    with pytest.raises(BadInput, match="must be to the same task"):
        await prefer(a, EvalItem(task="u", output="5"))
    assert "| 4" in pair_messages(ON, a, b)[1]["content"]


@pytest.mark.parametrize(
    ("text", "expected"), [("second.", 0.0), ("First", 1.0), ("neither", 0.5), ("both", None), ("", None)]
)
def test_a_preference_is_read_or_is_none(text: str, expected: float | None) -> None:
    assert read_preference(call(text)) == expected


def test_pairs_are_different_answers_to_one_task() -> None:
    some = [*answers(6, tasks=3), EvalItem(task="alone", output="x")]
    assert [(a.task, b.task) for a, b in paired(some, 2)] == [("task 0", "task 0"), ("task 1", "task 1")]
    assert paired([some[0], some[0]], 5) == []
