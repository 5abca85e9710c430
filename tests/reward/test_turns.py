from __future__ import annotations

from collections.abc import Sequence
from math import fsum, nan
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.trace import Span, Turn
from holdfast.reward.tools import formed
from holdfast.reward.turns import (
    CODE,
    DATA,
    RESEARCH,
    RUBRIC,
    SETS,
    TOOL,
    TURN,
    TURN_PLAIN,
    WeightSet,
    answer_of,
    evidence,
    facts,
    read,
    restricted,
    score,
    signals,
    weigh,
    weights,
)
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


@given(st.lists(st.sampled_from(["oak", "17", "Friday", "x.y"]), min_size=1, max_size=30))
def test_saying_a_thing_again_adds_no_fact(words: list[str]) -> None:
    assert facts(" ".join(words)) == facts(" ".join(sorted(set(words))))


def test_a_turn_is_one_to_the_learner_too() -> None:
    cut = Talk(QUESTION).cut().turn(PRICE).answer("17").spans
    experience = Experience(
        rollout="r", run="r", task="t", split=None, is_final=True, state=RolloutState.SUCCEEDED, spans=tuple(cut),
        breakdown=None,
    )  # fmt: skip
    assert len(read(cut)) == len(experience.calls) == 2
    assert {one.turn for one in signals(cut)} == {0, 1} and evidence(cut)[0].turn == 0
    assert answer_of(cut) == "17" and answer_of(talk(QUESTION, PRICE)) == ""


@pytest.mark.parametrize(
    ("turns", "answer", "used"),
    [
        ([PRICE, STOCK, SUM, lookup("elm.owner", "Ann")], "The answer is 51.", ["17", "3", "51", ""]),
        ([PRICE, calc("17+0", "seventeen")], "51", ["", ""]),  # copied into a call that leads nowhere
        ([[PRICE, SUM]], "51", ["", "51"]),  # calls of one turn did not see one another
        ([PRICE, SUM], "51", ["17", "51"]),
    ],
)
def test_what_is_used_stands_in_the_answer_or_in_a_call_that_led_there(
    turns: list[Any], answer: str, used: list[str]
) -> None:
    assert [one.used for one in evidence(talk(QUESTION, *turns, answer=answer))] == [set(one.split()) for one in used]


def test_what_was_found_out_and_used_is_gained() -> None:
    spans = talk(QUESTION, PRICE, STOCK, SUM, lookup("elm.owner", "Ann"), answer="The answer is 51.")
    gains = dict.fromkeys(range(3), (1.0, 0.2)) | {3: (0.0, 0.0), 4: (0.0, 0.2)}
    assert of(signals(spans), "information_gain") == gains


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


def test_impossible_measures_are_refused_and_nothing_is_said_of_an_attempt_without_a_turn() -> None:
    spans = talk(QUESTION, PRICE, answer="51")
    wrong: dict[str, dict[str, Any]] = {
        "belief = 1.5": {"belief": lambda history: 1.5},
        "not finite": {"potential": lambda history: nan},
        "safety of turn 0": {"cost": lambda turn: 2.0},
        "gamma": {"gamma": 1.5},
    }
    for why, how in wrong.items():
        with pytest.raises(BadInput, match=why):
            signals(spans, **how)
    assert signals([]) == ()


def signal(name: str, value: float = 1.0, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=value, weight=weight, source="rule:test")


@pytest.mark.parametrize(
    ("surface", "shares"),
    [  # format, tool, task, minimal, cost
        (CODE, (0.20, 0.25, 0.40, 0.10, 0.05)),
        (RESEARCH, (0.15, 0.35, 0.30, 0.05, 0.15)),
        (DATA, (0.25, 0.30, 0.35, 0.05, 0.05)),
    ],
)
def test_the_surfaces_have_their_documented_shares(surface: WeightSet, shares: tuple[float, ...]) -> None:
    assert dict(zip(("format", "tool", "task", "minimal", "cost"), shares, strict=True)) == surface.groups


@pytest.mark.parametrize("name", SETS)
def test_every_set_divides_one_among_its_signals(name: str) -> None:
    assert fsum(SETS[name].shares.values()) == pytest.approx(1.0)
    assert score(dict.fromkeys(SETS[name].shares, 1.0), SETS[name]) == pytest.approx(1.0)


def test_a_turn_and_a_tool_call_are_worth_what_was_worked_by_hand() -> None:
    values = {"information_gain": 0.8, "format": 1.0, "progress": 1.0, "safety": 0.9}
    assert score(values, TURN) == pytest.approx(0.91)  # .4·.8 + .3·1 + .2·1 + .1·.9
    assert score(values, TURN_PLAIN) == pytest.approx(0.92)  # .4·.8 + .3 + .3
    values = {"choice": 1.0, "structure": 1.0, "utility": 0.9, "error_handling": 1.0}
    assert score(values, TOOL) == pytest.approx(0.98)  # .4 + .3 + .2·.9 + .1
    with pytest.raises(BadInput, match="error_handling was not measured"):
        score({"choice": 1.0, "structure": 1.0, "utility": 1.0}, TOOL)
    names = [name for terms in RUBRIC.values() for name in terms.values()]
    assert len(names) == len(set(names)) == 20  # every term of the rubric has a signal of its own


def test_weighing_multiplies_and_what_is_not_named_counts_nothing() -> None:
    halves = [signal("choice", weight=0.5), signal("choice", value=0.0, weight=0.5)]
    weighed = weigh([*halves, signal("utility"), signal("colour", value=9.0)], TOOL)
    assert [one.weight for one in weighed] == pytest.approx([0.2, 0.2, 0.2, 0.0])
    assert [one.value for one in weighed] == [1.0, 0.0, 1.0, 9.0]
    assert RewardBreakdown(signals=weighed).total == pytest.approx(0.4)


def test_what_a_workload_cannot_measure_is_shared_among_the_rest() -> None:
    # Of code@1: format .20 to one term, task .40 to two; .60 in all becomes 1.
    few = restricted(CODE, {"format", "success", "progress", "colour"})
    assert few.shares == pytest.approx({"format": 1 / 3, "success": 1 / 3, "progress": 1 / 3})
    assert few.name == "code@1[format,progress,success]"
    with pytest.raises(BadInput, match="nothing of them is measured"):
        restricted(CODE, {"colour"})


@pytest.mark.parametrize(
    ("given_", "why"),
    [
        ({"name": "code", "groups": {"a": 1.0}, "terms": {"a": ("x",)}}, "no version"),
        ({"name": "c@1", "groups": {"a": 0.9}, "terms": {"a": ("x",)}}, "add up to 0.9"),
        ({"name": "c@1", "groups": {"a": 2.0, "b": -1.0}, "terms": {"a": ("x",), "b": ("y",)}}, "at least 0"),
        ({"name": "c@1", "groups": {"a": 1.0}, "terms": {}}, "no terms"),
        ({"name": "c@1", "groups": {"a": 0.5, "b": 0.5}, "terms": {"a": ("x",), "b": ("x",)}}, "twice"),
    ],
)
def test_impossible_and_unknown_sets_are_refused(given_: dict[str, Any], why: str) -> None:
    with pytest.raises(BadInput, match=why):
        WeightSet(**given_)
    assert weights("code@1") is weights("code") is CODE
    with pytest.raises(BadInput, match="use general@1, code@1"):
        weights("code@9")
