"""The desk: each order by the one who may give it, when it may be given, once; every refusal is in the ledger."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from itertools import product
from typing import Any

import pytest

from holdfast.contracts.commands import GUARDS, REASONS, RUN_COMMANDS, Command, Forbidden, Role
from holdfast.contracts.errors import BadInput, Conflict, HoldfastError, IllegalMove, NotFound
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState
from holdfast.operate import control
from holdfast.operate.auth import Caller
from holdfast.operate.control import ACTIONS
from holdfast.operate.lifecycle import SILENT_S
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


@pytest.fixture
def either(store: Store, clock: Clock) -> Room:
    """On each engine in turn."""
    return Room(store, clock)


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


def test_an_order_is_obeyed_once_whoever_repeats_it(either: Room) -> None:
    run = either.run()
    command = either.order("pause", "run-1", "c1")
    first = control.take(either.store, command, ANN)
    assert (first["again"], first["said"]) == (False, f"{run.id}: wanted paused, was running")
    either.take("resume", run.id)
    again = control.take(either.store, replace(command, at=command.at + 60), ANN)
    assert again == {**first, "again": True}
    assert either.store.runs.get(run.id).wanted is DesiredState.RUNNING
    with pytest.raises(Conflict, match="order c1: was another one: pause run-1 by ann"):
        either.take("drain", "run-1", "c1")
    with pytest.raises(Conflict):  # another's id is another's
        control.take(either.store, command, replace(ANN, label="bob"))
    assert [one.body["id"] for one in either.entries("refusal")] == ["c1", "c1"]
    either.store.ledger.verify()


@pytest.mark.parametrize("action", ["recover", "requeue"])
def test_of_one_order_that_two_give_at_once_neither_is_refused(room: Room, action: str) -> None:
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
        ("rollback", "sprout", {}, BadInput, "policy 'sprout': has no versions; there is none"),
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
    assert is_dry and command.id  # who only looks needs neither an id nor a reason


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


def test_a_body_that_is_no_object_is_in_the_ledger_too(room: Room) -> None:
    with pytest.raises(BadInput):
        control.answer(room.store, ["pause"], ANN, now=room.clock.now)
    (noted,) = room.entries("refusal")
    assert (noted.body["action"], noted.body["refused"]) == (
        "?",
        "order: is not a JSON object; send " + ", ".join(control.FIELDS),
    )


def test_a_reason_has_a_limit_whichever_way_it_comes(room: Room) -> None:
    run = room.run()
    with pytest.raises(BadInput, match="longer than 2000 letters"):
        control.take(room.store, replace(room.order("pause", run.id), why="x" * 100_000), ANN)
    (noted,) = room.entries("refusal")
    assert len(noted.body["why"]) == 2000 and room.store.runs.get(run.id).wanted is DesiredState.RUNNING
