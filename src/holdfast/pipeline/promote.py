"""The gate: evidence is weighed, a decision is made, and the store notes it or moves the version; all of it on record.

What is brought before it, and how it is judged, is a `PromotionRequest`; when, is up to a run or to a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.contracts.errors import Conflict
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import dumps, encode
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
