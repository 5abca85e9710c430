"""`holdfast control drill`: a page of 80 columns, an exit code, the same again from the evidence, the exit gate."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from holdfast.cli.doctor import DRILLS, KINDS
from holdfast.operate.playbook import KINDS as ARTIFACTS
from tests.cli.conftest import Cli
from tests.operate.rehearsed import crashed, paused


def test_every_drill_is_a_command() -> None:
    assert [*KINDS, "soak"] == list(ARTIFACTS)


def test_a_folder_that_is_not_empty_is_refused_before_any_work(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "mine.txt").write_text("mine")
    told = cli("drill", "crash", "--quick", "--out", tmp_path)
    assert told.code == 2 and told.err.splitlines() == [
        f"holdfast: error: --out {tmp_path}: is there and not empty; name a new folder"
    ]


@pytest.mark.timeout(600)
def test_a_run_is_killed_for_real_and_taken_up(cli: Cli, tmp_path: Path) -> None:
    told = cli("drill", "crash", "--quick", "--out", tmp_path / "a", "--json")
    late = [one for one in told.json["problems"] if one.startswith("it worked again in time")]  # on a busy machine
    assert told.json["problems"] == late and told.code == len(late)
    assert told.json["artifact"] == str(tmp_path / "a" / "playbook.json")
    names = {one["name"]: one["holds"] for one in told.json["checks"]}
    assert names["no task was lost"] and names["no task was done twice"] and names["another driver took it up"]
    log = (tmp_path / "a" / "operator.log").read_text()
    assert f'"{told.json["crash_drill"]["crash_simulation_command"]}"' in log and "kill -9" in log


def test_a_drill_is_checked_from_its_evidence_on_one_page(cli: Cli, tmp_path: Path) -> None:
    path = crashed(tmp_path / "a")
    told = cli("drill", "check", path.parent)
    assert told.code == 0 and told.lines[0] == "crash drill m24-recovery-19700112-134640: passed"
    assert told.lines[-1] == "true, computed again from its store and ledger"
    assert "measured: recovery_s 38.000" in told.lines and max(map(len, told.lines)) <= 80 and len(told.lines) < 50
    assert cli("drill", "check", path, "--json").json == {"file": str(path), "ok": True, "problems": []}
    assert max(map(len, cli("drill", "check", paused(tmp_path / "b")).lines)) <= 80
    newest = cli("drill", "check", tmp_path)  # both lie there
    assert (
        newest.lines[0].startswith("pause drill ") and newest.err == f"2 drills in {tmp_path}; this is the newest, b\n"
    )
    data = json.loads(path.read_text())
    data["measured"]["recovery_s"] = 1.0
    path.write_text(json.dumps(data))
    told = cli("drill", "check", path)
    assert told.code == 1 and told.lines[0].endswith(": FAILED") and max(map(len, told.lines)) <= 80


def test_the_gate_is_closed_with_its_reasons_and_leaves_the_bundle(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    paused(tmp_path / DRILLS / "pause-1")
    told = cli("drill", "gate", "--reports", tmp_path / "reports", "--out", "bundles")
    assert told.code == 1 and told.lines[0] == "exit gate: closed" and max(map(len, told.lines)) <= 80
    assert "reasons  benchmark_failed, safety_failed, operations_failed," in told.out
    [bundle] = (tmp_path / "bundles").iterdir()
    kept = json.loads(bundle.read_text())
    assert kept["operations"]["pause_resume_proven"] is True and kept["operations"]["rollback_proven"] is False
    again = cli("drill", "gate", "--reports", tmp_path / "reports", "--json")
    assert again.code == 1 and again.json["decision"]["reason_codes"] == kept["decision"]["reason_codes"]
