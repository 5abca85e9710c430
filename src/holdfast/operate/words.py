"""What the page of a proof says: each metric in its own unit, the verdict as a sentence, and what would change it."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from math import fsum

from holdfast.contracts.evidence import Comparison, Outcome
from holdfast.operate.exhibit import Course, Criterion, ProofView

MINUS = "−"
LONGEST_NAME = 48  # letters of a version in the headline
LONGEST_REASON = 240
MOST_REASONS = 3  # in the first lines; all of them are further down


@dataclass(frozen=True, slots=True)
class Unit:
    """How a metric is written. Those that are better when less are compared with their sign turned round."""

    title: str
    level: str = "{:.3f}"  # one version's
    change: str = "{:+.3f}"
    name: str = ""  # of what a change is counted in
    factor: float = 1.0
    sign: float = 1.0
    gain: str = "does better"  # what a candidate with a difference above 0 does


UNITS = {
    "success": Unit("Success", "{:.1f} %", "{:+.1f}", "points", factor=100.0, gain="succeeds more often"),
    "reward": Unit("Reward", gain="earns more reward"),
    "safety": Unit("Safety cost", sign=-1.0, gain="is safer"),
    "latency": Unit("Latency", "{:.2f} s", "{:+.2f}", "s", sign=-1.0, gain="is faster"),
    "cost": Unit("Tokens", "{:,.0f}", "{:+,.0f}", sign=-1.0, gain="needs fewer tokens"),
}


@dataclass(frozen=True, slots=True)
class Standing:
    kind: str  # "promote", "hold", "reject", "blocked"
    sign: str  # so that it is told by more than its colour
    title: str


STANDINGS = {
    "promote": Standing("promote", "✓", "Promote"),
    "hold": Standing("hold", "…", "Hold"),
    "reject": Standing("reject", "✕", "Reject"),
    "blocked": Standing("blocked", "■", "Blocked"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Card:
    title: str
    value: str
    note: str
    kind: str = ""  # "better", "worse"


def printable(text: str) -> str:
    """Letters that show themselves: none that break lines, turn the direction of writing or are half a letter."""
    return "".join(letter if letter.isprintable() else "�" for letter in text)


def unit(metric: str) -> Unit:
    return UNITS.get(metric) or Unit(metric)


def amount(metric: str, value: float) -> str:
    """One version's level, as people know it: a latency is above 0 again."""
    known = unit(metric)
    return minus(known.level.format(value * known.factor * known.sign + 0.0))


def change(metric: str, value: float) -> str:
    """A difference; above 0 is better, for every metric."""
    return f"{_bare(metric, value)} {unit(metric).name}".rstrip()


def between(metric: str, low: float, high: float) -> str:
    return f"{_bare(metric, low)} to {change(metric, high)}"


def tick(metric: str, value: float) -> str:
    scaled = value * unit(metric).factor
    return minus(f"{scaled:+.6g}" if scaled else "0")


def with_interval(comparison: Comparison) -> str:
    metric, interval = comparison.metric, comparison.interval
    reach = between(metric, interval.low, interval.high)
    return f"{change(metric, comparison.difference)}, {percent(interval.level)} interval {reach}"


def standing(view: ProofView) -> Standing:
    """What happens now: a gate that was asked has the last word, else the criteria; neither makes up for a proof."""
    outcome = view.verdict.outcome
    if outcome is Outcome.PROMOTE and (_is_closed(view) or (view.decision is None and unmet(view))):
        return STANDINGS["blocked"]
    return STANDINGS[str(outcome)]


def unmet(view: ProofView) -> list[Criterion]:
    return [criterion for criterion in view.criteria if criterion.blocks and not criterion.is_met]


def headline(view: ProofView) -> str:
    """The verdict in one sentence."""
    seen = view.comparisons.get(view.primary)
    gain, baseline, candidate = unit(view.primary).gain, short(view.baseline), short(view.candidate)
    by = "" if seen is None else f": {change(view.primary, seen.difference)}"
    match standing(view).kind:
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
            if view.course.proved_at:
                return f"{candidate} {gain} than {baseline}{by}, but it is not proved yet that it is safe."
            return f"It is not proved yet that {candidate} {gain} than {baseline}{by} so far."


