"""Copies of a store: made while it is in use, whole or not there, and sound wherever they are put."""

from __future__ import annotations

import hashlib
import random
import signal
import threading
import time
from pathlib import Path

import pytest

from holdfast.contracts.artifacts import Artifact
from holdfast.contracts.errors import BadInput, StoreError
from holdfast.store.backup import copy_store
from holdfast.store.store import open_store
from tests.conftest import Clock, Databases, Files
from tests.store.children import start_child
from tests.store.scene import checkpoint, problems
from tests.store.tamper import damage
from tests.store.test_admin import played

COPYING = """
import sys
from holdfast.store.backup import copy_store
from holdfast.store.store import open_store

with open_store(sys.argv[1], create=False) as store:
    print("ready", flush=True)
    copy_store(store, sys.argv[2])
"""


def filled(url: str, clock: Clock) -> str:
    """A store with a finished run, blobs, weights, reports, a key and overrides; its address."""
    with open_store(url) as store:
        played(store, clock, "a", 3)
        for n in range(40):
            store.blobs.put(bytes([n]) * 5000, now=1.0)
        (store.folder / "scrub.key").write_text("k" * 64)
        (store.folder / "training-config-overrides.json").write_text("{}")
        (store.reports / "proof").mkdir(parents=True)
        (store.reports / "proof" / "summary.json").write_text("{}")
        weights = store.folder / "checkpoints" / "c"
        weights.mkdir(parents=True)
        (weights / "model.safetensors").write_bytes(b"weights")
        artifact = Artifact(uri="checkpoints/c", sha256=hashlib.sha256(b"weights").hexdigest())
        store.checkpoints.add(checkpoint(artifact=artifact), now=1.0).result()
    return url


def test_a_copy_made_while_others_write_is_a_sound_store_of_one_moment(
    files: Files, clock: Clock, tmp_path: Path
) -> None:
    url, is_over = filled(files.fresh(), clock), threading.Event()
    with open_store(url) as store, open_store(url) as writing:

        def write() -> None:
            while not is_over.is_set():
                writing.ledger.append("note", {"text": "x" * 500}, who="t", now=1.0).result()

        thread = threading.Thread(target=write)
        thread.start()
        try:
            time.sleep(0.05)
            made = [copy_store(store, str(tmp_path / str(n) / Path(url).name)) for n in range(5)]
        finally:
            is_over.set()
            thread.join()
    assert made[0].ledger_entries < made[-1].ledger_entries
    for one in made:
        with open_store(one.copy, create=False, migrate=False) as copy:
            assert problems(copy) == [] and copy.ledger.verify() == one.ledger_entries
        folder = Path(one.copy).parent
        assert (folder / "reports/proof/summary.json").is_file() and (folder / "scrub.key").read_text() == "k" * 64
        assert (folder / "training-config-overrides.json").is_file()


def test_a_copy_that_is_put_back_goes_on_where_the_store_was(files: Files, clock: Clock, tmp_path: Path) -> None:
    url, state = filled(files.fresh(), clock), tmp_path / ".holdfast" / "training"
    name = Path(url).name
    with open_store(url) as store:
        kept = copy_store(store, str(tmp_path / "kept" / name))
    with open_store(kept.copy) as store:
        back = copy_store(store, str(state / name))
    assert back.ledger_entries == kept.ledger_entries and (tmp_path / ".holdfast/reports/proof").is_dir()
    with open_store(back.copy, create=False, migrate=False) as store:
        played(store, clock, "b", 2)
        assert problems(store) == [] and store.ledger.verify() > back.ledger_entries


def test_a_copy_takes_the_lines_about_its_own_store_and_none_that_came_later(
    files: Files, clock: Clock, tmp_path: Path
) -> None:
    url, other = files.fresh(), files.fresh()  # in one folder, so that they share ledger.anchors
    for one in (url, other):
        with open_store(one) as store:
            played(store, clock, "a", 1)
    with open_store(url) as store:
        made = copy_store(store, str(tmp_path / "kept" / Path(url).name))
        anchors = (tmp_path / "kept" / "ledger.anchors").read_text()
        assert Path(other).name not in anchors and len(anchors.splitlines()) == made.ledger_entries
        store.ledger.append("note", {}, who="t", now=1.0).result()
    with open_store(made.copy) as copy:
        assert copy.ledger.verify() == made.ledger_entries


