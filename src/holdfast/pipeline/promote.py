"""The gate: evidence is weighed, a decision is made, and the store notes it or moves the version; all of it on record.

What is brought before it, and how it is judged, is a `PromotionRequest`; when, is up to a run or to a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Any

from holdfast.contracts.errors import Conflict, NotFound
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import dumps, encode, loads
from holdfast.contracts.release import Release, Stage
from holdfast.pipeline.proof import PromotionRequest
from holdfast.store.sql import Transaction
from holdfast.store.store import Store

Clock = Callable[[], float]
Fence = Callable[[Transaction], None]
CANARY_SHARE = 5  # percent, to begin with


async def promote(
    store: Store,
    request: PromotionRequest,
    *,
    clock: Clock,
    who: str,
    fence: Fence | None = None,
    check: Callable[[], None] = lambda: None,
) -> dict[str, Any]:
    """Weigh the evidence, let the gate decide, and act on it. Either way it is in the ledger.

    Done twice, as after a kill, it comes to the same: a version that has moved on stays where it is, and what was
    noted before is not noted again. `fence` is asked within each write, `check` before anything is published or moved.
    """
    releases, case = store.releases, request.candidate
    baseline = await releases.add(
        policy=case.policy, kind=case.kind, source=case.baseline, manifest=case.baseline_manifest, who=who, now=clock()
    )
    if request.to is not None and releases.live(case.policy) is None and baseline.stage is Stage.CANDIDATE:
        baseline = await adopt(store, baseline, who=who, now=clock(), fence=fence)
    candidate = await releases.add(
        policy=case.policy,
        kind=case.kind,
        source=case.candidate,
        parent=baseline.id,
        manifest={"run": case.run, **case.manifest},
        who=who,
        now=clock(),
    )
    samples = await asyncio.to_thread(store.blobs.put, request.samples, now=clock())
    evidence = await asyncio.to_thread(request.weigh, baseline.id, candidate.id, samples)
    blob = await asyncio.to_thread(store.blobs.put, dumps(evidence).encode(), now=clock())
    while True:
        decision = _decided(store, request, candidate, evidence)
        await asyncio.to_thread(check)  # weighing takes its time: what was ordered meanwhile holds
        published = await asyncio.to_thread(request.publish, evidence, decision)  # nothing serves without its proof
        told: dict[str, Any] = {"evidence": blob, "decision": decision, "proof": published.get("proof_sha256")}
        try:
            if candidate.stage is Stage.CANDIDATE:
                candidate = await _act(store, request, candidate, evidence, told, who=who, now=clock(), fence=fence)
        except Conflict:  # another went live meanwhile, or this one moved: once more, as things are now
            candidate = releases.get(candidate.id)
            continue
        return {"release": candidate.id, "decision": encode(decision), "evidence": blob, **published}


def tries(store: Store, policy: str, baseline: str, candidate: str) -> int:
    """How often these two sources were brought before the gate: whoever proves again and again must not pick the best.

    A run that continues another is the same try, unless it measured the same tasks with further seeds.
    """
    known = store.releases.of_policy(policy)
    old, new = ({one.id for one in known if _is_same(store, one.source, source)} for source in (baseline, candidate))
    runs = {str(one.manifest["run"]) for one in weighed_about(store, policy, new) if one.baseline in old}
    return sum(_tries_in(store, run, new) for run in runs)


def weighed_about(store: Store, policy: str, releases: Collection[str]) -> list[Evidence]:
    """All that a gate has decided on about these releases of a policy."""
    blobs = {entry.body.get("evidence") for entry in store.releases.history(policy)} - {None}
    found = (loads(Evidence, store.blobs.get(str(blob))) for blob in blobs)
    return [one for one in found if one.candidate in releases and "run" in one.manifest]


def _is_same(store: Store, one: str, other: str) -> bool:
    return one == other or _bytes(store, one) == _bytes(store, other)


def _bytes(store: Store, source: str) -> str:
    """The hash of a checkpoint's weights: learnt again by another run, they have another name."""
    kind, _, name = source.partition(":")
    try:
        artifact = store.checkpoints.get(name).artifact if kind == "checkpoint" else None
    except NotFound:  # pruned
        artifact = None
    return source if artifact is None else artifact.sha256


