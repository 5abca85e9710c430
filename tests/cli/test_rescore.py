"""`holdfast rescore`: a changed scorer on stored rollouts, beside the first scoring, without running an agent."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.cli.conftest import Cli

AGENT = "holdfast.workloads.arithmetic:agent"
LENIENT = "def lenient(task, answer):\n    return float(str(task.expected) in str(answer))\n"


@pytest.fixture
def run(tmp_path: Path, cli: Cli, monkeypatch: pytest.MonkeyPatch) -> str:
    """Three rollouts of which the strict scorer calls all wrong: what was expected has a blank in it."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "score.py").write_text(LENIENT)
    tasks = [{"a": n, "b": n, "expected": f"{2 * n} "[:1]} for n in (1, 2, 3)]
    (tmp_path / "c.json").write_text(json.dumps({"optimize": tasks, "agent": AGENT}))
    ran = cli("optimize", "--config", "c.json", "--store", "s.sqlite", "--json")
    assert ran.code in (0, 3), ran.err
    return str(ran.json["run_id"])


def test_both_scorings_stand_side_by_side_and_are_compared(run: str, cli: Cli) -> None:
    told = cli("rescore", run, "--scorer", "score.py:lenient", "--name", "second", "--store", "s.sqlite", "--json")
    assert told.code == 0, told.err
    assert (told.json["run"], told.json["name"]) == (run, "second")
    again = cli("rescore", run, "--scorer", "score.py:lenient", "--name", "second", "--store", "s.sqlite")
    assert again.code != 0  # a name is given once
    shown = cli("rescore", run, "--scorer", "score.py:lenient", "--name", "third", "--store", "s.sqlite")
    assert shown.code == 0 and max(map(len, shown.lines)) <= 80


def test_a_scorer_that_is_not_there_is_refused(run: str, cli: Cli) -> None:
    ran = cli("rescore", run, "--scorer", "score.py:nobody", "--store", "s.sqlite")
    assert ran.code == 2 and "nobody" in ran.err
