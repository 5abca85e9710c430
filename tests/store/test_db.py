"""Opening a store: made when it is not there, brought up to date when it is old, refused in one line when it is no
store of ours; and who may use an opened one."""

from __future__ import annotations

import os
import re
import signal
import sqlite3
import subprocess
import sys
import tarfile
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import psycopg
import pytest
import sqlalchemy

from holdfast.contracts.errors import BadInput, NotFound, StoreBusy, StoreCorrupt, StoreError, StoreTooNew
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.run import DesiredState
from holdfast.store import db
from holdfast.store.db import (
    HEAD,
    REVISIONS,
    Postgres,
    SQLite,
    engine_for,
    hide_password,
    revision,
    upgrade,
)
from holdfast.store.ledger import append
from holdfast.store.notifications import TOPICS
from holdfast.store.sql import Transaction
from holdfast.store.store import Store, open_store
from holdfast.store.writer import TRIES
from tests.conftest import Clock, Databases, Files, command
from tests.store.children import ended, ready, run_child, tell
from tests.store.scene import Scene, at_once, begin, once, says


def execute(url: str, *statements: str) -> None:
    connection = engine_for(url).connect(read_only=False)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def test_a_new_store_is_made(places: Files | Databases) -> None:
    url = places.blank()
    assert revision(engine_for(url)) is None
    open_store(url).close()
    assert revision(engine_for(url)) == HEAD
    open_store(url, create=False, migrate=False).close()


@pytest.mark.parametrize(
    ("address", "name"),
    [("{}/a/b/s.db", "a/b/s.db"), ("{}/empty", "empty"), ("sqlite:///{}/s.db", "s.db"), ("~/s.db", "s.db")],
)
def test_a_path_may_lead_through_new_folders_to_an_empty_file_be_a_url_and_begin_at_home(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, address: str, name: str
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (tmp_path / "empty").touch()
    open_store(address.format(tmp_path)).close()
    assert revision(engine_for(str(tmp_path / name))) == HEAD


def test_an_older_store_is_brought_up_to_date_with_its_rows(places: Files | Databases, clock: Clock) -> None:
    url = places.blank()
    upgrade(engine_for(url), REVISIONS[0])
    run = (
        "INSERT INTO runs (id, project, kind, state, wanted, model_ref, settings, created_at, beat_at) "
        "VALUES ('run-1-old', 'default', 'optimize', 'running', 'running', 'm', '{}', 1.0, 1.0)"
    )
    rollout = (
        "INSERT INTO rollouts (run, name, input, status, priority, max_attempts, attempt_count, faults, "
        "enqueued_at, ready_at) VALUES (1, 'kept', '41', 'queuing', 0, 1, 0, 0, 1.0, 1.0)"
    )
    execute(url, run, rollout)
    with says(StoreError, f"store {url}: its schema is {REVISIONS[0]}, not {HEAD}; run 'holdfast store migrate'"):
        open_store(url, migrate=False)
    assert revision(engine_for(url)) == REVISIONS[0]
    with open_store(url) as store:
        assert revision(engine_for(url)) == HEAD
        scene = Scene(store, clock, "run-1-old")
        assert scene.rollout("kept").input == 41
        scene.enqueue("new")
        assert [claim.rollout.name for claim in scene.claims(9)] == ["kept", "new"]
        store.steps.add("run-1-old", "begin", {}, function="begin", now=clock.now).result()
        with pytest.raises(StoreError, match="a recorded step is immutable"):  # a guard that 0007 lacked
            store.db.write(lambda tx: tx.run(sqlalchemy.text("UPDATE steps SET at = 0"), {})).result()


@pytest.mark.parametrize(
    ("schema", "kind", "why"),
    [
        ("9876", StoreTooNew, f"this version knows up to {HEAD}; install the newer holdfast that wrote it$"),
        ("0006", StoreError, "and this version upgrades from 0007 on; run"),
    ],
)
def test_a_store_too_new_or_too_old_is_refused_and_left_alone(
    url: str, schema: str, kind: type[StoreError], why: str
) -> None:
    execute(url, f"UPDATE alembic_version SET version_num = '{schema}'")
    with pytest.raises(kind, match=f": its schema is {schema}, {why}") as refused:
        open_store(url)
    assert (refused.value.exit_code, revision(engine_for(url))) == (5, schema)


def test_the_baseline_is_the_schema_that_stores_of_its_revision_have(tmp_path: Path) -> None:
    """Compared with a store that the revisions wrote one by one, before they became one."""
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "stores" / "optimize.tar.xz") as packed:
        packed.extract("store.sqlite", tmp_path, filter="data")
    made = tmp_path / "made.sqlite"
    upgrade(engine_for(str(made)), REVISIONS[0])

    def letters(path: Path) -> dict[str, Any]:
        with sqlite3.connect(path) as connection:
            found = connection.execute("SELECT type, name, sql FROM sqlite_master WHERE sql <> ''").fetchall()
            letters: dict[str, Any] = {name: " ".join(sql.split()) for kind, name, sql in found if kind != "table"}
            for name in (name for kind, name, _ in found if kind == "table" and name != "sqlite_sequence"):
                infos = ("table_xinfo", "foreign_key_list", "index_list", "table_list")
                letters[f"table {name}"] = [connection.execute(f"PRAGMA {info}({name})").fetchall() for info in infos]
            letters["topics"] = sorted(connection.execute("SELECT topic FROM pulse").fetchall())
            return letters

    assert letters(made) == letters(tmp_path / "store.sqlite")


