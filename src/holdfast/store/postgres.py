"""Postgres by URL: the same tables and operations; claims skip locked rows, changes travel by LISTEN/NOTIFY."""

from __future__ import annotations

import os
import re
import time
from collections.abc import Callable
from typing import Any

from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
from sqlalchemy.engine.interfaces import Dialect

from holdfast.contracts.errors import BadInput, HoldfastError, StoreBusy, StoreError, StoreFull
from holdfast.store.notifications import TOPICS
from holdfast.store.sql import Book, Transaction

try:
    import psycopg
    from psycopg.rows import tuple_row
except ImportError:  # the extra is not installed: opening such a store says how to get it
    psycopg = None  # type: ignore[assignment]

CHANNEL = "holdfast"
PASSING = frozenset({"40001", "40P01", "55P03"})  # serialization failure, deadlock, lock not available
LOST = ("08", "57P")  # connection exceptions, and a server that is being stopped
DISK_FULL = "53100"


class Postgres:
    name = "postgres"

    def __init__(self, url: str) -> None:
        if psycopg is None:
            raise BadInput(
                "store " + hide_password(url), why="psycopg is not installed", remedy="pip install 'holdfast[postgres]'"
            )
        self._dsn = "postgresql://" + url.split("://", 1)[1]
        self.url = hide_password(self._dsn)
        self.dialect: Dialect = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]
        self.book = Book(self.dialect)
        self.origin = f"{os.getpid()}-{time.monotonic_ns()}"  # tells our own notifications from others'

    def connect(self, *, read_only: bool) -> Any:
        options = "-c synchronous_commit=on -c timezone=UTC"
        if read_only:
            options += " -c default_transaction_read_only=on"
        try:
            return psycopg.connect(
                self._dsn, autocommit=True, options=options, row_factory=tuple_row, connect_timeout=10
            )
        except psycopg.OperationalError as error:
            raise StoreError(
                f"store {self.url}",
                why=str(error).strip().splitlines()[0],
                remedy="check the URL and that the server runs",
            ) from error

    def session(self) -> PostgresSession:
        return PostgresSession(self)

    def watch(self, report: Callable[[dict[str, int]], None], stopped: Callable[[float], bool], every_s: float) -> None:
        """Report topics as other processes touch them; ends when `stopped(0)` is true."""
        connection = None
        while not stopped(0.0):
            try:
                if connection is None or connection.closed:
                    connection = self.connect(read_only=True)
                    connection.execute(f"LISTEN {CHANNEL}")
                    report(dict.fromkeys(TOPICS, -1))  # what was missed meanwhile
                for note in connection.notifies(timeout=max(every_s, 0.2), stop_after=1):
                    origin, _, topics = note.payload.partition(" ")
                    if origin != self.origin:
                        report(dict.fromkeys(topics.split(), -1))
            except (psycopg.Error, HoldfastError):
                if connection is not None:
                    connection.close()
                connection = None
                if stopped(0.5):
                    break
        if connection is not None:
            connection.close()

    def translate(self, error: Exception) -> Exception:
        if not isinstance(error, psycopg.Error):
            return error
        where, why = f"store {self.url}", (str(error).strip() or type(error).__name__).splitlines()[0]
        state = error.sqlstate or ""
        if state == DISK_FULL:
            return StoreFull(where, why=why, remedy="free some disk space on the server and call again")
        if state in PASSING:
            return StoreBusy(where, why=why, remedy="call again")
        if isinstance(error, psycopg.OperationalError) and (not state or state.startswith(LOST)):
            unknown = "whether the last write was kept is unknown: look before repeating it"
            return StoreError(where, why=f"connection lost: {why}", remedy=unknown)
        return StoreError(where, why=why)


class PostgresSession:
    """The writer's one connection, renewed when it broke."""

    def __init__(self, engine: Postgres) -> None:
        self._engine = engine
        self._connection = engine.connect(read_only=False)

    def begin(self) -> Transaction:
        try:
            self._connection.execute("BEGIN")
        except psycopg.OperationalError:  # cut while it was idle: nothing was under way, so a new one will do
            self._connection.close()
            self._connection = self._engine.connect(read_only=False)
            self._connection.execute("BEGIN")
        return Transaction(self._connection, self._engine.book)

    def commit(self, transaction: Transaction) -> None:
        if transaction.topics:
            payload = " ".join((self._engine.origin, *transaction.topics))
            self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
            transaction.topics = dict.fromkeys(transaction.topics, -1)  # there is no counter: every note is news
        self._connection.execute("COMMIT")

    def rollback(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except psycopg.Error:
            self._connection.close()  # broken: the server has rolled back, begin() connects anew

    def is_passing(self, error: Exception) -> bool:
        return isinstance(error, psycopg.Error) and (error.sqlstate in PASSING)

    def translate(self, error: Exception) -> Exception:
        return error if isinstance(error, HoldfastError) else self._engine.translate(error)

    def close(self) -> None:
        self._connection.close()


def hide_password(url: str) -> str:
    url = re.sub(r"(://[^:@/?#]*):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)
