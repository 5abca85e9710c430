"""Attacks on the guard and on experiments, simulated: how often each gets past, and how soon it is caught.

Callers are routed and counted, canaries watched and experiments ruled upon by the functions that do it in production;
only the traffic is made up. `prove.calibrate` measures the bets themselves, here is what stands around them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Interval
from holdfast.contracts.release import Experiment, Exposure, ServedRequest
from holdfast.operate.canary_controller import sample_ratio
from holdfast.operate.release_views import Statistics
from holdfast.promote.bucketing import bucket
from holdfast.promote.experiment import KIND, Design, ExperimentCall, assign, settings_of, verdict
from holdfast.promote.release import HOLDBACK, WATCHED, Routing, choose, is_counted
from holdfast.prove.estimate import wilson
from holdfast.prove.guard import GuardLimits, GuardStatus, watch

Rng = np.random.Generator
Must = Literal["breach", "no breach", "no clear", "no promotion", "promotion"]
HOUR = 3600.0
LEVEL = 0.99  # of the intervals of the rates
MOSTLY = 0.9  # of what must happen
DELAYS = 10  # experiments whose delay is measured: each takes a dozen looks
LOOKS = 12  # at an attack that hangs on when one looks
LIMITS = GuardLimits(reward=None, safety=None)
LIVE, CANARY = "live", "canary"


@dataclass(frozen=True, slots=True, kw_only=True)
class Traffic:
    """Requests of a canary and of live, in one trial; times in seconds, rates from 0 to 1."""

    requests: int = 2400
    share: int = 25  # percent; 0: the version is live, and compared with its holdback
    seconds: float = 4 * HOUR
    rate: tuple[float, float] = (0.8, 0.8)  # of live's successes, at the beginning and at the end
    worse: float = 0.0  # the canary's success is lower by this part of it
    worse_from: float = 0.0  # from this part of the time on
    hanging: float = 0.0  # of the canary's calls; the caller leaves after PATIENCE_S
    slow: float = 0.0  # of the canary's calls, which take SLOW_S
    keyless: float = 0.0  # of the requests come without a key …
    keyless_rate: float = 0.8  # … and are answered rightly so often
    observed: float = 1.0  # of the canary's failures
    late_s: float = 0.0  # the canary's failures are told so much later
    lost: float = 0.0  # of the canary's callers, never written down
    callers: int | None = None  # a few, who ask again and again, each with an easier or harder job; None: all differ


PATIENCE_S, SLOW_S = 30.0, 300.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SimulatedArms:
    """Units of an experiment with two equal arms, of which the control succeeds half of the time."""

    units: int = 2000
    gain: float = 0.0  # of the treatment
    observed: float = 1.0  # of the treatment's failures
    late: int = 0  # the treatment's failures are told after so many more units have come
    drift: float = 0.0  # of both, from the first unit to the last
    step: float = 0.0  # of both, in the middle


@dataclass(frozen=True, slots=True, kw_only=True)
class Attack:
    name: str
    about: str
    must: Must
    traffic: Traffic | None = None  # of a canary
    arms: SimulatedArms | None = None  # of an experiment


@dataclass(frozen=True, slots=True, kw_only=True)
class AttackRate:
    """What came of an attack."""

    SCHEMA: ClassVar[int] = 1

    name: str
    about: str
    must: Must
    experiments: int
    breached: float | None  # shares of the experiments
    cleared: float | None
    promoted: float | None
    interval: Interval  # Wilson's, of the share that matters
    outcomes_until_breach: float | None  # of the canary, since it became bad; the median
    is_within: bool


_WORSE = "a canary 20 % worse"
ATTACKS: tuple[Attack, ...] = (
    Attack(name="equal", about="a canary like live", must="no breach", traffic=Traffic()),
    Attack(
        name="hanging",
        about="20 % of its calls hang, callers leave after 30 s",
        must="breach",
        traffic=Traffic(hanging=0.2),
    ),
    Attack(
        name="slow tail",
        about="4 % of its answers take 300 s",
        must="breach",
        traffic=Traffic(slow=0.04, requests=4000),
    ),
    Attack(
        name="keyless easier",
        about="half of the requests have no key, and are easier; the canary is like live",
        must="no breach",
        traffic=Traffic(rate=(0.6, 0.6), keyless=0.5, keyless_rate=0.95, requests=4800),
    ),
    Attack(
        name="keyless harder",
        about=f"half of the requests have no key, and are harder; {_WORSE}",
        must="no clear",
        traffic=Traffic(keyless=0.5, keyless_rate=0.4, worse=0.2, requests=4800),
    ),
    Attack(
        name="hours harder",
        about="at 100 %, success falls from 0.9 to 0.5; the canary is like live",
        must="no breach",
        traffic=Traffic(share=100, rate=(0.9, 0.5), requests=6000),
    ),
    Attack(
        name="hours easier",
        about=f"at 100 %, success rises from 0.5 to 0.9; {_WORSE}",
        must="no clear",
        traffic=Traffic(share=100, rate=(0.5, 0.9), worse=0.2, requests=6000),
    ),
    Attack(
        name="silence",
        about=f"{_WORSE}, half of its failures untold",
        must="no clear",
        traffic=Traffic(worse=0.2, observed=0.5, requests=4000),
    ),
    Attack(
        name="late bad news",
        about=f"{_WORSE}, its failures told two hours later; a dozen looks",
        must="no clear",
        traffic=Traffic(worse=0.2, late_s=2 * HOUR),
    ),
    Attack(
        name="few callers",
        about="200 callers ask again and again for 4 hours, each with a job of its own; the canary is like live",
        must="no breach",
        traffic=Traffic(callers=200, requests=6000),
    ),
    Attack(
        name="lost callers",
        about="a fifth of the canary's callers is never written down",
        must="no clear",
        traffic=Traffic(share=50, lost=0.2, rate=(0.95, 0.95), requests=6000),
    ),
    Attack(
        name="decay",
        about="live, and 40 % worse from the middle on, beside its holdback",
        must="breach",
        traffic=Traffic(share=0, worse=0.4, worse_from=0.5, requests=24_000),
    ),
    Attack(name="A/B equal", about="two equal arms", must="no promotion", arms=SimulatedArms()),
    Attack(
        name="A/B silence",
        about="equal, 70 % of the treatment's failures told",
        must="no promotion",
        arms=SimulatedArms(observed=0.7),
    ),
    Attack(
        name="A/B worse and silent",
        about="5 points worse, 60 % of its failures told",
        must="no promotion",
        arms=SimulatedArms(gain=-0.05, observed=0.6),
    ),
    Attack(
        name="A/B late bad news",
        about="equal, the treatment's failures told 500 units later; a dozen looks",
        must="no promotion",
        arms=SimulatedArms(late=500),
    ),
    Attack(
        name="A/B hours",
        about="equal, success jumps from 0.1 to 0.9 in the middle",
        must="no promotion",
        arms=SimulatedArms(step=0.8),
    ),
    Attack(name="A/B gain", about="10 points better, all told", must="promotion", arms=SimulatedArms(gain=0.1)),
    Attack(
        name="silence of callers who ask often",
        about="a canary half as good, none of its failures told, 5 requests a caller and more",
        must="no clear",
        traffic=Traffic(worse=0.5, observed=0.0, callers=1000, requests=6000),
    ),
)


def attack_row(place: int, *, experiments: int, alpha: float, seed: int) -> AttackRate:
    """Measures one attack; its random stream depends on its place alone."""
    if experiments < 20:
        raise BadInput(
            f"experiments = {experiments}", why="a rate near α would rest on a handful", remedy="at least 20"
        )
    rng = np.random.default_rng(seed).spawn(len(ATTACKS))[place]
    return attack_rate(ATTACKS[place], experiments=experiments, alpha=alpha, rng=rng)


def attack_rate(attack: Attack, *, experiments: int, alpha: float, rng: Rng) -> AttackRate:
    breached = cleared = promoted = 0
    delays: list[int] = []
    for number in range(experiments):
        if attack.arms is not None:
            promoted += is_promoted(attack.arms, alpha, f"{attack.name}-{number}", rng)
            continue
        assert attack.traffic is not None
        served = TrafficLog.of(attack.traffic, f"{attack.name}-{number}", rng)
        is_breached, is_cleared = served.looked_at(replace(LIMITS, alpha=alpha))
        breached, cleared = breached + is_breached, cleared + is_cleared
        if attack.must == "breach" and is_breached and number < DELAYS:
            delays.append(served.outcomes_until_breach(replace(LIMITS, alpha=alpha)))
    counts = {"breach": breached, "no breach": breached, "no clear": cleared}
    interval = wilson(counts.get(attack.must, promoted), experiments, level=LEVEL)
    is_wanted = attack.must in ("breach", "promotion")
    of_canary = attack.arms is None
    return AttackRate(
        name=attack.name,
        about=attack.about,
        must=attack.must,
        experiments=experiments,
        breached=breached / experiments if of_canary else None,
        cleared=cleared / experiments if of_canary else None,
        promoted=None if of_canary else promoted / experiments,
        interval=interval,
        outcomes_until_breach=float(np.median(delays)) if delays else None,
        is_within=interval.high >= MOSTLY if is_wanted else interval.low <= alpha,
    )


@dataclass(frozen=True, slots=True)
class TrafficLog:
    """What a service has written down, and when each outcome was told."""

    traffic: Traffic
    requests: Sequence[ServedRequest]
    told_at: NDArray[np.float64]

    @classmethod
    def of(cls, traffic: Traffic, salt: str, rng: Rng) -> TrafficLog:
        n = traffic.requests
        routing = Routing(live=LIVE, canary=CANARY, share=traffic.share, salt=salt)
        if not traffic.share:
            routing = Routing(live=CANARY, holdback=LIVE, salt=salt)
        began = np.sort(rng.random(n)) * traffic.seconds
        keys, ease = _callers(traffic, rng)
        is_keyless = rng.random(n) < traffic.keyless
        first, last = traffic.rate
        chances, luck, latencies = rng.random((4, n)), rng.random(n), rng.lognormal(sigma=0.6, size=n)
        requests, told_at = [], []
        for number in range(n):
            key = "" if is_keyless[number] else keys[number]
            if not is_counted(routing, key):
                continue
            arm, part = choose(routing, key), began[number] / traffic.seconds
            is_canary = arm == CANARY
            if is_canary and bucket(key, f"lost/{salt}") < traffic.lost:
                continue
            rate = traffic.keyless_rate if not key else first + (last - first) * part + ease[number]
            if is_canary and part >= traffic.worse_from:
                rate *= 1.0 - traffic.worse
            is_good, latency, error = bool(luck[number] < rate), float(latencies[number]), False
            if is_canary and chances[0, number] < traffic.hanging:
                is_good, latency, error = False, PATIENCE_S, True
            elif is_canary and chances[1, number] < traffic.slow:
                latency = SLOW_S
            is_hidden = is_canary and not is_good and not error and chances[2, number] >= traffic.observed
            requests.append(
                ServedRequest(
                    id=str(number),
                    trial="t",
                    arm=arm,
                    unit=key or str(number),
                    at=float(began[number] + latency),
                    latency_s=latency,
                    error=error,
                    success=None if is_hidden else float(is_good),
                )
            )
            is_late = is_canary and not is_good
            told_at.append(requests[-1].at + (traffic.late_s if is_late else 0.0))
        return cls(traffic, requests, np.array(told_at))

    def known(self, now: float) -> list[ServedRequest]:
        return [
            request if at <= now else replace(request, success=None)
            for request, at in zip(self.requests, self.told_at, strict=True)
            if request.at <= now
        ]

    def looked_at(self, limits: GuardLimits) -> tuple[bool, bool]:
        """Whether it was a breach, or clear, at any look; the last one tells of all of them unless news is late."""
        times = [float("inf")]
        if self.traffic.late_s:
            times = [self.traffic.seconds * look / LOOKS for look in range(1, LOOKS + 1)]
        status = [self._read(self.known(now), limits, now) for now in times]
        return any(guard_status.breaches for guard_status in status), any(
            guard_status.is_clear for guard_status in status
        )

    def _read(self, requests: Sequence[ServedRequest], limits: GuardLimits, now: float) -> GuardStatus:
        live, canary = ([request for request in requests if request.arm == arm] for arm in (LIVE, CANARY))
        status = watch(live, canary, limits, now=now)
        part = min(self.traffic.share, 100 - HOLDBACK) / 100 if self.traffic.share else 1.0 - HOLDBACK / WATCHED
        trial = Experiment(name="t", kind="canary", arms={LIVE: 1.0 - part, CANARY: part}, salt="s", created_at=0.0)
        return status if sample_ratio(trial, requests) is None else replace(status, is_clear=False)

    def outcomes_until_breach(self, limits: GuardLimits) -> int:
        """Counts the canary's outcomes from when it became bad until the breach."""
        began = sorted(request.at - (request.latency_s or 0.0) for request in self.requests)
        low, high = 0, len(began)
        while low < high:  # a breach stays one
            middle = (low + high) // 2
            upto = [request for request in self.requests if request.at - (request.latency_s or 0.0) <= began[middle]]
            low, high = (low, middle) if self._read(upto, limits, float("inf")).breaches else (middle + 1, high)
        start = self.traffic.worse_from * self.traffic.seconds
        end = began[min(low, len(began) - 1)]
        return sum(
            request.arm == CANARY and start <= request.at - (request.latency_s or 0.0) <= end
            for request in self.requests
        )


