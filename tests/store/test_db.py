"""Opening a store: made when it is not there, brought up to date when it is old, refused in one line when it is no
store of ours; and who may use an opened one."""

from __future__ import annotations

import os
import sqlite3
import tarfile
import tempfile
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import psycopg
import pytest
import sqlalchemy

from holdfast.contracts.errors import (
    BadInput,
    HoldfastError,
    NotFound,
    StoreCorrupt,
    StoreError,
    StoreTooNew,
)
from holdfast.contracts.rollout import RolloutState
from holdfast.store.db import HEAD, REVISIONS, engine_for, open_db, revision
from holdfast.store.notifications import TOPICS
from holdfast.store.store import open_store
from tests.conftest import Clock, Databases, Files
from tests.store.children import run_child, start_child
from tests.store.scene import Scene, begin


def execute(url: str, *statements: str) -> None:
    connection = engine_for(url).connect(read_only=False)
    for statement in statements:
        connection.execute(statement)
    connection.close()


def migrate_to(url: str, target: str) -> None:
    """As an older holdfast left it."""
    raw = engine_for(url).connect(read_only=False)
    scheme = "sqlite://" if isinstance(raw, sqlite3.Connection) else "postgresql+psycopg://"
    bound = sqlalchemy.create_engine(scheme, creator=lambda: raw, poolclass=sqlalchemy.StaticPool)
    config = alembic.config.Config()
    config.set_main_option("script_location", "holdfast.store:migrations")
    with bound.connect() as connection, connection.begin():
        if scheme == "sqlite://":
            raw.execute("PRAGMA journal_mode = WAL")
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, target)
    bound.dispose()


def test_a_new_store_is_made(places: Files | Databases) -> None:
    url = places.blank()
    assert revision(engine_for(url)) is None
    open_store(url).close()
    assert revision(engine_for(url)) == HEAD
    open_store(url, create=False, migrate=False).close()


def test_folders_on_the_way_are_made(tmp_path: Path) -> None:
    open_store(tmp_path / "a" / "b" / "store.db").close()
    assert (tmp_path / "a" / "b" / "store.db").is_file()


def test_an_empty_file_becomes_a_store(tmp_path: Path) -> None:
    (tmp_path / "store.db").touch()
    open_store(tmp_path / "store.db").close()
    assert revision(engine_for(str(tmp_path / "store.db"))) == HEAD


def test_an_older_store_is_brought_up_to_date_with_its_rows(places: Files | Databases, clock: Clock) -> None:
    url = places.blank()
    migrate_to(url, REVISIONS[0])
    run = (
        "INSERT INTO runs (id, project, kind, state, wanted, model_ref, settings, created_at, beat_at) "
        "VALUES ('run-1-old', 'default', 'optimize', 'running', 'running', 'm', '{}', 1.0, 1.0)"
    )
    rollout = (
        "INSERT INTO rollouts (run, name, input, status, priority, max_attempts, attempt_count, faults, "
        "enqueued_at, ready_at) VALUES (1, 'kept', '41', 'queuing', 0, 1, 0, 0, 1.0, 1.0)"
    )
    execute(url, run, rollout)
    with pytest.raises(StoreError) as refused:
        open_store(url, migrate=False)
    assert str(refused.value) == f"store {url}: its schema is {REVISIONS[0]}, not {HEAD}; run 'holdfast store migrate'"
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


def test_a_newer_store_is_refused_and_left_alone(url: str) -> None:
    execute(url, "UPDATE alembic_version SET version_num = '9876'")
    with pytest.raises(StoreTooNew) as refused:
        open_store(url)
    assert str(refused.value) == (
        f"store {url}: its schema is 9876, this version knows up to {HEAD}; install the newer holdfast that wrote it"
    )
    assert refused.value.exit_code == 5
    assert revision(engine_for(url)) == "9876"


