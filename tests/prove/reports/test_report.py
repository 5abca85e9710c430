from __future__ import annotations

import hashlib
from dataclasses import replace
from datetime import UTC, datetime, timedelta, timezone
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Decision
from holdfast.contracts.records import decode
from holdfast.prove.reports.document import KINDS, PROOF, SAFETY, Retention
from holdfast.prove.reports.report import ProofCriteria, publish
from holdfast.prove.reports.validate import validate
from tests.prove.reports.publication import (
    AFTER,
    AT,
    BEFORE,
    OPENED,
    RUN,
    SUITE,
    published,
    read,
    reports_in,
    with_cost,
)


def test_a_publication_has_every_file_in_its_place(tmp_path: Path) -> None:
    done = published(tmp_path)
    assert [path.relative_to(tmp_path).as_posix() for path in done.paths.values()] == [
        ".holdfast/reports/m24/m24-small/m24-benchmark-report-baseline.json",
        ".holdfast/reports/m24/m24-small/m24-benchmark-report-trained.json",
        ".holdfast/reports/m24/m24-small/m24-benchmark-report-significance.json",
        ".holdfast/reports/m24/m24-small/m24-benchmark-safety-regression.json",
        ".holdfast/reports/m24/m24-small/m24-benchmark-report-summary.json",
        ".holdfast/reports/m24/m24-small/m24-benchmark-proof-m24-small.json",
    ]
    assert sorted(done.paths[PROOF].parent.iterdir()) == sorted(done.paths.values())
    for path in done.paths.values():
        said = read(path)["publication"]["report_path"]
        assert (tmp_path / said) == path


@pytest.mark.parametrize("kind", ["baseline", "trained", "significance", "summary"])
def test_a_report_has_the_documented_groups(tmp_path: Path, kind: str) -> None:
    data = read(published(tmp_path).paths[kind])
    assert (data["schema_version"], data["report_kind"], data["run_id"]) == (1, kind, RUN)
    assert data["generated_at"] == "2026-07-01T12:00:00Z"
    assert data["benchmark_suite"] == {"name": "reasoning-suite", "version": "1", "sha256": "5" * 64}
    assert set(data["metrics"]) >= {"episodes", "mean_reward", "mean_safety_penalty"}
    assert set(data["publication"]) == {"report_path", "archive_path"}
    assert data["retention"] == {
        "policy": "archive-then-purge",
        "retain_days": 365,
        "archive_after_days": 30,
        "purge_after": "2027-07-01T12:00:00Z",
    }


def test_the_sides_carry_every_episode(tmp_path: Path) -> None:
    data = read(published(tmp_path).paths["baseline"])
    assert data["checkpoint_id"] == "sprout-weak"
    assert len(data["samples"]) == data["metrics"]["episodes"] == 5
    assert data["samples"][4] == {
        "task": "task-4",
        "seed": 0,
        "reward": 0.6,
        "safety_penalty": 0.0,
        "success": 1.0,
        "latency_s": 0.25,
        "tokens": 12,
        "rollout": "run-1/4.0",
    }
    assert data["metrics"] == {
        "episodes": 5,
        "tasks": 5,
        "seeds": 1,
        "mean_reward": 0.4,
        "mean_safety_penalty": 0.0,
        "success_rate": 0.2,
        "mean_latency_s": 0.25,
        "mean_tokens": 12.0,
    }


def test_what_was_not_measured_has_no_mean(tmp_path: Path) -> None:
    before = [replace(BEFORE[0], tokens=None, success=None), *BEFORE[1:]]
    metrics = read(published(tmp_path, baseline=before).paths["baseline"])["metrics"]
    assert metrics["mean_tokens"] is None and metrics["success_rate"] is None and metrics["mean_latency_s"] == 0.25


def test_the_significance_report_has_the_documented_figures(tmp_path: Path) -> None:
    done = published(tmp_path)
    data = read(done.paths["significance"])
    low, high = data["significance"].pop("delta_ci_low"), data["significance"].pop("delta_ci_high")
    assert (low, high) == pytest.approx((0.2, 0.2))
    assert data["significance"] == {
        "method": "paired permutation, exact",
        "pairs": 5,
        "alpha": 0.05,
        "seed": 0,
        "p_value": 1 / 32,
        "confidence_level": 0.95,
        "mean_delta": 0.2,
        "pass": True,
        "baseline_mean_reward": 0.4,
        "trained_mean_reward": 0.6,
        "baseline_mean_safety_penalty": 0.0,
        "trained_mean_safety_penalty": 0.0,
        "safety_regression_delta": 0.0,
        "reasons": [],
    }
    assert data["metrics"]["mean_reward"] == 0.6  # those of the trained checkpoint
    assert data["reports"]["baseline"] == {
        "file": "m24-benchmark-report-baseline.json",
        "sha256": hashlib.sha256(done.paths["baseline"].read_bytes()).hexdigest(),
    }


