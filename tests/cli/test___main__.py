"""`python -m holdfast.cli` is `holdfast`."""

from __future__ import annotations

from pathlib import Path

from tests.cli.conftest import Cli


def test_the_module_is_the_program(cli: Cli, tmp_path: Path) -> None:
    ran = cli.real("runs", "--store", "none.sqlite", cwd=tmp_path)
    expected = "store none.sqlite: there is none; check the path; 'holdfast optimize' creates one"
    assert (ran.code, ran.out, ran.err) == (2, "", f"holdfast: error: {expected}\n")
