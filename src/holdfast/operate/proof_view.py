"""What the page of a proof is given to show: the verdict, the figures, each task, and how it all came about.

Where it comes from is `publication`'s business, how it looks is `proof`'s, what it says is `words`'.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, MetricComparison, Verdict


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """One task, its seeds averaged, by the metric that has to improve."""

    name: str
    baseline: float
    candidate: float
    family: str = ""

    @property
    def difference(self) -> float:
        return self.candidate - self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSequence:
    """What was known of one metric's difference after each task; higher is better."""

    metric: str
    differences: Sequence[float]  # of each task, as they came in
    low: Sequence[float]  # the confidence sequence of their mean, after each
    high: Sequence[float]
    bar: float  # what the difference has to be above: the least gain, or minus the margin
    proved_at: int | None = None  # after so many tasks it was proved to be
    refuted_at: int | None = None  # after so many it was proved not to be
    level: float = 0.95

    def __post_init__(self) -> None:
        lengths = {len(self.differences), len(self.low), len(self.high)}
        if lengths == {0} or len(lengths) > 1:
            why = f"{len(self.differences)} differences, {len(self.low)} and {len(self.high)} bounds"
            raise BadInput(f"course of {self.metric}", why=why, remedy="give one of each for every task, and one task")

    @property
    def tasks(self) -> int:
        return len(self.differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCriterion:
    name: str
    wanted: str
    found: str
    is_met: bool
    code: str = ""  # the reason code of its failure
    blocks: bool = True  # whether it keeps a candidate back all by itself


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofView:
    run: str
    baseline: str  # version
    candidate: str  # version
    primary: str  # the metric that has to improve
    verdict: Verdict
    decision: Decision | None  # of the gate; None: it was not asked
    comparisons: Mapping[str, MetricComparison]  # by metric
    adjusted: Mapping[str, float] = field(default_factory=dict)  # p by metric, for all of them at once
    means: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # baseline and candidate by metric
    tasks: Sequence[ProofTask]
    course: MetricSequence  # of the primary metric
    safety: MetricSequence | None = None
    criteria: Sequence[GateCriterion] = ()
    facts: Mapping[str, str]  # who, what, when: title → text
    how: Sequence[str]  # it was computed
    missing: Sequence[str] = ()  # tasks that were left out
    steps: Sequence[tuple[str, str]] = ()  # what can be done about it: a command, and what it does
