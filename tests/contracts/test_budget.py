"""A budget lies between its ceiling and its cap, and what was spent is told apart from what was too much."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.budget import Assessment, BudgetEvent, BudgetEventKind, ThinkingBudget, Tier, Traits
from holdfast.contracts.errors import BadRecord

NAN = float("nan")
WHERE = "budget of a"
EVENT = "event 1 of the budget of a"


def traits(**changes: Any) -> Traits:
    return Traits(**changes)


def assessment(**changes: Any) -> Assessment:
    return Assessment(**{"tier": Tier.STANDARD, "confidence": 0.9, "reasons": ("r",), "traits": Traits(), **changes})


def budget(**changes: Any) -> ThinkingBudget:
    given = {"attempt": "a", "assessment": assessment(), "ceiling": 2000, "cap": 4000, "allowed": 2000}
    return ThinkingBudget(**{**given, "created_at": 1.0, "changed_at": 1.0, **changes})


def event(**changes: Any) -> BudgetEvent:
    given = {"attempt": "a", "seq": 1, "kind": BudgetEventKind.SPEND, "at": 1.0}
    return BudgetEvent(**{**given, "allowed": 5, "spent": 0, "overspent": 0, **changes})


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (traits, {"tool_count": -1}, "traits: tool_count = -1: must not be negative"),
        (assessment, {"confidence": 1.5}, "assessment: confidence = 1.5: must be from 0 to 1"),
        (assessment, {"confidence": NAN}, "assessment: confidence = nan: must be from 0 to 1"),
        (budget, {"spent": -1}, f"{WHERE}: spent = -1: must not be negative"),
        (budget, {"events": 0}, f"{WHERE}: events = 0: must be at least 1"),
        (budget, {"allowed": 4001}, f"{WHERE}: 4001 tokens are not between its ceiling 2000 and its cap 4000"),
        (budget, {"allowed": 1999}, f"{WHERE}: 1999 tokens are not between its ceiling 2000 and its cap 4000"),
        (budget, {"spent": 1, "overspent": 2}, f"{WHERE}: 2 of 1 tokens cannot be too many"),
        (budget, {"created_at": NAN}, f"{WHERE}: its times must be finite"),
        (event, {"seq": 0}, "event 0 of the budget of a: they are numbered from 1"),
        (event, {"tokens": -5}, f"{EVENT}: tokens = -5: must not be negative"),
        (event, {"confidence": NAN}, f"{EVENT}: confidence = nan: must be finite"),
    ],
)
def test_what_is_none_is_refused(build: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        build(**changes)
    assert str(refusal.value) == message


@pytest.mark.parametrize(
    ("spent", "overspent", "expected"),
    [
        (0, 0, (0, 2000, False)),
        (1999, 0, (1999, 1, False)),
        (2000, 0, (2000, 0, True)),
        (2600, 600, (2000, 0, True)),  # too much was spent, and is not taken back
    ],
)
def test_what_is_left_of_a_budget(spent: int, overspent: int, expected: tuple[int, int, bool]) -> None:
    one = budget(spent=spent, overspent=overspent)
    assert (one.consumed, one.left, one.is_exhausted) == expected
    assert one.tier is Tier.STANDARD


def test_waste_is_all_of_what_failed_and_else_what_was_too_much() -> None:
    one = budget(spent=2600, overspent=600)
    assert (one.waste(has_failed=True), one.waste(has_failed=False)) == (2600, 600)
