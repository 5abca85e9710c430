"""A file is there whole or not at all."""

from __future__ import annotations

import os
import stat
import threading
from pathlib import Path

import pytest

from holdfast.cli.options import written_whole
from holdfast.contracts.errors import BadInput


def test_the_file_appears_with_its_whole_content_and_ordinary_rights(tmp_path: Path) -> None:
    path = tmp_path / "new" / "folder" / "report.md"
    with written_whole(path) as file:
        file.write("first\n")
        assert not path.exists()
        file.write("last ä\n")
    assert path.read_text(encoding="utf-8") == "first\nlast ä\n"
    mask = os.umask(0)
    os.umask(mask)
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~mask


def test_a_failure_leaves_what_was_there_and_nothing_else(tmp_path: Path) -> None:
    path = tmp_path / "report.md"
    path.write_text("before")
    with pytest.raises(TypeError), written_whole(path) as file:
        file.writelines(["half", 3])  # type: ignore[list-item]
    assert path.read_text() == "before"
    assert list(tmp_path.iterdir()) == [path]


def test_a_link_keeps_pointing_where_it_did(tmp_path: Path) -> None:
    target, link = tmp_path / "real.md", tmp_path / "link.md"
    target.write_text("before")
    link.symlink_to(target)
    with written_whole(link) as file:
        file.write("after")
    assert link.is_symlink() and target.read_text() == "after"


def test_a_pipe_is_written_to_and_not_replaced(tmp_path: Path) -> None:
    pipe, read = tmp_path / "pipe", list[str]()
    os.mkfifo(pipe)
    reader = threading.Thread(target=lambda: read.append(pipe.read_text()))
    reader.start()
    with written_whole(pipe) as file:
        file.write("through")
    reader.join()
    assert read == ["through"] and pipe.is_fifo()


def test_places_that_cannot_be_written_are_refused(tmp_path: Path) -> None:
    with pytest.raises(BadInput) as caught, written_whole(tmp_path):
        pass
    assert str(caught.value) == f"file {tmp_path}: is a folder; give the path of a file"
    (tmp_path / "file").touch()
    with pytest.raises(BadInput) as caught, written_whole(tmp_path / "file" / "below.md"):
        pass
    expected = "cannot be written: File exists; make room, or choose another place"
    assert str(caught.value) == f"file {tmp_path}/file/below.md: {expected}"