def test_the_proof_names_every_artifact_by_its_bytes(tmp_path: Path) -> None:
    done = published(tmp_path)
    proof = read(done.paths[PROOF])
    del proof["seal"]
    assert proof == done.proof
    for kind in KINDS[:-1]:
        name = f"{kind.replace('-', '_')}_report"
        assert proof["artifacts"][name] == done.paths[kind].name
        assert proof["sha256"][name] == hashlib.sha256(done.paths[kind].read_bytes()).hexdigest()
    assert proof["baseline"] == {
        "checkpoint_id": "sprout-weak",
        "episodes": 5,
        "mean_reward": 0.4,
        "mean_safety_penalty": 0.0,
    }
    assert proof["trained"]["checkpoint_id"] == "ckpt-7"
    assert proof["proof_status"] == "pass" and done.is_pass
    assert proof["failure_analysis"]["reasons"] == []
    assert proof["failure_analysis"]["summary"] == (
        "ckpt-7 is better than sprout-weak: reward +0.2 (0.95 interval +0.2 to +0.2, p = 0.0312), "
        "safety penalty +0 (above 0 is worse), over 5 tasks"
    )
    assert decode(Decision, proof["decision"]) == OPENED


@pytest.mark.parametrize(
    ("changed", "reasons"),
    [
        ({"criteria": ProofCriteria(min_reward_delta=0.21)}, ["reward_gain_below_threshold"]),
        ({"criteria": ProofCriteria(max_p_value=0.03)}, ["p_value_above_threshold"]),
        ({"criteria": ProofCriteria(min_confidence_level=0.99)}, ["confidence_below_threshold"]),
        ({"trained": with_cost(AFTER, [0.1] * 5)}, ["checkpoint_promotion_blocked_safety_regression"]),
        (
            {"baseline": AFTER, "trained": BEFORE},
            ["reward_gain_below_threshold", "p_value_above_threshold", "confidence_below_threshold"],
        ),
    ],
)
def test_a_proof_that_fails_is_published_with_its_reasons(
    tmp_path: Path, changed: dict[str, Any], reasons: list[str]
) -> None:
    done = published(tmp_path, **changed)
    assert not done.is_pass and done.proof["proof_status"] == "fail"
    assert done.proof["significance"]["pass"] is False
    assert done.proof["failure_analysis"]["reasons"] == reasons
    assert read(done.paths["summary"])["outcome"]["reasons"] == reasons
    assert validate(done.paths[PROOF]) == []


def test_a_blocked_safety_report_says_by_how_much(tmp_path: Path) -> None:
    data = read(published(tmp_path, trained=with_cost(AFTER, [0.0, 0.0, 0.0, 0.4, 0.1])).paths[SAFETY])
    assert data["sample_count"] == 5
    assert (data["baseline_mean_safety_penalty"], data["trained_mean_safety_penalty"]) == (0.0, 0.1)
    assert (data["safety_regression_delta"], data["max_safety_regression"]) == (0.1, 0.05)
    assert data["promotion_allowed"] is False and data["test"]["proved"] is False
    assert data["reason_codes"] == ["checkpoint_promotion_blocked_safety_regression"]
    assert data["diagnostics"] == [
        "the mean penalty rose by 0.1, and may rise by 0.05",
        "the bound is broken on average",
    ]
    assert data["test"]["delta_ci_low"] <= 0.1 <= data["test"]["delta_ci_high"]
    assert data["samples"][3] == {"task": "task-3", "seed": 0, "baseline": 0.0, "trained": 0.4}


def test_a_bound_that_holds_only_on_average_blocks_the_proof_but_not_the_documented_pass(tmp_path: Path) -> None:
    before, after = with_cost(BEFORE, [0.5, 0.5, 0, 0, 0]), with_cost(AFTER, [0, 0, 0.5, 0.5, 0])
    proof = published(tmp_path, baseline=before, trained=after).proof
    assert proof["significance"]["pass"] is True
    assert proof["proof_status"] == "fail"
    assert proof["safety_benchmark"]["promotion_allowed"] is False
    assert proof["failure_analysis"]["reasons"] == ["checkpoint_promotion_blocked_safety_not_proved"]


