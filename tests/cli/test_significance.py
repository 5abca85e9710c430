"""`holdfast report significance` and `safety`: from files of samples to published reports."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.prove.reports.document import KINDS
from holdfast.prove.reports.validate import validate
from tests.cli.conftest import Answer, Cli

BEFORE = [0.2, 0.3, 0.4, 0.5, 0.6]
AFTER = [0.4, 0.5, 0.6, 0.7, 0.8]


@pytest.fixture
def ask(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)

    def file(name: str, rows: list[Any]) -> Path:
        path = tmp_path / f"{name}.json"
        path.write_text(json.dumps(rows))
        return path

    def asked(command: str, before: list[Any], after: list[Any], *more: str) -> Answer:
        kind = "samples" if command == "significance" else "safety-samples"
        words = [f"--baseline-{kind}", file("b", before), f"--trained-{kind}", file("t", after)]
        return cli("report", command, *words, "--run-id", "m24-demo", *more)

    return asked


def test_samples_become_a_publication_that_is_true(ask: Any, tmp_path: Path) -> None:
    ran = ask("significance", BEFORE, AFTER)
    assert ran.code == 0
    assert ran.lines[:7] == [
        ".holdfast/reports/m24/m24-demo",
        "  m24-benchmark-report-baseline.json",
        "  m24-benchmark-report-trained.json",
        "  m24-benchmark-report-significance.json",
        "  m24-benchmark-safety-regression.json",
        "  m24-benchmark-report-summary.json",
        "  m24-benchmark-proof-m24-demo.json",
    ]
    assert ran.lines[7].startswith("proof_status=pass: trained is better than baseline: reward +0.2")
    assert max(map(len, ran.lines)) <= 80
    assert [validate(tmp_path / ran.lines[0] / line.strip()) for line in ran.lines[1:7]] == [[]] * 6


def test_a_proof_that_fails_is_written_and_exits_1(ask: Any) -> None:
    ran = ask("significance", AFTER, BEFORE, "--json")
    assert ran.code == 1 and ran.json["ok"] is False
    assert set(ran.json["files"]) == set(KINDS)
    assert ran.json["proof"]["failure_analysis"]["reasons"] == [
        "reward_gain_below_threshold",
        "p_value_above_threshold",
        "confidence_below_threshold",
    ]
    assert all(validate(Path(path)) == [] for path in ran.json["files"].values())


def test_penalties_can_come_from_files_of_their_own(ask: Any, tmp_path: Path) -> None:
    (tmp_path / "penalties.json").write_text("[0, 0, 0, 0, 1]")
    ran = ask("significance", BEFORE, AFTER, "--trained-safety-samples", "penalties.json", "--json")
    assert ran.code == 1
    assert ran.json["proof"]["trained"]["mean_safety_penalty"] == 0.2
    assert ran.json["proof"]["failure_analysis"]["reasons"] == ["checkpoint_promotion_blocked_safety_regression"]


def test_every_choice_is_in_the_proof(ask: Any) -> None:
    more = [
        "--baseline-checkpoint",
        "c1",
        "--trained-checkpoint",
        "c2",
        "--suite-name",
        "tools",
        "--suite-version",
        "3",
    ]
    more += ["--min-reward-delta", "0.1", "--max-safety-regression", "0", "--max-p-value", "0.04", "--alpha", "0.01"]
    more += ["--min-confidence-level", "0.99", "--generated-at", "2026-01-31T00:00:00Z", "--retention", "retain-only"]
    proof = ask("significance", BEFORE, AFTER, *more, "--retain-days", "10", "--archive-after-days", "2", "--json").json
    said = proof["proof"]
    assert (said["baseline"]["checkpoint_id"], said["trained"]["checkpoint_id"]) == ("c1", "c2")
    assert (said["benchmark_suite"]["name"], said["benchmark_suite"]["version"]) == ("tools", "3")
    assert list(said["criteria"].values()) == [0.1, 0.0, 0.04, 0.99]
    assert said["significance"]["confidence_level"] == 0.99
    assert list(said["retention"].values()) == ["retain-only", 10, 2, "2026-02-10T00:00:00Z"]


@pytest.mark.parametrize(
    ("before", "after", "more", "said"),
    [
        (BEFORE, AFTER[:4], [], "trained episodes: have no task 'sample-5' with seed 1"),
        (BEFORE, AFTER, ["--run-id", "demo"], "run_id = 'demo': must be m24-"),
        (BEFORE, AFTER, ["--alpha", "0"], "alpha = 0.0: must be from 0.0001 to 0.5"),
        (BEFORE, AFTER, ["--min-confidence-level", "0.9"], "criteria.min_confidence_level = 0.9: must be from 0.95"),
        (BEFORE, AFTER, ["--generated-at", "today"], "--generated-at 'today': must be a moment in UTC"),
        (BEFORE, AFTER, ["--retain-days", "0"], "retention.retain_days = 0: must be from 1"),
        (BEFORE, AFTER, ["--reports", "elsewhere"], "folder elsewhere: reports lie in a folder called reports"),
        ([1, None], [1, 2], [], "$[1].reward = None: must be a finite number"),
    ],
)
def test_what_cannot_be_published_is_one_line_and_exits_2(
    ask: Any, tmp_path: Path, before: list[Any], after: list[Any], more: list[str], said: str
) -> None:
    ran = ask("significance", before, after, *more)
    assert ran.code == 2 and said in ran.err and len(ran.err.splitlines()) == 1
    assert not (tmp_path / ".holdfast").exists()


def test_a_run_is_not_published_twice(ask: Any) -> None:
    assert ask("significance", BEFORE, AFTER).code == 0
    again = ask("significance", BEFORE, AFTER)
    assert again.code == 2 and "run m24-demo: is published already" in again.err
    assert "is published already" in ask("safety", BEFORE, AFTER).err


def test_a_safety_report_that_allows_promotion(ask: Any, tmp_path: Path) -> None:
    ran = ask("safety", [0.1] * 5, [0.1, 0.1, 0.11, 0.11, 0.1])
    changed = "the mean penalty rose by 0.004, and may rise by 0.05"
    proved = "within the bound on tasks like these: p = 0.0312 of a regression beyond it, by one look at all of them"
    assert ran.code == 0 and max(map(len, ran.lines)) <= 80
    assert ran.lines[0] == ".holdfast/reports/m24/m24-demo/m24-benchmark-safety-regression.json"
    assert " ".join(" ".join(ran.lines[1:]).split()) == f"promotion_allowed=yes; {changed}; {proved}"
    assert validate(tmp_path / ran.lines[0]) == []


def test_a_safety_report_that_blocks_is_written_and_exits_1(ask: Any) -> None:
    ran = ask("safety", [0, 0, 0, 0, 0], [0.2, 0.2, 0.2, 0.2, 0.2], "--json")
    assert ran.code == 1 and ran.json["report"]["promotion_allowed"] is False
    assert ran.json["report"]["reason_codes"] == ["checkpoint_promotion_blocked_safety_regression"]
    assert validate(Path(ran.json["file"])) == []


def test_a_copy_of_the_safety_report_goes_where_it_is_asked_for(ask: Any, tmp_path: Path) -> None:
    ran = ask("safety", [0] * 5, [0.2] * 5, "--output-report", str(tmp_path / "copy.json"), "--json")
    assert ran.code == 1  # blocked, and written all the same, in both places
    assert (tmp_path / "copy.json").read_bytes() == (tmp_path / ran.json["file"]).read_bytes()
    nowhere = ask("safety", [0] * 5, [0.2] * 5, "--output-report", str(tmp_path / "no/copy.json"))
    assert nowhere.code == 2 and "its folder does not exist; make it" in nowhere.err


def test_missing_samples_exit_2(ask: Any) -> None:
    assert ask("safety", [0.0], [0.0]).code == 2
