"""Where the ledger stood at each decision about a release, in a file beside the store: a line each, only ever added.

The chain in the database shows a change in its middle, but neither that its end was cut nor that all of it was written
anew; whoever does that has this file to change too, or a copy of it that lies elsewhere. What was lost of its end in a
crash leaves those places unwatched, no more.
"""

from __future__ import annotations

import json
import os
import re
from pathlib import Path

from sqlalchemy import text

from holdfast.contracts.errors import StoreError
from holdfast.store.sql import Transaction

NAME = "ledger.anchors"
LINE = re.compile(r'(\d{1,18}) ([0-9a-f]{64}) (".*")')
DATABASE = text("SELECT oid FROM pg_database WHERE datname = current_database()")  # another one after a drop


class Anchors:
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
            descriptor = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT, 0o644)
            try:
                size = os.fstat(descriptor).st_size
                is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
                os.write(descriptor, b"\n" + line if is_torn else line)
                os.fsync(descriptor)
            finally:
                os.close(descriptor)
        except OSError:
            return  # the decision stands: it is on disk already, and only has one witness less
