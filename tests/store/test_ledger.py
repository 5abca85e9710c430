"""The ledger: only ever appended to, and whoever goes behind its back is found out, with the place."""

from __future__ import annotations

import shutil
import stat
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import StoreCorrupt, StoreError
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.store import ledger
from holdfast.store.ledger import GENESIS, NAME, OTHERWISE, PAGE, UNPROVEN, digest
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from tests.conftest import Clock, Databases, Files
from tests.store.scene import once, problems, run_sql, says
from tests.store.tamper import damage, damaged, rewrite
from tests.store.test_releases import CLOSED, back, served


@pytest.fixture
def four(store: Store, clock: Clock) -> Store:
    for n in range(1, 5):
        store.ledger.append("note", {"n": n}, who="me", now=clock.advance(1), run="run-1-a").result()
    return store


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


def test_the_database_refuses_to_change_it(four: Store) -> None:
    # SQLite has no TRUNCATE.
    last = "DELETE FROM ledger WHERE seq = 4" if four.db.engine.name == "sqlite" else "TRUNCATE ledger"
    for statement in ("UPDATE ledger SET who = 'you'", "DELETE FROM ledger", last):
        with pytest.raises(Exception, match="the ledger is append-only"):
            run_sql(four, statement)
    assert four.ledger.verify() == 4


CHANGED = "entry {} was changed after it was written"
ONWARD = "entry {} does not follow from entry {}"


@once
def test_a_change_behind_its_back_is_found_with_the_place(four: Store) -> None:
    (entry,) = [entry for entry in four.ledger.entries() if entry.seq == 2]
    values: dict[str, Any] = {name: getattr(entry, name) for name in ("seq", "at", "project", "run", "kind", "who")}
    forged = digest(values | {"body": '{"n":7}', "previous": entry.previous})
    (four.folder / NAME).unlink()  # the chain alone
    for statement, why in (
        ("UPDATE ledger SET body = '{\"n\":7}' WHERE seq = 2", CHANGED.format(2)),  # another word in the body
        ("UPDATE ledger SET at = at + 1 WHERE seq = 3", CHANGED.format(3)),  # each other field
        ("UPDATE ledger SET who = 'you' WHERE seq = 1", CHANGED.format(1)),
        ("UPDATE ledger SET kind = 'x' WHERE seq = 4", CHANGED.format(4)),
        ("UPDATE ledger SET project = 'x' WHERE seq = 4", CHANGED.format(4)),
        ("UPDATE ledger SET run = NULL WHERE seq = 4", CHANGED.format(4)),
        (f"UPDATE ledger SET sha256 = '{'f' * 64}' WHERE seq = 2", CHANGED.format(2)),  # the hash itself
        (f"UPDATE ledger SET previous = '{'f' * 64}' WHERE seq = 3", ONWARD.format(3, 2)),
        # with its own hash made to fit
        (f"UPDATE ledger SET body = '{{\"n\":7}}', sha256 = '{forged}' WHERE seq = 2", ONWARD.format(3, 2)),
        ("DELETE FROM ledger WHERE seq = 1", "entry 1 is missing"),
        ("DELETE FROM ledger WHERE seq = 3", "entry 3 is missing"),
        # one taken out and the numbers closed up; two exchanged
        ("DELETE FROM ledger WHERE seq = 2; UPDATE ledger SET seq = 2 WHERE seq = 3", ONWARD.format(2, 1)),
        ("UPDATE ledger SET seq = 9 WHERE seq = 2; UPDATE ledger SET seq = 2 WHERE seq = 3", ONWARD.format(2, 1)),
    ):
        with damaged(four, *statement.split("; ")):
            with says(StoreCorrupt, f"ledger: {why}; {UNPROVEN}"):
                four.ledger.verify()
            assert problems(four, "ledger") == [f"ledger: {why}; {UNPROVEN}"]


@once
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


def lines(store: Store) -> list[list[str]]:
    return [line.split(" ", 2) for line in (store.folder / NAME).read_text().splitlines()]


