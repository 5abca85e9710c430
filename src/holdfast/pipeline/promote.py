"""A candidate before the gate: episodes become evidence, a decision and reports, and the store notes or moves it.

The statistics are `prove`'s and the rules `promote`'s. When a request is made is up to a run or to a person.
"""

from __future__ import annotations

import asyncio
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, replace
from datetime import UTC, datetime
from itertools import count, takewhile
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from holdfast.contracts.errors import BadInput, Conflict
from holdfast.contracts.evidence import Decision, Episode, Evidence, Finding, Reason
from holdfast.contracts.records import dumps, encode
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.promote.alpha_account import Charge
from holdfast.promote.gate import CHARGED, JUDGED, SOLVED, Criteria, KpiBand, SpreadLimits, decide
from holdfast.prove.comparison import ComparisonConfig, ComparisonResult, compare_versions, paired_cells
from holdfast.prove.reports import document
from holdfast.prove.reports.report import ProofCriteria, publish
from holdfast.store.artifacts import sha256_of
from holdfast.store.sql import Transaction
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

FIRST = "the first version: what others are measured against"


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """What is brought before the gate, and what it was measured against."""

    run: str  # that made it
    policy: str  # the line of versions
    suite: tuple[str, str, str]  # name, version, sha256 of its fixtures
    baseline: str  # source
    candidate: str  # source
    before: Sequence[Episode]
    after: Sequence[Episode]
    planned: int  # episodes of each
    lost: Mapping[str, int] | None = None  # by arm, those of them that never came back; None: what is not there
    audit: Sequence[Finding] | None  # of what was learnt from; None: not looked at
    golden: Sequence[Finding] | None = None
    manifest: Mapping[str, Any] = field(default_factory=dict)
    baseline_manifest: Mapping[str, Any] = field(default_factory=dict)
    kind: PolicyKind = PolicyKind.WEIGHTS
    charge: Charge | None = None  # of this test, in the α-account of the policy

    def __post_init__(self) -> None:
        if self.charge is not None and self.charge.policy != self.policy:
            why = f"was charged to the α-account of policy {self.charge.policy}, not to that of {self.policy}"
            remedy = f"measure it again as a candidate of {self.policy}: 'holdfast prove run' with its version there"
            raise BadInput(f"run {self.run}", why=why, remedy=remedy)


@dataclass(frozen=True, slots=True, kw_only=True)
class PromotionRequest:
    """A candidate, how it is judged, and where an open gate leads. All but `decide` may take their time."""

    candidate: Candidate
    how: ComparisonConfig
    criteria: Criteria
    reports: Path
    now: float
    to: Stage | None = None  # None: an open gate accepts it, and nothing moves
    share: int | None = None  # percent, of a canary; None: the first step

    @property
    def samples(self) -> bytes:
        """Every episode of both, as they are kept."""
        case = self.candidate
        payload = {
            "run": case.run,
            "suite": case.suite,
            "weighing": self.how.record(),
            "criteria": asdict(self.criteria),
            "baseline": [encode(episode) for episode in case.before],
            "candidate": [encode(episode) for episode in case.after],
        }
        return json.dumps(payload, allow_nan=False, separators=(",", ":")).encode()

    def weigh(self, baseline: str, candidate: str, samples: str) -> Evidence:
        """Evidence from the ids of both releases and the hash of the samples."""
        case, how, rng = self.candidate, self.how, np.random.default_rng(self.how.resample_seed)
        comparison = compare_versions(case.before, case.after, how, versions=(baseline, candidate), rng=rng)
        sides = {"baseline": case.before, "candidate": case.after}
        lost = case.lost or {name: case.planned - len(some) for name, some in sides.items()}
        evidence = evidence_from(
            comparison, how, policy=case.policy, suite=suite_title(case.suite), versions=(baseline, candidate)
        )
        return replace(
            evidence,
            missing={"planned": case.planned, **lost},
            golden=None if case.golden is None else tuple(case.golden),
            audit=None if case.audit is None else tuple(case.audit),
            samples=samples,
            manifest={
                **case.manifest,
                "run": case.run,
                **_account(case),
                **(_solved(case) if how.primary == "success" else {SOLVED: None}),
            },  # the run that proves, whichever one made the candidate
        )

    def decide(self, evidence: Evidence) -> Decision:
        return decide(evidence, criteria=self.criteria)

    def publish(self, evidence: Evidence, decision: Decision) -> dict[str, Any]:
        """Writes the reports. What is published already stays as it is; another decision is another proof."""
        for name in report_ids(self.candidate.run, evidence.candidate):
            path = self.reports / document.active_path(document.PROOF, name)
            found = _there(path, self.reports)
            if found is None:
                self._write(name, evidence, decision)
                return _proof_file(path)
            if found[1] == encode(decision):
                return _proof_file(found[0])
        raise AssertionError("there is always another name")

    def _write(self, name: str, evidence: Evidence, decision: Decision) -> None:
        case, criteria = self.candidate, self.criteria
        before, after = _both(case)
        publish(
            self.reports,
            run_id=name,
            suite=case.suite,
            baseline=before,
            trained=after,
            checkpoints=(case.baseline.partition(":")[2], case.candidate.partition(":")[2]),
            criteria=ProofCriteria(
                min_reward_delta=criteria.min_reward_delta,
                max_safety_regression=criteria.max_safety_regression or ProofCriteria().max_safety_regression,
                max_p_value=criteria.max_p_value,
            ),
            alpha=self.how.uncharged_alpha,
            seed=self.how.resample_seed,
            generated_at=datetime.fromtimestamp(self.now, UTC),
            decision=decision,
            config=json.loads(json.dumps(self.how.record())),
            versions=(evidence.baseline, evidence.candidate),
        )


