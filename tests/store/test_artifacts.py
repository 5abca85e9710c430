"""Artifacts, blobs, checkpoints and resource versions: whole or not at all, kept once, and never changed."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Lost, NotFound, StoreCorrupt, StoreError, StoreFull
from holdfast.contracts.run import ResourceVersion
from holdfast.store.artifacts import FolderArtifacts, locked, replacing, write_atomically
from holdfast.store.sql import number
from holdfast.store.store import Store, open_store
from tests.conftest import Clock
from tests.store.children import run_child
from tests.store.scene import at_once, begin, checkpoint, count, once, run_sql, says
from tests.store.tamper import damage


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


DATA = b"\x00weights\xff" * 1000
SHA256 = hashlib.sha256(DATA).hexdigest()


def file_of(store: Store, sha256: str) -> Path:
    return store.blobs.folder / sha256[:2] / sha256[2:]


def everything_in(folder: Path) -> list[Path]:
    return [path for path in folder.rglob("*") if path.is_file()]


def test_a_blob_comes_back_and_is_kept_once(store: Store) -> None:
    assert store.blobs.put(DATA, now=1.0) == store.blobs.put(DATA, now=2.0) == SHA256
    assert everything_in(store.blobs.folder) == [file_of(store, SHA256)]
    assert store.blobs.get(SHA256) == DATA
    assert store.blobs.put(b"", now=1.0) == hashlib.sha256(b"").hexdigest()
    assert list(store.blobs.broken()) == []


@once
@pytest.mark.parametrize(
    "torn", [DATA[:-1], b"", DATA[:-1] + b"!", DATA + b"!"], ids=["cut short", "emptied", "one byte", "grown"]
)
def test_a_damaged_file_is_found_and_put_right_by_putting_it_again(store: Store, torn: bytes) -> None:
    store.blobs.put(DATA, now=1.0)
    store.blobs.put(b"another, unharmed", now=1.0)
    path = file_of(store, SHA256)
    path.write_bytes(torn)
    said = f"blob {path}: its content does not match its name; restore it from a copy"
    with says(StoreCorrupt, said):
        store.blobs.get(SHA256)
    assert list(store.blobs.broken()) == [said]
    store.blobs.put(DATA, now=2.0)
    assert store.blobs.get(SHA256) == DATA


@once
def test_a_missing_file_and_one_of_another_size_than_was_recorded_are_found(store: Store) -> None:
    store.blobs.put(DATA, now=1.0)
    run_sql(store, "UPDATE blobs SET size = 1")
    assert list(store.blobs.broken()) == [f"blob {SHA256[:12]}: {len(DATA)} bytes on disk, 1 recorded"]
    path = file_of(store, SHA256)
    path.unlink()
    said = f"blob {SHA256[:12]}: no file {path}; restore it from a copy"
    with says(NotFound, said):
        store.blobs.get(SHA256)
    assert list(store.blobs.broken()) == [said]


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


@once
def test_a_full_disk_leaves_neither_half_a_file_nor_a_record(url: str, tmp_path: Path) -> None:
    assert run_child(FULL, url, str(tmp_path)).splitlines() == ["make room, or choose another place", "0"]
    assert [path.read_bytes() for path in everything_in(Path(url).parent / "blobs")] == [b"small"]


def test_a_file_is_replaced_as_a_whole_and_a_place_that_cannot_be_written_is_named(tmp_path: Path) -> None:
    path = tmp_path / "deep" / "status.json"
    for content in (b"first", b"second, longer", b"3"):
        write_atomically(path, content)
        assert path.read_bytes() == content
    assert everything_in(tmp_path) == [path]
    with pytest.raises(StoreFull, match=f"^file {path / 'below'}: "):
        write_atomically(path / "below", b"x")


def test_of_many_one_holds_a_lock_at_a_time_and_whoever_fails_lets_go_of_it(tmp_path: Path) -> None:
    path, counter = tmp_path / "folder" / "lock", tmp_path / "counter"
    counter.write_text("0")
    with pytest.raises(ZeroDivisionError), locked(path):
        raise ZeroDivisionError

    def add(_: int) -> None:
        for _ in range(50):
            with locked(path):
                counter.write_text(str(int(counter.read_text()) + 1))

    at_once(add, *range(4))
    assert counter.read_text() == "200"
    with pytest.raises(StoreError, match="make it writable"), locked(counter / "lock"):
        pass


def add_checkpoint(store: Store, name: str, run: str | None = None, **fields: Any) -> None:
    store.checkpoints.add(checkpoint(name, **fields), run, now=5.0).result()


def test_a_checkpoint_comes_back_and_the_database_never_changes_it(store: Store, clock: Clock) -> None:
    saved = Artifact(uri="file:///w", sha256="0123456789abcdef" * 4)
    notes = {"note": "Grüße \ud83d", "n": [1, 2.5, None]}
    whole = checkpoint("best", mean_reward=0.25, artifact=saved, metadata=notes)
    store.checkpoints.add(whole, begin(store, clock), now=5.0).result()
    assert store.checkpoints.get("best") == whole
    for column in ("project", "id", "parent", "uri", "sha256", "body"):
        with pytest.raises(Exception, match="a checkpoint is immutable"):
            run_sql(store, f"UPDATE checkpoints SET {column} = 'x'")


def test_the_checkpoints_of_a_run_come_in_their_order_and_a_line_leads_from_the_root(
    store: Store, clock: Clock
) -> None:
    mine, other = begin(store, clock), begin(store, clock)
    for name, run, parent in (("root", mine, None), ("a", None, "root"), ("c", other, "root"), ("d", mine, "a")):
        add_checkpoint(store, name, run, parent=parent)
    assert [one.id for one in store.checkpoints.of_run(mine)] == ["root", "d"]
    assert [one.id for one in store.checkpoints.of_run(other)] == ["c"]
    assert [one.id for one in store.checkpoints.lineage("d")] == ["root", "a", "d"]
    assert [one.id for one in store.checkpoints.lineage("root")] == ["root"]


def test_a_checkpoint_again_is_harmless_and_other_content_a_conflict(store: Store, clock: Clock) -> None:
    run = begin(store, clock)
    add_checkpoint(store, "c", run)
    add_checkpoint(store, "c", run)
    said = "checkpoint c: is there already, with other content or of another run; give it another id"
    for changed in ({"run": run, "global_step": 2}, {"run": None}, {"run": begin(store, clock)}):
        with says(Conflict, said):
            add_checkpoint(store, "c", **changed)  # type: ignore[arg-type]
    assert store.checkpoints.of_run(run) == [checkpoint("c")] and count(store, "checkpoints") == 1


def test_a_parent_comes_before_its_child(store: Store) -> None:
    said = "checkpoint root: there is none in project 'default'; add it before leaf, which grew from it"
    with says(NotFound, said):
        add_checkpoint(store, "leaf", parent="root")
    assert count(store, "checkpoints") == 0


def test_a_project_has_its_own_checkpoints_and_versions(store: Store, url: str, clock: Clock) -> None:
    add_checkpoint(store, "c")
    run = begin(store, clock)
    publish(store, {"p": "mine"}, clock)
    publish(store, {"p": "both"}, clock)
    with open_store(url, project="other") as elsewhere:
        for look in (elsewhere.checkpoints.get, elsewhere.checkpoints.lineage):
            with says(NotFound, "checkpoint c: there is none in project 'other'"):
                look("c")
        for given in ({"name": "leaf", "parent": "c"}, {"name": "c", "run": run}):
            with pytest.raises(NotFound):
                add_checkpoint(elsewhere, **given)  # type: ignore[arg-type]
        add_checkpoint(elsewhere, "c", global_step=7)
        assert publish(elsewhere, {"p": "both"}, clock).version == 1
        with says(NotFound, "resources-2: there is none in project 'other'"):
            elsewhere.versions.get(2)
    assert store.checkpoints.get("c").global_step == 1
    assert store.versions.get(2).resources == {"p": "both"} and count(store, "resources") == 3


@once
@pytest.mark.parametrize(
    ("statement", "line"),
    [
        ("DELETE FROM checkpoints WHERE id = 'root'", "leaf <- root"),
        (  # the root is its own grandchild
            "UPDATE checkpoints SET body = replace(body, '\"parent\":null', '\"parent\":\"leaf\"') WHERE id = 'root'",
            "leaf <- root <- leaf",
        ),
    ],
)
def test_a_damaged_line_is_called_so(store: Store, statement: str, line: str) -> None:
    add_checkpoint(store, "root")
    add_checkpoint(store, "leaf", parent="root")
    damage(store, statement)
    why = f"its line does not lead to a root: {line}"
    with says(StoreCorrupt, f"checkpoint leaf: {why}; run 'holdfast store check'"):
        store.checkpoints.lineage("leaf")


def publish(store: Store, resources: Any, clock: Clock) -> ResourceVersion:
    return store.versions.publish(resources, now=clock.now).result()


def test_versions_are_numbered_from_one_and_keep_their_content(store: Store, clock: Clock) -> None:
    resources = {"prompt": "Grüße 🐚 \ud83d", "nested": {"list": [1, 2.5, None, True]}}
    made = [publish(store, given, clock) for given in ({"p": "a"}, resources, {"p": "a"}, {"p": "c"})]
    assert [(one.id, one.version) for one in made] == [(f"resources-{n}", n) for n in (1, 2, 1, 3)]
    assert store.versions.get(2) == made[1]
    assert (made[1].resources, made[1].project, made[1].created_at) == (resources, "default", clock.now)
    with pytest.raises(BadRecord):
        store.versions.publish({"p": float("nan")}, now=1.0)
    with pytest.raises(Exception, match="a resource version is immutable"):
        run_sql(store, "UPDATE resources SET body = '{}'")
    for version in (0, -1, 4, 2**31, 99999999999999999999, -(2**70)):
        with says(NotFound, f"resources-{version}: there is none in project 'default'"):
            store.versions.get(version)


@once
@pytest.mark.parametrize(
    ("one", "other", "same"),
    [
        ({"a": 1, "b": 2}, {"b": 2, "a": 1}, True),  # the order of keys says nothing
        ({"p": {"x": 1, "y": [2]}}, {"p": {"y": [2], "x": 1}}, True),  # however deep
        ({"p": [1, 2]}, {"p": [2, 1]}, False),  # the order of a list does
        ({"p": 1}, {"p": True}, False),  # equal in Python, not in JSON
        ({"p": 1}, {"p": 1.0}, False),
        ({"p": "é"}, {"p": "e\u0301"}, False),  # looks alike
        ({}, {"p": None}, False),
    ],
)
def test_the_same_content_is_the_same_version(store: Store, clock: Clock, one: Any, other: Any, same: bool) -> None:
    first = publish(store, one, clock)
    clock.advance(5)
    second = publish(store, other, clock)
    assert (first == second) is (first.sha256 == second.sha256) is same
    assert count(store, "resources") == (1 if same else 2)


@pytest.mark.parametrize(
    ("text", "expected"),
    [("1", 1), ("999999999", 999999999), ("1234567890", None), ("9" * 5000, None)]
    + [(text, None) for text in ("", "0", "01", "-1", "+1", "1.0", "1_0", " 1", "²", "٣")],
)
def test_a_number_is_read_as_it_is_written(text: str, expected: int | None) -> None:
    assert number(text) == expected


KILLED = """
import os, sys
from pathlib import Path
from holdfast.store.artifacts import replacing
with replacing(Path(sys.argv[1])) as file:
    file.write(b"half")
    os._exit(0)
