"""Copy a whole store while it is in use: the database as of one moment, with every file that it names.

A copy is a store: it can be checked, read, and copied back to where it came from. Postgres has its own tools for this.
"""

from __future__ import annotations

import os
import shutil
import sqlite3
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import func, select

from holdfast.contracts.artifacts import sync
from holdfast.contracts.errors import BadInput, StoreError
from holdfast.store import artifacts, check, commands, ledger, schema
from holdfast.store.db import COMMITS, PULSES_OF, CommitMark, SQLite, engine_for, make_private, with_parent
from holdfast.store.store import Store, reports_beside

SCRUB_KEY = "scrub.key"  # of the pseudonyms in the store, and of the capabilities of attempts
LAST_ENTRY = select(func.coalesce(func.max(schema.ledger.c.seq), 0))


@dataclass(frozen=True, slots=True, kw_only=True)
class StoreCopy:
    """A copy of a store and how much it holds."""

    SCHEMA: ClassVar[int] = 1

    store: str
    copy: str
    files: int  # beside the database
    bytes: int  # of the database and of these files
    ledger_entries: int


@dataclass(frozen=True, slots=True)
class DatabaseSnapshot:
    """The database as of one moment, in a file of its own, and what it refers to."""

    path: Path
    files: tuple[str, ...]  # of the store's folder: blobs, and a folder for each checkpoint
    last_entry: int
    commits: int


def copy_store(store: Store, url: str, *, advance: Callable[[int], None] = lambda done: None) -> StoreCopy:
    """Copy the store to an address where there is none; `advance` is told how many more files are done.

    The database takes its place last: where there is one, the copy is whole. After a kill, call again."""
    engine, target = _checked(store, url)
    folder = with_parent(target).parent
    try:
        snapshot = _snapshot(engine, target.with_name(f".{target.name}.copy"))
        sizes = [snapshot.path.stat().st_size]
        for source, place in _files(store, snapshot, folder):
            sizes += _copied(source, place)
            advance(1)
        store.ledger.copy_checkpoints(folder / ledger.NAME, up_to=snapshot.last_entry)
        os.sync()  # once for all files, before the database takes its place
        snapshot.path.replace(target)
        sync(folder)
    except (OSError, shutil.Error) as error:
        why = getattr(error, "strerror", None) or str(error)
        raise StoreError(
            f"copy {target}", why=why, remedy="make room or choose another place, and call again"
        ) from error
    mark = CommitMark(target)
    mark.set(snapshot.commits)
    mark.close()
    held = {"files": len(sizes) - 1, "bytes": sum(sizes), "ledger_entries": snapshot.last_entry}
    return StoreCopy(store=store.url, copy=url, **held)


def _checked(store: Store, url: str) -> tuple[SQLite, Path]:
    source, target = store.db.engine, engine_for(url)
    if not isinstance(source, SQLite) or not isinstance(target, SQLite):
        remedy = f"take pg_dump for the database, and copy the folder {store.folder}"
        raise BadInput(f"copy {target.url}", why="Postgres has its own tools for copies", remedy=remedy)
    path, where = target.path, f"copy {target.url}"
    if path.name != source.path.name:
        why = f"{ledger.NAME} knows this store as {source.path.name}"
        raise BadInput(where, why=why, remedy=f"give a path that ends with {source.path.name}")
    if path.is_relative_to(store.reports.absolute()):
        raise BadInput(where, why="it lies among the reports that it would copy", remedy="choose another folder")
    ends = ("", "-wal", "-journal", "-shm", "-mark")  # SQLite would take the log of another for the copy's
    left = [one for one in (Path(f"{path}{end}") for end in ends) if one.exists()]
    if left or not store.ledger.has_checkpoints_of(path.parent / ledger.NAME):
        why = f"{left[0].name if left else ledger.NAME} of another store is there"
        remedy = f"choose another folder, or move that one away: mv {path.parent} {path.parent}.old"
        raise BadInput(where, why=why, remedy=remedy)
    key, theirs = store.folder / SCRUB_KEY, path.parent / SCRUB_KEY
    if key.exists() and theirs.exists() and key.read_bytes() != theirs.read_bytes():
        why = f"{theirs} is the key of another store"
        raise BadInput(where, why=why, remedy="choose another folder, or move that key away")
    return source, path


def _snapshot(engine: SQLite, path: Path) -> DatabaseSnapshot:
    path.unlink(missing_ok=True)  # of a copy that was killed
    make_private(path)
    try:
        with closing(engine.connect(read_only=True)) as source, closing(sqlite3.connect(path)) as made:
            source.backup(made)  # all pages in one step: writers go on meanwhile, and nothing of theirs is in it
            names = [str(sha256) for sha256, _ in made.execute(engine.book[artifacts.ALL])]
            blobs = [f"blobs/{name[:2]}/{name[2:]}" for name in names]
            folders = [str(uri) for _, uri, _ in made.execute(engine.book[check.SAVED])]
            last_entry = made.execute(engine.book[LAST_ENTRY]).fetchone()[0]
            commits = made.execute(engine.book[PULSES_OF], {"t": COMMITS}).fetchone() or (0,)  # lost, in a damaged one
    except sqlite3.Error as error:
        raise engine.translate(error) from error
    return DatabaseSnapshot(path, tuple(dict.fromkeys([*blobs, *folders])), last_entry, commits[0])


def _files(store: Store, snapshot: DatabaseSnapshot, folder: Path) -> Iterator[tuple[Path, Path]]:
    """What there is to copy, and where to; BadInput for a name that leads out of the folder. A file that is missing is
    left to `check`, which names it."""
    overrides = [path.name for path in store.folder.glob(f"{commands.NAME}*.json")]
    names = (*snapshot.files, SCRUB_KEY, *overrides)
    pairs = [(artifacts.inside(store.folder, name), artifacts.inside(folder, name)) for name in names]
    return ((source, place) for source, place in [*pairs, (store.reports, reports_beside(folder))] if source.exists())


def _copied(source: Path, place: Path) -> list[int]:
    """Copy a file or a folder; the bytes of each file."""
    place.parent.mkdir(parents=True, exist_ok=True)
    if source.is_file():
        shutil.copy2(source, place)
        return [place.stat().st_size]
    shutil.copytree(source, place, dirs_exist_ok=True)
    return [path.stat().st_size for path in place.rglob("*") if path.is_file()]
