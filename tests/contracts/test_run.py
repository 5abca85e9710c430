"""The words for runs: what they are in, and what an operator may want of them."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.records import decode, encode
from holdfast.contracts.run import DesiredState, RunRecord, RunState, Status, StepRecord


def test_the_states_are_the_documented_ones() -> None:
    assert list(RunState) == ["running", "completed", "failed", "cancelled", "timed_out"]
    assert list(DesiredState) == ["running", "paused", "frozen", "draining", "cancelled"]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"step": -1}, "step of run-1: step = -1: must not be negative"),
        ({"at": float("nan")}, "step 0 of run-1: at = nan: must be finite"),
    ],
)
def test_a_step_has_a_number_and_a_time(changes: dict[str, Any], message: str) -> None:
    given: dict[str, Any] = {"run": "run-1", "step": 0, "name": "base", "function": "f", "inputs_sha256": ""}
    given |= {"at": 1.0, "body": {}}
    assert StepRecord(**given).step == 0
    with pytest.raises(BadRecord) as refused:
        StepRecord(**given | changes)
    assert str(refused.value) == message


def test_a_run_keeps_what_it_is_in_apart_from_what_is_wanted() -> None:
    run = RunRecord(
        id="run-1",
        project="p",
        kind="optimize",
        state=RunState.RUNNING,
        wanted=DesiredState.DRAINING,
        model_ref="m",
        settings={"a": 1},
        queue_limit=None,
        created_at=1.0,
        beat_at=2.0,
        ended_at=None,
        error=None,
    )
    written = encode(run)
    assert (written["state"], written["wanted"]) == ("running", "draining")
    assert decode(RunRecord, written) == run


def test_a_status_from_before_outcomes_were_counted_is_still_read() -> None:
    counts = dict.fromkeys(("total_rollouts", "succeeded", "failed", "cancelled", "dead", "running", "waiting"), 0)
    names = dict.fromkeys(("run_id", "project", "model_ref", "store_path"), "x")
    status = Status(
        **names, **counts, updated_unix_ms=1, run_state=RunState.RUNNING, resources_id=None, rewards={}, elapsed_s=0.5
    )
    written = encode(replace(status, outcomes={"right": 1, "wrong": 2, "not_checked": 3}))
    assert decode(Status, written).outcomes == {"right": 1, "wrong": 2, "not_checked": 3}
    del written["outcomes"]
    assert decode(Status, written) == status
