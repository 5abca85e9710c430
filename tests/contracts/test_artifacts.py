"""The kit of artifacts: the built-in kind passes, and each promise is broken once."""

from __future__ import annotations

import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact, check_artifacts, content_hash
from holdfast.store.artifacts import FolderArtifacts


@pytest.fixture
def scratch(tmp_path: Path) -> Path:
    (tmp_path / "scratch").mkdir()
    return tmp_path / "scratch"


def test_a_folder_keeps_what_the_kit_asks(tmp_path: Path, scratch: Path) -> None:
    check_artifacts(lambda: FolderArtifacts(tmp_path / "kept"), scratch)


class Trusting(FolderArtifacts):
    """Never looks at what it gives."""

    def get(self, ref: Artifact | str) -> Path:
        found = self.root / (ref if isinstance(ref, str) else ref.uri)
        return found if found.exists() else super().get(ref)


class Guessing(FolderArtifacts):
    def put(self, source: Path, uri: str) -> Artifact:
        super().put(source, uri)
        return Artifact(uri=uri, sha256=hashlib.sha256(uri.encode()).hexdigest())


class Forgetful(FolderArtifacts):
    """Has what was put only as long as it lives."""

    def __init__(self, root: Path) -> None:
        super().__init__(root / str(id(self)))


class Rude(FolderArtifacts):
    def get(self, ref: Artifact | str) -> Path:
        found = self.root / (ref if isinstance(ref, str) else ref.uri)
        if not found.exists():
            raise FileNotFoundError(found)
        return super().get(ref)


class Believing(FolderArtifacts):
    """Looks at what is there when it is asked for something else, and believes its own records."""

    def get(self, ref: Artifact | str) -> Path:
        at = self.root / (ref if isinstance(ref, str) else ref.uri)
        return at if at.exists() and isinstance(ref, Artifact) and PUT.get(ref.uri) == ref else super().get(ref)

    def put(self, source: Path, uri: str) -> Artifact:
        PUT[uri] = super().put(source, uri)
        return PUT[uri]


PUT: dict[str, Artifact] = {}


class Cleaning(FolderArtifacts):
    """Where one was damaged, away with the rest."""

    def put(self, source: Path, uri: str) -> Artifact:
        at = self.root / uri
        if at.exists() and content_of(at) == b"ono":
            for other in at.parent.iterdir():
                shutil.rmtree(other) if other.is_dir() else other.unlink()
        return super().put(source, uri)


def content_of(at: Path) -> bytes:
    return (at / "content" if at.is_dir() else at).read_bytes()


class Stubborn(FolderArtifacts):
    """What is there stays, damaged or not."""

    def put(self, source: Path, uri: str) -> Artifact:
        at = self.root / uri
        if not at.exists():
            return super().put(source, uri)
        proved = content_hash(source)
        shutil.rmtree(source) if source.is_dir() else source.unlink()
        return Artifact(uri=uri, sha256=proved)


WRONG: list[tuple[type[FolderArtifacts], str]] = [
    (Guessing, "does not prove what was put"),
    (Forgetful, "another process does not get what was put"),
    (Rude, "what was never put is got: FileNotFoundError is raised, not Lost"),
    (Trusting, "other bytes than the hash proves are got"),
    (Believing, "damaged bytes are got"),
    (Stubborn, "what was damaged cannot be put again"),
    (Cleaning, "putting one has changed another"),
]


@pytest.mark.parametrize(("kind", "says"), WRONG, ids=[kind.__name__ for kind, _ in WRONG])
def test_a_kind_that_breaks_a_promise_fails_the_kit(
    kind: type[FolderArtifacts], says: str, tmp_path: Path, scratch: Path
) -> None:
    with pytest.raises(AssertionError, match=says):
        check_artifacts(lambda: kind(tmp_path / "kept"), scratch)


def test_a_folder_is_proved_by_what_its_manifest_names(tmp_path: Path) -> None:
    (tmp_path / "w").write_bytes(b"weights")
    proved = hashlib.sha256(b"weights").hexdigest()
    manifests: list[tuple[Any, str]] = [
        ({"file": "w", "sha256": "0" * 64}, "is damaged"),  # another hash
        ([], "is no object"),
        ({}, "None"),  # names no file
    ]
    for manifest, says in manifests:
        (tmp_path / "manifest.json").write_text(json.dumps(manifest))
        with pytest.raises((ValueError, OSError), match=says):
            content_hash(tmp_path)
    (tmp_path / "manifest.json").write_text(json.dumps({"file": "w", "sha256": proved}))
    assert content_hash(tmp_path) == content_hash(tmp_path / "w") == proved
