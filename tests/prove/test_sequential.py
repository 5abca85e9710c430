from __future__ import annotations

import time
from collections.abc import Callable
from math import log
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray
from scipy import integrate, special

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Outcome
from holdfast.prove.estimate import wilson
from holdfast.prove.sequential import BETS, WEIGHTS, crossed_at, judge, log_e, sequence

UNIT = {"low": -1.0, "high": 1.0}
Draws = NDArray[np.float64]

differences = st.lists(st.floats(-1.0, 1.0), min_size=1, max_size=60)


def outcomes(wins: float, losses: float, shape: tuple[int, ...], seed: int = 0) -> Draws:
    """Paired binary outcomes: 1 where only the candidate succeeds, −1 where only the baseline does."""
    u = np.random.default_rng(seed).random(shape)
    return (u < wins).astype(float) - (u > 1.0 - losses)


def mcnemar(d: Draws) -> Draws:
    """log of ∫ (2p)ᵂ (2 − 2p)ᴸ dp over [½, 1], uniform: the sequential McNemar test by a Beta mixture."""
    wins, losses = np.cumsum(d > 0.0, axis=-1), np.cumsum(d < 0.0, axis=-1)
    tail = special.betaincc(wins + 1.0, losses + 1.0, 0.5)
    return np.asarray((wins + losses + 1) * log(2.0) + special.betaln(wins + 1.0, losses + 1.0) + np.log(tail))


def first(logs: Draws, alpha: float = 0.05) -> Draws:
    """When each experiment crosses; its length where it does not."""
    crossed = logs >= -log(alpha)
    return np.where(crossed.any(axis=-1), crossed.argmax(axis=-1) + 1, logs.shape[-1])


def test_two_steps_are_the_weighted_products_worked_by_hand() -> None:
    assert BETS.min() > 0.0 and BETS.max() < 1.0  # less than all is risked
    assert WEIGHTS.min() > 0.0 and WEIGHTS.sum() == pytest.approx(1.0)
    # m = 0, low = −1: λ = f. A win multiplies by 1 + f, a loss by 1 − f.
    found = np.exp(log_e([1.0, -1.0], **UNIT))
    assert found == pytest.approx([np.sum(WEIGHTS * (1 + BETS)), np.sum(WEIGHTS * (1 + BETS) * (1 - BETS))])
    # m = −0.5: λ = f / 0.5, and a tie is a gain of 0.5.
    assert np.exp(log_e([0.0], **UNIT, mean=-0.5)) == pytest.approx([np.sum(WEIGHTS * (1 + BETS))])


@given(st.floats(-0.9, 0.9), st.floats(-1.0, 1.0), st.floats(0.0, 1.0))
def test_the_next_step_is_not_expected_to_gain_while_the_mean_is_not_above(mean: float, x: float, part: float) -> None:
    # Any two points with a mean of exactly m, after any past: E[E₂] = E₁.
    below, above = -1.0 + part * (mean + 1.0) * 0.99, mean + (1.0 - mean) * max(part, 0.01)
    chance = (mean - below) / (above - below)
    past, wins, loses = (np.exp(log_e(d, **UNIT, mean=mean)) for d in ([x], [x, above], [x, below]))
    assert chance * wins[1] + (1.0 - chance) * loses[1] == pytest.approx(past[0], rel=1e-9)


@given(differences, st.floats(-0.95, 0.9), st.floats(0.001, 0.04))
def test_a_higher_mean_is_harder_to_disprove(d: list[float], mean: float, more: float) -> None:
    assert np.all(log_e(d, **UNIT, mean=mean + more) <= log_e(d, **UNIT, mean=mean) + 1e-12)