def test_the_revisions_are_in_order() -> None:
    assert [f"{n:04}" for n in range(7, len(REVISIONS) + 7)] == REVISIONS


@pytest.mark.parametrize(
    "tables",
    [
        ["CREATE TABLE songs (title TEXT)"],
        ["CREATE TABLE alembic_version (version_num TEXT)", "INSERT INTO alembic_version VALUES ('ab12cd34ef56')"],
    ],
)
def test_another_programs_database_is_refused_and_left_alone(places: Files | Databases, tables: list[str]) -> None:
    url = places.blank()
    execute(url, *tables)
    for _ in range(2):
        said = f"store {url}: this database belongs to another program; give another path or database"
        with says(StoreCorrupt, said):
            open_store(url)


def test_nothing_is_made_when_only_looking(places: Files | Databases) -> None:
    url = places.blank()
    with pytest.raises(NotFound) as refused:
        open_store(url, create=False)
    assert str(refused.value) == f"store {url}: there is none; check the path; 'holdfast run start' creates one"
    assert refused.value.exit_code == 2
    if isinstance(places, Files):
        assert not Path(url).exists()


def test_a_folder_or_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "holiday.png"
    path.write_bytes(b"\x89PNG, a picture of the sea")
    with says(StoreCorrupt, f"store {path}: is not an SQLite database; give another path, or restore a copy"):
        open_store(path)
    assert path.read_bytes() == b"\x89PNG, a picture of the sea"
    with says(BadInput, f"store {tmp_path}: is a folder; give the path of a file"):
        open_store(tmp_path)


@pytest.mark.parametrize(
    ("address", "shown"),
    [
        ("", "''"),
        ("   ", "'   '"),
        ("sqlite:///", "''"),
        ("mysql://me:secret@host/db", "'mysql://me:***@host/db'"),
        ("file://store.db", "'file://store.db'"),
        ("sqlite://store.db", "'sqlite://store.db'"),
    ],
)
def test_an_address_that_is_none_is_refused(address: str, shown: str) -> None:
    with says(BadInput, f"store {shown}: not a store address; give a file path or postgresql://user@host/name"):
        open_store(address)


@contextmanager
def a_strangers_folder() -> Iterator[Path]:
    """A folder outside the tests' own, which only its owner may enter, and somebody else who tries to."""
    with tempfile.TemporaryDirectory(dir="/tmp") as name:
        yield Path(name)


@contextmanager
def as_nobody() -> Iterator[None]:
    """Root may do anything: step down while the block lasts."""
    if os.getuid() != 0:
        yield
        return
    os.seteuid(65534)
    try:
        yield
    finally:
        os.seteuid(0)


def test_a_folder_that_may_not_be_written_is_one_line() -> None:
    with a_strangers_folder() as folder:
        folder.chmod(0o555)
        for path in (folder / "store.db", folder / "deeper" / "store.db"):
            with as_nobody(), pytest.raises(StoreError) as refused:
                open_store(path)
            assert str(refused.value) in (
                f"store {path}: unable to open database file; check that the file and its folder can be written",
                f"folder {path.parent}: Permission denied; choose a place you may write",
            )
        assert list(folder.iterdir()) == []


