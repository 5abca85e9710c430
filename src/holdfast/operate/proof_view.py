"""A proof as its page shows it, and the page's texts: each metric in its own unit, the verdict as a sentence, and what
would change it.

`publication` builds the view, `proof` renders it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import BETTING, Decision, MetricComparison, Outcome, Verdict, comparison_row


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofTask:
    """One task, its seeds averaged, by the primary metric."""

    name: str
    baseline: float
    candidate: float
    family: str = ""

    @property
    def difference(self) -> float:
        return self.candidate - self.baseline


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricSequence:
    """The confidence sequence of one metric's difference over tasks; higher is better."""

    metric: str
    differences: Sequence[float]  # of each task, in their order
    low: Sequence[float]  # the confidence sequence of their mean, after each
    high: Sequence[float]
    bar: float  # the required difference: the least gain, or minus the margin
    proved_at: int | None = None  # tasks after which it was proved
    refuted_at: int | None = None  # tasks after which it was disproved
    level: float = 0.95

    def __post_init__(self) -> None:
        if not len(self.differences) == len(self.low) == len(self.high) > 0:
            why = f"{len(self.differences)} differences, {len(self.low)} and {len(self.high)} bounds"
            raise BadInput(f"course of {self.metric}", why=why, remedy="give one of each for every task, and one task")

    @property
    def tasks(self) -> int:
        return len(self.differences)


@dataclass(frozen=True, slots=True, kw_only=True)
class GateCriterion:
    name: str
    required: str
    measured: str
    is_met: bool
    code: str = ""  # the reason code of its failure
    blocks: bool = True  # whether it alone keeps a candidate back


@dataclass(frozen=True, slots=True, kw_only=True)
class ProofView:
    run: str
    baseline: str  # version
    candidate: str  # version
    primary: str  # the metric that has to improve
    verdict: Verdict
    decision: Decision | None  # of the gate, if there is one
    comparisons: Mapping[str, MetricComparison]  # by metric
    adjusted: Mapping[str, float] = field(default_factory=dict)  # p by metric, for all of them at once
    means: Mapping[str, tuple[float, float]] = field(default_factory=dict)  # baseline and candidate by metric
    tasks: Sequence[ProofTask]
    sequence: MetricSequence  # of the primary metric
    safety: MetricSequence | None = None
    criteria: Sequence[GateCriterion] = ()
    facts: Mapping[str, str]  # who, what, when: title → text
    how: Sequence[str]  # it was computed
    missing: Sequence[str] = ()  # tasks that were left out
    steps: Sequence[tuple[str, str]] = ()  # commands that a reader can run, and what they do


MINUS = "−"
LONGEST_NAME = 48  # letters of a version in the headline
LONGEST_REASON = 240
MOST_REASONS = 3  # in the first lines; all of them are further down


@dataclass(frozen=True, slots=True)
class Unit:
    """How a metric is written. The statistics negate metrics where less is better; here they keep their usual sign.
    Levels have one digit more than changes, so that the difference of two levels agrees with the change."""

    title: str
    level: str = "{:.4f}"  # one version's
    change: str = "{:+.3f}"
    name: str = ""  # the unit of a change
    factor: float = 1.0
    sign: float = 1.0  # −1: less is better; the comparison negates it
    gain: str = "does better"  # what a candidate with a difference above 0 does


TURNED = {  # a difference above 0, and below 0, of metrics where less is better
    "safety": ("safer", "less safe"),
    "latency": ("faster", "slower"),
    "cost": ("fewer tokens", "more tokens"),
}
UNITS = {
    "success": Unit("Success", "{:.2f} %", "{:+.1f}", "points", factor=100.0, gain="succeeds more often"),
    "reward": Unit("Reward", gain="earns more reward"),
    "safety": Unit("Safety cost", sign=-1.0, gain="is safer"),
    "latency": Unit("Latency", "{:.3f} s", "{:+.2f}", "s", sign=-1.0, gain="is faster"),
    "cost": Unit("Tokens", "{:,.2f}", "{:+,.1f}", sign=-1.0, gain="needs fewer tokens"),
}


