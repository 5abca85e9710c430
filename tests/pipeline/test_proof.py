"""A candidate before the gate: its samples, its evidence, its decision and its reports say the same."""

from __future__ import annotations

import json
import shutil
from dataclasses import replace
from itertools import islice
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.evidence import Decision, Episode, Finding, Reason
from holdfast.contracts.records import decode
from holdfast.contracts.release import PolicyKind
from holdfast.pipeline.proof import Candidate, PromotionRequest, proof_of, report_ids, summed
from holdfast.promote.gate import Criteria, SpreadLimits
from holdfast.prove.comparison import ComparisonConfig
from holdfast.prove.reports.validate import validate
from holdfast.store.artifacts import sha256_of

WIDE = SpreadLimits(p_value=1.0, delta=1.0)
CRITERIA = Criteria(min_reward_delta=0.1, max_seed_spread=WIDE, max_sample_spread=WIDE)
HOW = ComparisonConfig(seed_p_value_spread=1, seed_delta_spread=1, sample_p_value_spread=1, sample_delta_spread=1)
CLEAN = Finding(name="no_secrets", severity="critical", count=0, of=9)
NOW = 1_700_000_000.0


def tries(won: float, tasks: int = 100) -> list[Episode]:
    return [Episode(task=f"t{n}", seed=seed, reward=won, success=won) for n in range(tasks) for seed in (0, 1)]


def case(before: float = 0.0, after: float = 1.0, **fields: Any) -> Candidate:
    given: dict[str, Any] = {
        "run": "Run-1_ab",
        "policy": "tools",
        "suite": ("tests", "2", "cd" * 32),
        "baseline": "shelf:sprout",
        "candidate": "checkpoint:c",
        "before": tries(before),
        "after": tries(after),
        "planned": 200,
        "audit": (CLEAN,),
        "manifest": {"steps": 3},
    }
    return Candidate(**given | fields)


def propose(candidate: Candidate, reports: Path, now: float = NOW) -> PromotionRequest:
    return PromotionRequest(candidate=candidate, how=HOW, criteria=CRITERIA, reports=reports, now=now)


def test_a_request_carries_every_episode_and_how_they_are_judged(tmp_path: Path) -> None:
    asked = propose(case(), tmp_path / "reports")
    assert (asked.candidate.kind, asked.to, asked.share) == (PolicyKind.WEIGHTS, None, None)  # nothing moves
    samples = json.loads(asked.samples)
    assert [decode(Episode, one) for one in samples["candidate"]] == tries(1.0)
    assert (samples["weighing"]["alpha"], samples["criteria"]["min_reward_delta"]) == (0.05, 0.1)


def test_evidence_is_weighed_the_same_every_time_and_rests_on_the_samples(tmp_path: Path) -> None:
    asked = propose(case(), tmp_path)
    evidence = asked.weigh("tools@1", "tools@2", "0" * 64)
    assert evidence == asked.weigh("tools@1", "tools@2", "0" * 64)
    assert (evidence.suite, evidence.samples) == (f"tests@2 {('cd' * 6)}", "0" * 64)
    assert evidence.comparisons["success"].difference == 1.0
    assert evidence.manifest == {"run": "Run-1_ab", "steps": 3}
    assert (evidence.audit, evidence.golden) == ((CLEAN,), None)
    decision = asked.decide(evidence)
    assert decision.open
    assert not propose(case(1.0, 0.0), tmp_path).decide(evidence_of(1.0, 0.0)).open


def evidence_of(before: float, after: float, **fields: Any) -> Any:
    return propose(case(before, after, **fields), Path()).weigh("a@1", "a@2", "0" * 64)


@pytest.mark.parametrize(
    ("fields", "code"),
    [
        ({"audit": None}, "evidence_missing_audit"),
        ({"audit": (Finding(name="no_pii", severity="critical", count=2, of=9),)}, "data_quality_no_pii"),
        ({"golden": (Finding(name="reward_hash", severity="error", count=1, of=1),)}, "golden_changed_unsigned"),
    ],
)
def test_what_was_found_besides_keeps_the_gate_closed(fields: dict[str, Any], code: str) -> None:
    asked = propose(case(**fields), Path())
    decision = asked.decide(asked.weigh("a@1", "a@2", "0" * 64))
    assert [reason.code for reason in decision.reasons] == [code]


