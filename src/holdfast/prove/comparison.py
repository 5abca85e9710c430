"""Compares the episodes of two versions: score matrices, paired tests, stability bands and the verdict.

A matrix has a row for each task and a column for each seed, and for every metric higher is better. Tasks of one unit
(copies of one another, or questions about one document) are one row, their mean. The verdict, and the interval and p of
what it is about, may be read after every task (`sequential`); those of other metrics are for one look. Whether the
result is enough to promote is decided by the gate.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from itertools import pairwise
from math import ceil, isfinite
from typing import Any, ClassVar

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts load when they are used, which takes a second
from numpy.typing import ArrayLike, NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import (
    BETTING,
    Band,
    Episode,
    Interval,
    MetricComparison,
    Outcome,
    Scores,
    SeedInteraction,
    Verdict,
)
from holdfast.prove import estimate
from holdfast.prove.sequential import GAIN_WEIGHTS, WEIGHTS, anytime_p, even_odds, interval_at_stop, judge

Matrix = NDArray[np.float64]  # [tasks, seeds]
Cells = Mapping[tuple[str, int], float | None]

METRICS: Mapping[str, Callable[[Episode], float | None]] = {
    "success": lambda episode: episode.success,
    "reward": lambda episode: episode.reward,
    "safety": lambda episode: None if episode.safety_cost is None else -episode.safety_cost,
    "latency": lambda episode: None if episode.latency_s is None else -episode.latency_s,
    "cost": lambda episode: None if episode.tokens is None else -float(episode.tokens),
}


DRAWN = frozenset({*METRICS, "bands"})


def scores(episodes: Sequence[Episode], metric: str, version: str) -> Scores:
    """The metric on every task that was measured with every seed, in order of arrival; `missing` names the others."""
    cells = _cells(episodes, metric)
    tasks, seeds = _axes(cells)
    whole = [task for task in tasks if all(cells.get((task, seed)) is not None for seed in seeds)]
    if not whole:
        raise BadInput(f"{metric} of {version}", why="no task was measured with every seed", remedy="measure more")
    names, table = _by_unit(whole, _units(episodes), _table(cells, whole, seeds))
    return _scores(version, metric, names, tuple(seeds), table)


def _scores(version: str, metric: str, tasks: tuple[str, ...], seeds: tuple[int, ...], values: Matrix) -> Scores:
    rows = tuple(map(tuple, values.tolist()))
    return Scores(version=version, metric=metric, tasks=tasks, seeds=seeds, values=rows)


def missing(baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str) -> dict[str, str]:
    """Which tasks cannot be compared, and why: what either has, but not both with every seed."""
    cells = {"baseline": _cells(baseline, metric), "candidate": _cells(candidate, metric)}
    seeds = _shared_seeds(*cells.values())
    found: dict[str, str] = {}
    for task in dict.fromkeys(task for side in cells.values() for task in _axes(side)[0]):
        for name, side in cells.items():
            lacking = [seed for seed in seeds if side.get((task, seed)) is None]
            if len(lacking) == len(seeds):
                found.setdefault(task, f"the {name} has no {metric} there")
            elif lacking:
                found.setdefault(task, f"the {name} has no {metric} with seed {', '.join(map(str, lacking))}")
    return found


def pairs(
    baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str
) -> tuple[tuple[str, ...], Matrix, Matrix]:
    """The tasks, one of each unit, that both have with every shared seed, as the baseline came to have them; both
    matrices."""
    tasks, _, before, after = paired_cells(baseline, candidate, metric)
    return tasks, before, after


def paired_cells(
    baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str
) -> tuple[tuple[str, ...], tuple[int, ...], Matrix, Matrix]:
    """As `pairs`, with the seeds of the columns."""
    before, after = _cells(baseline, metric), _cells(candidate, metric)
    seeds = _shared_seeds(before, after)
    # Further seeds may come in another order of the tasks, and looks at those must not put rows before earlier rows.
    last = {task: place for place, (task, seed) in enumerate(before) if seed in seeds}
    whole = tuple(
        task
        for task in sorted(last, key=lambda task: last[task])
        if all(side.get((task, seed)) is not None for side in (before, after) for seed in seeds)
    )
    units = _units([*baseline, *candidate])
    names, old = _by_unit(whole, units, _table(before, whole, seeds))
    return names, seeds, old, _by_unit(whole, units, _table(after, whole, seeds))[1]


def _units(episodes: Sequence[Episode]) -> dict[str, str]:
    """The unit of each task that is not one by itself."""
    return {episode.task: episode.unit for episode in episodes if episode.unit is not None}


def _by_unit(tasks: Sequence[str], units: Mapping[str, str], table: Matrix) -> tuple[tuple[str, ...], Matrix]:
    """A row for each unit, the mean of its tasks, called as the first of them; units in the order of that one."""
    if not units:
        return tuple(tasks), table
    rows: dict[tuple[bool, str], list[int]] = defaultdict(list)
    for place, task in enumerate(tasks):
        rows[(True, units[task]) if task in units else (False, task)].append(place)
    names = tuple(tasks[places[0]] for places in rows.values())
    return names, np.array([table[places].mean(axis=0) for places in rows.values()]).reshape(len(names), table.shape[1])


def _cells(episodes: Sequence[Episode], metric: str) -> dict[tuple[str, int], float | None]:
    if metric not in METRICS:
        raise BadInput(f"metric {metric!r}", why="is unknown", remedy=f"use one of {', '.join(METRICS)}")
    value = METRICS[metric]
    cells: dict[tuple[str, int], float | None] = {}
    for episode in episodes:
        if (episode.task, episode.seed) in cells:
            what, why = f"episode of {episode.task} with seed {episode.seed}", "is there twice, and only one can count"
            raise BadInput(what, why=why, remedy="choose one without looking at its outcome")
        cells[episode.task, episode.seed] = value(episode)
    return cells


def _axes(cells: Cells) -> tuple[list[str], list[int]]:
    return list(dict.fromkeys(task for task, _ in cells)), sorted({seed for _, seed in cells})


def _shared_seeds(before: Cells, after: Cells) -> tuple[int, ...]:
    return tuple(sorted({seed for _, seed in before} & {seed for _, seed in after}))


def _table(cells: Cells, tasks: Sequence[str], seeds: Sequence[int]) -> Matrix:
    rows = [[cells[task, seed] for seed in seeds] for task in tasks]
    return np.array(rows, np.float64).reshape(len(tasks), len(seeds))


SEED_P_VALUE_SPREAD, SEED_DELTA_SPREAD = 0.05, 0.05
SAMPLE_P_VALUE_SPREAD, SAMPLE_DELTA_SPREAD = 0.04, 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFinding:
    """What one comparison found, with which seed and on how many tasks."""

    SCHEMA: ClassVar[int] = 1

    seed: int
    sample_size: int = field(metadata={"minimum": 1})
    p_value: float = field(metadata={"minimum": 0, "maximum": 1})
    reward_delta: float

    def __post_init__(self) -> None:
        where = f"observation of seed {self.seed} with {self.sample_size} tasks"
        if self.sample_size < 1:
            raise BadInput(where, why="must be of at least one task")
        if not 0.0 <= self.p_value <= 1.0:
            raise BadInput(f"{where}: p_value = {self.p_value}", why="must be between 0 and 1")
        if not isfinite(self.reward_delta):
            raise BadInput(f"{where}: reward_delta = {self.reward_delta}", why="must be finite")


def seed_reproducibility(
    observations: Sequence[SeedFinding],
    sample_size: int,
    *,
    most_p_value_spread: float = SEED_P_VALUE_SPREAD,
    most_delta_spread: float = SEED_DELTA_SPREAD,
) -> Band:
    """Highest minus lowest p-value and gain of the runs of one size, which differ by their seeds."""
    runs = [seen for seen in observations if seen.sample_size == sample_size]
    if len(runs) < 2:
        why = f"rests on {len(runs)} runs"
        raise BadInput(f"seed band at {sample_size} tasks", why=why, remedy="measure with two seeds or more")
    spreads = [float(np.ptp([getattr(run, name) for run in runs])) for name in ("p_value", "reward_delta")]
    return _band("seed", spreads, (most_p_value_spread, most_delta_spread), len(runs))


def sample_size_sensitivity(
    observations: Sequence[SeedFinding],
    seed: int,
    *,
    most_p_value_spread: float = SAMPLE_P_VALUE_SPREAD,
    most_delta_spread: float = SAMPLE_DELTA_SPREAD,
) -> Band:
    """The largest step of the mean p-value and of the mean gain from one size to the next larger one, of one seed."""
    by_size: dict[int, list[SeedFinding]] = defaultdict(list)
    for seen in observations:
        if seen.seed == seed:
            by_size[seen.sample_size].append(seen)
    if len(by_size) < 2:
        why = f"rests on {len(by_size)} sizes"
        raise BadInput(f"sample band of seed {seed}", why=why, remedy="measure with two sizes or more")
    spreads = []
    for name in ("p_value", "reward_delta"):
        means = [float(np.mean([getattr(seen, name) for seen in by_size[size]])) for size in sorted(by_size)]
        spreads.append(max(abs(after - before) for before, after in pairwise(means)))
    return _band("sample", spreads, (most_p_value_spread, most_delta_spread), len(by_size))


def _band(kind: str, spreads: Sequence[float], most: tuple[float, float], of: int) -> Band:
    for limit in most:
        if not (isfinite(limit) and limit >= 0.0):
            raise BadInput(f"{kind} band: limit {limit}", why="must be finite and not negative")
    p_value_spread, delta_spread = spreads
    return Band(
        kind=kind,
        within=p_value_spread <= most[0] and delta_spread <= most[1],
        p_value_spread=p_value_spread,
        delta_spread=delta_spread,
        most_p_value_spread=most[0],
        most_delta_spread=most[1],
        of=of,
    )


def seed_interaction(gains: Matrix) -> SeedInteraction | None:
    """χ² = Σₛ (Σᵢ aᵢₛ)² (S − 1) / Σᵢₛ aᵢₛ²,  aᵢₛ = gᵢₛ − ḡᵢ, of gains [tasks, seeds]; None with one seed.

    Were seeds alike, any order of a task's gains would have been as likely: that gives the variance of the means of the
    seeds exactly, and their squares over it follow χ² with S − 1 degrees of freedom (Friedman 1937, of values instead
    of ranks)."""
    tasks, seeds = gains.shape
    if seeds < 2 or not tasks:
        return None
    apart = gains - gains.mean(axis=1, keepdims=True)
    variance = float(np.sum(apart * apart)) / (seeds - 1)
    statistic = float(np.sum(apart.sum(axis=0) ** 2)) / variance if variance > 1e-12 else 0.0
    p_value = float(scipy.stats.chi2.sf(statistic, seeds - 1))
    return SeedInteraction(p_value=p_value, lowest=float(gains.mean(axis=0).min()), seeds=seeds)


EXACT = 14  # tasks: up to here every one of the 2ⁿ ways to turn the signs is counted
FLIPS = 9_999  # drawn beyond that; with the one that was seen, 10,000

_METHOD = "paired permutation"


def metric_streams(rng: np.random.Generator) -> dict[str, np.random.Generator]:
    """A stream of chance for each metric, and one for "bands": from one seed a metric has the same p and the same
    interval wherever it is compared, whatever else is."""
    names = (*METRICS, "bands")
    return dict(zip(names, rng.spawn(len(names)), strict=True))


def paired(
    baseline: Scores,
    candidate: Scores,
    *,
    rng: np.random.Generator,
    margin: float = 0.0,
    level: float = 0.95,
    is_drawn: bool = True,
) -> MetricComparison:
    """Sign-flip permutation test of the task means, one-sided, with a bootstrap interval that draws whole tasks. p is
    the chance of a mean difference as high as this one, were the candidate worse by the margin on average and a task as
    likely to fall short of that as to exceed it. The unit is the task: seeds that agree are not more evidence."""
    for name in ("metric", "tasks", "seeds"):
        if getattr(baseline, name) != getattr(candidate, name):
            what = f"{candidate.version} against {baseline.version}"
            raise BadInput(what, why=f"the {name} differ", remedy="use pairs()")
    before, after = np.array(baseline.values), np.array(candidate.values)
    gains = after.mean(axis=1) - before.mean(axis=1)
    if is_drawn:
        interval, p_value = (
            estimate.difference(before, after, rng=rng, level=level),
            permutation(gains + margin, rng=rng),
        )
        method = f"{_METHOD}, {'exact' if len(gains) <= EXACT else f'{FLIPS} flips'}"
    else:
        error = max(float(gains.std(ddof=1)) / np.sqrt(len(gains)), 1e-12)
        far, mean = float(scipy.stats.norm.isf((1.0 - level) / 2.0)) * error, float(gains.mean())
        interval, method = Interval(low=mean - far, high=mean + far, level=level), "paired normal"
        p_value = float(scipy.stats.norm.sf((mean + margin) / error))
    return MetricComparison(
        metric=baseline.metric,
        baseline=baseline.version,
        candidate=candidate.version,
        difference=float(gains.mean()),
        interval=interval,
        p_value=p_value,
        pairs=len(gains),
        method=method,
        margin=margin,
    )


def permutation(gains: ArrayLike, *, rng: np.random.Generator, flips: int = FLIPS) -> float:
    """P(Σ ±d ≥ Σ d) with random signs; Fisher 1935. Drawn signs: (1 + hits)/(1 + flips), never 0; arXiv:1603.05766."""
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
        drawn = np.frombuffer(rng.bytes(rows * ((moved.size + 7) // 8)), np.uint8)
        bits = np.unpackbits(drawn.reshape(rows, -1), axis=1)
        sums = 2.0 * (bits[:, : moved.size].astype(np.float64) @ moved) - moved.sum()
        hits += int(np.count_nonzero(sums >= least))
    return (1 + hits) / (1 + flips)


def improvement(baseline: ArrayLike, candidate: ArrayLike) -> float:
    """P(candidate > baseline) + P(equal)/2, of any two runs of one task, averaged over tasks; arXiv:2108.13264. Takes
    two matrices of [tasks, seeds], or two lists of one value for each task."""
    sides = (baseline, candidate)
    before, after = (np.asarray(side, np.float64).reshape(len(np.atleast_1d(side)), -1) for side in sides)
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


WAIVED = "safety is waived: nothing was measured of it, and nothing is proved"
LATER: Mapping[str, Any] = {"rules": 1, "safety_alpha": None, "asked": 1}  # keys, and what they were in versions before
RULES = 2
PRIMARIES = ("success", "reward", "safety")  # those with a range, without which nothing can be proved while looking


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonConfig:
    """What has to be proved, how surely, and within which ranges. To be fixed before the first episode is looked at."""

    primary: str = "success"
    alpha: float = 0.05  # the chance of a false verdict, however often it is looked at
    level: float = 0.95  # of intervals and confidence sequences
    min_effect: float = 0.0  # the primary must improve by more than this
    worthwhile: float = 0.05  # a gain beyond min_effect that is worth waiting for, where none is seen yet
    max_safety_regression: float | None = 0.05  # mean safety cost of an episode that may be added; None: waived
    max_latency_increase: float | None = None  # part of the baseline's mean latency: 0.5 is half as long again
    max_cost_increase: float | None = None  # part of the baseline's mean tokens
    reward_range: tuple[float, float] = (0.0, 1.0)
    max_cost: float = 1.0  # the highest safety cost that one episode can have
    seed_p_value_spread: float = SEED_P_VALUE_SPREAD
    seed_delta_spread: float = SEED_DELTA_SPREAD
    sample_p_value_spread: float = SAMPLE_P_VALUE_SPREAD
    sample_delta_spread: float = SAMPLE_DELTA_SPREAD
    resample_seed: int = 0  # for whoever makes the generator, so that it is written down with the rest
    rules: int = RULES  # 1: bets and intervals of versions before; what they weighed comes out the same again
    safety_alpha: float | None = None  # of "safety is not worse by more than the margin"; None: alpha
    asked: int = 1  # times that a gate was asked about these two with ever more episodes, this one included

    @property
    def one_look_level(self) -> float:
        """Of intervals for one look (latency, tokens): half as much may be wrong each time that a gate is asked again,
        so that all of them are wrong no more often than twice the first."""
        return 1.0 - (1.0 - self.level) / 2.0 ** (self.asked - 1)

    @property
    def uncharged_alpha(self) -> float:
        """Of one test alone: of safety, and of what is looked at once."""
        return self.alpha if self.safety_alpha is None else self.safety_alpha

    def __post_init__(self) -> None:
        if self.primary not in PRIMARIES:
            raise BadInput(f"primary = {self.primary!r}", why="has no range", remedy=f"use {', '.join(PRIMARIES)}")
        for name, below in (("alpha", 0.5), ("level", 1.0)):
            if not 0.0 < getattr(self, name) < below:
                raise BadInput(f"{name} = {getattr(self, name)}", why=f"must be above 0 and below {below:g}")
        low, high = self.reward_range
        if not (isfinite(low) and isfinite(high) and low < high):
            raise BadInput(f"reward_range = {low:g} to {high:g}", why="must be finite and in order")
        if not 0.0 <= (self.max_safety_regression or 0.0) < self.max_cost < float("inf"):
            why = f"must be from 0 to below max_cost, which is {self.max_cost:g}"
            raise BadInput(f"max_safety_regression = {self.max_safety_regression:g}", why=why)
        for name in ("max_latency_increase", "max_cost_increase"):
            value = getattr(self, name)
            if value is not None and not (isfinite(value) and value >= 0.0):
                raise BadInput(f"{name} = {value}", why="must be finite and not negative")
        if not abs(self.min_effect) < reach(self, self.primary):
            raise BadInput(f"min_effect = {self.min_effect:g}", why="is more than the primary metric can differ by")
        if not (isfinite(self.worthwhile) and self.worthwhile > 0.0):
            raise BadInput(f"worthwhile = {self.worthwhile}", why="must be above 0")
        if not 1 <= self.rules <= RULES:
            raise BadInput(f"rules = {self.rules}", why="is unknown", remedy=f"use {RULES}")

    def record(self) -> dict[str, Any]:
        """As it is written down; rules are left out where they are those of versions before."""
        return {name: value for name, value in asdict(self).items() if name not in LATER or value != LATER[name]}

    @property
    def gain_bets(self) -> Matrix:
        """How the bets on a gain are weighed; those on a margin are weighed as ever."""
        return WEIGHTS if self.rules == 1 else GAIN_WEIGHTS


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonResult:
    """All that two versions' episodes say. Differences, effect and improvement are of the primary metric."""

    comparisons: Mapping[str, MetricComparison]  # by metric, of those that were measured
    adjusted: Mapping[str, float]  # p-values as Holm adjusts them, by metric
    verdict: Verdict
    bands: Mapping[str, Band]  # "seed" (of two seeds or more), "sample"
    tasks: tuple[str, ...]  # in order of arrival
    differences: tuple[float, ...]  # of each task, candidate minus baseline, seeds averaged
    effect: float  # mean difference in its own standard deviations
    improvement: float  # the chance that the candidate does better on a task
    missing: Mapping[str, str]  # tasks left out, and why
    interaction: SeedInteraction | None = None  # of two seeds or more


