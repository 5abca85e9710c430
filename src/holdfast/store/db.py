"""Open a store's database (create it, migrate it, or refuse it), read from it, and hand writes to its one writer."""

from __future__ import annotations

import os
import threading
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from sqlalchemy import Executable

from holdfast.contracts.errors import BadInput, NotFound, StoreCorrupt, StoreError, StoreTooNew
from holdfast.store.notifications import Changes
from holdfast.store.postgres import Postgres, hide_password
from holdfast.store.sql import Params, Transaction
from holdfast.store.sqlite import SQLite, is_store_file
from holdfast.store.writer import WriteFuture, Writer

T = TypeVar("T")
REVISIONS = sorted(path.name[:4] for path in (Path(__file__).parent / "migrations" / "versions").glob("0*.py"))
HEAD = REVISIONS[-1]
MIGRATION_LOCK = 7046029254386353131  # any number, the same for every process
MIGRATING = threading.Lock()  # alembic keeps the connection it works on in a global of its own
Engine = SQLite | Postgres


def engine_for(url: str) -> Engine:
    """`postgresql://…` is Postgres, `sqlite:///path` or a plain path is a file."""
    if url.startswith(("postgresql://", "postgres://")):
        return Postgres(url)
    if url.startswith("sqlite:///"):
        url = url.removeprefix("sqlite:///")
    if "://" in url or not url.strip():
        raise BadInput(
            f"store {hide_password(url)!r}",
            why="not a store address",
            remedy="give a file path or postgresql://user@host/name",
        )
    return SQLite(Path(url).expanduser())


class Reader:
    """One thread's connection for looking; it ends with its thread."""

    __slots__ = ("__weakref__", "_pid", "connection")

    def __init__(self, connection: Any) -> None:
        self.connection, self._pid = connection, os.getpid()

    def close(self) -> None:
        if os.getpid() == self._pid:  # in a forked child it is still the parent's
            self.connection.close()

    __del__ = close


class Db:
    """One opened database. Reads run on the caller's thread, writes on the writer's."""

    def __init__(self, engine: Engine, *, poll_s: float) -> None:
        self.engine = engine
        self._pid = os.getpid()
        self._local = threading.local()
        self._readers: weakref.WeakSet[Reader] = weakref.WeakSet()
        self._closed = False
        self.changes = Changes(engine, poll_s)
        self._writer = Writer(engine.session(), self._committed)

    def write(self, operation: Callable[[Transaction], T]) -> WriteFuture[T]:
        """The operation's answer, settled once it is on disk. It may run twice, so it must not act outside."""
        self._refuse_children()
        return self._writer.submit(operation)

    def all(self, statement: Executable, params: Params) -> list[Any]:
        return self.reading(lambda view: view.all(statement, params))

    def one(self, statement: Executable, params: Params) -> Any:
        return self.reading(lambda view: view.one(statement, params))

    def reading(self, look: Callable[[Transaction], T], *, snapshot: bool = False) -> T:
        """Run `look` on this thread's read-only connection; with `snapshot`, all of it sees one moment."""
        self._refuse_children()
        if self._closed:
            raise StoreError("the store is closed", why="this read came after close()")
        try:
            reader = getattr(self._local, "reader", None)
            if reader is None or getattr(reader.connection, "closed", False):
                reader = self._local.reader = Reader(self.engine.connect(read_only=True))
                self._readers.add(reader)
            connection = reader.connection
            view = Transaction(connection, self.engine.book)
            if not snapshot:
                return look(view)
            connection.execute("BEGIN" if self.engine.name == "sqlite" else "BEGIN ISOLATION LEVEL REPEATABLE READ")
            try:
                return look(view)
            finally:
                connection.execute("ROLLBACK")
        except Exception as error:
            raise self.engine.translate(error) from error

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has no writer, and its parent still needs the connections
        self._closed = True
        self._writer.close()
        self.changes.close()
        for reader in list(self._readers):
            reader.close()

    def _committed(self, transaction: Transaction) -> None:
        self.changes.committed(transaction.topics)
        for call in transaction.calls:
            call()

    def _refuse_children(self) -> None:
        if os.getpid() != self._pid:  # the writer's thread did not come along: nobody would ever answer
            raise StoreError("this store was opened by another process", remedy="open it again after a fork")


