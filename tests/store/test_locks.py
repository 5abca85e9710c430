"""A lock on a file: one holder at a time, and none once the holder is gone."""

from __future__ import annotations

import threading
from pathlib import Path

import pytest

from holdfast.contracts.errors import StoreError
from holdfast.store.artifacts import locked


def test_of_many_one_holds_it_at_a_time(tmp_path: Path) -> None:
    path, counter = tmp_path / "folder" / "lock", tmp_path / "counter"
    counter.write_text("0")

    def count() -> None:
        for _ in range(50):
            with locked(path):
                counter.write_text(str(int(counter.read_text()) + 1))

    threads = [threading.Thread(target=count) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert counter.read_text() == "200"


def test_whoever_fails_lets_go_of_it(tmp_path: Path) -> None:
    with pytest.raises(ZeroDivisionError), locked(tmp_path / "lock"):
        raise ZeroDivisionError
    with locked(tmp_path / "lock"):
        pass


def test_where_no_file_can_be_made_that_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreError, match="make it writable"), locked(tmp_path / "file" / "lock"):
        pass