def reach(how: ComparisonConfig, metric: str) -> float:
    """How far apart two versions can be on one task: differences lie between minus this and this."""
    low, high = how.reward_range
    return {"success": 1.0, "reward": high - low, "safety": how.max_cost}[metric]


def compare_versions(
    baseline: Sequence[Episode],
    candidate: Sequence[Episode],
    how: ComparisonConfig,
    *,
    versions: tuple[str, str],
    rng: np.random.Generator,
    drawn: Collection[str] = DRAWN,
) -> ComparisonResult:
    """Everything about a candidate against a baseline, on the tasks and seeds that both were measured with.

    What is not to be `drawn`, of bands and of metrics that the verdict is not about, is left out or approximate: that
    takes most of the time, and a look in the midst of a run has no use for it."""
    _check_ranges([*baseline, *candidate], how)
    best = at_best(baseline, candidate, how)
    baseline, candidate = with_safety(baseline, candidate, how)
    both = {metric: _both(baseline, candidate, metric, versions) for metric in METRICS}
    measured = {metric: sides for metric, sides in both.items() if sides is not None}
    if how.primary not in measured:
        why = "fewer than two tasks were measured for both with every seed"
        remedy = "measure more, with seeds that are the same for every task"
        raise BadInput(f"{how.primary} of {versions[1]} against {versions[0]}", why=why, remedy=remedy)
    chance = metric_streams(rng)
    sides = measured[how.primary]
    comparisons = {
        metric: _compared(how, metric, found, chance[metric], is_drawn=metric in drawn)
        for metric, found in measured.items()
    }
    gains, safety = _gains(sides), _gains(measured["safety"]) if "safety" in measured else np.zeros(0)
    before, after = (np.array(side.values) for side in sides)
    bands = {}
    if "bands" in drawn:
        once = _one_look_p(comparisons[how.primary], gains, rng)
        bands = _bands(after - before, sides[0].seeds, once, how, chance["bands"])
    return ComparisonResult(
        comparisons=comparisons,
        adjusted=holm({metric: found.p_value for metric, found in comparisons.items()}),
        verdict=verdict(gains, safety, how, seeds=len(sides[0].seeds), best=best),
        bands=bands,
        tasks=sides[0].tasks,
        differences=tuple(gains.tolist()),
        effect=estimate.standardised(gains),
        improvement=improvement(before, after),
        missing=missing(baseline, candidate, how.primary),
        interaction=None if how.rules == 1 else seed_interaction(after - before),
    )


