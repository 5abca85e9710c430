"""Blobs: files named by their content; whole or not there, and never taken at their word."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from holdfast.contracts.errors import NotFound, StoreCorrupt, StoreFull
from holdfast.store.artifacts import write_atomically
from holdfast.store.store import Store
from tests.store.children import run_child

DATA = b"\x00weights\xff" * 1000
NAME = hashlib.sha256(DATA).hexdigest()


def file_of(store: Store, sha256: str) -> Path:
    return store.blobs.folder / sha256[:2] / sha256[2:]


def everything_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_what_is_put_comes_back(store: Store) -> None:
    assert store.blobs.put(DATA, now=1.0) == NAME
    assert store.blobs.get(NAME) == DATA
    assert store.blobs.put(b"", now=1.0) == hashlib.sha256(b"").hexdigest()
    assert list(store.blobs.broken()) == []


def test_the_same_content_is_kept_once(store: Store) -> None:
    assert store.blobs.put(DATA, now=1.0) == store.blobs.put(DATA, now=2.0)
    assert everything_in(store.blobs.folder) == [file_of(store, NAME)]


@pytest.mark.parametrize(
    "damage",
    [
        lambda path: path.write_bytes(DATA[:-1]),  # cut short
        lambda path: path.write_bytes(b""),  # emptied
        lambda path: path.write_bytes(DATA[:-1] + b"!"),  # one byte
        lambda path: path.write_bytes(DATA + b"!"),  # grown
    ],
)
def test_a_damaged_file_is_found_and_put_right_by_putting_it_again(store: Store, damage: object) -> None:
    store.blobs.put(DATA, now=1.0)
    store.blobs.put(b"another, unharmed", now=1.0)
    path = file_of(store, NAME)
    damage(path)  # type: ignore[operator]
    with pytest.raises(StoreCorrupt) as found:
        store.blobs.get(NAME)
    assert str(found.value) == f"blob {path}: its content does not match its name; restore it from a copy"
    assert list(store.blobs.broken()) == [str(found.value)]
    store.blobs.put(DATA, now=2.0)
    assert store.blobs.get(NAME) == DATA


def test_a_size_that_is_not_the_recorded_one_is_found(store: Store) -> None:
    store.blobs.put(DATA, now=1.0)
    connection = store.db.engine.connect(read_only=False)
    connection.execute("UPDATE blobs SET size = 1")
    connection.close()
    assert list(store.blobs.broken()) == [f"blob {NAME[:12]}: {len(DATA)} bytes on disk, 1 recorded"]


def test_a_missing_file_is_found(store: Store) -> None:
    store.blobs.put(DATA, now=1.0)
    path = file_of(store, NAME)
    path.unlink()
    with pytest.raises(NotFound) as found:
        store.blobs.get(NAME)
    assert str(found.value) == f"blob {NAME[:12]}: no file {path}; restore it from a copy"
    assert list(store.blobs.broken()) == [str(found.value)]


FULL = """
import resource, sys
from pathlib import Path
from holdfast.contracts.errors import StoreFull
from holdfast.store.store import open_store

with open_store(sys.argv[1], state_folder=Path(sys.argv[2])) as store:
    store.blobs.put(b"small", now=1.0)
    resource.setrlimit(resource.RLIMIT_FSIZE, (200_000, resource.RLIM_INFINITY))
    try:
        store.blobs.put(b"x" * 300_000, now=1.0)
    except StoreFull as error:
        print(error.remedy)
    print(len(list(store.blobs.broken())))
"""


def test_a_full_disk_leaves_neither_half_a_file_nor_a_record(url: str, tmp_path: Path) -> None:
    assert run_child(FULL, url, str(tmp_path)).splitlines() == ["make room, or choose another place", "0"]
    folder = (Path(url).parent if "://" not in url else tmp_path) / "blobs"
    assert [path.read_bytes() for path in everything_in(folder)] == [b"small"]


def test_a_file_is_replaced_as_a_whole(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "status.json"
    for content in (b"first", b"second, longer", b"3"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert everything_in(tmp_path) == [path]


def test_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    path = tmp_path / "file" / "below"
    with pytest.raises(StoreFull) as refused:
        write_atomically(path, b"x")
    assert str(refused.value).startswith(f"file {path}: ")
