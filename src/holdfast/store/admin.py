"""Upkeep of a whole store: migrate it, measure it, remove old runs, rehearse an upgrade. Is it sound: see `check`."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from sqlalchemy import bindparam, delete, func, select, text, update

from holdfast.contracts.errors import BadInput, IllegalMove
from holdfast.contracts.rollout import RolloutState
from holdfast.contracts.run import RunState
from holdfast.store import ledger, schema, scorings
from holdfast.store.db import HEAD, REVISIONS, SQLite, engine_for, open_db, revision, upgrade
from holdfast.store.sql import AT_MOST, Transaction, given
from holdfast.store.store import Store

CHUNK = 200  # rollouts removed by one write: others' writes come between
_u, _r, _a = schema.runs.c, schema.rollouts.c, schema.attempts.c
_run = given(_r, "run")
_attempts_of = select(_a.key).where(given(_a, "rollout"))

ROWS = {
    name: select(func.count()).select_from(table) for name, table in schema.metadata.tables.items() if name != "pulse"
}
BLOB_BYTES = select(func.coalesce(func.sum(schema.blobs.c.size), 0))
FREE_BYTES = text("SELECT freelist_count * page_size FROM pragma_freelist_count, pragma_page_size")
TABLE_BYTES = text(
    "SELECT coalesce(sum(pg_total_relation_size(oid)), 0) FROM pg_class WHERE relkind = 'r'"
    " AND relnamespace = (SELECT oid FROM pg_namespace WHERE nspname = current_schema())"
)
NEWEST = select(_u.key, _u.id, _u.project, _u.state).order_by(_u.key.desc()).limit(AT_MOST)
NEWEST_OF = NEWEST.where(given(_u, "project"))
COUNTS = select(_r.status, func.count()).where(_run).group_by(_r.status)
_old = select(_u.key, _u.id, _u.state, _u.ended_at)
OLD = _old.where(given(_u, "project"), _u.state != "running", _u.ended_at < bindparam("before")).order_by(_u.key)
HELD = select(_r.key).where(_run, _r.status == "running").limit(1)
# Nobody may take the run up again once the first of it is gone.
_close = update(schema.runs).where(_u.key == bindparam("run"), _u.state != "running").values(wanted="cancelled")
CLOSE = _close.returning(_u.id)
SOME = select(_r.key).where(_run).limit(CHUNK)
REMOVE_BELOW = (
    delete(schema.spans).where(schema.spans.c.attempt.in_(_attempts_of)),
    delete(schema.signals).where(schema.signals.c.attempt.in_(_attempts_of)),
    delete(schema.budget_events).where(schema.budget_events.c.attempt.in_(_attempts_of)),
    delete(schema.budgets).where(schema.budgets.c.attempt.in_(_attempts_of)),
    delete(schema.attempts).where(given(_a, "rollout")),
    delete(schema.rollouts).where(_r.key == bindparam("rollout")),
)
_of_run = schema.steps.c.run == bindparam("run")
REMOVE_STEPS = delete(schema.steps).where(
    _of_run, schema.steps.c.step.in_(select(schema.steps.c.step).where(_of_run).limit(CHUNK))
)
# A checkpoint stays when its run goes: others may have grown from it.
LET_GO = update(schema.checkpoints).where(schema.checkpoints.c.run == bindparam("of")).values(run=None)
REMOVE = delete(schema.runs).where(_u.key == bindparam("run"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Migration:
    """What became of a store's schema."""

    SCHEMA: ClassVar[int] = 1

    store: str
    before: str
    after: str


@dataclass(frozen=True, slots=True, kw_only=True)
class RunCounts:
    """A run's rollouts by status."""

    run: str
    project: str
    state: RunState
    rollouts: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Stats:
    """How much is in a store, and how much room it takes."""

    SCHEMA: ClassVar[int] = 1

    store: str
    schema: str  # revision
    rows: Mapping[str, int]  # by table
    bytes_database: int  # the file and its log, or the tables on the server
    bytes_free: int  # of these, ready to be used again
    bytes_blobs: int
    runs: tuple[RunCounts, ...]  # newest first


@dataclass(frozen=True, slots=True, kw_only=True)
class Old:
    """A finished run that may go."""

    run: str
    state: RunState
    ended_at: float
    rollouts: int


@dataclass(frozen=True, slots=True, kw_only=True)
class Pruned:
    """The runs that went, or, after a dry run, would go."""

    SCHEMA: ClassVar[int] = 1

    store: str
    project: str
    before: float  # ended before that time, unix seconds
    removed: bool
    runs: tuple[Old, ...]


def migrate(url: str) -> Migration:
    """Bring an existing store to today's schema; nothing happens when it is there already."""
    engine = engine_for(url)
    before = revision(engine)
    open_db(url, create=False).close()  # refuses one that is missing or newer
    return Migration(store=engine.url, before=before or "", after=revision(engine) or "")


def stats(store: Store, *, project: str | None = None, most: int = 20) -> Stats:
    """Of the whole store; runs only of the project, if one is named."""

    def look(view: Transaction) -> Stats:
        newest = view.all(NEWEST if project is None else NEWEST_OF, {"most": most, "project": project})
        runs = tuple(
            RunCounts(run=name, project=owner, state=RunState(state), rollouts=_counts(view, key))
            for key, name, owner, state in newest
        )
        return Stats(
            store=store.url,
            schema=HEAD,
            rows={name: view.one(count, {})[0] for name, count in ROWS.items()},
            bytes_database=_bytes(store, view),
            bytes_free=view.one(FREE_BYTES, {})[0] if view.is_sqlite else 0,
            bytes_blobs=int(view.one(BLOB_BYTES, {})[0]),
            runs=runs,
        )

    return store.db.reading(look, snapshot=True)


