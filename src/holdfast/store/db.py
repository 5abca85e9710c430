"""Open a store's database (create it, migrate it, or refuse it), read from it, and hand writes to its one writer.

SQLite is one file in WAL mode with synchronous FULL, so that a commit that returned survives a power cut. Postgres, by
URL, has the same tables and operations; claims skip locked rows, changes travel by LISTEN/NOTIFY.
"""

from __future__ import annotations

import logging
import os
import random
import re
import secrets
import selectors
import sqlite3
import threading
import time
from collections.abc import Callable, Generator
from contextlib import closing, suppress
from pathlib import Path
from tempfile import mkstemp
from typing import Any, TypeVar, cast

from sqlalchemy import Executable, bindparam, select, update
from sqlalchemy.dialects.sqlite import dialect
from sqlalchemy.engine.interfaces import Dialect

from holdfast.contracts.errors import (
    BadInput,
    HoldfastError,
    NotFound,
    StoreBusy,
    StoreCorrupt,
    StoreError,
    StoreFull,
    StoreTooNew,
)
from holdfast.store import schema
from holdfast.store.notifications import TOPICS, Notifications
from holdfast.store.sql import Book, Params, Transaction, among, checksum
from holdfast.store.writer import WriteFuture, Writer

T = TypeVar("T")
PATIENCE_S = 30.0
COMMITS = "commits"  # the counter of all commits, beside those of the topics
SILENT_S = 5.0  # whoever waits longer for a lock is told for whom
LOG = logging.getLogger(__name__)
# The operating system keeps pages as well: a larger cache speeds up nothing, and lets a process grow for hours.
WRITE_CACHE_KB, READ_CACHE_KB = 16_384, 4_096
IDLE = 4  # connections for looking that are kept open; more looks at once open more, and close them again
_change = update(schema.pulse).where(schema.pulse.c.topic == bindparam("t"))
_bump = _change.values(n=schema.pulse.c.n + 1).returning(schema.pulse.c.n)
PULSES_OF = select(schema.pulse.c.n).where(schema.pulse.c.topic == bindparam("t"))
_pulses = select(schema.pulse.c.topic, schema.pulse.c.n).where(among(schema.pulse.c.topic, *TOPICS))


class SQLite:
    name = "sqlite"
    ahead_s = 0.0  # of its clock, which is ours

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
        if not read_only:
            make_private(self.path)
        connection = sqlite3.connect(self.path, isolation_level=None, check_same_thread=False, cached_statements=256)
        # Whoever only looks meets a lock while a file is made, or recovered after a crash: SQLite may wait for that.
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute(f"PRAGMA cache_size = -{READ_CACHE_KB if read_only else WRITE_CACHE_KB}")
        connection.execute("PRAGMA temp_store = MEMORY")
        connection.create_function("hf_checksum", -1, checksum, deterministic=True)
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
            remedy = "free some disk space and call again: nothing of this write was kept"
            return StoreFull(where, why=text, remedy=remedy)
        if code == sqlite3.SQLITE_NOTADB:
            remedy = "give another path, or restore a copy"
            return StoreCorrupt(where, why="is not an SQLite database", remedy=remedy)
        if code == sqlite3.SQLITE_CORRUPT:
            return StoreCorrupt(where, why=text, remedy="run 'holdfast store check', or restore the file from a copy")
        if code == sqlite3.SQLITE_BUSY:
            why, holder = f"locked by another process for {PATIENCE_S:.0f} s", lock_holder(self.path)
            return StoreBusy(where, why=why, remedy="end that process" if holder is None else f"end {holder}")
        if code in (sqlite3.SQLITE_CANTOPEN, sqlite3.SQLITE_READONLY, sqlite3.SQLITE_PERM):
            return StoreError(where, why=text, remedy="check that the file and its folder can be written")
        return StoreError(where, why=text)


WRITE_LOCK = 120  # the byte of the -shm file that a writer of a WAL locks


