"""What somebody with an SQL prompt can do to a store, behind its back."""

from __future__ import annotations

import re
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from holdfast.store import schema
from holdfast.store.ledger import GENESIS, digest
from holdfast.store.store import Store

COLUMNS = [column.name for column in schema.ledger.c]


@contextmanager
def prompt(store: Store) -> Iterator[Any]:
    """A connection on which no trigger and no foreign key holds; afterwards they are there as before."""
    connection: Any = store.db.engine.connect(read_only=False)
    triggers: list[Any] = []
    if store.db.engine.name == "sqlite":
        connection.execute("PRAGMA busy_timeout = 10000")
        connection.execute("PRAGMA foreign_keys = OFF")
        triggers = connection.execute("SELECT name, sql FROM sqlite_master WHERE type = 'trigger'").fetchall()
        for name, _ in triggers:
            connection.execute(f"DROP TRIGGER {name}")
    else:
        connection.execute("SET session_replication_role = replica")
    try:
        yield connection
        for _, sql in triggers:
            connection.execute(sql)
    finally:
        connection.close()


def damage(store: Store, *statements: str) -> None:
    with prompt(store) as connection:
        for statement in statements:
            connection.execute(statement)


@contextmanager
def damaged(store: Store, *statements: str) -> Iterator[None]:
    """As `damage` of one table does, and made good after the block."""
    found = re.search(r"(?:UPDATE|FROM|INTO) (\w+)", statements[0])
    assert found is not None
    table, mark = found[1], "?" if store.db.engine.name == "sqlite" else "%s"
    with prompt(store) as connection:
        before = connection.execute(f"SELECT * FROM {table}").fetchall()
        for statement in statements:
            connection.execute(statement)
    try:
        yield
    finally:
        with prompt(store) as connection:
            connection.execute(f"DELETE FROM {table}")
            values = ", ".join([mark] * len(before[0]))
            connection.cursor().executemany(f"INSERT INTO {table} VALUES ({values})", before)


def rewrite(store: Store, start: int, *statements: str) -> None:
    """Change the ledger and make the chain fit again, from that entry on."""
    with prompt(store) as connection:
        for statement in statements:
            connection.execute(statement)
        before = connection.execute(f"SELECT sha256 FROM ledger WHERE seq = {start - 1}").fetchone()
        previous = GENESIS if before is None else before[0]
        names = ", ".join(COLUMNS)
        for row in connection.execute(f"SELECT {names} FROM ledger WHERE seq >= {start} ORDER BY seq").fetchall():
            values = dict(zip(COLUMNS, row, strict=True)) | {"previous": previous}
            previous = digest(values)
            found = f"previous = '{values['previous']}', sha256 = '{previous}'"
            connection.execute(f"UPDATE ledger SET {found} WHERE seq = {values['seq']}")