def open_db(url: str, *, create: bool = True, migrate: bool = True, poll_s: float = 0.05) -> Db:
    engine = engine_for(url)
    found = revision(engine)
    if found is None and not create:
        raise NotFound(
            f"store {engine.url}", why="there is none", remedy="check the path; 'holdfast optimize' creates one"
        )
    if found != HEAD:
        if found is not None and found < REVISIONS[0]:
            raise StoreError(
                f"store {engine.url}",
                why=f"its schema is {found}, and this version upgrades from {REVISIONS[0]} on",
                remedy="run 'holdfast store migrate' of the version that wrote it last, then open it again",
            )
        if found is not None and found not in REVISIONS:
            raise StoreTooNew(
                f"store {engine.url}",
                why=f"its schema is {found}, this version knows up to {HEAD}",
                remedy="install the newer holdfast that wrote it",
            )
        if found is not None and not migrate:
            raise StoreError(
                f"store {engine.url}", why=f"its schema is {found}, not {HEAD}", remedy="run 'holdfast store migrate'"
            )
        upgrade(engine)
    return Db(engine, poll_s=poll_s)


def revision(engine: Engine) -> str | None:
    """The schema revision of the store, None when there is no store yet."""
    if isinstance(engine, SQLite) and not _is_there(engine.path):
        return None
    try:
        connection = engine.connect(read_only=True)
        try:
            return _revision_of(connection, engine)
        finally:
            connection.close()
    except Exception as error:
        raise engine.translate(error) from error


def _is_there(path: Path) -> bool:
    """Whether the file holds a database; what can never be a store is refused."""
    try:
        if path.is_dir():
            raise BadInput(f"store {path}", why="is a folder", remedy="give the path of a file")
        if not path.exists() or path.stat().st_size == 0:
            return False
        if is_store_file(path):
            return True
    except OSError as error:
        remedy = "choose a place you may read and write"
        raise StoreError(f"store {path}", why=error.strerror or str(error), remedy=remedy) from error
    raise StoreCorrupt(f"store {path}", why="is not an SQLite database", remedy="give another path, or restore a copy")


def _revision_of(connection: Any, engine: Engine) -> str | None:
    if isinstance(engine, SQLite):
        tables = "SELECT name FROM sqlite_master WHERE type = 'table'"
    else:
        tables = "SELECT tablename FROM pg_tables WHERE schemaname = current_schema()"
    names = {row[0] for row in connection.execute(tables).fetchall()}
    if {"alembic_version", "rollouts"} <= names:
        row = connection.execute("SELECT version_num FROM alembic_version").fetchone()
        return str(row[0]) if row else None
    if names - {"sqlite_sequence"}:
        raise StoreCorrupt(
            f"store {engine.url}",
            why="this database belongs to another program",
            remedy="give another path or database",
        )
    return None


def upgrade(engine: Engine) -> None:
    """Bring the schema to HEAD, in one transaction, alone: a second process waits and then finds it done."""
    import alembic.command
    import alembic.config
    import sqlalchemy

    sqlite = isinstance(engine, SQLite)
    if isinstance(engine, SQLite):
        with_parent(engine.path)
    raw = engine.connect(read_only=False)
    try:
        if sqlite:
            raw.execute("PRAGMA busy_timeout = 30000")
            raw.execute("PRAGMA foreign_keys = OFF")
            if raw.execute("PRAGMA journal_mode").fetchone()[0] != "wal":  # asked first: changing it takes a lock
                raw.execute("PRAGMA journal_mode = WAL")
        bound = sqlalchemy.create_engine(
            "sqlite://" if sqlite else "postgresql+psycopg://", creator=lambda: raw, poolclass=sqlalchemy.StaticPool
        )
        with bound.connect() as connection, connection.begin():
            raw.execute("BEGIN IMMEDIATE" if sqlite else "BEGIN")
            if not sqlite:
                raw.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            if _revision_of(raw, engine) != HEAD:
                config = alembic.config.Config()
                config.set_main_option("script_location", "holdfast.store:migrations")
                config.attributes["connection"] = connection
                with MIGRATING:
                    alembic.command.upgrade(config, "head")
    except Exception as error:
        raise engine.translate(getattr(error, "orig", None) or error) from error
    finally:
        raw.close()


def with_parent(path: Path) -> Path:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"folder {path.parent}", why=error.strerror or str(error), remedy="choose a place you may write"
        ) from error
    return path