def test_a_folder_that_may_not_be_entered_is_one_line() -> None:
    with a_strangers_folder() as folder:
        open_store(folder / "store.db").close()
        folder.chmod(0o000)
        said = f"store {folder}/store.db: Permission denied; choose a place you may read and write"
        with as_nobody(), says(StoreError, said):
            open_store(folder / "store.db")


@pytest.mark.parametrize(("mode", "why"), [(0o000, "unable to open database file"), (0o444, "readonly")])
def test_a_file_that_may_not_be_read_or_written_is_one_line(mode: int, why: str, clock: Clock) -> None:
    with a_strangers_folder() as folder:
        path = folder / "store.db"
        open_store(path).close()
        folder.chmod(0o777)
        path.chmod(mode)
        with as_nobody(), pytest.raises(StoreError, match=why) as refused, open_store(path) as store:
            begin(store, clock)
        assert str(refused.value).startswith(f"store {path}: ")
        assert refused.value.remedy


SMALL = """
import resource, sys
from holdfast.contracts.errors import StoreFull
from holdfast.store.store import open_store

resource.setrlimit(resource.RLIMIT_FSIZE, (20_000, resource.RLIM_INFINITY))
try:
    open_store(sys.argv[1])
except StoreFull as error:
    print(error)
resource.setrlimit(resource.RLIMIT_FSIZE, (resource.RLIM_INFINITY, resource.RLIM_INFINITY))
open_store(sys.argv[1]).close()
"""


def test_a_disk_too_full_for_a_new_store_is_one_line_and_leaves_nothing_in_the_way(tmp_path: Path) -> None:
    path = tmp_path / "store.db"
    out = run_child(SMALL, str(path))
    assert out.startswith(f"store {path}: ") and "free some disk space" in out
    assert revision(engine_for(str(path))) == HEAD


TOGETHER = """
import sys
from holdfast.contracts.rollout import Task
from holdfast.store.store import open_store

print("ready", flush=True)
sys.stdin.readline()
with open_store(sys.argv[1]) as store:
    run = store.runs.begin(kind="k", model_ref="m", settings={}, salt=sys.argv[2], who="t", now=1.0).result()
    store.queue.enqueue(run.id, [Task(name=f"t{n}", input=n) for n in range(5)], now=1.0).result()
    print(run.id)
"""


def test_processes_that_make_one_store_at_once_all_find_it_whole(places: Files | Databases) -> None:
    url = places.blank()
    children = [ready(TOGETHER, url, f"c{n}") for n in range(2)]
    for child in children:
        tell(child)
    made = {ended(child).strip() for child in children}
    with open_store(url, create=False, migrate=False) as store:
        assert {run.id for run in store.runs.newest()} == made
        assert all(store.views.counts(run.id)[RolloutState.QUEUING] == 5 for run in store.runs.newest())
        assert store.ledger.verify() == 2


def test_threads_that_make_different_stores_at_once_do_not_mix_them_up(places: Files | Databases) -> None:
    urls = [places.blank() for _ in range(3)]
    for store in at_once(open_store, *urls):
        store.close()
    assert [revision(engine_for(url)) for url in urls] == [HEAD] * len(urls)


FORK = """
import os, sys
from holdfast.contracts.errors import StoreError
from holdfast.store.store import open_store

with open_store(sys.argv[1]) as store:
    run = store.runs.begin(kind="k", model_ref="m", settings={}, salt="f", who="t", now=1.0).result()
    print(store.runs.get(run.id).state, flush=True)
    child = os.fork()
    if child == 0:
        append = lambda: store.ledger.append("note", {}, who="t", now=2.0).result(5)
        for call in (append, lambda: store.runs.get(run.id)):
            try:
                call()
            except StoreError as error:
                print(error, flush=True)
        store.close()
        os._exit(0)
    print(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]), flush=True)
    store.runs.beat(run.id, driver=run.driver, now=3.0).result()
    print(store.runs.get(run.id).beat_at, flush=True)
"""


