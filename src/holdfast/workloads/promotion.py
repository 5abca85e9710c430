"""Prove and promote: the evidence is weighed, the gate decides, and the store moves the version; all of it on record.

What is proposed, and how it is judged, comes from a workload; when, from the loop or from a person.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.collect.plan import Proposal
from holdfast.contracts.errors import Conflict
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import dumps, encode
from holdfast.contracts.release import Release, Stage
from holdfast.store.store import Store

Clock = Callable[[], float]


async def promote(store: Store, proposal: Proposal, *, clock: Clock, who: str) -> dict[str, Any]:
    """Prove and promote: weigh the evidence, let the gate decide, and act on it. Either way it is in the ledger.

    Done twice, as after a kill, it comes to the same: a version that has moved on stays where it is, and what was
    refused before is not refused again.
    """
    releases, policy = store.releases, proposal.policy
    baseline = await releases.add(policy=policy, kind=proposal.kind, source=proposal.baseline, who=who, now=clock())
    if releases.live(policy) is None and baseline.stage is Stage.CANDIDATE:
        baseline = await adopt(store, baseline, who=who, now=clock())
    candidate = await releases.add(
        policy=policy,
        kind=proposal.kind,
        source=proposal.candidate,
        parent=baseline.id,
        manifest=proposal.manifest,
        who=who,
        now=clock(),
    )
    samples = await asyncio.to_thread(store.blobs.put, proposal.samples, now=clock())
    evidence = await asyncio.to_thread(proposal.weigh, baseline.id, candidate.id, samples)
    blob = await asyncio.to_thread(store.blobs.put, dumps(evidence).encode(), now=clock())
    while True:
        decision = _decided(store, proposal, candidate, evidence)
        published = await asyncio.to_thread(proposal.publish, evidence, decision)  # nothing serves without its proof
        told: dict[str, Any] = {"evidence": blob, "decision": decision, "proof": published.get("proof_sha256")}
        try:
            if candidate.stage is Stage.CANDIDATE and decision.open:
                candidate = await _moved(store, proposal, candidate, evidence, told, who=who, now=clock())
            elif candidate.stage is Stage.CANDIDATE and not _is_refused(store, candidate, decision, blob):
                await releases.refuse(candidate.id, who=who, now=clock(), **told)
        except Conflict:  # another went live meanwhile, or this one moved: once more, as things are now
            candidate = releases.get(candidate.id)
            continue
        return {"release": candidate.id, "decision": encode(decision), "evidence": blob, **published}


def _decided(store: Store, proposal: Proposal, candidate: Release, evidence: Evidence) -> Decision:
    """What the gate says, as things are now; a version that has moved on is not held back by what came after it."""
    decision = proposal.decide(evidence)
    if candidate.stage is not Stage.CANDIDATE:
        return decision
    decision = _of_the_live(store.releases.live(proposal.policy), evidence, decision)
    if proposal.to is Stage.CANARY:
        decision = _alone(store.releases.at(proposal.policy, Stage.CANARY), decision)
    return decision


async def _moved(
    store: Store,
    proposal: Proposal,
    candidate: Release,
    evidence: Evidence,
    told: Mapping[str, Any],
    *,
    who: str,
    now: float,
) -> Release:
    """In one transaction that sees whether what it was measured against is still live."""
    return await store.releases.move(
        candidate.id,
        proposal.to,
        expect=Stage.CANDIDATE,
        expect_live=evidence.baseline,
        share=proposal.share,
        who=who,
        why=told["decision"].reasons[0].text,
        now=now,
        **told,
    )


def _alone(canaries: Sequence[Release], decision: Decision) -> Decision:
    """One canary at a time: two would be compared with each other's callers."""
    if not decision.open or not canaries:
        return decision
    text = f"{canaries[0].id} is the canary already: take that one live, or back, before"
    return Decision(open=False, reasons=(Reason(code="canary_under_way", text=text),))


async def adopt(store: Store, release: Release, *, who: str, now: float) -> Release:
    """The first version of a policy serves without a proof: there is nothing that it could be worse than."""
    why = "the first version: what others are measured against"
    move = store.releases.move
    return await move(release.id, Stage.LIVE, expect=release.stage, who=who, why=why, now=now, known_good=True)


def _is_refused(store: Store, candidate: Release, decision: Decision, evidence: str) -> bool:
    """Whether this very decision is in the ledger."""
    told = {"refuse": candidate.id, "evidence": evidence, "decision": encode(decision)}
    history = store.releases.history(candidate.policy) if candidate.evidence == evidence else []
    return any(told.items() <= entry.body.items() for entry in history)


def _of_the_live(live: Release | None, evidence: Evidence, decision: Decision) -> Decision:
    """A proof against anything but what is in service proves nothing about replacing it."""
    if live is None or live.id in (evidence.baseline, evidence.candidate):
        return decision
    text = f"it was measured against {evidence.baseline}, and {live.id} is live"
    stale = Reason(code="baseline_is_not_live", text=text)
    return Decision(open=False, reasons=(stale, *(() if decision.open else decision.reasons)), needs=decision.needs)
