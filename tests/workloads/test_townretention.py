"""How long what towns leave behind is kept: only what is surely a town's goes, and only when it is old."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import DEMONSTRATIONS, FOLDER
from holdfast.contracts.run import RunState
from holdfast.store.store import Store, open_store
from holdfast.workloads import townretention as retention
from holdfast.workloads.townaudit import AuditFile, read_audit
from holdfast.workloads.townlife import Life, new_recording
from holdfast.workloads.townretention import DAY_S, TownRetention, expired_files, kind_of
from tests.learn.test_school import SCHOOL, school
from tests.pipeline.scene import ran
from tests.town.small import small

NOW = 1_800_000_000.0


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """One file of each kind and some that are nobody's, all 100 days old; orders of yesterday and of last year."""
    life = Life(small(), seed=1)
    with new_recording(tmp_path / "a.frames", life) as recording:
        for _ in range(3):
            life.step()
            recording.add(life.frame())
    life.save(tmp_path / "a.npz")
    life.write_script(tmp_path / "a.replay")
    audit = AuditFile(tmp_path / "audit.jsonl")
    for days, what in ((365.0, "order"), (364.0, "window"), (1.0, "order")):
        audit.add({"at": NOW - days * DAY_S, "what": what, "stage": "needs", "green": True, "who": "ann"})
    (tmp_path / "audit.jsonl.torn").write_bytes(b"{")
    (tmp_path / "notes.txt").write_text("mine")
    (tmp_path / "list.json").write_text("[1, 2]")
    (tmp_path / "other.zip").write_bytes(b"PK but no snapshot")
    (tmp_path / "inner").mkdir()
    for path in tmp_path.iterdir():
        os.utime(path, (NOW - 100 * DAY_S, NOW - 100 * DAY_S))
    (tmp_path / "link.frames").symlink_to(tmp_path / "a.frames")
    return tmp_path


def test_files_are_known_by_what_is_in_them(folder: Path) -> None:
    assert {path.name: kind_of(path) for path in folder.iterdir() if path.is_file() and not path.is_symlink()} == {
        "a.frames": "recording", "a.npz": "snapshot", "a.replay": "replay", "audit.jsonl": "orders",
        "audit.jsonl.torn": "torn", "notes.txt": None, "list.json": None, "other.zip": None,
    }  # fmt: skip


def test_what_is_older_than_it_is_kept_goes_and_nothing_else(folder: Path) -> None:
    usual = {one.kind: one for one in expired_files(folder, TownRetention(), now=NOW)}
    assert set(usual) == {"recording", "orders", "torn"}  # snapshots are kept for half a year
    assert round(usual["recording"].days) == 100 and usual["orders"].count == 1 and usual["recording"].size > 0
    strict = TownRetention(snapshots=30.0)
    for one in expired_files(folder, strict, now=NOW):
        retention.remove(one, strict, who="ann", now=NOW)
    left = {path.name for path in folder.iterdir()}
    assert left == {"audit.jsonl", "notes.txt", "list.json", "other.zip", "inner", "link.frames"}
    entries = read_audit(folder / "audit.jsonl")
    assert [entry["what"] for entry in entries] == ["forgotten", "window", "order"]  # stages rest on windows
    assert not list(expired_files(folder, strict, now=NOW))


def test_days_have_to_be_days() -> None:
    with pytest.raises(BadInput, match="retention.recordings = -1: must be a number of days from 0 on"):
        TownRetention(recordings=-1)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Store]:
    with open_store(tmp_path / "store.db", create=True) as opened:
        yield opened


async def test_demonstrations_of_a_finished_school_go_and_its_weights_stay(store: Store) -> None:
    practice = replace(SCHOOL.practice, updates=4, step_updates=4, warmup=1)
    status = await ran(store, school(algorithm=replace(SCHOOL, rounds=1, practice=practice)))
    assert status.run_state is RunState.COMPLETED
    ended = store.runs.get(status.run_id).ended_at
    assert ended is not None
    keep = TownRetention(demonstrations=10.0)
    assert retention.expired_demonstrations(store, keep, now=ended + 9 * DAY_S) == []
    ((run, found),) = retention.expired_demonstrations(store, keep, now=ended + 11 * DAY_S)
    assert run == status.run_id and found.count == 2 and found.size > 0  # of the clone, and of a round of DAgger
    retention.remove_demonstrations(store, run, who="ann", now=ended + 11 * DAY_S)
    assert retention.expired_demonstrations(store, keep, now=ended + 11 * DAY_S) == []
    folders = [store.folder / FOLDER / one.id for one in store.checkpoints.of_run(run)]
    assert all(store.files.get(f"{FOLDER}/{folder.name}") == folder for folder in folders)
    assert not [folder for folder in folders if (folder / DEMONSTRATIONS).exists()]
    (entry,) = [one for one in store.ledger.entries(run=run) if one.kind == "retention"]
    assert entry.body == {"run": run, "demonstrations": 2} and entry.who == "ann"