@dataclass(frozen=True, slots=True)
class ProofStatus:
    kind: str  # "promote", "hold", "reject", "blocked"
    sign: str  # for readers who do not see the colour
    title: str


SIGNS = {"promote": "✓", "hold": "…", "reject": "✕", "blocked": "■"}
STANDINGS = {kind: ProofStatus(kind, sign, kind.capitalize()) for kind, sign in SIGNS.items()}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    title: str
    value: str
    note: str
    kind: str = ""  # "better", "worse"


def unit(metric: str) -> Unit:
    return UNITS.get(metric) or Unit(metric)


def amount(metric: str, value: float) -> str:
    """The level of one version, with the usual sign."""
    known = unit(metric)
    return minus(known.level.format(value * known.factor * known.sign + 0.0))


def change(metric: str, value: float) -> str:
    """Candidate minus baseline with the usual sign; the argument is positive where better."""
    return f"{_bare(metric, value)} {unit(metric).name}".rstrip()


def range_of(metric: str, low: float, high: float) -> str:
    """A range of differences, the lower end first."""
    low, high = (low, high) if unit(metric).sign > 0 else (high, low)
    return f"{_bare(metric, low)} to {change(metric, high)}"


def tick(metric: str, value: float) -> str:
    known = unit(metric)
    scaled = value * known.factor * known.sign
    return minus(f"{scaled:+.6g}" if scaled else "0")


def less(metric: str) -> str:
    """The note beside a metric where less is better."""
    return "less is better" if unit(metric).sign < 0 else ""


def gain(metric: str, value: float) -> str:
    """A difference as in the statistics and on the command line: above 0 is better."""
    return f"{_bare(metric, value, 1.0)} {unit(metric).name}".rstrip()


def gains(metric: str, low: float, high: float) -> str:
    return f"{_bare(metric, low, 1.0)} to {gain(metric, high)}"


def merit(metric: str) -> str:
    """The title of a metric where above 0 is better."""
    return {"Safety cost": "Safety"}.get(unit(metric).title, unit(metric).title)


def means(metric: str, value: float) -> str:
    """The note beside a gain whose sign is negated."""
    better, worse = TURNED.get(metric, ("", ""))
    return better if value > 0 else worse if value < 0 else ""


def with_interval(comparison: MetricComparison) -> str:
    metric, interval = comparison.metric, comparison.interval
    reach = range_of(metric, interval.low, interval.high)
    return f"{change(metric, comparison.difference)}, {percent(interval.level)} {kind_of(comparison)} {reach}"


def kind_of(comparison: MetricComparison) -> str:
    return "confidence sequence" if comparison.method == BETTING else "interval"


def _corrected(comparison: MetricComparison) -> str:
    if comparison.corrected is None:
        return ""
    return f"; {change(comparison.metric, comparison.corrected)} corrected for the stop"


def status_of(view: ProofView) -> ProofStatus:
    """The status: a gate decides, else the criteria; neither replaces a proof."""
    outcome = view.verdict.outcome
    if outcome is Outcome.PROMOTE and (_is_closed(view) or (view.decision is None and unmet(view))):
        return STANDINGS["blocked"]
    return STANDINGS[str(outcome)]


def unmet(view: ProofView) -> list[GateCriterion]:
    return [criterion for criterion in view.criteria if criterion.blocks and not criterion.is_met]


def stated(seen: MetricComparison) -> str:
    """The gain to state: corrected, where a proof was stopped by a high one."""
    if seen.corrected is None:
        return change(seen.metric, seen.difference)
    gain, raw = change(seen.metric, seen.corrected), change(seen.metric, seen.difference)
    return f"{gain}, corrected for the stop ({raw} seen)"


