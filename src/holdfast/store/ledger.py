"""The ledger: an append-only chain of what was decided and by whom; each entry carries the hash of the one before.

The database refuses updates and deletes. `verify` recomputes the chain, so that a change made behind its back shows,
and compares it with a file beside the store: where the ledger stood at each decision about a release, a line each. The
chain shows a change in its middle; the file also shows that its end was cut or that all of it was written anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select, text

from holdfast.contracts.errors import NotFound, StoreCorrupt, StoreError
from holdfast.contracts.run import LedgerEntry
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import AT_MOST, Transaction, into, to_json
from holdfast.store.writer import WriteFuture

NAME = "ledger.anchors"
LINE = re.compile(r'(\d{1,18}) ([0-9a-f]{64}) (".*")')
DATABASE = text("SELECT oid FROM pg_database WHERE datname = current_database()")  # another one after a drop


class LedgerCheckpoints:
    def __init__(self, folder: Path, store: str) -> None:
        self.path, self._store = folder / NAME, store
        self._name: str | None = None

    def add(self, view: Transaction, seq: int, sha256: str) -> None:
        """Note the entry once the transaction is committed."""
        name = self._named(view)
        view.afterwards(lambda: self._write(f"{seq} {sha256} {name}\n".encode()))

    def of(self, view: Transaction) -> dict[int, list[str]]:
        """The hashes that were noted of this store, by entry."""
        found: dict[int, list[str]] = {}
        try:
            lines = self.path.read_text(encoding="utf-8", errors="replace").splitlines()
        except FileNotFoundError:
            return found
        except OSError as error:
            why = error.strerror or str(error)
            raise StoreError(f"file {self.path}", why=why, remedy="make it readable, or move it away") from error
        name = self._named(view)
        for line in lines:
            match = LINE.fullmatch(line)  # a line that was torn by a crash says nothing
            if match is not None and match[3] == name:
                found.setdefault(int(match[1]), []).append(match[2])
        return found

    def _named(self, view: Transaction) -> str:
        """Several stores may lie in one folder, and a database may be dropped and made again."""
        if self._name is None:
            self._name = json.dumps(self._store if view.is_sqlite else f"{self._store}#{view.one(DATABASE, {})[0]}")
        return self._name

    def _write(self, line: bytes) -> None:
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if is_torn else line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return  # the decision stands: it is on disk already, and only has one witness less


GENESIS = "0" * 64
PAGE = 1000
UNPROVEN = "compare with an exported copy; decisions after that place are not proven"
OTHERWISE = f"{UNPROVEN}; where an older copy was put back on purpose, move that file away"
_c = schema.ledger.c
LAST = select(_c.seq, _c.sha256).order_by(_c.seq.desc()).limit(1)
APPEND = into(schema.ledger)
AFTER = select(schema.ledger).where(_c.seq > bindparam("after")).order_by(_c.seq).limit(AT_MOST)
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


class OfProject:
    """A part of the store that belongs to one project."""

    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

    def _of(self, **values: Any) -> dict[str, Any]:
        return {"project": self._project, **values}

    def _none(self, what: str, remedy: str = "") -> NotFound:
        return NotFound(what, why=f"there is none in project {self._project!r}", remedy=remedy)


class Ledger(OfProject):
    def __init__(self, db: Db, project: str, checkpoints: LedgerCheckpoints) -> None:
        super().__init__(db, project)
        self._checkpoints = checkpoints

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
        noted = self._db.reading(
            self._checkpoints.of
        )  # before the chain: of what is noted later, nothing is missing now
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
