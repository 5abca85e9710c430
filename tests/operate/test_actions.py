"""What each order comes to, foretold and done; that it is obeyed once and by whom is tested with the desk."""

from __future__ import annotations

from dataclasses import replace

import pytest

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import IllegalMove, NotFound, Refused, StoreCorrupt
from holdfast.contracts.flag import Flag
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import AttemptState, RolloutState, Task
from holdfast.contracts.run import RunState
from holdfast.operate import control, lifecycle
from holdfast.operate.lifecycle import SILENT_S
from holdfast.store.queue import SWEEP_LIMIT
from holdfast.store.store import Store
from tests.conftest import Clock
from tests.operate.test_control import ANN, Room, release


@pytest.fixture
def room(file_store: Store, clock: Clock) -> Room:
    return Room(file_store, clock)


@pytest.fixture
def either(store: Store, clock: Clock) -> Room:
    """On each engine in turn."""
    return Room(store, clock)


def test_a_run_that_is_driven_is_not_recovered(room: Room) -> None:
    run = room.run()
    room.clock.advance(2.0)
    with pytest.raises(IllegalMove) as refused:
        room.take("recover", run.id)
    expected = f"run {run.id}: it is driven (last sign of life 2.0 s ago); a run is dead once it was silent for 30 s"
    assert str(refused.value) == expected
    assert room.look("recover", run.id)["refused"]["why"] == "it is driven (last sign of life 2.0 s ago)"


