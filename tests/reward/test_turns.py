from __future__ import annotations

from collections.abc import Sequence
from math import fsum, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.trace import Span, Turn
from holdfast.reward.tools import formed
from holdfast.reward.turns import TURN, answer_of, evidence, facts, read, signals, weigh
from tests.reward.conversation import SCHEMAS, Talk, calc, lookup, talk, tool

PRICE = lookup("oak.price", "17")
STOCK = lookup("oak.stock", "3")
SUM = calc("17*3", "51")
QUESTION = "What is oak.price times oak.stock?"


def of(found: Sequence[RewardTerm], name: str) -> dict[int | None, tuple[float, float]]:
    return {one.turn: (one.value, one.weight) for one in found if one.name == name}


def total(found: Sequence[RewardTerm]) -> float:
    return RewardBreakdown(signals=weigh(found, TURN)).total or 0.0


@pytest.mark.parametrize(
    ("value", "found"),
    [
        ("It is 1,234.50 on 2024-03-01.", {"1234.5", "2024-03-01"}),  # numbers and days have one spelling
        ("oak.price OAK.PRICE", {"oak.price"}),  # keys stay whole, whatever their case
        ("the answer is the", set()),  # words that every text has are no facts
        ({"key": "oak.price", "n": 2, "deep": [{"x": "Friday"}]}, {"oak.price", "2", "friday"}),  # values, not names
        ("12-3", {"12", "3"}),  # a sum is its numbers
        ([True, None, -4.0], {"4"}),
        ("", set()),
    ],
)
def test_facts_are_what_can_be_looked_for_later(value: object, found: set[str]) -> None:
    assert facts(value) == found


@settings(deadline=None)
@given(st.lists(st.sampled_from(["oak", "17", "Friday", "x.y"]), min_size=1, max_size=30))
def test_saying_a_thing_again_adds_no_fact(words: list[str]) -> None:
    assert facts(" ".join(words)) == facts(" ".join(sorted(set(words))))


def test_a_turn_is_one_to_the_learner_too() -> None:
    cut = Talk(QUESTION).cut().turn(PRICE).answer("17").spans
    experience = Experience(
        rollout="r", run="r", task="t", split=None, is_final=True, state=RolloutState.SUCCEEDED, spans=tuple(cut),
        sheet=None,
    )  # fmt: skip
    assert len(read(cut)) == len(experience.calls) == 2
    assert {one.turn for one in signals(cut)} == {0, 1} and evidence(cut)[0].turn == 0
    assert answer_of(cut) == "17" and answer_of(talk(QUESTION, PRICE)) == ""


def test_what_is_used_stands_in_the_answer_or_in_a_call_that_led_there() -> None:
    spans = talk(QUESTION, PRICE, STOCK, SUM, lookup("elm.owner", "Ann"), answer="The answer is 51.")
    assert [one.used for one in evidence(spans)] == [{"17"}, {"3"}, {"51"}, set()]
    assert of(signals(spans), "information_gain") == {
        0: (1.0, 0.2), 1: (1.0, 0.2), 2: (1.0, 0.2), 3: (0.0, 0.0), 4: (0.0, 0.2),
    }  # fmt: skip


def test_a_result_copied_into_a_call_that_leads_nowhere_was_not_used() -> None:
    spans = talk(QUESTION, PRICE, calc("17+0", "seventeen"), answer="51")
    assert [one.used for one in evidence(spans)] == [set(), set()]


def test_calls_of_one_turn_did_not_see_one_another() -> None:
    at_once = talk(QUESTION, [PRICE, SUM], answer="51")
    assert [one.used for one in evidence(at_once)] == [set(), {"51"}]
    assert [one.used for one in evidence(talk(QUESTION, PRICE, SUM, answer="51"))] == [{"17"}, {"51"}]


@pytest.mark.parametrize(
    ("prompt", "call"),
    [
        ("Is oak.price 17?", PRICE),  # the question said it already
        ("Say it", tool("echo", "17", text="17")),  # the call said it itself
        ("What is it?", lookup("oak.price", error="17 is busy")),  # an error is no result
    ],
)
def test_what_was_known_before_is_not_gained(prompt: str, call: object) -> None:
    assert of(signals(talk(prompt, call, answer="17")), "information_gain")[0][0] == 0.0