@once
def test_a_forked_child_cannot_use_its_parents_store_nor_spoil_it(url: str) -> None:
    refusal = "this store was opened by another process; open it again after a fork"
    assert run_child(FORK, url).splitlines() == ["running", refusal, refusal, "0", "3.0"]


def test_a_snapshot_sees_one_moment(store: Store) -> None:
    count, add = (
        sqlalchemy.text("SELECT count(*) FROM pulse WHERE topic NOT LIKE 'commit %' AND topic NOT LIKE '% of %'"),
        sqlalchemy.text("INSERT INTO pulse VALUES ('x', 0)"),
    )
    n = len(TOPICS) + 1  # and the counter of commits

    def look(view: Transaction) -> list[int]:
        seen = [view.one(count, {})[0]]
        if seen == [n]:
            store.db.write(lambda tx: tx.run(add, {}) and None).result()
        return [*seen, view.one(count, {})[0]]

    assert store.db.reading(look, snapshot=True) == [n, n]
    assert store.db.reading(look) == [n + 1, n + 1]


def test_threads_that_look_in_turn_share_one_connection_with_a_small_cache(url: str, clock: Clock) -> None:
    """One for each thread, each with pages of its own, made a driver grow with every thread that looked."""
    with open_store(url) as store, ExitStack() as pools:
        run = begin(store, clock)
        for _ in range(12):
            threads = pools.enter_context(ThreadPoolExecutor(1))  # its thread stays
            assert threads.submit(store.runs.get, run).result().id == run
        assert connections(url) <= 3  # the writer's, the one for looking and, of Postgres, the one that counts
        if "://" not in url:
            kept = store.db.reading(lambda view: view.one(sqlalchemy.text("SELECT * FROM pragma_cache_size"), {}))
            assert -kept[0] <= 4_096  # kB


@pytest.mark.parametrize("many", [db.IDLE, 4 * db.IDLE])
def test_looks_at_once_have_a_connection_each_and_few_are_kept(url: str, clock: Clock, many: int) -> None:
    together = threading.Barrier(many)
    with open_store(url) as store:
        begin(store, clock)
        seen = at_once(
            lambda _: store.db.reading(lambda view: (together.wait(), id(view._connection))[-1]), *range(many)
        )
        assert len(set(seen)) == many and len(store.db._idle) == db.IDLE


def test_a_look_that_lasts_longer_than_its_store_leaves_nothing_open(url: str) -> None:
    begun, go_on = threading.Event(), threading.Event()
    with open_store(url) as store:
        thread = threading.Thread(target=store.db.reading, args=(lambda view: begun.set() or go_on.wait(10.0),))
        thread.start()
        assert begun.wait(10.0)
    go_on.set()
    thread.join()
    assert connections(url) <= ("://" in url)


def connections(url: str) -> int:
    if "://" in url:
        with psycopg.connect(url) as connection:
            counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return counted.fetchall()[0][0]
    return sum(os.path.realpath(file) == url for file in Path("/proc/self/fd").iterdir())