def lock_holder(path: Path) -> str | None:
    """Who holds the writers' lock of the file, as the kernel tells it; None where nobody does, or nobody knows.

    Read from a list of all locks: to open and close the file would let go of this process's own."""
    try:
        inode = str(Path(f"{path}-shm").stat().st_ino)
        for line in Path("/proc/locks").read_text().splitlines():
            _, kind, *_, pid, file, first, _ = line.split()
            if kind == "POSIX" and file.rpartition(":")[2] == inode and first == str(WRITE_LOCK) and int(pid) > 0:
                state = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]
                frozen = f" and is stopped (kill -CONT {pid})" if state in ("T", "t") else ""
                return f"process {pid}, which holds its lock{frozen}"
    except (OSError, IndexError, ValueError):
        return None
    return None


class SQLiteSession:
    """The writer's one connection."""

    def __init__(self, engine: SQLite) -> None:
        self._engine, self.translate = engine, engine.translate
        self._connection = engine.connect(read_only=False)
        self._mark = CommitMark(engine.path)
        self._jitter = random.Random()  # spreads waiting processes; no result depends on it

    def begin(self) -> Transaction:
        began, is_told = time.monotonic(), False
        while True:
            try:
                self._connection.execute("BEGIN IMMEDIATE")
                return Transaction(self._connection, self._engine.book)
            except sqlite3.OperationalError as error:
                waited_s = time.monotonic() - began
                if error.sqlite_errorcode & 0xFF != sqlite3.SQLITE_BUSY or waited_s > PATIENCE_S:
                    raise
                if waited_s > SILENT_S and not is_told:
                    is_told = True
                    LOG.warning("store %s: waiting for %s, up to %d s", *self._held_by(), PATIENCE_S)
                time.sleep(self._jitter.uniform(0.0002, 0.002))

    def _held_by(self) -> tuple[Path, str]:
        holder = lock_holder(self._engine.path)
        return self._engine.path, "another process that holds its lock" if holder is None else holder

    def commit(self, transaction: Transaction) -> None:
        for topic in transaction.topics:
            transaction.topics[topic] = transaction.one(_bump, {"t": topic})[0]
        commits = transaction.one(_bump, {"t": COMMITS})[0]
        self._connection.execute("COMMIT")
        self._mark.set(commits)

    def rollback(self) -> None:
        if self._connection.in_transaction:  # a full disk has already rolled back by itself
            self._connection.execute("ROLLBACK")

    def is_passing(self, error: Exception) -> bool:
        return False

    def close(self) -> None:
        self._connection.close()
        self._mark.close()


class CommitMark:
    """How many commits the store has had, in a file beside it.

    It is set after each commit, so that a store never has fewer: one that has lost them, since its log was deleted or
    torn, or since an older copy was put in its place."""

    def __init__(self, path: Path) -> None:
        self.path, self._store = Path(f"{path}-mark"), path
        self._file: int | None = None  # -1: it cannot be written, and there is one witness less

    def set(self, commits: int) -> None:
        try:
            if self._file is None:
                self._file = os.open(self.path, os.O_RDWR | os.O_CREAT, self._store.stat().st_mode & 0o666)
            if self._file >= 0:
                os.pwrite(self._file, b"%020d\n" % commits, 0)
        except OSError:
            self.close()
            self._file = -1

    def get(self) -> int:
        """0 where nothing was noted, or it cannot be read."""
        with suppress(OSError, ValueError):
            return int(self.path.read_bytes()[:21])
        return 0

    def close(self) -> None:
        if self._file is not None and self._file >= 0:
            os.close(self._file)
        self._file = None


def refuse_lost_commits(engine: SQLite) -> None:
    """StoreCorrupt where the store has fewer commits than were made: nobody is to go on without noticing it."""
    mark, connection = CommitMark(engine.path), engine.connect(read_only=True)
    try:
        noted = mark.get()  # before the store is read: a commit in between is no loss
        row = connection.execute(engine.book[PULSES_OF], {"t": COMMITS}).fetchone()
    except sqlite3.Error as error:
        raise engine.translate(error) from error
    finally:
        connection.close()
    if row is not None and row[0] < noted:
        why = f"{noted - row[0]} commits are missing that were made: its -wal file was deleted or torn, or it is a copy"
        remedy = f"put the files of the store back together; to go on without them delete {mark.path}"
        raise StoreCorrupt(f"store {engine.path}", why=why, remedy=remedy)


