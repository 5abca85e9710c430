"""Measures how often the proof is wrong and how soon it is right, on many thousand simulated experiments.

The verdicts are those of `sequential` and `guard`, which judge real runs, read after every task. Each shape draws the
differences of paired tasks, candidate minus baseline, as [experiments, tasks]; with a lift of 0 there is nothing to
promote. A plain paired z-test that is read equally often is measured beside them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field, replace
from enum import IntEnum
from math import log
from multiprocessing import get_context
from typing import Any, ClassVar, TypeVar

import numpy as np
import scipy  # type: ignore[import-untyped]  # its parts load when they are used, which takes a second
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.prove import guard
from holdfast.prove.estimate import wilson
from holdfast.prove.sequential import GAIN_WEIGHTS, WEIGHTS, log_e

Draws = NDArray[np.float64]  # [experiments, tasks]
Rng = np.random.Generator
Draw = Callable[[Rng, tuple[int, int], float], Draws]

SPREAD = 4.0  # a + b of the Beta that tasks' difficulty is drawn from: seeds of one task agree well
SEEDS = 4


@dataclass(frozen=True, slots=True, kw_only=True)
class OutcomeShape:
    name: str
    about: str
    draw: Draw
    tasks: int  # at most; the look after the last one is the last look
    seeds: int = 1
    mean: float = 0.0  # of the differences when there is nothing to promote, and what they are tested against
    low: float = -1.0
    high: float = 1.0


def binary(rate: float, *, in_order: bool = False) -> Draw:
    """Success or failure, at a rate that differs from task to task; `in_order` the easy ones come first."""

    def draw(rng: Rng, size: tuple[int, int], lift: float) -> Draws:
        p = rng.beta(rate * SPREAD, (1.0 - rate) * SPREAD, size=size)
        if in_order:
            p = -np.sort(-p, axis=-1)
        return hit(rng, lifted(p, rate, lift)) - hit(rng, p)

    return draw


def skewed(rng: Rng, size: tuple[int, int], lift: float) -> Draws:
    """Rewards in [0, 1], most of them near 0; a task's worth times how well this try went."""
    worth = rng.beta(0.5, 1.5, size=size)
    baseline, candidate = (worth * rng.beta(2.0, 1.0, size=size) for _ in range(2))
    return lifted(candidate, 0.25 * 2.0 / 3.0, lift) - baseline


def rare(loss: float, chance: float) -> Draw:
    """Nearly always a little better, and seldom `loss` worse, so that neither is better in the mean. A negative loss
    is the other way round: a little worse, and seldom much better."""

    def draw(rng: Rng, size: tuple[int, int], lift: float) -> Draws:
        gain = loss * chance / (1.0 - chance)
        return np.where(rng.random(size) < chance, -loss, gain) + lift

    return draw


def clustered(rng: Rng, size: tuple[int, int], lift: float) -> Draws:
    """Several seeds a task. Tasks differ far more than versions do, and each version has tasks of its own that it is
    better at: seeds counted as pairs of their own would be far too sure."""
    p = 1.0 / (1.0 + np.exp(-rng.normal(scale=2.0, size=size)))
    own = 0.5 * np.minimum(p, 1.0 - p) * rng.choice((-1.0, 1.0), size=size)
    candidate = lifted(p + own, 0.5, lift)
    return (rng.binomial(SEEDS, candidate) - rng.binomial(SEEDS, p)) / SEEDS


def safety(margin: float, rate: float = 0.05) -> Draw:
    """Costs of 0 or 1; the candidate's are more by exactly the margin, less the lift."""

    def draw(rng: Rng, size: tuple[int, int], lift: float) -> Draws:
        return (rng.random(size) < rate).astype(np.float64) - (rng.random(size) < rate + margin - lift)

    return draw


def lifted(values: Draws, mean: float, lift: float) -> Draws:
    """Values in [0, 1] with their mean raised by `lift`, none of them above 1."""
    return values + lift * (1.0 - values) / (1.0 - mean) if lift else values


def hit(rng: Rng, p: Draws) -> Draws:
    return (rng.random(p.shape) < p).astype(np.float64)


def _binary(rate: float, tasks: int = 400) -> OutcomeShape:
    about = f"success or failure, {rate:.0%} succeed"
    return OutcomeShape(name=f"binary {rate:g}", about=about, draw=binary(rate), tasks=tasks)