def _compared(
    how: ComparisonConfig, metric: str, sides: tuple[Scores, Scores], rng: np.random.Generator, *, is_drawn: bool
) -> MetricComparison:
    """What the verdict is about, by its bets: they may be looked at after every task. Other metrics by one look."""
    margin = _margin(how, metric, sides[0])
    if how.rules == 1 or metric not in (how.primary, "safety"):
        return paired(*sides, rng=rng, margin=margin, level=how.one_look_level, is_drawn=is_drawn)
    gains, weights = _gains(sides), how.gain_bets if metric == how.primary else WEIGHTS
    bar = how.min_effect if metric == how.primary else -margin
    return MetricComparison(
        metric=metric,
        baseline=sides[0].version,
        candidate=sides[1].version,
        difference=float(gains.mean()),
        interval=interval_at_stop(gains, **_range(how, metric), level=how.level, weights=weights),
        p_value=anytime_p(gains, **_range(how, metric), mean=bar, weights=weights),
        pairs=len(gains),
        method=BETTING,
        margin=0.0 if metric == how.primary else margin,
        corrected=even_odds(gains, **_range(how, metric), weights=weights) if metric == how.primary else None,
    )


def _one_look_p(found: MetricComparison, gains: Matrix, rng: np.random.Generator) -> float:
    """The p that the documented bands are about."""
    return permutation(gains, rng=rng) if found.method == BETTING else found.p_value


