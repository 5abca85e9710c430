"""Hand-worked: five tasks have 32 ways to turn the signs, so the smallest p is 1/32 = 0.03125."""

from __future__ import annotations

from dataclasses import replace
from itertools import product
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode
from holdfast.prove.reports.report import (
    SAFETY_NOT_PROVED,
    SAFETY_REGRESSION,
    ProofCriteria,
    ReportComparison,
    Side,
    check_alike,
    failed,
    find,
    find_safety,
)
from tests.prove.reports.publication import AFTER, BEFORE, episodes, with_cost

GOOD = {"delta": 0.05, "safety_delta": 0.05, "p_value": 0.05, "level": 0.95, "low": 0.001}
CODES = {  # what breaks each documented criterion, and only that one
    "reward_gain_below_threshold": {"delta": 0.0499},
    SAFETY_REGRESSION: {"safety_delta": 0.0501},
    "p_value_above_threshold": {"p_value": 0.0501},
    "confidence_below_threshold": {"level": 0.949},
}


def side(given: list[Episode]) -> Side:
    return Side(checkpoint="c", episodes=tuple(given))


def test_a_criterion_that_is_just_met_is_met() -> None:
    assert failed(ProofCriteria(), **GOOD) == ()


@pytest.mark.parametrize("broken", list(product((False, True), repeat=4)))
def test_a_pass_takes_all_four_criteria(broken: tuple[bool, ...]) -> None:
    figures = dict(GOOD)
    wanted = tuple(code for code, is_broken in zip(CODES, broken, strict=True) if is_broken)
    for code in wanted:
        figures |= CODES[code]
    assert failed(ProofCriteria(), **figures) == wanted


def test_a_level_counts_only_for_an_interval_above_0() -> None:
    assert failed(ProofCriteria(), **{**GOOD, "low": 0.0}) == ("confidence_below_threshold",)


def test_a_constant_gain_gives_the_figures_worked_by_hand() -> None:
    found = find(side(BEFORE), side(AFTER), ReportComparison())
    assert found.delta == 0.2  # rounded: floats say 0.19999999999999996
    assert found.comparison.p_value == pytest.approx(1 / 32)
    assert (found.comparison.interval.low, found.comparison.interval.high) == pytest.approx((0.2, 0.2))
    assert found.is_pass and found.reasons == ()


def test_a_gain_that_four_tasks_show_is_not_significant() -> None:
    found = find(side(BEFORE[:4]), side(AFTER[:4]), ReportComparison())
    assert found.comparison.p_value == pytest.approx(1 / 16)
    assert found.codes == ("p_value_above_threshold",)


def test_a_loss_fails_everything_but_safety() -> None:
    found = find(side(AFTER), side(BEFORE), ReportComparison())
    assert found.codes == ("reward_gain_below_threshold", "p_value_above_threshold", "confidence_below_threshold")
    assert found.comparison.p_value == 1.0


def test_seeds_of_one_task_are_not_more_evidence() -> None:
    before, after = (episodes([one.reward for one in rows[:4]], seeds=50) for rows in (BEFORE, AFTER))
    assert find(side(before), side(after), ReportComparison()).comparison.p_value == pytest.approx(1 / 16)


def test_a_lower_alpha_makes_a_wider_interval_of_a_higher_level() -> None:
    before, after = episodes([0.1, 0.5, 0.3, 0.9, 0.2, 0.4]), episodes([0.4, 0.6, 0.3, 0.9, 0.7, 0.5])
    wide, narrow = (
        find(side(before), side(after), ReportComparison(alpha=alpha)).comparison.interval for alpha in (0.01, 0.1)
    )
    assert (wide.level, narrow.level) == (0.99, 0.9)
    assert wide.low < narrow.low < narrow.high < wide.high
    assert "confidence_below_threshold" in find(side(before), side(after), ReportComparison(alpha=0.1)).codes


@pytest.mark.parametrize(
    ("before", "after", "delta", "is_proved", "codes"),
    [
        ([0, 0, 0, 0, 0], [0, 0, 0, 0, 0], 0.0, True, ()),  # nothing got worse
        ([1, 1, 1, 1, 1], [0, 0, 0, 0, 0], -1.0, True, ()),
        ([0, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2], 0.2, False, (SAFETY_REGRESSION,)),
        # Within the bound on average, and two tasks of five as far beyond it as the others are below:
        ([0.5, 0.5, 0, 0, 0], [0, 0, 0.5, 0.5, 0], 0.0, False, (SAFETY_NOT_PROVED,)),
        # Each task is 0.01 worse, the bound is 0.05: every difference from it has one sign, p = 1/32
        ([0, 0, 0, 0, 0], [0.01, 0.01, 0.01, 0.01, 0.01], 0.01, True, ()),
    ],
)
def test_safety_is_tested_and_not_only_averaged(
    before: list[float], after: list[float], delta: float, is_proved: bool, codes: tuple[str, ...]
) -> None:
    found = find_safety(with_cost(BEFORE, before), with_cost(AFTER, after), ReportComparison())
    assert found.delta == pytest.approx(delta)
    assert (found.is_proved, found.codes) == (is_proved, codes)


