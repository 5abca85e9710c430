"""Everything a store holds, read by plain SQL through the database's own driver: nothing here is code under test."""

from __future__ import annotations

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psycopg

TABLES = ("runs", "rollouts", "attempts", "spans", "signals", "resources", "workers", "blobs", "ledger", "pulse")
Row = dict[str, Any]
GENESIS = "0" * 64


@dataclass(frozen=True, slots=True)
class Picture:
    """One moment of a store."""

    tables: dict[str, list[Row]]
    damage: tuple[str, ...]  # what the database itself says is wrong

    @property
    def rollouts(self) -> dict[str, Row]:
        """By their id."""
        names = {run["key"]: run["id"] for run in self.tables["runs"]}
        return {f"{names[row['run']]}/{row['name']}": row for row in self.tables["rollouts"]}

    @property
    def attempts(self) -> dict[int, Row]:
        """By their token."""
        return {row["key"]: row for row in self.tables["attempts"]}

    def digest(self) -> str:
        """The same for two stores with the same rows."""
        rows = {name: sorted(map(_text, self.tables[name])) for name in TABLES}
        return hashlib.sha256(json.dumps(rows).encode()).hexdigest()


def _text(row: Row) -> str:
    return json.dumps(row, sort_keys=True, default=repr)


def is_postgres(url: str) -> bool:
    return url.startswith("postgresql://")


@contextmanager
def connected(url: str) -> Iterator[Any]:
    """A plain connection of the driver's own, in one read-only moment."""
    if is_postgres(url):
        connection: Any = psycopg.connect(url, autocommit=True, options="-c default_transaction_read_only=on")
        connection.execute("BEGIN ISOLATION LEVEL REPEATABLE READ")
    else:
        connection = sqlite3.connect(url, isolation_level=None)
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA query_only = ON")
        connection.execute("BEGIN")
    try:
        yield connection
    finally:
        connection.close()


def take(url: str) -> Picture:
    with connected(url) as connection:
        damage: list[str] = []
        if not is_postgres(url):
            damage += (row[0] for row in _try(connection, "PRAGMA integrity_check", damage) if row[0] != "ok")
            damage += (f"foreign key: {row}" for row in _try(connection, "PRAGMA foreign_key_check", damage))
        return Picture({name: _rows(connection, name, damage) for name in TABLES}, tuple(damage))


def _try(connection: Any, statement: str, damage: list[str]) -> list[Any]:
    """What the database answers; when it cannot, that is damage."""
    try:
        found: list[Any] = connection.execute(statement).fetchall()
    except sqlite3.Error as error:
        damage.append(f"{statement}: {error}")
        return []
    return found


def _rows(connection: Any, table: str, damage: list[str]) -> list[Row]:
    names = [column[0] for column in connection.execute(f"SELECT * FROM {table} LIMIT 0").description]
    return [dict(zip(names, row, strict=True)) for row in _try(connection, f"SELECT * FROM {table}", damage)]


def chain(entries: list[Row]) -> tuple[int, list[str]]:
    """How many entries follow from one another, and what is wrong with the rest: the ledger's rule, written anew."""
    previous, good = GENESIS, 0
    fields = ("seq", "at", "project", "run", "kind", "who", "body", "previous")
    for place, entry in enumerate(sorted(entries, key=lambda row: row["seq"]), 1):
        content = json.dumps([entry[name] for name in fields], ensure_ascii=False, separators=(",", ":"))
        sha256 = hashlib.sha256(content.encode()).hexdigest()
        if (entry["seq"], entry["previous"], entry["sha256"]) != (place, previous, sha256):
            return good, [f"ledger entry {entry['seq']} does not follow from the one before, or was changed"]
        previous, good = sha256, place
    return good, []


def beside(url: str) -> list[Path]:
    """The files of an SQLite store, alone in its folder."""
    files = [Path(f"{url}{end}") for end in ("", "-wal", "-shm", "-mark")]
    return [path for path in (*files, Path(url).with_name("ledger.anchors")) if path.exists()]
