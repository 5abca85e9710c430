"""The desk: each order by the one who may give it, when it may be given, once; every refusal is in the ledger."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from holdfast.contracts.commands import GUARDS, REASONS, RUN_COMMANDS, Alert, Command, Forbidden, Role, Severity
from holdfast.contracts.errors import BadInput, Conflict, HoldfastError, IllegalMove, NotFound, Refused, StoreCorrupt
from holdfast.contracts.flag import Flag
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.rollout import AttemptState, RolloutState, Task
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState
from holdfast.operate import control, lifecycle
from holdfast.operate.auth import Caller
from holdfast.operate.control import ACTIONS
from holdfast.operate.lifecycle import SILENT_S
from holdfast.store.queue import SWEEP_LIMIT
from holdfast.store.store import Store, open_store
from tests.conftest import Clock

ANN = Caller(label="ann", role=Role.OPERATOR, token_id="tok-1")


@dataclass
class Room:
    """A store with a desk in it."""

    store: Store
    clock: Clock
    ids: list[int] = field(default_factory=lambda: [0])

    def run(self, state: RunState = RunState.RUNNING, wanted: DesiredState = DesiredState.RUNNING) -> RunRecord:
        now, runs = self.clock.now, self.store.runs
        run = runs.begin(kind="optimize", model_ref="m", settings={}, salt="a", who="t", now=now).result()
        if wanted is not DesiredState.RUNNING:
            runs.want(run.id, wanted, who="t", why="w", now=now).result()
        if state is not RunState.RUNNING:
            runs.end(run.id, state, who="t", now=now).result()
        return runs.get(run.id)

    def order(self, action: str, subject: str, identity: str | None = None, **args: str) -> Command:
        self.ids[0] += 1
        given = {"id": identity or f"c{self.ids[0]}", "action": action, "subject": subject}
        return Command(**given, who="?", why="because", at=self.clock.now, args=args)

    def take(self, action: str, subject: str, identity: str | None = None, **args: str) -> dict[str, Any]:
        return control.take(self.store, self.order(action, subject, identity, **args), ANN)

    def look(self, action: str, subject: str, **args: str) -> dict[str, Any]:
        return control.take(self.store, self.order(action, subject, **args), ANN, is_dry=True)

    def entries(self, *kinds: str) -> list[LedgerEntry]:
        return [entry for entry in self.store.ledger.entries() if entry.kind in kinds]


@pytest.fixture
def room(file_store: Store, clock: Clock) -> Room:
    return Room(file_store, clock)


def release(store: Store, number: int, stage: Stage) -> None:
    made = store.releases.add(policy="sprout", kind=PolicyKind.PROMPT, source=f"shelf:{number}", who="t", now=1.0)
    if stage is not Stage.CANDIDATE:
        how = {"expect": Stage.CANDIDATE, "who": "t", "why": "w", "now": 1.0}
        share = 25 if stage is Stage.CANARY else None
        store.releases.move(made.result().id, stage, share=share, known_good=stage is Stage.LIVE, **how).result()


# The table, whole ----------------------------------------------------------------------------------------------------

CHANGED = {"resume": "running", "pause": "paused", "freeze": "frozen", "drain": "draining", "cancel": "cancelled"}


@pytest.mark.parametrize("state", RunState)
def test_a_run_takes_the_orders_of_the_table_and_no_others(room: Room, state: RunState) -> None:
    for wanted, order in product(DesiredState, RUN_COMMANDS):
        run, letter = room.run(state, wanted), GUARDS[state][wanted][RUN_COMMANDS.index(order)]
        action, args = ("pause", {"mode": "freeze"}) if order == "freeze" else (order, {})
        if order == "recover":
            room.clock.advance(SILENT_S + 1)
        seen, before = room.look(action, run.id, **args), len(room.entries("command", "refusal"))
        where = (wanted, order)
        if letter in REASONS:
            with pytest.raises(IllegalMove) as refused:
                room.take(action, run.id, **args)
            why, remedy = REASONS[letter]
            assert (refused.value.why, refused.value.remedy) == (why.format(state=state), remedy), where
            assert seen["refused"] == control.refusal(refused.value), where
            assert room.store.runs.get(run.id) == run, where
            (noted,) = room.entries("command", "refusal")[before:]
            assert (noted.kind, noted.run, noted.body["refused"]) == ("refusal", run.id, str(refused.value)), where
            continue
        answer, after = room.take(action, run.id, **args), room.store.runs.get(run.id)
        assert seen["refused"] is None and seen["changes"] == answer["changes"] == (letter != "="), where
        assert seen["before"] == answer["before"] == {"state": state, "wanted": wanted}, where
        assert seen["after"] == answer["after"] == {"state": after.state, "wanted": after.wanted}, where
        if order != "recover":
            assert (after.state, after.wanted) == (state, CHANGED[order]), where
        elif letter == "?":
            assert after.state is (RunState.CANCELLED if wanted is DesiredState.CANCELLED else RunState.FAILED), where
        else:
            assert after == run, where
        (noted,) = room.entries("command", "refusal")[before:]
        assert (noted.kind, noted.who, noted.run) == ("command", "ann", run.id), where


# Who may, and once ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("role", Role)
@pytest.mark.parametrize("action", list(ACTIONS))
def test_the_role_decides_before_anything_is_looked_at(room: Room, action: str, role: Role) -> None:
    caller = Caller(label="eve", role=role)
    for is_dry in (False, True):
        try:
            control.take(room.store, room.order(action, "nothing"), caller, is_dry=is_dry)
            refused = None
        except HoldfastError as error:
            refused = error
        assert isinstance(refused, Forbidden) == (role is Role.VIEWER)
    if role is Role.VIEWER:
        noted = room.entries("refusal")
        assert [(one.who, one.body["role"], one.body["action"]) for one in noted] == [("eve", "viewer", action)] * 2
        assert str(refused) == (
            f"{action}: is for operators, and eve is a viewer; use the token of one who is operator"
        )


def test_an_order_is_obeyed_once_whoever_repeats_it(room: Room) -> None:
    run = room.run()
    command = room.order("pause", "run-1", "c1")
    first = control.take(room.store, command, ANN)
    assert (first["again"], first["said"]) == (False, f"{run.id}: wanted paused, was running")
    room.take("resume", run.id)
    again = control.take(room.store, replace(command, at=command.at + 60), ANN)
    assert again == {**first, "again": True}
    assert room.store.runs.get(run.id).wanted is DesiredState.RUNNING
    with pytest.raises(Conflict, match="order c1: was another one: pause run-1 by ann"):
        room.take("drain", "run-1", "c1")
    with pytest.raises(Conflict):  # another's id is another's
        control.take(room.store, command, replace(ANN, label="bob"))
    assert [one.body["id"] for one in room.entries("refusal")] == ["c1", "c1"]
    room.store.ledger.verify()


@pytest.mark.parametrize("action", ["recover", "requeue"])
def test_of_one_order_that_two_give_at_once_nroom_is_refused(room: Room, action: str) -> None:
    for turn in range(8):
        run = room.run()
        subject = run.id
        if action == "requeue":
            room.store.queue.enqueue(run.id, [Task(name="a", input=1)], now=1.0).result()
            room.store.queue.cancel_open(run.id, now=1.0, why="w").result()
            subject = f"{run.id}/a"
        room.clock.advance(SILENT_S + 1)
        command, together = room.order(action, subject, f"once-{turn}"), threading.Barrier(2)

        def give(command: Command = command, together: threading.Barrier = together) -> bool:
            with open_store(room.store.url) as store:
                together.wait()
                return bool(control.take(store, command, ANN)["again"])

        with ThreadPoolExecutor(2) as pool:
            given = [pool.submit(give), pool.submit(give)]
            assert sorted(one.result() for one in given) == [False, True]
    assert room.entries("refusal") == []
    room.store.ledger.verify()


def test_a_dry_run_changes_nothing_and_its_id_stays_free(room: Room) -> None:
    run = room.run()
    room.store.queue.enqueue(run.id, [Task(name=name, input=1) for name in "abc"], now=1.0).result()
    room.store.queue.claim(run.id, "w", now=room.clock.now, lease_s=30.0).result()
    before = room.store.ledger.verify()
    seen = control.take(room.store, room.order("cancel", "run-1", "c1"), ANN, is_dry=True)
    assert seen == {
        "id": "c1", "dry_run": True, "action": "cancel", "subject": run.id, "kind": "run", "changes": True,
        "before": {"state": "running", "wanted": "running"}, "after": {"state": "running", "wanted": "cancelled"},
        "affected": {"running": 1, "waiting": 2}, "refused": None,
        "said": f"{run.id}: wanted cancelled, was running",
    }  # fmt: skip
    assert (room.store.ledger.verify(), room.store.runs.get(run.id)) == (before, run)
    assert not room.take("cancel", "run-1", "c1")["again"]


@pytest.mark.parametrize(
    ("action", "subject", "args", "kind", "message"),
    [
        ("fly", "run-1", {}, BadInput, "order 'fly': is unknown; there are pause, resume"),
        ("pause", "run-9", {}, NotFound, "run 'run-9': there is none in project 'default'"),
        ("pause", "run-1", {"mode": "nap"}, BadInput, "pause: mode = nap: is unknown; use drain, freeze"),
        ("pause", "run-1", {"to": "x"}, BadInput, "pause: 'to': is not an argument of it; there is mode"),
        ("resume", "run-1", {"mode": "drain"}, BadInput, "resume: 'mode': is not an argument of it; there is none"),
        ("requeue", "run-1", {}, NotFound, "rollout 'run-1': is not the id of a rollout"),
        ("rollback", "sprout", {}, BadInput, "policy 'sprout': has no versions; 'holdfast release add' registers"),
        ("acknowledge", "backlog", {}, NotFound, "alert 'backlog': does not stand"),
        ("kill", "beta", {}, NotFound, "flag 'beta': there is none in project 'default'"),
    ],
)
def test_what_cannot_be_ordered_is_refused_and_noted(
    room: Room, action: str, subject: str, args: dict[str, str], kind: type[HoldfastError], message: str
) -> None:
    room.run()
    assert message.startswith("{what}: {why}".format(**room.look(action, subject, **args)["refused"]))
    with pytest.raises(kind) as refused:
        room.take(action, subject, **args)
    assert str(refused.value).startswith(message)
    (noted,) = room.entries("refusal")
    assert (noted.who, noted.body["refused"]) == ("ann", str(refused.value))


# What comes over a wire ----------------------------------------------------------------------------------------------


def test_an_order_is_read_and_who_gives_it_is_not_asked(clock: Clock) -> None:
    body = {"id": "c1", "action": "pause", "subject": "run-1", "args": {"mode": "freeze"}, "why": "lunch"}
    command, is_dry = control.read(body, ANN, now=clock.now)
    assert (command.who, command.at, command.args, is_dry) == ("ann", clock.now, {"mode": "freeze"}, False)
    command, is_dry = control.read({"action": "pause", "subject": "run-1", "dry_run": True}, ANN, now=1.0)
    assert is_dry and command.id  # who only looks needs nroom an id nor a reason


BODY = {"id": "c1", "action": "pause", "subject": "run-1", "why": "lunch"}


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ([], "order: is not a JSON object"),
        ({**BODY, "who": "root"}, "order: 'who': is unknown"),
        ({**BODY, "role": "admin"}, "order: 'role': is unknown"),
        ({**BODY, "dry_run": "yes"}, "order: dry_run: must be true or false"),
        ({**BODY, "args": {"mode": 1}}, "order: args: must be names with texts"),
        ({**BODY, "args": [1]}, "order: args: must be names with texts"),
        ({**BODY, "id": ""}, "order: id: is missing"),
        ({**BODY, "id": "x" * 101}, "must be at most 100 letters"),
        ({**BODY, "why": " "}, "order: why: is missing"),
        ({**BODY, "subject": 5}, "order: subject: is missing, or not a text"),
        ({"id": "c1"}, "order: action: is missing"),
        ({**BODY, "subject": "a\0b"}, "order: subject: is too long, or has letters"),
        ({**BODY, "subject": "x" * 501}, "order: subject: is too long, or has letters"),
        ({**BODY, "args": {"mode": "\n"}}, "order: args: must be names with texts"),
        ({**BODY, "why": "x" * 2001}, "order: why: is longer than 2000 letters"),
    ],
)
def test_what_is_no_order_is_refused(body: Any, message: str) -> None:
    with pytest.raises(BadInput, match=message):
        control.read(body, ANN, now=1.0)


@pytest.mark.parametrize(
    "changes",
    [{"id": "x" * 101}, {"id": "a\tb"}, {"why": " "}, {"why": "x" * 2001}, {"hm": "\ud800"}],
    ids=["long-id", "unseen-id", "blank-why", "long-why", "unknown"],
)
def test_what_a_known_caller_sends_that_is_no_order_is_in_the_ledger(room: Room, changes: dict[str, Any]) -> None:
    run = room.run()
    with pytest.raises(BadInput) as refused:
        control.answer(room.store, {**BODY, **changes}, ANN, now=room.clock.now)
    with pytest.raises(BadInput):  # who only looks has given none
        control.answer(room.store, {**BODY, **changes, "dry_run": True}, ANN, now=room.clock.now)
    (noted,) = room.entries("refusal")
    assert (noted.who, noted.run, noted.body["action"], noted.body["role"]) == ("ann", run.id, "pause", "operator")
    assert noted.body["refused"] == str(refused.value).replace("\ud800", "\ufffd") and len(noted.body["why"]) <= 2000
    control.answer(room.store, {**BODY, "id": "good"}, ANN, now=room.clock.now)
    assert room.store.runs.get(run.id).wanted is DesiredState.PAUSED


def test_no_object_and_a_reason_without_end_are_in_the_ledger_too(room: Room) -> None:
    run = room.run()
    with pytest.raises(BadInput, match="longer than 2000 letters"):
        control.take(room.store, replace(room.order("pause", run.id), why="x" * 100_000), ANN)
    with pytest.raises(BadInput, match="order: is not a JSON object"):
        control.answer(room.store, ["pause"], ANN, now=room.clock.now)
    long, none = room.entries("refusal")
    assert len(long.body["why"]) == 2000 and room.store.runs.get(run.id).wanted is DesiredState.RUNNING
    assert none.body["action"] == "?" and "is not a JSON object" in none.body["refused"]


def test_a_run_that_is_driven_is_not_recovered(room: Room) -> None:
    run = room.run()
    room.clock.advance(2.0)
    with pytest.raises(IllegalMove) as refused:
        room.take("recover", run.id)
    assert refused.value.remedy == "a run is dead once it was silent for 30 s"
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


def test_cancelling_a_run_cancels_what_is_open_and_ends_what_nobody_drives(
    room: Room, monkeypatch: pytest.MonkeyPatch
) -> None:
    n = SWEEP_LIMIT + 10
    for most, cancelled in ((1, SWEEP_LIMIT), (control.SWEPT, n)):  # a driver does the rest where it would take long
        monkeypatch.setattr(control, "SWEPT", most)
        run = room.run()
        room.store.queue.enqueue(run.id, [Task(name=f"t{n}", input=1) for n in range(n)], now=1.0).result()
        answer = room.take("cancel", run.id)
        assert (answer["cancelled"], answer["after"]) == (cancelled, {"state": "running", "wanted": "cancelled"})
        assert room.store.views.counts(run.id)[RolloutState.CANCELLED] == cancelled
    silent = room.run()
    room.clock.advance(SILENT_S + 1)
    assert room.look("cancel", silent.id)["after"] == {"state": "cancelled", "wanted": "cancelled"}
    assert room.take("cancel", silent.id)["after"] == {"state": "cancelled", "wanted": "cancelled"}
    assert room.store.runs.get(silent.id).state is RunState.CANCELLED


def test_a_rollout_is_cancelled_and_queued_again(room: Room) -> None:
    store, run = room.store, room.run()
    store.queue.enqueue(run.id, [Task(name="t", input=1)], now=1.0).result()
    with pytest.raises(IllegalMove, match="is queuing, not done; cancel it first"):
        room.take("requeue", "run-1/t")
    answer = room.take("cancel_rollout", "run-1/t")
    assert (answer["subject"], answer["before"]) == (f"{run.id}/t", {"status": "queuing"})
    assert store.views.rollout(f"{run.id}/t").reason == "because"
    assert room.take("requeue", "run-1/t")["after"] == {"status": "queuing"}
    (claim,) = store.queue.claim(run.id, "w", now=room.clock.now, lease_s=30.0).result()
    store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=room.clock.now).result()
    for action in ("requeue", "cancel_rollout"):
        assert "it is final" in room.look(action, "run-1/t")["refused"]["remedy"]
        with pytest.raises(IllegalMove, match="it is final"):
            room.take(action, "run-1/t")


def test_a_rollout_of_a_run_that_ended_is_queued_for_whoever_takes_it_up(room: Room) -> None:
    run = room.run()
    room.store.queue.enqueue(run.id, [Task(name="t", input=1)], now=1.0).result()
    room.take("cancel_rollout", "run-1/t")
    room.store.runs.end(run.id, RunState.FAILED, who="t", now=2.0).result()
    assert room.take("requeue", "run-1/t")["note"].startswith("its run is failed: nobody claims it until")


def test_a_rollout_whose_step_is_recorded_is_not_queued_again(room: Room, monkeypatch: pytest.MonkeyPatch) -> None:
    """Whoever resumed the run would not run it, and it would be cancelled at the end."""
    store, run = room.store, room.run()
    store.queue.enqueue(run.id, [Task(name="t", input=1, step="0/collect")], now=1.0).result()
    room.take("cancel_rollout", "run-1/t")
    assert room.look("requeue", "run-1/t")["refused"] is None
    store.steps.add(run.id, "0/collect", {}, function="collect", now=2.0).result()
    seen = room.look("requeue", "run-1/t")["refused"]
    assert seen["why"] == "its step 0/collect is recorded, and a recorded step is not run again"
    for _ in range(2):
        with pytest.raises(IllegalMove, match="is recorded, .*; begin a new run with its task"):
            room.take("requeue", "run-1/t")
        monkeypatch.setattr(store.steps, "get", lambda run, name: None)  # as it was before: recorded meanwhile
    assert store.views.rollout(f"{run.id}/t").status is RolloutState.CANCELLED


def test_a_rollback_makes_the_known_good_version_live(room: Room) -> None:
    for number, stage in ((1, Stage.LIVE), (2, Stage.LIVE), (3, Stage.CANARY), (4, Stage.CANDIDATE)):
        release(room.store, number, stage)
    seen = room.look("rollback", "spr")
    assert seen["before"] == {"live": "sprout@2", "canary": "sprout@3"}
    assert seen["after"] == {"live": "sprout@2", "canary": None}
    assert seen["affected"] == {"taken_back": "sprout@3", "stage": "canary", "share": 25}
    answer = room.take("rollback", "spr", "back")
    assert (answer["said"], answer["live"]["id"]) == ("sprout: canary nobody, was sprout@3", "sprout@2")
    assert room.take("rollback", "spr", "back")["again"]  # and not one further back
    assert room.store.releases.get("sprout@2").stage is Stage.LIVE
    assert room.take("rollback", "sprout")["said"] == "sprout: live sprout@1, was sprout@2"
    assert room.look("rollback", "sprout", to="sprout@4")["refused"]["why"].startswith("is candidate, and not one")
    assert room.look("rollback", "sprout", to="sprout@1")["refused"]["why"] == "cannot be rolled back to itself"
    assert room.take("rollback", "sprout", to="sprout@2")["after"]["live"] == "sprout@2"  # undone: a person took it
    assert room.store.releases.recompute() == []
    room.store.ledger.verify()


def test_a_kill_switch_works_whatever_else_is_changed(room: Room) -> None:
    flags = room.store.flags
    flag = Flag(name="beta", variants={"on": True, "off": False}, off="off", enabled=True)
    flags.put(flag, who="t", why="w", now=1.0).result()
    assert room.take("kill", "beta")["changes"]
    assert (flags.get("beta").killed, flags.get("beta").enabled) == (True, True)
    again = room.take("kill", "beta")
    assert (again["changes"], again["said"]) == (False, "beta: yes, yes, as before")


def test_an_alert_is_acknowledged_by_its_code_and_run(room: Room) -> None:
    alerts = room.store.alerts
    for run in ("run-1-a", "run-2-a"):
        alerts.raise_(Alert(code="backlog", severity=Severity.WARNING, message="many", at=1.0, run=run)).result()
    alerts.raise_(Alert(code="disk", severity=Severity.CRITICAL, message="full", at=1.0)).result()
    assert room.take("acknowledge", "disk")["after"] == {"acknowledged_by": "ann"}
    with pytest.raises(NotFound, match="stands for 2 runs: name one, as in backlog@run-2-a"):
        room.take("acknowledge", "backlog")
    assert room.take("acknowledge", "backlog@run-1-a")["said"] == "backlog@run-1-a: acknowledged by ann, was nobody"
    bob = replace(ANN, label="bob")
    again = control.take(room.store, room.order("acknowledge", "disk"), bob)
    assert (again["changes"], again["after"]) == (False, {"acknowledged_by": "ann"})
    assert [one.acknowledged_by for one in alerts.standing()] == ["ann", None, "ann"]
