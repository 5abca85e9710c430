"""The kit is itself tested: an honest reward passes it, and each kind of dishonest one is found out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from itertools import count
from typing import Any

import pytest

from holdfast.contracts.checks import KnownAnswer, KnownCase, Score, check_reward
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.trace import Span
from holdfast.reward.breakdown import OutcomeGate, normalised, total

GUARD = OutcomeGate(vetoes=("tampered",))
CASE = KnownCase(
    name="two and two",
    task={"expected": "4"},
    gold=KnownAnswer(name="right", output="4"),
    plain=(KnownAnswer(name="chatty", output="4!"),),
    cheats=(KnownAnswer(name="all numbers", output="1 2 3 4 5"), KnownAnswer(name="hacks the test", output="hack 4")),
)


def _signal(name: str, value: float, weight: float = 1.0) -> RewardTerm:
    return RewardTerm(name=name, value=float(value), weight=weight, source="rule:test")


def honest(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    is_right = output.split()[-1].rstrip("!") == task["expected"] and len(output.split()) <= 2
    styled = _signal("format", output.isdigit(), 0.1)
    tampered = _signal("tampered", output.startswith("hack"))
    return total([_signal("success", is_right), styled, tampered], GUARD).signals


def pays(*terms: Callable[[str], RewardTerm], is_gated: bool = False) -> Score:
    """A reward made of these terms of what was answered."""

    def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
        made = [term(output) for term in terms]
        return total(made, GUARD).signals if is_gated else tuple(made)

    return score


def success(is_right: Callable[[str], float]) -> Callable[[str], RewardTerm]:
    return lambda output: _signal("success", is_right(output))


def greedy(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    task["expected"] = output
    return (_signal("success", 1.0),)


numbers = count()
PLAIN = success(lambda output: output in ("4", "4!"))
ALWAYS = success(lambda output: 1.0)
DISHONEST: dict[str, tuple[Score, str]] = {
    "naive": (pays(success(lambda output: "4" in output)), "the cheat 'all numbers' earns 1"),
    "ungated": (pays(PLAIN, lambda output: _signal("format", 1.0, 0.1)), "the cheat 'all numbers' earns 0.1"),
    "half": (pays(success(lambda output: 0.5)), "success of 'right' is 0.5, neither 0 nor 1"),
    "blind": (pays(success(lambda output: 0.0)), "the gold answer 'right' earns 0"),
    "strict": (pays(success(lambda output: output == "4")), "the right answer 'chatty' fails success"),
    # a cheat passes the check, earns nothing, and nobody says why
    "unpaid": (
        pays(lambda output: _signal("success", "4" in output, weight=float("4" in output[:2]))),
        "the cheat 'all numbers' passes success, and no guard",
    ),
    # pays for length among the right ones
    "chatty": (
        pays(PLAIN, lambda output: _signal("length", len(output), 0.1), is_gated=True),
        "the right answer 'chatty' earns more than the gold one",
    ),
    "forgetful": (pays(), "'right': nothing was measured"),
    "twice": (pays(ALWAYS, ALWAYS), "has 2 signals called success"),
    "fickle": (pays(ALWAYS, lambda output: _signal("n", next(numbers), 0.0)), "says something else each time"),
    "greedy": (greedy, "changed what it was given"),
}


def test_an_honest_reward_passes() -> None:
    check_reward(honest, [CASE], normalised)


@pytest.mark.parametrize("name", DISHONEST)
def test_a_reward_that_can_be_had_is_found_out(name: str) -> None:
    score, why = DISHONEST[name]
    with pytest.raises(AssertionError, match=why):
        check_reward(score, [replace(CASE, task={"expected": "4"})], normalised)


def test_a_share_that_is_not_one_for_gold_is_found_out() -> None:
    def of_ten(sheet: RewardBreakdown, gold: RewardBreakdown) -> float:
        return (sheet.total or 0.0) / 10

    with pytest.raises(AssertionError, match="share is 0.11, not 1"):
        check_reward(honest, [CASE], of_ten)


def test_a_kit_that_checks_nothing_says_so() -> None:
    with pytest.raises(AssertionError, match="no cases"):
        check_reward(honest, [], normalised)
    with pytest.raises(AssertionError, match="has no cheats"):
        check_reward(honest, [KnownCase(name="c", task={}, gold=CASE.gold, cheats=())], normalised)