def test_without_a_checkpoint_that_is_whole_a_run_is_not_recovered(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Which checkpoints are, is for `recover` to say, and is tested there."""

    def damaged(*_: object) -> None:
        raise StoreCorrupt("run x", why="both are damaged", remedy="restore one")

    monkeypatch.setattr(lifecycle, "last_sound", damaged)
    run = room.run()
    room.clock.advance(SILENT_S + 1)
    assert room.look("recover", run.id)["refused"]["why"] == "both are damaged"
    with pytest.raises(Refused, match="run x: both are damaged; restore one"):
        room.take("recover", run.id)
    assert [one.run for one in room.entries("refusal")] == [run.id]
    assert room.store.runs.get(run.id) == run


def test_cancelling_a_run_cancels_what_is_open_and_ends_what_nobody_drives(room: Room) -> None:
    run = room.run()
    n = SWEEP_LIMIT + 10
    room.store.queue.enqueue(run.id, [Task(name=f"t{n}", input=1) for n in range(n)], now=1.0).result()
    answer = room.take("cancel", run.id)
    assert (answer["cancelled"], answer["after"]) == (n, {"state": "running", "wanted": "cancelled"})
    assert room.store.views.counts(run.id)[RolloutState.CANCELLED] == n
    silent = room.run()
    room.clock.advance(SILENT_S + 1)
    assert room.look("cancel", silent.id)["after"] == {"state": "cancelled", "wanted": "cancelled"}
    assert room.take("cancel", silent.id)["after"] == {"state": "cancelled", "wanted": "cancelled"}
    assert room.store.runs.get(silent.id).state is RunState.CANCELLED


def test_a_driver_goes_on_cancelling_where_one_order_would_take_too_long(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(control, "SWEPT", 1)
    run = room.run()
    room.store.queue.enqueue(run.id, [Task(name=f"t{n}", input=1) for n in range(SWEEP_LIMIT + 10)], now=1.0).result()
    assert room.take("cancel", run.id)["cancelled"] == SWEEP_LIMIT


def test_a_rollout_is_cancelled_and_queued_again(either: Room) -> None:
    store, run = either.store, either.run()
    store.queue.enqueue(run.id, [Task(name="t", input=1)], now=1.0).result()
    with pytest.raises(IllegalMove, match="is queuing, not done; cancel it first"):
        either.take("requeue", "run-1/t")
    answer = either.take("cancel_rollout", "run-1/t")
    assert (answer["subject"], answer["before"]) == (f"{run.id}/t", {"status": "queuing"})
    assert store.views.rollout(f"{run.id}/t").reason == "because"
    assert either.take("requeue", "run-1/t")["after"] == {"status": "queuing"}
    (claim,) = store.queue.claim(run.id, "w", now=either.clock.now, lease_s=30.0).result()
    store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=either.clock.now).result()
    for action in ("requeue", "cancel_rollout"):
        assert "it is final" in either.look(action, "run-1/t")["refused"]["remedy"]
        with pytest.raises(IllegalMove, match="it is final"):
            either.take(action, "run-1/t")


def test_a_rollout_of_a_run_that_ended_is_queued_for_whoever_takes_it_up(room: Room) -> None:
    run = room.run()
    room.store.queue.enqueue(run.id, [Task(name="t", input=1)], now=1.0).result()
    room.take("cancel_rollout", "run-1/t")
    room.store.runs.end(run.id, RunState.FAILED, who="t", now=2.0).result()
    assert room.take("requeue", "run-1/t")["note"].startswith("its run is failed: nobody claims it until")


def test_a_rollout_whose_step_is_recorded_is_not_queued_again(either: Room) -> None:
    """Whoever resumed the run would not run it, and it would be cancelled at the end."""
    store, run = either.store, either.run()
    store.queue.enqueue(run.id, [Task(name="t", input=1, step="0/collect")], now=1.0).result()
    either.take("cancel_rollout", "run-1/t")
    assert either.look("requeue", "run-1/t")["refused"] is None
    store.steps.add(run.id, "0/collect", {}, function="collect", now=2.0).result()
    seen = either.look("requeue", "run-1/t")["refused"]
    assert seen["why"] == "its step 0/collect is recorded, and a recorded step is not run again"
    with pytest.raises(IllegalMove, match="is recorded, .*; begin a new run with its task"):
        either.take("requeue", "run-1/t")
    assert store.views.rollout(f"{run.id}/t").status is RolloutState.CANCELLED


def test_a_step_that_is_recorded_between_look_and_deed_still_refuses(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = room.run()
    room.store.queue.enqueue(run.id, [Task(name="t", input=1, step="0/collect")], now=1.0).result()
    room.take("cancel_rollout", "run-1/t")
    room.store.steps.add(run.id, "0/collect", {}, function="collect", now=2.0).result()
    monkeypatch.setattr(room.store.steps, "get", lambda run, name: None)  # as it was before
    with pytest.raises(IllegalMove, match="a recorded step is not run again"):
        room.take("requeue", "run-1/t")


def test_a_rollback_makes_the_known_good_version_live(either: Room) -> None:
    for number, stage in ((1, Stage.LIVE), (2, Stage.LIVE), (3, Stage.CANARY), (4, Stage.CANDIDATE)):
        release(either.store, number, stage)
    seen = either.look("rollback", "spr")
    assert seen["before"] == {"live": "sprout@2", "canary": "sprout@3"}
    assert seen["after"] == {"live": "sprout@2", "canary": None}
    assert seen["affected"] == {"taken_back": "sprout@3", "stage": "canary", "share": 25}
    answer = either.take("rollback", "spr", "back")
    assert (answer["said"], answer["live"]["id"]) == ("sprout: canary nobody, was sprout@3", "sprout@2")
    assert either.take("rollback", "spr", "back")["again"]  # and not one further back
    assert either.store.releases.get("sprout@2").stage is Stage.LIVE
    assert either.take("rollback", "sprout")["said"] == "sprout: live sprout@1, was sprout@2"
    assert either.look("rollback", "sprout", to="sprout@4")["refused"]["why"].startswith("is candidate, and not one")
    assert either.look("rollback", "sprout", to="sprout@1")["refused"]["why"] == "cannot be rolled back to itself"
    assert either.take("rollback", "sprout", to="sprout@2")["after"]["live"] == "sprout@2"  # undone: a person took it
    assert either.store.releases.recompute() == []
    either.store.ledger.verify()


def test_a_kill_switch_works_whatever_else_is_changed(either: Room) -> None:
    flags = either.store.flags
    flag = Flag(name="beta", variants={"on": True, "off": False}, off="off", enabled=True)
    flags.put(flag, who="t", why="w", now=1.0).result()
    assert either.take("kill", "beta")["changes"]
    assert (flags.get("beta").killed, flags.get("beta").enabled) == (True, True)
    again = either.take("kill", "beta")
    assert (again["changes"], again["said"]) == (False, "beta: yes, yes, as before")


def test_an_alert_is_acknowledged_by_its_code_and_run(either: Room) -> None:
    alerts = either.store.alerts
    for run in ("run-1-a", "run-2-a"):
        alerts.raise_(Alert(code="backlog", severity=Severity.WARNING, message="many", at=1.0, run=run)).result()
    alerts.raise_(Alert(code="disk", severity=Severity.CRITICAL, message="full", at=1.0)).result()
    assert either.take("acknowledge", "disk")["after"] == {"acknowledged_by": "ann"}
    with pytest.raises(NotFound, match="stands for 2 runs: name one, as in backlog@run-2-a"):
        either.take("acknowledge", "backlog")
    assert either.take("acknowledge", "backlog@run-1-a")["said"] == "backlog@run-1-a: acknowledged by ann, was nobody"
    bob = replace(ANN, label="bob")
    again = control.take(either.store, either.order("acknowledge", "disk"), bob)
    assert (again["changes"], again["after"]) == (False, {"acknowledged_by": "ann"})
    assert [one.acknowledged_by for one in alerts.standing()] == ["ann", None, "ann"]