def test_the_baseline_is_the_schema_that_stores_of_its_revision_have(tmp_path: Path) -> None:
    """Compared with a store that the revisions wrote one by one, before they became one."""
    with tarfile.open(Path(__file__).parents[1] / "fixtures" / "stores" / "optimize.tar.xz") as packed:
        packed.extract("store.sqlite", tmp_path, filter="data")
    made = tmp_path / "made.sqlite"
    migrate_to(str(made), REVISIONS[0])

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


def test_a_store_from_before_the_baseline_is_refused_and_left_alone(url: str) -> None:
    execute(url, "UPDATE alembic_version SET version_num = '0006'")
    with pytest.raises(StoreError, match="its schema is 0006, and this version upgrades from 0007 on; run"):
        open_store(url)
    assert revision(engine_for(url)) == "0006"


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
        with pytest.raises(StoreCorrupt) as refused:
            open_store(url)
        assert str(refused.value) == (
            f"store {url}: this database belongs to another program; give another path or database"
        )


def test_nothing_is_made_when_only_looking(places: Files | Databases) -> None:
    url = places.blank()
    with pytest.raises(NotFound) as refused:
        open_store(url, create=False)
    assert str(refused.value) == f"store {url}: there is none; check the path; 'holdfast optimize' creates one"
    assert refused.value.exit_code == 2
    if isinstance(places, Files):
        assert not Path(url).exists()


def test_a_file_that_is_no_database_is_refused_and_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "holiday.png"
    path.write_bytes(b"\x89PNG, a picture of the sea")
    with pytest.raises(StoreCorrupt) as refused:
        open_store(path)
    assert str(refused.value) == (f"store {path}: is not an SQLite database; give another path, or restore a copy")
    assert path.read_bytes() == b"\x89PNG, a picture of the sea"


def test_a_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as refused:
        open_store(tmp_path)
    assert str(refused.value) == f"store {tmp_path}: is a folder; give the path of a file"


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
    with pytest.raises(BadInput) as refused:
        open_store(address)
    assert str(refused.value) == (
        f"store {shown}: not a store address; give a file path or postgresql://user@host/name"
    )


def test_a_path_may_be_written_as_a_url(tmp_path: Path) -> None:
    open_store(f"sqlite:///{tmp_path}/store.db").close()
    assert (tmp_path / "store.db").is_file()