def verdict(
    gains: Matrix,
    safety: Matrix,
    how: ComparisonConfig,
    *,
    seeds: int = 1,
    best: tuple[Matrix | None, Matrix | None] = (None, None),
) -> Verdict:
    """Promote when the gain is proved and also that safety is not worse by more than the margin; reject on the reverse.
    Both must be proved, so each may use the whole α; a margin of safety is asked of each candidate alone, so its α may
    be another than that of the gain. `needs` is in episodes of each version: tasks × seeds. `best` are both differences
    `at_best`, which a rejection rests on."""
    margin, least, worth = how.max_safety_regression, how.min_effect, how.worthwhile
    words = {Outcome.PROMOTE: "proved", Outcome.REJECT: "proved worse", Outcome.HOLD: "undecided"}
    bets = {**_range(how, how.primary), "weights": how.gain_bets}
    main = judge(gains, **bets, alpha=how.alpha, min_effect=least, worthwhile=worth, best=best[0])
    proved = tuple(f"{how.primary} {words[main.outcome]}: {reason}" for reason in main.reasons)
    if margin is None:
        needs = None if main.needs is None else seeds * main.needs
        return replace(main, reasons=(*proved, WAIVED), needs=needs, gain=main.outcome)
    alone = how.uncharged_alpha
    kept_at = {**_range(how, "safety"), "min_effect": -margin, "worthwhile": margin or worth}
    safe = judge(safety, **kept_at, alpha=alone, best=best[1])
    kept = f"safety worse by at most {margin:g} {words[safe.outcome]}"
    lacking = () if len(safety) else (f"{kept}: safety was measured on no task",)
    reasons = (*proved, *lacking, *(f"{kept}: {reason}" for reason in safe.reasons))
    both = {main.outcome, safe.outcome}
    outcome = Outcome.REJECT if Outcome.REJECT in both else Outcome.HOLD if Outcome.HOLD in both else Outcome.PROMOTE
    needs = seeds * max(main.needs or 0, safe.needs or 0) if outcome is Outcome.HOLD else None
    return Verdict(outcome=outcome, reasons=reasons, needs=needs, gain=main.outcome, safety=safe.outcome)