@once
def test_every_entry_is_noted_with_its_place(store: Store) -> None:
    served(store)
    back(store, "sprout@2", "sprout@1")
    store.releases.note("sprout@3", CLOSED, evidence=None, who="gate", now=7.0).result()
    store.ledger.append("note", {}, who="ann", now=8.0).result()
    entries = list(store.ledger.entries())
    assert len(entries) == 9
    assert [(int(seq), sha256) for seq, sha256, _ in lines(store)] == [(one.seq, one.sha256) for one in entries]
    assert store.ledger.verify() == 9
    assert stat.S_IMODE((store.folder / NAME).stat().st_mode) & 0o022 == 0


def why(store: Store) -> str:
    (found,), remedy = problems(store, "ledger"), f"; {OTHERWISE}"
    assert found.startswith("ledger: ") and found.endswith(remedy)
    with says(StoreCorrupt, found):
        store.ledger.verify()
    return found[len("ledger: ") : -len(remedy)]


ANEW = f"is not the one that {NAME} noted: it, or one before it, was written anew"


@once
@pytest.mark.parametrize(
    ("start", "statements", "expected"),
    [
        (7, ["DELETE FROM ledger WHERE seq = 7"], f"ends with entry 6, and {NAME} noted entry 7: its end was cut off"),
        (7, ["UPDATE ledger SET who = 'mallory' WHERE seq = 7"], f"entry 7 {ANEW}"),
        (6, ["DELETE FROM ledger WHERE seq = 6", "UPDATE ledger SET seq = 6 WHERE seq = 7"], f"entry 6 {ANEW}"),
        (1, ["UPDATE ledger SET who = 'mallory' WHERE seq = 1"], f"entry 1 {ANEW}"),
    ],
)
def test_what_was_cut_off_or_written_anew_with_the_chain_made_to_fit_is_found(
    store: Store, start: int, statements: list[str], expected: str
) -> None:
    store.ledger.append("note", {"n": 1}, who="ann", now=1.0).result()
    served(store)
    rewrite(store, start, *statements)
    assert why(store) == expected


@once
def test_a_line_that_was_torn_by_a_crash_says_nothing_and_the_next_stands_alone(store: Store) -> None:
    served(store)
    path = store.folder / NAME
    path.write_bytes(path.read_bytes()[:-20])
    assert store.ledger.verify() == 6
    back(store, "sprout@2", "sprout@1")
    assert [line[0] for line in lines(store)][-1] == "7"
    damage(store, "DELETE FROM ledger WHERE seq = 7")
    assert why(store).startswith("ends with entry 6, and")


@once
def test_a_file_that_cannot_be_written_holds_up_no_decision(store: Store) -> None:
    (store.folder / NAME).mkdir()
    served(store)
    with pytest.raises(StoreError, match=f"{NAME}: Is a directory; make it readable, or move it away"):
        store.ledger.verify()
    shutil.rmtree(store.folder / NAME)
    assert store.ledger.verify() == 6


@once
def test_what_was_not_committed_is_not_noted(store: Store) -> None:
    served(store)
    before = lines(store)
    with pytest.raises(Exception, match="there is no such blob"):
        store.releases.note("sprout@3", CLOSED, evidence="ef" * 32, who="gate", now=7.0).result()
    assert lines(store) == before


def test_a_copy_without_the_file_verifies_and_one_with_it_does_too(files: Files, tmp_path: Path) -> None:
    path = Path(files.fresh())
    with open_store(path) as store:
        served(store)
    (tmp_path / "copy").mkdir()
    copy = shutil.copy(path, tmp_path / "copy")
    with open_store(copy) as store:
        assert store.ledger.verify() == 6
        shutil.copy(path.parent / NAME, store.folder)
        assert store.ledger.verify() == 6
        damage(store, "DELETE FROM ledger WHERE seq = 6")
        assert why(store).startswith("ends with entry 5")


def test_stores_in_one_folder_are_told_apart(places: Files | Databases, tmp_path: Path) -> None:
    for actor in ("shelf:x", "shelf:y"):
        with open_store(places.fresh(), state_folder=tmp_path) as store:
            add = {"policy": "p", "kind": PolicyKind.WEIGHTS, "source": actor, "who": actor, "now": 1.0}
            store.releases.add(**add).result()  # type: ignore[arg-type]
            store.releases.move("p@1", Stage.LIVE, expect=Stage.CANDIDATE, who=actor, why="w", now=2.0).result()
            assert store.ledger.verify() == 2
    assert len((tmp_path / NAME).read_text().splitlines()) == 4
