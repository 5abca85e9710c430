"""Artifacts in the store's folder: whole or not at all, never torn while they are used, and nothing outside of it."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import BadInput, Lost
from holdfast.store.artifacts import FolderArtifacts


def saved(at: Path, content: bytes, note: str = "") -> Path:
    """A checkpoint with a trainer in it."""
    for folder in (at, at / "trainer"):
        folder.mkdir(parents=True)
        (folder / "w").write_bytes(content)
        manifest = {"file": "w", "sha256": hashlib.sha256(content).hexdigest(), "note": note}
        (folder / "manifest.json").write_text(json.dumps(manifest))
    return at


def test_the_same_that_is_there_is_left_alone_though_it_was_made_at_another_time(tmp_path: Path) -> None:
    files = FolderArtifacts(tmp_path / "kept")
    first = files.put(saved(tmp_path / "a", b"one", "earlier"), "checkpoints/c")
    assert files.put(saved(tmp_path / "b", b"one", "later"), "checkpoints/c") == first
    assert json.loads((files.get(first) / "manifest.json").read_text())["note"] == "earlier"
    assert not (tmp_path / "a").exists() and not (tmp_path / "b").exists()  # sources are used up


def test_a_damaged_part_of_it_is_replaced_with_all_the_rest(tmp_path: Path) -> None:
    files = FolderArtifacts(tmp_path / "kept")
    ref = files.put(saved(tmp_path / "a", b"one", "earlier"), "c")
    (files.get(ref) / "trainer" / "w").write_bytes(b"torn")
    files.put(saved(tmp_path / "b", b"one", "later"), "c")
    assert json.loads((files.get(ref) / "manifest.json").read_text())["note"] == "later"
    assert (files.get(ref) / "trainer" / "w").read_bytes() == b"one"
    assert [path.name for path in (tmp_path / "kept").iterdir()] == ["c"]


@pytest.mark.parametrize("uri", ["../outside", "/etc/passwd", "a/../../b"])
def test_a_name_that_leads_outside_of_the_folder_is_refused(uri: str, tmp_path: Path) -> None:
    with pytest.raises(BadInput, match="lies outside"):
        FolderArtifacts(tmp_path).get(uri)


def test_what_is_lost_says_where_it_should_be(tmp_path: Path) -> None:
    ref = Artifact(uri="checkpoints/c", sha256="0" * 64)
    with pytest.raises(Lost, match=r"artifact checkpoints/c: .*checkpoints/c: is missing"):
        FolderArtifacts(tmp_path).get(ref)
    saved(tmp_path / "checkpoints/c", b"one")
    with pytest.raises(Lost, match="holds other weights than were recorded"):
        FolderArtifacts(tmp_path).get(ref)
