"""The drill of the pipeline goes on where it was stopped, and finds what differs; that runs hold is its own to show."""

from __future__ import annotations

import json
from dataclasses import asdict
from itertools import islice
from pathlib import Path

import pytest

from tests.drills.pipeline import Case, cases, drill
from tests.pipeline.learning import Ended


def first(count: int) -> list[Case]:
    return [*islice(cases("prompt", seed=7), count)]


def keep(folder: Path, case: Case, decision: str = "open") -> None:
    """As if it was driven before, and killed as often as it says."""
    ended = Ended(kills=len(case.shares or ()), seconds=1.0, came={"steps": [1, 2], "decision": decision})
    (folder / f"{case.file}.json").write_text(json.dumps(asdict(ended)))


def test_instants_follow_from_the_seed_and_no_run_is_killed_more_than_twice() -> None:
    found = first(40)
    assert found == first(40)
    assert [one.name for one in found[:3]] == ["in peace", "boundaries", "instant 1"]
    assert {len(one.shares or ()) for one in found[2:]} == {1, 2}
    assert all(0.0 <= share <= 1.0 for one in found[2:] for share in one.shares or ())


def test_what_was_done_is_not_done_again(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for case in first(4):
        keep(tmp_path, case)
    kills = sum(len(case.shares or ()) for case in first(4))
    row = drill("prompt", tmp_path, seed=7, instants=kills)
    assert (row.runs, row.kills, row.steps, row.differing) == (4, kills, 2, [])
    assert not [*tmp_path.glob("*/")]  # no store was made


def test_what_differs_is_named(tmp_path: Path) -> None:
    for place, case in enumerate(first(3)):
        keep(tmp_path, case, "open" if place < 2 else "closed")
    assert drill("prompt", tmp_path, seed=7, instants=1).differing == ["prompt-instant-1: decision"]
