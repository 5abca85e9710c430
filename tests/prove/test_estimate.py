from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from holdfast.contracts.errors import BadInput
from holdfast.prove.estimate import Matrix, difference, interval, nested, standardised, student, wilson


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def first_of(means: Matrix) -> float:
    return float(means[0])


def hard_and_easy(seed: int, tasks: int, seeds: int, lift: float = 0.0) -> Matrix:
    """Tasks differ by 1, the seeds of one task by 0.1."""
    rng = np.random.default_rng(seed)
    return lift + rng.normal(size=(tasks, 1)) + 0.1 * rng.normal(size=(tasks, seeds))


@pytest.mark.parametrize(
    ("successes", "trials", "level", "low", "high"),
    [
        (8, 10, 0.95, 0.4901625, 0.9433178),  # the textbook's
        (0, 10, 0.95, 0.0, 0.2775328),
        (10, 10, 0.95, 0.7224672, 1.0),
        (1, 1, 0.95, 0.2065493, 1.0),
        (50, 100, 0.99, 0.3752796, 0.6247204),
    ],
)
def test_wilson_gives_the_known_intervals(successes: int, trials: int, level: float, low: float, high: float) -> None:
    found = wilson(successes, trials, level=level)
    assert (found.low, found.high) == pytest.approx((low, high), abs=5e-8)
    assert found.level == level


@given(st.integers(1, 300), st.data())
def test_wilson_holds_the_rate_agrees_with_scipy_and_mirrors_failure(trials: int, data: st.DataObject) -> None:
    successes = data.draw(st.integers(0, trials))
    found, mirrored = wilson(successes, trials), wilson(trials - successes, trials)
    assert 0.0 <= found.low <= successes / trials <= found.high <= 1.0
    assert (1.0 - mirrored.high, 1.0 - mirrored.low) == pytest.approx((found.low, found.high), abs=1e-12)
    theirs = stats.binomtest(successes, trials).proportion_ci(method="wilson")
    assert (found.low, found.high) == pytest.approx((theirs.low, theirs.high), abs=1e-12)


def test_the_same_seed_gives_the_same_interval_and_another_a_near_one() -> None:
    scores = hard_and_easy(1, 30, 2)
    first = interval(scores, rng=chance(1))
    assert first == interval(scores, rng=chance(1))
    other = interval(scores, rng=chance(2))
    assert other != first
    assert other.low == pytest.approx(first.low, abs=0.25)


def test_the_interval_of_a_mean_is_as_wide_as_students_when_the_scores_are_normal() -> None:
    scores = hard_and_easy(3, 12, 1)
    found = interval(scores, rng=chance())
    student = 2.0 * stats.t.isf(0.025, 11) * stats.sem(scores[:, 0])
    assert found.high - found.low == pytest.approx(student, rel=0.06)


def test_seeds_that_agree_do_not_count_as_more_tasks() -> None:
    few = hard_and_easy(4, 20, 1)
    many = np.repeat(few, 50, axis=1)
    found, expected = interval(many, rng=chance()), interval(few, rng=chance())
    assert (found.low, found.high) == pytest.approx((expected.low, expected.high), abs=1e-12)


def test_a_paired_difference_sees_what_two_intervals_cannot() -> None:
    baseline = hard_and_easy(6, 20, 3)
    candidate = baseline + 0.1 + 0.1 * chance(7).normal(size=baseline.shape)
    alone = [interval(scores, rng=chance()) for scores in (baseline, candidate)]
    assert alone[0].high > alone[1].low  # the tasks differ far more than the two do
    found = difference(baseline, candidate, rng=chance())
    assert 0.0 < found.low < 0.1 < found.high < 0.2
    turned = difference(candidate, baseline, rng=chance())
    assert turned.high < 0.0


