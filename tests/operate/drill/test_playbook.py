"""The artifact of a drill: its documented fields, and that nothing in it or beside it can be changed unnoticed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.operate.playbook import NAME, STORE, TRANSCRIPT, validate
from holdfast.store.store import open_store
from tests.operate.rehearsed import ANSWERS, BAD, GOOD, crashed, paused, rolled_back
from tests.store.tamper import damage


@pytest.fixture(scope="module")
def left(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder as a crash drill leaves it."""
    return crashed(tmp_path_factory.mktemp("crashed") / "a").parent


@pytest.fixture
def path(left: Path, tmp_path: Path) -> Path:
    """The artifact of a copy of it, to be changed."""
    return Path(shutil.copytree(left, tmp_path / "copy")) / NAME


def test_an_artifact_has_the_documented_fields_and_is_true_wherever_its_folder_lies(path: Path) -> None:
    artifact, problems = validate(path)
    assert not problems and artifact["artifact_kind"] == "m24_rl_resume_after_crash_playbook"
    assert artifact["run_id"] == "m24-recovery-19700112-134640"
    assert artifact["crash_drill"]["running_manifest_path"].endswith(".json")
    assert artifact["resume_drill"]["checkpoint_path"].endswith(".sqlite")
    assert artifact["outcome"]["resume_status"] == "succeeded"


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
def test_what_the_evidence_does_not_bear_out_is_named(path: Path, change: Any, says: str) -> None:
    data = json.loads(path.read_text())
    change(data)
    path.write_text(json.dumps(data))
    assert any(says in problem for problem in validate(path)[1])


def test_evidence_that_was_changed_is_named(path: Path) -> None:
    log = path.with_name(TRANSCRIPT)
    log.write_text(log.read_text() + "1.0 $ holdfast run list\n")
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
def test_a_store_that_was_changed_is_named(path: Path, statement: str, says: str) -> None:
    with open_store(path.with_name(STORE)) as store:
        damage(store, statement)
    assert any(says in problem for problem in validate(path)[1])


def test_what_is_no_artifact_is_said_in_one_line(tmp_path: Path) -> None:
    for text, why in ((None, "No such file"), ("[]", "is not an object"), ("{", "is not JSON")):
        if text is not None:
            (tmp_path / "a.json").write_text(text)
        with pytest.raises(BadInput, match=why):
            validate(tmp_path / "a.json")


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The artifact, and which of its checks do not hold."""
    artifact: dict[str, Any] = json.loads(path.read_text())
    return artifact, [one["name"] for one in artifact["checks"] if not one["holds"]]


def test_a_run_that_was_taken_up_has_lost_nothing_and_how_long_it_took_is_known(left: Path) -> None:
    artifact, wrong = read(left / NAME)
    assert not wrong and artifact["measured"] == {"recovery_s": 38.0}  # killed at 2, the first answer after that at 40
    assert artifact["outcome"]["recovery_reason_code"] == "job_recovered_after_restart"


def test_a_task_that_no_rollout_was_made_of_is_lost(tmp_path: Path) -> None:
    artifact, wrong = read(crashed(tmp_path / "a", loses=True))
    assert wrong == ["no task was lost"] and artifact["outcome"]["resume_status"] == "failed"


def test_a_run_that_was_killed_in_a_phase_has_every_step_once(tmp_path: Path) -> None:
    artifact, wrong = read(crashed(tmp_path / "a", steps=(1, 2)))
    assert not wrong and artifact["measured"] == {"recovery_s": 38.0, "learning_s": 8.0}
    assert read(crashed(tmp_path / "b", steps=(1, 3)))[1][-1] == "run-2-b: every step is there once"


def test_a_service_that_was_killed_answers_everybody_as_before(tmp_path: Path) -> None:
    artifact, wrong = read(crashed(tmp_path / "a", served="abab"))
    assert not wrong and artifact["measured"]["serving_s"] == 2.0
    assert read(crashed(tmp_path / "b", served="abba"))[1] == ["killed while serving: everybody keeps their version"]


def test_orders_are_timed_by_what_attempts_did(tmp_path: Path) -> None:
    artifact, wrong = read(paused(tmp_path / "a"))
    assert not wrong
    assert artifact["measured"] == {
        "paused_claim_s": 0.0,
        "frozen_claim_s": 0.0,
        "drain_s": 0.5,
        "freeze_s": 0.25,
        "resume_s": 0.5,  # the slower of two: an eighth, and a half
        "cancel_s": 0.75,
    }


def test_a_pause_that_hands_back_did_not_drain_and_a_slow_freeze_is_not_at_once(tmp_path: Path) -> None:
    assert read(paused(tmp_path / "a", drains=False))[1] == ["paused: what ran was finished"]
    assert read(paused(tmp_path / "b", frozen_s=1.5))[1] == ["frozen: at once"]


@pytest.mark.parametrize(
    ("answers", "last", "wrong"),
    [
        (ANSWERS, {}, []),
        ([one for one in ANSWERS if one[1] == GOOD], {}, ["the bad one answered before"]),
        ([*ANSWERS, (8.0, BAD)], {}, ["and only it, from then on"]),
        ([one for one in ANSWERS if one[0] != 5.25], {}, ["the good one answers in time"]),  # only 1.6 s after
        (ANSWERS, {"error": "refused"}, ["no request failed"]),
    ],
    ids=["well", "never-bad", "late", "slow", "failed"],
)
def test_a_rollback_that_changes_too_little_too_late_or_hurts_is_found(
    tmp_path: Path, answers: list[tuple[float, str]], last: dict[str, str], wrong: list[str]
) -> None:
    artifact, found = read(rolled_back(tmp_path / "a", answers, **last))
    assert found == wrong and (wrong or artifact["measured"] == {"rollback_s": 0.375})