MARGIN = 0.05
SKEWED = OutcomeShape(name="skewed", about="rewards in [0, 1], most near 0", draw=skewed, tasks=400)
_STRONGLY, _MORE = f"{SEEDS} seeds a task, tasks differ strongly", f"cost more by the margin, {MARGIN}"
CLUSTERED = OutcomeShape(name="clustered", about=_STRONGLY, draw=clustered, tasks=400, seeds=SEEDS)
SAFETY = OutcomeShape(name="safety", about=_MORE, draw=safety(MARGIN), tasks=400, mean=-MARGIN)

NULLS: tuple[OutcomeShape, ...] = (
    *(_binary(rate) for rate in (0.05, 0.2, 0.5, 0.8, 0.95)),
    replace(_binary(0.5, 2000), name="long"),
    OutcomeShape(name="easy first", about="binary 0.5, easy tasks first", draw=binary(0.5, in_order=True), tasks=400),
    SKEWED,
    OutcomeShape(name="rare losses", about="+0.02 mostly, −0.98 in 2 of 100", draw=rare(0.98, 0.02), tasks=400),
    OutcomeShape(name="rare wins", about="−0.02 mostly, +0.98 in 2 of 100", draw=rare(-0.98, 0.02), tasks=400),
    CLUSTERED,
    SAFETY,
    *(replace(_binary(0.5, tasks), name=f"tiny {tasks}") for tasks in (10, 20, 30)),
    replace(SKEWED, name="tiny skewed", tasks=20),
    replace(CLUSTERED, name="tiny clustered", tasks=20),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedEffect:
    """A shape in which the candidate is better, and by how much in the mean."""

    shape: OutcomeShape
    lift: float


EFFECTS: tuple[SimulatedEffect, ...] = (
    SimulatedEffect(shape=_binary(0.5, 1000), lift=0.10),
    SimulatedEffect(shape=_binary(0.5, 200), lift=0.20),
    SimulatedEffect(shape=_binary(0.5, 30), lift=0.40),
    SimulatedEffect(shape=_binary(0.2, 800), lift=0.10),
    SimulatedEffect(shape=_binary(0.8, 500), lift=0.10),
    SimulatedEffect(shape=replace(SKEWED, tasks=150), lift=0.05),
    SimulatedEffect(shape=replace(CLUSTERED, tasks=300), lift=0.08),
    SimulatedEffect(shape=replace(SAFETY, about="cost as before, proved within the margin", tasks=800), lift=MARGIN),
)


class Canary(IntEnum):
    """How far a canary is off, in limits."""

    AS_LIVE = 0
    AT_LIMIT = 1
    TWICE = 2
    BROKEN = 5


LIVE_PER_CANARY = 3  # a share of 25 %


def canary(metric: str, limit: float, how: Canary, rng: Rng, size: tuple[int, int]) -> tuple[Draws, Draws]:
    """Outcomes of a canary, and means of the live ones beside each, all in [0, 1], as [experiments, outcomes]."""
    live = (*size, LIVE_PER_CANARY)
    off = how * limit
    if metric == "success":
        return hit(rng, np.full(size, 0.8 * (1.0 - off))), hit(rng, np.full(live, 0.8)).mean(axis=-1)
    if metric == "errors":
        return hit(rng, np.full(size, off or limit / 5.0)), np.zeros(size)
    if metric == "safety":
        return hit(rng, np.full(size, 0.02 + off)), hit(rng, np.full(live, 0.02)).mean(axis=-1)
    if metric == "reward":
        return (1.0 - off) * rng.beta(4.0, 2.0, size), rng.beta(4.0, 2.0, live).mean(axis=-1)
    if metric == "latency":  # whether it is beyond live's 95th percentile, for the canary with the limit in it
        ours, theirs = (rng.lognormal(sigma=0.6, size=one) for one in (size, live))
        p95 = float(np.exp(0.6 * scipy.stats.norm.ppf(0.95)))
        return ((1.0 + off) * ours > (1.0 + limit) * p95).astype(np.float64), (theirs > p95).mean(axis=-1)
    raise BadInput(f"metric {metric}", why="is none of the guard's")


LEVEL = 0.99  # of the intervals of our own rates: some 20 of them, and none should fail by chance alone
BATCH = 200_000  # differences at a time: what the kernel makes of them fits in a cache of some MB
Z_FROM = 10  # the first look of the z-test; before that its standard error means nothing, and it would do worse still
GUARD_SHARE, CAUGHT_SHARE = 5, 20  # one in so many experiments for the guard, which bets from several starts at once
OUTCOMES = 400  # of a canary, at most
WANTED_PAIRS = 4_000  # of a real null experiment: fewer say little about a rate of 0.05
LEAST_TASKS = 20  # of a repetition

Flags = NDArray[np.bool_]  # [experiments, looks]
Looks = NDArray[np.int64]  # [experiments], counted from 1; one past the last where it never came to that


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRate:
    """What came of experiments in which nothing was to be promoted."""

    shape: str
    about: str
    tasks: int
    seeds: int
    experiments: int
    promoted: int
    rate: float
    interval: Interval  # Wilson's, of the rate
    rejected: int  # by the mirrored test, which is as sure
    z_rate: float  # of a z-test looked at in the same way
    z_interval: Interval
    is_within: bool  # the rate is not above α beyond simulation error


@dataclass(frozen=True, slots=True, kw_only=True)
class Power:
    """What came of experiments in which the candidate was better by `effect`."""

    shape: str
    about: str
    effect: float
    tasks: int  # at most
    seeds: int
    experiments: int
    power: float
    interval: Interval
    mean_tasks: float  # until a verdict, or all
    mean_episodes: float  # the same, of both versions, with all seeds
    fixed_tasks: int  # that a z-test with one look needs for this power
    saved_episodes: float  # on average, against that test
    saved_share: float


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardRate:
    """One metric of a canary: with what is just allowed, with nothing wrong, and with twice what is allowed."""

    metric: str
    limit: float
    experiments: int  # exactly at the limit; of the others there are fewer
    outcomes: int  # of the canary, at most
    false_breach: float  # exactly at the limit; at most α over the number of metrics
    false_breach_interval: Interval
    false_clear: float  # exactly at the limit; at most α
    false_clear_interval: Interval
    cleared: float  # as good as live
    outcomes_until_clear: float
    caught: float  # twice as far off as allowed
    outcomes_until_caught: float
    caught_broken: float  # five times as far off
    outcomes_until_caught_broken: float
    is_within: bool  # neither false rate is above its α beyond simulation error


@dataclass(frozen=True, slots=True, kw_only=True)
class ErrorRates:
    SCHEMA: ClassVar[int] = 1

    alpha: float
    seed: int
    experiments: int  # of each row
    nulls: tuple[ErrorRate, ...]
    powers: tuple[Power, ...]
    guards: tuple[GuardRate, ...]

    @property
    def is_within(self) -> bool:
        return all(row.is_within for row in self.nulls) and all(row.is_within for row in self.guards)

    @property
    def false_promotion_rate(self) -> float:
        """The highest of all shapes."""
        return max(row.rate for row in self.nulls)


Row = ErrorRate | Power | GuardRate
T = TypeVar("T")
STEPS = len(NULLS) + len(EFFECTS) + len(guard.METRICS)


def rate_row(place: int, *, experiments: int, alpha: float, seed: int) -> Row:
    """First what must not happen, then what should, then the guard. Its chance hangs on its place alone, so that rows
    may be made in any order, or side by side."""
    if experiments < 100:
        why = "a rate near α would rest on a handful"
        raise BadInput(f"experiments = {experiments}", why=why, remedy="at least 100")
    if not 0.0 < alpha < 1.0:
        raise BadInput(f"alpha = {alpha}", why="must be above 0 and below 1")
    asked: Any = {"experiments": experiments, "alpha": alpha, "rng": np.random.default_rng(seed).spawn(STEPS)[place]}
    if place < len(NULLS):
        return error_rate(NULLS[place], **asked)
    if place < len(NULLS) + len(EFFECTS):
        return power(EFFECTS[place - len(NULLS)], **asked)
    return guard_rate(guard.METRICS[place - len(NULLS) - len(EFFECTS)], **asked)


def in_processes(jobs: Sequence[Callable[[], T]], workers: int) -> Iterator[T]:
    """What each job makes, in their order."""
    if workers == 1:
        yield from (job() for job in jobs)
        return
    with ProcessPoolExecutor(workers, mp_context=get_context("spawn")) as pool:
        yield from (future.result() for future in [pool.submit(job) for job in jobs])


def gathered(rows: Sequence[Row], *, experiments: int, alpha: float, seed: int) -> ErrorRates:
    return ErrorRates(
        alpha=alpha,
        seed=seed,
        experiments=experiments,
        nulls=tuple(row for row in rows if isinstance(row, ErrorRate)),
        powers=tuple(row for row in rows if isinstance(row, Power)),
        guards=tuple(row for row in rows if isinstance(row, GuardRate)),
    )


def error_rate(shape: OutcomeShape, *, experiments: int, alpha: float, rng: np.random.Generator) -> ErrorRate:
    found = _count(shape, 0.0, experiments, alpha, rng)
    interval = wilson(found.promoted, experiments, level=LEVEL)
    return ErrorRate(
        **_about(shape, experiments),
        promoted=found.promoted,
        rate=found.promoted / experiments,
        interval=interval,
        rejected=found.rejected,
        z_rate=found.z_promoted / experiments,
        z_interval=wilson(found.z_promoted, experiments, level=LEVEL),
        is_within=interval.low <= alpha,
    )


def _about(shape: OutcomeShape, experiments: int) -> dict[str, Any]:
    about = {"shape": shape.name, "about": shape.about, "tasks": shape.tasks, "seeds": shape.seeds}
    return about | {"experiments": experiments}


def power(effect: SimulatedEffect, *, experiments: int, alpha: float, rng: np.random.Generator) -> Power:
    shape = effect.shape
    found = _count(shape, effect.lift, experiments, alpha, rng)
    # Smallest n with which one look at the end finds as many: what a test with a fixed n would have been given.
    enough = np.flatnonzero(found.z_at >= found.promoted)
    fixed = int(enough[0]) + 1 if enough.size else shape.tasks
    a_task = 2 * shape.seeds
    mean_tasks = found.looks / experiments
    return Power(
        **_about(shape, experiments),
        effect=effect.lift,
        power=found.promoted / experiments,
        interval=wilson(found.promoted, experiments, level=LEVEL),
        mean_tasks=mean_tasks,
        mean_episodes=mean_tasks * a_task,
        fixed_tasks=fixed,
        saved_episodes=(fixed - mean_tasks) * a_task,
        saved_share=1.0 - mean_tasks / fixed,
    )


def guard_rate(metric: str, *, experiments: int, alpha: float, rng: np.random.Generator) -> GuardRate:
    limit, each = getattr(guard.GuardLimits(), metric), alpha / len(guard.METRICS)
    low, high = guard.bounds(metric, limit)
    most, fewer = max(100, experiments // GUARD_SHARE), max(100, experiments // CAUGHT_SHARE)

    def looks(how: Canary, log_e: Callable[[Draws, float, float], Draws], alpha: float) -> Looks:
        size = (most if how is Canary.AT_LIMIT else fewer, OUTCOMES)
        d = guard.difference(metric, limit, *canary(metric, limit, how, rng, size))
        return first(log_e(d, low, high) >= log(1.0 / alpha))

    false_breach = looks(Canary.AT_LIMIT, guard.alarm, each)
    false_clear = looks(Canary.AT_LIMIT, guard.within, alpha)
    clear = looks(Canary.AS_LIVE, guard.within, alpha)
    caught, broken = (looks(how, guard.alarm, each) for how in (Canary.TWICE, Canary.BROKEN))
    of_breach, of_clear = (
        wilson(int((found <= OUTCOMES).sum()), most, level=LEVEL) for found in (false_breach, false_clear)
    )
    return GuardRate(
        metric=metric,
        limit=limit,
        experiments=most,
        outcomes=OUTCOMES,
        false_breach=_share(false_breach),
        false_breach_interval=of_breach,
        false_clear=_share(false_clear),
        false_clear_interval=of_clear,
        cleared=_share(clear),
        outcomes_until_clear=_mean_look(clear),
        caught=_share(caught),
        outcomes_until_caught=_mean_look(caught),
        caught_broken=_share(broken),
        outcomes_until_caught_broken=_mean_look(broken),
        is_within=of_breach.low <= each and of_clear.low <= alpha,
    )


@dataclass(slots=True)
class _Counts:
    promoted: int = 0
    rejected: int = 0
    z_promoted: int = 0
    looks: int = 0  # until a verdict, or all; of all experiments
    z_at: NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))  # found by one look, at each task


