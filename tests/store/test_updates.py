"""Learning updates: one a step, in order, added once and never changed."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord, Conflict, NotFound, StaleLease
from holdfast.contracts.run import LearnUpdate
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import begin


def add(store: Store, run: str, step: int, body: dict[str, Any], now: float = 5.0, **how: Any) -> None:
    store.updates.add(run, step, body, now=now, **how).result()


def test_updates_come_back_in_the_order_of_their_steps(store: Store, clock: Clock) -> None:
    run, other = begin(store, clock), begin(store, clock)
    add(store, run, 10, {"loss": 0.5, "note": "ü"}, now=7.0)
    add(store, run, 2, {"loss": None}, now=8.0)
    add(store, other, 2, {})
    assert store.updates.of_run(run) == [
        LearnUpdate(run=run, step=2, at=8.0, body={"loss": None}),
        LearnUpdate(run=run, step=10, at=7.0, body={"loss": 0.5, "note": "ü"}),
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
    before = store.updates.of_run(run)
    if same:
        add(store, run, 1, other, now=9.0)
    else:
        with pytest.raises(Conflict) as refused:
            add(store, run, 1, other)
        assert str(refused.value) == (
            f"update 1 of {run}: is there already, with other content; count on from the last step there is"
        )
    assert store.updates.of_run(run) == before


def test_what_is_no_update_is_refused(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    for step, body in ((-1, {}), (1, {"loss": float("nan")})):
        with pytest.raises(BadRecord):
            add(store, run, step, body)
    with pytest.raises(NotFound):
        add(store, "run-9-z", 1, {})
    assert store.updates.of_run(run) == []


def test_a_project_sees_its_own_updates_only(store: Store, url: str, clock: Clock) -> None:
    run = begin(store, clock)
    with open_store(url, project="other") as elsewhere:
        for call in (lambda: add(elsewhere, run, 1, {}), lambda: elsewhere.updates.of_run(run)):
            with pytest.raises(NotFound, match="there is none in project 'other'"):
                call()


def test_a_driver_that_was_replaced_adds_nothing(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add(store, run, 1, {}, driver=1)
    awake = store.runs.resume(run, who="t", now=clock.advance(100), silent_s=1.0).result()
    with pytest.raises(StaleLease, match="another process has taken it up"):
        add(store, run, 2, {"by": "the sleeper"}, driver=1)
    add(store, run, 2, {"by": "the other"}, driver=awake.driver)
    assert [update.body for update in store.updates.of_run(run)] == [{}, {"by": "the other"}]


def test_the_database_refuses_to_change_an_update(store: Store, clock: Clock) -> None:
    add(store, begin(store, clock), 1, {})
    connection: Any = store.db.engine.connect(read_only=False)
    with pytest.raises(Exception, match="a learning update is immutable"):
        connection.execute("UPDATE updates SET body = '1'")
    connection.close()
