"""The story of a version for 80 columns: what the ledger says of it, what its evidence says, what its guard sees."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, Any

from holdfast.cli.decision import SERVES, figures, headline, lines, name, outcome
from holdfast.cli.onward import folded, left
from holdfast.cli.show import moment
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Release, Stage

if TYPE_CHECKING:
    from holdfast.contracts.run import LedgerEntry
    from holdfast.operate.publication import RecomputedDecision
    from holdfast.store.store import Store

STATES = {"open": "undecided"}  # of a guard's reading; a gate alone is open or closed


def evidence_of(store: Store, release: Release) -> Evidence | None:
    return None if release.evidence is None else loads(Evidence, store.blobs.get(release.evidence))


def guard_of(store: Store, release: Release) -> dict[str, Any] | None:
    """What its guard sees; None where nothing of it is watched."""
    from dataclasses import asdict

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
