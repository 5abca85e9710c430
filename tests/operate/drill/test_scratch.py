"""Commands of ours on a scratch store: what they did is on record, and nobody is left when it is over."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from holdfast.operate.drill.drills import DrillFailed, Scratch
from holdfast.operate.drill.playbook import TRANSCRIPT


def transcript(folder: Path) -> list[str]:
    return [line.partition(" ")[2] for line in (folder / TRANSCRIPT).read_text().splitlines()]


def test_commands_exits_and_marks_are_written_down_in_order(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HOLDFAST_STORE", "/nowhere/else.sqlite")  # a drill has its own store
    said: list[str] = []
    with Scratch(tmp_path, clock=time.time, say=said.append) as scratch:
        scratch.mark("ready", pid=3)
        with pytest.raises(DrillFailed, match="exit 2: .*there is none"):
            scratch.call("runs", "--store", str(scratch.store))
        waits = scratch.begin("release", "serve", "--store", str(tmp_path / "none.sqlite"))
    lines = transcript(tmp_path)
    assert lines[0] == '* ready {"pid": 3}' and said == ["ready 3"]
    assert lines[1].startswith("$ holdfast runs --store ") and lines[2].startswith("exit 2: holdfast: error: store ")
    with pytest.raises(ProcessLookupError):
        os.kill(waits.pid, 0)


def test_what_does_not_come_to_be_breaks_the_drill_off(tmp_path: Path) -> None:
    with (
        Scratch(tmp_path, clock=time.time, say=print) as scratch,
        pytest.raises(DrillFailed, match="pigs fly: did not come"),
    ):
        scratch.wait("pigs fly", lambda: False, patience_s=0.0)
