"""Sequences of candidates on the same held-out tasks: whether any is promoted that is no better, and what they gain.

Each candidate is tested by the e-process that the verdict reads, with the α that the account leaves, beside fresh tries
of the live version, as it is by default. Whoever is promoted is live from then on.
"""

from __future__ import annotations

from collections.abc import Callable
from math import sqrt
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import stats  # type: ignore[import-untyped]

from holdfast.promote.alpha_account import level
from holdfast.prove.calibrate import SPREAD
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.history import ENOUGH
from holdfast.prove.sequential import log_e
from parts.report import rounded

ALPHA, CANDIDATES, SEEDS, RATE = 0.05, 50, 2, 0.5
NULL_TASKS, GAIN_TASKS = 150, 400
BETS = ComparisonConfig().gain_bets  # as the verdict weighs them
CHUNK = 250  # sequences at a time
GAINS = (0.05, 0.1, 0.2)
POWER = 0.9  # of the fixed test with as many pairs as there are tasks

Array = NDArray[np.float64]
Draw = Callable[[np.random.Generator, int], Array]  # the true gains of so many candidates


MEANINGS = {
    "sequence_false_promotion": f"any promotion of {CANDIDATES} candidates that are no better, on {NULL_TASKS} tasks",
    "sequence_false_promotion_upper": "the upper end of its 95 % interval",
    "sequence_drift": "points that the live version moves by promoted candidates of −0.5 points each",
    "sequence_gain": f"of N(0, 10)-point candidates on {GAIN_TASKS} tasks, as a share of an oracle's",
    "episodes_vs_fixed": "reuse_live, not confirmed, ten earlier tries: mean episodes over a fixed test's, like power",
    "episodes_vs_fixed_confirmed": "the same where fresh pairs confirm what is proved: earlier tries then only spare",
    "episodes_to_decision": "the means of both, by the gain",
    "sequences": "of each kind",
}
WANTS: dict[str, tuple[str, float]] = {
    "sequence_false_promotion_upper": ("at most", 1.4 * ALPHA),
    "sequence_drift": ("at least", -0.05),
    "sequence_gain": ("at least", 0.6),
    "episodes_vs_fixed": ("at most", 0.4),
}


def measure(quick: bool, seed: int = 0) -> dict[str, Any]:
    """Everything but the false promotions is steady after fewer sequences."""
    many, few, trials = (300, 100, 200) if quick else (2000, 400, 1000)
    rng = np.random.default_rng([seed, 16])
    nulls = run_sequences(rng, many, NULL_TASKS, lambda r, n: np.zeros(n))
    any_false = int(np.count_nonzero(nulls["promoted"]))
    worse = run_sequences(rng, many, NULL_TASKS, lambda r, n: np.full(n, -0.005))
    mixed = run_sequences(rng, few, GAIN_TASKS, lambda r, n: r.normal(0.0, 0.1, n))
    episodes = {gain: _episodes(rng, trials, gain) for gain in GAINS}
    confirmed = [_episodes(rng, trials, gain, is_confirmed=True) for gain in GAINS]
    return {
        "sequence_false_promotion": rounded(any_false / many),
        "sequence_false_promotion_upper": rounded(upper(any_false, many)),
        "sequence_drift": rounded(100.0 * float(worse["gained"].mean())),
        "sequence_gain": rounded(float(mixed["gained"].sum() / mixed["offered"].sum())),
        "episodes_vs_fixed": rounded(max(mine / fixed for mine, fixed in episodes.values())),
        "episodes_vs_fixed_confirmed": rounded(max(mine / fixed for mine, fixed in confirmed)),
        "episodes_to_decision": {str(gain): [round(one) for one in both] for gain, both in episodes.items()},
        "sequences": many,
    }


def run_sequences(rng: np.random.Generator, sequences: int, tasks: int, draw: Draw) -> dict[str, Array]:
    """By sequence: how many were promoted, the sum of their true gains, and that of all true gains above 0."""
    parts = [_sequences(rng, min(CHUNK, sequences - at), tasks, draw) for at in range(0, sequences, CHUNK)]
    return {name: np.concatenate([one[name] for one in parts]) for name in parts[0]}


