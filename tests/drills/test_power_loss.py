"""The reader of traces finds an answer that came too early, in real traces and in spoilt ones."""

from __future__ import annotations

import os
import sqlite3
from pathlib import Path

import pytest

from tests.drills.faults.power_loss import examine, traced

HERE = "tests.drills.test_power_loss"


def careless(path: str) -> None:
    """A database that does not wait for the disk, and marks its answers all the same."""
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA journal_mode = WAL")
    connection.execute("PRAGMA synchronous = NORMAL")
    connection.execute("CREATE TABLE names (name)")
    marks = os.open(f"{path}.marks", os.O_WRONLY | os.O_CREAT | os.O_APPEND)
    for number in range(5):
        name = f"name-{number:05}"
        connection.execute("INSERT INTO names VALUES (?)", (name,))
        os.write(marks, name.encode())


def test_a_database_that_does_not_sync_is_caught(tmp_path: Path) -> None:
    found = examine(traced(tmp_path, HERE, "careless", str(tmp_path / "careless.db")))
    assert found.answers == 5
    assert found.problems == [f"name-{n:05} was answered before its commit was synced" for n in range(5)]


@pytest.fixture(scope="module")
def good(tmp_path_factory: pytest.TempPathFactory) -> str:
    folder = tmp_path_factory.mktemp("good")
    return traced(folder, "tests.drills.faults.power_loss", "mark", str(folder / "store.db"), "2", "3")


def test_a_store_that_syncs_passes(good: str) -> None:
    found = examine(good)
    assert (found.answers, found.problems) == (6, [])


@pytest.mark.parametrize(
    ("call", "why"),
    [
        ("fdatasync", "before its commit was synced"),
        ("pwrite64", "before it was in the log"),
    ],
)
def test_what_is_missing_from_a_trace_is_told(good: str, call: str, why: str) -> None:
    found = examine("".join(line for line in good.splitlines(keepends=True) if call not in line[:60]))
    assert found.answers == 6 and all(text.endswith(why) for text in found.problems) and len(found.problems) == 6


def test_a_sync_that_failed_is_none(good: str) -> None:
    error = "-1 EIO (Input/output error)"
    lines = [line.removesuffix("0") + error if "sync" in line else line for line in good.splitlines()]
    assert len(examine("\n".join(lines)).problems) == 6
