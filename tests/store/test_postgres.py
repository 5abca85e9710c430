"""Postgres' own ways: durable commits, connections that break and come back, troubles called by their names."""

from __future__ import annotations

from collections.abc import Iterator

import psycopg
import pytest

from holdfast.contracts.errors import BadInput, StoreBusy, StoreError
from holdfast.store import db
from holdfast.store.db import Postgres, engine_for, hide_password
from holdfast.store.store import Store, open_store
from holdfast.store.writer import TRIES
from tests.conftest import Clock, Databases, command
from tests.store.scene import begin


@pytest.fixture
def url(databases: Databases) -> str:
    return databases.fresh()


@pytest.fixture
def opened(url: str) -> Iterator[Store]:
    with open_store(url) as store:
        yield store


def cut_every_connection(url: str) -> None:
    """As a restarted server or a forgetful firewall does."""
    others = "pid <> pg_backend_pid() AND datname = current_database()"
    command(url, f"SELECT pg_terminate_backend(pid) FROM pg_stat_activity WHERE {others}")


def test_a_commit_waits_for_the_disk(url: str) -> None:
    connection = Postgres(url).connect(read_only=False)
    assert connection.execute("SHOW synchronous_commit").fetchone() == ("on",)
    connection.close()


def test_a_reader_cannot_write(url: str) -> None:
    connection = Postgres(url).connect(read_only=True)
    with pytest.raises(psycopg.errors.ReadOnlySqlTransaction):
        connection.execute("DELETE FROM pulse")
    connection.close()


def test_a_write_after_the_connection_was_cut_goes_through_on_a_new_one(opened: Store, url: str, clock: Clock) -> None:
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    cut_every_connection(url)
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    assert opened.ledger.verify() == 2


def test_a_connection_that_is_cut_in_the_middle_of_a_write_is_told(opened: Store, url: str, clock: Clock) -> None:
    begin(opened, clock)

    def cut_off(tx: object) -> None:
        cut_every_connection(url)

    release = opened.db.write(cut_off)
    with pytest.raises(StoreError) as told:
        release.result()
    assert told.value.remedy == "whether the last write was kept is unknown: look before repeating it"
    opened.ledger.append("note", {}, who="test", now=clock.now).result()
    assert opened.ledger.verify() == 2


def test_a_reader_that_was_cut_reads_again(opened: Store, url: str, clock: Clock) -> None:
    run = begin(opened, clock)
    assert opened.runs.get(run).id == run
    cut_every_connection(url)
    with pytest.raises(StoreError, match="connection lost"):
        opened.runs.get(run)
    assert opened.runs.get(run).id == run


def test_a_deadlock_is_tried_again(opened: Store, url: str, clock: Clock) -> None:
    """Two transactions that each hold what the other wants: the server ends one, and nobody is told."""
    command(url, "UPDATE pulse SET n = 0")
    rival = psycopg.connect(url)
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


def test_troubles_are_called_by_their_names(url: str) -> None:
    engine = Postgres(url)
    busy = engine.translate(psycopg.errors.DeadlockDetected("deadlock detected"))
    assert isinstance(busy, StoreBusy) and str(busy) == f"store {url}: deadlock detected; call again"
    lost = engine.translate(psycopg.OperationalError("server closed the connection unexpectedly\n more"))
    assert str(lost) == (
        f"store {url}: connection lost: server closed the connection unexpectedly; "
        "whether the last write was kept is unknown: look before repeating it"
    )
    other = engine.translate(psycopg.errors.UndefinedTable('relation "x" does not exist\nLINE 1'))
    assert str(other) == f'store {url}: relation "x" does not exist'
    assert engine.translate(error := ValueError("mine")) is error


@pytest.mark.parametrize(
    ("broken", "why"),
    [
        # nobody listens there
        (lambda url: "postgresql://holdfast@127.0.0.1:1/x", "connection to server"),
        # the server has no such database
        (lambda url: f"{url}_not", "does not exist"),
        # not a port
        (lambda url: "postgresql://holdfast:secret@127.0.0.1:port/x", "port"),
    ],
)
def test_a_server_that_cannot_be_reached_is_one_line(url: str, broken: object, why: str) -> None:
    address = broken(url)  # type: ignore[operator]
    with pytest.raises(StoreError, match=why) as refused:
        open_store(address)
    assert "\n" not in str(refused.value) and "secret" not in str(refused.value)


def test_without_its_driver_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(db, "psycopg", None)
    with pytest.raises(BadInput) as refused:
        engine_for("postgresql://me:secret@host/db")
    assert str(refused.value) == (
        "store postgresql://me:***@host/db: psycopg is not installed; pip install 'holdfast[postgres]'"
    )


@pytest.mark.parametrize(
    ("url", "shown"),
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
def test_a_password_is_never_shown(url: str, shown: str) -> None:
    assert hide_password(url) == shown


def test_both_spellings_of_the_scheme_are_understood(url: str) -> None:
    with open_store(url.replace("postgresql://", "postgres://")) as store:
        assert store.url == url
