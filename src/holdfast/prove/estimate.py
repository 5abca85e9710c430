"""Intervals of rates, and bootstrap intervals of the mean of a matrix of scores with a row for each task.

Whether the answer is good enough, the caller decides. The generator is an argument: the same seed gives the same
interval.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts load when they are used, which takes a second
from numpy.typing import ArrayLike, NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval

Matrix = NDArray[np.float64]  # [tasks, seeds]
Statistic = Callable[[Matrix], float]

RESAMPLES = 2000


def standardised(gains: ArrayLike) -> float:
    """d_z = mean / standard deviation of paired differences; Cohen 1988. 0 when all are alike: no scale to judge by."""
    d = np.asarray(gains, np.float64)
    if d.ndim != 1 or d.size < 2 or not np.isfinite(d).all():
        raise BadInput(f"differences of shape {d.shape}", why="must be a list of two finite numbers or more")
    deviation = float(d.std(ddof=1))
    # Rounding makes equal numbers differ a little, and a mean over that would be an effect of 10¹⁶.
    return float(d.mean()) / deviation if deviation > 1e-12 * float(np.abs(d).max(initial=0.0)) else 0.0


def wilson(successes: float, trials: float, *, level: float = 0.95) -> Interval:
    """(p + z²/2n ± z √(p(1 − p)/n + z²/4n²)) / (1 + z²/n);  Wilson 1927.

    For independent trials. It stays valid at 0 and at n of n, where a bootstrap interval would have no width. Several
    seeds of one task are not independent: use `interval` for those.
    """
    if not 0 <= successes <= trials or trials < 1:
        raise BadInput(f"{successes} successes of {trials}", why="must be from 0 to the trials, of which one is needed")
    _check_level(level)
    z, n, p = float(scipy.stats.norm.isf((1.0 - level) / 2.0)), trials, successes / trials
    centre = p + z * z / (2 * n)
    reach = z * np.sqrt(p * (1.0 - p) / n + z * z / (4.0 * n * n))
    low, high = (float((centre + sign * reach) / (1.0 + z * z / n)) for sign in (-1.0, 1.0))
    return Interval(low=low if successes else 0.0, high=1.0 if successes == trials else high, level=level)


def is_alike(lost: Sequence[int], planned: Sequence[int]) -> bool:
    """Whether the second of two arms lost no larger a part of its episodes than the first, beyond accident: of all that
    are lost its number is binomial, by how many each was to have."""
    return float(scipy.stats.binom.sf(lost[1] - 1, sum(lost), planned[1] / sum(planned))) >= 0.05


def student(values: ArrayLike) -> Interval:
    """mean ± t s/√n, with n − 1 degrees of freedom; Student 1908. For few independent values, of which there are too
    few different draws for a bootstrap."""
    found = np.asarray(values, np.float64)
    if found.ndim != 1 or found.size < 2 or not np.isfinite(found).all():
        raise BadInput(f"values of shape {found.shape}", why="must be a list of two finite numbers or more")
    centre, error = float(found.mean()), float(found.std(ddof=1)) / float(np.sqrt(found.size))
    reach = float(scipy.stats.t.isf(0.025, found.size - 1)) * error
    return Interval(low=centre - reach, high=centre + reach, level=0.95)


def interval(scores: ArrayLike, *, rng: np.random.Generator, level: float = 0.95) -> Interval:
    """Bootstrap interval of the mean of [tasks, seeds]; Efron 1979. Tasks are drawn with all their seeds, so the
    interval is about tasks like these, and seeds that agree do not count as more evidence. Percentiles of few tasks are
    too narrow and are taken further out: the expanded percentile interval, Hesterberg 2015, arXiv:1411.5279."""
    means = _matrix(scores).mean(axis=1)  # all tasks have as many seeds, so their means suffice
    step = max(1, (1 << 20) // means.size)
    drawn: list[float] = []
    for at in range(0, RESAMPLES, step):
        places = rng.integers(means.size, size=(min(step, RESAMPLES - at), means.size))
        drawn.extend(means[places].mean(axis=1).tolist())
    return _percentiles(drawn, means.size, level)


def difference(baseline: ArrayLike, candidate: ArrayLike, *, rng: np.random.Generator, level: float = 0.95) -> Interval:
    """Bootstrap interval of mean(candidate) − mean(baseline), with the same tasks drawn for both."""
    before, after = _matrix(baseline), _matrix(candidate)
    if before.shape != after.shape:
        why = f"{before.shape} against {after.shape}"
        raise BadInput("paired scores", why=why, remedy="keep the tasks and seeds that both were measured on")
    return interval(after - before, rng=rng, level=level)


def nested(groups: Sequence[ArrayLike], statistic: Statistic, *, rng: np.random.Generator) -> Interval:
    """Bootstrap interval of a statistic of the mean row of several tables [rows, columns]: first tables are drawn, then
    the rows of each; every table counts the same. For seeds and the tasks of each seed: the interval is about other
    seeds and other tasks."""
    tables = [np.asarray(group, np.float64) for group in groups]
    if len(tables) < 2 or any(table.ndim != 2 or not table.size or not np.isfinite(table).all() for table in tables):
        raise BadInput("groups of scores", why="must be two tables of finite numbers or more, none of them empty")
    drawn = []
    for _ in range(RESAMPLES):
        chosen = [tables[place] for place in rng.integers(len(tables), size=len(tables))]
        rows = [one[rng.integers(len(one), size=len(one))].mean(axis=0) for one in chosen]
        drawn.append(statistic(np.mean(rows, axis=0)))
    return _percentiles(drawn, len(tables), 0.95)


def _matrix(scores: ArrayLike) -> Matrix:
    matrix = np.asarray(scores, np.float64)
    if matrix.ndim != 2 or not matrix.size:
        raise BadInput(f"scores of shape {matrix.shape}", why="must be [tasks, seeds], and not empty")
    if not np.isfinite(matrix).all():
        raise BadInput("scores", why="one is not finite", remedy="leave the task out and report it as missing")
    if len(matrix) < 2:
        why = "tasks are drawn, and there is one"
        raise BadInput(f"scores of shape {matrix.shape}", why=why, remedy="measure more")
    return matrix


def _percentiles(drawn: list[float], n: int, level: float) -> Interval:
    _check_level(level)
    # A draw of n has only (n − 1)/n of the variance, and its tails are those of a normal where Student's are right.
    tail = float(scipy.stats.norm.sf(np.sqrt(n / (n - 1)) * scipy.stats.t.isf((1.0 - level) / 2.0, n - 1)))
    low, high = np.quantile(drawn, [tail, 1.0 - tail])
    return Interval(low=float(low), high=float(high), level=level)


def _check_level(level: float) -> None:
    if not 0.0 < level < 1.0:
        raise BadInput(f"level = {level}", why="must be above 0 and below 1")