@given(differences, st.data())
def test_what_comes_later_changes_nothing_that_was_said(d: list[float], data: st.DataObject) -> None:
    at = data.draw(st.integers(0, len(d) - 1))
    assert log_e(d[: at + 1], **UNIT) == pytest.approx(log_e(d, **UNIT)[: at + 1])
    whole, part = sequence(d, **UNIT), sequence(d[: at + 1], **UNIT)
    assert part.low == pytest.approx(whole.low[: at + 1]) and part.high == pytest.approx(whole.high[: at + 1])


def test_neither_the_unit_nor_what_is_beside_it_matters_and_long_streaks_stay_finite() -> None:
    d = outcomes(0.4, 0.2, (50,))
    assert log_e(7.0 * d, low=-7.0, high=7.0, mean=0.7) == pytest.approx(log_e(d, **UNIT, mean=0.1))
    assert log_e(d + 3.0, low=2.0, high=4.0, mean=3.0) == pytest.approx(log_e(d, **UNIT))
    many = np.random.default_rng(1).uniform(-1.0, 1.0, (3, 4, 200))
    found = log_e(many, **UNIT, mean=0.1)
    assert found.shape == many.shape
    assert found[2, 1] == pytest.approx(log_e(many[2, 1], **UNIT, mean=0.1))
    assert log_e(np.zeros((5, 0)), **UNIT).shape == (5, 0)
    assert np.isfinite(log_e([np.ones(20_000), -np.ones(20_000)], **UNIT)).all()
    assert log_e([1.0 + 1e-12], **UNIT) == pytest.approx(log_e([1.0], **UNIT))  # rounding is no reason to refuse


SHAPES: dict[str, Callable[[], Draws]] = {  # mean 0 each: nothing may be proved
    "rarely different": lambda: outcomes(0.02, 0.02, (1000, 400), 1),
    "often different": lambda: outcomes(0.5, 0.5, (1000, 400), 2),
    "rare losses": lambda: np.where(np.random.default_rng(3).random((1000, 400)) < 0.05, -0.95, 0.05),
    "rare gains": lambda: np.where(np.random.default_rng(4).random((1000, 400)) < 0.05, 0.95, -0.05),
    "small": lambda: 0.05 * np.random.default_rng(5).uniform(-1.0, 1.0, (1000, 400)),
}


@pytest.mark.parametrize("shape", SHAPES)
def test_looked_at_after_every_task_nothing_false_is_promoted_more_often_than_alpha(shape: str) -> None:
    d = SHAPES[shape]()
    for alpha in (0.05, 0.2):
        false = int((log_e(d, **UNIT).max(axis=-1) >= -log(alpha)).sum())
        assert wilson(false, len(d), level=0.999).low <= alpha
    # The plain test, looked at the same way, is wrong far more often: the shapes are not harmless.
    n = np.arange(1, 401)
    mean, square = np.cumsum(d, axis=-1) / n, np.cumsum(d * d, axis=-1) / n
    z = np.sqrt(n) * mean / np.sqrt(np.maximum(square - mean * mean, 1e-12))
    assert (z[:, 9:].max(axis=-1) > 1.645).mean() > 0.1


@pytest.mark.parametrize(
    ("wins", "losses", "n"), [(0.2, 0.1, 900), (0.25, 0.05, 400), (0.15, 0.1, 2500), (0.6, 0.2, 200)]
)
def test_paired_binary_outcomes_take_about_as_long_as_a_sequential_mcnemar_test(
    wins: float, losses: float, n: int
) -> None:
    direct = integrate.quad(lambda p: (2 * p) ** 3 * (2 - 2 * p) / 0.5, 0.5, 1.0)[0]
    assert mcnemar(np.array([1.0, 1.0, 0.0, -1.0, 1.0]))[-1] == pytest.approx(log(direct))  # theirs is the integral
    d = outcomes(wins, losses, (200, n), 6)
    ours, theirs = first(log_e(d, **UNIT)), first(mcnemar(d))
    assert ours.mean() <= 1.10 * theirs.mean()


