"""A small dose of every fault, as part of the tests; `make drill` gives the whole."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.drills.crew import ROOT
from tests.drills.faults.main_process import Story
from tests.drills.run import ON_POSTGRES, ON_SQLITE, WIDTH, Part, play, render
from tests.drills.scene import Tally
from tests.store.children import unmeasured

SEED = 1
IN_PROCESS = [part for part in ON_SQLITE if part.name != "two"]


@pytest.mark.parametrize("part", IN_PROCESS, ids=lambda part: part.name)
def test_a_small_dose_breaks_nothing(part: Part) -> None:
    tally = play(part, seed=SEED, quick=True, say=print)
    assert tally.holds, render([tally])
    assert tally.rounds and tally.events and tally.rollouts and tally.chain


def test_the_command_plays_one_fault_and_tells_it_as_json() -> None:
    done = run("--quick", "--json", "--seed", "1", "--only", "two")
    assert done.returncode == 0, done.stderr
    answer = json.loads(done.stdout)
    assert (answer["seed"], answer["holds"], len(answer["faults"])) == (1, True, 1)
    assert all(answer["faults"][0][name] for name in ("rounds", "events", "rollouts", "chain"))
    assert "drill: seed 1; two" in done.stderr


def test_an_unknown_fault_is_refused_with_those_there_are() -> None:
    done = run("--only", "lightning")
    assert done.returncode == 2 and all(part.name in done.stderr for part in (*ON_SQLITE, *ON_POSTGRES))


def test_a_run_that_never_made_its_store_is_one_finding_and_not_a_missing_table(tmp_path: Path) -> None:
    story = Story(tmp_path, "tasks", 3)
    assert story.verdict().problems == ["no store was made"]


def test_the_table_says_what_broke_within_80_columns() -> None:
    good = Tally(fault="server killed, Postgres", rounds=3, events=16_009, rollouts=123_456, chain=12_345)
    bad = Tally(fault="zombies", rounds=1, lost=2, problems=["round 1: lost: " + "run-1/task-17 " * 20])
    text = render([good, bad])
    assert max(map(len, text.splitlines())) <= WIDTH
    rows = [line for line in text.splitlines() if line.startswith(("server", "zombies")) and "  " in line]
    assert rows[0].endswith("holds") and rows[1].endswith("BROKEN")
    assert "BROKEN round 1: lost: run-1/task-17" in text


def run(*options: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "tests/drills/run.py", *options]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, env=unmeasured())