def test_what_is_read_cannot_be_written_and_an_error_of_the_callers_own_passes_as_it_is(store: Store) -> None:
    with pytest.raises(StoreError, match=r"read-?only"):
        store.db.reading(lambda view: view.run(sqlalchemy.text("DELETE FROM pulse"), {}))
    for call in (lambda: store.db.reading(lambda _: 1 // 0), lambda: store.db.write(lambda _: 1 // 0).result()):
        with pytest.raises(ZeroDivisionError):
            call()


def test_a_closed_store_has_kept_what_was_handed_over_and_is_neither_read_nor_written(url: str, clock: Clock) -> None:
    store = open_store(url)
    run = begin(store, clock)
    pending = [store.ledger.append("note", {"n": n}, who="t", now=clock.now) for n in range(50)]
    store.close()
    assert all(answer.settled for answer in pending)
    with says(StoreError, "the store is closed: this read came after close()"):
        store.runs.get(run)
    with says(StoreError, "the store is closed: this write came after close()"):
        store.ledger.append("note", {}, who="t", now=clock.now)
    store.close()  # twice is harmless
    with open_store(url) as again:
        assert again.ledger.verify() == 51


def test_a_server_that_is_there_but_not_for_us_is_one_line(server: str) -> None:
    stranger = server.replace("//holdfast@", "//nobody_we_know@")
    with pytest.raises(StoreError) as refused:
        open_store(stranger)
    assert str(refused.value).startswith(f"store {stranger}: ")
    assert str(refused.value).endswith('role "nobody_we_know" does not exist; check the URL and that the server runs')


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
        with pytest.raises(
            StoreBusy, match="locked by another process for 0 s; end process [0-9]+, which holds its lock"
        ):
            store.ledger.append("note", {}, who="test", now=clock.now).result()
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


OTHER = "import sys; from holdfast.store.store import open_store; open_store(sys.argv[1]).close()"


def test_who_opens_a_store_twice_loses_nothing_when_another_process_closes_it(path: Path, clock: Clock) -> None:
    """To open and close the file by hand lets go of a process's locks: the other one then deleted the log in use."""
    with open_store(path) as first:
        begin(first, clock)
        open_store(path).close()
        subprocess.run([sys.executable, "-c", OTHER, str(path)], check=True, timeout=60)
        kept = begin(first, clock)
    with open_store(path) as again:
        assert again.runs.newest(most=1)[0].id == kept


@pytest.mark.parametrize("is_cut", [False, True], ids=["overwritten", "cut short"])
def test_damage_in_the_middle_of_the_file_is_called_by_its_name(path: Path, clock: Clock, is_cut: bool) -> None:
    with open_store(path) as store:
        run = begin(store, clock)
        Scene(store, clock, run).enqueue(*(f"task {n}" for n in range(200)))
    size = path.stat().st_size
    with path.open("r+b") as file:
        if is_cut:
            file.truncate(3 * 4096)
        else:
            file.seek(4096)
            file.write(b"\xa5" * (size - 4096))
    with pytest.raises(StoreCorrupt) as found, open_store(path) as store:
        store.views.counts(run)
    assert str(found.value).startswith(f"store {path}: ")
    assert str(found.value).endswith("; run 'holdfast store check', or restore the file from a copy")


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


@pytest.fixture
def server_url(databases: Databases) -> str:
    return databases.fresh()


@pytest.fixture
def opened(server_url: str) -> Iterator[Store]:
    with open_store(server_url) as store:
        yield store


def cut_every_connection(server_url: str) -> None:
    """As a restarted server or a forgetful firewall does."""
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    command(server_url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def test_a_commit_of_postgres_waits_for_the_disk(server_url: str) -> None:
    connection = Postgres(server_url).connect(read_only=False)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    connection.close()


def test_a_write_after_the_connection_was_cut_goes_through_on_a_new_one(
    opened: Store, server_url: str, clock: Clock
) -> None:
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    cut_every_connection(server_url)
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    assert opened.ledger.verify() == 2


def test_a_write_whose_connection_is_cut_in_its_middle_is_done_once(
    opened: Store, server_url: str, clock: Clock
) -> None:
    tries = list[int]()

    def operation(tx: Transaction) -> int:
        append(tx, "default", None, "note", "test", {}, clock.now)
        tries.append(1)
        if len(tries) == 1:
            cut_every_connection(server_url)
        return len(tries)

    begin(opened, clock)
    assert opened.db.write(operation).result() == len(tries) >= 2
    assert opened.ledger.verify() == 2


class CutAfterCommit:
    """A connection that breaks once the server has committed, before its answer arrives."""

    closed = False

    def __init__(self, connection: Any) -> None:
        self._connection = connection

    def execute(self, text: str, *given: Any) -> Any:
        answer = self._connection.execute(text, *given)
        if text == "COMMIT":
            self._connection.close()
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return answer

    def close(self) -> None:
        self.closed = True


def test_a_commit_that_nobody_answered_is_looked_up_and_not_done_twice(opened: Store, clock: Clock) -> None:
    session: Any = opened.db._writer._session
    session._connection = CutAfterCommit(session._connection)
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    assert opened.ledger.verify() == 2


def test_a_commit_that_nobody_answered_and_that_cannot_be_looked_up_is_not_repeated(
    opened: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    session: Any = opened.db._writer._session
    session._connection = CutAfterCommit(session._connection)

    def cut_again() -> None:
        monkeypatch.undo()
        raise psycopg.OperationalError("server closed the connection unexpectedly")

    monkeypatch.setattr(session, "_renew", cut_again)
    with pytest.raises(StoreError, match="whether the last write was kept is unknown"):
        opened.ledger.append("note", {}, who="test", now=clock.now).result()
    assert opened.ledger.verify() == 1


def test_a_server_that_does_not_say_who_works_is_waited_for(
    opened: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """With track_activities off it calls every session disabled."""
    monkeypatch.setattr(db, "NO_ANSWER_S", 0.2)
    begin(opened, clock)
    tries = list[int]()

    def operation(tx: Transaction) -> int:
        tries.append(1)
        tx._execute("SET LOCAL track_activities = off")
        return int(tx._execute("SELECT 7 FROM pg_sleep(1)").fetchone()[0])

    assert opened.db.write(operation).result() == 7 and tries == [1]


class LostByACrash(CutAfterCommit):
    """A server that crashed with what it had not yet synced, and gave its number to another, or to nobody yet."""

    def __init__(self, session: Any, number: Callable[[], int]) -> None:
        super().__init__(session._connection)
        self._session, self._renumber = session, number

    def execute(self, text: str, *given: Any) -> Any:
        if text != "COMMIT":
            return self._connection.execute(text, *given)
        self._connection.close()
        self._session._number = self._renumber()
        raise psycopg.OperationalError("server closed the connection unexpectedly")


@pytest.mark.parametrize("is_reused", [True, False])
def test_a_commit_that_a_crash_took_is_done_again_though_its_number_is_anothers(
    opened: Store, server_url: str, clock: Clock, is_reused: bool
) -> None:
    def number() -> int:
        with psycopg.connect(server_url) as other:
            return int(other.execute("SELECT txid_current()").fetchone()[0]) if is_reused else 2**40  # type: ignore[index]

    session: Any = opened.db._writer._session
    opened.ledger.append("note", {"n": 1}, who="test", now=clock.now).result()
    session._connection = LostByACrash(session, number)
    opened.ledger.append("note", {"n": 2}, who="test", now=clock.now).result()
    assert [one.body["n"] for one in opened.ledger.entries()] == [1, 2]


def test_a_reader_that_was_cut_reads_on(opened: Store, server_url: str, clock: Clock) -> None:
    run = begin(opened, clock)
    assert opened.runs.get(run).id == run
    cut_every_connection(server_url)
    assert opened.runs.get(run).id == run
    cut_every_connection(server_url)
    assert opened.views.is_done(run)  # of one moment, in a transaction


@pytest.mark.parametrize("is_written", [True, False])
def test_who_waits_for_an_answer_that_was_lost_asks_anew(
    opened: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch, is_written: bool
) -> None:
    """Nothing ends such a connection: the other side takes what is sent, and never answers."""
    monkeypatch.setattr(db, "NO_ANSWER_S", 0.3)
    run = begin(opened, clock)
    opened.runs.get(run)
    session: Any = opened.db._writer._session
    silent = (session._connection if is_written else opened.db._idle[-1].connection).info.backend_pid
    os.kill(silent, signal.SIGSTOP)
    try:
        if is_written:
            opened.ledger.append("note", {}, who="test", now=clock.now).result(10.0)
        assert opened.ledger.verify() == 1 + is_written
    finally:
        os.kill(silent, signal.SIGCONT)
    assert opened.ledger.verify() == 1 + is_written


def test_a_look_that_needs_a_new_connection_waits_for_a_server_that_starts(
    opened: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    run, connect, refused = begin(opened, clock), Postgres.connect, list[int]()

    def starting(engine: Postgres, *, read_only: bool, name: str | None = None) -> Any:
        if len(refused) < 3:
            refused.append(1)
            raise StoreError("store", why="the database system is starting up")
        return connect(engine, read_only=read_only, name=name)

    opened.db._idle.clear()
    monkeypatch.setattr(Postgres, "connect", starting)
    assert opened.runs.get(run).id == run and len(refused) == 3


def test_a_transaction_that_was_left_behind_is_ended_by_who_left_it(
    opened: Store, server_url: str, clock: Clock
) -> None:
    """The connection is cut on this side alone, and the server still holds what it had locked."""
    tries = list[Any]()

    def operation(tx: Transaction) -> int:
        append(tx, "default", None, "note", "test", {}, clock.now)
        tries.append(tx._connection)
        if len(tries) == 1:
            os.dup2(os.open("/dev/null", os.O_RDWR), tx._connection.fileno())
            raise psycopg.OperationalError("server closed the connection unexpectedly")
        return len(tries)

    left = os.dup(opened.db._writer._session._connection.fileno())  # type: ignore[attr-defined]
    try:
        assert opened.db.write(operation).result(5.0) == len(tries) >= 2
        assert opened.ledger.verify() == 1
    finally:
        os.close(left)


def test_a_statement_that_takes_its_time_is_waited_for(
    opened: Store, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(db, "NO_ANSWER_S", 0.1)
    assert opened.db.one(sqlalchemy.text("SELECT 1 FROM pg_sleep(0.5)"), {}) == (1,)


def test_a_store_is_opened_though_its_first_connection_is_cut(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    open_store(server_url).close()
    connect, cut = Postgres.connect, list[int]()

    def cut_once(engine: Postgres, *, read_only: bool, name: str | None = None) -> Any:
        connection = connect(engine, read_only=read_only, name=name)
        if not read_only and not cut:
            cut.append(connection.info.backend_pid)
            command(server_url, f"SELECT pg_terminate_backend({cut[0]})")
        return connection

    monkeypatch.setattr(Postgres, "connect", cut_once)
    with open_store(server_url) as store:
        assert store.ledger.verify() == 0 and cut


def test_a_host_that_vanished_in_a_transaction_holds_nobody_up(
    opened: Store, server_url: str, clock: Clock, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody ends its connection: the server does, and whoever waited goes on."""
    monkeypatch.setattr(db, "FOR_WRITING", re.sub("session_timeout=[0-9]+s", "session_timeout=300ms", db.FOR_WRITING))
    run, vanished = begin(opened, clock), Postgres(server_url).connect(read_only=False)
    vanished.execute("BEGIN")
    vanished.execute("UPDATE runs SET wanted = 'paused'")
    opened.runs.want(run, DesiredState.DRAINING, who="test", why="because", now=clock.now).result(20.0)
    assert opened.runs.get(run).wanted is DesiredState.DRAINING
    vanished.close()


def test_every_connection_has_limits_and_is_kept_alive(server_url: str) -> None:
    for read_only, of in ((False, "10s 1min 10s"), (True, "0 10min 10min")):
        connection = Postgres(server_url).connect(read_only=read_only)
        names = ("lock_timeout", "statement_timeout", "idle_in_transaction_session_timeout", "tcp_keepalives_idle")
        assert [connection.execute(f"SHOW {name}").fetchone()[0] for name in names] == [*of.split(), "10"]
        connection.close()


def test_hosts_whose_clocks_differ_go_by_the_servers(server_url: str, monkeypatch: pytest.MonkeyPatch) -> None:
    right = time.time
    with monkeypatch.context() as wrong:
        for off_s in (90.0, -90.0):
            wrong.setattr(time, "time", lambda off_s=off_s: right() + off_s)
            with open_store(server_url) as store:
                assert abs(store.clock() - right()) < 5.0
    with open_store(server_url) as store:
        assert store.db.engine.ahead_s == 0.0  # on one machine there is nothing to correct


def test_a_deadlock_is_tried_again(opened: Store, server_url: str, clock: Clock) -> None:
    """Two transactions that each hold what the other wants: the server ends one, and nobody is told."""
    command(server_url, "UPDATE pulse SET n = 0")
    rival = psycopg.connect(server_url)
    rival.execute("SET deadlock_timeout = '10s'")  # so that the other side is the one to be ended
    rival.execute("UPDATE pulse SET n = n + 1 WHERE topic = 'queue'")
    tries = []

    def operation(tx: object) -> int:
        tries.append(1)
        execute = tx._execute  # type: ignore[attr-defined]
        execute("SET LOCAL deadlock_timeout = '20ms'")
        execute("UPDATE pulse SET n = n + 1 WHERE topic = 'room'")
        if len(tries) == 1:
            rival.pgconn.send_query(b"UPDATE pulse SET n = n + 1 WHERE topic = 'room'; COMMIT")
        execute("UPDATE pulse SET n = n + 1 WHERE topic = 'queue'")
        return len(tries)

    # Two tries as a rule; more where ours took the row again before the server had woken the rival.
    assert 2 <= opened.db.write(operation).result() == len(tries) <= TRIES
    rival.close()


def test_troubles_are_called_by_their_names(server_url: str) -> None:
    engine = Postgres(server_url)
    busy = engine.translate(psycopg.errors.DeadlockDetected("deadlock detected"))
    assert isinstance(busy, StoreBusy) and str(busy) == f"store {server_url}: deadlock detected; call again"
    lost = engine.translate(psycopg.OperationalError("server closed the connection unexpectedly\n more"))
    assert str(lost) == (
        f"store {server_url}: connection lost: server closed the connection unexpectedly; "
        "whether the last write was kept is unknown: look before repeating it"
    )
    other = engine.translate(psycopg.errors.UndefinedTable('relation "x" does not exist\nLINE 1'))
    assert str(other) == f'store {server_url}: relation "x" does not exist'
    assert engine.translate(error := ValueError("mine")) is error


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        # nobody listens there
        (lambda server_url: "postgresql://holdfast@127.0.0.1:1/x", "connection to server"),
        # the server has no such database
        (lambda server_url: f"{server_url}_not", "does not exist"),
        # not a port
        (lambda server_url: "postgresql://holdfast:secret@127.0.0.1:port/x", "port"),
    ],
)
def test_a_server_that_cannot_be_reached_is_one_line(server_url: str, broken: object, why: str) -> None:
    address = broken(server_url)  # type: ignore[operator]
    with pytest.raises(StoreError, match=why) as refused:
        open_store(address)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_without_its_driver_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "psycopg", None)
    said = "store postgresql://me:***@host/db: psycopg is not installed; pip install 'holdfast[postgres]'"
    with says(BadInput, said):
        engine_for("postgresql://me:secret@host/db")


@pytest.mark.parametrize(
    ("server_url", "shown"),
    [
        ("postgresql://host/db", "postgresql://host/db"),
        ("postgresql://me@host/db", "postgresql://me@host/db"),
        ("postgresql://me:pw@host:5433/db", "postgresql://me:***@host:5433/db"),
        # a password without a name
        ("postgresql://:pw@host/db", "postgresql://:***@host/db"),
        # a sign that needs quoting
        ("postgresql://me:p%40w@host/db", "postgresql://me:***@host/db"),
        # an address that has colons of its own
        ("postgresql://me:pw@[::1]:5433/db", "postgresql://me:***@[::1]:5433/db"),
        # not a port: still no password
        ("postgresql://me:pw@host:port/db", "postgresql://me:***@host:port/db"),
        # libpq takes it from the query as well
        (
            "postgresql://host/db?user=me&password=pw&sslmode=off",
            "postgresql://host/db?user=me&password=***&sslmode=off",
        ),
    ],
)
def test_a_password_is_never_shown(server_url: str, shown: str) -> None:
    assert hide_password(server_url) == shown


def test_both_spellings_of_the_scheme_are_understood(server_url: str) -> None:
    with open_store(server_url.replace("postgresql://", "postgres://")) as store:
        assert store.url == server_url


HOLDER = """
import sqlite3, sys
connection = sqlite3.connect(sys.argv[1], isolation_level=None)
connection.execute("BEGIN IMMEDIATE")
print("ready", flush=True)
sys.stdin.readline()
connection.execute("ROLLBACK")
print("done", flush=True)
"""


def test_whoever_waits_for_a_frozen_process_is_told_for_whom(
    files: Files, clock: Clock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(db, "SILENT_S", 0.05)
    monkeypatch.setattr(db, "PATIENCE_S", 0.3)
    path = files.fresh()
    with open_store(path) as store:
        begin(store, clock)
        holder = ready(HOLDER, path)
        os.kill(holder.pid, signal.SIGSTOP)
        try:
            with pytest.raises(StoreBusy, match=rf"end process {holder.pid}, which holds its lock and is stopped"):
                begin(store, clock, salt="b")
        finally:
            os.kill(holder.pid, signal.SIGCONT)
        assert f"waiting for process {holder.pid}, which holds its lock and is stopped" in caplog.text
        tell(holder)
        ended(holder)
        begin(store, clock, salt="c")
