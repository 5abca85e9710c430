from __future__ import annotations

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.prove import guard
from holdfast.prove.calibrate import (
    EFFECTS,
    LIVE_PER_CANARY,
    NULLS,
    Canary,
    OutcomeShape,
    SimulatedEffect,
    canary,
    clustered,
    lifted,
)

SIZE = (1000, 100)


def chance(seed: int = 0) -> np.random.Generator:
    return np.random.default_rng(seed)


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
    shape = effect.shape
    found = shape.draw(chance(1), SIZE, effect.lift)
    assert is_mean(found, shape.mean + effect.lift)
    assert shape.low <= found.min() and found.max() <= shape.high


def test_every_name_says_which_row_is_meant() -> None:
    assert len({shape.name for shape in NULLS}) == len(NULLS)
    assert len({(effect.shape.name, effect.lift) for effect in EFFECTS}) == len(EFFECTS)


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


def test_a_lift_moves_low_values_most_and_none_above_1() -> None:
    assert lifted(np.array([0.0, 0.5, 1.0]), 0.5, 0.1) == pytest.approx([0.2, 0.6, 1.0])  # 0.1 · (1 − v) / 0.5
    same = np.array([0.3])
    assert lifted(same, 0.5, 0.0) is same


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


def test_a_metric_that_no_guard_watches_is_refused() -> None:
    with pytest.raises(BadInput, match="colour"):
        canary("colour", 0.1, Canary.AS_LIVE, chance(), SIZE)