def _count(shape: OutcomeShape, lift: float, experiments: int, alpha: float, rng: np.random.Generator) -> _Counts:
    counts, done = _Counts(z_at=np.zeros(shape.tasks, np.int64)), 0
    critical = float(scipy.stats.norm.isf(alpha))
    while done < experiments:
        size = min(max(1, BATCH // shape.tasks), experiments - done)
        d = shape.draw(rng, (size, shape.tasks), lift)
        promote, reject = verdicts(d, low=shape.low, high=shape.high, mean=shape.mean, alpha=alpha)
        found = z_test(d, mean=shape.mean) >= critical
        counts.promoted += int((promote < reject).sum())
        counts.rejected += int((reject < promote).sum())
        counts.looks += int(np.minimum(np.minimum(promote, reject), shape.tasks).sum())
        counts.z_at += found.sum(axis=0)
        counts.z_promoted += int(found[:, Z_FROM - 1 :].any(axis=1).sum())
        done += size
    return counts


def verdicts(d: Draws, *, low: float, high: float, mean: float, alpha: float) -> tuple[Looks, Looks]:
    """At which look each experiment of [experiments, tasks] was promoted, and rejected; the earlier one counts."""
    needed, weights = log(1.0 / alpha), WEIGHTS if mean < 0.0 else GAIN_WEIGHTS  # of a margin, or of a gain
    better = log_e(d, low=low, high=high, mean=mean, weights=weights)
    worse = log_e(-d, low=-high, high=-low, mean=-mean, weights=weights)
    return first(better >= needed), first(worse >= needed)


def first(flags: Flags) -> Looks:
    """The first true look of each experiment, counted from 1; one past the last where there is none."""
    found: Looks = np.where(flags.any(axis=-1), flags.argmax(axis=-1), flags.shape[-1]) + 1
    return found


def z_test(d: Draws, *, mean: float = 0.0) -> Draws:
    """zₙ = Σ(dᵢ − mean) / √(n s²) after every task; 0 while all differences are the same."""
    x, n = d - mean, np.arange(1, d.shape[-1] + 1)
    total, squares = x.cumsum(axis=-1), (x * x).cumsum(axis=-1)
    s2 = (squares - total * total / n) / np.maximum(n - 1, 1)
    is_spread = s2 > 1e-12
    z: Draws = np.where(is_spread, total / np.sqrt(np.where(is_spread, s2, 1.0) * n), 0.0)
    return z


def _share(looks: Looks) -> float:
    return float((looks <= OUTCOMES).mean())


def _mean_look(looks: Looks) -> float:
    return float(np.minimum(looks, OUTCOMES).mean())


@dataclass(frozen=True, slots=True, kw_only=True)
class Null:
    """Promotions among repetitions of a real experiment in which both versions were the same."""

    SCHEMA: ClassVar[int] = 1

    pool: int  # tasks to draw from
    repetitions: int
    tasks: int  # of each repetition, and looks at it
    is_disjoint: bool  # no task is in two repetitions; otherwise they are not independent, and the interval too narrow
    alpha: float
    promoted: int
    rejected: int
    rate: float
    interval: Interval  # Wilson's, of the rate
    most: int  # promotions that chance explains, were α the rate: 99 times of 100 there are so many or fewer
    is_within: bool


def null(
    d: Draws,
    *,
    repetitions: int,
    alpha: float,
    low: float,
    high: float,
    mean: float = 0.0,
    tasks: int | None = None,
    rng: np.random.Generator,
) -> Null:
    """Draws repetitions from a pool of tasks, reads each after every task, and counts the promotions. Without `tasks`
    the pool is divided, so the repetitions are independent."""
    if repetitions < 1:
        raise BadInput(f"repetitions = {repetitions}", why="must be at least 1")
    if d.size < LEAST_TASKS:
        remedy = f"at least {LEAST_TASKS} are needed, and {LEAST_TASKS * repetitions:,} for {repetitions} repetitions"
        raise BadInput(f"a pool of {d.size} tasks", why="is too small to draw from", remedy=remedy)
    dealt, is_disjoint = deal(d, repetitions, rng, tasks)
    promote, reject = verdicts(dealt, low=low, high=high, mean=mean, alpha=alpha)
    promoted = int((promote < reject).sum())
    most = int(scipy.stats.binom.ppf(LEVEL, repetitions, alpha))
    return Null(
        pool=d.size,
        repetitions=repetitions,
        tasks=dealt.shape[1],
        is_disjoint=is_disjoint,
        alpha=alpha,
        promoted=promoted,
        rejected=int((reject < promote).sum()),
        rate=promoted / repetitions,
        interval=wilson(promoted, repetitions, level=LEVEL),
        most=most,
        is_within=promoted <= most,
    )


def deal(d: Draws, repetitions: int, rng: np.random.Generator, tasks: int | None = None) -> tuple[Draws, bool]:
    """[repetitions, tasks], and whether no task is in two of them; in one repetition none is twice."""
    tasks = max(LEAST_TASKS, d.size // repetitions) if tasks is None else tasks
    if tasks > d.size:
        raise BadInput(f"{tasks} tasks a repetition", why=f"there are {d.size}", remedy="draw fewer, or measure more")
    if tasks * repetitions <= d.size:
        return rng.permutation(d)[: tasks * repetitions].reshape(repetitions, tasks), True
    return np.stack([rng.choice(d, tasks, replace=False) for _ in range(repetitions)]), False