def _account(case: Candidate) -> dict[str, Any]:
    """Returns the test's charge without the run's name, so that equal runs have equal evidence."""
    told = ("number", "promoted", "of", "alpha", "text")
    return {} if case.charge is None else {CHARGED: {name: getattr(case.charge, name) for name in told}}


def _solved(case: Candidate) -> dict[str, Any]:
    sides = {"baseline": case.before, "candidate": case.after}
    total = {name: sum(one.success or 0.0 for one in some if not one.is_missing) for name, some in sides.items()}
    return {SOLVED: {**total, "of": case.planned}}


def evidence_from(
    result: ComparisonResult, how: ComparisonConfig, *, policy: str, suite: str, versions: tuple[str, str]
) -> Evidence:
    """Makes evidence of a comparison; the caller adds the rest."""
    baseline, candidate = versions
    return Evidence(policy=policy, baseline=baseline, candidate=candidate, suite=suite, **figures_of(result, how))


def figures_of(result: ComparisonResult, how: ComparisonConfig) -> dict[str, Any]:
    """Returns the figures that a comparison adds to evidence."""
    return {
        "primary": how.primary,
        "episodes": len(result.tasks),
        **{name: getattr(result, name) for name in ("comparisons", "verdict", "bands", "interaction")},
    }


def comparison_config_from(kept: Mapping[str, Any]) -> ComparisonConfig:
    """Reads a comparison from the samples of a proof."""
    given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return ComparisonConfig(**{"rules": 1, **given})


def criteria_from(kept: Mapping[str, Any]) -> Criteria:
    spreads = {name: SpreadLimits(**kept[name]) for name in ("max_seed_spread", "max_sample_spread")}
    kpis = {name: KpiBand(**band) for name, band in kept["kpis"].items()}
    given: Any = {"min_interaction_p": None, **kept, **spreads, "kpis": kpis}
    return Criteria(**given)


def suite_title(suite: Sequence[str]) -> str:
    name, version, sha256 = suite
    return f"{name}@{version} {sha256[:12]}"


def _proof_file(path: Path) -> dict[str, Any]:
    return {"proof": str(path), "proof_sha256": sha256_of(path)}