def _callers(traffic: Traffic, rng: Rng) -> tuple[list[str], NDArray[np.float64]]:
    """Draws the caller of each request, and how much easier that caller's jobs are."""
    n = traffic.requests
    if traffic.callers is None:
        return [str(number) for number in range(n)], np.zeros(n)
    often = 1.0 / np.arange(1, traffic.callers + 1)
    who = rng.choice(traffic.callers, size=n, p=often / often.sum())
    return [f"caller-{one}" for one in who], rng.choice((-0.15, 0.15), size=traffic.callers)[who]


def is_promoted(arms: SimulatedArms, alpha: float, salt: str, rng: Rng) -> bool:
    """Whether a verdict promotes the treatment, at any of the looks."""
    trial = Experiment(
        name="t",
        kind=KIND,
        arms={"control": 0.5, "treatment": 0.5},
        salt=salt,
        created_at=0.0,
        settings=settings_of(Design(alpha=alpha)),
    )
    chances = rng.random((2, arms.units))
    exposures, served, told_at = [], [], []
    for number in range(arms.units):
        unit, part = str(number), number / arms.units
        arm = assign(trial, unit)
        is_treated = arm == "treatment"
        rate = 0.5 + arms.drift * (part - 0.5) + arms.step * (0.5 if part >= 0.5 else -0.5) + arms.gain * is_treated
        is_good = bool(chances[0, number] < rate)
        exposures.append(Exposure(trial="t", unit=unit, arm=arm, at=float(number)))
        if is_good or not is_treated or chances[1, number] < arms.observed:
            value = float(is_good)
            served.append(ServedRequest(id=unit, trial="t", arm=arm, unit=unit, at=float(number), success=value))
            told_at.append(number + (arms.late if is_treated and not is_good else 0))
    statistics = Statistics(Design(alpha=alpha))
    looks = [arms.units * look // LOOKS for look in range(1, LOOKS + 1)] if arms.late else [arms.units]
    for now in looks:
        known = [request for request, at in zip(served, told_at, strict=True) if at < now]
        made = verdict(trial, exposures[:now], known, compare=statistics.compare, guard=_unguarded, now=float(now))
        if made.call is ExperimentCall.PROMOTE:
            return True
    return False


def _unguarded(control: Sequence[ServedRequest], treatment: Sequence[ServedRequest], alpha: float) -> tuple[()]:
    return ()