CHANNEL = "holdfast"
PASSING = frozenset({"40001", "40P01", "55P03", "57014"})  # serialization, deadlock, no lock in time, no answer in time
LOST = ("08", "57P", "25P03")  # connection exceptions, a server that is being stopped, a transaction left idle
DISK_FULL = "53100"
UNKNOWN = "whether the last write was kept is unknown: look before repeating it"
MARKED, FORGOTTEN_NS = "commit", 7 * 86_400 * 10**9  # the rows of sessions that left no mark for so long are deleted
FORGET = "DELETE FROM pulse WHERE topic LIKE %(marked)s AND n < %(before)s"
END_OLD = "SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE application_name = %s"
END_OLD += " AND pid <> pg_backend_pid()"
RECONNECT_S = 60.0  # a server that restarts is waited for
LOOK_S = 5.0  # a connection that only listens is tried so often: what it listens to may be gone
NO_ANSWER_S = 10.0  # then another connection asks whether the server is still at it: the answer may be lost
SAME_CLOCK_S = 0.25  # clocks that agree so far are taken for the same
# A host that vanishes must not hold the others up: the server ends its transaction and its connection by itself.
KEPT_ALIVE = "-c tcp_keepalives_idle=10 -c tcp_keepalives_interval=5 -c tcp_keepalives_count=3"
FOR_WRITING = "-c lock_timeout=10s -c statement_timeout=60s -c idle_in_transaction_session_timeout=10s"
FOR_READING = "-c default_transaction_read_only=on -c statement_timeout=600s"
FOR_READING += " -c idle_in_transaction_session_timeout=600s"  # an export may be slow, and holds nobody up
CLIENT_SIDE = {"connect_timeout": 10, "keepalives_idle": 10, "keepalives_interval": 5, "keepalives_count": 3}
CLIENT_SIDE |= {"tcp_user_timeout": 30_000}  # milliseconds without an acknowledgement
# A backend that waits for its client has said, or heard, all that there is: what we wait for will never come.
IS_AT_WORK = "SELECT 1 FROM pg_stat_activity WHERE pid = {} AND (state = 'disabled' OR state = 'active'"
IS_AT_WORK += " AND wait_event_type IS DISTINCT FROM 'Client')"  # disabled: it keeps no record of who works


