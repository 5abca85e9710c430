"""What is proved: episodes are measured, compared with an interval, judged in a verdict, and a gate decides.

How intervals and verdicts are computed is `prove`'s business, which verdicts suffice is `promote`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import LATER, BadRecord, check_fields


@dataclass(frozen=True, slots=True, kw_only=True)
class Interval:
    """A confidence interval, both ends included."""

    SCHEMA: ClassVar[int] = 1

    low: float
    high: float
    level: float = field(default=0.95, metadata={"exclusiveMinimum": 0, "exclusiveMaximum": 1})

    def __post_init__(self) -> None:
        if not (isfinite(self.low) and isfinite(self.high) and self.low <= self.high):
            raise BadRecord(f"interval {self.low} to {self.high}", why="the ends must be finite and in order")
        check_fields("interval", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Episode:
    """One task done once by one version: what it was worth, and what it cost."""

    SCHEMA: ClassVar[int] = 1

    task: str
    seed: int  # of its chance: both versions are measured with the same ones
    reward: float
    safety_cost: float | None = field(default=None, metadata={"minimum": 0})  # None: not measured, which is not 0
    success: float | None = field(default=None, metadata={"minimum": 0, "maximum": 1})
    latency_s: float | None = field(default=None, metadata={"minimum": 0})
    tokens: int | None = field(default=None, metadata={"minimum": 0})
    rollout: str | None = None  # where it can be looked at
    unit: str | None = field(default=None, metadata=LATER)  # tasks of one unit count as one; None: the task itself
    is_missing: bool = field(default=False, metadata=LATER)  # never came back: its values are assumed, not measured

    def __post_init__(self) -> None:
        where = f"episode of {self.task} with seed {self.seed}"
        if not self.task.strip():
            raise BadRecord(where, why="the task must not be blank")
        check_fields(where, self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Scores:
    """One metric of one version on every task with every seed. There are no holes: a task that was not measured with
    every seed is left out by whoever measured, and reported as missing."""

    SCHEMA: ClassVar[int] = 1

    version: str
    metric: str
    tasks: tuple[str, ...] = field(metadata={"minItems": 1, "uniqueItems": True})
    seeds: tuple[int, ...] = field(metadata={"minItems": 1, "uniqueItems": True})
    values: tuple[tuple[float, ...], ...]  # a row for each task, a column for each seed

    def __post_init__(self) -> None:
        where = f"scores of {self.version}"
        check_fields(where, self, filled=("version", "metric"))
        if len(self.values) != len(self.tasks):
            raise BadRecord(f"{where}: values", why=f"{len(self.values)} rows for {len(self.tasks)} tasks")
        for task, row in zip(self.tasks, self.values, strict=True):
            if len(row) != len(self.seeds):
                raise BadRecord(f"{where}: task {task}", why=f"{len(row)} values for {len(self.seeds)} seeds")
            if not all(map(isfinite, row)):
                raise BadRecord(f"{where}: task {task}", why="must be finite", remedy="leave the task out as missing")


BETTING = "betting e-process"  # a method whose interval and p may be read after every task


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricComparison:
    """A candidate against a baseline on the same tasks; above 0 the candidate is better, for every metric.

    What is better when it is less (a cost, a latency) is compared with its sign turned round."""

    SCHEMA: ClassVar[int] = 1

    metric: str
    baseline: str  # version
    candidate: str  # version
    difference: float  # candidate minus baseline
    interval: Interval  # of the difference
    p_value: float = field(metadata={"minimum": 0, "maximum": 1})  # of "the difference is at most −margin"
    pairs: int = field(metadata={"minimum": 1})  # how many pairs it rests on
    method: str  # "paired permutation", …
    margin: float = field(default=0.0, metadata={"minimum": 0})  # how much worse would still be accepted
    corrected: float | None = field(default=None, metadata=LATER)  # over all proofs, even odds that the truth is above

    def __post_init__(self) -> None:
        where = f"comparison of {self.candidate} with {self.baseline}"
        check_fields(where, self, filled=("metric", "baseline", "candidate", "method"))


IN_UNITS = {"safety": "safety cost", "latency": "latency (s)", "cost": "tokens"}  # of all these less is better


@dataclass(frozen=True, slots=True, kw_only=True)
class ComparisonRow:
    """A comparison for people: in the metric's own units and direction, and in a word whether that is better."""

    metric: str
    difference: str  # a slower candidate has a latency of +0.3
    corrected: str
    sure: str  # the interval; of what may get worse by a margin, the bound that was tested
    candidate: str  # "better", "worse", "unclear", or "no worse" than a margin allows


def comparison_row(comparison: MetricComparison) -> ComparisonRow:
    sign = -1.0 if comparison.metric in IN_UNITS else 1.0
    ends = sorted((sign * comparison.interval.low, sign * comparison.interval.high))
    sure = f"{ends[0]:+.3f} to {ends[1]:+.3f}"
    is_above, is_below = comparison.interval.low > 0.0, comparison.interval.high < 0.0
    candidate = "better" if is_above else "worse" if is_below else "unclear"
    if comparison.method == BETTING and comparison.margin:  # the bets were on this one side alone
        is_proved = comparison.p_value <= 1.0 - comparison.interval.level
        sure = f"{'below' if is_proved else 'not surely below'} {comparison.margin:+g}"
        candidate = "no worse" if is_proved else "worse" if comparison.difference < -comparison.margin else "unclear"
    return ComparisonRow(
        metric=IN_UNITS.get(comparison.metric, comparison.metric),
        difference=f"{sign * comparison.difference + 0.0:+.3f}",
        corrected="" if comparison.corrected is None else f"{sign * comparison.corrected:+.3f}",
        sure=sure,
        candidate=candidate,
    )


