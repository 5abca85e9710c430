"""Compiled code is kept until any file of the town changes."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.town import kernel

LOOK = """
import sys; sys.path.insert(0, {folder!r})
import kernel
"""


def fresh(folder: Path) -> None:
    subprocess.run([sys.executable, "-c", LOOK.format(folder=str(folder))], check=True, cwd=folder)


def test_compiled_code_goes_when_a_file_changes_and_stays_otherwise(tmp_path: Path) -> None:
    shutil.copy(Path(kernel.__file__), tmp_path / "kernel.py")
    (tmp_path / "other.py").write_text("A = 1\n")
    cache = tmp_path / "__pycache__"
    fresh(tmp_path)
    kept = [cache / "other.f.nbi", cache / "other.f.1.nbc"]
    for path in kept:
        path.write_text("compiled")
    fresh(tmp_path)
    assert all(path.exists() for path in kept)
    (tmp_path / "other.py").write_text("A = 2\n")
    fresh(tmp_path)
    assert not any(path.exists() for path in kept)
    assert (cache / kernel.STAMP).is_file()


def test_what_is_compiled_is_exact_and_counts_as_numpy_does() -> None:
    @kernel.jit
    def halves(a: int, b: int) -> int:
        return a // b

    assert [halves(-7, 2), halves(7, 2)] == [-4, 3]
    assert not halves.targetoptions.get("fastmath")


def test_it_is_cold_until_a_tick_was_compiled(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernel, "HERE", tmp_path)
    assert kernel.is_cold()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "env.tick-1.py311.nbi").touch()
    assert not kernel.is_cold()
