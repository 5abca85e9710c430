"""`holdfast prove targets`: a run a seed and arm, taken up where it was killed, a table, a page, and JSON."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import time
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.store.store import open_store
from holdfast.workloads import targets
from tests.cli.conftest import Cli
from tests.conftest import Files
from tests.warm import Warm
from tests.workloads.scene import tiny

KEYS = {"met", "low", "high", "value", "baseline", "target", "n"}
# The same for a process of its own: sizes in which a target takes a second or two.
SMALL = """
import sys
from dataclasses import replace
from holdfast.workloads import targets
sizes = {"model": sys.argv.pop(1), "steps": 1, "tasks": 2, "samples": 2, "test_tasks": 4, "workers": 2}
targets.SAMPLING = {"temperature": 1.0, "max_tokens": 8}
targets.TARGETS = {name: replace(one, quick=sizes) for name, one in targets.TARGETS.items()}
"""


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> str:
    return tiny(tmp_path_factory.mktemp("weights"))


@pytest.fixture
def small(model: str, monkeypatch: pytest.MonkeyPatch) -> None:
    sizes = {"model": model, "steps": 1, "tasks": 2, "samples": 2, "test_tasks": 4, "workers": 2}
    monkeypatch.setattr(targets, "SAMPLING", {"temperature": 1.0, "max_tokens": 8})
    shrunk = {name: replace(one, quick=sizes) for name, one in targets.TARGETS.items()}
    monkeypatch.setattr(targets, "TARGETS", shrunk)


@pytest.mark.usefixtures("small")
def test_two_targets_are_measured_told_and_kept_and_a_second_call_runs_nothing(
    cli: Cli, files: Files, tmp_path: Path
) -> None:
    words = ("--only", "thinking", "--only", "hacking", "--quick", "--store", files.fresh(), "--output", tmp_path / "o")
    ran = cli("prove", "targets", *words).done()
    arms = [f"thinking, seed {{}}, {arm}" for arm in ("free", "budgeted")]
    arms += [f"hacking, seed {{}}, {arm}" for arm in ("careless", "guarded")]
    said = [line for line in ran.err.splitlines() if " of 8: " in line]
    every = [arm.format(seed) for seed in (0, 1) for arm in arms]
    assert said == [f"{number} of 8: {title}" for number, title in enumerate(every, 1)]
    assert ran.page[0] == "2 seeds, 95 % intervals over seeds and tasks" and "not met" in ran.out
    again = cli("prove", "targets", *words, "--json").done()
    assert " of 8: " not in again.err
    assert again.json["is_quick"] and "adoption" not in again.json
    for name in ("thinking", "hacking"):
        assert set(again.json[name]) >= KEYS and again.json[name]["met"] is False
    kept = json.loads((tmp_path / "o/targets.json").read_text(encoding="utf-8"))
    assert {name: again.json[name] for name in kept} == kept
    assert "The five targets: 0 of 2 met" in (tmp_path / "o/targets.html").read_text(encoding="utf-8")
    assert again.json["files"] == [str(tmp_path / "o" / name) for name in ("targets.html", "targets.json")]


@pytest.mark.usefixtures("small")
def test_a_killed_measurement_goes_on_and_does_nothing_twice(
    cli: Cli, files: Files, model: str, tmp_path: Path
) -> None:
    store = files.fresh()
    words = ["prove", "targets", "--only", "thinking", "--quick", "--store", str(store)]
    words += ["--output", str(tmp_path / "o")]
    program = tmp_path / "small.py"
    program.write_text(f"{SMALL}\nfrom holdfast.cli.main import app\napp(sys.argv[1:])")
    with Warm([str(program), model, *words], stderr=subprocess.DEVNULL) as child:
        killed_at = ended_first(store, child)
        os.kill(child.pid, signal.SIGKILL)
    with open_store(store) as opened:
        before = {run.id: len(opened.steps.of_run(run.id)) for run in opened.runs.newest(most=9)}
    ran = cli(*words, "--json").done()
    assert next(line for line in ran.err.splitlines() if " of 4: " in line) == "2 of 4: thinking, seed 0, budgeted"
    assert set(ran.json["thinking"]) >= KEYS
    with open_store(store) as opened:
        after = {run.id: len(opened.steps.of_run(run.id)) for run in opened.runs.newest(most=9)}
    assert len(after) == 4 and set(before) <= set(after)  # none was begun anew
    assert after[killed_at] == before[killed_at]


def ended_first(store: Path, child: subprocess.Popen[bytes]) -> str:
    """The first run, once it is at its end and the next one has begun."""
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline and child.poll() is None:
        with open_store(store) as opened:
            runs = opened.runs.newest(most=9)
            if len(runs) > 1:
                return runs[-1].id
        time.sleep(0.1)
    raise AssertionError(f"no second run: {child.poll()}")


def test_what_cannot_be_measured_is_refused_before_anything_runs(cli: Cli, files: Files, tmp_path: Path) -> None:
    at = ("--store", files.fresh())
    assert "target 'honesty': is unknown; use adoption" in cli("prove", "targets", "--only", "honesty", *at).refusal
    (tmp_path / "f").touch()
    assert "is a file; name a folder" in cli("prove", "targets", "--output", tmp_path / "f", *at).refusal
    assert cli("prove", "targets", "--seeds", 1, *at).code == 2
