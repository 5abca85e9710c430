"""The audit file of a town: JSON lines, each sealed with the one before it.

Several processes may write to one. What becomes too old is removed by `forget`, and that it was is an entry. What the
entries mean is the business of whoever writes them: orders, windows of stages, overrides.
"""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from io import FileIO
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import BadRecord, StoreError, boundary

FORGOTTEN = "forgotten"  # the entry of what was removed because it was old


class AuditFile:
    """A file of JSON lines, each with a seal over itself and the seal before.

    Several processes may write to one: each looks, while it holds the file, what the others have added since. A line
    that was never ended, as of a process that was killed, is kept aside, and that it was is an entry of its own."""

    def __init__(self, path: Path | None) -> None:
        self.path, self.count = path, 0
        self._first, self._last, self._end = "", "", 0  # seals of the first and last entry that we know; its end
        if path is not None:
            with boundary(StoreError, f"audit {path}"):
                path.parent.mkdir(parents=True, exist_ok=True)
                if path.exists():
                    with _held(path) as file:
                        self._catch_up(file)

    def add(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        if self.path is None:
            return self._sealed(entry)
        with boundary(StoreError, f"audit {self.path}"), _held(self.path) as file:
            self._catch_up(file)
            return self._put(file, entry)

    def forget(self, is_old: Callable[[Mapping[str, Any]], bool], *, who: str, at: float) -> int:
        """Removes old entries; how many. That they were removed is the first entry of the chain that is left: whoever
        writes to the file goes on with it."""
        from holdfast.store.artifacts import replacing

        assert self.path is not None
        with boundary(StoreError, f"audit {self.path}"), _held(self.path) as file:
            self._catch_up(file)
            file.seek(0)
            entries = _read(self.path, file.read(), last="", count=0)[0]
            kept = [entry for entry in entries if not is_old(entry)]
            removed = len(entries) - len(kept)
            if removed:
                before = {"removed": removed, "last_seal": self._last}
                self._first, self._last, self.count, self._end = "", "", 0, 0
                told = [{"at": at, "what": FORGOTTEN, "who": who, **before}, *kept]
                sealed = [self._sealed({name: one for name, one in entry.items() if name not in ("n", "seal")})
                          for entry in told]  # fmt: skip
                data = b"".join(json.dumps(entry).encode() + b"\n" for entry in sealed)
                with replacing(self.path, mode=0o600) as new:  # killed in the middle, it is as it was
                    new.write(data)
                self._first, self._end = sealed[0]["seal"], len(data)
        return removed

    def _catch_up(self, file: FileIO) -> None:
        """Reads what other processes have added; the file is locked meanwhile. Where another has removed what was old,
        it is read from its beginning."""
        assert self.path is not None
        file.seek(0)
        first = _entry(file.readline().rstrip(b"\n"), "", 0)
        if first is not None and first["seal"] != self._first:
            if self._end and first.get("what") == FORGOTTEN:
                self._last, self.count, self._end = "", 0, 0
            self._first = first["seal"]
        if file.seek(0, os.SEEK_END) < self._end:
            raise BadRecord(str(self.path), why="is shorter than it was", remedy="see who has changed the file")
        file.seek(self._end)
        entries, end, torn = _read(self.path, file.read(), last=self._last, count=self.count)
        if entries:
            self._last, self.count = entries[-1]["seal"], self.count + len(entries)
        self._end += end
        last = _entry(torn, self._last, self.count)
        if last is not None:  # whole but for its end
            _write_all(file, self._end + len(torn), b"\n")
            self._last, self.count, self._end = last["seal"], self.count + 1, self._end + len(torn) + 1
        elif torn:
            aside = self.path.with_name(f"{self.path.name}.torn")
            with aside.open("ab") as kept:
                kept.write(torn + b"\n")
            file.truncate(self._end)
            self._put(file, {"what": "torn", "bytes": len(torn), "kept": aside.name})

    def _put(self, file: FileIO, entry: Mapping[str, Any]) -> dict[str, Any]:
        before = (self._last, self.count)
        sealed = self._sealed(entry)
        line = json.dumps(sealed).encode() + b"\n"
        try:
            _write_all(file, self._end, line)
        except OSError:
            self._last, self.count = before  # what of it is there will be found torn, or whole, and then is the last
            raise
        self._end += len(line)
        return sealed

    def _sealed(self, entry: Mapping[str, Any]) -> dict[str, Any]:
        sealed = {"n": self.count, **entry}
        sealed["seal"] = self._last = _seal(self._last, sealed)
        self.count += 1
        return sealed


@contextmanager
def _held(path: Path) -> Iterator[FileIO]:
    """The file, locked until it is closed; it is created if missing. Whoever waited for one that has been replaced
    meanwhile takes the new one."""
    while True:
        with FileIO(os.open(path, os.O_RDWR | os.O_CREAT, 0o600), "r+") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            if not path.exists() or not os.path.samestat(os.fstat(file.fileno()), path.stat()):
                continue
            yield file
            return


def _write_all(file: FileIO, at: int, data: bytes) -> None:
    file.seek(at)
    left = memoryview(data)
    while left:
        left = left[file.write(left) :]
    os.fsync(file.fileno())


def _seal(last: str, entry: Mapping[str, Any]) -> str:
    text = json.dumps({key: value for key, value in entry.items() if key != "seal"}, sort_keys=True)
    return hashlib.sha256(f"{last}\n{text}".encode()).hexdigest()


def is_audit(first: Mapping[str, Any]) -> bool:
    """Whether a file begins with this entry that is an audit file of ours."""
    return first.get("n") == 0 and "what" in first and first.get("seal") == _seal("", first)


def read_audit(path: Path) -> list[dict[str, Any]]:
    """Every entry; refused where one was changed, removed or moved. An unfinished last line is ignored."""
    return _read(path, path.read_bytes(), last="", count=0)[0]


def _read(path: Path, data: bytes, *, last: str, count: int) -> tuple[list[dict[str, Any]], int, bytes]:
    """The entries after a seal, the offset of their end, and the bytes of an unfinished line."""
    entries: list[dict[str, Any]] = []
    whole, ended, torn = data.rpartition(b"\n")
    for number, line in enumerate(whole.split(b"\n") if ended else [], start=count):
        entry = _entry(line, last, number)
        if entry is None:
            raise BadRecord(f"{path}: line {number + 1}", why="its seal is broken", remedy="see who changed the file")
        last = entry["seal"]
        entries.append(entry)
    return entries, len(whole) + len(ended), torn


def _entry(line: bytes, last: str, number: int) -> dict[str, Any] | None:
    """The entry, if it follows `last` and is unchanged."""
    try:
        entry = json.loads(line)
        return entry if entry["seal"] == _seal(last, entry) and entry["n"] == number else None
    except (ValueError, KeyError, TypeError, AttributeError):
        return None
