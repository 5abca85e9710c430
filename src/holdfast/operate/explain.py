"""Why a version is where it is: its history in the ledger, verified, and the gate's decision made once more.

Nothing that was concluded is taken over: the samples are weighed again and the same criteria are asked again.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from holdfast.contracts.evidence import Decision, Episode, Evidence
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Release
from holdfast.contracts.run import LedgerEntry
from holdfast.pipeline.proof import criteria_from, proof_of, suite_title, weighing_from
from holdfast.promote.gate import decide
from holdfast.prove.comparison import compare_versions
from holdfast.store.artifacts import sha256_of
from holdfast.store.store import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Recount:
    history: tuple[LedgerEntry, ...]  # of this version
    entries: int  # of the whole ledger, whose chain holds
    evidence: Evidence | None
    decision: Decision | None  # the gate's, as it was recorded
    again: Decision | None  # made now, from the samples
    episodes: int = 0
    proof: str | None = None  # where the published one lies
    problems: tuple[str, ...] = ()  # what was changed behind the ledger's back, or does not follow from the samples

    @property
    def agrees(self) -> bool:
        """Whether the recorded decision follows from the samples; a version that no gate decided about has none."""
        return not self.problems and self.is_same

    @property
    def is_same(self) -> bool:
        """Whether deciding once more comes to the same."""
        if self.decision is None or self.again is None:
            return self.decision is None
        live = {"baseline_is_not_live"}  # about the moment, not about the samples
        codes = [{one.code for one in made.reasons} - live for made in (self.decision, self.again)]
        was_open = self.decision.open or {one.code for one in self.decision.reasons} == live
        return was_open == self.again.open and (was_open or codes[0] == codes[1])


def recount(store: Store, release: Release) -> Recount:
    """Raises StoreCorrupt with the place when the ledger, the evidence or the samples were changed."""
    entries = store.ledger.verify()
    # `to`: whom a rollback made live
    named = ("add", "move", "refuse", "accept", "roll_back", "to", "retired", "restore")
    history = tuple(
        one for one in store.releases.history(release.policy) if release.id in [one.body.get(name) for name in named]
    )
    decided = [one.body for one in history if one.body.get("evidence") and one.body.get("decision")]
    problems = [one for one in store.releases.recount() if release.id in one]
    if not decided:
        return Recount(
            history=history, entries=entries, evidence=None, decision=None, again=None, problems=tuple(problems)
        )
    evidence = loads(Evidence, store.blobs.get(str(decided[-1]["evidence"])))
    decision = decode(Decision, dict(decided[-1]["decision"]))
    weighed, again, episodes = _again(store, evidence)
    if weighed is not None:
        figures = ("suite", "primary", "episodes", "comparisons", "verdict", "bands")
        problems += [
            f"evidence of {release.id}: {name} is not what the samples give"
            for name in figures
            if getattr(weighed, name) != getattr(evidence, name)
        ]
    proof = _proof(store, evidence, decision)
    problems += _changed(release, proof, decided[-1].get("proof"))
    return Recount(
        history=history,
        entries=entries,
        evidence=evidence,
        decision=decision,
        again=again,
        episodes=episodes,
        proof=proof,
        problems=tuple(problems),
    )


def _changed(release: Release, proof: str | None, sha256: object) -> list[str]:
    """Whether the published proof is the one that the ledger knows; those of before have no hash there."""
    if not sha256:
        return []
    if proof is None:
        return [f"proof of {release.id}: is not where it was published, nor in the archive"]
    if sha256_of(Path(proof)) != sha256:
        return [f"proof of {release.id}: {proof} is not the one that was published"]
    return []


def _again(store: Store, evidence: Evidence) -> tuple[Evidence | None, Decision | None, int]:
    if evidence.samples is None:
        return None, None, 0
    kept = json.loads(store.blobs.get(evidence.samples))
    before, after = ([decode(Episode, one) for one in kept[name]] for name in ("baseline", "candidate"))
    how = weighing_from(kept["weighing"])
    rng = np.random.default_rng(how.resample_seed)
    found = compare_versions(before, after, how, versions=(evidence.baseline, evidence.candidate), rng=rng)
    weighed = replace(
        evidence,
        suite=suite_title(kept["suite"]),
        primary=how.primary,
        episodes=len(found.tasks),
        comparisons=found.comparisons,
        verdict=found.verdict,
        bands=found.bands,
    )
    return weighed, decide(weighed, criteria_from(kept["criteria"])), len(before) + len(after)


def _proof(store: Store, evidence: Evidence, decision: Decision) -> str | None:
    path = proof_of(store.reports, str(evidence.manifest.get("run", "")), evidence.candidate, decision)
    return None if path is None else str(path)