class Postgres:
    name = "postgres"

    def __init__(self, url: str) -> None:
        try:  # here, since whoever has a file shall not wait for it
            import psycopg
            from sqlalchemy.dialects.postgresql.psycopg import PGDialect_psycopg
        except ImportError:
            where, remedy = f"store {hide_password(url)}", "pip install 'holdfast[postgres]'"
            raise BadInput(where, why="psycopg is not installed", remedy=remedy) from None
        self.driver, engine = psycopg, self

        class Connection(psycopg.Connection[Any]):
            """One whose waiting ends where the answer was lost on its way, though both ends seem to live."""

            def wait(self, gen: Any, *how: Any, **more: Any) -> Any:
                return super().wait(engine._until_silent(self, gen), *how, **more)

        self._connection = Connection
        self._dsn = "postgresql://" + url.split("://", 1)[1]
        self.url = hide_password(self._dsn)
        self.dialect: Dialect = PGDialect_psycopg(paramstyle="pyformat")  # type: ignore[no-untyped-call]
        self.book = Book(self.dialect)
        self.origin = f"{os.getpid()}-{time.monotonic_ns()}"  # tells our own notifications from others'
        self.ahead_s = 0.0  # how far the server's clock is ahead of ours
        self._measured = (0.0, -1e9)  # round trip of that measurement, and when it was, both in seconds
        self._jitter = random.Random()  # spreads those who connect anew; no result depends on it

    def connect(self, *, read_only: bool, name: str | None = None) -> Any:
        limits = FOR_READING if read_only else FOR_WRITING
        options = f"-c synchronous_commit=on -c timezone=UTC {KEPT_ALIVE} {limits}"
        try:
            how: Any = {"autocommit": True, "options": options, **CLIENT_SIDE}
            how |= {} if name is None else {"application_name": name}
            return self._connection.connect(self._dsn, row_factory=self.driver.rows.tuple_row, **how)
        except self.driver.OperationalError as error:
            why, remedy = str(error).strip().splitlines()[0], "check the URL and that the server runs"
            raise StoreError(f"store {self.url}", why=why, remedy=remedy) from error

    def _until_silent(self, connection: Any, gen: Generator[Any, Any, T]) -> Generator[Any, Any, T]:
        """As `gen`, which waits for the server; the driver's OperationalError once it is no longer at our statement."""
        heard_at = time.monotonic()
        try:
            wanted = next(gen)
            while True:
                ready = yield wanted
                if ready:
                    heard_at = time.monotonic()
                elif time.monotonic() - heard_at > NO_ANSWER_S:
                    if not self._is_at_work(connection.pgconn.backend_pid):
                        connection.close()
                        raise self.driver.OperationalError(f"no answer within {NO_ANSWER_S:g} s: it was lost")
                    heard_at = time.monotonic()
                wanted = gen.send(ready)
        except StopIteration as end:
            return cast(T, end.value)

    def _is_at_work(self, backend: int) -> bool:
        """Whether the server still works on a statement; True where nobody can be asked."""
        try:
            with closing(self.connect(read_only=True)) as other:
                return self._ask(other, IS_AT_WORK.format(backend)) > 0
        except (self.driver.Error, StoreError):
            return True

    def reconnect(self, *, read_only: bool, name: str | None = None) -> Any:
        """A new connection in place of one that was lost; a server that is down is waited for."""
        until, pause_s = time.monotonic() + RECONNECT_S, 0.1
        while True:
            try:
                return self.connect(read_only=read_only, name=name)
            except StoreError:
                if time.monotonic() > until:
                    raise
            time.sleep(pause_s * self._jitter.uniform(0.5, 1.5))
            pause_s = min(2.0, 2 * pause_s)

    def is_lost(self, error: Exception) -> bool:
        """Whether it is the connection that failed, and not what was asked of it."""
        if not isinstance(error, self.driver.Error):
            return False
        state = error.sqlstate or ""
        return state.startswith(LOST) or (isinstance(error, self.driver.OperationalError) and not state)

    def measure_clock(self, server_s: float, asked_at: float, answered_at: float) -> None:
        """The quickest answer of the last ten seconds counts: it leaves least room for error."""
        trip, (least, at) = answered_at - asked_at, self._measured
        if trip <= least or time.monotonic() - at > 10.0:
            ahead = server_s - (asked_at + answered_at) / 2
            self.ahead_s, self._measured = (ahead if abs(ahead) > SAME_CLOCK_S else 0.0), (trip, time.monotonic())

    def session(self) -> PostgresSession:
        return PostgresSession(self)

    def watch(self, report: Callable[[dict[str, int]], None], stopped: Callable[[float], bool], every_s: float) -> None:
        """Report topics as other processes touch them; ends when `stopped(0)` is true."""
        connection, tried_at = None, time.monotonic()
        while not stopped(0.0):
            try:
                if connection is None or connection.closed:
                    connection = self.connect(read_only=True)
                    self._ask(connection, f"LISTEN {CHANNEL}")
                    report(dict.fromkeys(TOPICS, -1))  # what was missed meanwhile
                elif time.monotonic() - tried_at > LOOK_S:  # a dropped connection is silent, as one without news is
                    self._ask(connection, "SELECT 1")
                    tried_at = time.monotonic()
                    report(dict.fromkeys(TOPICS, -1))  # also what came with the answer
                for note in connection.notifies(timeout=max(every_s, 0.2), stop_after=1):
                    origin, _, topics = note.payload.partition(" ")
                    if origin != self.origin:
                        report(dict.fromkeys(topics.split(), -1))
            except (self.driver.Error, HoldfastError):
                if connection is not None:
                    connection.close()
                connection = None
                if stopped(0.5):
                    break
        if connection is not None:
            connection.close()

    def _ask(self, connection: Any, statement: str) -> int:
        """As `execute`, how many rows; StoreError where nobody answers within LOOK_S."""
        remote, until, rows = connection.pgconn, time.monotonic() + LOOK_S, 0
        remote.send_query(statement.encode())
        with selectors.DefaultSelector() as ready:
            ready.register(remote.socket, selectors.EVENT_READ)
            while True:
                while remote.is_busy():
                    if not ready.select(max(0.0, until - time.monotonic())):
                        raise StoreError(f"store {self.url}", why=f"no answer within {LOOK_S:g} s")
                    remote.consume_input()
                if (result := remote.get_result()) is None:
                    return rows
                rows = result.ntuples
                if message := result.error_message:
                    raise StoreError(f"store {self.url}", why=message.decode(errors="replace"))

    def translate(self, error: Exception) -> Exception:
        if not isinstance(error, self.driver.Error):
            return error
        where, why = f"store {self.url}", (str(error).strip() or type(error).__name__).splitlines()[0]
        state = error.sqlstate or ""
        if state == DISK_FULL:
            return StoreFull(where, why=why, remedy="free some disk space on the server and call again")
        if state in PASSING:
            return StoreBusy(where, why=why, remedy="call again")
        if self.is_lost(error):
            return StoreError(where, why=f"connection lost: {why}", remedy=UNKNOWN)
        return StoreError(where, why=why)


