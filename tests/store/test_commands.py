"""An order is obeyed once: the deed, the answer and the ledger's line are one transaction."""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.commands import Command
from holdfast.contracts.errors import BadInput, Conflict
from holdfast.contracts.run import DesiredState
from holdfast.store.commands import Act, CommandResult
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.scene import begin

PAUSE = Command(id="c1", action="pause", subject="run-1-a", who="ann", why="lunch", at=5.0, args={"a": "1", "b": "2"})


def pausing(store: Store, run: str) -> Act:
    def act(tx: Transaction) -> Mapping[str, Any]:
        return {"wanted": store.runs.want_in(tx, run, DesiredState.PAUSED, who="ann", why="lunch", now=5.0).wanted}

    return act


def test_an_order_is_obeyed_and_noted_together(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    answer = store.commands.once(PAUSE, "operator", pausing(store, run), run=run).result()
    assert answer == CommandResult(body={"wanted": "paused"}, again=False)
    assert store.runs.get(run).wanted is DesiredState.PAUSED
    entry = list(store.ledger.entries(run=run))[-1]
    assert (entry.kind, entry.who, entry.at) == ("command", "ann", 5.0)
    assert entry.body == {
        "id": "c1", "action": "pause", "subject": "run-1-a", "args": {"a": "1", "b": "2"}, "role": "operator",
        "why": "lunch", "answer": {"wanted": "paused"},
    }  # fmt: skip


def test_the_same_order_again_does_nothing_and_has_the_same_answer(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    store.commands.once(PAUSE, "operator", pausing(store, run)).result()
    store.runs.want(run, DesiredState.RUNNING, who="bob", why="back", now=6.0).result()
    before = store.ledger.verify()
    later = replace(PAUSE, at=9.0, args={"b": "2", "a": "1"})  # neither the hour nor the order of words is content
    assert store.commands.known(later) == CommandResult(body={"wanted": "paused"}, again=True)
    assert store.commands.once(later, "operator", pausing(store, run)).result().again
    assert store.runs.get(run).wanted is DesiredState.RUNNING
    assert store.ledger.verify() == before


@pytest.mark.parametrize(
    "change", [{"action": "drain"}, {"subject": "run-2"}, {"why": "w"}, {"who": "eve"}, {"args": {}}]
)
def test_a_known_id_with_other_content_is_refused(store: Store, change: dict[str, Any]) -> None:
    store.commands.once(PAUSE, "operator", lambda tx: {}).result()
    other = replace(PAUSE, **change)
    with pytest.raises(Conflict, match="order c1: was another one: pause run-1-a by ann; give each order its own id"):
        store.commands.once(other, "operator", lambda tx: {}).result()
    with pytest.raises(Conflict):
        store.commands.known(other)


def test_a_deed_that_fails_leaves_nothing_and_its_id_free(store: Store, clock: Clock) -> None:
    run = begin(store, clock)

    def act(tx: Transaction) -> Mapping[str, Any]:
        pausing(store, run)(tx)
        raise BadInput("no", why="not so")

    before = store.ledger.verify()
    with pytest.raises(BadInput):
        store.commands.once(PAUSE, "operator", act).result()
    assert (store.runs.get(run).wanted, store.ledger.verify(), store.commands.known(PAUSE)) == ("running", before, None)
    assert not store.commands.once(PAUSE, "operator", pausing(store, run)).result().again


def test_a_refusal_is_noted_and_its_id_stays_free(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    store.commands.refused(PAUSE, "viewer", "pause: is for operators", run=run).result()
    entry = list(store.ledger.entries(run=run))[-1]
    assert (entry.kind, entry.who, entry.body["refused"]) == ("refusal", "ann", "pause: is for operators")
    assert entry.body["role"] == "viewer"
    assert store.commands.known(PAUSE) is None


def test_an_order_is_known_in_its_own_project_and_whatever_it_says(store: Store, url: str) -> None:
    odd = replace(PAUSE, subject="a\0b", why="half \ud800 a letter", args={"x": "\0"})
    assert not store.commands.once(odd, "operator", lambda tx: {"said": "\0"}).result().again
    assert store.commands.once(odd, "operator", lambda tx: {}).result() == CommandResult(
        body={"said": "\0"}, again=True
    )
    with open_store(url, project="other") as elsewhere:
        assert elsewhere.commands.known(odd) is None


def test_of_many_who_give_the_same_order_at_once_one_is_obeyed(store: Store, url: str) -> None:
    done: list[str] = []
    answers: list[CommandResult] = []

    def give(name: str) -> None:
        with open_store(url) as mine:
            act = lambda tx: {"by": name}  # noqa: E731
            answers.append(mine.commands.once(PAUSE, "operator", act).result())
            done.append(name)

    threads = [threading.Thread(target=give, args=(str(n),)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(done) == 4
    assert [one.again for one in answers].count(False) == 1
    assert len({one.body["by"] for one in answers}) == 1
    assert [one.kind for one in store.ledger.entries()] == ["command"]
