from __future__ import annotations

import re
from dataclasses import replace
from functools import cache, partial
from pathlib import Path
from statistics import NormalDist
from typing import Any

import numpy as np
import pytest
from scipy import stats

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Outcome
from holdfast.contracts.records import decode, encode
from holdfast.pipeline.calibrate import ATTACKS
from holdfast.prove import guard
from holdfast.prove.calibrate import (
    EFFECTS,
    LIVE_PER_CANARY,
    NULLS,
    STEPS,
    Canary,
    ErrorRate,
    ErrorRates,
    Null,
    OutcomeShape,
    SimulatedEffect,
    binary,
    canary,
    clustered,
    deal,
    error_rate,
    first,
    gathered,
    in_processes,
    lifted,
    null,
    power,
    rate_row,
    verdicts,
    z_test,
)
from holdfast.prove.sequential import GAIN_WEIGHTS, judge

ALPHA = 0.05
PAGE = Path(__file__).resolve().parents[2] / "docs/calibration.md"
COIN = OutcomeShape(name="coin", about="", draw=binary(0.5), tasks=100)
EACH = {"low": -1.0, "high": 1.0, "alpha": ALPHA}


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


@cache
def short(shape: OutcomeShape) -> ErrorRate:
    """The short form of a published row: 1,000 experiments, each looked at after every task."""
    return error_rate(replace(shape, tasks=min(shape.tasks, 200)), experiments=1000, alpha=ALPHA, rng=chance(1))


@pytest.mark.parametrize("shape", NULLS, ids=lambda shape: shape.name)
def test_no_more_than_alpha_is_promoted_when_there_is_nothing_to_promote(shape: OutcomeShape) -> None:
    found = short(shape)
    assert found.is_within, f"{found.promoted} of 1,000 promoted, 99 % interval {found.interval}"
    assert found.rejected / 1000 <= 0.07


def test_the_same_check_finds_out_a_z_test_that_is_looked_at_as_often() -> None:
    above = {shape.name for shape in NULLS if short(shape).z_interval.low > ALPHA}
    # Rare wins are mostly small losses: a z-test seldom sees enough of them. Ten tasks leave it a single look.
    assert {shape.name for shape in NULLS} - above <= {"rare wins", "tiny 10"}


def test_the_check_finds_out_a_small_gain_that_was_called_none() -> None:
    def draw(rng: np.random.Generator, size: tuple[int, int], lift: float) -> Any:
        return binary(0.5)(rng, size, 0.1)

    found = error_rate(replace(COIN, draw=draw), experiments=500, alpha=ALPHA, rng=chance(3))
    assert not found.is_within
    rows = [found]
    assert not gathered(rows, experiments=500, alpha=ALPHA, seed=0).is_within


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: f"{effect.shape.name} {effect.lift:+}")
def test_eight_of_ten_are_promoted_at_the_stated_gain(effect: SimulatedEffect) -> None:
    found = power(effect, experiments=150, alpha=ALPHA, rng=chance(4))
    assert found.interval.high >= 0.8 and found.power >= 0.75
    assert found.mean_tasks < found.tasks
    assert found.mean_episodes == pytest.approx(found.mean_tasks * 2 * found.seeds)
    assert found.saved_episodes == pytest.approx((found.fixed_tasks - found.mean_tasks) * 2 * found.seeds)
    assert found.saved_share == pytest.approx(1.0 - found.mean_tasks / found.fixed_tasks)


def test_the_fixed_number_of_tasks_is_what_a_power_analysis_gives() -> None:
    effect = SimulatedEffect(shape=replace(COIN, tasks=300), lift=0.15)
    found = power(effect, experiments=1000, alpha=ALPHA, rng=chance(5))
    deviation = float(effect.shape.draw(chance(6), (1000, 100), 0.15).std())
    z = NormalDist().inv_cdf(1.0 - ALPHA) + NormalDist().inv_cdf(found.power)
    expected = (z * deviation / 0.15) ** 2
    assert found.fixed_tasks == pytest.approx(expected, rel=0.15)


@pytest.mark.parametrize(("lift", "tasks"), [(0.0, 60), (0.3, 60), (-0.3, 60)])
def test_many_verdicts_at_once_are_those_of_one_after_the_other(lift: float, tasks: int) -> None:
    d = np.sign(lift or 1.0) * COIN.draw(chance(7), (60, tasks), abs(lift))
    promote, reject = verdicts(d, mean=0.0, **EACH)
    expected = [judge(row, **EACH, weights=GAIN_WEIGHTS).outcome for row in d]
    found = [
        Outcome.PROMOTE if up < down else Outcome.REJECT if down < up else Outcome.HOLD
        for up, down in zip(promote, reject, strict=True)
    ]
    assert found == expected
    assert lift == 0.0 or len(set(found)) >= 2  # both a verdict and none
    for row, look in zip(d, promote, strict=True):
        if look <= tasks:  # the look before saw nothing yet
            assert judge(row[: look - 1], **EACH, weights=GAIN_WEIGHTS).outcome is not Outcome.PROMOTE
            assert judge(row[:look], **EACH, weights=GAIN_WEIGHTS).outcome in (Outcome.PROMOTE, Outcome.REJECT)