def old_runs(store: Store, *, before: float) -> list[Old]:
    """The project's finished runs that ended before that time; not those where an attempt still runs."""

    def look(view: Transaction) -> list[Old]:
        found = view.all(OLD, {"project": store.project, "before": before})
        return [
            Old(run=name, state=RunState(state), ended_at=ended_at, rollouts=sum(_counts(view, key).values()))
            for key, name, state, ended_at in found
            if view.one(HELD, {"run": key}) is None
        ]

    return store.db.reading(look, snapshot=True)


def prune(store: Store, old: Old, *, who: str, now: float) -> Iterator[int]:
    """Remove a run and all below it, in pieces: yields how many rollouts each took. The ledger keeps a note of it.

    Checkpoints stay, and are of no run then.

    When it is interrupted, the run stays in the list with what is left of it; pruning again removes the rest.
    """
    key = store.runs.key(old.run)

    def close(tx: Transaction) -> None:
        if tx.one(CLOSE, {"run": key}) is None or tx.one(HELD, {"run": key}) is not None:
            raise IllegalMove(f"run {old.run}", why="somebody works on it", remedy="prune it when it has ended")
        body = {"run": old.run, "state": old.state, "ended_at": old.ended_at, "rollouts": old.rollouts}
        ledger.append(tx, store.project, old.run, "prune", who, body, now)

    def remove(tx: Transaction) -> int:
        some = tx.all(SOME, {"run": key})
        for row in some:
            for statement in REMOVE_BELOW:
                tx.run(statement, {"rollout": row[0]})
        return len(some)

    def remove_steps(tx: Transaction) -> int:
        removed: int = tx.run(REMOVE_STEPS, {"run": key}).rowcount
        if not removed:
            tx.run(LET_GO, {"of": key})
            tx.run(REMOVE, {"run": key})
        return removed

    def remove_scorings(tx: Transaction) -> bool:
        row = tx.one(scorings.KEYS, {"project": store.project, "run": old.run})
        return row is not None and (scorings.remove(tx, row[0]) or True)

    store.db.write(close).result()
    while removed := store.db.write(remove).result():
        yield removed
    while store.db.write(remove_scorings).result() or store.db.write(remove_steps).result():
        continue


def _counts(view: Transaction, key: int) -> dict[str, int]:
    found = dict(view.all(COUNTS, {"run": key}))
    return {state.value: found.get(state.value, 0) for state in RolloutState}


def _bytes(store: Store, view: Transaction) -> int:
    engine = store.db.engine
    if not isinstance(engine, SQLite):
        return int(view.one(TABLE_BYTES, {})[0])
    files = (Path(f"{engine.path}{suffix}") for suffix in ("", "-wal"))
    return sum(file.stat().st_size for file in files if file.exists())


TABLES = "SELECT name FROM {where}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
TRIGGERS = "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' ORDER BY name"
COLUMNS = "SELECT name FROM pragma_table_info(?, ?)"


def set_back(url: str) -> str:
    """Set a scratch store back to the schema before today's, to rehearse an upgrade; which schema that is.

    The earlier tables are laid out by their migration and every row that fits is copied; what only today's schema knows
    is left out. Nobody may have the file open.
    """
    engine = engine_for(url)
    if not isinstance(engine, SQLite) or not engine.path.is_file():
        raise BadInput(f"store {engine.url}", why="is no store file", remedy="an upgrade is rehearsed on a file")
    earlier = REVISIONS[-2]
    aside = engine.path.with_name(f"{engine.path.name}.earlier")
    upgrade(SQLite(aside), earlier)
    with sqlite3.connect(aside, isolation_level=None) as connection:
        _copy(connection, engine.path)
    connection.close()
    for end in ("-wal", "-shm", "-mark"):
        engine.path.with_name(engine.path.name + end).unlink(missing_ok=True)
    aside.replace(engine.path)
    return earlier


def _copy(connection: sqlite3.Connection, source: Path) -> None:
    """The triggers are put aside meanwhile: rows come as they are, not as they are born."""
    connection.execute("PRAGMA foreign_keys = OFF")
    connection.execute("ATTACH ? AS today", (str(source),))
    connection.execute("BEGIN IMMEDIATE")
    triggers = connection.execute(TRIGGERS).fetchall()
    for name, _ in triggers:
        connection.execute(f'DROP TRIGGER main."{name}"')
    known = {name for (name,) in connection.execute(TABLES.format(where="today"))}
    for (table,) in connection.execute(TABLES.format(where="main")).fetchall():
        is_filled = connection.execute(f'SELECT 1 FROM main."{table}" LIMIT 1').fetchone() is not None
        if is_filled or table not in known:  # the migrations' own rows: the schema's number, the topics of changes
            continue
        ours, todays = ([name for (name,) in connection.execute(COLUMNS, (table, at))] for at in ("main", "today"))
        columns = ", ".join(f'"{name}"' for name in ours if name in todays)
        connection.execute(f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM today."{table}"')
    for _, sql in triggers:
        connection.execute(sql)
    connection.execute("COMMIT")
    connection.execute("DETACH today")
