"""`holdfast work`: a second process helps with a run until it ends."""

from __future__ import annotations

import signal
import subprocess
import sys
import time
from pathlib import Path

from holdfast.store.store import open_store
from tests.cli.conftest import Cli
from tests.cli.test_optimize import (
    STORE,
    attempts_by_rollout,
    begun,
    config,
    ended,
    folder,
    running,
    status_in,
    until,
)

__all__ = ["folder"]  # the fixture


def test_more_hands_work_on_the_same_run_until_it_ends(folder: Path, cli: Cli) -> None:
    name = config(folder, ["wait"] * 6, agent="my_agents:gated", worker_count=2)
    with running("--config", name) as driver:
        until(begun(folder, 2))
        run = status_in(folder).run_id
        helper = hands(run, "--workers", "3")
        until(begun(folder, 5))  # two of the driver's and three of ours
        (folder / "go").touch()
        assert ended(driver).code == 0
        out, err = helper.communicate(timeout=60)
    assert (helper.returncode, err) == (0, "")
    assert out.startswith(f"{run}: ")
    assert "0 failed, 0 handed back here" in out
    assert list(attempts_by_rollout(folder, run).values()) == [["succeeded"]] * 6


def test_a_helper_that_is_stopped_hands_its_work_back(folder: Path, cli: Cli) -> None:
    name = config(folder, ["wait"] * 4, agent="my_agents:gated", worker_count=2)
    with running("--config", name) as driver:
        until(begun(folder, 2))
        run = status_in(folder).run_id
        helper = hands(run, "--workers", "2")
        until(begun(folder, 4))
        helper.send_signal(signal.SIGINT)
        assert helper.wait(60) == 130
        helper.communicate()
        (folder / "go").touch()
        assert ended(driver).code == 0
    assert sorted(attempts_by_rollout(folder, run).values()) == [["released", "succeeded"]] * 2 + [["succeeded"]] * 2


def test_an_unknown_run_and_a_missing_store_are_refused(folder: Path, cli: Cli) -> None:
    missing = cli("work", "run-1", *STORE)
    assert (missing.code, missing.err) == (
        2,
        "holdfast: error: store store.db: there is none; check the path; 'holdfast optimize' creates one\n",
    )
    assert cli("optimize", "--config", config(folder, ["hi"], agent="my_agents:quick"), *STORE).code == 0
    unknown = cli("work", "run-9", *STORE)
    assert unknown.code == 2
    assert "run 'run-9': there is none in project 'default'" in unknown.err


def test_a_run_that_has_ended_needs_no_hands(folder: Path, cli: Cli) -> None:
    assert cli("optimize", "--config", config(folder, ["hi"], agent="my_agents:quick"), *STORE).code == 0
    run = status_in(folder).run_id
    done = cli("work", "run-1", *STORE)
    why = f"run {run}: is completed, not running; 'holdfast optimize --resume {run}' takes it up again"
    assert (done.code, done.err) == (5, f"holdfast: error: {why}\n")


def hands(*words: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "holdfast.cli", "work", *words, *STORE]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_a_run_of_another_kind_is_left_to_its_own_command(tmp_path: Path, cli: Cli) -> None:
    place = tmp_path / "store.sqlite"
    with open_store(place) as store:
        run = store.runs.begin(
            kind="quickstart", model_ref="m", settings={}, salt="t", who="me", now=time.time(), queue_limit=None
        ).result()
    for words in (["work", run.id], ["optimize", "--resume", run.id]):
        ran = cli(*words, "--store", place)
        assert (ran.code, ran.out) == (2, "")
        assert ran.err == (
            f"holdfast: error: run {run.id}: is a quickstart, which is driven by its own command; "
            "call 'holdfast quickstart' again\n"
        )