def test_a_long_result_gains_no_more_than_a_short_one() -> None:
    short = talk("Oak?", lookup("oak", "17"), answer="17")
    padded = talk("Oak?", lookup("oak", "17 " + " ".join(f"pad{n}" for n in range(99))), answer="17")
    stuttered = talk("Oak?", lookup("oak", "17 " * 100), answer="17")
    gains = [of(signals(one), "information_gain")[0][0] for one in (short, padded, stuttered)]
    assert gains == [1.0, pytest.approx(0.01), 1.0]


def test_a_belief_is_paid_by_its_change_and_the_changes_add_up() -> None:
    spans = talk(QUESTION, PRICE, lookup("elm.owner", "Ann"), answer="51")
    beliefs = {0: 0.1, 2: 0.7, 4: 0.4, 5: 0.9}  # by how many spans have been seen
    found = of(signals(spans, belief=lambda history: beliefs[len(history)]), "information_gain")
    assert found == {0: (pytest.approx(0.6), 1.0), 1: (pytest.approx(-0.3), 1.0), 2: (pytest.approx(0.5), 1.0)}
    assert fsum(value for value, _ in found.values()) == pytest.approx(0.9 - 0.1)


@settings(deadline=None)
@given(st.lists(st.floats(0, 1), min_size=6, max_size=6))
def test_any_belief_telescopes(heights: list[float]) -> None:
    spans = talk(QUESTION, PRICE, STOCK, SUM, answer="51")
    steps = [len(spans[: turn.decision.seq - 1]) for turn in read(spans)] + [len(spans)]
    by_length = dict(zip(steps, heights, strict=False))
    found = of(signals(spans, belief=lambda history: by_length[len(history)]), "information_gain")
    assert fsum(value for value, _ in found.values()) == pytest.approx(heights[4] - heights[0])


def test_progress_is_the_discounted_step_of_the_potential() -> None:
    spans = talk(QUESTION, PRICE, STOCK, answer="51")

    def reached(history: Sequence[Span]) -> float:
        return sum(span.tool is not None for span in history) / 2

    found = of(signals(spans, potential=reached, gamma=0.5), "progress")  # Φ: 0, ½, 1, 1
    assert found == {0: (0.25, 1.0), 1: (0.0, 1.0), 2: (-0.5, 1.0)}


def test_form_is_that_of_the_calls_or_of_the_answer() -> None:
    spans = talk(QUESTION, PRICE, tool("lookup", "3", keys="oak.stock"), SUM, answer="51")
    judge = formed(SCHEMAS, is_styled=str.isdigit)
    assert {turn: value for turn, (value, _) in of(signals(spans, is_formed=judge), "format").items()} == {
        0: 1.0, 1: 0.0, 2: 1.0, 3: 1.0,
    }  # fmt: skip
    assert 3 not in of(signals(spans, is_formed=formed(SCHEMAS)), "format")  # nobody said how it should look


def test_safety_is_what_the_cost_leaves() -> None:
    def unsafe(turn: Turn) -> float:
        return 0.25 * any(span.tool is not None and span.tool.tool == "calc" for span in turn.effects)

    spans = talk(QUESTION, PRICE, STOCK, SUM, answer="51")
    assert of(signals(spans, cost=unsafe), "safety")[2] == (0.75, 0.25)


@settings(deadline=None)
@given(
    st.lists(st.sampled_from([PRICE, STOCK, SUM]), max_size=4),
    st.lists(st.sampled_from([lookup("elm.owner", "Ann"), lookup("elm.x", error="error: unknown key"), tool("clock")])),
    st.integers(0, 4),
)
def test_turns_that_lead_nowhere_never_raise_the_sum(calls: list[object], idle: list[object], at: int) -> None:
    def judged(turns: list[object]) -> float:
        judge = formed(SCHEMAS, is_styled=str.isdigit)
        spans = talk(QUESTION, *turns, answer="51")
        return total(signals(spans, is_formed=judge, cost=lambda turn: 0.0))

    assert judged([*calls[:at], *idle, *calls[at:]]) <= judged(calls) + 1e-12


def test_nothing_is_said_of_an_attempt_without_a_turn() -> None:
    assert signals([]) == ()


def test_impossible_measures_are_refused() -> None:
    spans = talk(QUESTION, PRICE, answer="51")
    with pytest.raises(BadInput, match="belief = 1.5"):
        signals(spans, belief=lambda history: 1.5)
    with pytest.raises(BadInput, match="not finite"):
        signals(spans, potential=lambda history: nan)
    with pytest.raises(BadInput, match="safety of turn 0"):
        signals(spans, cost=lambda turn: 2.0)
    with pytest.raises(BadInput, match="gamma"):
        signals(spans, gamma=1.5)