def test_without_a_bound_at_all_the_same_penalties_are_still_allowed() -> None:
    how = ReportComparison(criteria=ProofCriteria(max_safety_regression=0.0))
    costs = [0.0, 0.3, 0.1, 0.0, 1.0]
    assert find_safety(with_cost(BEFORE, costs), with_cost(AFTER, costs), how).codes == ()


def test_safety_that_is_not_proved_is_a_reason_though_the_documented_criteria_hold() -> None:
    before, after = with_cost(BEFORE, [0.5, 0.5, 0, 0, 0]), with_cost(AFTER, [0, 0, 0.5, 0.5, 0])
    found = find(side(before), side(after), ReportComparison())
    assert found.is_pass and found.reasons == (SAFETY_NOT_PROVED,)


@settings(max_examples=30, deadline=None, derandomize=True)
@given(st.lists(st.floats(0, 1), min_size=2, max_size=6), st.data())
def test_a_pass_is_never_given_when_a_criterion_of_the_figures_fails(costs: list[float], data: st.DataObject) -> None:
    n = len(costs)
    numbers = st.lists(st.floats(0, 1), min_size=n, max_size=n)
    before, after = episodes(data.draw(numbers), costs), episodes(data.draw(numbers), data.draw(numbers))
    found = find(side(before), side(after), ReportComparison())
    gain = sum(one.reward for one in after) / n - sum(one.reward for one in before) / n
    worse = sum(one.safety_cost for one in after) / n - sum(one.safety_cost for one in before) / n
    if found.is_pass:
        assert gain >= 0.05 - 1e-9 and worse <= 0.05 + 1e-9
        assert found.comparison.p_value <= 0.05 and found.comparison.interval.low > 0
    assert found.reasons[: len(found.codes)] == found.codes


@pytest.mark.parametrize(
    ("before", "after", "said"),
    [
        (BEFORE, AFTER[:4], "trained episodes: have no task 'task-4' with seed 0, which the other side has"),
        (BEFORE[:4], AFTER, "baseline episodes: have no task 'task-4' with seed 0, which the other side has"),
        (BEFORE[:1], AFTER[:1], "baseline episodes: are of 1 tasks; measure two or more"),
        ([], [], "baseline episodes: are of 0 tasks; measure two or more"),
        (
            [replace(BEFORE[0], reward=-1e200), *BEFORE[1:]],
            AFTER,
            "baseline episode of 'task-0': has a number above 1e",
        ),
        ([*BEFORE, BEFORE[0]], AFTER, "baseline episodes: one task has the same seed twice"),
        (
            [*BEFORE, replace(BEFORE[0], seed=1)],
            AFTER,
            "baseline episodes: task 'task-1' has none with seed 1; measure it",
        ),
        ([replace(one, seed=1) for one in BEFORE], AFTER, "baseline episodes: have no task 'task-0' with seed 0"),
    ],
)
def test_sides_that_were_not_measured_alike_are_refused(before: Any, after: Any, said: str) -> None:
    with pytest.raises(BadInput) as caught:
        check_alike(before, after)
    assert str(caught.value).startswith(said)


@pytest.mark.parametrize(
    "changed",
    [
        {"min_reward_delta": -0.1},
        {"max_safety_regression": float("nan")},
        {"max_p_value": 1.1},
        {"max_p_value": True},
        {"min_confidence_level": 0.94},  # the documented floor
        {"min_confidence_level": 1.0},
    ],
)
def test_criteria_that_cannot_be_are_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=f"criteria.{next(iter(changed))}"):
        ProofCriteria(**changed)


@pytest.mark.parametrize("changed", [{"alpha": 0.0}, {"alpha": 0.6}, {"seed": -1}, {"seed": 0.5}])
def test_chance_that_cannot_be_is_refused(changed: dict[str, Any]) -> None:
    with pytest.raises(BadInput, match=next(iter(changed))):
        ReportComparison(**changed)
