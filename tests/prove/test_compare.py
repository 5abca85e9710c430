from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import product
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats
from statsmodels.stats.multitest import multipletests
from statsmodels.stats.power import TTestPower

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Scores
from holdfast.prove.comparison import FLIPS, holm, improvement, paired, permutation, required_pairs
from holdfast.prove.estimate import difference

QUICK = settings(max_examples=40, deadline=None, derandomize=True)


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


def scored(values: Any, version: str = "v1", metric: str = "reward", seeds: Sequence[int] = ()) -> Scores:
    rows = np.asarray(values, float).reshape(len(values), -1)
    return Scores(
        version=version,
        metric=metric,
        tasks=tuple(f"task {at}" for at in range(len(rows))),
        seeds=tuple(seeds) or tuple(range(rows.shape[1])),
        values=tuple(map(tuple, rows.tolist())),
    )


def test_four_gains_are_tested_by_all_sixteen_ways_to_turn_them() -> None:
    # 3 + 1 + 2 − 1 = 5; as high are: +++−, ++++ (7), and those that turn only the 1: 3 − 1 + 2 + 1 = 5. Three of 16.
    assert permutation([3.0, 1.0, 2.0, -1.0], rng=chance()) == 3 / 16
    assert permutation([1.0, 1.0, 1.0, 1.0], rng=chance()) == 1 / 16
    assert permutation([0.0, 0.0], rng=chance()) == 1.0


@QUICK
@given(st.lists(st.integers(-5, 5), min_size=1, max_size=8))
def test_the_exact_p_value_is_that_of_counting_and_ties_count(gains: list[int]) -> None:
    d = [0.1 * gain for gain in gains]
    sums = [sum(s * g for s, g in zip(signs, gains, strict=True)) for signs in product((1, -1), repeat=len(gains))]
    assert permutation(d, rng=chance()) == sum(s >= sum(gains) for s in sums) / len(sums)


def test_drawn_flips_agree_with_scipy_and_are_never_zero() -> None:
    gains = chance(1).normal(0.2, 1.0, 40)
    found = permutation(gains, rng=chance(2))
    theirs = stats.permutation_test(
        (gains,), np.mean, permutation_type="samples", alternative="greater", n_resamples=20_000, rng=chance(3)
    )
    assert found == pytest.approx(theirs.pvalue, abs=0.015)
    assert permutation(np.ones(60), rng=chance()) == 1 / (FLIPS + 1)
    assert found == permutation(gains, rng=chance(2)) != permutation(gains, rng=chance(4))


def test_drawn_flips_agree_with_the_exact_count_on_binary_gains() -> None:
    # 12 wins and 4 losses of 30 tasks: P(Bin(16, ½) ≥ 12), the exact McNemar test.
    gains = np.r_[np.ones(12), -np.ones(4), np.zeros(14)]
    assert permutation(gains, rng=chance()) == pytest.approx(stats.binom.sf(11, 16, 0.5), abs=0.007)


def test_under_no_difference_p_values_are_uniform_or_larger() -> None:
    rng = chance(5)
    found = np.array([permutation(rng.normal(size=20), rng=rng, flips=199) for _ in range(400)])
    for level in (0.05, 0.1, 0.5):
        assert abs((found <= level).mean() - level) < 4 * np.sqrt(level * (1 - level) / 400)


def test_a_comparison_says_what_was_compared_and_how() -> None:
    before, after = chance(6).normal(size=(20, 3)), chance(7).normal(0.8, 1.0, (20, 3))
    found = paired(scored(before), scored(after, "v2"), rng=chance(8), margin=0.1, level=0.9)
    gains = after.mean(axis=1) - before.mean(axis=1)
    assert (found.metric, found.baseline, found.candidate, found.pairs) == ("reward", "v1", "v2", 20)
    assert found.difference == pytest.approx(gains.mean()) and found.margin == 0.1
    assert found.interval == difference(before, after, rng=chance(8), level=0.9)
    assert found.interval.low < found.difference < found.interval.high
    assert found.method == "paired permutation, 9999 flips"
    few = paired(scored(before[:5]), scored(after[:5], "v2"), rng=chance())
    assert few.method == "paired permutation, exact" and (few.p_value * 32).is_integer()


def test_the_unit_is_the_task_and_repeating_its_seeds_proves_nothing_more() -> None:
    before, after = chance(9).normal(size=(12, 1)), chance(10).normal(0.5, 1.0, (12, 1))
    once = paired(scored(before), scored(after, "v2"), rng=chance())
    often = paired(scored(np.repeat(before, 30, axis=1)), scored(np.repeat(after, 30, axis=1), "v2"), rng=chance())
    assert often.p_value == once.p_value and often.pairs == 12
    assert often.interval.low == pytest.approx(once.interval.low)