class PostgresSession:
    """The writer's one connection, renewed when it broke.

    A connection that breaks while a commit is on its way leaves open whether it was kept. Each transaction has a mark
    in a row of this session's own, which is looked at: what the server says of a transaction's number is no answer, for
    one that crashed gives the numbers of what it lost to others."""

    def __init__(self, engine: Postgres) -> None:
        self._engine, self.translate = engine, engine.translate
        self._number = 0  # of the transaction under way, as the server counts them
        self._marked, self._mark = f"{MARKED} {engine.origin}-{secrets.token_hex(4)}", 0
        self._connection = engine.connect(read_only=False, name=self._marked)
        try:
            self._afresh(self._start)  # it measures the server's clock
        except engine.driver.Error as error:
            raise self.translate(error) from error
        self.rollback()

    def begin(self) -> Transaction:
        self._afresh(self._begin)
        return Transaction(self._connection, self._engine.book)

    def _afresh(self, start: Callable[[], None]) -> None:
        """Starts a transaction, on a new connection where this one was cut while it was idle."""
        if self._connection.closed:
            self._renew()
        try:
            start()
        except self._engine.driver.OperationalError:  # with nothing under way: a new one will do
            self._renew()
            start()

    def _renew(self) -> None:
        """A new connection. The server may not know that the old one is lost, and keep what it had locked."""
        self._connection.close()
        self._connection = self._engine.reconnect(read_only=False, name=self._marked)
        self._connection.execute(END_OLD, (self._marked,))

    def _begin(self) -> None:
        is_first, self._mark = not self._mark, max(self._mark + 1, time.time_ns())
        self._start(
            f"; INSERT INTO pulse (topic, n) VALUES ('{self._marked}', {self._mark})"
            " ON CONFLICT (topic) DO UPDATE SET n = excluded.n"
        )
        if is_first:
            self._connection.execute(FORGET, {"marked": f"{MARKED} %", "before": self._mark - FORGOTTEN_NS})

    def _start(self, more: str = "") -> None:
        asked_at = time.time()
        text = "BEGIN; SELECT txid_current(), extract(epoch FROM clock_timestamp())::float8" + more
        cursor = self._connection.execute(text)
        cursor.nextset()
        self._number, server_s = cursor.fetchone()
        self._engine.measure_clock(server_s, asked_at, time.time())

    def commit(self, transaction: Transaction) -> None:
        if transaction.topics:
            payload = " ".join((self._engine.origin, *transaction.topics))
            self._connection.execute("SELECT pg_notify(%s, %s)", (CHANNEL, payload))
            transaction.topics = dict.fromkeys(transaction.topics, -1)  # there is no counter: every note is news
        try:
            self._connection.execute("COMMIT")
        except self._engine.driver.Error as error:
            if not self._engine.is_lost(error) or not self._was_kept():
                raise

    def _was_kept(self) -> bool:
        """Of the transaction whose commit nobody answered; StoreError where that cannot be found out."""
        try:
            self._renew()
            until = time.monotonic() + RECONNECT_S
            while self._is_under_way():
                if time.monotonic() > until:
                    raise StoreError(f"store {self._engine.url}", why="its old connection is still at it")
                time.sleep(0.1)
            row = self._connection.execute("SELECT n FROM pulse WHERE topic = %s", (self._marked,)).fetchone()
        except (self._engine.driver.Error, StoreError) as error:  # to repeat it might do it twice
            raise StoreError(f"store {self._engine.url}", why="connection lost in a commit", remedy=UNKNOWN) from error
        return row is not None and bool(row[0] == self._mark)

    def _is_under_way(self) -> bool:
        """Whether the server is still at the transaction, or at another one that was given its number."""
        try:
            row = self._connection.execute("SELECT txid_status(%s)", (self._number,)).fetchone()
        except self._engine.driver.DataError:  # a number of the future: the server lost it, and knows nothing of it
            return False
        return bool(row[0] == "in progress")

    def rollback(self) -> None:
        try:
            self._connection.execute("ROLLBACK")
        except self._engine.driver.Error:
            self._connection.close()  # broken: the server has rolled back, begin() connects anew

    def is_passing(self, error: Exception) -> bool:
        if not isinstance(error, self._engine.driver.Error):
            return False
        return error.sqlstate in PASSING or self._engine.is_lost(error)

    def close(self) -> None:
        self._connection.close()