def _sequences(rng: np.random.Generator, many: int, tasks: int, draw: Draw) -> dict[str, Array]:
    promoted, gained, offered = np.zeros(many), np.zeros(many), np.zeros(many)
    rates = rng.beta(RATE * SPREAD, (1.0 - RATE) * SPREAD, (many, tasks))  # of the live version, by task
    for number in range(1, CANDIDATES + 1):
        gain = draw(rng, many)
        live = rng.binomial(SEEDS, rates) / SEEDS
        tried = rng.binomial(SEEDS, _lifted(rates, gain)) / SEEDS
        alphas = np.array([level(ALPHA, number, int(before)) for before in promoted])
        is_promoted = log_e(tried - live, low=-1.0, high=1.0, weights=BETS).max(axis=1) >= -np.log(alphas)
        promoted += is_promoted
        gained += gain * is_promoted
        offered += np.maximum(gain, 0.0)
    return {"promoted": promoted, "gained": gained, "offered": offered}


def _lifted(rates: Array, gain: Array) -> Array:
    """Each task better or worse by as much of what is missing, or there, as makes the gain in the mean. Whoever is
    promoted has the rates of who was live: gains are counted, and never used up by a ceiling."""
    share = np.minimum(np.abs(gain) / RATE, 1.0)[:, None]
    return np.where(gain[:, None] > 0.0, rates + share * (1.0 - rates), rates * (1.0 - share))


def _episodes(rng: np.random.Generator, trials: int, gain: float, *, is_confirmed: bool = False) -> tuple[float, float]:
    """Mean episodes until it is decided, or the tasks end; and those of a paired test that looks once and has the same
    power. One try of the candidate at each task, and ten of the live version that are known already and cost nothing;
    the fixed test runs both. Confirmed, live is run on all tasks so far once earlier tries have proved a gain, and on
    all further ones. Every task is as likely as not, which varies most."""
    deviation = sqrt(RATE * (1.0 - RATE) + (RATE + gain) * (1.0 - RATE - gain))
    tasks = required_pairs(gain, deviation, ALPHA, POWER)
    earlier = rng.binomial(ENOUGH, RATE, (trials, tasks)) / ENOUGH
    tried = (rng.random((trials, tasks)) < RATE + gain).astype(np.float64)
    at, is_found = _crossed(tried - earlier)
    needed = at.astype(np.float64)
    if is_confirmed:
        later, is_shown = _crossed(tried - (rng.random((trials, tasks)) < RATE))
        needed = np.where(is_found, 2.0 * np.maximum(at, later), needed)
        is_found &= is_shown
    return float(needed.mean()), 2.0 * required_pairs(gain, deviation, ALPHA, float(is_found.mean()))


def _crossed(differences: Array) -> tuple[NDArray[np.int64], NDArray[np.bool_]]:
    """After how many tasks it is proved, or all of them; and whether it is."""
    crossed = log_e(differences, low=-1.0, high=1.0, weights=BETS) >= -np.log(ALPHA)
    is_found = crossed.any(axis=1)
    return np.where(is_found, crossed.argmax(axis=1) + 1, differences.shape[1]), is_found


def upper(hits: int, of: int) -> float:
    """Of a two-sided 95 % interval; Clopper and Pearson 1934."""
    from scipy.stats import beta  # type: ignore[import-untyped]

    return 1.0 if hits == of else float(beta.ppf(0.975, hits + 1, of - hits))


def required_pairs(effect: float, deviation: float, alpha: float, power: float) -> int:
    """The fewest pairs with which one paired t-test at the end has the power."""
    enough = 2
    while _power(effect / deviation, enough, alpha) < power:
        enough *= 2
    few = enough // 2
    while enough - few > 1:
        middle = (few + enough) // 2
        few, enough = (middle, enough) if _power(effect / deviation, middle, alpha) < power else (few, middle)
    return enough


def _power(effect: float, pairs: int, alpha: float) -> float:
    freedom = pairs - 1
    return float(stats.nct.sf(stats.t.isf(alpha, freedom), freedom, effect * np.sqrt(pairs)))
