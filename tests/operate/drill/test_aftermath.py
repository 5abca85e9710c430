"""What follows from what a drill left: figures worked by hand, and each thing that can go wrong is found."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.operate.rehearsed import ANSWERS, BAD, GOOD, crashed, paused, rolled_back


def read(path: Path) -> tuple[dict[str, Any], list[str]]:
    """The artifact, and which of its checks do not hold."""
    artifact: dict[str, Any] = json.loads(path.read_text())
    return artifact, [one["name"] for one in artifact["checks"] if not one["holds"]]


def test_a_run_that_was_taken_up_has_lost_nothing_and_how_long_it_took_is_known(tmp_path: Path) -> None:
    artifact, wrong = read(crashed(tmp_path / "a"))
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


def test_a_rollback_changes_what_answers(tmp_path: Path) -> None:
    artifact, wrong = read(rolled_back(tmp_path / "a"))
    assert not wrong and artifact["measured"] == {"rollback_s": 0.375}


@pytest.mark.parametrize(
    ("answers", "last", "wrong"),
    [
        ([one for one in ANSWERS if one[1] == GOOD], {}, ["the bad one answered before"]),
        ([*ANSWERS, (8.0, BAD)], {}, ["and only it, from then on"]),
        ([one for one in ANSWERS if one[0] != 5.25], {}, ["the good one answers in time"]),  # only 1.6 s after
        (ANSWERS, {"error": "refused"}, ["no request failed"]),
    ],
    ids=["never-bad", "late", "slow", "failed"],
)
def test_a_rollback_that_changes_too_little_too_late_or_hurts_is_found(
    tmp_path: Path, answers: list[tuple[float, str]], last: dict[str, str], wrong: list[str]
) -> None:
    assert read(rolled_back(tmp_path / "a", answers, **last))[1] == wrong
