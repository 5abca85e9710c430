"""One comparison of two versions on the same tasks, made once: test, interval, and how many pairs it would have taken.

Whoever looks more than once takes `sequential`, which stays right; what a comparison suffices for is the gate's matter.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
from numpy.typing import ArrayLike
from scipy import stats  # type: ignore[import-untyped]

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import MetricComparison, Scores
from holdfast.prove import estimate, matrix

EXACT = 14  # tasks: up to here every one of the 2ⁿ ways to turn the signs is counted
FLIPS = 9_999  # drawn beyond that; with the one that was seen, 10,000

_METHOD = "paired permutation"


def streams(rng: np.random.Generator) -> dict[str, np.random.Generator]:
    """A stream of chance for each metric, and one for "bands": from one seed a metric has the same p and the same
    interval wherever it is compared, whatever else is."""
    names = (*matrix.METRICS, "bands")
    return dict(zip(names, rng.spawn(len(names)), strict=True))


def paired(
    baseline: Scores, candidate: Scores, *, rng: np.random.Generator, margin: float = 0.0, level: float = 0.95
) -> MetricComparison:
    """Sign-flip permutation test of the task means, one-sided, with a bootstrap interval that draws whole tasks.

    p is the chance of a mean difference as high as this one, were the candidate worse by the margin on average and a
    task as likely to fall short of that as to exceed it. The unit is the task: seeds that agree are not more evidence.
    """
    for name in ("metric", "tasks", "seeds"):
        if getattr(baseline, name) != getattr(candidate, name):
            raise BadInput(
                f"{candidate.version} against {baseline.version}", why=f"the {name} differ", remedy="use matrix.pairs"
            )
    before, after = np.array(baseline.values), np.array(candidate.values)
    gains = after.mean(axis=1) - before.mean(axis=1)
    return MetricComparison(
        metric=baseline.metric,
        baseline=baseline.version,
        candidate=candidate.version,
        difference=float(gains.mean()),
        interval=estimate.difference(before, after, rng=rng, level=level),
        p_value=permutation(gains + margin, rng=rng),
        pairs=len(gains),
        method=f"{_METHOD}, {'exact' if len(gains) <= EXACT else f'{FLIPS} flips'}",
        margin=margin,
    )


def permutation(gains: ArrayLike, *, rng: np.random.Generator, flips: int = FLIPS) -> float:
    """P(Σ ±d ≥ Σ d), every sign as likely as the other; Fisher 1935. Drawn signs: (1 + hits)/(1 + flips).

    With the one added, drawn p-values are never 0 and never too small: Phipson and Smyth 2010, arXiv:1603.05766.
    """
    d = np.asarray(gains, np.float64)
    if d.ndim != 1 or not d.size or not np.isfinite(d).all():
        raise BadInput(f"differences of shape {d.shape}", why="must be a list of finite numbers, at least one")
    # Sums of the same numbers in another order differ in the last digit, and a tie counts as a hit.
    least = float(d.sum()) - 1e-12 * float(np.abs(d).sum())
    if d.size <= EXACT:
        signs = 1.0 - 2.0 * ((np.arange(2**d.size)[:, None] >> np.arange(d.size)) & 1)
        return float(np.mean(signs @ d >= least))
    moved = d[d != 0.0]
    hits, step = 0, max(1, (1 << 22) // max(moved.size, 1))
    for at in range(0, flips, step):
        rows = min(step, flips - at)
        bits = np.unpackbits(
            np.frombuffer(rng.bytes(rows * ((moved.size + 7) // 8)), np.uint8).reshape(rows, -1), axis=1
        )
        sums = 2.0 * (bits[:, : moved.size].astype(np.float64) @ moved) - moved.sum()
        hits += int(np.count_nonzero(sums >= least))
    return (1 + hits) / (1 + flips)


def improvement(baseline: ArrayLike, candidate: ArrayLike) -> float:
    """P(candidate > baseline) + P(equal)/2, of any two runs of one task, averaged over tasks; arXiv:2108.13264.

    Takes two matrices of [tasks, seeds], or two lists of one value for each task.
    """
    before, after = (
        np.asarray(side, np.float64).reshape(len(np.atleast_1d(side)), -1) for side in (baseline, candidate)
    )
    if before.shape[0] != after.shape[0] or not before.size or not after.size:
        raise BadInput(f"scores of shapes {before.shape} and {after.shape}", why="must be of the same tasks, not empty")
    gaps = after[:, :, None] - before[:, None, :]
    return float(np.mean((gaps > 0.0) + 0.5 * (gaps == 0.0)))


def holm(p: Mapping[str, float]) -> dict[str, float]:
    """p₍ᵢ₎ (m − i + 1), made to rise and at most 1: the chance of one false alarm among all stays below; Holm 1979."""
    for name, value in p.items():
        if not 0.0 <= value <= 1.0:
            raise BadInput(f"p-value of {name} = {value}", why="must be between 0 and 1")
    adjusted: dict[str, float] = {}
    highest = 0.0
    for rank, name in enumerate(sorted(p, key=lambda name: p[name])):
        highest = max(highest, min(1.0, (len(p) - rank) * p[name]))
        adjusted[name] = highest
    return {name: adjusted[name] for name in p}


def required_pairs(effect: float, deviation: float, alpha: float = 0.05, power: float = 0.8) -> int:
    """The fewest pairs with which one test has the power; a sequential one ends earlier when the effect is larger."""
    _check_plan(effect, deviation, alpha)
    if not 0.0 < power < 1.0:
        raise BadInput(f"power = {power}", why="must be above 0 and below 1")
    if effect <= 0.0:
        raise BadInput(f"effect = {effect}", why="must be above 0: no number of pairs proves a gain that is not there")
    enough = 2
    while _power(effect / deviation, enough, alpha) < power:
        enough *= 2
        if enough > 2**40:
            raise BadInput(f"effect = {effect}", why=f"is too small beside a deviation of {deviation} to be seen")
    few = enough // 2 if enough > 2 else 1
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (middle, enough) if _power(effect / deviation, middle, alpha) < power else (few, middle)
    return enough


def _power(effect: float, pairs: int, alpha: float) -> float:
    freedom = pairs - 1
    return float(stats.nct.sf(stats.t.isf(alpha, freedom), freedom, effect * np.sqrt(pairs)))


def _check_plan(effect: float, deviation: float, alpha: float) -> None:
    if not np.isfinite(effect):
        raise BadInput(f"effect = {effect}", why="must be finite")
    if not (np.isfinite(deviation) and deviation > 0.0):
        raise BadInput(f"deviation = {deviation}", why="must be above 0")
    if not 0.0 < alpha < 1.0:
        raise BadInput(f"alpha = {alpha}", why="must be above 0 and below 1")