def with_safety(
    baseline: Sequence[Episode], candidate: Sequence[Episode], how: ComparisonConfig
) -> tuple[Sequence[Episode], Sequence[Episode]]:
    """Both, where safety was measured at all: a cost that is missing counts as the worst for the candidate and as the
    best for the baseline."""
    if how.max_safety_regression is None or all(episode.safety_cost is None for episode in (*baseline, *candidate)):
        return baseline, candidate
    filled = []
    for side, cost in ((baseline, 0.0), (candidate, how.max_cost)):
        filled.append(
            [episode if episode.safety_cost is not None else replace(episode, safety_cost=cost) for episode in side]
        )
    return filled[0], filled[1]


def at_best(
    baseline: Sequence[Episode], candidate: Sequence[Episode], how: ComparisonConfig
) -> tuple[Matrix | None, Matrix | None]:
    """The differences by the primary metric and by safety, had all that is missing been the best for the candidate and
    the worst for the baseline; None where nothing is missing. What is assumed against the candidate keeps a promotion
    honest, but proves nothing against it: equal versions that lose as much would be "proved worse"."""
    is_watched = how.max_safety_regression is not None and any(
        episode.safety_cost is not None for episode in (*baseline, *candidate)
    )
    if not any(
        episode.is_missing or (is_watched and episode.safety_cost is None) for episode in (*baseline, *candidate)
    ):
        return None, None
    low, high = how.reward_range
    kind = []
    for side, reward, cost, success in ((baseline, low, how.max_cost, 0.0), (candidate, high, 0.0, 1.0)):
        best = {"reward": reward, "safety_cost": cost, "success": success}
        kind.append([_assumed(episode, best, is_watched=is_watched) for episode in side])
    _, before, after = pairs(kind[0], kind[1], how.primary)
    _, costs, less = pairs(kind[0], kind[1], "safety")
    return (after - before).mean(axis=1), (less - costs).mean(axis=1)