def headline(view: ProofView) -> str:
    """The verdict in one sentence."""
    seen = view.comparisons.get(view.primary)
    gain, baseline, candidate = unit(view.primary).gain, short(view.baseline), short(view.candidate)
    what = f"{_name(view.primary)} " if less(view.primary) else ""
    by = "" if seen is None else f": {what}{stated(seen)}"
    match status_of(view).kind:
        case "promote":
            also = ", and safety is proved to hold" if view.safety and view.safety.proved_at else ""
            return f"{candidate} {gain} than {baseline}{by}{also}."
        case "blocked":
            but = "the gate stays closed" if _is_closed(view) else "not every criterion is met"
            return f"{candidate} {gain} than {baseline}{by}, but {but}."
        case "reject" if _is_unsafe(view):
            return f"{candidate} is proved to be less safe than {baseline} by more than is allowed."
        case "reject":
            return f"{candidate} is proved not to be better than {baseline}{by}."
        case _:
            if view.sequence.proved_at:
                return f"{candidate} {gain} than {baseline}{by}, but it is not proved yet that it is safe."
            return f"It is not proved yet that {candidate} {gain} than {baseline}{by} so far."


def open_points(view: ProofView) -> list[str]:
    """Says in sentences what would change the verdict."""
    lines = list[str]()
    if view.decision is not None and not view.decision.open:
        lines.append(_listed("The gate is closed", [reason.text for reason in view.decision.reasons]))
    elif view.decision is None and unmet(view):
        lacking = [
            f"{criterion.name.lower()} {criterion.measured}, wanted {criterion.required}" for criterion in unmet(view)
        ]
        lines.append(_listed("Not met", lacking))
    known = _deciding(view)
    now = f"{unit(known.metric).title} differs by {_bounds(known)}{_turned(known.metric)}"
    match view.verdict.outcome:
        case Outcome.PROMOTE:
            lines += _asked_more(view)
            lines.append("Other tasks might change it: what is proved is about tasks like these.")
        case Outcome.HOLD:
            more = f"About {view.verdict.needs:,} more episodes of each version, should they go as these did."
            lines.append(more if _mean(known) > known.bar else "More episodes that go as these did would not prove it.")
            lines.append(f"{now}, as far as is known; it has to be {asked(known)}.")
        case Outcome.REJECT:
            lines.append(f"{now}, where it has to be {asked(known)}; more tasks like these would not change that.")
    return lines


def _asked_more(view: ProofView) -> list[str]:
    """The strictest requirements that would still have been proved."""
    more, safety = list[str](), view.safety
    if view.sequence.low[-1] > view.sequence.bar:
        least = change(view.primary, view.sequence.low[-1])
        is_turned = less(view.primary)
        more.append(f"a change in {_name(view.primary)} below {least}" if is_turned else f"a gain above {least}")
    if safety is not None and safety.low[-1] > safety.bar:
        rise = round(-safety.low[-1], 3)
        beyond = f"rise in safety cost below {rise:.3f}" if rise > 0 else f"fall in safety cost beyond {abs(rise):.3f}"
        more.append(f"a {beyond}")
    return [f"Had {' or '.join(more)} been asked for, it would not be proved."] if more else []


def _deciding(view: ProofView) -> MetricSequence:
    """The sequence that decides: the gain, unless only safety is unproved."""
    if view.safety is not None and (_is_unsafe(view) or (view.sequence.proved_at and not view.safety.proved_at)):
        return view.safety
    return view.sequence


def _is_unsafe(view: ProofView) -> bool:
    return view.safety is not None and view.safety.refuted_at is not None and view.sequence.refuted_at is None


