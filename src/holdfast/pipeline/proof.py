"""A candidate before the gate: the episodes of both versions become evidence, a decision and the reports.

The statistics are `prove`'s, the rules `promote`'s; here they meet, with what is known about the candidate.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from datetime import UTC, datetime
from itertools import count, takewhile
from pathlib import Path
from string import ascii_lowercase
from typing import Any

import numpy as np

from holdfast.contracts.evidence import Decision, Episode, Evidence, Finding
from holdfast.contracts.records import encode
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.promote.gate import Criteria, KpiBand, SpreadLimits, decide
from holdfast.prove.comparison import ComparisonConfig, compare_versions, paired_cells
from holdfast.prove.reports import document
from holdfast.prove.reports.report import ProofCriteria, publish
from holdfast.store.artifacts import sha256_of


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
        told = {
            "run": case.run,
            "suite": case.suite,
            "weighing": asdict(self.how),
            "criteria": asdict(self.criteria),
            "baseline": [encode(one) for one in case.before],
            "candidate": [encode(one) for one in case.after],
        }
        return json.dumps(told, allow_nan=False, separators=(",", ":")).encode()

    def weigh(self, baseline: str, candidate: str, samples: str) -> Evidence:
        """From the ids of both releases and the hash of the samples."""
        return _weigh(self.candidate, self.how, baseline, candidate, samples)

    def decide(self, evidence: Evidence) -> Decision:
        return decide(evidence, criteria=self.criteria)

    def publish(self, evidence: Evidence, decision: Decision) -> dict[str, Any]:
        """Write the reports; what is told of them."""
        return _publish(self.candidate, self.how, self.criteria, self.reports, self.now, evidence, decision)


def _weigh(case: Candidate, how: ComparisonConfig, baseline: str, candidate: str, samples: str) -> Evidence:
    rng = np.random.default_rng(how.resample_seed)
    found = compare_versions(case.before, case.after, how, versions=(baseline, candidate), rng=rng)
    return Evidence(
        policy=case.policy,
        baseline=baseline,
        candidate=candidate,
        suite=suite_title(case.suite),
        primary=how.primary,
        episodes=len(found.tasks),
        comparisons=found.comparisons,
        verdict=found.verdict,
        bands=found.bands,
        missing=_missing(case),
        golden=None if case.golden is None else tuple(case.golden),
        audit=None if case.audit is None else tuple(case.audit),
        samples=samples,
        manifest={**case.manifest, "run": case.run},  # what is proved by this run, whichever one made the candidate
    )


def weighing_from(kept: Mapping[str, Any]) -> ComparisonConfig:
    """As the samples of a proof keep it."""
    given: Any = {name: tuple(value) if isinstance(value, list) else value for name, value in kept.items()}
    return ComparisonConfig(**given)


def criteria_from(kept: Mapping[str, Any]) -> Criteria:
    spreads = {name: SpreadLimits(**kept[name]) for name in ("max_seed_spread", "max_sample_spread")}
    kpis = {name: KpiBand(**band) for name, band in kept["kpis"].items()}
    given: Any = {**kept, **spreads, "kpis": kpis}
    return Criteria(**given)


def suite_title(suite: Sequence[str]) -> str:
    name, version, sha256 = suite
    return f"{name}@{version} {sha256[:12]}"


def _missing(case: Candidate) -> dict[str, int]:
    sides = {"baseline": case.before, "candidate": case.after}
    lost = case.lost or {name: case.planned - len(some) for name, some in sides.items()}
    return {"planned": case.planned, **lost}


def _publish(
    case: Candidate,
    how: ComparisonConfig,
    criteria: Criteria,
    reports: Path,
    now: float,
    evidence: Evidence,
    decision: Decision,
) -> dict[str, Any]:
    """What is published already, before a kill, stays as it is; another decision about the same is another proof."""
    for name in report_ids(case.run, evidence.candidate):
        path = reports / document.active_path(document.PROOF, name)
        found = _there(path, reports)
        if found is not None and found[1] == encode(decision):
            return _told(found[0])
        if found is not None:
            continue
        before, after = _both(case)
        publish(
            reports,
            run_id=name,
            suite=case.suite,
            baseline=before,
            trained=after,
            checkpoints=(case.baseline.partition(":")[2], case.candidate.partition(":")[2]),
            criteria=ProofCriteria(
                min_reward_delta=criteria.min_reward_delta,
                max_safety_regression=criteria.max_safety_regression,
                max_p_value=criteria.max_p_value,
            ),
            alpha=how.alpha,
            seed=how.resample_seed,
            generated_at=datetime.fromtimestamp(now, UTC),
            decision=decision,
            config=json.loads(json.dumps(asdict(how))),
            versions=(evidence.baseline, evidence.candidate),
        )
        return _told(path)
    raise AssertionError("there is always another name")


def _told(path: Path) -> dict[str, Any]:
    return {"proof": str(path), "proof_sha256": sha256_of(path)}


def _there(path: Path, reports: Path) -> tuple[Path, Mapping[str, Any]] | None:
    """Where the proof of that name lies by now, and what it decided; None when there is none."""
    for found in (path, *reports.glob(f"archive/*/*/*/{path.name}")):
        if found.exists():
            try:
                return found, json.loads(found.read_bytes())["decision"] or {}
            except (ValueError, LookupError, TypeError):
                return found, {}  # torn: it decides nothing, and 'report validate' says why
    return None


def proof_of(reports: Path, run: str, release: str, decision: Decision) -> Path | None:
    """Where the proof with this decision lies."""
    paths = (reports / document.active_path(document.PROOF, name) for name in report_ids(run, release))
    for found in takewhile(lambda one: one is not None, (_there(path, reports) for path in paths)):
        if found is not None and found[1] == encode(decision):
            return found[0]
    return None


def _both(case: Candidate) -> tuple[list[Episode], list[Episode]]:
    """The episodes of tasks that both versions were measured on with every seed: reports have no holes."""
    tasks, seeds, _, _ = paired_cells(case.before, case.after, "reward")
    shared = {(task, seed) for task in tasks for seed in seeds}
    before, after = ([one for one in side if (one.task, one.seed) in shared] for side in (case.before, case.after))
    return before, after


def report_ids(run: str, release: str) -> Iterator[str]:
    """How the documented reports call it: `m24-run-1-ab12-2`, for the second version of its line; then 2b, 2c, …"""
    number = release.rpartition("@")[2]
    plain = "m24-" + "".join(c if c.isascii() and c.isalnum() else "-" for c in f"{run}-{number}".lower())
    yield plain
    for letter in ascii_lowercase[1:]:
        yield f"{plain}{letter}"
    for again in count(1):
        yield f"{plain}z{again}"


def summed(found: Sequence[Sequence[Finding]]) -> tuple[Finding, ...]:
    """Several audits as one: the counts of each check add up, and the first place stays."""
    sums: dict[str, Finding] = {}
    for one in (finding for findings in found for finding in findings):
        seen = sums.get(one.name)
        sums[one.name] = (
            one
            if seen is None
            else Finding(
                name=one.name,
                severity=one.severity,
                count=seen.count + one.count,
                of=seen.of + one.of,
                detail=seen.detail or one.detail,
                blocks=one.blocks,
            )
        )
    return tuple(sums.values())
