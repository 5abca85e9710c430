"""SQLite's own ways: what is set on its connections, and what each of its troubles is called."""

from __future__ import annotations

import sqlite3
import threading
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.errors import StoreBusy, StoreCorrupt, StoreError
from holdfast.store import db
from holdfast.store.db import SQLite, is_store_file
from holdfast.store.notifications import TOPICS
from holdfast.store.store import open_store
from tests.conftest import Clock, Files
from tests.store.children import run_child
from tests.store.scene import Scene, begin


@pytest.fixture
def path(files: Files) -> Path:
    return Path(files.fresh())


def pragma(connection: sqlite3.Connection, name: str) -> Any:
    return connection.execute(f"PRAGMA {name}").fetchone()[0]


def test_a_commit_waits_for_the_disk(path: Path) -> None:
    connection = SQLite(path).connect(read_only=False)
    assert pragma(connection, "journal_mode") == "wal"
    assert pragma(connection, "synchronous") == 2  # FULL
    assert pragma(connection, "foreign_keys") == 1
    connection.close()


def test_a_reader_cannot_write(path: Path) -> None:
    connection = SQLite(path).connect(read_only=True)
    with pytest.raises(sqlite3.OperationalError, match="readonly"):
        connection.execute("DELETE FROM pulse")
    connection.close()


def test_a_reader_is_not_held_up_by_a_writer(path: Path) -> None:
    engine = SQLite(path)
    writer, reader = engine.connect(read_only=False), engine.connect(read_only=True)
    writer.execute("BEGIN IMMEDIATE")
    writer.execute("UPDATE pulse SET n = 7")
    assert reader.execute("SELECT max(n) FROM pulse").fetchone() == (0,)
    writer.execute("COMMIT")
    assert reader.execute("SELECT max(n) FROM pulse").fetchone() == (7,)
    writer.close()
    reader.close()


def test_a_writer_waits_for_its_turn(path: Path, clock: Clock) -> None:
    other = SQLite(path).connect(read_only=False)
    other.execute("BEGIN IMMEDIATE")
    with open_store(path) as store:
        pending = store.ledger.append("note", {}, who="test", now=clock.now)
        threading.Event().wait(0.05)
        assert not pending.settled
        other.execute("ROLLBACK")
        pending.result(10)
    other.close()


def test_a_writer_does_not_wait_for_ever(path: Path, clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "PATIENCE_S", 0.05)
    other = SQLite(path).connect(read_only=False)
    other.execute("BEGIN IMMEDIATE")
    with open_store(path) as store:
        with pytest.raises(StoreBusy) as refused:
            store.ledger.append("note", {}, who="test", now=clock.now).result()
        assert str(refused.value) == f"store {path}: locked by another process for 0 s; end that process"
        other.execute("ROLLBACK")
        store.ledger.append("note", {}, who="test", now=clock.now).result()
        assert store.ledger.verify() == 1
    other.close()


def test_the_watcher_reports_only_when_another_connection_committed(path: Path) -> None:
    engine = SQLite(path)
    writer = engine.connect(read_only=False)
    seen: list[dict[str, int]] = []
    steps = iter(["nothing", "commit", "nothing", "stop"])

    def stopped(_: float) -> bool:
        step = next(steps)
        if step == "commit":
            writer.execute("UPDATE pulse SET n = n + 1 WHERE topic = 'queue'")
        return step == "stop"

    engine.watch(seen.append, stopped, 0.01)
    before = dict.fromkeys(TOPICS, 0)
    assert seen == [before, before | {"queue": 1}]
    writer.close()


@pytest.mark.parametrize(
    ("content", "is_one"),
    [
        (None, True),  # nothing there yet
        (b"", True),  # touched, not yet written
        (b"SQLite format 3\x00 and pages", True),
        (b"SQLite format 2\x00 and pages", False),
        (b"PNG", False),  # shorter than the mark
    ],
)
def test_a_file_is_known_by_its_first_bytes(tmp_path: Path, content: bytes | None, is_one: bool) -> None:
    path = tmp_path / "file"
    if content is not None:
        path.write_bytes(content)
    assert is_store_file(path) is is_one


def test_damage_in_the_middle_of_the_file_is_called_by_its_name(path: Path, clock: Clock) -> None:
    with open_store(path) as store:
        run = begin(store, clock)
        Scene(store, clock, run).enqueue(*(f"task {n}" for n in range(200)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        file.seek(4096)
        file.write(b"\xa5" * (size - 4096))
    with pytest.raises(StoreCorrupt) as found, open_store(path) as store:
        store.views.counts(run)
    assert str(found.value).startswith(f"store {path}: ")
    assert str(found.value).endswith("; run 'holdfast store check', or restore the file from a copy")


def test_a_file_cut_short_is_called_damaged(path: Path, clock: Clock) -> None:
    with open_store(path) as store:
        run = begin(store, clock)
        Scene(store, clock, run).enqueue(*(f"task {n}" for n in range(200)))
    with path.open("r+b") as file:
        file.truncate(3 * 4096)
    with pytest.raises(StoreCorrupt), open_store(path) as store:
        store.views.counts(run)


def test_foreign_errors_pass_as_they_are(path: Path) -> None:
    engine, error = SQLite(path), ValueError("mine")
    assert engine.translate(error) is error
    assert engine.session().translate(refusal := StoreError("mine")) is refusal
    other = engine.translate(sqlite3.OperationalError("no such table: x"))
    assert isinstance(other, StoreError) and str(other) == f"store {path}: no such table: x"


FULL = """
import resource, sys
from holdfast.contracts.errors import StoreFull
from holdfast.store.store import open_store

store = open_store(sys.argv[1])
store.ledger.append("note", {"n": 1}, who="test", now=1.0).result()
resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
try:
    store.ledger.append("note", {"n": 2, "much": "x" * 1_000_000}, who="test", now=2.0).result()
except StoreFull as error:
    print(error.remedy)
print(store.ledger.verify())
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
store.ledger.append("note", {"n": 3}, who="test", now=3.0).result()
print(store.ledger.verify())
store.close()
"""


def test_a_full_disk_keeps_nothing_of_the_write_and_everything_before(path: Path) -> None:
    assert run_child(FULL, str(path)).splitlines() == [
        "free some disk space and call again: nothing of this write was kept",
        "1",
        "2",
    ]
    with open_store(path) as store:
        assert [entry.body["n"] for entry in store.ledger.entries()] == [1, 3]