def cards(view: ProofView) -> list[Card]:
    """The key figures."""
    found = list[Card]()
    for metric in dict.fromkeys((view.primary, "safety")):
        comparison = view.comparisons.get(metric)
        if comparison is None:
            continue
        low, high = comparison.interval.low, comparison.interval.high
        turned = f"{less(metric)}; " if less(metric) else ""
        limit = f"; up to {_bare(metric, -comparison.margin)} would be accepted" if comparison.margin else ""
        sure = f"{percent(comparison.interval.level)} {kind_of(comparison)} {range_of(metric, low, high)}"
        if comparison.method == BETTING and comparison.margin:  # the bets were on this one side alone
            ruled = "is ruled out" if comparison_row(comparison).candidate == "no worse" else "is not ruled out"
            most = _bare(metric, -comparison.margin)
            sure, limit = f"a change by {most} or more {ruled} (one-sided p {p(comparison.p_value)})", ""
        found.append(
            Card(
                title=f"{unit(metric).title}, change",
                value=change(metric, comparison.difference),
                note=f"{turned}{sure}{_corrected(comparison)}{limit}",
                kind="better" if low > 0 else "worse" if high < 0 else "",
            )
        )
    seen = view.comparisons.get(view.primary)
    if seen is not None:
        adjusted = view.adjusted.get(view.primary)
        note = seen.method if adjusted is None else f"{seen.method}; {p(adjusted)} for all metrics at once"
        by = "however often one looks" if seen.method == BETTING else "by one look"
        found.append(Card(title=f"One-sided p, {by}", value=p(seen.p_value), note=note))
    proved = view.sequence.proved_at
    note = "no proof so far" if proved is None else f"{_name(view.primary)} was proved after {proved} of them"
    note += ", however often one looks"
    found.append(Card(title="Tasks, done by both", value=f"{view.sequence.tasks:,}", note=note))
    return found


def p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def percent(level: float) -> str:
    return f"{100 * level:.4g} %"


def course_told(known: MetricSequence) -> str:
    mean = change(known.metric, _mean(known))
    seen = (
        f"After {known.tasks} tasks {_name(known.metric)} differs by {mean}{_turned(known.metric)}, "
        f"and {percent(known.level)} surely by {_bounds(known)}"
    )
    return f"{seen}. That it is {asked(known)} {course_proved(known)}, however often one looks."


def course_proved(known: MetricSequence) -> str:
    for at, what in ((known.proved_at, "was proved"), (known.refuted_at, "was disproved")):
        if at is not None:
            return f"{what} after {at} tasks"
    return f"is not proved after {known.tasks} tasks"


def asked(known: MetricSequence) -> str:
    """The required range of the difference."""
    side = "below" if less(known.metric) else "above"
    return f"{side} {change(known.metric, known.bar) if known.bar else 0}"


def speaks_turned(texts: Sequence[str]) -> bool:
    """Whether reasons give a negated safety or latency, as gates compare it."""
    return any(re.search(r"\b(safety|latency) [+-]\d", text) for text in texts)


def _name(metric: str) -> str:
    return unit(metric).title.lower()


def _turned(metric: str) -> str:
    return f" ({less(metric)})" if less(metric) else ""


def _mean(known: MetricSequence) -> float:
    return fsum(known.differences) / known.tasks


def _bounds(known: MetricSequence) -> str:
    return range_of(known.metric, known.low[-1], known.high[-1])


def _bare(metric: str, value: float, sign: float | None = None) -> str:
    """A change without its unit, with the usual sign or this one; 0 has no sign."""
    known = unit(metric)
    text = known.change.format(value * known.factor * (known.sign if sign is None else sign))
    return minus(text) if text.strip("+-0.,") else "0"


def minus(text: str) -> str:
    """With a minus sign as wide as a plus."""
    return text.replace("-", MINUS)


def short(name: str, most: int = LONGEST_NAME) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _listed(title: str, reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - MOST_REASONS} more below" if len(reasons) > MOST_REASONS else ""
    return f"{title}: {'; '.join(short(reason, LONGEST_REASON) for reason in reasons[:MOST_REASONS])}{more}."


def _is_closed(view: ProofView) -> bool:
    return view.decision is not None and not view.decision.open
