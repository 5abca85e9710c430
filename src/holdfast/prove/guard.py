"""Whether a canary is worse than what is live, told from the requests that both answer, and valid at every look.

What follows from a breach, and which share comes next, is `promote.release`'s business; the betting is `sequential`'s.

Requests are not paired, so neighbours in time are: a canary's outcome with the mean of the live outcomes since the
canary's last one, or a live outcome with the mean of the canary's since the last live one. Where each block ends hangs
on who was asked and never on what came of it, so the block's difference d has the mean that is in question. Every
metric becomes one d that is above 0 in the mean exactly when the canary is within its limit.

An outcome counts once it is told, in order of `at`; where bad news takes longer than good, the answer is about the news
so far. A request that failed counts under errors; whoever records it says whether it was a failure too. Requests of one
unit count one by one: when few units ask for most of it, the answer is about those units.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import ceil, exp, isfinite, log
from operator import attrgetter
from typing import Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Reason
from holdfast.contracts.release import ServedRequest
from holdfast.prove.sequential import log_e

METRICS = ("success", "latency", "errors", "reward", "safety")
REPORTED = dict(zip(METRICS, map(attrgetter, ("success", "latency_s", "error", "reward", "safety_cost")), strict=True))
FIRST_RESTART, RESTART_FACTOR = 32, 1.5  # blocks after which the alarm begins anew, and how much later the next time
SMALLEST_CAP_S = 1e-6  # of latencies that a coarse clock calls 0
LARGEST_LOG = 690.0  # e to it is still a number

Stream = NDArray[np.float64]  # [..., blocks]
State = Literal["breach", "clear", "open"]
Which = NDArray[np.bool_]  # of each outcome, whether it is the canary's


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """How much worse a canary may be. A metric without a limit is not watched; a watched one without data stays
    open."""

    success: float | None = 0.10  # of live's mean, less
    latency: float | None = 0.50  # of live's mean, more
    errors: float | None = 0.05  # the canary's own rate, whatever live's is
    reward: float | None = 0.15  # of live's mean above the range's low end, less
    safety: float | None = 0.05  # of cost, more than live's mean
    alpha: float = 0.05  # of a breach that is none, over all metrics and looks; and of a clear that is none
    reward_range: tuple[float, float] = (0.0, 1.0)  # what lies outside is cut to it
    most_cost: float = 1.0  # of one request's safety; what lies above is cut to it
    cap: float = 10.0  # latencies are cut at so many times live's first median
    least: int = 20  # live latencies that give that median, and canary outcomes before a metric is clear

    def __post_init__(self) -> None:
        for name, below in (("success", 1.0), ("errors", 1.0), ("reward", 1.0), ("safety", self.most_cost)):
            _check(name, getattr(self, name), below)
        _check("latency", self.latency, self.cap - 1.0)
        _check("alpha", self.alpha, 1.0)
        low, high = self.reward_range
        if not (isfinite(low) and isfinite(high) and low < high):
            raise BadInput(f"limits: reward_range = {self.reward_range}", why="must be two finite numbers, in order")
        if self.least < 1:
            raise BadInput(f"limits: least = {self.least}", why="must be at least 1")
        if not self.watched:
            raise BadInput("limits", why="nothing is watched", remedy="give a limit to one metric or more")

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(name for name in METRICS if getattr(self, name) is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardReading:
    """One metric so far; the means are of the outcomes as reported, before they were cut."""

    metric: str
    state: State
    live: float | None  # mean
    canary: float | None  # mean
    n: int  # canary outcomes that the test has seen
    e: float  # largest so far, against "within the limit"
    e_within: float  # largest so far, against "beyond the limit"
    capped: int = 0  # outcomes that were cut to their range
    needs: int | None = None  # about so many more canary outcomes until it is clear; None when it is not going there


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """What the guard sees. Clear means every watched metric is proved within its limit, and none beyond."""

    readings: Mapping[str, GuardReading] = field(default_factory=dict)  # by metric
    breaches: tuple[Reason, ...] = ()
    is_clear: bool = False
    needs: int | None = None  # canary outcomes until all are clear, at the pace so far; None when that is not foreseen


def watch(live: Sequence[ServedRequest], canary: Sequence[ServedRequest], limits: GuardLimits) -> GuardStatus:
    """Reads every watched metric of what was served since the canary began; valid at every call. A breach is proved at
    α over the number of metrics (Bonferroni). Clear needs all metrics, so each is proved at α."""
    served = [*live, *canary]
    order = np.argsort([one.at for one in served], kind="stable")  # of those at one time, live's come first
    readings = {}
    for metric in limits.watched:
        values = np.array(list(map(REPORTED[metric], served)), np.float64)[order]  # what is not told is not a number
        told = ~np.isnan(values)
        readings[metric] = _read(metric, values[told], (order >= len(live))[told], limits)
    breaches = tuple(_reason(one, limits) for one in readings.values() if one.state == "breach")
    is_clear = all(one.state == "clear" for one in readings.values())
    open_needs = [one.needs for one in readings.values() if one.state == "open"]
    needs = None
    if not breaches and open_needs and None not in open_needs:
        needs = max(one for one in open_needs if one is not None)
    return GuardStatus(readings=readings, breaches=breaches, is_clear=is_clear, needs=needs)


def difference(metric: str, limit: float, canary: Stream, live: Stream) -> Stream:
    """d of outcomes in [0, 1]: its mean is below 0 exactly when the limit is broken."""
    per_canary, per_live, more = _terms(metric, limit)
    return per_canary * canary + per_live * live + more


def bounds(metric: str, limit: float) -> tuple[float, float]:
    """The least and the most that d can be."""
    per_canary, per_live, more = _terms(metric, limit)
    return (more + min(per_canary, 0.0) + min(per_live, 0.0), more + max(per_canary, 0.0) + max(per_live, 0.0))


def _terms(metric: str, limit: float) -> tuple[float, float, float]:
    return {
        "success": (1.0, limit - 1.0, 0.0),
        "reward": (1.0, limit - 1.0, 0.0),
        "latency": (-1.0, 1.0 + limit, 0.0),
        "safety": (-1.0, 1.0, limit),
        "errors": (-1.0, 0.0, limit),
    }[metric]


def alarm(d: Stream, low: float, high: float) -> Stream:
    """Running log e against "E[d] >= 0 at all times", of [..., blocks].

    One bet begins with the stream, others at later and later times with nothing lost yet, so that a canary which turns
    bad after a good week is caught too:  Eₜ = Σₖ wₖ Eₜ⁽ᵏ⁾ with wₖ = 1 / (k + 1)(k + 2), which add up to 1, and
    E⁽ᵏ⁾ = 1 before its start. A mixture of e-processes is one.
    """
    starts = [0]
    while (after := max(FIRST_RESTART, ceil(starts[-1] * RESTART_FACTOR))) < d.shape[-1]:
        starts.append(after)
    total = np.full(d.shape, log(1.0 / (len(starts) + 1)))  # those that have not begun: what is left of the weights
    for k, start in enumerate(starts):
        part = np.zeros(d.shape)
        part[..., start:] = log_e(-d[..., start:], low=-high, high=-low)
        total = np.logaddexp(total, part - log((k + 1) * (k + 2)))
    return total


def within(d: Stream, low: float, high: float) -> Stream:
    """Running log e against "E[d] <= 0", of [..., blocks]."""
    return log_e(d, low=low, high=high)


def blocks(outcomes: Sequence[tuple[float, bool]]) -> tuple[Stream, Stream, int]:
    """As `paired`, of outcomes that come one by one, each with whether it is the canary's."""
    values, which = zip(*outcomes, strict=True) if outcomes else ((), ())
    return paired(np.array(values, np.float64), np.array(which, np.bool_))


