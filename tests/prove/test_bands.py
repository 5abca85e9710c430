from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.prove.comparison import SeedFinding, sample_size_sensitivity, seed_reproducibility


def seen(seed: int, size: int, p_value: float, delta: float) -> SeedFinding:
    return SeedFinding(seed=seed, sample_size=size, p_value=p_value, reward_delta=delta)


RUNS = [seen(1, 40, 0.01, 0.10), seen(2, 40, 0.04, 0.13), seen(3, 40, 0.02, 0.11), seen(9, 20, 0.9, -0.5)]
SIZES = [seen(1, 40, 0.02, 0.16), seen(1, 10, 0.09, 0.10), seen(1, 20, 0.05, 0.12), seen(1, 20, 0.07, 0.14)]


def test_the_seed_band_is_the_range_over_the_runs_of_that_size() -> None:
    band = seed_reproducibility(RUNS, 40)
    assert (band.kind, band.of, band.within) == ("seed", 3, True)
    assert (band.p_value_spread, band.delta_spread) == pytest.approx((0.03, 0.03))
    assert (band.most_p_value_spread, band.most_delta_spread) == (0.05, 0.05)


def test_the_sample_band_is_the_largest_step_between_neighbouring_sizes() -> None:
    band = sample_size_sensitivity([*SIZES, seen(2, 80, 0.9, -0.9)], 1)
    # Means by size: 10 → 0.09, 0.10; 20 → 0.06, 0.13; 40 → 0.02, 0.16.
    assert (band.kind, band.of) == ("sample", 3)
    assert (band.p_value_spread, band.delta_spread) == pytest.approx((0.04, 0.03))
    assert (band.most_p_value_spread, band.most_delta_spread) == (0.04, 0.08)


@pytest.mark.parametrize(
    ("p_value", "delta", "within"),
    [(0.029, 0.029, False), (0.031, 0.031, True), (0.031, 0.029, False), (0.029, 0.031, False)],
)
def test_both_spreads_have_to_be_within_their_limits(p_value: float, delta: float, within: bool) -> None:
    band = seed_reproducibility(RUNS, 40, most_p_value_spread=p_value, most_delta_spread=delta)
    assert band.within is within


def test_a_small_drift_that_adds_up_is_not_a_jump() -> None:
    slow = [seen(1, size, 0.01 * step, 0.05 * step) for step, size in enumerate((10, 20, 30, 40, 50))]
    assert sample_size_sensitivity(slow, 1).within
    assert not sample_size_sensitivity(slow, 1, most_delta_spread=0.04).within


REFUSED: dict[str, Callable[[], Any]] = {
    "one run": lambda: seed_reproducibility(RUNS[:1], 40),
    "runs of other sizes": lambda: seed_reproducibility(RUNS, 30),
    "one size": lambda: sample_size_sensitivity(RUNS[:1], 1),
    "another seed": lambda: sample_size_sensitivity(SIZES, 7),
    "a limit below 0": lambda: seed_reproducibility(RUNS, 40, most_delta_spread=-0.1),
    "a limit without end": lambda: seed_reproducibility(RUNS, 40, most_p_value_spread=float("inf")),
    "a p-value above 1": lambda: seen(1, 40, 1.1, 0.0),
    "a gain that is no number": lambda: seen(1, 40, 0.5, float("nan")),
    "no tasks": lambda: seen(1, 0, 0.5, 0.0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_shows_no_stability_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()
