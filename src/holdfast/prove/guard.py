"""Whether a canary is worse than what is live, told from the requests that both answer, and valid at every look.

What follows from a breach, and which share comes next, is `promote.release`'s business; the betting is `sequential`'s.

**Order.** Requests count in the order in which they *began*, so that an answer which takes long, or never comes, is in
its place. What one caller asked within `caller_window_s` is one outcome, the mean: its requests are not independent.
A caller who returns after the window is one more outcome for a breach, so that decay is seen, and none for a clear: its
outcomes are like its earlier ones, and chance may have given the canary the easy callers. For a breach errors count one
by one, and against a rate of their own.

**Blocks.** Outcomes are not paired, so neighbours in time are: a canary's outcome with the mean of the live ones since
the canary's last, or a live outcome with the mean of the canary's since the last live one. Where a block ends hangs on
who was asked and never on what came of it, so the block's difference d has the mean that is in question. Every metric
becomes one d that is above 0 in the mean exactly when the canary is within its limit.

**Latency** is compared at its quantiles. For a threshold q that live's *earlier* requests set, d is whether live's
took longer than q, less whether the canary's took longer than (1 + limit) q: not below 0 in the mean while the canary's
latencies over (1 + limit) are stochastically no larger than live's, whatever q is. No tail is cut, nothing is assumed.

**Silence.** What nobody has told counts against the canary as far as it is silent more often than live: its surplus of
untold requests are failures, live's surplus are successes. With T the share of an outcome's requests that was told, y
the mean of these (0 to 1), so that T y is the sum of what was told over all the requests, and "within" meaning
ȳ_canary >= a ȳ_live − b:
    d_failed = (T y)_canary − a (T y)_live + b T_live          what the canary left untold beyond live has failed
    d_passed = (1 − a + b) T_canary − (T (1 − y))_canary + a (T (1 − y))_live      what live left untold has succeeded
Clear needs both to be proved; where all is told they are the same. Hiding failures, or telling them late, therefore
gains nothing. As many as the other also leaves untold are taken to be alike in both: that alone is assumed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import ceil, exp, inf, isfinite, log
from operator import attrgetter
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Reason
from holdfast.contracts.release import ServedRequest
from holdfast.prove.sequential import log_e

METRICS = ("success", "latency", "errors", "reward", "safety")
FEEDBACK = ("success", "reward", "safety")  # what somebody has to tell; the service measures the others itself
REPORTED = dict(zip(METRICS, map(attrgetter, ("success", "latency_s", "error", "reward", "safety_cost")), strict=True))
FIRST_RESTART, RESTART_FACTOR = 32, 1.5  # blocks after which the alarm begins anew, and how much later the next time
NEXT_QUANTILE = 1.5  # live's quantiles are taken anew when it has answered so many times as many requests
SLACK = 0.01  # of the canary's answers may lie beyond a quantile's limit before it is not clear: p99 rests on so few
LARGEST_LOG = 690.0  # e to it is still a number

Stream = NDArray[np.float64]  # [..., blocks]
State = Literal["breach", "clear", "open"]
Which = NDArray[np.bool_]  # of each outcome, whether it is the canary's
Places = NDArray[np.int64]
Spans = tuple[Places, Places]  # first and last outcome of each block


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardLimits:
    """How much worse a canary may be. A metric without a limit is not watched; a watched one without data stays
    open."""

    success: float | None = 0.10  # of live's mean, less
    latency: float | None = 0.50  # of live's quantiles, more
    errors: float | None = 0.05  # the canary's own rate, whatever live's is
    reward: float | None = 0.15  # of live's mean above the range's low end, less
    safety: float | None = 0.05  # of cost, more than live's mean
    alpha: float = 0.05  # of a breach that is none, over all metrics and looks of a step; and of a clear that is none
    reward_range: tuple[float, float] = (0.0, 1.0)  # what lies outside is cut to it
    most_cost: float = 1.0  # of one request's safety; what lies above is cut to it
    quantiles: tuple[float, ...] = (0.5, 0.95, 0.99)  # of the latency
    least: int = 20  # live latencies before the first quantile, and canary outcomes before a metric is clear
    mature_after: float = 30.0  # seconds after a request began that what is told of it, or not told, counts
    caller_window_s: float = 3600.0  # what one caller asked within it is one outcome; inf: one in all

    def __post_init__(self) -> None:
        for name, below in (("success", 1.0), ("errors", 1.0), ("reward", 1.0), ("safety", self.most_cost)):
            _check(name, getattr(self, name), below)
        _check("latency", self.latency, inf)
        _check("alpha", self.alpha, 1.0)
        for quantile in self.quantiles:
            _check("quantiles", quantile, 1.0)
        low, high = self.reward_range
        if not (isfinite(low) and isfinite(high) and low < high):
            raise BadInput(f"limits: reward_range = {self.reward_range}", why="must be two finite numbers, in order")
        if self.least < 1:
            raise BadInput(f"limits: least = {self.least}", why="must be at least 1")
        if not (self.mature_after >= 0.0 and self.caller_window_s > 0.0):
            raise BadInput("limits: mature_after, caller_window_s", why="must be seconds: from 0, and above 0")
        if not self.watched:
            raise BadInput("limits", why="nothing is watched", remedy="give a limit to one metric or more")
        if self.latency is not None and not self.quantiles:
            raise BadInput("limits: quantiles", why="the latency is compared at none", remedy="give 0.5, 0.95, 0.99")

    @property
    def watched(self) -> tuple[str, ...]:
        return tuple(name for name in METRICS if getattr(self, name) is not None)


def limits_from(record: Mapping[str, Any]) -> GuardLimits:
    """As a comparison has kept them when it began; what it does not name is as usual."""
    values: dict[str, Any] = {
        name: tuple(value) if isinstance(value, list) else value for name, value in record.items()
    }
    return GuardLimits(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class QuantileReading:
    """The latency at one quantile."""

    quantile: float
    live: float  # seconds; of all its requests
    canary: float
    live_beyond: float  # share of live's that took longer than live's quantile of before
    canary_beyond: float  # share of the canary's that took longer than (1 + limit) times that
    e: float
    e_within: float


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
    live_told: float | None = None  # share of live's outcomes that count and were told; None: the service measures it
    canary_told: float | None = None
    quantiles: tuple[QuantileReading, ...] = ()  # of the latency


@dataclass(frozen=True, slots=True, kw_only=True)
class GuardStatus:
    """What the guard sees. Clear means every watched metric is proved within its limit, and none beyond."""

    readings: Mapping[str, GuardReading] = field(default_factory=dict)  # by metric
    breaches: tuple[Reason, ...] = ()
    is_clear: bool = False
    needs: int | None = None  # canary outcomes until all are clear, at the pace so far; None when that is not foreseen
    void: tuple[Reason, ...] = ()  # why nothing can be concluded: the arms were not filled as meant


@dataclass(frozen=True, slots=True)
class _Arrivals:
    """The requests in the order in which they began, and the outcomes, one a caller and window, that they make up."""

    served: Sequence[ServedRequest]
    outcome: Places  # of each request, the number of its outcome, which is in the order of their first requests
    is_canary: Which  # of each outcome
    asked: Stream  # when each request began
    began: Stream  # of each outcome, when its first request did
    is_first: Which  # of each request, whether its caller was not there before its outcome
    columns: dict[str, Stream] = field(default_factory=dict)

    def reported(self, metric: str) -> Stream:
        """Of each request; what is not told is not a number."""
        if metric not in self.columns:
            self.columns[metric] = np.array(list(map(REPORTED[metric], self.served)), np.float64)
        return self.columns[metric]

    def count(self, counts: Which) -> Stream:
        """Of each outcome, how many of its requests count."""
        return np.asarray(np.bincount(self.outcome, weights=counts, minlength=self.is_canary.size), np.float64)

    def mean(self, values: Stream, counts: Which) -> tuple[Stream, Which]:
        """Of each outcome, over those of its requests that count, and whether there are any."""
        n = self.count(counts)
        total = np.bincount(self.outcome, weights=np.where(counts, values, 0.0), minlength=self.is_canary.size)
        return total / np.maximum(n, 1.0), n > 0


def watch(
    live: Sequence[ServedRequest], canary: Sequence[ServedRequest], limits: GuardLimits, *, now: float = inf
) -> GuardStatus:
    """Reads every watched metric of what was served since the canary began; valid at every call. A breach is proved at
    α over the number of metrics (Bonferroni). Clear needs all metrics, so each is proved at α."""
    arrivals = _arrivals(live, canary, limits)
    readings = {metric: _read(metric, arrivals, limits, now) for metric in limits.watched}
    if not arrivals.is_first.all():
        ours = arrivals.is_canary[arrivals.outcome]
        at = [np.flatnonzero(arrivals.is_first & (ours == is_canary)).tolist() for is_canary in (False, True)]
        once = [[arrivals.served[place] for place in places] for places in at]
        first = _arrivals(once[0], once[1], limits)
        readings = {
            metric: _cleared_by(_read(metric, first, limits, now), reading) for metric, reading in readings.items()
        }
    breaches = tuple(_reason(reading, limits) for reading in readings.values() if reading.state == "breach")
    is_clear = all(reading.state == "clear" for reading in readings.values())
    open_needs = [reading.needs for reading in readings.values() if reading.state == "open"]
    needs = None
    if not breaches and open_needs and None not in open_needs:
        needs = max(open_need for open_need in open_needs if open_need is not None)
    return GuardStatus(readings=readings, breaches=breaches, is_clear=is_clear, needs=needs)


def _cleared_by(once: GuardReading, every: GuardReading) -> GuardReading:
    """A breach by all outcomes, or a clear by one outcome of each caller."""
    state: State = "breach" if every.state == "breach" else "clear" if once.state == "clear" else "open"
    return replace(every, state=state, e_within=once.e_within, needs=once.needs)


def difference(metric: str, limit: float, canary: Stream, live: Stream) -> Stream:
    """d of outcomes in [0, 1]: its mean is below 0 exactly when the limit is broken. Of the latency the outcome is
    whether it lies beyond the threshold, which has the limit in it."""
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
        "latency": (-1.0, 1.0, 0.0),
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


def spans(is_canary: Which) -> Spans:
    """A block ends as soon as both are in it: some of the one, then the first of the other."""
    starts, ends, start = [], [], 0
    for end in (np.flatnonzero(is_canary[1:] != is_canary[:-1]) + 1).tolist():
        if end > start:  # else the run before had a single outcome, which ended the last block
            starts.append(start)
            ends.append(end)
            start = end + 1
    return np.array(starts, np.int64), np.array(ends, np.int64)


def block_means(values: Stream, is_canary: Which, blocks: Spans) -> tuple[Stream, Stream]:
    """Means of the canary and of live in each block."""
    starts, ends = blocks
    total = np.concatenate([[0.0], values.cumsum()])
    many = (total[ends] - total[starts]) / np.maximum(ends - starts, 1)
    one, ended_by_canary = values[ends], is_canary[ends]
    return np.where(ended_by_canary, one, many), np.where(ended_by_canary, many, one)


def _arrivals(live: Sequence[ServedRequest], canary: Sequence[ServedRequest], limits: GuardLimits) -> _Arrivals:
    served = [*live, *canary]
    if not served:
        none = np.zeros(0, np.bool_)
        return _Arrivals((), np.zeros(0, np.int64), none, np.zeros(0), np.zeros(0), none)
    began = np.array([request.at - (request.latency_s or 0.0) for request in served])
    order = np.argsort(began, kind="stable")  # of those at one time, live's come first
    numbers = {unit: number for number, unit in enumerate(dict.fromkeys(request.unit for request in served))}
    callers = np.array([numbers[request.unit] for request in served], np.int64) * 2
    callers[len(live) :] += 1
    windows = np.floor((began - began.min()) / limits.caller_window_s).astype(np.int64)
    earliest = np.full(2 * len(numbers), windows.max() + 1)
    np.minimum.at(earliest, callers, windows)
    is_first = (windows == earliest[callers])[order]
    _, first, outcome = np.unique(
        (callers * (windows.max() + 1) + windows)[order], return_index=True, return_inverse=True
    )
    place = np.empty(first.size, np.int64)
    place[np.argsort(first)] = np.arange(first.size)
    first.sort()
    requests = [served[number] for number in order]
    is_canary, began = (order >= len(live))[first], began[order]
    return _Arrivals(requests, place[outcome.ravel()], is_canary, began, began[first], is_first)


def _read(metric: str, arrivals: _Arrivals, limits: GuardLimits, now: float) -> GuardReading:
    if metric == "latency":
        return _read_latency(arrivals, limits)
    values, counts, limit, capped = _scaled(metric, arrivals.reported(metric), limits)
    is_canary, shares = arrivals.is_canary, {}
    if metric in FEEDBACK:
        is_due = arrivals.asked <= now - limits.mature_after
        outcomes, _ = arrivals.mean(values, counts & is_due)
        due = arrivals.count(is_due)
        told = arrivals.count(counts & is_due)[due > 0] / due[due > 0]
        outcomes, is_canary = outcomes[due > 0], is_canary[due > 0]
        against, for_it, n = _with_silence(metric, limit, outcomes, told, is_canary)
        shares = {"live_told": _mean(told[~is_canary]), "canary_told": _mean(told[is_canary])}
    else:  # a version that fails one caller over and over fails; one that fails for no busy caller may fail for others
        ours, means = values[is_canary[arrivals.outcome]], arrivals.mean(values, counts)[0][is_canary]
        d, by_caller = (difference(metric, limit, one, np.zeros(one.size)) for one in (ours, means))
        n = means.size
        against, for_it = alarm(d, *bounds(metric, limit)), [within(by_caller, *bounds(metric, limit))]
    return _reading(metric, arrivals, limits, (against, for_it, n), capped=capped, **shares)


def _with_silence(
    metric: str, limit: float, outcomes: Stream, share: Stream, is_canary: Which
) -> tuple[Stream, list[Stream], int]:
    """Running log e against "within", those against "beyond", which all have to be large, and n. `share` of each
    outcome's requests was told; the outcome is their mean. The alarm is half on what was told alone and half on silence
    that counts as failure: where all is told they are the same."""
    low, high = bounds(metric, limit)
    told, blocks = np.flatnonzero(share), spans(is_canary)
    of_told = spans(is_canary[told])
    plain = alarm(difference(metric, limit, *block_means(outcomes[told], is_canary[told], of_told)), low, high)
    y, a, b = (1.0 - outcomes, 1.0, limit) if metric == "safety" else (outcomes, 1.0 - limit, 0.0)
    told_c, told_l = block_means(share, is_canary, blocks)
    good_c, good_l = block_means(share * y, is_canary, blocks)
    failed = good_c - a * good_l + b * told_l
    passed = (1.0 - a + b) * told_c - (told_c - good_c) + a * (told_l - good_l)
    n = _seen(is_canary[told], of_told)
    if (share == 1.0).all():
        return plain, [within(failed, low, high)], n
    against = _mixed(plain, told[of_told[1]], alarm(failed, low, high), blocks[1])
    return against, [within(failed, low, high), within(passed, low, high)], n


def _mixed(one: Stream, one_at: Places, other: Stream, other_at: Places) -> Stream:
    """log of (e₁ + e₂)/2 at each time at which either changes."""
    times = np.union1d(one_at, other_at)
    first, second = (
        np.concatenate([[0.0], values])[np.searchsorted(at, times, side="right")]
        for values, at in ((one, one_at), (other, other_at))
    )
    mixed: Stream = np.logaddexp(first, second) - log(2.0)
    return mixed


def _seen(is_canary: Which, blocks: Spans) -> int:
    """Canary outcomes in these blocks."""
    starts, ends = blocks
    return int(np.where(is_canary[ends], 1, ends - starts).sum())


def _read_latency(arrivals: _Arrivals, limits: GuardLimits) -> GuardReading:
    """A request that is still waited for is as slow as it is by now."""
    limit = limits.latency or 0.0
    latencies = arrivals.reported("latency")
    counts = ~np.isnan(latencies)
    by_canary = arrivals.is_canary[arrivals.outcome] if arrivals.served else arrivals.is_canary
    is_live = counts & ~by_canary
    is_known = arrivals.mean(latencies, counts)[1]
    known = np.flatnonzero(is_known)
    starts, ends = spans(arrivals.is_canary[known])
    first = np.unique(arrivals.outcome, return_index=True)[1][known]  # the first request of each outcome
    before = np.concatenate([[0], is_live.cumsum()])[first[starts]]  # live requests that began before each block
    kept = before >= limits.least
    blocks, before = (starts[kept], ends[kept]), before[kept]
    if not before.size:
        return _reading("latency", arrivals, limits, (np.zeros(1), [np.zeros(1)], 0))
    grid = [limits.least]
    while (following := ceil(grid[-1] * NEXT_QUANTILE)) <= before[-1]:
        grid.append(following)
    step = np.searchsorted(grid, before, side="right") - 1  # of each block, which quantiles it is held to
    of_block = np.clip(np.searchsorted(blocks[0], np.arange(known.size), side="right") - 1, 0, None)
    of_request = np.zeros(arrivals.is_canary.size, np.int64)
    of_request[known] = step[of_block]
    theirs = latencies[is_live]
    quantiles, against, for_it = [], [], []
    live_so_far = np.array([np.quantile(theirs[:n], limits.quantiles, method="higher") for n in grid])
    for place, quantile in enumerate(limits.quantiles):
        threshold = live_so_far[of_request[arrivals.outcome], place] * np.where(by_canary, 1.0 + limit, 1.0)
        # Where many take exactly as long, each test is held to the side that leaves the canary least to gain.
        beyond, at_least = (
            arrivals.mean(is_slow.astype(np.float64), counts)[0]
            for is_slow in (latencies > threshold, latencies >= threshold)
        )
        d, d_within = (
            difference("latency", limit, *block_means(values[known], arrivals.is_canary[known], blocks))
            for values in (beyond, at_least)
        )
        against.append(alarm(d, -1.0, 1.0))
        for_it.append(within(d_within + SLACK, SLACK - 1.0, SLACK + 1.0))
        inside = known[blocks[0][0] :]
        whose = arrivals.is_canary[inside]
        reading = QuantileReading(
            quantile=quantile,
            live=float(np.quantile(theirs, quantile, method="higher")),
            canary=float(np.quantile(latencies[counts & by_canary], quantile, method="higher")),
            live_beyond=float(beyond[inside][~whose].mean()),
            canary_beyond=float(beyond[inside][whose].mean()),
            e=_e(against[-1]),
            e_within=_e(for_it[-1]),
        )
        quantiles.append(reading)
    joint = np.logaddexp.reduce(against, axis=0) - log(len(against))
    seen = (joint, for_it, _seen(arrivals.is_canary[known], blocks))
    return _reading("latency", arrivals, limits, seen, quantiles=tuple(quantiles))


def _reading(
    metric: str, arrivals: _Arrivals, limits: GuardLimits, seen: tuple[Stream, list[Stream], int], **more: object
) -> GuardReading:
    against, for_it, n = seen
    against = against if against.size else np.zeros(1)
    for_it = [one if one.size else np.zeros(1) for one in for_it]
    state: State = "open"
    if against.max() >= log(len(limits.watched) / limits.alpha):
        state = "breach"
    elif min(one.max() for one in for_it) >= log(1.0 / limits.alpha) and n >= limits.least:
        state = "clear"
    open_needs = [_needs(float(one[-1]), n, limits) for one in for_it if one.max() < log(1.0 / limits.alpha)]
    needs = None
    if state == "open" and None not in open_needs:
        needs = max([open_need for open_need in open_needs if open_need is not None], default=max(1, limits.least - n))
    reported = arrivals.reported(metric)
    by_canary = arrivals.is_canary[arrivals.outcome] if reported.size else np.zeros(0, np.bool_)
    is_told = ~np.isnan(reported)
    return GuardReading(
        metric=metric,
        state=state,
        live=_mean(reported[is_told & ~by_canary]),
        canary=_mean(reported[is_told & by_canary]),
        n=n,
        e=_e(against),
        e_within=min(map(_e, for_it)),
        needs=needs,
        **more,  # type: ignore[arg-type]  # the fields that some metrics have
    )


def _scaled(metric: str, values: Stream, limits: GuardLimits) -> tuple[Stream, Which, float, int]:
    """The outcomes in [0, 1], which of them are told, the limit on the same scale, and how many were cut."""
    low, high, limit = 0.0, 1.0, getattr(limits, metric)
    if metric == "reward":
        low, high = limits.reward_range
    elif metric == "safety":
        high, limit = limits.most_cost, limit / limits.most_cost
    capped = int(((values < low) | (values > high)).sum())
    return np.clip((values - low) / (high - low), 0.0, 1.0), ~np.isnan(values), limit, capped


def _e(log_e: Stream) -> float:
    """The largest so far, from 1 at the start."""
    return exp(min(max(float(log_e.max(initial=0.0)), 0.0), LARGEST_LOG))


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
    figures = f"the canary's mean is {reading.canary:.4g}{live}" if reading.canary is not None else "none was told"
    if reading.quantiles:
        worst = max(reading.quantiles, key=lambda reading: reading.e)
        beyond += f" at p{100 * worst.quantile:g}"
        figures = (
            f"the canary's is {worst.canary:.4g} s, live's {worst.live:.4g} s; {worst.canary_beyond:.2%} of its "
            f"answers took longer than {1.0 + limit:g} times live's of before, and {worst.live_beyond:.2%} "
            "of live's longer than that"
        )
    if reading.canary_told is not None and (reading.canary_told, reading.live_told) != (1.0, 1.0):
        figures += f", of {reading.canary_told:.0%} and {reading.live_told or 0.0:.0%} that were told"
    text = (
        f"{reading.metric} is proved {beyond}: {figures}, "
        f"after {reading.n} canary outcomes (e = {reading.e:.3g}, needed {len(limits.watched) / limits.alpha:.3g})"
    )
    return Reason(code=f"canary_breach_{reading.metric}", text=text)


def _mean(values: NDArray[np.generic]) -> float | None:
    return float(values.mean()) if values.size else None


def _check(name: str, value: float | None, below: float) -> None:
    if value is not None and not 0.0 < value < below:
        raise BadInput(f"limits: {name} = {value}", why=f"must be above 0 and below {below:g}")