def test_what_cannot_be_copied_is_refused_before_anything_is_written(
    files: Files, databases: Databases, clock: Clock, tmp_path: Path
) -> None:
    url = filled(files.fresh(), clock)
    name, tmp_path = Path(url).name, tmp_path / "places"
    (tmp_path / "other").mkdir(parents=True)
    (tmp_path / "other" / "scrub.key").write_text("z" * 64)
    with open_store(url) as store:
        for target, why in (
            (tmp_path / "renamed.sqlite", "ledger.anchors knows this store as"),
            (Path(url), "of another store is there; choose another folder, or move that one away"),
            (tmp_path / "other" / name, "is the key of another store"),
            (store.reports / "kept" / name, "lies among the reports that it would copy"),
        ):
            with pytest.raises(BadInput, match=why):
                copy_store(store, str(target))
        with pytest.raises(BadInput, match="Postgres has its own tools"):
            copy_store(store, "postgresql://u@127.0.0.1/x")
        (tmp_path / "file").write_text("")
        with pytest.raises(StoreError, match="Not a directory"):
            copy_store(store, str(tmp_path / "file" / name))
    with open_store(databases.fresh(), state_folder=tmp_path) as store, pytest.raises(BadInput, match="pg_dump"):
        copy_store(store, str(tmp_path / "x" / name))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "other"]


@pytest.mark.parametrize("end", ["-wal", "-journal"])
def test_the_log_of_a_store_that_was_moved_away_is_not_taken_for_the_copys(
    files: Files, clock: Clock, tmp_path: Path, end: str
) -> None:
    url = filled(files.fresh(), clock)
    target = tmp_path / "back" / Path(url).name
    target.parent.mkdir()
    left = target.with_name(target.name + end)
    with open_store(url) as store:
        store.ledger.append("note", {"text": "y" * 5000}, who="t", now=1.0).result()
        left.write_bytes(Path(f"{url}-wal").read_bytes())
        with pytest.raises(BadInput, match=f"{left.name} of another store is there; choose another folder"):
            copy_store(store, str(target))
    assert [path.name for path in target.parent.iterdir()] == [left.name]


@pytest.mark.parametrize("change", [
    "UPDATE checkpoints SET uri = '../../outside'",
    "UPDATE blobs SET sha256 = '../../../outside' WHERE size = 5000 AND sha256 = (SELECT max(sha256) FROM blobs)",
])  # fmt: skip
def test_a_forged_backup_puts_nothing_outside_of_the_stores_folder(
    files: Files, clock: Clock, tmp_path: Path, change: str
) -> None:
    url = filled(files.fresh(), clock)
    with open_store(url) as store:
        forged = copy_store(store, str(tmp_path / "a/b/forged" / Path(url).name)).copy
    (tmp_path / "a" / "outside").write_text("evil")
    with open_store(forged) as store:
        damage(store, change)
        with pytest.raises(BadInput, match="outside of the store's folder"):
            copy_store(store, str(tmp_path / "home/state/training" / Path(url).name))
    assert not (tmp_path / "home" / "outside").exists()


def test_a_damaged_store_can_be_copied_before_anything_else(files: Files, clock: Clock, tmp_path: Path) -> None:
    url = filled(files.fresh(), clock)
    target = str(tmp_path / "kept" / Path(url).name)
    with open_store(url) as store:
        damage(store, "DELETE FROM pulse WHERE topic = 'commits'", "UPDATE blobs SET sha256 = x'ff' WHERE sha256 < '1'")
        copy_store(store, target)
    with open_store(target, create=False, migrate=False) as copy:
        assert any("counter commits" in problem for problem in problems(copy))


def test_a_copy_that_is_killed_is_not_there_and_the_next_call_makes_it(
    files: Files, clock: Clock, tmp_path: Path
) -> None:
    url, rng, kills = filled(files.fresh(), clock), random.Random(1), 0
    target = tmp_path / "kept" / Path(url).name
    for _ in range(8):
        child = start_child(COPYING, url, str(target))
        assert child.stdout is not None and child.stdout.readline() == "ready\n"
        time.sleep(rng.uniform(0.0, 0.02))
        child.send_signal(signal.SIGKILL)
        kills += child.wait() == -signal.SIGKILL
        if target.exists():
            break
    assert kills
    if not target.exists():
        with open_store(url) as store:
            copy_store(store, str(target))
    with open_store(str(target), create=False, migrate=False) as copy:
        assert problems(copy) == []
    assert not list(target.parent.glob(".*.copy"))
