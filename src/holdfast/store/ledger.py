"""The ledger: an append-only chain of what was decided and by whom; each entry carries the hash of the one before.

The database refuses updates and deletes. `verify` recomputes the chain, so that a change made behind its back shows,
and compares it with a file beside the store: where the ledger stood after each commit that added to it, a line each.
The chain shows a change in its middle; the file also shows that its end was cut or that all of it was written anew.
Whoever can write both can make them fit again. With a key that is kept elsewhere each line is sealed, and cannot be
made without it; a copy of the file, or an append-only witness, shows that both were set back.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from hmac import compare_digest
from pathlib import Path
from typing import Any

from sqlalchemy import bindparam, select, text

from holdfast.contracts.artifacts import append_lines
from holdfast.contracts.errors import BadInput, NotFound, StoreCorrupt, StoreError
from holdfast.contracts.run import LedgerEntry
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import AT_MOST, Transaction, among, into, to_json
from holdfast.store.writer import WriteFuture

NAME = "ledger.anchors"
LINE = re.compile(r'(\d{1,18}) ([0-9a-f]{64}) (".*")(?: ([0-9a-f]{64}))?')
LEAST_KEY = 32  # bytes
DATABASE = text("SELECT oid FROM pg_database WHERE datname = current_database()")  # another one after a drop


@dataclass(frozen=True, slots=True)
class Anchor:
    """A line: where the ledger stood."""

    seq: int
    sha256: str
    seal: str | None = None


def read_key(path: Path, *, apart_from: Path | None = None) -> bytes:
    """The key that seals; BadInput for one that is too short, or lies where whoever it guards against can read it."""
    remedy = "make one elsewhere: head -c 32 /dev/urandom > FILE"
    try:
        key = path.expanduser().read_bytes()
    except OSError as error:
        raise BadInput(f"seal key {path}", why=error.strerror or str(error), remedy=remedy) from error
    if len(key) < LEAST_KEY:
        raise BadInput(f"seal key {path}", why=f"has {len(key)} bytes, {LEAST_KEY} are needed", remedy=remedy)
    if apart_from is not None and path.expanduser().absolute().is_relative_to(apart_from.absolute()):
        why = "lies beside the store: whoever can change the one can read the other"
        raise BadInput(f"seal key {path}", why=why, remedy="keep it elsewhere")
    return key


class LedgerCheckpoints:
    def __init__(self, folder: Path, store: str, key: bytes | None = None) -> None:
        self.path, self._store, self._key = folder / NAME, store, key
        self._name: str | None = None

    def note(self, view: Transaction, seq: int, sha256: str) -> None:
        """Note the entry, which is committed."""
        self._write(self.path, self.line(view, seq, sha256, self._key))

    def line(self, view: Transaction, seq: int, sha256: str, key: bytes | None) -> str:
        text = f"{seq} {sha256} {self.named(view)}"
        return text if key is None else f"{text} {_seal(key, text)}"

    def seal(self, view: Transaction, seq: int, sha256: str, key: bytes, witness: Path | None = None) -> str:
        """Note the entry under the key, in the file and at the witness; StoreError where one cannot be written."""
        text = self.line(view, seq, sha256, key)
        for path in filter(None, (self.path, witness)):
            if not self._write(path, text):
                raise StoreError(f"file {path}", why="cannot be written", remedy="see its folder and its rights")
        return text

    def of(self, view: Transaction, *, key: bytes | None = None, copy: Path | None = None) -> list[Anchor]:
        """The lines about this store, of the file and of a copy; with a key, StoreCorrupt for one sealed otherwise."""
        name, anchors = self.named(view), list[Anchor]()
        for path in filter(None, (self.path, copy)):
            for line in _lines(path, is_copy=path == copy):
                match = LINE.fullmatch(line)  # a line that was torn by a crash says nothing
                if match is None or match[3] != name:
                    continue
                sealed = f"{match[1]} {match[2]} {match[3]}"
                if key is not None and match[4] is not None and not compare_digest(match[4], _seal(key, sealed)):
                    why = f"the line of {path.name} about entry {match[1]} was not sealed with this key"
                    raise StoreCorrupt("ledger", why=why, remedy=OTHERWISE)
                anchors.append(Anchor(int(match[1]), match[2], match[4]))
        return anchors

    def covers(self, view: Transaction, place: Path) -> bool:
        """Whether all that another file says of a store of this name is said here, too."""
        name, ours = self.named(view), set(_lines(self.path, is_copy=False))
        matches = filter(None, map(LINE.fullmatch, _lines(place, is_copy=False)))
        return all(line[0] in ours for line in matches if line[3] == name)

    def copy(self, view: Transaction, place: Path, *, up_to: int) -> None:
        """Add the lines about this store to another file: those that are not there, up to an entry."""
        name, there = self.named(view), set(_lines(place, is_copy=False))
        matches = filter(None, map(LINE.fullmatch, _lines(self.path, is_copy=False)))
        ours = [line[0] for line in matches if line[3] == name and int(line[1]) <= up_to and line[0] not in there]
        append_lines(place, "".join(f"{line}\n" for line in ours).encode(), is_synced=True)

    def named(self, view: Transaction) -> str:
        """Several stores may lie in one folder, and a database may be dropped and made again."""
        if self._name is None:
            self._name = json.dumps(self._store if view.is_sqlite else f"{self._store}#{view.one(DATABASE, {})[0]}")
        return self._name

    def _write(self, path: Path, text: str) -> bool:
        try:
            append_lines(path, f"{text}\n".encode(), is_synced=True)
        except OSError:
            return False  # what was decided stands: it is on disk already, and only has one witness less
        return True


def _lines(path: Path, *, is_copy: bool) -> list[str]:
    try:
        return path.read_text(encoding="utf-8", errors="replace").splitlines()
    except OSError as error:
        if isinstance(error, FileNotFoundError) and not is_copy:
            return []
        why = error.strerror or str(error)
        raise StoreError(f"file {path}", why=why, remedy="make it readable, or move it away") from error


def _seal(key: bytes, text: str) -> str:
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


GENESIS = "0" * 64
PAGE = 1000
SEALED_BY = "HOLDFAST_SEAL_KEY"  # the environment names the file with the key
UNPROVEN = "compare with an exported copy; decisions after that place are not proven"
OTHERWISE = f"{UNPROVEN}; where an older copy was put back on purpose, move that file away"
_c = schema.ledger.c
ANY_DECISION = select(_c.seq).where(among(_c.kind, "release", "account")).limit(1)
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
    tx.entry = (seq, str(values["sha256"]))
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

    def verify(self, *, key: bytes | None = None, copy: Path | None = None) -> int:
        """The number of entries, or StoreCorrupt with the first place where the chain is broken.

        With a key its last entry must be sealed; `copy` is one of the file beside the store, kept elsewhere."""
        # Before the chain: of what is noted later, nothing is missing now.
        anchors = self._db.reading(lambda view: self._checkpoints.of(view, key=key, copy=copy))
        noted = dict[int, list[str]]()
        for anchor in anchors:
            noted.setdefault(anchor.seq, []).append(anchor.sha256)
        sealed = max((anchor.seq for anchor in anchors if anchor.seal is not None), default=0)
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
        if key is not None and sealed < expected - 1:
            why = f"entries {sealed + 1} to {expected - 1} are not sealed: nothing shows whether they were written anew"
            remedy = f"look at them, then 'holdfast store seal'; {SEALED_BY} seals from the start"
            raise StoreCorrupt("ledger", why=why, remedy=remedy)
        return expected - 1

    def unnoted(self) -> str | None:
        """What is wrong where there are decisions, and no line about this store tells of any."""
        if self._db.engine.name != "sqlite":  # a database that was restored from a dump has another name
            return None
        if self._db.reading(self._checkpoints.of) or self._db.one(ANY_DECISION, {}) is None:
            return None
        why = f"{self._checkpoints.path} has no line about this store: it was deleted, or the store came without it"
        return f"ledger: {why}; put it back, or compare with a copy by --anchors FILE"

    def has_checkpoints_of(self, place: Path) -> bool:
        """Whether another `ledger.anchors` tells nothing of this store that its own does not."""
        return self._db.reading(lambda view: self._checkpoints.covers(view, place))

    def copy_checkpoints(self, place: Path, *, up_to: int) -> None:
        """Copy the lines of `ledger.anchors` for a copy of the store whose last entry is `up_to`.

        A later line would say that the end of the copy's ledger was cut off."""
        self._db.reading(lambda view: self._checkpoints.copy(view, place, up_to=up_to), again=False)

    def seal(self, key: bytes, witness: Path | None = None) -> str:
        """Verify the chain, then seal its last entry; the line that was written. BadInput after a seal of another key:
        a check with either key would call the other's lines forged."""
        self.verify()
        try:
            self._db.reading(lambda view: self._checkpoints.of(view, key=key))
        except StoreCorrupt as error:
            remedy = (
                f"give that key; to change it, keep {self._checkpoints.path} elsewhere for --anchors, and seal again"
            )
            raise BadInput("seal key", why=error.why, remedy=remedy) from None
        last = self._db.one(LAST, {})
        if last is None:
            raise NotFound("ledger", why="has no entries", remedy="there is nothing to seal yet")
        return self._db.reading(lambda view: self._checkpoints.seal(view, last[0], last[1], key, witness), again=False)

    def _pages(self) -> Iterator[Any]:
        after = 0
        while page := self._db.all(AFTER, {"after": after, "most": PAGE}):
            yield from page
            after = page[-1][0]
