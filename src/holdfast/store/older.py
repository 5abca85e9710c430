"""A store as an earlier version of the program would have left it: to rehearse an upgrade, and for nothing else.

The tables of the schema before today's are laid out by its own migrations, and every row that fits is copied. What
only today's schema knows is left out, so this is for scratch stores: nobody's work is ever taken back.
"""

from __future__ import annotations

import json
import sqlite3
from pathlib import Path
from typing import Any

import alembic.command
import alembic.config
import sqlalchemy

from holdfast.contracts.errors import BadInput
from holdfast.store import schema
from holdfast.store.db import MIGRATING, REVISIONS, engine_for
from holdfast.store.ledger import GENESIS, digest
from holdfast.store.sqlite import SQLite

TABLES = "SELECT name FROM {where}.sqlite_master WHERE type = 'table' AND name NOT LIKE 'sqlite_%' ORDER BY name"
TRIGGERS = "SELECT name, sql FROM main.sqlite_master WHERE type = 'trigger' ORDER BY name"
COLUMNS = "SELECT name FROM pragma_table_info(?, ?)"
LEDGER = tuple(column.name for column in schema.ledger.c)
# What the schema before today's could not hold: kinds of lines in an export, kinds of entries in the ledger, fields.
NEW_LINES = frozenset(("step", "scoring", "scored", "end"))  # the last counts the others
NEW_ENTRIES = frozenset(("step", "scoring"))
NEW_FIELDS = {
    "rollout": ("step", "version", "max_faults", "interruptions"),
    "signal": ("feedback",),
    "ledger-entry": ("seq", "previous", "sha256"),  # without the new entries, those after them have other places
}


def set_back(url: str) -> str:
    """The schema that a store file has from now on: the one before today's. Nobody may have it open."""
    engine = engine_for(url)
    if not isinstance(engine, SQLite) or not engine.path.is_file():
        raise BadInput(f"store {engine.url}", why="is no store file", remedy="an upgrade is rehearsed on a file")
    revision = REVISIONS[-2]
    aside = engine.path.with_name(f"{engine.path.name}.earlier")
    _lay_out(aside, revision)
    with sqlite3.connect(aside, isolation_level=None) as connection:
        _copy(connection, engine.path)
    connection.close()
    for end in ("-wal", "-shm"):
        engine.path.with_name(engine.path.name + end).unlink(missing_ok=True)
    aside.replace(engine.path)
    return revision


def as_before(line: str) -> str | None:
    """A line of an export as far as the schema before today's could hold it; None: not at all."""
    data: dict[str, Any] = json.loads(line)
    record = data.get("record", {})
    if data["kind"] in NEW_LINES or (data["kind"] == "ledger-entry" and record["kind"] in NEW_ENTRIES):
        return None
    kept = {name: value for name, value in record.items() if name not in NEW_FIELDS.get(data["kind"], ())}
    return json.dumps({**data, "record": kept})


def _lay_out(path: Path, revision: str) -> None:
    bound = sqlalchemy.create_engine(f"sqlite:///{path}")
    config = alembic.config.Config()
    config.set_main_option("script_location", "holdfast.store:migrations")
    with bound.begin() as connection, MIGRATING:
        config.attributes["connection"] = connection
        alembic.command.upgrade(config, revision)
    bound.dispose()


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
        if table == "ledger":
            _copy_ledger(connection)
            continue
        if is_filled or table not in known:  # the migrations' own rows: the schema's number, the topics of changes
            continue
        ours, todays = ([name for (name,) in connection.execute(COLUMNS, (table, at))] for at in ("main", "today"))
        columns = ", ".join(f'"{name}"' for name in ours if name in todays)
        connection.execute(f'INSERT INTO main."{table}" ({columns}) SELECT {columns} FROM today."{table}"')
    for _, sql in triggers:
        connection.execute(sql)
    connection.execute("COMMIT")
    connection.execute("DETACH today")
    connection.execute("PRAGMA journal_mode = WAL")


def _copy_ledger(connection: sqlite3.Connection) -> None:
    """Without what only today's program notes, as one chain again."""
    names, marks = ", ".join(LEDGER), ", ".join("?" * len(LEDGER))
    previous, seq = GENESIS, 0
    for row in connection.execute(f"SELECT {names} FROM today.ledger ORDER BY seq").fetchall():
        values = dict(zip(LEDGER, row, strict=True))
        if values["kind"] in NEW_ENTRIES:
            continue
        seq += 1
        values |= {"seq": seq, "previous": previous}
        values["sha256"] = previous = digest(values)
        connection.execute(f"INSERT INTO main.ledger ({names}) VALUES ({marks})", tuple(values.values()))