def test_the_home_folder_may_be_written_as_a_tilde(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    open_store("~/store.db").close()
    assert (tmp_path / "store.db").is_file()


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
        with as_nobody(), pytest.raises(StoreError) as refused:
            open_store(folder / "store.db")
        assert str(refused.value) == (
            f"store {folder}/store.db: Permission denied; choose a place you may read and write"
        )


@pytest.mark.parametrize(("mode", "why"), [(0o000, "Permission denied"), (0o444, "readonly")])
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
    children = [start_child(TOGETHER, url, f"c{n}") for n in range(4)]
    for child in children:
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
    for child in children:
        assert child.stdin is not None
        child.stdin.write("go\n")
        child.stdin.flush()
    ended = [(*child.communicate(timeout=60), child.returncode) for child in children]
    assert [(err, code) for _, err, code in ended] == [("", 0)] * 4
    with open_store(url, create=False, migrate=False) as store:
        assert {run.id for run in store.runs.newest()} == {out.strip() for out, _, _ in ended}
        assert all(store.views.counts(run.id)[RolloutState.QUEUING] == 5 for run in store.runs.newest())
        assert store.ledger.verify() == 4


def test_threads_that_make_different_stores_at_once_do_not_mix_them_up(places: Files | Databases) -> None:
    urls = [places.blank() for _ in range(6)]
    with ThreadPoolExecutor(len(urls)) as threads:
        for store in threads.map(open_store, urls):
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


def test_a_forked_child_cannot_use_its_parents_store_nor_spoil_it(url: str) -> None:
    refusal = "this store was opened by another process; open it again after a fork"
    assert run_child(FORK, url).splitlines() == ["running", refusal, refusal, "0", "3.0"]


def test_a_snapshot_sees_one_moment(url: str) -> None:
    db = open_db(url)
    count, add = sqlalchemy.text("SELECT count(*) FROM pulse"), sqlalchemy.text("INSERT INTO pulse VALUES ('x', 0)")
    n = len(TOPICS)

    def look(view: object) -> list[int]:
        seen = [view.one(count, {})[0]]  # type: ignore[attr-defined]
        if seen == [n]:
            db.write(lambda tx: tx.run(add, {}) and None).result()
        return [*seen, view.one(count, {})[0]]  # type: ignore[attr-defined]

    assert db.reading(look, snapshot=True) == [n, n]
    assert db.reading(look) == [n + 1, n + 1]
    db.close()


def test_a_thread_that_ends_takes_its_connection_with_it(url: str, clock: Clock) -> None:
    with open_store(url) as store:
        run = begin(store, clock)
        for _ in range(12):
            thread = threading.Thread(target=store.runs.get, args=(run,))
            thread.start()
            thread.join()
        assert connections(url) <= 3  # the writer's, perhaps the last thread's, and the one that counts


def connections(url: str) -> int:
    if "://" in url:
        with psycopg.connect(url) as connection:
            counted = connection.execute("SELECT count(*) FROM pg_stat_activity WHERE datname = current_database()")
            return counted.fetchall()[0][0]
    return sum(os.path.realpath(file) == url for file in Path("/proc/self/fd").iterdir())


def test_what_is_read_cannot_be_written(url: str) -> None:
    db = open_db(url)
    with pytest.raises(StoreError, match=r"read-?only"):
        db.reading(lambda view: view.run(sqlalchemy.text("DELETE FROM pulse"), {}))
    db.close()


def test_a_closed_store_is_neither_read_nor_written(url: str, clock: Clock) -> None:
    store = open_store(url)
    run = begin(store, clock)
    store.close()
    with pytest.raises(StoreError, match=r"^the store is closed: this read came after close\(\)$"):
        store.runs.get(run)
    with pytest.raises(StoreError, match=r"^the store is closed: this write came after close\(\)$"):
        store.ledger.append("note", {}, who="t", now=clock.now)
    store.close()  # twice is harmless


def test_what_was_handed_over_before_closing_is_kept(url: str, clock: Clock) -> None:
    store = open_store(url)
    pending = [store.ledger.append("note", {"n": n}, who="t", now=clock.now) for n in range(50)]
    store.close()
    assert all(answer.settled for answer in pending)
    with open_store(url) as again:
        assert again.ledger.verify() == 50


def test_an_error_of_the_callers_own_passes_as_it_is(url: str) -> None:
    db = open_db(url)
    with pytest.raises(ZeroDivisionError):
        db.reading(lambda view: 1 // 0)
    with pytest.raises(ZeroDivisionError):
        db.write(lambda tx: 1 // 0).result()
    db.close()


def test_every_refusal_is_one_of_ours_with_an_exit_code() -> None:
    kinds = (BadInput, NotFound, StoreCorrupt, StoreError, StoreTooNew)
    assert {kind.__name__: kind.exit_code for kind in kinds if issubclass(kind, HoldfastError)} == {
        "BadInput": 2,
        "NotFound": 2,
        "StoreCorrupt": 5,
        "StoreError": 5,
        "StoreTooNew": 5,
    }


def test_a_server_that_is_there_but_not_for_us_is_one_line(server: str) -> None:
    stranger = server.replace("//holdfast@", "//nobody_we_know@")
    with pytest.raises(StoreError) as refused:
        open_store(stranger)
    assert str(refused.value).startswith(f"store {stranger}: ")
    assert str(refused.value).endswith('role "nobody_we_know" does not exist; check the URL and that the server runs')
