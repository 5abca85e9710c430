"""The documented report on a run's life, from the store alone."""

from __future__ import annotations

import json
import threading
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, StoreFull
from holdfast.contracts.records import loads
from holdfast.contracts.release import Stage
from holdfast.contracts.run import DesiredState, RunState, SplitRewards, Status
from holdfast.operate import control, lifecycle
from holdfast.operate.lifecycle import SILENT_S, write_status
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.operate.test_control import ANN, Room, release
from tests.store.scene import checkpoint

DOCUMENTED = {
    "schema_version", "state_dir", "control_state_path", "control_audit_path", "action", "principal", "idempotent",
    "rollback_checkpoint", "checkpoint_run_id", "recovery_report_path", "recovery_checkpoint_source",
    "recovery_crash_detected", "recovery_replayed_audit_events", "control_state", "training_status",
}  # fmt: skip
STATE = {
    "schema_version", "updated_unix_ms", "lifecycle_state", "last_action", "principal", "rollback_checkpoint"
}  # fmt: skip
TRAINING = {"run_state", "model_ref", "store_path", "total_rollouts", "succeeded", "failed", "cancelled"}


def told(store: Store, run: str, clock: Clock) -> dict[str, Any]:
    return lifecycle.report(store, store.runs.get(run), principal="local:ann", now=clock.now)


def test_every_documented_field_is_there_from_the_first_moment(file_store: Store, clock: Clock) -> None:
    run = Room(file_store, clock).run().id
    found = told(file_store, run, clock)
    assert set(found) >= DOCUMENTED and set(found["control_state"]) == STATE
    assert set(found["training_status"]) >= TRAINING
    assert (found["action"], found["principal"], found["idempotent"]) == ("status", "local:ann", None)
    assert found["control_state"]["lifecycle_state"] == "running" and found["control_state"]["last_action"] is None
    assert (found["recovery_crash_detected"], found["rollback_checkpoint"]) == (None, None)
    assert found["allowed_actions"] == ["resume", "pause", "freeze", "drain", "cancel"]  # it is driven
    clock.advance(SILENT_S + 1)
    assert told(file_store, run, clock)["allowed_actions"][-1] == "recover"


def test_it_tells_the_last_order_and_whether_that_changed_anything(file_store: Store, clock: Clock) -> None:
    room = Room(file_store, clock)
    run = room.run().id
    clock.advance(2.0)
    room.take("pause", run, mode="freeze")
    state = told(file_store, run, clock)["control_state"]
    assert (state["lifecycle_state"], state["last_action"], state["principal"]) == ("paused", "pause", "ann")
    assert state["updated_unix_ms"] == int(clock.now * 1000)
    assert told(file_store, run, clock)["idempotent"] is False
    room.take("pause", run, mode="freeze")
    assert told(file_store, run, clock)["idempotent"] is True
    file_store.runs.want(run, DesiredState.DRAINING, who="bob", why="w", now=clock.now).result()  # not by the desk
    state = told(file_store, run, clock)["control_state"]
    assert (state["lifecycle_state"], state["last_action"], state["principal"]) == ("draining", "draining", "bob")


def test_it_tells_of_rollbacks_recoveries_and_checkpoints(file_store: Store, clock: Clock) -> None:
    room = Room(file_store, clock)
    run = room.run().id
    for number in (1, 2):
        release(file_store, number, Stage.LIVE)
    room.take("rollback", "sprout")
    file_store.checkpoints.add(checkpoint("c"), run, now=1.0).result()
    clock.advance(SILENT_S + 1)
    control.take(file_store, room.order("recover", run), ANN)
    found = told(file_store, run, clock)
    assert (found["rollback_checkpoint"], found["checkpoint_run_id"]) == ("sprout@1", run)
    assert found["recovery_crash_detected"] is True and found["recovery_replayed_audit_events"] >= 1
    assert found["recovery_report_path"].startswith(file_store.url)
    assert found["training_status"]["run_state"] == RunState.FAILED
    assert found["allowed_actions"] == ["cancel", "recover"]


NAMES = ("total_rollouts", "succeeded", "failed", "cancelled", "dead", "running", "waiting")
STATUS = Status(
    updated_unix_ms=1_700_000_000_000,
    run_state=RunState.RUNNING,
    rewards={"train": SplitRewards(total=2, rewarded=1, mean_reward=0.5)},
    elapsed_s=1.25,
    error="é",
    **dict.fromkeys(("run_id", "project", "model_ref", "store_path", "resources_id"), "x"),
    **{name: number for number, name in enumerate(NAMES)},
)


def test_a_reader_never_finds_half_a_status(tmp_path: Path) -> None:
    path, over = tmp_path / "deep" / "status.json", threading.Event()
    write_status(path, STATUS)
    assert loads(Status, path.read_bytes()) == STATUS and json.loads(path.read_text())["run_state"] == "running"
    seen: set[int] = set()
    broken: list[Exception] = []

    def read() -> None:
        while not over.is_set():
            try:
                seen.add(loads(Status, path.read_bytes()).succeeded)
            except Exception as error:
                broken.append(error)

    reader = threading.Thread(target=read)
    reader.start()
    for n in range(100_000):
        write_status(path, replace(STATUS, succeeded=n, error="x" * (n % 100 * 100)))
        if n >= 100 and (len(seen) > 5 or broken):  # on a busy machine the reader's turns are rare
            break
    over.set()
    reader.join()
    assert broken == [] and len(seen) > 5
    assert [file.name for file in path.parent.iterdir()] == ["status.json"]


def test_what_is_not_finite_or_has_no_place_is_not_written(tmp_path: Path) -> None:
    rewards = {"train": SplitRewards(total=1, rewarded=1, mean_reward=float("inf"))}
    with pytest.raises(BadRecord):
        write_status(tmp_path / "status.json", replace(STATUS, rewards=rewards))
    assert not (tmp_path / "status.json").exists()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreFull, match="make room, or choose another place"):
        write_status(tmp_path / "file" / "status.json", STATUS)