def test_the_same_inputs_give_the_same_bytes(tmp_path: Path) -> None:
    one, two = published(tmp_path / "a"), published(tmp_path / "b", trained=AFTER[::-1])  # in whatever order
    assert [p.read_bytes() for p in one.paths.values()] == [p.read_bytes() for p in two.paths.values()]


def test_numbers_of_numpy_are_written_as_numbers(tmp_path: Path) -> None:
    after: Any = [replace(one, reward=np.float32(one.reward), tokens=np.int64(3), seed=np.int64(0)) for one in AFTER]
    assert validate(published(tmp_path, trained=after).paths[PROOF]) == []


def test_a_moment_elsewhere_is_written_in_utc(tmp_path: Path) -> None:
    there = datetime(2026, 1, 1, 0, 30, 0, 999, tzinfo=timezone(timedelta(hours=1)))
    data = published(tmp_path, generated_at=there).proof
    assert data["generated_at"] == "2025-12-31T23:30:00Z"
    assert "/archive/m24/2025/12/" in data["publication"]["archive_path"]


def test_other_retention_is_written_and_true(tmp_path: Path) -> None:
    kept = Retention(policy="retain-only", retain_days=10, archive_after_days=0)
    done = published(tmp_path, retention=kept)
    assert done.proof["retention"]["purge_after"] == "2026-07-11T12:00:00Z"
    assert validate(done.paths[PROOF]) == []


def test_a_run_is_published_once(tmp_path: Path) -> None:
    done = published(tmp_path)
    before = {path: path.read_bytes() for path in done.paths.values()}
    with pytest.raises(BadInput, match="run m24-small: is published already: .*choose another run id"):
        published(tmp_path, trained=BEFORE, baseline=AFTER)
    assert {path: path.read_bytes() for path in done.paths.values()} == before


def test_a_run_whose_proof_is_archived_is_not_published_again(tmp_path: Path) -> None:
    done = published(tmp_path)
    archived = tmp_path / done.proof["publication"]["archive_path"]
    archived.parent.mkdir(parents=True)
    done.paths[PROOF].rename(archived)
    with pytest.raises(BadInput, match="is published already"):
        published(tmp_path)


def test_a_publication_that_was_cut_short_is_published_anew(tmp_path: Path) -> None:
    done = published(tmp_path)
    for kind in (PROOF, "summary"):
        done.paths[kind].unlink()
    done.paths["baseline"].write_text("{")
    again = published(tmp_path, generated_at=AT + timedelta(hours=1))
    assert validate(again.paths[PROOF]) == []


@pytest.mark.parametrize(
    ("changed", "said"),
    [
        ({"run_id": "run-1"}, "run_id = 'run-1': must be m24-"),
        ({"suite": ("", "1", "5" * 64)}, "suite name = '': must be text"),
        ({"checkpoints": ("a", " ")}, "checkpoint = ' ': must be text"),
        ({"trained": AFTER[:4]}, "trained episodes: have no task 'task-4'"),
        ({"generated_at": datetime(2026, 1, 1)}, "generated_at = 2026-01-01 00:00:00: has no time zone"),  # noqa: DTZ001
        ({"alpha": 1.0}, "alpha = 1.0: must be from"),
    ],
)
def test_what_cannot_be_published_leaves_nothing_behind(tmp_path: Path, changed: dict[str, Any], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        published(tmp_path, **changed)
    assert str(caught.value).startswith(said)
    assert list(tmp_path.rglob("*.json")) == []


def test_a_roundabout_way_to_the_folder_leads_there(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    elsewhere = tmp_path / "a" / "b"
    elsewhere.mkdir(parents=True)
    monkeypatch.chdir(elsewhere)
    done = published(Path("../.."))
    assert done.proof["publication"]["report_path"].startswith(".holdfast/reports/m24/")
    assert validate(done.paths[PROOF]) == []


def test_reports_lie_in_a_folder_called_so(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="reports lie in a folder called reports"):
        publish(
            tmp_path,
            run_id=RUN,
            suite=SUITE,
            baseline=BEFORE,
            trained=AFTER,
            checkpoints=("a", "b"),
            generated_at=datetime.now(UTC),
        )
    assert reports_in(tmp_path).name == "reports"
