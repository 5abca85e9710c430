"""Lines about a version for 80 columns: a decision, the ledger's history, its evidence, and what its guard measures."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import asdict
from itertools import groupby
from typing import TYPE_CHECKING, Any

from holdfast.cli.show import folded, left, moment, step
from holdfast.contracts.evidence import Decision, Evidence, MetricComparison, Reason
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.promote.gate import ALLOWED, NAMES
from holdfast.promote.release import UNDECIDED

if TYPE_CHECKING:
    from holdfast.contracts.run import LedgerEntry
    from holdfast.operate.publication import RecomputedDecision
    from holdfast.store.store import Store


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


STATES = {"open": "undecided"}  # of a guard's reading; a gate alone is open or closed


def evidence_of(store: Store, release: Release) -> Evidence | None:
    return None if release.evidence is None else loads(Evidence, store.blobs.get(release.evidence))


def guard_of(store: Store, release: Release) -> dict[str, Any] | None:
    """What its guard sees; None where nothing of it is watched."""
    from holdfast.operate.canary_controller import judge
    from holdfast.prove.guard import GuardLimits

    live = store.releases.live(release.policy)
    if live is None or release.stage not in (Stage.CANARY, Stage.SHADOW):
        return None
    return asdict(judge(store, release, live, GuardLimits()))


def last_decision(store: Store, release: Release) -> tuple[Decision, LedgerEntry] | None:
    """The last one about it, of a gate or a guard, and its entry."""
    for entry in reversed(store.releases.history(release.policy)):
        is_about = release.id in [entry.body.get(name) for name in ("move", "refuse", "accept")]
        if is_about and entry.body.get("decision"):
            return decode(Decision, dict(entry.body["decision"])), entry
    return None


def shown(
    release: Release,
    decided: tuple[Decision, LedgerEntry] | None,
    evidence: Evidence | None,
    guard: dict[str, Any] | None,
) -> Iterator[str]:
    """One version, as it is now."""
    yield f"{release.id}: {release.stage}{f' with {release.share} %' if release.share else ''}"
    yield from _line("since", moment(release.changed_at)[:16])
    yield from _line("source", release.source)
    yield from _line("parent", release.parent or "none")
    for key, value in release.manifest.items():
        yield from _line(key, f"{len(value)} values" if isinstance(value, dict) else str(value))
    if decided is not None:
        decision, entry = decided
        word = "accepted" if "accept" in entry.body else headline(release.id, decision).partition(": ")[2]
        yield from _line("decision", f"{word} ({moment(entry.at)[:16]}, by {entry.who})")
    for line in _figures(evidence):
        yield f"  {line}"
    if guard is not None:
        for metric, one in guard["readings"].items():
            told = f"live {_number(one['live'])}, this {_number(one['canary'])}, {one['n']} answers"
            yield f"  guard    {name(metric):<11} {STATES.get(one['state'], one['state']):<9} {told}"


def explained(release: Release, found: RecomputedDecision, way_back: list[str]) -> Iterator[str]:
    """How it came to be where it is, and whether the samples still say so."""
    serves = SERVES.get(release.stage, "it serves nobody").format(share=release.share)
    yield f"{release.id} is {release.stage}; {serves}\n"
    for entry in found.history:
        what, why = happened(entry)
        yield from folded(f"{moment(entry.at)[:16]}  {what}, by {entry.who}", "  ")
        if entry.body.keys() & {"refuse", "accept"}:
            yield from lines(decode(Decision, dict(entry.body["decision"])).reasons, "    ")
        else:
            yield from folded(why, "    ")
    for line in _figures(found.evidence):
        yield f"  {line}"
    if found.again is not None:
        verb = "is the same" if found.is_same else "DIFFERS"
        gate = "open" if found.again.open else "closed"
        yield f"\ndecided once more from {found.episodes} stored episodes: {gate}; it {verb}"
        if not found.is_same:
            yield from lines(found.again.reasons)
    yield f"ledger: {found.entries} entries, the chain holds"
    for problem in found.problems:
        yield from folded(f"CHANGED: {problem}", "")
    if found.proof:
        yield from left("proof:", found.proof)
    yield from way_back


def happened(entry: LedgerEntry) -> tuple[str, str]:
    """What an entry of the ledger says, and why."""
    body, why = entry.body, str(entry.body.get("why", ""))
    if "add" in body:
        return f"{body['add']} registered", str(body.get("source", ""))
    if "refuse" in body:
        decision = decode(Decision, dict(body["decision"]))
        texts = "; ".join(f"{one.code}: {one.text}" for one in decision.reasons)
        return f"{body['refuse']} {outcome(decision)}", texts
    if "accept" in body:
        return f"{body['accept']} accepted", decode(Decision, dict(body["decision"])).reasons[0].text
    if "roll_back" in body:
        return f"{body['roll_back']} taken back, {body['to']} live", why
    if "restore" in body:
        return f"{body['restore']} live again, {body['retired']} retired", why
    if body.get("to") == Stage.CANDIDATE:
        return f"{body.get('move')} gets a second try", why
    share = f" {body['share']} %" if body.get("share") and body.get("to") == Stage.CANARY else ""
    return f"{body.get('move')} {body.get('from')} → {body.get('to')}{share}", why


def _figures(evidence: Evidence | None) -> list[str]:
    if evidence is None:
        return []
    about = f"evidence: {evidence.episodes} tasks of {evidence.suite}, against {evidence.baseline}"
    titles = [*folded(about), "higher is better:"]
    return titles + [f"  {figures(one)}" for one in evidence.comparisons.values()]


def _line(key: str, text: str) -> list[str]:
    first, *more = folded(text, " " * 11) or [" " * 11 + "-"]
    return [f"  {key:<8} {first.strip()}", *more]


def _number(value: float | None) -> str:
    return "-" if value is None else f"{value:.3g}"