def test_the_reports_are_published_once_and_can_be_validated(tmp_path: Path) -> None:
    reports = tmp_path / ".holdfast/reports"
    asked = propose(case(), reports)
    evidence = asked.weigh("tools@1", "tools@2", "0" * 64)
    decision = asked.decide(evidence)
    path = Path(asked.publish(evidence, decision)["proof"])
    assert path == reports / "m24/m24-run-1-ab-2/m24-benchmark-proof-m24-run-1-ab-2.json"
    assert validate(path) == []
    written = {file: file.read_bytes() for file in path.parent.iterdir()}
    later = propose(case(), reports, NOW + 5)  # as after a kill
    assert later.publish(evidence, decision) == {"proof": str(path), "proof_sha256": sha256_of(path)}
    assert {file: file.read_bytes() for file in path.parent.iterdir()} == written

    path.unlink()  # killed before its last file was there
    later.publish(evidence, decision)
    assert validate(path) == []

    archived = reports / "archive/m24/2023/11" / path.name
    archived.parent.mkdir(parents=True)
    shutil.move(path, archived)  # taken up so late that all of it is in the archive
    later.publish(evidence, decision)
    assert not path.exists()


def test_another_decision_about_the_same_version_is_another_proof(tmp_path: Path) -> None:
    reports = tmp_path / "reports"
    asked = propose(case(), reports)
    evidence = asked.weigh("tools@1", "tools@2", "0" * 64)
    first = asked.decide(evidence)
    second = Decision(open=False, reasons=(Reason(code="baseline_is_not_live", text="another is"),))
    assert proof_of(reports, "Run-1_ab", "tools@2", first) is None
    paths = [Path(asked.publish(evidence, one)["proof"]) for one in (first, second, first, second)]
    assert paths[0] == paths[2] != paths[1] == paths[3]
    assert [proof_of(reports, "Run-1_ab", "tools@2", one) for one in (first, second)] == paths[:2]
    assert [validate(path) for path in paths[:2]] == [[], []]


def test_a_report_is_of_the_episodes_that_both_versions_have(tmp_path: Path) -> None:
    short = replace(case(), after=tries(1.0)[3:])
    asked = propose(short, tmp_path / "reports")
    evidence = asked.weigh("tools@1", "tools@2", "0" * 64)
    path = Path(asked.publish(evidence, asked.decide(evidence))["proof"])
    proof = json.loads(path.read_text())
    assert proof["baseline"]["episodes"] == proof["trained"]["episodes"] == 196
    assert validate(path) == []
    assert evidence.episodes == 98  # tasks that both were measured on with every seed


@pytest.mark.parametrize(
    ("run", "release", "expected"),
    [
        ("run-1-ab12", "default@2", "m24-run-1-ab12-2"),
        ("run-1-ab12", "a@b@31", "m24-run-1-ab12-31"),
        ("Läuft gut", "p@1", "m24-l-uft-gut-1"),
    ],
)
def test_a_report_is_called_after_its_run_and_the_number_of_its_version(run: str, release: str, expected: str) -> None:
    names = list(islice(report_ids(run, release), 30))
    assert names[:3] == [expected, f"{expected}b", f"{expected}c"]
    assert len(set(names)) == 30


def test_several_audits_become_one() -> None:
    one = Finding(name="no_pii", severity="critical", count=1, of=4, detail="r/1: mail")
    two = Finding(name="no_pii", severity="critical", count=2, of=5, detail="r/9: phone")
    odd = Finding(name="reward_varies", severity="warning", count=3, of=3, blocks=False)
    clean = Finding(name="no_pii", severity="critical", count=0, of=1)
    assert summed([]) == ()
    assert summed([[clean], [one, odd], [two]]) == (
        Finding(name="no_pii", severity="critical", count=3, of=10, detail="r/1: mail"),
        odd,
    )


def test_what_is_counted_as_missing_stays_missing_though_it_has_a_worth() -> None:
    """Imputed episodes are among the others; the evidence says how many they are."""
    lost = evidence_of(0.0, 1.0, lost={"baseline": 2, "candidate": 7})
    assert lost.missing == {"planned": 200, "baseline": 2, "candidate": 7}
    fewer = propose(replace(case(), after=tries(1.0)[3:]), Path())
    assert fewer.weigh("a@1", "a@2", "0" * 64).missing == {"planned": 200, "baseline": 0, "candidate": 3}