def hide_password(url: str) -> str:
    url = re.sub(r"(://[^:@/?#]*):[^/?#]*@", r"\1:***@", url)
    return re.sub(r"([?&]password=)[^&]*", r"\1***", url)


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
        remedy = "give a file path or postgresql://user@host/name"
        raise BadInput(f"store {hide_password(url)!r}", why="not a store address", remedy=remedy)
    return SQLite(Path(url).expanduser())


class Reader:
    """A connection for looking."""

    __slots__ = ("_pid", "connection")

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
        self._idle: list[Reader] = []  # the one used last is used next
        self._closed = False
        self.is_sealed = False  # there is a key for its ledger
        self.entered: Callable[[Transaction, int, str], None] = lambda view, seq, sha256: None  # told of the ledger
        self.changes = Notifications(engine, poll_s)
        self._writer = Writer(engine.session(), self._committed)

    def write(self, operation: Callable[[Transaction], T]) -> WriteFuture[T]:
        """The operation's answer, settled once it is on disk. It may run twice, so it must not act outside."""
        self._refuse_children()
        return self._writer.submit(operation)

    def all(self, statement: Executable, params: Params) -> list[Any]:
        return self.reading(lambda view: view.all(statement, params))

    def one(self, statement: Executable, params: Params) -> Any:
        return self.reading(lambda view: view.one(statement, params))

    def clock(self) -> float:
        """Unix seconds by the clock that all who share the store share: a server's, or this machine's."""
        return time.time() + self.engine.ahead_s

    def reading(self, look: Callable[[Transaction], T], *, snapshot: bool = False, again: bool = True) -> T:
        """Run `look` on a read-only connection of its own; with `snapshot`, all of it sees one moment.

        Where the connection is lost it runs once more on a new one, unless it acts outside (`again` is False)."""
        self._refuse_children()
        if self._closed:
            raise StoreError("the store is closed", why="this read came after close()")
        try:
            try:
                return self._look(self._reader(), look, snapshot)
            except Exception as error:
                if not again or not isinstance(self.engine, Postgres) or not self.engine.is_lost(error):
                    raise
            return self._look(Reader(self.engine.reconnect(read_only=True)), look, snapshot)
        except Exception as error:
            raise self.engine.translate(error) from error

    def _look(self, reader: Reader, look: Callable[[Transaction], T], snapshot: bool) -> T:
        connection = reader.connection
        view = Transaction(connection, self.engine.book)
        try:
            if not snapshot:
                return look(view)
            connection.execute("BEGIN" if self.engine.name == "sqlite" else "BEGIN ISOLATION LEVEL REPEATABLE READ")
            try:
                return look(view)
            finally:
                if not getattr(connection, "closed", False):
                    connection.execute("ROLLBACK")
        finally:
            self._put_back(reader)

    def _reader(self) -> Reader:
        while self._idle:
            with suppress(IndexError):  # another thread was quicker
                reader = self._idle.pop()
                if not getattr(reader.connection, "closed", False):
                    return reader
        if isinstance(self.engine, Postgres):  # it was there when the store was opened
            return Reader(self.engine.reconnect(read_only=True))
        return Reader(self.engine.connect(read_only=True))

    def _put_back(self, reader: Reader) -> None:
        self._idle.append(reader)
        while len(self._idle) > (0 if self._closed else IDLE):
            with suppress(IndexError):
                self._idle.pop(0).close()

    def close(self) -> None:
        if os.getpid() != self._pid:
            return  # a forked child has no writer, and its parent still needs the connections
        self._closed = True
        self._writer.close()
        self.changes.close()
        while self._idle:
            with suppress(IndexError):
                self._idle.pop().close()

    def _committed(self, transaction: Transaction) -> None:
        self.changes.committed(transaction.topics)
        if transaction.entry is not None:
            self.entered(transaction, *transaction.entry)

    def _refuse_children(self) -> None:
        if os.getpid() != self._pid:  # the writer's thread did not come along: nobody would ever answer
            raise StoreError("this store was opened by another process", remedy="open it again after a fork")