@pytest.mark.parametrize(("mean", "deviation"), [(0.1, 0.3), (0.05, 0.1), (0.2, 0.5)])
def test_bounded_gains_take_hardly_longer_than_with_bets_that_adapt(mean: float, deviation: float) -> None:
    d = np.clip(mean + deviation * np.random.default_rng(7).normal(size=(400, 600)), -1.0, 1.0)
    assert first(log_e(d, **UNIT)).mean() <= 1.15 * first(agrapa(d)).mean()


def agrapa(d: Draws) -> Draws:
    """log Π (1 + λₜ dₜ), λₜ = μ̂/(σ̂² + μ̂²) of those before, cut to [0, 0.9]; arXiv:2010.09686, section B.3."""
    n = np.arange(1, d.shape[-1] + 1)
    mean = np.cumsum(d, axis=-1) / (n + 1)
    variance = (np.cumsum((d - mean) ** 2, axis=-1) + 0.25) / (n + 1)
    bets = np.clip(mean / (variance + mean * mean), 0.0, 0.9)
    bets = np.concatenate([np.zeros((len(d), 1)), bets[:, :-1]], axis=1)
    return np.cumsum(np.log1p(bets * d), axis=-1)


def test_harm_that_never_happens_is_excluded_about_as_soon_as_it_can_be() -> None:
    # All in on "not worse by 0.05" wins 0.05/0.95 a task: log 20 / log(1 / 0.95) = 58.4 at best.
    at = crossed_at(np.zeros(200), **UNIT, mean=-0.05)
    assert at is not None and 59 <= at <= 85


def test_a_confidence_sequence_holds_the_mean_at_every_time_at_once() -> None:
    rng, escaped = np.random.default_rng(8), 0
    for _ in range(200):
        d = np.where(rng.random(80) < 0.3, rng.uniform(0.0, 1.0, 80), -0.1)  # mean 0.08
        found = sequence(d, **UNIT, level=0.9)
        escaped += found.low[-1] > 0.08 or found.high[-1] < 0.08
    assert wilson(escaped, 200, level=0.999).low <= 0.1


@given(differences)
def test_bounds_only_tighten_and_their_ends_really_are_ruled_out(d: list[float]) -> None:
    found = sequence(d, **UNIT, level=0.8)
    assert all(np.diff(found.low) >= 0.0) and all(np.diff(found.high) <= 0.0)
    assert len(found.low) == len(found.high) == len(d) and found.level == 0.8
    assert all(low <= high for low, high in zip(found.low, found.high, strict=True))
    if found.low[-1] > -1.0:
        assert log_e(d, **UNIT, mean=found.low[-1]).max() >= log(10.0) - 1e-6
    if found.high[-1] < 1.0:
        assert log_e(np.negative(d), **UNIT, mean=-found.high[-1]).max() >= log(10.0) - 1e-6


def test_bounds_are_nearly_as_tight_as_the_exact_ones() -> None:
    d = outcomes(0.3, 0.1, (600,), 9)
    found = sequence(d, **UNIT)
    tighter = found.low[-1] + 0.02 * (found.high[-1] - found.low[-1])
    assert log_e(d, **UNIT, mean=tighter).max() < log(40.0)  # 2 % of the width further in is not ruled out
    assert found.low[-1] < d.mean() < found.high[-1]
    # About twice as wide as an interval that may be looked at once is what looking always costs.
    assert found.high[-1] - found.low[-1] < 2.2 * 2 * 1.96 * d.std() / np.sqrt(600)


def test_a_mean_that_moves_leaves_the_last_bounds_that_made_sense() -> None:
    found = sequence(np.r_[np.ones(100), -np.ones(400)], **UNIT)
    assert found.low[-1] <= found.high[-1] and found.low[-1] > 0.5
    began = time.process_time()
    sequence(np.random.default_rng(10).uniform(-1.0, 1.0, 2000), **UNIT)
    assert time.process_time() - began < 2.0  # about 0.2 s on a quiet machine


