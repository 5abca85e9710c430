"""Artifacts in a folder: the store's own, where checkpoints lie beside the records that name them."""

from __future__ import annotations

import os
import shutil
from dataclasses import dataclass
from pathlib import Path, PurePath

from holdfast.contracts.artifacts import MANIFEST, Artifact, content_hash
from holdfast.contracts.errors import BadInput, Lost


@dataclass(frozen=True, slots=True)
class FolderArtifacts:
    root: Path

    def put(self, source: Path, uri: str) -> Artifact:
        target, parts = self._at(uri), _parts(source)
        # The same may have been left by a try that was killed before it was recorded, or be in use: not to be torn.
        if not all(_holds(target / part, sha256) for part, sha256 in parts.items()):
            target.parent.mkdir(parents=True, exist_ok=True)
            aside = target.with_name(f".{target.name}.{os.getpid()}")
            _remove(aside)
            shutil.move(source, aside)  # where it lies on another disk, this copies
            for path in (aside, *aside.rglob("*")):
                _sync(path)
            _remove(target)
            aside.rename(target)
        else:
            _remove(source)
        _sync(target.parent)
        return Artifact(uri=uri, sha256=parts[""])

    def get(self, ref: Artifact | str) -> Path:
        uri = ref if isinstance(ref, str) else ref.uri
        at = self._at(uri)
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

    def _at(self, uri: str) -> Path:
        if (name := PurePath(uri)).is_absolute() or ".." in name.parts:
            raise BadInput(f"artifact {uri}", why="lies outside of the store's folder", remedy="use a relative name")
        return self.root / uri


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


def _sync(path: Path) -> None:
    opened = os.open(path, os.O_RDONLY)
    try:
        os.fsync(opened)
    finally:
        os.close(opened)
