"""The ledger: only ever appended to, and whoever goes behind its back is found out, with the place."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import StoreCorrupt, StoreError
from holdfast.store import ledger
from holdfast.store.ledger import GENESIS, PAGE, digest
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.conftest import Clock

GUARDS = ("ledger_update", "ledger_delete")


@pytest.fixture
def four(store: Store, clock: Clock) -> Store:
    for n in range(1, 5):
        store.ledger.append("note", {"n": n}, who="me", now=clock.advance(1), run="run-1-a").result()
    return store


def tamper(store: Store, *statements: str) -> None:
    """As somebody with the file and an SQL prompt can."""
    connection = store.db.engine.connect(read_only=False)
    for guard in GUARDS:
        connection.execute(f"DROP TRIGGER {guard}" + ("" if store.db.engine.name == "sqlite" else " ON ledger"))
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_each_entry_carries_the_hash_of_the_one_before(four: Store) -> None:
    entries = list(four.ledger.entries())
    assert [entry.seq for entry in entries] == [1, 2, 3, 4]
    assert [entry.previous for entry in entries] == [GENESIS, *(entry.sha256 for entry in entries[:-1])]
    assert four.ledger.verify() == 4


def test_the_hash_can_be_recomputed_by_hand() -> None:
    values = {"seq": 1, "at": 1.5, "project": "p", "run": None, "kind": "note", "who": "ü", "body": '{"a":1}'}
    # sha256 of: [1,1.5,"p",null,"note","ü","{\"a\":1}","00…00"]
    assert digest(values | {"previous": GENESIS}) == "298d31dff14b188bc584cd7431ff36bafd902ffdb3527582e8b7ae3f3d2d02d4"


def test_a_whole_second_is_hashed_as_it_will_be_read(store: Store) -> None:
    store.ledger.append("note", {}, who="me", now=5).result()
    assert store.ledger.verify() == 1


def test_an_empty_ledger_is_sound(store: Store) -> None:
    assert store.ledger.verify() == 0
    assert list(store.ledger.entries()) == []


@pytest.mark.parametrize("statement", ["UPDATE ledger SET who = 'you'", "DELETE FROM ledger", "TRUNCATE ledger"])
def test_the_database_refuses_to_change_it(four: Store, statement: str) -> None:
    if four.db.engine.name == "sqlite" and statement.startswith("TRUNCATE"):
        statement = "DELETE FROM ledger WHERE seq = 4"  # SQLite has no other way
    connection = four.db.engine.connect(read_only=False)
    with pytest.raises(Exception, match="the ledger is append-only"):
        connection.execute(statement)
    connection.close()
    assert four.ledger.verify() == 4


@pytest.mark.parametrize(
    ("statements", "why"),
    [
        # another word in the body
        (["UPDATE ledger SET body = '{\"n\":7}' WHERE seq = 2"], "entry 2 was changed after it was written"),
        # each other field
        (["UPDATE ledger SET at = at + 1 WHERE seq = 3"], "entry 3 was changed after it was written"),
        (["UPDATE ledger SET who = 'you' WHERE seq = 1"], "entry 1 was changed after it was written"),
        (["UPDATE ledger SET kind = 'x' WHERE seq = 4"], "entry 4 was changed after it was written"),
        (["UPDATE ledger SET project = 'x' WHERE seq = 4"], "entry 4 was changed after it was written"),
        (["UPDATE ledger SET run = NULL WHERE seq = 4"], "entry 4 was changed after it was written"),
        # the hash itself
        ([f"UPDATE ledger SET sha256 = '{'f' * 64}' WHERE seq = 2"], "entry 2 was changed after it was written"),
        ([f"UPDATE ledger SET previous = '{'f' * 64}' WHERE seq = 3"], "entry 3 does not follow from entry 2"),
        # one taken out
        (["DELETE FROM ledger WHERE seq = 1"], "entry 1 is missing"),
        (["DELETE FROM ledger WHERE seq = 3"], "entry 3 is missing"),
        # one taken out and the numbers closed up
        (
            ["DELETE FROM ledger WHERE seq = 2", "UPDATE ledger SET seq = 2 WHERE seq = 3"],
            "entry 2 does not follow from entry 1",
        ),
        # two exchanged
        (
            [
                "UPDATE ledger SET seq = 9 WHERE seq = 2",
                "UPDATE ledger SET seq = 2 WHERE seq = 3",
                "UPDATE ledger SET seq = 3 WHERE seq = 9",
            ],
            "entry 2 does not follow from entry 1",
        ),
    ],
)
def test_a_change_behind_its_back_is_found_with_the_place(four: Store, statements: list[str], why: str) -> None:
    tamper(four, *statements)
    with pytest.raises(StoreCorrupt) as found:
        four.ledger.verify()
    assert str(found.value) == (
        f"ledger: {why}; compare with an exported copy; decisions after that place are not proven"
    )


def test_a_rewritten_entry_shows_at_the_one_after_it(four: Store) -> None:
    """Even with its own hash made to fit."""
    (entry,) = [entry for entry in four.ledger.entries() if entry.seq == 2]
    values: dict[str, Any] = {name: getattr(entry, name) for name in ("seq", "at", "project", "run", "kind", "who")}
    forged = digest(values | {"body": '{"n":7}', "previous": entry.previous})
    tamper(four, f"UPDATE ledger SET body = '{{\"n\":7}}', sha256 = '{forged}' WHERE seq = 2")
    with pytest.raises(StoreCorrupt, match="entry 3 does not follow from entry 2"):
        four.ledger.verify()


def test_a_long_ledger_is_read_in_pages(store: Store, clock: Clock) -> None:
    def fill(tx: Transaction) -> None:
        for n in range(PAGE + 2):
            ledger.append(tx, "default", None, "note", "me", {"n": n}, clock.now)

    store.db.write(fill).result()
    assert store.ledger.verify() == PAGE + 2
    assert [entry.body["n"] for entry in store.ledger.entries()] == list(range(PAGE + 2))


def test_a_project_reads_its_own_entries_of_one_chain(four: Store, url: str, clock: Clock) -> None:
    with open_store(url, project="other") as elsewhere:
        elsewhere.ledger.append("note", {"n": "theirs"}, who="they", now=clock.now).result()
        assert [entry.body["n"] for entry in elsewhere.ledger.entries()] == ["theirs"]
        assert elsewhere.ledger.verify() == 5
    assert [entry.body["n"] for entry in four.ledger.entries()] == [1, 2, 3, 4]
    assert list(four.ledger.entries(run="run-2-b")) == []


def test_an_entry_is_kept_with_what_it_stands_for_or_not_at_all(store: Store, clock: Clock) -> None:
    def half(tx: Transaction) -> None:
        ledger.append(tx, "default", None, "note", "me", {}, clock.now)
        raise StoreError("changed my mind")

    with pytest.raises(StoreError, match="changed my mind"):
        store.db.write(half).result()
    assert store.ledger.verify() == 0
