"""SQLite: one file in WAL mode with synchronous FULL, so that a commit that returned survives a power cut."""

from __future__ import annotations

import random
import sqlite3
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects.sqlite import dialect

from holdfast.contracts.errors import HoldfastError, StoreBusy, StoreCorrupt, StoreError, StoreFull
from holdfast.store import schema
from holdfast.store.sql import Book, Transaction

PATIENCE_S = 30.0
_bump = (
    update(schema.pulse)
    .where(schema.pulse.c.topic == bindparam("t"))
    .values(n=schema.pulse.c.n + 1)
    .returning(schema.pulse.c.n)
)
_pulses = select(schema.pulse.c.topic, schema.pulse.c.n)


class SQLite:
    name = "sqlite"

    def __init__(self, path: Path) -> None:
        self.path = path.absolute()  # an agent may change the current folder
        self.url = str(path)  # as it was given
        self.dialect = dialect(paramstyle="named")
        self.book = Book(self.dialect)

    def connect(self, *, read_only: bool) -> sqlite3.Connection:
        try:
            return self._connect(read_only)
        except (sqlite3.Error, UnicodeDecodeError) as error:
            raise self.translate(error) from error

    def _connect(self, read_only: bool) -> sqlite3.Connection:
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        # Whoever only looks meets a lock while a file is made, or recovered after a crash: SQLite may wait for that.
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA cache_size = -65536")
        connection.execute("PRAGMA temp_store = MEMORY")
        if read_only:
            connection.execute("PRAGMA query_only = ON")
        else:
            connection.execute("PRAGMA synchronous = FULL")
            connection.execute("PRAGMA foreign_keys = ON")
            connection.execute("PRAGMA busy_timeout = 0")  # its handler starves writers under FULL: see Session.begin
        return connection

    def session(self) -> SQLiteSession:
        return SQLiteSession(self)

    def watch(self, report: Callable[[dict[str, int]], None], stopped: Callable[[float], bool], every_s: float) -> None:
        """Report the topic counters whenever another connection committed; ends when `stopped(every_s)` is true."""
        connection = self.connect(read_only=True)
        try:
            seen = None
            while True:
                version = connection.execute("PRAGMA data_version").fetchone()[0]
                if version != seen:
                    seen = version
                    report(dict(connection.execute(self.book[_pulses]).fetchall()))
                if stopped(every_s):
                    return
        finally:
            connection.close()

    def translate(self, error: Exception) -> Exception:
        where, text = f"store {self.path}", " ".join(str(error).split())
        code = getattr(error, "sqlite_errorcode", 0) & 0xFF
        if isinstance(error, UnicodeDecodeError):  # SQLite quotes a damaged schema, Python cannot read it
            text, code = f"its schema is damaged ({text})", sqlite3.SQLITE_CORRUPT
        elif not isinstance(error, sqlite3.Error):
            return error
        if code == sqlite3.SQLITE_FULL or code == sqlite3.SQLITE_IOERR:
            return StoreFull(
                where, why=text, remedy="free some disk space and call again: nothing of this write was kept"
            )
        if code in (sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB):
            return StoreCorrupt(where, why=text, remedy="run 'holdfast store check', or restore the file from a copy")
        if code == sqlite3.SQLITE_BUSY:
            return StoreBusy(where, why=f"locked by another process for {PATIENCE_S:.0f} s", remedy="end that process")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StoreError(where, why=text, remedy="check that the file and its folder can be written")
        return StoreError(where, why=text)


class SQLiteSession:
    """The writer's one connection."""

    def __init__(self, engine: SQLite) -> None:
        self._engine = engine
        self._connection = engine.connect(read_only=False)
        self._jitter = random.Random()  # spreads waiting processes; no result depends on it

    def begin(self) -> Transaction:
        patience = time.monotonic() + PATIENCE_S
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return Transaction(self._connection, self._engine.book)
            except sqlite3.OperationalError as error:
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or time.monotonic() > patience:
                    raise
                time.sleep(self._jitter.uniform(0.0002, 0.002))

    def commit(self, transaction: Transaction) -> None:
        for topic in transaction.topics:
            transaction.topics[topic] = transaction.one(_bump, {"t": topic})[0]
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        if self._connection.in_transaction:  # a full disk has already rolled back by itself
            self._connection.execute("ROLLBACK")

    def is_passing(self, error: Exception) -> bool:
        return False

    def translate(self, error: Exception) -> Exception:
        return error if isinstance(error, HoldfastError) else self._engine.translate(error)

    def close(self) -> None:
        self._connection.close()


def is_store_file(path: Path) -> bool:
    """Whether the file begins as an SQLite database does (an empty or missing file may still become one)."""
    if not path.exists() or path.stat().st_size == 0:
        return True
    with path.open("rb") as file:
        head: Any = file.read(16)
    return bool(head == b"SQLite format 3\x00")
