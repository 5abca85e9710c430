"""Overrides: each kept upon the others, however many write at once; what nobody knows is not made up."""

from __future__ import annotations

import json
import threading
from pathlib import Path

import pytest

from holdfast.contracts.commands import Overrides
from holdfast.contracts.errors import BadRecord, StoreCorrupt
from holdfast.store.commands import OverridesFile


def test_each_is_kept_upon_the_others_in_the_documented_shape(tmp_path: Path) -> None:
    kept = OverridesFile(tmp_path, "default")
    assert kept.get() == Overrides()
    kept.put({"enabled": False, "update_interval_rollouts": 3}, now=1.0)
    assert kept.put({"enabled": True}, now=2.0) == {"enabled": True, "update_interval_rollouts": 3}
    assert kept.get() == Overrides(enabled=True, update_interval_rollouts=3)
    assert kept.path == tmp_path / "training-config-overrides.json"
    assert json.loads(kept.path.read_bytes()) == {
        "schema_version": 1, "updated_unix_ms": 2000,
        "pending_overrides": {"enabled": True, "update_interval_rollouts": 3},
    }  # fmt: skip
    with pytest.raises(BadRecord, match="must be a whole number above 0"):
        kept.put({"update_interval_rollouts": 0}, now=3.0)
    assert kept.get() == Overrides(enabled=True, update_interval_rollouts=3)
    assert OverridesFile(tmp_path, "other").get() == Overrides()  # one project does not hear another's


def test_of_two_who_write_at_once_neither_is_lost(tmp_path: Path) -> None:
    names = ("update_interval_rollouts", "max_rollouts_per_update")
    lost: list[str] = []

    def write(name: str) -> None:
        for value in range(1, 40):
            kept = OverridesFile(tmp_path, "default")
            kept.put({name: value}, now=1.0)
            if getattr(kept.get(), name) != value:
                lost.append(f"{name} = {value}")

    threads = [threading.Thread(target=write, args=(name,)) for name in names]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not lost


def test_a_file_of_before_is_read_and_a_broken_one_is_named(tmp_path: Path) -> None:
    kept = OverridesFile(tmp_path, "default")
    kept.path.write_text('{"pending_overrides": {"enabled": false, "store_path": "x", "max_failure_streak": 3}}')
    assert kept.get() == Overrides(enabled=False)
    for text in ("{", "[]", '{"pending_overrides": 5}', '{"pending_overrides": {"enabled": 1}}'):
        kept.path.write_text(text)
        with pytest.raises(StoreCorrupt, match="is not what was written"):
            kept.get()