def _tries_in(store: Store, run: str, releases: Collection[str]) -> int:
    """One for each iteration that decided about them; a proof of its own is one."""
    try:
        continues = store.runs.get(run).settings.get("continues")
    except NotFound:  # pruned
        return 1
    if continues is not None:
        return int(continues["is_repeat"])
    bodies = (one.body for one in store.steps.of_run(run))
    return sum(bool(body.get("decision")) and body.get("release") in releases for body in bodies) or 1


async def _act(
    store: Store,
    request: PromotionRequest,
    candidate: Release,
    evidence: Evidence,
    told: Mapping[str, Any],
    *,
    who: str,
    now: float,
    fence: Fence | None,
) -> Release:
    """Move it where an open gate leads; where it is to stay, or the gate is closed, note the decision once."""
    decision: Decision = told["decision"]
    if decision.open and request.to is not None:
        return await store.releases.move(
            candidate.id,
            request.to,
            expect=Stage.CANDIDATE,
            expect_live=evidence.baseline,
            share=(request.share or CANARY_SHARE) if request.to is Stage.CANARY else None,
            who=who,
            why=decision.reasons[0].text,
            now=now,
            fence=fence,
            **told,
        )
    if not _is_noted(store, candidate, decision, told["evidence"]):
        await store.releases.note(candidate.id, who=who, now=now, fence=fence, **told)
    return candidate


def _decided(store: Store, request: PromotionRequest, candidate: Release, evidence: Evidence) -> Decision:
    """What the gate says, as things are now; a version that has moved on is not held back by what came after it."""
    decision = request.decide(evidence)
    if candidate.stage is not Stage.CANDIDATE:
        return decision
    policy = request.candidate.policy
    decision = _of_the_live(store.releases.live(policy), evidence, decision)
    if request.to is Stage.CANARY:
        decision = _alone(store.releases.at(policy, Stage.CANARY), decision)
    return decision


def _alone(canaries: Sequence[Release], decision: Decision) -> Decision:
    """One canary at a time: two would be compared with each other's callers."""
    if not decision.open or not canaries:
        return decision
    text = f"{canaries[0].id} is the canary already: take that one live, or back, before"
    return Decision(open=False, reasons=(Reason(code="canary_under_way", text=text),))


async def adopt(store: Store, release: Release, *, who: str, now: float, fence: Fence | None = None) -> Release:
    """The first version of a policy serves without a proof: there is nothing that it could be worse than."""
    why = "the first version: what others are measured against"
    return await store.releases.move(
        release.id, Stage.LIVE, expect=release.stage, who=who, why=why, now=now, known_good=True, fence=fence
    )


def _is_noted(store: Store, candidate: Release, decision: Decision, evidence: str) -> bool:
    """Whether this very decision is in the ledger."""
    word = "accept" if decision.open else "refuse"
    told = {word: candidate.id, "evidence": evidence, "decision": encode(decision)}
    history = store.releases.history(candidate.policy) if candidate.evidence == evidence else []
    return any(told.items() <= entry.body.items() for entry in history)


def _of_the_live(live: Release | None, evidence: Evidence, decision: Decision) -> Decision:
    """A proof against anything but what is in service proves nothing about replacing it."""
    if live is None or live.id in (evidence.baseline, evidence.candidate):
        return decision
    text = f"it was measured against {evidence.baseline}, and {live.id} is live"
    stale = Reason(code="baseline_is_not_live", text=text)
    return Decision(open=False, reasons=(stale, *(() if decision.open else decision.reasons)), needs=decision.needs)