def test_z_is_students_statistic_after_every_task_and_the_first_look_is_counted_from_1() -> None:
    d = chance(8).normal(size=(3, 12))
    found = z_test(d, mean=0.2)
    for n in range(2, 13):
        assert found[:, n - 1] == pytest.approx(stats.ttest_1samp(d[:, :n], 0.2, axis=1).statistic)
    assert found[:, 0].tolist() == [0.0, 0.0, 0.0]
    assert z_test(np.full((1, 5), 0.5)).tolist() == [[0.0] * 5]  # no spread, no verdict
    flags = np.array([[True, False, True], [False, False, True], [False, False, False]])
    assert first(flags).tolist() == [1, 3, 4]  # never is one past the last


@pytest.fixture(scope="module")
def whole() -> ErrorRates:
    jobs = [partial(rate_row, place, experiments=100, alpha=ALPHA, seed=3) for place in range(STEPS)]
    return gathered(list(in_processes(jobs, 1)), experiments=100, alpha=ALPHA, seed=3)


def test_a_calibration_has_every_row_and_is_within_when_all_are(whole: ErrorRates) -> None:
    assert [row.shape for row in whole.nulls] == [shape.name for shape in NULLS]
    assert len({shape.name for shape in NULLS}) == len(NULLS)  # a name says which row is meant
    assert len({(effect.shape.name, effect.lift) for effect in EFFECTS}) == len(EFFECTS)
    assert [(row.shape, row.effect) for row in whole.powers] == [(one.shape.name, one.lift) for one in EFFECTS]
    assert [row.metric for row in whole.guards] == list(guard.METRICS)
    assert len(whole.nulls) + len(whole.powers) + len(whole.guards) == STEPS
    assert whole.is_within
    assert whole.false_promotion_rate == max(row.rate for row in whole.nulls)
    broken = replace(whole, guards=(replace(whole.guards[0], is_within=False), *whole.guards[1:]))
    assert not broken.is_within
    assert decode(ErrorRates, encode(whole)) == whole
    rows: list[Any] = [rate_row(0, experiments=100, alpha=ALPHA, seed=seed) for seed in (3, 4)]
    assert rows[0] == whole.nulls[0] != rows[1]


@pytest.mark.parametrize("metric", guard.METRICS)
def test_a_guard_keeps_its_promises_exactly_at_the_limit(metric: str, whole: ErrorRates) -> None:
    (found,) = (row for row in whole.guards if row.metric == metric)
    assert found.is_within
    assert found.caught_broken >= 0.95 and found.cleared >= 0.5
    assert found.outcomes_until_caught_broken < found.outcomes_until_caught <= found.outcomes


@pytest.mark.parametrize("given", [{"experiments": 99}, {"alpha": 0.0}, {"alpha": 1.0}])
def test_what_would_say_nothing_is_refused(given: dict[str, Any]) -> None:
    with pytest.raises(BadInput):
        rate_row(0, **{"experiments": 100, "alpha": ALPHA, "seed": 0, **given})