class Outcome(StrEnum):
    PROMOTE = "promote"
    REJECT = "reject"
    HOLD = "hold"  # neither is proved yet


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What the evidence says about a candidate, and why; one that holds says how much more it needs."""

    SCHEMA: ClassVar[int] = 1

    outcome: Outcome
    reasons: tuple[str, ...] = field(metadata={"minItems": 1})
    needs: int | None = field(default=None, metadata={"minimum": 1})  # about so many more episodes; only with hold
    # Of its two parts alone; None: not asked, or of a version that had the sentences alone, which are what is compared.
    gain: Outcome | None = field(default=None, compare=False, metadata=LATER)
    safety: Outcome | None = field(default=None, compare=False, metadata=LATER)  # not worse than the margin allows

    def __post_init__(self) -> None:
        check_fields(f"verdict {self.outcome}", self)
        if not all(reason.strip() for reason in self.reasons):
            raise BadRecord(f"verdict {self.outcome}", why="a reason must not be blank")
        if (self.needs is not None) != (self.outcome is Outcome.HOLD):
            raise BadRecord(f"verdict {self.outcome}: needs = {self.needs}", why="goes with hold, and hold needs it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Band:
    """Whether a finding stays the same with other seeds, or with more of the same data."""

    SCHEMA: ClassVar[int] = 1

    kind: str  # "seed", "sample"
    within: bool
    p_value_spread: float = field(metadata={"minimum": 0})
    delta_spread: float = field(metadata={"minimum": 0})
    most_p_value_spread: float = field(metadata={"minimum": 0})
    most_delta_spread: float = field(metadata={"minimum": 0})
    of: int = field(metadata={"minimum": 2})  # runs or sizes that were compared

    def __post_init__(self) -> None:
        check_fields(f"band {self.kind}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedInteraction:
    """Whether the gain depends on the seed, which is only a name for chance."""

    p_value: float = field(metadata={"minimum": 0, "maximum": 1})  # of gains as far apart, were seeds alike
    lowest: float  # mean gain with the seed where it is lowest
    seeds: int = field(metadata={"minimum": 2})

    def __post_init__(self) -> None:
        check_fields("seed interaction", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """What one named check found."""

    SCHEMA: ClassVar[int] = 1

    name: str  # stable: "no_secrets", "observation_hash"
    severity: str  # "info", "warning", "error", "critical"
    count: int = field(metadata={"minimum": 0})  # how many failed it
    of: int = field(metadata={"minimum": 0})
    detail: str = ""  # the first place, for people
    blocks: bool = True  # whether one that failed keeps a gate closed

    def __post_init__(self) -> None:
        check_fields(f"finding {self.name}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Acceptance:
    """What an environment measured of a candidate beside its return, and what changed of the environment itself."""

    kpis: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)  # by name: "value", "of" how many, "detail"
    golden: tuple[Finding, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Evidence:
    """All that a gate is told about a candidate. What is None or absent is missing, and missing is a reason."""

    SCHEMA: ClassVar[int] = 1

    policy: str  # which line of versions: "sprout"
    baseline: str  # version
    candidate: str  # version
    suite: str  # "tooluse@1 3f2a…": name, version and the hash of its fixtures
    primary: str  # the metric that has to improve
    episodes: int = field(metadata={"minimum": 0})  # pairs
    comparisons: Mapping[str, MetricComparison] = field(default_factory=dict)  # by metric
    verdict: Verdict | None = None  # of the primary metric, valid however often it was looked at
    bands: Mapping[str, Band] = field(default_factory=dict)  # "seed", "sample"
    missing: Mapping[str, int] | None = None  # "planned" episodes a side; of "baseline", "candidate": never seen
    golden: tuple[Finding, ...] | None = None  # changed behaviour that nobody signed
    audit: tuple[Finding, ...] | None = None  # of the data that was learnt from
    samples: str | None = None  # sha256 of the blob with every episode of both
    manifest: Mapping[str, Any] = field(default_factory=dict)  # what made the candidate: run, checkpoint, hashes
    interaction: SeedInteraction | None = field(default=None, metadata=LATER)  # of two seeds or more

    def __post_init__(self) -> None:
        check_fields("evidence", self, filled=("policy", "baseline", "candidate", "suite", "primary"))
        if self.baseline == self.candidate:
            raise BadRecord(f"evidence: candidate {self.candidate}", why="is compared with itself")


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a gate is open or closed: a stable code for programs, a sentence for people."""

    code: str
    text: str

    def __post_init__(self) -> None:
        check_fields(f"reason {self.code!r}", self, filled=("code", "text"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Whether a gate is open, and why. Both ways it says why; missing evidence is a reason to stay closed."""

    SCHEMA: ClassVar[int] = 2

    open: bool
    reasons: tuple[Reason, ...] = field(metadata={"minItems": 1})
    needs: int | None = field(default=None, metadata={"minimum": 1})  # about so many more episodes may open it

    def __post_init__(self) -> None:
        check_fields(f"{'open' if self.open else 'closed'} decision", self)
        if self.needs is not None and self.open:
            raise BadRecord(f"decision: needs = {self.needs}", why="goes with a closed gate only")
