"""Trials of experiments: none is run twice, one that does not come to its end ends them, and both files are kept."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from experiments.trials import check, keep
from holdfast.contracts.errors import BadInput


def test_a_file_in_the_place_of_the_folder_is_refused_before_anything_runs(tmp_path: Path) -> None:
    (tmp_path / "out").touch()
    with pytest.raises(BadInput, match="is a file; name a folder"):
        check("hacking", tmp_path / "out")
    check("hacking", tmp_path)
    check("hacking", None)


def test_without_pytorch_it_says_how_to_get_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("importlib.util.find_spec", lambda name: None)
    with pytest.raises(BadInput, match=r"experiment safety: needs PyTorch.*holdfast\[learn\]"):
        check("safety", None)


def test_the_table_and_the_picture_are_kept_in_a_folder_that_is_made(tmp_path: Path) -> None:
    files = keep(tmp_path / "a/b", "hacking", {"x": 1}, lambda path: path.write_text("drawn") and None)
    assert files == [tmp_path / "a/b/hacking.png", tmp_path / "a/b/hacking.json"]
    assert files[0].read_text() == "drawn" and json.loads(files[1].read_text()) == {"x": 1}