def test_the_published_page_has_every_row_and_none_is_above_alpha() -> None:
    page = PAGE.read_text(encoding="utf-8")
    rows = [line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ")]
    rates = {cells[0]: float(cells[3].rstrip("%")) for cells in rows if re.fullmatch(r"[\d.]+–[\d.]+%", cells[4])}
    assert list(rates) == [shape.name for shape in (*NULLS, *ATTACKS)]
    assert max(rates.values()) <= 100 * ALPHA
    powers = [float(cells[3].rstrip("%")) for cells in rows if re.fullmatch(r"[+−-]\d+ \(.*%\)", cells[-2])]
    assert len(powers) == len(EFFECTS) and min(powers) >= 80.0
    assert re.search(r"is (2|10),000 simulated experiments", page)


# Pairs of a version against itself


def pool(tasks: int, lift: float = 0.0, seed: int = 10) -> Any:
    return COIN.draw(chance(seed), (1, tasks), lift)[0]


def repeated(d: Any, repetitions: int, seed: int = 0) -> Null:
    return null(d, repetitions=repetitions, rng=chance(seed), **EACH)


def test_with_pairs_enough_no_task_is_in_two_repetitions() -> None:
    found = repeated(pool(4000), 200)
    assert (found.pool, found.repetitions, found.tasks, found.is_disjoint) == (4000, 200, 20, True)
    assert found.is_within and found.rate == found.promoted / 200 <= 0.1
    assert found.most == stats.binom.ppf(0.99, 200, ALPHA) == 18
    assert decode(Null, encode(found)) == found


def test_every_task_is_dealt_once_and_in_a_small_pool_once_to_a_repetition() -> None:
    numbers = np.arange(403.0)
    dealt, is_disjoint = deal(numbers, 20, chance())
    assert dealt.shape == (20, 20) and is_disjoint
    assert np.unique(dealt).size == 400 and not np.array_equal(dealt.ravel(), np.sort(dealt, axis=None))
    shared, is_disjoint = deal(numbers, 50, chance())
    assert shared.shape == (50, 20) and not is_disjoint
    assert all(np.unique(row).size == 20 for row in shared)


def test_a_small_pool_is_shared_and_says_so_and_one_seed_deals_one_way() -> None:
    found = repeated(pool(100), 50)
    assert (found.tasks, found.is_disjoint) == (20, False)
    assert repeated(pool(20), 1).is_disjoint
    d = pool(20_000, lift=0.1)
    assert repeated(d, 200, seed=1) == repeated(d, 200, seed=1) != repeated(d, 200, seed=2)
    gained = repeated(pool(20_000, lift=0.2), 200)  # more than chance explains
    assert gained.promoted > gained.most and not gained.is_within


@pytest.mark.parametrize(("tasks", "repetitions"), [(19, 1), (0, 200), (100, 0)])
def test_a_pool_that_says_nothing_is_refused(tasks: int, repetitions: int) -> None:
    with pytest.raises(BadInput):
        repeated(np.zeros(tasks), repetitions)


SIZE = (1000, 100)


def is_mean(found: np.ndarray, expected: float) -> bool:
    """Within five standard errors, and never more than 0.01 off."""
    reach = 5.0 * float(found.std()) / found.size**0.5
    return abs(float(found.mean()) - expected) <= min(reach, 0.01)


@pytest.mark.parametrize("shape", NULLS, ids=lambda shape: shape.name)
def test_without_a_lift_the_mean_is_what_the_shape_says_and_nothing_leaves_its_range(shape: OutcomeShape) -> None:
    found = shape.draw(chance(), SIZE, 0.0)
    assert found.shape == SIZE
    assert is_mean(found, shape.mean)
    assert shape.low <= found.min() < 0.0 < found.max() <= shape.high


@pytest.mark.parametrize("effect", EFFECTS, ids=lambda effect: f"{effect.shape.name} {effect.lift:+}")
def test_a_lift_raises_the_mean_by_itself(effect: SimulatedEffect) -> None:
    assert lifted(np.array([0.0, 0.5, 1.0]), 0.5, 0.1) == pytest.approx([0.2, 0.6, 1.0])  # 0.1 · (1 − v) / 0.5
    same = np.array([0.3])
    assert lifted(same, 0.5, 0.0) is same
    shape = effect.shape
    found = shape.draw(chance(1), SIZE, effect.lift)
    assert is_mean(found, shape.mean + effect.lift)
    assert shape.low <= found.min() and found.max() <= shape.high


def test_easy_tasks_first_means_that_the_two_differ_most_in_the_middle() -> None:
    in_order = next(shape for shape in NULLS if shape.name == "easy first")
    d = in_order.draw(chance(2), (4000, 100), 0.0)
    # Where nearly all succeed or nearly all fail the two agree: they differ in the middle
    differ = (d != 0.0).mean(axis=0)
    assert differ[45:55].mean() > 2.0 * max(differ[:5].mean(), differ[-5:].mean())


def test_seeds_of_a_task_agree_more_than_tasks_do() -> None:
    d = clustered(chance(3), (200, 500), 0.0)
    # Four independent coins of rate 1/2 a version would give a variance of 2 · 0.25 / 4; each task's own coins are less
    # even than that, and what a version is better at is the same for all four of its seeds
    assert d.var() == pytest.approx(0.098, abs=0.01)
    assert np.array_equal(np.unique(d * 4.0), np.arange(-4.0, 5.0))


@pytest.mark.parametrize("metric", guard.METRICS)
def test_a_canary_at_its_limit_differs_by_nothing_and_further_off_by_more(metric: str) -> None:
    limit = getattr(guard.GuardLimits(), metric)
    low, high = guard.bounds(metric, limit)
    means = []
    for how in Canary:
        ours, theirs = canary(metric, limit, how, chance(4), SIZE)
        d = guard.difference(metric, limit, ours, theirs)
        assert low <= d.min() and d.max() <= high
        means.append(float(d.mean()))
        if how is Canary.AT_LIMIT:
            assert is_mean(d, 0.0)
    assert means == sorted(means, reverse=True) and means[0] > 0.0 > means[2]


def test_what_stands_beside_a_canary_is_a_mean_of_live_outcomes() -> None:
    ours, theirs = canary("success", 0.1, Canary.AS_LIVE, chance(5), SIZE)
    assert set(np.unique(ours)) == {0.0, 1.0}
    assert np.array_equal(np.unique(np.round(theirs * LIVE_PER_CANARY)), np.arange(LIVE_PER_CANARY + 1.0))
    with pytest.raises(BadInput, match="colour"):
        canary("colour", 0.1, Canary.AS_LIVE, chance(), SIZE)