@pytest.mark.parametrize("tasks", [6, 20])
def test_about_95_of_100_intervals_hold_the_truth(tasks: int) -> None:
    rng, repeats = chance(9), 150
    held = 0
    for _ in range(repeats):
        scores = rng.normal(size=(tasks, 1)) + 0.5 * rng.normal(size=(tasks, 2))
        found = interval(scores, rng=rng)
        held += found.low <= 0.0 <= found.high
    assert 0.91 <= held / repeats <= 0.99


def test_the_interval_of_paired_scores_is_that_of_their_differences() -> None:
    scores = hard_and_easy(10, 30, 4)
    found = interval(scores, rng=chance(1))
    paired = difference(scores, 2.0 * scores, rng=chance(1))  # that of the scores themselves
    assert (paired.low, paired.high) == pytest.approx((found.low, found.high))
    nothing = difference(scores, scores, rng=chance())
    assert (nothing.low, nothing.high) == (0.0, 0.0)


def test_the_standardised_effect_is_the_mean_in_deviations() -> None:
    assert standardised([1.0, 2.0, 3.0]) == 2.0
    gains = hard_and_easy(11, 30, 1, lift=0.3)[:, 0]
    assert standardised(gains) == pytest.approx(stats.ttest_1samp(gains, 0.0).statistic / np.sqrt(30))
    assert standardised([0.3] * 7) == standardised([0.0, 0.0]) == 0.0


def test_groups_that_differ_widen_the_interval_and_rows_stay_together() -> None:
    rng = chance(12)
    figures = rng.random(40)
    rows = np.stack([figures, figures + 0.25], axis=1)
    alike, apart = [rows] * 8, [rows + place / 10.0 for place in range(8)]

    def first(means: Matrix) -> float:
        return float(means[0])

    narrow, wide = nested(alike, first, rng=rng), nested(apart, first, rng=rng)
    assert narrow.low < rows[:, 0].mean() < narrow.high
    student = stats.t.interval(0.95, 7, *(f([one[:, 0].mean() for one in apart]) for f in (np.mean, stats.sem)))
    assert wide.low == pytest.approx(student[0], abs=0.1) and wide.high == pytest.approx(student[1], abs=0.1)
    assert wide.high - wide.low > 1.5 * (narrow.high - narrow.low)
    paired = nested(apart, lambda means: float(means[1] - means[0]), rng=rng)
    assert (paired.low, paired.high) == (pytest.approx(0.25), pytest.approx(0.25))


REFUSED: dict[str, Callable[[], Any]] = {
    "more successes than trials": lambda: wilson(3, 2),
    "no trials": lambda: wilson(0, 0),
    "a level of 1": lambda: wilson(1, 2, level=1.0),
    "a level of 0": lambda: interval(np.zeros((3, 2)), rng=chance(), level=0.0),
    "a flat list": lambda: interval(np.zeros(3), rng=chance()),
    "nothing": lambda: interval(np.zeros((0, 2)), rng=chance()),
    "a hole": lambda: interval([[1.0, np.nan], [1.0, 2.0]], rng=chance()),
    "one task": lambda: interval(np.zeros((1, 9)), rng=chance()),
    "one group": lambda: nested([np.zeros((3, 2))], first_of, rng=chance()),
    "an empty group": lambda: nested([np.zeros((3, 2)), np.zeros((0, 2))], first_of, rng=chance()),
    "one difference": lambda: standardised([1.0]),
    "pairs that are none": lambda: difference(np.zeros((3, 2)), np.zeros((3, 1)), rng=chance()),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_gives_no_honest_interval_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()


def test_students_interval_of_a_few_values_is_that_of_the_textbook() -> None:
    for values in ([3.68, 3.80], [1.0, 2.0, 4.0], [0.5] * 4):
        found = student(values)
        if len(set(values)) == 1:
            assert found.low == found.high == values[0]
            continue
        low, high = stats.t.interval(0.95, len(values) - 1, loc=np.mean(values), scale=stats.sem(values))
        assert (found.low, found.high) == pytest.approx((low, high))
    for bad in ([1.0], [1.0, np.nan], [[1.0, 2.0]]):
        with pytest.raises(BadInput):
            student(bad)