"""


def test_what_a_killed_writer_left_is_swept_by_the_next_and_what_is_being_written_stays(tmp_path: Path) -> None:
    path = tmp_path / "status.json"
    run_child(KILLED, str(path))
    assert [file.name[:13] for file in tmp_path.iterdir()] == [".status.json."]
    with replacing(path) as file:
        file.write(b"slow")
        write_atomically(path, b"quick")
        assert path.read_bytes() == b"quick" and len(list(tmp_path.iterdir())) == 2
    assert path.read_bytes() == b"slow" and list(tmp_path.iterdir()) == [path]


def test_a_sweep_between_the_last_byte_and_the_rename_takes_nothing(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path, rename = tmp_path / "status.json", Path.replace

    def swept_first(aside: Path, target: Path) -> Path:
        monkeypatch.undo()
        write_atomically(path, b"another's")  # it sweeps as it begins
        return rename(aside, target)

    monkeypatch.setattr(Path, "replace", swept_first)
    write_atomically(path, b"ours")
    assert path.read_bytes() == b"ours" and list(tmp_path.iterdir()) == [path]


def test_a_hidden_file_with_a_like_name_is_nobodys_remains(tmp_path: Path) -> None:
    (tmp_path / ".env.local").write_text("mine")
    write_atomically(tmp_path / "env", b"x")
    assert (tmp_path / ".env.local").read_text() == "mine"