def open_db(url: str, *, create: bool = True, migrate: bool = True, poll_s: float = 0.05) -> Db:
    engine = engine_for(url)
    found, where = revision(engine), f"store {engine.url}"
    if found is None and not create:
        raise NotFound(where, why="there is none", remedy="check the path; 'holdfast run start' creates one")
    if found is not None and found != HEAD:
        schema_is = f"its schema is {found}"
        if found < REVISIONS[0]:
            remedy = "run 'holdfast store migrate' of the version that wrote it last, then open it again"
            raise StoreError(where, why=f"{schema_is}, and this version upgrades from {REVISIONS[0]} on", remedy=remedy)
        if found not in REVISIONS:
            remedy = "install the newer holdfast that wrote it"
            raise StoreTooNew(where, why=f"{schema_is}, this version knows up to {HEAD}", remedy=remedy)
        if not migrate:
            raise StoreError(where, why=f"{schema_is}, not {HEAD}", remedy="run 'holdfast store migrate'")
    if found != HEAD:
        upgrade(engine)
    if isinstance(engine, SQLite):
        refuse_lost_commits(engine)
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
    """Whether the file holds anything; a folder is refused."""
    try:
        if path.is_dir():
            raise BadInput(f"store {path}", why="is a folder", remedy="give the path of a file")
        return path.exists() and path.stat().st_size > 0  # never opened: see make_private
    except OSError as error:
        remedy = "choose a place you may read and write"
        raise StoreError(f"store {path}", why=error.strerror or str(error), remedy=remedy) from error


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
        why = "this database belongs to another program"
        raise StoreCorrupt(f"store {engine.url}", why=why, remedy="give another path or database")
    return None


def upgrade(engine: Engine, to: str = HEAD) -> None:
    """Bring the schema to a revision in one transaction, alone: a second process waits and then finds it done."""
    import alembic.command
    import sqlalchemy

    if sqlite := isinstance(engine, SQLite):
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
                raw.execute("SET LOCAL statement_timeout = 0")  # a large table takes its time, and others wait for us
                raw.execute("SET LOCAL lock_timeout = 0")
                raw.execute(f"SELECT pg_advisory_xact_lock({MIGRATION_LOCK})")
            if _revision_of(raw, engine) != to:
                config = migrations()
                config.attributes["connection"] = connection
                with MIGRATING:
                    alembic.command.upgrade(config, to)
    except Exception as error:
        raise engine.translate(getattr(error, "orig", None) or error) from error
    finally:
        raw.close()


def migrations() -> Any:
    """Alembic's configuration."""
    import alembic.config

    config = alembic.config.Config()
    config.set_main_option("script_location", "holdfast.store:migrations")
    return config


def make_private(path: Path) -> None:
    """Makes the file for its owner alone; of one that is there, all others lose what everybody had.

    The file itself is never opened here: to close it would let go of all locks that this process has on it, and the
    next process that closes the store would take itself for the last one and delete the log under our feet."""
    with suppress(OSError):  # whoever may not write is told so by SQLite, in its own words
        if not path.exists():
            descriptor, empty = mkstemp(dir=path.parent, prefix=f"{path.name}-")  # for its owner alone
            os.close(descriptor)
            try:
                os.link(empty, path)  # fails if somebody else was quicker
            finally:
                Path(empty).unlink()
        mode = path.stat().st_mode
        if mode & 0o007:
            path.chmod(mode & 0o770)


def with_parent(path: Path) -> Path:
    try:
        path.parent.parent.mkdir(parents=True, exist_ok=True)
        path.parent.mkdir(mode=0o700, exist_ok=True)  # weights and spans lie there, too
    except OSError as error:
        why = error.strerror or str(error)
        raise StoreError(f"folder {path.parent}", why=why, remedy="choose a place you may write") from error
    return path
