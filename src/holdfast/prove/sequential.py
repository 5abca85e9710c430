"""Proof that may be read after every task: betting e-processes and confidence sequences for bounded differences.

A bet is made against "the mean is at most m", and the wealth of the bets is the evidence: while the mean is not above
m, the wealth exceeds 1/α with a chance of at most α, however often one looks (Ville 1939). The differences are of
tasks, in order of arrival, which must not depend on their outcomes.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from math import exp, log

import numpy as np
from numpy.typing import ArrayLike, NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval, Outcome, Verdict

Differences = NDArray[np.float64]  # [..., n], the last axis is time

# A bet is the part of the wealth that is put at risk. Odds from 1:50 to 99:1 in even steps, weighed as Beta(3/4, 1/2):
# a few per cent from the best bet for gains of 0.05 to 0.4, and for the margins of harm that almost never happens.
_ODDS = np.geomspace(0.02, 99.0, 20)
BETS = _ODDS / (1.0 + _ODDS)


def _weights(a: float, b: float) -> Differences:
    density = BETS**a * (1.0 - BETS) ** b
    return np.asarray(density / density.sum(), np.float64)


WEIGHTS = _weights(0.75, 0.5)
# Where a gain is to be proved, and no margin kept: seven tenths on the stakes that suit gains of 0.03 to 0.3 of scores
# that differ by about a half, the rest as before. The chance to find +0.1 with 400 tasks rises by three points.
GAIN_WEIGHTS = 0.7 * _weights(2.0, 3.0) + 0.3 * WEIGHTS

_CHUNK = 1 << 14  # numbers bet upon at once: the wealth of all bets on them stays in the cache
_MEANS = 0.5 - 0.5 * np.cos(np.pi * np.arange(1, 192) / 192)  # tried by a confidence sequence, closer near the ends
_ROUNDING = 1e-9  # of the range: 0.1 + 0.2 may be a little above 0.3
_PRIOR = np.array([0.125, 1.75, 0.125])  # differences imagined before any was seen: far below the mean, at it, above
_MOST_NEEDED = 1_000_000  # beyond that the number says "not with this effect"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bounds:
    """A confidence sequence: with a chance of at least `level` the mean lies inside after every task at once."""

    low: tuple[float, ...]  # never falls
    high: tuple[float, ...]  # never rises
    level: float = 0.95


def log_e(d: ArrayLike, *, low: float, high: float, mean: float = 0.0, weights: Differences = WEIGHTS) -> Differences:
    """log Eₜ = log Σ_f w_f Π_{i≤t} (1 + λ_f (dᵢ − m)),  λ_f = f/(m − low);  Waudby-Smith and Ramdas, arXiv:2010.09686.

    The running evidence against "the mean of the next difference, given those before, is at most m", in logs, for every
    t. The bets are fixed beforehand, each f is below 1, so every factor is positive: E is a supermartingale under it.
    Takes [..., n], the last axis is time; with differences of −1, 0 and 1 it is a sequential McNemar test.
    """
    return _mixture((_checked(d, low, high, mean) - low) / (mean - low), weights)


def sequence(d: ArrayLike, *, low: float, high: float, level: float = 0.95, weights: Differences = WEIGHTS) -> Bounds:
    """The means that neither side's e-process has ruled out at (1 − level)/2, after every difference so far. log Eₜ
    falls in m and is convex: each log(1 − f + f (d − low)/(m − low)) is, so is the log of a mixture of their
    exponentials. Beyond two tried means it therefore lies above the line through them, and where that line meets the
    threshold is ruled out for certain: bounds far finer than the grid that never claim too much."""
    seen = np.atleast_1d(_checked(d, low, high, (low + high) / 2.0))
    if seen.ndim != 1:
        raise BadInput(f"differences of shape {seen.shape}", why="a confidence sequence is of one experiment")
    if not 0.0 < level < 1.0:
        raise BadInput(f"level = {level}", why="must be above 0 and below 1")
    threshold, share = log(2.0 / (1.0 - level)), (seen - low) / (high - low)
    lows = np.maximum.accumulate(_ruled_out(share, threshold, weights))
    highs = np.minimum.accumulate(1.0 - _ruled_out(1.0 - share, threshold, weights))
    # Both can only cross when the mean moved or by bad luck: the last pair that did not is what is left to say.
    together = np.maximum.accumulate(np.where(lows <= highs, np.arange(seen.size), 0))
    return Bounds(
        low=tuple((low + (high - low) * lows[together]).tolist()),
        high=tuple((low + (high - low) * highs[together]).tolist()),
        level=level,
    )


def crossed_at(
    d: ArrayLike,
    *,
    low: float,
    high: float,
    alpha: float = 0.05,
    mean: float = 0.0,
    weights: Differences = WEIGHTS,
) -> int | None:
    """After how many differences "the mean is at most m" was disproved at level α; None while it is not."""
    crossed = log_e(d, low=low, high=high, mean=mean, weights=weights) >= _threshold(alpha)
    return int(crossed.argmax()) + 1 if crossed.any() else None


def anytime_p(d: ArrayLike, *, low: float, high: float, mean: float = 0.0, weights: Differences = WEIGHTS) -> float:
    """1 / max Eₜ: a p-value of "the mean is at most m" that may be read after every difference; at most α exactly where
    the test at α has crossed."""
    evidence = log_e(d, low=low, high=high, mean=mean, weights=weights)
    return float(np.exp(-max(0.0, float(np.max(evidence, initial=0.0)))))


def interval_at_stop(
    d: ArrayLike, *, low: float, high: float, level: float = 0.95, weights: Differences = WEIGHTS
) -> Interval:
    """The last pair of the confidence sequence, without those before it: ten times as fast."""
    seen = np.atleast_1d(_checked(d, low, high, (low + high) / 2.0))
    share, threshold = (seen - low) / (high - low), log(2.0 / (1.0 - level))

    def crossed(payoffs: Differences) -> Differences:
        return np.asarray(_mixture(payoffs, weights).max(axis=-1) - threshold)

    lowest, highest = _highest(share, crossed), 1.0 - _highest(1.0 - share, crossed)
    if lowest > highest:  # when the mean moved, or by bad luck
        bounds = sequence(d, low=low, high=high, level=level, weights=weights)
        return Interval(low=bounds.low[-1], high=bounds.high[-1], level=level)
    return Interval(low=low + (high - low) * lowest, high=low + (high - low) * highest, level=level)


def even_odds(d: ArrayLike, *, low: float, high: float, weights: Differences = WEIGHTS) -> float:
    """The highest mean against which the bets stand doubled: whenever one stops, the true mean is above it with a
    chance of at least one half (E is at most 1 on average at every stop). The mean of what was seen is too high then,
    because it was a high one that stopped."""
    seen = np.atleast_1d(_checked(d, low, high, (low + high) / 2.0))
    share = (seen - low) / (high - low)
    return low + (high - low) * _highest(share, lambda payoffs: _mixture(payoffs, weights)[:, -1] - log(2.0))


def _highest(share: Differences, beyond: Callable[[Differences], Differences]) -> float:
    """The highest mean in [0, 1] that is beaten, a little too low; E falls in the mean, so each round keeps one gap."""
    least, most = 0.0, 1.0
    for _ in range(4):
        means = np.linspace(least, most, 13)[1:-1]
        beaten = int(np.count_nonzero(beyond(share / means[:, None]) >= 0.0))
        least, most = (means[beaten - 1] if beaten else least), (means[beaten] if beaten < means.size else most)
    return float(least)


def judge(
    d: ArrayLike,
    *,
    low: float,
    high: float,
    alpha: float = 0.05,
    min_effect: float = 0.0,
    worthwhile: float = 0.05,
    weights: Differences = WEIGHTS,
    best: ArrayLike | None = None,
) -> Verdict:
    """Promote once a mean above min_effect is proved, reject once a mean below it is, each at level α; hold until then.
    Where some of `d` is assumed against the candidate, `best` has it assumed in its favour: a rejection is proved by
    that, as what is assumed against it says nothing against it.
    A verdict stays: the first crossing counts. One that holds says about how many more tasks it takes, at the effect
    seen (drawn towards none by a few imagined tasks), or, where none is seen, at one of `worthwhile` above
    min_effect."""
    seen = np.atleast_1d(_checked(d, low, high, min_effect))
    if seen.ndim != 1:
        raise BadInput(f"differences of shape {seen.shape}", why="a verdict is about one experiment")
    if not worthwhile > 0.0:
        raise BadInput(f"worthwhile = {worthwhile}", why="must be above 0")
    better = crossed_at(seen, low=low, high=high, alpha=alpha, mean=min_effect, weights=weights)
    kindest = seen if best is None else np.atleast_1d(_checked(best, low, high, min_effect))
    worse = crossed_at(-kindest, low=-high, high=-low, alpha=alpha, mean=-min_effect, weights=weights)
    if better is not None and (worse is None or better < worse):
        reason = f"a mean difference above {min_effect:g} was proved after {better} tasks"
        return Verdict(outcome=Outcome.PROMOTE, reasons=(f"{reason} ({_figures(seen, alpha)})",))
    if worse is not None:
        reason = f"a mean difference below {min_effect:g} was proved after {worse} tasks"
        return Verdict(outcome=Outcome.REJECT, reasons=(f"{reason} ({_figures(kindest, alpha)})",))
    needs, effect = _needs(seen, low, high, alpha, min_effect, worthwhile, weights)
    evidence = exp(log_e(seen, low=low, high=high, mean=min_effect, weights=weights)[-1]) if seen.size else 1.0
    held = f"a mean difference above {min_effect:g} is not proved: evidence {evidence:.3g} of {1.0 / alpha:g}"
    outlook = f"about {needs} more tasks would prove a difference of {effect:.3g}"
    return Verdict(outcome=Outcome.HOLD, reasons=(f"{held} ({_figures(seen, alpha)})", outlook), needs=needs)


def _mixture(payoffs: Differences, weights: Differences) -> Differences:
    """log Σ_f w_f Π (1 + f (y − 1)) of payoffs y ≥ 0 for each 1 at stake, running over the last axis."""
    if not payoffs.size:
        return payoffs
    n = payoffs.shape[-1]
    rows = payoffs.reshape(-1, n)
    mixed = np.empty_like(rows)
    step = max(1, _CHUNK // n)
    for at in range(0, len(rows), step):
        wealth = BETS[:, None, None] * (rows[at : at + step] - 1.0)
        wealth += 1.0
        np.cumsum(np.log(wealth, out=wealth), axis=-1, out=wealth)
        top = wealth.max(axis=0)
        wealth -= top
        mixed[at : at + step] = top + np.log(np.einsum("f,f...->...", weights, np.exp(wealth, out=wealth)))
    return mixed.reshape(payoffs.shape)


def _ruled_out(share: Differences, threshold: float, weights: Differences) -> Differences:
    """For every t a mean in [0, 1], ruled out as too low; 0 where none is. Differences are shares of their range."""
    # No bet grows by more than log(x̄/m) a time, so higher means cannot be ruled out; two of them make the last line.
    times = np.arange(1, share.size + 1)
    most = np.max(np.cumsum(share) / times * np.exp(-threshold / times), initial=0.0)
    means = _MEANS[: np.searchsorted(_MEANS, most) + 2]
    evidence = _mixture(share / means[:, None], weights)  # [means, n], falls along the means
    beaten = np.count_nonzero(evidence >= threshold, axis=0)  # the first so many means are ruled out
    last, columns = beaten - 1, np.arange(share.size)
    found = np.where(beaten > 0, means[last], 0.0)
    for one, two in ((last - 1, last), (last + 1, last + 2)):
        inside = (one >= 0) & (two < means.size)
        left, right = np.where(inside, one, 0), np.where(inside, two, 1)
        fall = evidence[left, columns] - evidence[right, columns]
        reach = (evidence[left, columns] - threshold) / np.where(fall > 0.0, fall, np.inf)
        met = np.where(inside & (fall > 0.0), means[left] + reach * (means[right] - means[left]), 0.0)
        found = np.maximum(found, met)
    return found


def _needs(
    seen: Differences,
    low: float,
    high: float,
    alpha: float,
    mean: float,
    worthwhile: float,
    weights_of_bets: Differences,
) -> tuple[int, float]:
    """About how many more differences until E crosses 1/α, and the effect that was assumed. Future differences are
    taken to be like those seen and the imagined ones, weighted so that their mean is the effect."""
    reach = min(mean - low, high - mean)
    points = np.concatenate([seen, [mean - reach, mean, mean + reach]])
    weights = np.concatenate([np.ones(seen.size), _PRIOR])
    weights /= weights.sum()
    effect = float(weights @ points)
    if not effect > mean:
        effect = min(mean + worthwhile, mean + 0.9 * reach)
        weights = _tilted(points, weights, effect)
    logs = np.log(1.0 + BETS[:, None] * ((points - mean) / (mean - low)))
    now, growth = np.log(weights_of_bets) + logs[:, : seen.size].sum(axis=1), logs @ weights
    more = np.unique(np.geomspace(1, _MOST_NEEDED, 400).astype(int))
    enough = np.logaddexp.reduce(now[:, None] + growth[:, None] * more) >= _threshold(alpha)
    return (int(more[enough.argmax()]) if enough.any() else _MOST_NEEDED), effect


def _tilted(points: Differences, weights: Differences, effect: float) -> Differences:
    """Weights ∝ w exp(θ x) with the mean of the effect: the nearest distribution that has it; θ by halving."""
    scale = float(np.ptp(points))
    least, most = 0.0, 200.0 / scale
    tilted = weights
    for _ in range(60):
        theta = (least + most) / 2.0
        tilted = weights * np.exp(theta * (points - points.max()))
        tilted = tilted / tilted.sum()
        least, most = (theta, most) if tilted @ points < effect else (least, theta)
    return tilted


def _figures(seen: Differences, alpha: float) -> str:
    return f"mean {seen.mean() if seen.size else 0.0:+.3g} over {seen.size} tasks, α {alpha:g}"


def _threshold(alpha: float) -> float:
    if not 0.0 < alpha < 1.0:
        raise BadInput(f"alpha = {alpha}", why="must be above 0 and below 1")
    return -log(alpha)


def _checked(d: ArrayLike, low: float, high: float, mean: float) -> Differences:
    if not (np.isfinite(low) and np.isfinite(high) and low < mean < high):
        raise BadInput(f"mean = {mean:g} of differences from {low:g} to {high:g}", why="must lie inside the range")
    seen = np.asarray(d, np.float64)
    slack = _ROUNDING * (high - low)
    outside = ~((seen >= low - slack) & (seen <= high + slack))
    if outside.any():
        first = seen[outside].flat[0]
        raise BadInput(f"difference {first:g}", why=f"must be from {low:g} to {high:g}", remedy="give its real range")
    return np.clip(seen, low, high)
