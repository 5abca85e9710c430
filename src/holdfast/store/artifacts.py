"""Files and what refers to them: blobs by hash, artifacts in the store's folder, checkpoints, resource versions.

A file is written aside, synced, renamed, and only then recorded.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path, PurePath
from typing import Any, BinaryIO

from sqlalchemy import bindparam, func, select, text

from holdfast.contracts.artifacts import MANIFEST, Artifact, Artifacts, content_hash, sync
from holdfast.contracts.errors import BadInput, Conflict, Lost, NotFound, StoreCorrupt, StoreError, StoreFull
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import dumps
from holdfast.contracts.run import ResourceVersion
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.ledger import OfProject
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, canonical, given, into, to_json
from holdfast.store.writer import WriteFuture

_blobs = schema.blobs.c
RECORD = into(schema.blobs, "sha256", created_at=bindparam("now"))
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
        recorded = {"sha256": sha256, "size": len(data), "now": now}
        self._db.write(lambda tx: tx.run(RECORD, recorded) and None).result()
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

    def _path(self, sha256: str) -> Path:
        return self.folder / sha256[:2] / sha256[2:]


def sha256_of(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _torn(path: Path) -> StoreCorrupt:
    return StoreCorrupt(f"blob {path}", why="its content does not match its name", remedy="restore it from a copy")


def write_atomically(path: Path, data: bytes) -> None:
    """The whole content or nothing, whatever is killed when."""
    try:
        with replacing(path) as file:
            file.write(data)
    except OSError as error:
        why, remedy = error.strerror or str(error), "make room, or choose another place"
        raise StoreFull(f"file {path}", why=why, remedy=remedy) from error


ASIDE = ".aside"  # how the names end of what is being written


@contextmanager
def replacing(path: Path, *, mode: int = 0o644) -> Iterator[BinaryIO]:
    """Write aside, sync, rename; when the block fails, what was at the path before is still there.

    `mode` is as readable as the store: what is written aside is private at first. It is locked while it is written, so
    that the next writer can tell what a killed one left.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    prefix = f".{path.name[:20]}."
    _sweep(path.parent, prefix)
    descriptor, aside = _locked_file(path.parent, prefix)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
            Path(aside).replace(path)  # while it is locked: a sweep would take it
    except BaseException:
        Path(aside).unlink(missing_ok=True)
        raise
    sync(path.parent)


def _locked_file(folder: Path, prefix: str) -> tuple[int, str]:
    while True:
        descriptor, aside = tempfile.mkstemp(dir=folder, prefix=prefix, suffix=ASIDE)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if os.fstat(descriptor).st_nlink:
                return descriptor, aside
        except BlockingIOError:  # somebody takes it for a left one: the next name is as good
            pass
        except OSError:  # a file system without locks: nobody can lock it to sweep it, either
            return descriptor, aside
        os.close(descriptor)


def _sweep(folder: Path, prefix: str) -> None:
    """Remove what killed writers left: nobody has it locked any more."""
    with os.scandir(folder) as entries:
        left = [entry.path for entry in entries if entry.name.startswith(prefix) and entry.name.endswith(ASIDE)]
    for path in left:
        with suppress(OSError):  # somebody writes it, or it is not for us to remove
            descriptor = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
            try:
                fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
                Path(path).unlink()
            finally:
                os.close(descriptor)


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Hold a lock on a file, once nobody else does: another process of this machine, or another thread.

    The lock ends with its holder, killed or not. What a transaction can guard is guarded by that, on every machine.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"file {path}", why=error.strerror or str(error), remedy="make it writable") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)