def changes(view: ProofView) -> list[str]:
    """What would make the verdict another one, sentence by sentence."""
    told = list[str]()
    if view.decision is not None and not view.decision.open:
        told.append(_listed("The gate is closed", [reason.text for reason in view.decision.reasons]))
    elif view.decision is None and unmet(view):
        lacking = [f"{each.name.lower()} {each.found}, wanted {each.wanted}" for each in unmet(view)]
        told.append(_listed("Not met", lacking))
    known = _deciding(view)
    now = f"{known.metric.capitalize()} differs by {_bounds(known)}"
    match view.verdict.outcome:
        case Outcome.PROMOTE:
            told += _asked_more(view)
            told.append("Other tasks might change it: what is proved is about tasks like these.")
        case Outcome.HOLD:
            hope = (
                "they go as these did" if _mean(known) > known.bar else "there be a gain worth having; none is seen yet"
            )
            told.append(f"About {view.verdict.needs:,} more episodes of each version, should {hope}.")
            told.append(f"{now}, as far as is known; it has to be {above(known)}.")
        case Outcome.REJECT:
            told.append(f"{now}, where it has to be {above(known)}; more tasks like these would not change that.")
    return told


def _asked_more(view: ProofView) -> list[str]:
    """How much more could have been asked for, and would have been proved."""
    asked, safety = list[str](), view.safety
    if view.course.low[-1] > view.course.bar:
        asked.append(f"a gain above {change(view.primary, view.course.low[-1])}")
    if safety is not None and safety.low[-1] > safety.bar:
        asked.append(f"a rise in safety cost below {max(0.0, -safety.low[-1]):.3f}")
    return [f"Had {' or '.join(asked)} been asked for, it would not be proved."] if asked else []


def _deciding(view: ProofView) -> Course:
    """What keeps it from being promoted: the gain, unless that is proved and safety is not."""
    if view.safety is not None and (_is_unsafe(view) or (view.course.proved_at and not view.safety.proved_at)):
        return view.safety
    return view.course


def _is_unsafe(view: ProofView) -> bool:
    return view.safety is not None and view.safety.refuted_at is not None and view.course.refuted_at is None


def cards(view: ProofView) -> list[Card]:
    """The key figures."""
    found = list[Card]()
    for metric in dict.fromkeys((view.primary, "safety")):
        comparison = view.comparisons.get(metric)
        if comparison is None:
            continue
        low, high = comparison.interval.low, comparison.interval.high
        limit = f"; {_bare(metric, -comparison.margin)} would be accepted" if comparison.margin else ""
        found.append(
            Card(
                title=f"{unit(metric).title}, better by",
                value=change(metric, comparison.difference),
                note=f"{percent(comparison.interval.level)} interval {between(metric, low, high)}{limit}",
                kind="better" if low > 0 else "worse" if high < 0 else "",
            )
        )
    seen = view.comparisons.get(view.primary)
    if seen is not None:
        adjusted = view.adjusted.get(view.primary)
        note = seen.method if adjusted is None else f"{seen.method}; {p(adjusted)} for all metrics at once"
        found.append(Card(title="One-sided p", value=p(seen.p_value), note=note))
    proved = view.course.proved_at
    note = "no proof so far" if proved is None else f"proved after {proved} of them"
    found.append(Card(title="Paired tasks", value=f"{view.course.tasks:,}", note=note))
    return found


def p(value: float) -> str:
    return "< 0.0001" if value < 0.0001 else f"{value:.4f}" if value < 0.1 else f"{value:.2f}"


def percent(level: float) -> str:
    return f"{100 * level:.4g} %"


def course_told(known: Course) -> str:
    mean = sum(known.differences) / known.tasks
    seen = (
        f"After {known.tasks} tasks: {change(known.metric, mean)}, and {percent(known.level)} sure of {_bounds(known)}"
    )
    for at, what in ((known.proved_at, "was proved"), (known.refuted_at, "was disproved")):
        if at is not None:
            return f"{seen}. That it is {above(known)} {what} after {at} tasks."
    return f"{seen}. That it is {above(known)} is not proved."


def above(known: Course) -> str:
    return f"above {change(known.metric, known.bar) if known.bar else 0}"


def _mean(known: Course) -> float:
    return fsum(known.differences) / known.tasks


def _bounds(known: Course) -> str:
    return between(known.metric, known.low[-1], known.high[-1])


def _bare(metric: str, value: float) -> str:
    known = unit(metric)
    return signed(known.change.format(value * known.factor))


def signed(text: str) -> str:
    """A number as it was formatted; nothing is neither above nor below 0."""
    return minus(text) if text.strip("+-0.,") else "0"


def minus(text: str) -> str:
    """With the sign that is as wide as a plus."""
    return text.replace("-", MINUS)


def short(name: str, most: int = LONGEST_NAME) -> str:
    return name if len(name) <= most else f"{name[: most - 1]}…"


def _listed(title: str, reasons: Sequence[str]) -> str:
    more = f"; and {len(reasons) - MOST_REASONS} more below" if len(reasons) > MOST_REASONS else ""
    return f"{title}: {'; '.join(short(reason, LONGEST_REASON) for reason in reasons[:MOST_REASONS])}{more}."


def _is_closed(view: ProofView) -> bool:
    return view.decision is not None and not view.decision.open
