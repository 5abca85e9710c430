"""The artifact of a drill: its documented fields, and that nothing in it or beside it can be changed unnoticed."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.operate.drill.playbook import STORE, TRANSCRIPT, validate
from tests.operate.rehearsed import crashed


def edited(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))


def without_guards(path: Path, statement: str) -> None:
    """As somebody would who can write to the file."""
    with sqlite3.connect(path) as connection:
        for (name,) in connection.execute("SELECT name FROM sqlite_master WHERE type = 'trigger'").fetchall():
            connection.execute(f"DROP TRIGGER {name}")
        connection.execute(statement)
    connection.close()


def test_an_artifact_has_the_documented_fields_and_is_true_wherever_its_folder_lies(tmp_path: Path) -> None:
    path = crashed(tmp_path / "a")
    artifact, problems = validate(path)
    assert not problems and artifact["artifact_kind"] == "m24_rl_resume_after_crash_playbook"
    assert artifact["run_id"] == "m24-recovery-19700112-134640"
    assert artifact["crash_drill"]["running_manifest_path"].endswith(".json")
    assert artifact["resume_drill"]["checkpoint_path"].endswith(".sqlite")
    assert artifact["outcome"]["resume_status"] == "succeeded"
    moved = path.parent.rename(tmp_path / "elsewhere")
    assert validate(moved / path.name)[1] == ()


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda one: one["measured"].update(recovery_s=0.1), "measured: the artifact says"),
        (lambda one: one["outcome"].update(reasons=["none"]), "outcome: does not follow"),
        (lambda one: one["checks"].pop(), "checks: the artifact has 11"),
        (lambda one: one["checks"][4].update(found="all of it"), "the artifact says 'all of it'"),
        (lambda one: one["marks"][0].update(at=1_000_035.0), "the transcript has every mark"),
        (lambda one: one.update(run_id="m24-other"), "run_id: must be"),
        (lambda one: one["crash_drill"].update(crash_simulation_command=" "), "crash_simulation_command: must be"),
        (lambda one: one.update(drill="dance"), "schema_version and drill: must be"),
    ],
    ids=["figure", "outcome", "fewer", "found", "mark", "id", "blank", "kind"],
)
def test_what_the_evidence_does_not_bear_out_is_named(tmp_path: Path, change: Any, says: str) -> None:
    path = crashed(tmp_path / "a")
    edited(path, change)
    assert any(says in problem for problem in validate(path)[1])


def test_evidence_that_was_changed_is_named(tmp_path: Path) -> None:
    path = crashed(tmp_path / "a")
    log = path.with_name(TRANSCRIPT)
    log.write_text(log.read_text() + "1.0 $ holdfast runs\n")
    assert validate(path)[1] == ("operator.log: is not the file that the drill left",)


@pytest.mark.parametrize(
    ("statement", "says"),
    [
        ("DELETE FROM ledger WHERE seq = 2", "the events are the ledger"),
        ("UPDATE ledger SET body = '{}' WHERE seq = 2", "the store is sound"),
        ("UPDATE attempts SET status = 'failed' WHERE key = 1", "no task was done twice"),
        ("UPDATE runs SET driver = 1", "another driver took it up"),
    ],
    ids=["entry-gone", "entry-changed", "attempt", "driver"],
)
def test_a_store_that_was_changed_is_named(tmp_path: Path, statement: str, says: str) -> None:
    path = crashed(tmp_path / "a")
    without_guards(path.with_name(STORE), statement)
    assert any(says in problem for problem in validate(path)[1])


def test_what_is_no_artifact_is_said_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="No such file"):
        validate(tmp_path / "none.json")
    (tmp_path / "a.json").write_text("[]")
    with pytest.raises(BadInput, match="is not an object"):
        validate(tmp_path / "a.json")
    (tmp_path / "b.json").write_text("{")
    with pytest.raises(BadInput, match="is not JSON"):
        validate(tmp_path / "b.json")
