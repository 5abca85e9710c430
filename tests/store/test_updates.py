"""Learning updates: one a step, in order, added once and never changed."""

from __future__ import annotations

import hashlib
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, NotFound, StaleLease, StoreCorrupt
from holdfast.contracts.run import StepRecord
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import begin
from tests.store.tamper import damage, rewrite


def add(store: Store, run: str, step: int, body: dict[str, Any], now: float = 5.0, **how: Any) -> None:
    store.updates.add(run, step, body, now=now, **how).result()


def test_updates_come_back_in_the_order_of_their_steps(store: Store, clock: Clock) -> None:
    run, other = begin(store, clock), begin(store, clock)
    add(store, run, 10, {"loss": 0.5, "note": "ü"}, now=7.0)
    add(store, run, 2, {"loss": None}, now=8.0)
    add(store, other, 2, {})
    assert store.steps.of_run(run) == [
        StepRecord(run=run, step=2, at=8.0, body={"loss": None}),
        StepRecord(run=run, step=10, at=7.0, body={"loss": 0.5, "note": "ü"}),
    ]


@pytest.mark.parametrize(
    ("other", "same"),
    [
        ({"a": 1, "b": [2]}, True),
        ({"b": [2], "a": 1}, True),  # the order of keys says nothing
        ({"a": 1.0, "b": [2]}, False),  # equal in Python, not in JSON
        ({"a": 1}, False),
    ],
)
def test_the_same_step_again_is_harmless_with_the_same_body_only(
    store: Store, clock: Clock, other: dict[str, Any], same: bool
) -> None:
    run = begin(store, clock)
    add(store, run, 1, {"a": 1, "b": [2]})
    before = store.steps.of_run(run)
    if same:
        add(store, run, 1, other, now=9.0)
    else:
        with pytest.raises(Conflict) as refused:
            add(store, run, 1, other)
        assert str(refused.value) == (
            f"update 1 of {run}: is there already, with other content; count on from the last step there is"
        )
    assert store.steps.of_run(run) == before