@dataclass(frozen=True, slots=True)
class FolderArtifacts:
    root: Path

    def put(self, source: Path, uri: str) -> Artifact:
        target, parts = inside(self.root, uri), _parts(source)
        # The same may have been left by a try that was killed before it was recorded, or be in use: not to be torn.
        if not all(_holds(target / part, sha256) for part, sha256 in parts.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.{os.getpid()}")
            _remove(aside)
            shutil.move(source, aside)  # where it lies on another disk, this copies
            for path in (aside, *aside.rglob("*")):
                sync(path)
            _remove(target)
            aside.rename(target)
        else:
            _remove(source)
        sync(target.parent)
        return Artifact(uri=uri, sha256=parts[""])

    def get(self, ref: Artifact | str) -> Path:
        uri = ref if isinstance(ref, str) else ref.uri
        at = inside(self.root, uri)
        try:
            found = content_hash(at)
        except FileNotFoundError as error:
            why = f"{error.filename}: is missing"
        except (OSError, ValueError) as error:
            why = f"{error.filename}: {error.strerror}" if isinstance(error, OSError) else f"{at}: {error}"
        else:
            if isinstance(ref, str) or found == ref.sha256:
                return at
            why = f"{at} holds other weights than were recorded"
        raise Lost(f"artifact {uri}", why=why, remedy="restore it from a copy")


def inside(folder: Path, uri: str) -> Path:
    """Where the artifact lies in the store's folder; BadInput for one that would lie elsewhere."""
    if (name := PurePath(uri)).is_absolute() or ".." in name.parts:
        raise BadInput(f"artifact {uri}", why="lies outside of the store's folder", remedy="use a relative name")
    return folder / uri


def _parts(source: Path) -> dict[str, str]:
    """What proves it whole: the hash of each of its folders that has a manifest, or of the file that it is."""
    inner = [path.parent for path in source.rglob(MANIFEST)] if source.is_dir() else []
    return {str(path.relative_to(source)) if path != source else "": content_hash(path) for path in [source, *inner]}


def _holds(path: Path, sha256: str) -> bool:
    try:
        return content_hash(path) == sha256
    except (OSError, ValueError):
        return False


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


_checkpoints = schema.checkpoints.c
_my_checkpoints = given(_checkpoints, "project")
ADD = into(schema.checkpoints, "project", "id")
FIND_CHECKPOINT = select(_checkpoints.body, _checkpoints.run).where(_my_checkpoints, given(_checkpoints, "id"))
OF_RUN = select(_checkpoints.body).where(given(_checkpoints, "run")).order_by(_checkpoints.key)


class Checkpoints(OfProject):
    def __init__(self, db: Db, runs: Runs) -> None:
        super().__init__(db, runs.project)
        self._runs = runs

    def add(self, checkpoint: Checkpoint, run: str | None = None, *, now: float) -> WriteFuture[None]:
        """Keep the record; again is harmless, other content under the same id a Conflict. Its parent must be there."""
        return self._db.write(self.adding(checkpoint, run, now=now))

    def adding(self, checkpoint: Checkpoint, run: str | None, *, now: float) -> Callable[[Transaction], None]:
        """The same as an effect of somebody else's transaction."""
        key = None if run is None else self._runs.key(run)
        artifact, body = checkpoint.artifact, dumps(checkpoint)
        values: dict[str, Any] = self._of(id=checkpoint.id, run=key, body=body)
        values |= {"parent": checkpoint.parent, "uri": None, "sha256": None, "added_at": now}
        if artifact is not None:
            values |= {"uri": artifact.uri, "sha256": artifact.sha256}

        def operation(tx: Transaction) -> None:
            if checkpoint.parent is not None and self._row(tx, checkpoint.parent) is None:
                raise self._none(
                    f"checkpoint {checkpoint.parent}", f"add it before {checkpoint.id}, which grew from it"
                )
            if tx.run(ADD, values).rowcount == 0 and tuple(self._row(tx, checkpoint.id)) != (body, key):
                why = "is there already, with other content or of another run"
                raise Conflict(f"checkpoint {checkpoint.id}", why=why, remedy="give it another id")

        return operation

    def get(self, checkpoint_id: str) -> Checkpoint:
        row = self._db.reading(lambda view: self._row(view, checkpoint_id))
        if row is None:
            raise self._none(f"checkpoint {checkpoint_id}")
        return rows.checkpoint(row)

    def of_run(self, run: str) -> list[Checkpoint]:
        """In the order they were added."""
        return [rows.checkpoint(row) for row in self._db.all(OF_RUN, {"run": self._runs.key(run)})]

    def lineage(self, checkpoint_id: str) -> list[Checkpoint]:
        """From the root of the line to this one."""

        def look(view: Transaction) -> list[Checkpoint]:
            line: dict[str, Checkpoint] = {}
            wanted: str | None = checkpoint_id
            while wanted is not None:
                row = self._row(view, wanted)
                if wanted in line or (row is None and line):
                    why = f"its line does not lead to a root: {' <- '.join([*line, wanted])}"
                    raise StoreCorrupt(f"checkpoint {checkpoint_id}", why=why, remedy="run 'holdfast store check'")
                if row is None:
                    raise self._none(f"checkpoint {checkpoint_id}")
                line[wanted] = rows.checkpoint(row)
                wanted = line[wanted].parent
            return [*reversed(line.values())]

        return self._db.reading(look, snapshot=True)

    def _row(self, view: Transaction, checkpoint_id: str) -> Any:
        return view.one(FIND_CHECKPOINT, self._of(id=checkpoint_id))


def damage_of(checkpoint: Checkpoint, files: Artifacts) -> str | None:
    """Why its files are not what was recorded, its trainer's included; None: they are, or it has none of its own."""
    if checkpoint.artifact is None:
        return None
    try:
        at = files.get(checkpoint.artifact)
    except Lost as lost:
        return lost.why
    try:
        if (at / "trainer").is_dir():
            content_hash(at / "trainer")
    except (OSError, ValueError) as error:
        return f"{at}: {error.strerror if isinstance(error, OSError) else error}"
    return None


_versions = schema.resources.c
_my_versions = given(_versions, "project")
SAME = select(schema.resources).where(_my_versions, given(_versions, "sha256"))
NUMBER = select(func.coalesce(func.max(_versions.version), 0) + 1).where(_my_versions)
PUBLISH = into(schema.resources)
GET_VERSION = select(schema.resources).where(_my_versions, given(_versions, "version"))
BODY = select(_versions.body).where(_my_versions, given(_versions, "version"))
LOCK = text("LOCK TABLE resources IN SHARE ROW EXCLUSIVE MODE")  # Postgres: numbers are given one at a time

MOST = 2**31 - 1  # what the column holds


class Versions(OfProject):
    def publish(self, resources: Mapping[str, Any], *, now: float) -> WriteFuture[ResourceVersion]:
        """The version with this content: the one that is there, or the next number."""
        body = canonical(to_json(resources))
        sha256 = hashlib.sha256(body.encode()).hexdigest()
        same = self._of(sha256=sha256)

        def operation(tx: Transaction) -> ResourceVersion:
            row = tx.one(SAME, same)
            if row is None and not tx.is_sqlite:
                tx.run(LOCK, {})
                row = tx.one(SAME, same)
            if row is None:
                version = tx.one(NUMBER, self._of())[0]
                tx.run(PUBLISH, {**same, "version": version, "body": body, "created_at": now})
                row = tx.one(SAME, same)
            return rows.resource_version(row)

        return self._db.write(operation)

    def get(self, version: int) -> ResourceVersion:
        is_number = 0 < version <= MOST
        row = self._db.one(GET_VERSION, self._of(version=version)) if is_number else None
        if row is None:
            raise self._none(f"resources-{version}")
        return rows.resource_version(row)
