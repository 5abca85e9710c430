"""A flag that is off says so in the output of whatever it stopped, with the command that turns it on again."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from holdfast.promote.flags import SWITCHES
from holdfast.workloads.tooluse import quickstart
from tests.cli.conftest import Answer, Cli
from tests.cli.test_improve import config, items
from tests.workloads.scene import tiny

STORE = ("--store", "s.db")
LEARNING = SWITCHES["learning"]
SAID = f"learning: switched off by flag {LEARNING} (killed); turn it on with"
REMEDY = f"holdfast flags revive {LEARNING} --store s.db"


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


def optimizing(folder: Path, **given: Any) -> Path:
    """A run of four tasks with a lesson, on a very small model."""
    tiny(folder / "tiny")
    settings = {"agent": "holdfast.workloads.tooluse.agent:agent", "model": f"local/{folder / 'tiny'}"}
    tasks = {"optimize": items("train", 4), "validate": items("val", 2), "rl_optimizer": {"enabled": True}}
    path = folder / "run.json"
    path.write_text(json.dumps({**settings, **tasks, "worker_count": 4, **given}))
    return path


def flags(cli: Cli, *words: object) -> None:
    assert cli("flags", *words, *STORE).code == 0


def text(ran: Answer) -> str:
    assert ran.code == 0, ran.err
    return " ".join(ran.out.split())


def test_learning_goes_on_after_the_flags_were_written_down(cli: Cli, here: Path) -> None:
    flags(cli, "init")
    ran = cli("optimize", "--config", optimizing(here), *STORE)
    assert "switched off" not in text(ran)
    assert any(line.startswith("  learnt ") for line in ran.lines)


def test_optimize_says_that_learning_is_off_and_by_which_flag(cli: Cli, here: Path) -> None:
    flags(cli, "init")
    flags(cli, "kill", LEARNING)
    flags(cli, "disable", SWITCHES["budgets"])
    path = optimizing(here, thinking_budgets=True)
    said = text(ran := cli("optimize", "--config", path, *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines
    assert f"budgets: switched off by flag {SWITCHES['budgets']} (not enabled)" in said
    assert "tool rewards" not in said  # they are on
    told = cli("optimize", "--config", path, *STORE, "--json").json["switched_off"]
    assert [(one["feature"], one["why"]) for one in told] == [("learning", "killed"), ("budgets", "not enabled")]


def test_what_a_run_would_not_have_used_is_not_said(cli: Cli, here: Path) -> None:
    flags(cli, "init")
    for feature in ("learning", "budgets"):
        flags(cli, "kill", SWITCHES[feature])
    ran = cli("optimize", "--config", optimizing(here, rl_optimizer=None), *STORE)
    assert "switched off" not in text(ran)


def test_a_run_outside_a_share_is_told_so(cli: Cli, here: Path) -> None:
    flags(cli, "init")
    flags(cli, "rollout", LEARNING, "0.0001")
    said = text(cli("optimize", "--config", optimizing(here), *STORE))
    assert "the key's place is" in said and f"holdfast flags rollout {LEARNING} 100 --store s.db" in said


def test_improve_says_it_too(cli: Cli, here: Path) -> None:
    flags(cli, "init")
    flags(cli, "kill", LEARNING)
    said = text(ran := cli("improve", config(here), *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines and "nothing was learnt" in said
    told = cli("improve", config(here), *STORE, "--json").json
    assert [one["feature"] for one in told["switched_off"]] == ["learning"]


def test_quickstart_says_it_too(cli: Cli, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(quickstart, "QUICK", replace(quickstart.QUICK, test_tasks=4, probe_tasks=4))
    flags(cli, "init")
    flags(cli, "kill", LEARNING)
    said = text(ran := cli("quickstart", "--quick", *STORE))
    assert SAID in said and f"  {REMEDY}" in ran.lines
