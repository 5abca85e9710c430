"""A gate's decision as lines for 80 columns: what became of a version, where it is now, and why."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby

from holdfast.cli.onward import folded, step
from holdfast.contracts.evidence import Decision, MetricComparison, Reason
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.promote.gate import ALLOWED, NAMES
from holdfast.promote.release import UNDECIDED

SERVES = {
    Stage.SHADOW: "it serves nobody yet",
    Stage.CANARY: "it answers {share} % of the callers",
    Stage.LIVE: "it answers the callers",
}


def outcome(decision: Decision, now: Release | None = None) -> str:
    """In one word: what may still come is held, what may not is refused; what is accepted has not moved."""
    if decision.open:
        return "accepted" if now is not None and now.stage is Stage.CANDIDATE else "promoted"
    is_waited_for = decision.needs is not None or decision.reasons[0].code == UNDECIDED
    return "held" if is_waited_for else "refused"


def onward(now: Release, decision: Decision) -> str:
    """The command that comes next; of what is held, `told` names another before it."""
    if not decision.open:
        return f"holdfast release explain {now.id}"
    is_there = now.stage is not Stage.CANDIDATE
    return f"holdfast release serve {now.policy}" if is_there else f"holdfast release promote {now.id}"


def is_measurable(decision: Decision) -> bool:
    """Whether more episodes may open the gate; what a guard waits for is answers to callers."""
    return outcome(decision) == "held" and decision.reasons[0].code != UNDECIDED


def headline(release: str, decision: Decision, now: Release | None = None) -> str:
    """What became of it, and where it is now, where that is known."""
    needs = ""
    if decision.needs is not None:
        is_guard = decision.reasons[0].code == UNDECIDED
        what = "answers may decide it" if is_guard else "episodes may open the gate"
        needs = f"; about {decision.needs} more {what}"
    return f"{release}: {outcome(decision, now)}{_whereabouts(decision, now)}{needs}"


def _whereabouts(decision: Decision, now: Release | None) -> str:
    if now is None:
        return ""
    if not decision.open or now.stage is Stage.CANDIDATE:
        return f"; it stays {now.stage}"
    serves = SERVES.get(now.stage)
    return f"; it is {now.stage} by now" if serves is None else f" to {now.stage}; {serves.format(share=now.share)}"


def told(release: str, decision: Decision, now: Release | None = None, indent: str = "", at: str = "") -> Iterator[str]:
    """The headline and the reasons; of what is held, the command that adds what is missing. `at` finds the store."""
    yield from folded(headline(release, decision, now), indent)
    yield from lines(decision.reasons, f"{indent}  ")
    if is_measurable(decision) and (now is None or now.kind is not PolicyKind.NETWORK):
        yield from step(f"holdfast prove more {release} --tasks FILE{at}", "more episodes for it", f"{indent}  ")


def lines(reasons: tuple[Reason, ...], indent: str = "  ") -> Iterator[str]:
    """Each reason under its code, folded. Of an open gate only what sums it up: what was met is in the JSON."""
    if reasons and reasons[0].code == ALLOWED:
        yield from folded(reasons[0].text, indent)
        return
    for code, some in groupby(reasons, key=lambda reason: reason.code):
        yield f"{indent}{code}"
        for reason in some:
            yield from folded(reason.text, f"{indent}  ")


def name(metric: str) -> str:
    """As it is called everywhere, with its unit."""
    return NAMES.get(metric, metric)


def figures(one: MetricComparison) -> str:
    """A comparison on one line; above 0 the candidate is better."""
    margin = f", may lose {one.margin:g}" if one.margin else ""
    ends = f"{one.interval.low:+.3f} to {one.interval.high:+.3f} at {one.interval.level:.0%}"
    return f"{name(one.metric):<11} {one.difference:+.3f} ({ends}), p {one.p_value:.2g}{margin}"