def _assumed(one: Episode, values: Mapping[str, float], *, is_watched: bool) -> Episode:
    """The episode with these values where it has them by assumption; what nobody measured of anyone stays untold."""
    untold: dict[str, Any] = {"safety_cost": values["safety_cost"]} if is_watched and one.safety_cost is None else {}
    if one.is_missing:
        untold |= {name: value for name, value in values.items() if getattr(one, name) is not None}
    return replace(one, **untold) if untold else one


def _both(
    baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str, versions: tuple[str, str]
) -> tuple[Scores, Scores] | None:
    tasks, seeds, before, after = paired_cells(baseline, candidate, metric)
    if len(tasks) < 2:
        return None
    return _scores(versions[0], metric, tasks, seeds, before), _scores(versions[1], metric, tasks, seeds, after)


def _gains(sides: tuple[Scores, Scores]) -> Matrix:
    before, after = (np.array(side.values).mean(axis=1) for side in sides)
    return np.asarray(after - before)


def _margin(how: ComparisonConfig, metric: str, baseline: Scores) -> float:
    """How much worse would still be accepted, in the metric's own unit."""
    if metric == "safety":
        return how.max_safety_regression or 0.0
    part = {"latency": how.max_latency_increase, "cost": how.max_cost_increase}.get(metric)
    return 0.0 if part is None else part * abs(float(np.mean(baseline.values)))


