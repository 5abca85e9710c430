"""The exit gate: closed without evidence, closed by what is not true, open only when all of it is there."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.operate import exitgate
from holdfast.store.store import Store
from tests.operate.rehearsed import crashed, paused, rolled_back
from tests.operate.stage import Line, proposed


@pytest.fixture
def evidence(file_store: Store, tmp_path: Path) -> tuple[Path, Path, Path]:
    """Reports with a proof that passes, three drills, and a runbook."""
    Line(file_store, 2)
    asyncio.run(proposed(file_store, rate=1.0))
    for name, rehearse in (("crash", crashed), ("pause", paused), ("rollback", rolled_back)):
        rehearse(tmp_path / "drills" / name)
    (tmp_path / "runbook.md").write_text("how to operate it")
    return file_store.reports, tmp_path / "drills", tmp_path / "runbook.md"


def codes(bundle: dict[str, Any]) -> list[str]:
    found: list[str] = bundle["decision"]["reason_codes"]
    return found


def test_the_gate_is_closed_without_evidence_and_says_what_is_missing(tmp_path: Path) -> None:
    told = exitgate.gather(tmp_path, tmp_path, runbook=None, incidents=tmp_path / "none.md", now=1.0)
    assert codes(told) == [
        *("benchmark_failed", "safety_failed", "operations_failed"),
        *("operator_runbook_missing", "incident_playbook_missing"),
    ]
    assert told["decision"]["pass"] is False and told["benchmark"]["reason_codes"] == ("below_min_pass_entries",)
    assert {kind: why[0] for kind, why in told["operations"]["problems"].items()} == dict.fromkeys(
        ("crash", "pause", "rollback"), "there is none"
    )
    assert exitgate.name(told).endswith("-benchmark-pass-0-safety-pass-0-operations-pass-0-1000.json")


def test_the_gate_opens_on_true_proofs_drills_and_runbooks(evidence: tuple[Path, Path, Path]) -> None:
    reports, drills, book = evidence
    told = exitgate.gather(reports, drills, runbook=book, incidents=book, now=1.0)
    assert codes(told) == [] and told["decision"]["pass"] is True
    assert told["operations"]["recovery_drill_proven"] is True and len(told["sha256"]) == 5
    assert told["safety"]["observed_regression"] <= told["safety"]["max_allowed_regression"]
    json.dumps(told, allow_nan=False)
    (empty := drills / "empty.md").write_text(" \n")  # an empty runbook is none
    told = exitgate.gather(reports, drills, runbook=book, incidents=empty, now=1.0)
    assert codes(told) == ["incident_playbook_missing"]


def edit(path: Path, section: str, **changes: object) -> None:
    data = json.loads(path.read_text())
    data[section] |= changes
    path.write_text(json.dumps(data))


def test_a_flag_that_nothing_bears_out_closes_the_gate(evidence: tuple[Path, Path, Path]) -> None:
    reports, drills, book = evidence
    edit(drills / "rollback" / "playbook.json", "measured", rollback_s=0.001)
    edit(drills / "pause" / "playbook.json", "limits", obey_s=60.0)  # it gave itself more time
    told = exitgate.gather(reports, drills, runbook=book, incidents=book, now=1.0)
    assert codes(told) == ["operations_failed"] and not told["operations"]["rollback_proven"]
    assert told["operations"]["problems"]["pause"] == ("limits: obey_s must be at most 1",)
    edit(next(reports.rglob("*proof*.json")), "failure_analysis", safety_regression=-1.0)
    told = exitgate.gather(reports, drills, runbook=book, incidents=book, now=1.0)
    assert set(codes(told)) == {"benchmark_failed", "safety_failed", "operations_failed"}
    assert "newest_report_failed" in told["benchmark"]["reason_codes"] and told["benchmark"]["invalid_files"] == 1
