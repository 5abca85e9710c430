"""What the commands of the town share."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.cli.town import check_writable, warn
from holdfast.contracts.errors import BadInput


def test_a_place_that_cannot_be_written_is_refused_before_any_work(tmp_path: Path) -> None:
    check_writable(None, tmp_path / "a")
    with pytest.raises(BadInput, match="its folder does not exist; make it first"):
        check_writable(tmp_path / "none/a")


def test_only_a_town_that_is_not_compiled_yet_is_warned_of(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for is_cold, said in ((False, ""), (True, "compiling the rules of the town, once")):
        monkeypatch.setattr("holdfast.workloads.townlife.is_cold", lambda is_cold=is_cold: is_cold)
        warn()
        assert capsys.readouterr().err.startswith(said)
