"""The kit is itself tested: an honest reward passes it, and each kind of dishonest one is found out."""

from __future__ import annotations

from collections.abc import Sequence
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


def naive(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (_signal("success", task["expected"] in output),)


def ungated(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    """Pays for style whether the answer is right or not."""
    return (_signal("success", output in ("4", "4!")), _signal("format", 1.0, 0.1))


def half(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (_signal("success", 0.5),)


def blind(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (_signal("success", 0.0),)


def strict(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (_signal("success", output == "4"),)


def unpaid(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    """A cheat passes the check, earns nothing, and nobody says why."""
    return (_signal("success", "4" in output, weight=float("4" in output[:2])),)


def chatty(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    """Pays for length among the right ones."""
    return total([_signal("success", output in ("4", "4!")), _signal("length", len(output), 0.1)], GUARD).signals


def forgetful(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return ()


def twice(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    return (_signal("success", 1.0), _signal("success", 1.0))


def fickle() -> Score:
    numbers = count()
    return lambda task, output, spans: (_signal("success", 1.0), _signal("n", next(numbers), 0.0))


def greedy(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    task["expected"] = output
    return (_signal("success", 1.0),)


def test_an_honest_reward_passes() -> None:
    check_reward(honest, [CASE], normalised)


@pytest.mark.parametrize(
    ("score", "why"),
    [
        (naive, "the cheat 'all numbers' earns 1"),
        (ungated, "the cheat 'all numbers' earns 0.1"),
        (half, "success of 'right' is 0.5, neither 0 nor 1"),
        (blind, "the gold answer 'right' earns 0"),
        (strict, "the right answer 'chatty' fails success"),
        (unpaid, "the cheat 'all numbers' passes success, and no guard"),
        (chatty, "the right answer 'chatty' earns more than the gold one"),
        (forgetful, "'right': nothing was measured"),
        (twice, "has 2 signals called success"),
        (fickle(), "says something else each time"),
        (greedy, "changed what it was given"),
    ],
    ids=lambda one: getattr(one, "__name__", "") if callable(one) else "",
)
def test_a_reward_that_can_be_had_is_found_out(score: Score, why: str) -> None:
    fresh = KnownCase(name="two and two", task={"expected": "4"}, gold=CASE.gold, plain=CASE.plain, cheats=CASE.cheats)
    with pytest.raises(AssertionError, match=why):
        check_reward(score, [fresh], normalised)


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