def test_what_is_no_update_is_refused(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    for step, body in ((-1, {}), (1, {"loss": float("nan")})):
        with pytest.raises(BadRecord):
            add(store, run, step, body)
    with pytest.raises(NotFound):
        add(store, "run-9-z", 1, {})
    assert store.steps.of_run(run) == []


def test_a_project_sees_its_own_updates_only(store: Store, url: str, clock: Clock) -> None:
    run = begin(store, clock)
    with open_store(url, project="other") as elsewhere:
        for call in (lambda: add(elsewhere, run, 1, {}), lambda: elsewhere.steps.of_run(run)):
            with pytest.raises(NotFound, match="there is none in project 'other'"):
                call()


def test_a_driver_that_was_replaced_adds_nothing(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, run, 1, {}, driver=1)
    awake = store.runs.resume(run, who="t", now=clock.advance(100), silent_s=1.0).result()
    with pytest.raises(StaleLease, match="another process has taken it up"):
        add(store, run, 2, {"by": "the sleeper"}, driver=1)
    add(store, run, 2, {"by": "the other"}, driver=awake.driver)
    assert [update.body for update in store.steps.of_run(run)] == [{}, {"by": "the other"}]


def test_the_database_refuses_to_change_an_update(store: Store, clock: Clock) -> None:
    add(store, begin(store, clock), 1, {})
    connection: Any = store.db.engine.connect(read_only=False)
    with pytest.raises(Exception, match="a learning update is immutable"):
        connection.execute("UPDATE updates SET body = '1'")
    connection.close()


def found(store: Store) -> list[str]:
    return [problem for part in check(store) if part.name in ("updates", "lessons") for problem in part.problems]


def test_each_update_is_in_the_ledger_once_with_its_hash(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, run, 1, {"b": "ü", "a": 1}, now=7.0)
    add(store, run, 1, {"a": 1, "b": "ü"}, now=8.0)  # the same again
    (entry,) = [one for one in store.ledger.entries(run=run) if one.kind == "update"]
    sha256 = hashlib.sha256(b'{"a":1,"b":"\\u00fc"}').hexdigest()
    assert (entry.body, entry.at, entry.who) == ({"step": 1, "sha256": sha256}, 7.0, "learner")
    with pytest.raises(Conflict):
        add(store, run, 1, {"a": 2})
    assert len(list(store.ledger.entries(run=run))) == 2


def learnt(store: Store, clock: Clock) -> str:
    """A run of three steps, and another beside it that has the same."""
    run, other = begin(store, clock), begin(store, clock, salt="b")
    for step in (1, 2, 3):
        for each in (run, other):
            add(store, each, step, {"success": 0.0})
    store.steps.verify(run)
    assert found(store) == []
    return run


FORGED = """UPDATE updates SET body = '{"success":1.0}' WHERE step = 2 AND run = 1"""


@pytest.mark.parametrize(
    ("statement", "step", "why"),
    [
        (FORGED, 2, "was changed after it was written"),
        ("DELETE FROM updates WHERE step = 3 AND run = 1", 3, "is in the ledger, and not in the store"),
        ("INSERT INTO updates VALUES (1, 4, 1.0, '{}')", 4, "is not in the ledger"),
        ("INSERT INTO updates VALUES (1, 0, 1.0, '{}')", 0, "is not in the ledger"),
    ],
)
def test_a_change_behind_its_back_is_found_with_the_step(
    store: Store, clock: Clock, statement: str, step: int, why: str
) -> None:
    run = learnt(store, clock)
    damage(store, statement)
    with pytest.raises(StoreCorrupt) as refused:
        store.steps.verify(run)
    assert str(refused.value) == f"update {step} of {run}: {why}; nothing that rests on this run is proven"
    assert found(store) == [f"update {step} of {run}: {why}"]
    store.steps.verify("run-2-b")


def test_what_was_removed_and_added_again_is_not_what_it_was(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    damage(store, "DELETE FROM updates WHERE step = 3 AND run = 1")
    add(store, run, 3, {"success": 1.0})
    with pytest.raises(StoreCorrupt, match=f"^update 3 of {run}: was changed after it was written"):
        store.steps.verify(run)


def test_updates_from_before_they_were_noted_are_taken_as_they_are(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    damage(store, *(f"INSERT INTO updates VALUES (1, {step}, 1.0, '{{}}')" for step in (1, 2)))
    store.steps.verify(run)
    add(store, run, 3, {})
    add(store, run, 4, {})
    store.steps.verify(run)
    assert found(store) == []
    assert [one.body["step"] for one in store.ledger.entries(run=run) if one.kind == "update"] == [1, 2, 3, 4]
    damage(store, """UPDATE updates SET body = '{"a":1}' WHERE step = 2 OR step = 4""")
    assert found(store) == [f"update {step} of {run}: was changed after it was written" for step in (2, 4)]


def test_a_run_that_began_later_is_in_the_ledger_from_its_first_step_on(store: Store, clock: Clock) -> None:
    learnt(store, clock)
    run = begin(store, clock, salt="c")
    damage(store, "INSERT INTO updates VALUES (3, 1, 1.0, '{}')")
    with pytest.raises(StoreCorrupt, match=f"^update 1 of {run}: is not in the ledger"):
        store.steps.verify(run)


def test_a_run_that_nobody_began_is_not_taken_for_an_old_one(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    rewrite(store, 1, "UPDATE ledger SET kind = 'note' WHERE run = 'run-1-a'")  # neither begun nor learnt
    with pytest.raises(StoreCorrupt, match=f"^update 1 of {run}: is not in the ledger"):
        store.steps.verify(run)


def test_only_runs_of_the_project_are_verified(store: Store, url: str, clock: Clock) -> None:
    run = learnt(store, clock)
    with open_store(url, project="other") as elsewhere, pytest.raises(NotFound):
        elsewhere.steps.verify(run)


def test_an_entry_that_makes_no_sense_is_named(store: Store, clock: Clock) -> None:
    run = learnt(store, clock)
    rewrite(store, 3, "UPDATE ledger SET body = '{\"step\":1}' WHERE seq = 3")
    said = "ledger: entry 3 says nothing about an update that makes sense; nothing that rests on this run is proven"
    with pytest.raises(StoreCorrupt) as refused:
        store.steps.verify(run)
    assert (str(refused.value), found(store)) == (said, [said])