def _there(path: Path, reports: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Finds the proof of that name, also in the archive, and its decision; None when there is none."""
    for found in (path, *reports.glob(f"archive/*/*/*/{path.name}")):
        if found.exists():
            try:
                return found, json.loads(found.read_bytes())["decision"] or {}
            except (ValueError, LookupError, TypeError):
                return found, {}  # torn: it decides nothing, and 'report validate' says why
    return None


def proof_of(reports: Path, run: str, release: str, decision: Decision) -> Path | None:
    """Finds the proof with this decision."""
    paths = (reports / document.active_path(document.PROOF, name) for name in report_ids(run, release))
    for found in takewhile(lambda one: one is not None, (_there(path, reports) for path in paths)):
        if found is not None and found[1] == encode(decision):
            return found[0]
    return None


def _both(case: Candidate) -> tuple[list[Episode], list[Episode]]:
    """The episodes of tasks that both versions were measured on with every seed: reports have no holes."""
    tasks, seeds, _, _ = paired_cells(case.before, case.after, "reward")
    shared = {(task, seed) for task in tasks for seed in seeds}
    before, after = (
        [episode for episode in side if (episode.task, episode.seed) in shared] for side in (case.before, case.after)
    )
    return before, after


def report_ids(run: str, release: str) -> Iterator[str]:
    """Yields the documented report ids: `m24-run-1-ab12-2` for the second version of its line; then 2b, 2c, …"""
    number = release.rpartition("@")[2]
    plain = "m24-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{run}-{number}".lower())
    yield plain
    for letter in ascii_lowercase[1:]:
        yield f"{plain}{letter}"
    for again in count(1):
        yield f"{plain}z{again}"


def summed(audits: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Several audits as one: the counts of each check add up, and the first place stays."""
    sums: dict[str, Finding] = {}
    for one in (finding for findings in audits for finding in findings):
        seen = sums.get(one.name, replace(one, count=0, of=0))
        count, of = seen.count + one.count, seen.of + one.of
        sums[one.name] = replace(one, count=count, of=of, detail=seen.detail or one.detail)
    return tuple(sums.values())


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
    if JUDGED in case.manifest:
        from holdfast.pipeline.judges import with_calibrations  # slow to import: scipy

        request = replace(request, candidate=replace(case, manifest=with_calibrations(store, case.manifest)))
    samples = await asyncio.to_thread(store.blobs.put, request.samples, now=clock())
    evidence = await asyncio.to_thread(request.weigh, baseline.id, candidate.id, samples)
    blob = await asyncio.to_thread(store.blobs.put, dumps(evidence).encode(), now=clock())
    while True:
        decision = _decided(store, request, candidate, evidence)
        await asyncio.to_thread(check)  # weighing takes its time: what was ordered meanwhile holds
        published = await asyncio.to_thread(request.publish, evidence, decision)  # nothing serves without its proof
        outcome: dict[str, Any] = {"evidence": blob, "decision": decision, "proof": published.get("proof_sha256")}
        try:
            if candidate.stage is Stage.CANDIDATE:
                candidate = await _act(store, request, candidate, evidence, outcome, who=who, now=clock(), fence=fence)
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
    """Lets the gate decide as things are now; a version that has moved on is not held back by what came later."""
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


def adopt(store: Store, release: Release, *, who: str, now: float, fence: Fence | None = None) -> WriteFuture[Release]:
    """The first version of a policy serves without a proof: there is nothing that it could be worse than."""
    return store.releases.move(
        release.id, Stage.LIVE, expect=release.stage, who=who, why=FIRST, now=now, known_good=True, fence=fence
    )


def _is_noted(store: Store, candidate: Release, decision: Decision, evidence: str) -> bool:
    """Whether this very decision is in the ledger."""
    word = "accept" if decision.open else "refuse"
    payload = {word: candidate.id, "evidence": evidence, "decision": encode(decision)}
    history = store.releases.history(candidate.policy) if candidate.evidence == evidence else []
    return any(payload.items() <= entry.body.items() for entry in history)


def _of_the_live(live: Release | None, evidence: Evidence, decision: Decision) -> Decision:
    """A proof against anything but what is in service proves nothing about replacing it."""
    if live is None or live.id in (evidence.baseline, evidence.candidate):
        return decision
    text = f"it was measured against {evidence.baseline}, and {live.id} is live"
    stale = Reason(code="baseline_is_not_live", text=text)
    return Decision(open=False, reasons=(stale, *(() if decision.open else decision.reasons)), needs=decision.needs)