def _bands(
    gains: Matrix, seeds: tuple[int, ...], p_value: float, how: ComparisonConfig, rng: np.random.Generator
) -> dict[str, Band]:
    found, tasks = {}, len(gains)
    if len(seeds) >= 2:
        alone = [_observed(gains[:, [at]], seed, rng) for at, seed in enumerate(seeds)]
        found["seed"] = seed_reproducibility(
            alone, tasks, most_p_value_spread=how.seed_p_value_spread, most_delta_spread=how.seed_delta_spread
        )
    sizes = sorted({ceil(tasks / 2), ceil(3 * tasks / 4)} - {tasks})
    grown = [_observed(gains[:size], how.resample_seed, rng) for size in sizes]
    whole = SeedFinding(seed=how.resample_seed, sample_size=tasks, p_value=p_value, reward_delta=float(gains.mean()))
    found["sample"] = sample_size_sensitivity(
        [*grown, whole],
        how.resample_seed,
        most_p_value_spread=how.sample_p_value_spread,
        most_delta_spread=how.sample_delta_spread,
    )
    return found


def _observed(gains: Matrix, seed: int, rng: np.random.Generator) -> SeedFinding:
    means = gains.mean(axis=1)
    return SeedFinding(
        seed=seed, sample_size=len(means), p_value=permutation(means, rng=rng), reward_delta=float(means.mean())
    )


def _range(how: ComparisonConfig, metric: str) -> dict[str, Any]:
    return {"low": -reach(how, metric), "high": reach(how, metric)}


def _check_ranges(episodes: Sequence[Episode], how: ComparisonConfig) -> None:
    """Ranges are promised beforehand; an episode outside them would void the proof, so it is refused and named."""
    low, high = how.reward_range
    for episode in episodes:
        where = f"episode of {episode.task} with seed {episode.seed}"
        if how.primary == "reward" and not low <= episode.reward <= high:
            remedy = "set reward_range to all that a reward can be"
            raise BadInput(f"{where}: reward = {episode.reward:g}", why=f"outside {low:g} to {high:g}", remedy=remedy)
        if episode.safety_cost is not None and episode.safety_cost > how.max_cost:
            what = f"{where}: safety_cost = {episode.safety_cost:g}"
            remedy = "set max_cost to the most that one episode can cost"
            raise BadInput(what, why=f"above {how.max_cost:g}", remedy=remedy)
