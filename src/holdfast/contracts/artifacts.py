"""The seam of artifacts: files too large for the store's records, put under a name and got back verified.

An artifact is a file, or a folder with a manifest (a checkpoint). Data that a step refers to by hash alone lies in the
store's blobs.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Protocol

from holdfast.contracts.checks import require
from holdfast.contracts.errors import HEX, Lost, check_fields

MANIFEST = "manifest.json"


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifact:
    """Where the bytes lie, and the hash that proves them."""

    uri: str
    sha256: str = field(metadata=HEX)

    def __post_init__(self) -> None:
        check_fields(f"artifact {self.uri}", self, filled=("uri",))


class Artifacts(Protocol):
    def put(self, source: Path, uri: str) -> Artifact:
        """Keep it under this name, which is relative: whole or not at all, and durable on return. The source is used
        up. The same that is there already stays as it is; anything else is replaced."""
        ...

    def get(self, ref: Artifact | str) -> Path:
        """Where it can be read, verified; Lost where it is missing or is not what was put. Of a name alone only the
        manifest says what was put."""
        ...


def content_hash(path: Path) -> str:
    """Of a file, its bytes; of a folder, the file that its manifest names, found to be as the manifest says.

    OSError where something is missing, ValueError where it is damaged."""
    if not path.is_dir():
        return _sha256(path)
    manifest = manifest_of(path)
    name, wanted = str(manifest.get("file")), str(manifest.get("sha256"))
    found = _sha256(path / Path(name).name)
    if found != wanted:
        raise ValueError(f"{name} is damaged: it hashes to {found[:12]}…, the manifest says {wanted:.12}…")
    return found


def manifest_of(folder: Path) -> Mapping[str, Any]:
    """What lies beside saved tensors."""
    manifest = json.loads((folder / MANIFEST).read_bytes())
    if not isinstance(manifest, dict):
        raise ValueError("its manifest is no object")
    return manifest


def _sha256(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def sync(path: Path) -> None:
    """Syncs a file, or a folder's entries, to disk."""
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)


def append_lines(path: Path, lines: bytes, *, is_synced: bool = False) -> None:
    """Appends whole lines to a file that several processes write; one that was killed while it wrote spoils no more
    than its own line."""
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        size = os.fstat(descriptor).st_size
        is_torn = size > 0 and os.pread(descriptor, 1, size - 1) != b"\n"
        os.write(descriptor, b"\n" + lines if is_torn else lines)
        if is_synced:
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


# The kit for whoever writes another kind


def check_artifacts(connect: Callable[[], Artifacts], scratch: Path) -> None:
    """What was put is got by anybody, is never other bytes than were put, and can be put right by putting it again.

    `connect` opens the same place anew, as another process would. `scratch` is an empty folder for sources."""
    for kind, source in (("file", _file), ("folder", _folder)):
        here, uri = connect(), f"kit/{kind}"
        ref = here.put(source(scratch / "one", b"one"), uri)
        proves = hashlib.sha256(b"one").hexdigest()
        require(ref == Artifact(uri=uri, sha256=proves), f"{kind}: {ref} does not prove what was put")
        other = here.put(source(scratch / "two", b"two"), f"{uri}-2")
        for asked in (ref, uri):
            _got(connect(), asked, b"one", f"{kind}: another process does not get what was put")
        require(here.put(source(scratch / "one", b"one"), uri) == ref, f"{kind}: the same again is another artifact")
        _lost(here, Artifact(uri=f"{uri}-3", sha256=proves), f"{kind}: what was never put is got")
        _lost(here, replace(ref, sha256=other.sha256), f"{kind}: other bytes than the hash proves are got")
        _content(here.get(ref)).write_bytes(b"ono")
        with suppress(Lost):  # a kind that has another copy may give that
            require(_content(connect().get(ref)).read_bytes() == b"one", f"{kind}: damaged bytes are got")
        here.put(source(scratch / "one", b"one"), uri)
        _got(connect(), ref, b"one", f"{kind}: what was damaged cannot be put again")
        _got(here, other, b"two", f"{kind}: putting one has changed another")


def _got(artifacts: Artifacts, ref: Artifact | str, content: bytes, says: str) -> None:
    try:
        require(_content(artifacts.get(ref)).read_bytes() == content, says)
    except Lost as lost:
        raise AssertionError(f"{says}: {lost}") from lost


def _lost(artifacts: Artifacts, ref: Artifact, says: str) -> None:
    try:
        artifacts.get(ref)
    except Lost:
        return
    except Exception as error:
        raise AssertionError(f"{says}: {type(error).__name__} is raised, not Lost") from error
    raise AssertionError(says)


def _file(at: Path, content: bytes) -> Path:
    at.write_bytes(content)
    return at


def _folder(at: Path, content: bytes) -> Path:
    at = at.with_name(f"{at.name}-folder")
    at.mkdir(parents=True)
    _file(at / "content", content)
    manifest = {"file": "content", "sha256": hashlib.sha256(content).hexdigest()}
    _file(at / MANIFEST, json.dumps(manifest).encode())
    return at


def _content(path: Path) -> Path:
    return path / "content" if path.is_dir() else path