def paired(values: Stream, is_canary: Which, *, alone: bool = False) -> tuple[Stream, Stream, int]:
    """Means of the canary and of live in each block, and how many canary outcomes are in them. A block ends as soon as
    both are in it: some of the one, then the first of the other. With `alone` each outcome of the canary is a block,
    and live's mean is 0."""
    if alone:
        ours = values[is_canary]
        return ours, np.zeros(ours.size), ours.size
    starts, ends, start = [], [], 0
    for end in (np.flatnonzero(is_canary[1:] != is_canary[:-1]) + 1).tolist():
        if end > start:  # else the run before had a single outcome, which ended the last block
            starts.append(start)
            ends.append(end)
            start = end + 1
    total = np.concatenate([[0.0], values.cumsum()])
    many = (total[ends] - total[starts]) / (np.array(ends) - starts)
    one, ended_by_canary = values[ends], is_canary[ends]
    seen = int(np.where(ended_by_canary, 1, np.array(ends) - starts).sum())
    return np.where(ended_by_canary, one, many), np.where(ended_by_canary, many, one), seen


def _read(metric: str, values: Stream, is_canary: Which, limits: GuardLimits) -> GuardReading:
    scaled, counts, limit, capped = _scaled(metric, values, is_canary, limits)
    ours, theirs, n = paired(scaled, counts, alone=metric == "errors")
    low, high = bounds(metric, limit)
    d = difference(metric, limit, ours, theirs)
    against, for_it = (alarm(d, low, high), within(d, low, high)) if d.size else (np.zeros(1), np.zeros(1))
    state: State = "open"
    if against.max() >= log(len(limits.watched) / limits.alpha):
        state = "breach"
    elif for_it.max() >= log(1.0 / limits.alpha) and n >= limits.least:
        state = "clear"
    return GuardReading(
        metric=metric,
        state=state,
        live=_mean(values[~is_canary]),
        canary=_mean(values[is_canary]),
        n=n,
        e=_e(against),
        e_within=_e(for_it),
        capped=capped,
        needs=_needs(float(for_it[-1]), n, limits) if state == "open" else None,
    )


