"""The ledger: an append-only chain of what was decided and by whom; each entry carries the hash of the one before.

The database refuses updates and deletes; `verify` recomputes the chain, so that a change made behind its back shows,
and compares it with the places that were noted outside of the database (see `anchors`).
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import bindparam, insert, select, text

from holdfast.contracts.errors import StoreCorrupt
from holdfast.contracts.run import LedgerEntry
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.ledger_checkpoints import NAME, Anchors
from holdfast.store.sql import Transaction, to_json
from holdfast.store.writer import WriteFuture

GENESIS = "0" * 64
PAGE = 1000
UNPROVEN = "compare with an exported copy; decisions after that place are not proven"
OTHERWISE = f"{UNPROVEN}; where an older copy was put back on purpose, move that file away"
_c = schema.ledger.c
LAST = select(_c.seq, _c.sha256).order_by(_c.seq.desc()).limit(1)
APPEND = insert(schema.ledger).values({c.name: bindparam(c.name) for c in _c})
AFTER = select(schema.ledger).where(_c.seq > bindparam("after")).order_by(_c.seq).limit(bindparam("most"))
LOCK = text("LOCK TABLE ledger IN SHARE ROW EXCLUSIVE MODE")  # Postgres: one chain, one appender at a time


def append(
    tx: Transaction, project: str, run: str | None, kind: str, who: str, body: Mapping[str, Any], now: float
) -> tuple[int, str]:
    """Write one entry inside the caller's transaction; its number and its hash."""
    if not tx.is_sqlite:
        tx.run(LOCK, {})
    last = tx.one(LAST, {})
    seq, previous = (last[0] + 1, last[1]) if last else (1, GENESIS)
    values = {"seq": seq, "at": float(now), "project": project, "run": run, "kind": kind, "who": who}
    values |= {"body": to_json(body), "previous": previous}
    values["sha256"] = digest(values)
    tx.run(APPEND, values)
    return seq, str(values["sha256"])


def digest(values: Mapping[str, Any]) -> str:
    """sha256 over every other field, in this order, as one JSON list."""
    fields = ("seq", "at", "project", "run", "kind", "who", "body", "previous")
    return hashlib.sha256(to_json([values[name] for name in fields]).encode()).hexdigest()


class Ledger:
    def __init__(self, db: Db, project: str, anchors: Anchors) -> None:
        self._db, self._project, self._anchors = db, project, anchors

    def append(
        self, kind: str, body: Mapping[str, Any], *, who: str, now: float, run: str | None = None
    ) -> WriteFuture[None]:
        def operation(tx: Transaction) -> None:
            append(tx, self._project, run, kind, who, body, now)

        return self._db.write(operation)

    def entries(self, *, run: str | None = None) -> Iterator[LedgerEntry]:
        """This project's entries, oldest first."""
        for row in self._pages():
            if row[2] == self._project and run in (None, row[3]):
                yield rows.ledger_entry(row)

    def verify(self) -> int:
        """The number of entries, or StoreCorrupt with the first place where the chain is broken."""
        noted = self._db.reading(self._anchors.of)  # before the chain: of what is noted later, nothing is missing now
        previous, expected = GENESIS, 1
        names = [column.name for column in _c]
        for row in self._pages():
            values = dict(zip(names, row, strict=True))
            why = ""
            if values["seq"] != expected:
                why = f"entry {expected} is missing"
            elif values["previous"] != previous:
                why = f"entry {expected} does not follow from entry {expected - 1}"
            elif values["sha256"] != digest(values):
                why = f"entry {expected} was changed after it was written"
            if why:
                raise StoreCorrupt("ledger", why=why, remedy=UNPROVEN)
            if any(sha256 != values["sha256"] for sha256 in noted.pop(expected, ())):
                why = f"entry {expected} is not the one that {NAME} noted: it, or one before it, was written anew"
                raise StoreCorrupt("ledger", why=why, remedy=OTHERWISE)
            previous, expected = values["sha256"], expected + 1
        if noted:
            why = f"ends with entry {expected - 1}, and {NAME} noted entry {max(noted)}: its end was cut off"
            raise StoreCorrupt("ledger", why=why, remedy=OTHERWISE)
        return expected - 1

    def _pages(self) -> Iterator[Any]:
        after = 0
        while page := self._db.all(AFTER, {"after": after, "most": PAGE}):
            yield from page
            after = page[-1][0]
