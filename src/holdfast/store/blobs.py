"""Files by the hash of their content: written aside, synced, renamed, and only then recorded."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import NotFound, StoreCorrupt, StoreError, StoreFull
from holdfast.store import schema
from holdfast.store.db import Db

_c = schema.blobs.c
RECORD = (
    insert(schema.blobs)
    .values(sha256=bindparam("sha256"), size=bindparam("size"), created_at=bindparam("now"))
    .on_conflict_do_nothing(index_elements=["sha256"])
)
ALL = select(_c.sha256, _c.size).order_by(_c.sha256)


class Blobs:
    def __init__(self, db: Db, folder: Path) -> None:
        self._db, self.folder = db, folder

    def put(self, data: bytes, *, now: float) -> str:
        """Keep the bytes; their sha256. On disk when this returns."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        if not path.exists() or path.read_bytes() != data:  # a torn one is put right
            write_atomically(path, data)
        self._db.write(lambda tx: tx.run(RECORD, {"sha256": sha256, "size": len(data), "now": now}) and None).result()
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes, verified."""
        path = self._path(sha256)
        try:
            data = path.read_bytes()
        except FileNotFoundError:
            raise NotFound(f"blob {sha256[:12]}", why=f"no file {path}", remedy="restore it from a copy") from None
        if hashlib.sha256(data).hexdigest() != sha256:
            raise StoreCorrupt(
                f"blob {path}", why="its content does not match its name", remedy="restore it from a copy"
            )
        return data

    def broken(self) -> Iterator[str]:
        """What is wrong with recorded blobs, one sentence each."""
        for sha256, size in self._db.all(ALL, {}):
            try:
                data = self.get(str(sha256))  # in a damaged store it may be anything
            except StoreError as error:
                yield str(error)
            else:
                if len(data) != size:
                    yield f"blob {sha256[:12]}: {len(data)} bytes on disk, {size} recorded"

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256[2:]


def write_atomically(path: Path, data: bytes) -> None:
    """The whole content or nothing, whatever is killed when."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:20]}.")
        try:
            with os.fdopen(descriptor, "wb") as file:
                os.fchmod(file.fileno(), 0o644)  # as readable as the store; mkstemp makes it private
                file.write(data)
                file.flush()
                os.fsync(file.fileno())
            Path(aside).replace(path)
        except BaseException:
            Path(aside).unlink(missing_ok=True)
            raise
        folder = os.open(path.parent, os.O_RDONLY)
        try:
            os.fsync(folder)
        finally:
            os.close(folder)
    except OSError as error:
        raise StoreFull(
            f"file {path}", why=error.strerror or str(error), remedy="make room, or choose another place"
        ) from error
