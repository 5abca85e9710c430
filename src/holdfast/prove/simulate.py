"""Outcomes as agents give them, drawn for many experiments at once: what error rates are measured on.

Every shape gives the differences of paired tasks, candidate minus baseline, as [experiments, tasks] in order of
arrival, seeds already averaged. With a lift of 0 the mean of each is exactly the shape's `mean`: there is nothing to
promote. Counting what a test makes of them is `calibrate`'s business.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, replace
from enum import IntEnum

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput

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
CLUSTERED = OutcomeShape(
    name="clustered", about=f"{SEEDS} seeds a task, tasks differ strongly", draw=clustered, tasks=400, seeds=SEEDS
)
SAFETY = OutcomeShape(
    name="safety", about=f"cost more by the margin, {MARGIN}", draw=safety(MARGIN), tasks=400, mean=-MARGIN
)

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
    if metric == "latency":  # shares of a cap of ten medians
        ours, theirs = (0.1 * rng.lognormal(sigma=0.6, size=one) for one in (size, live))
        return np.minimum((1.0 + off) * ours, 1.0), np.minimum(theirs, 1.0).mean(axis=-1)
    raise BadInput(f"metric {metric}", why="is none of the guard's")