def _scaled(metric: str, values: Stream, is_canary: Which, limits: GuardLimits) -> tuple[Stream, Which, float, int]:
    """The outcomes that count, in [0, 1], whose they are, the limit on the same scale, and how many were cut. The live
    latencies that set the cap do not count themselves."""
    low, high, limit = 0.0, 1.0, getattr(limits, metric)
    if metric == "reward":
        low, high = limits.reward_range
    elif metric == "safety":
        high, limit = limits.most_cost, limit / limits.most_cost
    elif metric == "latency":
        first = np.flatnonzero(~is_canary)[: limits.least]
        if first.size < limits.least:
            return values[:0], is_canary[:0], limit, 0
        high = max(limits.cap * float(np.median(values[first])), SMALLEST_CAP_S)
        values, is_canary = values[first[-1] + 1 :], is_canary[first[-1] + 1 :]
    capped = int(((values < low) | (values > high)).sum())
    return np.clip((values - low) / (high - low), 0.0, 1.0), is_canary, limit, capped


def _e(log_e: Stream) -> float:
    """The largest so far, from 1 at the start."""
    return exp(min(max(float(log_e.max()), 0.0), LARGEST_LOG))


def _needs(log_within: float, n: int, limits: GuardLimits) -> int | None:
    """At the growth so far; None while the evidence does not grow."""
    if n == 0 or log_within <= 0.0:
        return None
    left = log(1.0 / limits.alpha) - log_within
    return max(1, ceil(left * n / log_within), limits.least - n)


def _reason(reading: GuardReading, limits: GuardLimits) -> Reason:
    limit = getattr(limits, reading.metric)
    beyond = {
        "success": f"more than {limit:.0%} below live's",
        "latency": f"more than {limit:.0%} above live's",
        "errors": f"above {limit:g}",
        "reward": f"more than {limit:.0%} below live's",
        "safety": f"more than {limit:g} above live's",
    }[reading.metric]
    live = "" if reading.live is None else f", live's {reading.live:.4g}"
    text = (
        f"{reading.metric} is proved {beyond}: the canary's mean is {reading.canary:.4g}{live}, "
        f"after {reading.n} canary outcomes (e = {reading.e:.3g}, needed {len(limits.watched) / limits.alpha:.3g})"
    )
    return Reason(code=f"canary_breach_{reading.metric}", text=text)


def _mean(values: Stream) -> float | None:
    return float(values.mean()) if values.size else None


def _check(name: str, value: float | None, below: float) -> None:
    if value is not None and not 0.0 < value < below:
        raise BadInput(f"limits: {name} = {value}", why=f"must be above 0 and below {below:g}")
