"""A person's hand on a release: a step further, when evidence and guard allow it, back, or another try. Refusals are
kept too."""

from __future__ import annotations

from dataclasses import dataclass

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Release, Stage, move
from holdfast.operate.canary_controller import judge, lacking, under_way
from holdfast.promote.release import next_step, respond, rollback_target
from holdfast.prove.guard import GuardLimits
from holdfast.store.releases import is_undoable, taken_back
from holdfast.store.store import Store, find_release

FALLEN = (Stage.ROLLED_BACK, Stage.REJECTED)
FIRST = "the first version: what others are measured against"


@dataclass(frozen=True, slots=True)
class Refusal:
    decision: Decision


def advance(
    store: Store, release: Release, *, to: Stage | None, share: int | None, who: str, why: str, now: float
) -> Release | Refusal:
    """One step, or to the stage that is named. What is not proved stays where it is."""
    live = store.releases.live(release.policy)
    step = next_step(release)
    if step is None:
        remedy = f"'holdfast release retry {release.id}' gives it a second try" if release.stage in FALLEN else ""
        raise BadInput(f"release {release.id}", why=f"is {release.stage}: there is no step ahead", remedy=remedy)
    stage, part = step if to is None else (move(release, to), share or (5 if to is Stage.CANARY else 0))
    if share is not None:
        part = share
    if live is None:
        moved = store.releases.move(
            release.id, Stage.LIVE, expect=release.stage, who=who, why=f"{FIRST}; {why}", now=now, known_good=True
        )
        return moved.result()
    decision = _decision(store, release, live)
    if decision.open and release.stage in (Stage.SHADOW, Stage.CANARY):
        decision = _guarded(store, release, live)
    if not decision.open:
        # The evidence stays as it is, and so does the comparison that a canary is in.
        store.releases.note(release.id, decision, evidence=None, who=who, now=now).result()
        return Refusal(decision)
    moved = store.releases.move(
        release.id,
        stage,
        expect=release.stage,
        share=part if stage is Stage.CANARY else None,
        who=who,
        why=why,
        now=now,
        decision=decision,
        known_good=True if stage is Stage.LIVE else None,
    )
    return moved.result()


def way_back(store: Store, policy: str, to: str | None) -> tuple[Release, Release]:
    """Who would be taken back, the canary or else the live one, and who would be live then: the last known good, or the
    one that is named. To a version that a person took back while it was live: that is undone. `control` does it."""
    releases = store.releases.of_policy(policy)
    canary = under_way([one for one in releases if one.stage is not Stage.SHADOW])
    failing = canary or next((one for one in releases if one.stage is Stage.LIVE), None)
    if failing is None:
        raise BadInput(f"policy {policy}", why="nothing of it is in service")
    target = rollback_target(releases, failing) if to is None else find_release(store, to)
    if target is None:
        raise _nowhere(store, releases, failing)
    return failing, target


def _nowhere(store: Store, releases: list[Release], failing: Release) -> BadInput:
    """Nobody can take over; what may be done about it."""
    history = store.releases.history(failing.policy)
    taken = {one.id: taken_back(history, one.id) for one in releases if one.stage is Stage.ROLLED_BACK}
    undoable = next((name for name, body in taken.items() if body is not None and is_undoable(body)), None)
    remedy = "promote another one first"
    if undoable is not None:
        remedy = f"'holdfast release rollback {failing.policy} --to {undoable}' undoes the rollback of {undoable}"
    return BadInput(f"release {failing.id}", why="no other version of it is known to be good", remedy=remedy)


def try_again(store: Store, release: Release, *, who: str, why: str, now: float) -> Release:
    """What was taken back or rejected is a candidate again; what it was proved by then counts no more."""
    if release.stage not in FALLEN:
        remedy = "only what was rolled back or rejected gets a second try"
        raise BadInput(f"release {release.id}", why=f"is {release.stage}", remedy=remedy)
    moved = store.releases.move(release.id, Stage.CANDIDATE, expect=release.stage, who=who, why=why, now=now)
    return moved.result()


def _decision(store: Store, release: Release, live: Release) -> Decision:
    """The last one that a gate made about it from evidence; none is a closed one."""
    made, rests_on = None, ""
    for entry in store.releases.history(release.policy):
        if entry.body.get("move") == release.id and entry.body.get("to") == Stage.CANDIDATE:
            made = None  # a second try begins with nothing
        is_about = release.id in [entry.body.get(name) for name in ("move", "refuse", "accept")]
        if is_about and entry.body.get("evidence") and entry.body.get("decision"):
            made, rests_on = decode(Decision, dict(entry.body["decision"])), str(entry.body["evidence"])
    if made is None:
        text = (
            f"no gate has decided about {release.id} yet; 'holdfast prove run' measures it against {live.id}, "
            "'holdfast release decide' brings that before the gate"
        )
        return Decision(open=False, reasons=(Reason(code="evidence_missing_all", text=text),))
    measured = loads(Evidence, store.blobs.get(rests_on)).baseline
    # A canary's guard compares it with what is live; nothing does so for the quality of a shadow.
    if made.open and release.stage in (Stage.CANDIDATE, Stage.SHADOW) and measured != live.id:
        text = f"it was measured against {measured}, and {live.id} is live; 'holdfast prove run' measures it again"
        return Decision(open=False, reasons=(Reason(code="baseline_is_not_live", text=text),))
    return made


def _guarded(store: Store, release: Release, live: Release) -> Decision:
    """What the guard of its stage says."""
    limits = GuardLimits()
    found = judge(store, release, live, limits)
    response = respond(release, found.breaches, found.is_clear, lacking(found, limits))
    return Decision(open=response.action == "advance", reasons=response.reasons, needs=found.needs or None)