def test_a_gain_promotes_and_the_same_loss_rejects_at_the_same_task() -> None:
    d = outcomes(0.3, 0.1, (300,), 11)
    won, lost = judge(d, **UNIT), judge(-d, **UNIT)
    assert (won.outcome, lost.outcome) == (Outcome.PROMOTE, Outcome.REJECT)
    at = crossed_at(d, **UNIT)
    assert at is not None and f"proved after {at} tasks" in won.reasons[0] and f"after {at} tasks" in lost.reasons[0]
    assert log_e(d, **UNIT)[at - 1] >= log(20.0) > log_e(d, **UNIT)[: at - 1].max()


def test_a_verdict_stays_when_the_wind_turns_and_a_gain_too_small_is_rejected() -> None:
    d = np.r_[np.ones(30), -np.ones(300)]
    assert judge(d[:30], **UNIT).outcome is judge(d, **UNIT).outcome is Outcome.PROMOTE
    assert judge(-d, **UNIT).outcome is Outcome.REJECT
    small = outcomes(0.3, 0.2, (2000,), 12)  # mean 0.1
    assert judge(small, **UNIT).outcome is Outcome.PROMOTE
    assert judge(small, **UNIT, min_effect=0.3).outcome is Outcome.REJECT


EXPECTED: dict[str, tuple[int, float, Callable[[int], Draws]]] = {  # how many were seen, mean to beat, what comes
    "binary": (100, 0.0, lambda seed: outcomes(0.2, 0.1, (2000,), seed)),
    "small": (40, 0.0, lambda seed: np.random.default_rng(seed).uniform(-0.1, 0.2, 2000)),
    "harm that does not happen": (30, -0.05, lambda seed: np.zeros(500)),
    "harm that hardly happens": (30, -0.05, lambda seed: outcomes(0.01, 0.01, (2000,), seed)),
}


@pytest.mark.parametrize("case", EXPECTED)
def test_a_verdict_that_holds_says_about_how_many_tasks_it_still_takes(case: str) -> None:
    n, mean, draw = EXPECTED[case]
    said, took = [], []
    for seed in range(60):
        d = draw(100 + seed)
        found = judge(d[:n], **UNIT, min_effect=mean)
        if found.needs is not None:
            said.append(found.needs)
            took.append((crossed_at(d, **UNIT, mean=mean) or len(d)) - n)
    assert len(said) > 30
    assert 0.5 <= np.median(said) / np.median(took) <= 3.0


def test_where_no_gain_is_seen_it_says_what_a_worthwhile_one_would_take() -> None:
    nothing = np.zeros(40)
    small, large = (judge(nothing, **UNIT, worthwhile=w).needs for w in (0.02, 0.2))
    assert small is not None and large is not None and small > 3 * large
    found = judge(outcomes(0.1, 0.15, (60,), 13), **UNIT)
    assert found.outcome is Outcome.HOLD and "difference of 0.05" in found.reasons[1]
    assert judge([], **UNIT).needs


REFUSED: dict[str, Callable[[], Any]] = {
    "above the range": lambda: log_e([0.0, 1.1], **UNIT),
    "below the range": lambda: sequence([-1.1], **UNIT),
    "not a number": lambda: judge([np.nan], **UNIT),
    "a mean at the end": lambda: log_e([0.0], **UNIT, mean=-1.0),
    "a range turned round": lambda: log_e([0.0], low=1.0, high=-1.0),
    "an alpha of 0": lambda: crossed_at([0.0], **UNIT, alpha=0.0),
    "a level of 1": lambda: sequence([0.0], **UNIT, level=1.0),
    "two experiments, one verdict": lambda: judge(np.zeros((2, 3)), **UNIT),
    "two experiments, one sequence": lambda: sequence(np.zeros((2, 3)), **UNIT),
    "nothing worthwhile": lambda: judge([0.0], **UNIT, worthwhile=0.0),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_would_void_the_proof_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()