def test_a_margin_accepts_what_is_a_little_worse_and_not_what_is_much_worse() -> None:
    before = chance(11).normal(size=(40, 1))
    noise = 0.1 * chance(12).normal(size=(40, 1))
    little, much = before - 0.02 + noise, before - 0.3 + noise
    assert paired(scored(before), scored(little, "v2"), rng=chance(), margin=0.1).p_value < 0.01
    assert paired(scored(before), scored(little, "v2"), rng=chance()).p_value > 0.05
    assert paired(scored(before), scored(much, "v2"), rng=chance(), margin=0.1).p_value > 0.99


def test_the_probability_of_improvement_is_worked_by_hand() -> None:
    # Task 1: 3 beats 1 and 2, 2 beats 1 and ties 2: 3.5 of 4. Task 2: 0 loses to 5 twice: 0.
    assert improvement([[1.0, 2.0], [5.0, 5.0]], [[3.0, 2.0], [0.0, 0.0]]) == 3.5 / 8
    assert improvement([0.0, 1.0, 0.0], [1.0, 1.0, 0.0]) == (1.0 + 0.5 + 0.5) / 3


def test_the_probability_of_improvement_is_the_mann_whitney_of_each_task() -> None:
    before, after = chance(13).integers(0, 4, (6, 5)), chance(14).integers(0, 5, (6, 7))
    theirs = [stats.mannwhitneyu(a, b).statistic / 35 for b, a in zip(before, after, strict=True)]
    assert improvement(before, after) == pytest.approx(np.mean(theirs))
    assert improvement(after, before) == pytest.approx(1.0 - np.mean(theirs))


@QUICK
@given(st.dictionaries(st.text(min_size=1, max_size=4), st.floats(0.0, 1.0), min_size=1, max_size=8))
def test_holm_adjusts_as_statsmodels_does_and_keeps_the_names(p: dict[str, float]) -> None:
    found = holm(p)
    assert list(found) == list(p)
    assert list(found.values()) == pytest.approx(multipletests(list(p.values()), method="holm")[1])


def test_holm_by_hand() -> None:
    assert holm({"a": 0.01, "b": 0.04, "c": 0.03}) == pytest.approx({"a": 0.03, "b": 0.06, "c": 0.06})
    assert holm({}) == {}


@pytest.mark.parametrize(("effect", "deviation", "wanted"), [(0.5, 1.0, 0.8), (0.05, 0.5, 0.9), (3.0, 1.0, 0.8)])
def test_the_required_pairs_are_the_fewest_that_have_the_power(effect: float, deviation: float, wanted: float) -> None:
    n = required_pairs(effect, deviation, 0.05, wanted)
    theirs = TTestPower().solve_power(effect / deviation, power=wanted, alpha=0.05, alternative="larger")
    assert n == max(2, int(np.ceil(theirs)))


ONE, TWO = scored([[0.0], [1.0]]), scored([[0.0, 1.0], [1.0, 1.0]])
REFUSED: dict[str, Callable[[], Any]] = {
    "other seeds": lambda: paired(ONE, TWO, rng=chance()),
    "other names of seeds": lambda: paired(ONE, scored([[0.0], [1.0]], seeds=(7,)), rng=chance()),
    "other tasks": lambda: paired(ONE, scored([[0.0], [1.0], [2.0]]), rng=chance()),
    "another metric": lambda: paired(ONE, scored([[0.0], [1.0]], metric="cost"), rng=chance()),
    "one task": lambda: paired(scored([[0.0]]), scored([[1.0]]), rng=chance()),
    "no gains": lambda: permutation([], rng=chance()),
    "a gain that is no number": lambda: permutation([np.nan], rng=chance()),
    "unequal tasks": lambda: improvement([[1.0]], [[1.0], [2.0]]),
    "a p-value above 1": lambda: holm({"a": 1.5}),
    "no deviation": lambda: required_pairs(0.1, 0.0),
    "no effect to be found": lambda: required_pairs(0.0, 1.0),
    "a power of 1": lambda: required_pairs(0.1, 1.0, 0.05, 1.0),
    "an alpha of 0": lambda: required_pairs(0.1, 1.0, 0.0),
    "an effect without end": lambda: required_pairs(float("inf"), 1.0),
    "an effect too small to be seen": lambda: required_pairs(1e-9, 1.0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_cannot_be_compared_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()
