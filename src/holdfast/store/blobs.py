"""Files by the hash of their content: written aside, synced, renamed, and only then recorded."""

from __future__ import annotations

import hashlib
import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import NotFound, StoreCorrupt, StoreError, StoreFull
from holdfast.store import schema
from holdfast.store.db import Db

_blobs = schema.blobs.c
RECORD = (
    insert(schema.blobs)
    .values(sha256=bindparam("sha256"), size=bindparam("size"), created_at=bindparam("now"))
    .on_conflict_do_nothing(index_elements=["sha256"])
)
ALL = select(_blobs.sha256, _blobs.size).order_by(_blobs.sha256)


class Blobs:
    def __init__(self, db: Db, folder: Path) -> None:
        self._db, self.folder = db, folder

    def put(self, data: bytes, *, now: float) -> str:
        """Keep the bytes; their sha256. On disk when this returns."""
        sha256 = hashlib.sha256(data).hexdigest()
        path = self._path(sha256)
        if not path.exists() or path.read_bytes() != data:  # a torn one is put right
            write_atomically(path, data)
        self._record(sha256, len(data), now)
        return sha256

    def get(self, sha256: str) -> bytes:
        """The bytes, verified."""
        path = self.path(sha256)
        data = path.read_bytes()
        if hashlib.sha256(data).hexdigest() != sha256:
            raise _torn(path)
        return data

    def path(self, sha256: str) -> Path:
        """Where the file lies; whoever reads it verifies it."""
        path = self._path(sha256)
        if not path.is_file():
            raise NotFound(f"blob {sha256[:12]}", why=f"no file {path}", remedy="restore it from a copy")
        return path

    def broken(self) -> Iterator[str]:
        """What is wrong with recorded blobs, one sentence each."""
        for sha256, size in self._db.all(ALL, {}):
            try:
                path = self.path(str(sha256))  # in a damaged store it may be anything
                if sha256_of(path) != sha256:
                    raise _torn(path)
            except StoreError as error:
                yield str(error)
            else:
                if path.stat().st_size != size:
                    yield f"blob {sha256[:12]}: {path.stat().st_size} bytes on disk, {size} recorded"

    def _record(self, sha256: str, size: int, now: float) -> None:
        self._db.write(lambda tx: tx.run(RECORD, {"sha256": sha256, "size": size, "now": now}) and None).result()

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256[2:]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _torn(path: Path) -> StoreCorrupt:
    return StoreCorrupt(f"blob {path}", why="its content does not match its name", remedy="restore it from a copy")


def write_atomically(path: Path, data: bytes) -> None:
    """The whole content or nothing, whatever is killed when."""
    with _full(path), replacing(path) as file:
        file.write(data)


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write aside, sync, rename; when the block fails, what was at the path before is still there.

    `mode` is as readable as the store: what is written aside is private at first.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor, aside = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:20]}.")
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
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


@contextmanager
def _full(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        why, remedy = error.strerror or str(error), "make room, or choose another place"
        raise StoreFull(f"file {path}", why=why, remedy=remedy) from error
