"""What a person sees of a run: the bar or a line while it goes, the report at its end."""

from __future__ import annotations

import json
import os
import shlex
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from holdfast.cli import drive
from holdfast.cli.drive import Progress, report, stdout_kept_clean
from holdfast.cli.options import DEFAULT_STORE
from holdfast.contracts.records import decode
from holdfast.contracts.run import DesiredState, RunState, SplitRewards, Status

DONE = Status(
    updated_unix_ms=1_700_000_000_000,
    run_state=RunState.COMPLETED,
    run_id="run-1-abcd",
    project="default",
    model_ref="openai/tiny",
    store_path=DEFAULT_STORE,
    resources_id="resources-1",
    total_rollouts=12,
    succeeded=10,
    failed=2,
    cancelled=0,
    dead=1,
    running=0,
    waiting=0,
    rewards={
        "train": SplitRewards(total=8, rewarded=6, mean_reward=0.75),
        "val": SplitRewards(total=4, rewarded=0, mean_reward=None),
    },
    elapsed_s=2.5,
)
AT = Path("here/status.json")


def reported(status: Status, capsys: pytest.CaptureFixture[str]) -> list[str]:
    report(status, AT, as_json=False)
    return capsys.readouterr().out.splitlines()


def test_the_report_of_a_completed_run(capsys: pytest.CaptureFixture[str]) -> None:
    assert reported(DONE, capsys) == [
        "run-1-abcd completed in 2.5 s",
        "  rollouts   12: 10 succeeded, 2 failed (1 given up without an answer)",
        "  rewards    train 0.750 (6 of 8), val missing (0 of 4)",
        "  model      openai/tiny",
        "  resources  resources-1",
        "  store      .holdfast/training/store.sqlite",
        "  status     here/status.json",
        "next:",
        "  holdfast rollouts run-1-abcd   # every task with its reward",
        "  holdfast spans run-1-abcd/train-1   # what one agent did, step by step",
    ]


def test_the_report_says_what_came_of_it_before_anything_else(capsys: pytest.CaptureFixture[str]) -> None:
    """An answer that is wrong is no success, whatever the rollout's status is."""
    told = replace(DONE, outcomes={"right": 3, "wrong": 7, "not_checked": 0})
    lines = reported(told, capsys)
    assert lines[1:3] == [
        "  outcome    3 right, 7 wrong, 2 failed",
        "  rollouts   12: 10 succeeded, 2 failed (1 given up without an answer)",
    ]
    unchecked = replace(DONE, outcomes={"right": 0, "wrong": 0, "not_checked": 10})
    assert reported(unchecked, capsys)[1] == "  outcome    0 right, 0 wrong, 10 not checked, 2 failed"


def test_the_report_of_a_run_that_did_not_come_to_its_end_says_how_to_go_on(
    capsys: pytest.CaptureFixture[str],
) -> None:
    late = replace(
        DONE, run_state=RunState.TIMED_OUT, error="not done after 30 s", cancelled=1, running=1, waiting=2, dead=0
    )
    lines = reported(replace(late, resources_id=None), capsys)
    assert lines[0] == "run-1-abcd timed out in 2.5 s (not done after 30 s)"
    assert lines[1] == "  rollouts   12: 10 succeeded, 2 failed, 1 cancelled, 3 still to do"
    assert lines[4] == "  resources  none"
    assert lines[8] == "  holdfast optimize --resume run-1-abcd   # go on where it stopped"


def test_a_run_of_validation_alone_is_shown_by_one_of_its_own(capsys: pytest.CaptureFixture[str]) -> None:
    lines = reported(replace(DONE, rewards={"val": DONE.rewards["val"]}), capsys)
    assert lines[-1].startswith("  holdfast spans run-1-abcd/val-1 ")


def test_what_to_do_next_names_store_and_project_so_that_a_shell_understands(
    capsys: pytest.CaptureFixture[str],
) -> None:
    lines = reported(replace(DONE, store_path="my stores/s.db", project="it's"), capsys)
    command = lines[-2].partition("#")[0]
    assert shlex.split(command) == [
        *("holdfast", "rollouts", "run-1-abcd", "--store", "my stores/s.db", "--project", "it's"),
    ]


def test_the_report_as_json_is_the_status(capsys: pytest.CaptureFixture[str]) -> None:
    report(DONE, AT, as_json=True)
    assert decode(Status, json.loads(capsys.readouterr().out)) == DONE


# While it goes


@pytest.fixture
def talkative(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(drive, "LINE_EVERY_S", -1.0)
    for name in ("FORCE_COLOR", "TTY_COMPATIBLE"):
        monkeypatch.delenv(name, raising=False)


@pytest.mark.usefixtures("talkative")
def test_where_there_is_no_terminal_there_is_a_line_now_and_then(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        shown.show(replace(DONE, succeeded=0, failed=0, elapsed_s=0.0))
        shown.show(DONE, DesiredState.DRAINING)  # it is over: nothing is wanted of it any more
        shown.show(replace(DONE, run_state=RunState.RUNNING, succeeded=1), DesiredState.PAUSED)
    out, err = capsys.readouterr()
    assert out == ""
    assert err.splitlines() == [
        "run-1-abcd: 0 of 12",
        "run-1-abcd: 12 of 12 4.8/s 2 failed",
        "run-1-abcd paused: 3 of 12 1.2/s 2 failed",
    ]


def test_a_short_run_leaves_a_log_alone(capsys: pytest.CaptureFixture[str]) -> None:
    with Progress() as shown:
        shown.show(DONE)
    assert capsys.readouterr() == ("", "")


BAR = """
import time
from dataclasses import replace
from holdfast.cli.drive import Progress
from tests.cli.test_progress import DONE

with Progress() as shown:
    for done in (0, 5, 10):
        shown.show(replace(DONE, succeeded=done, failed=2))
        time.sleep(0.3)
"""


def test_on_a_terminal_there_is_a_bar_with_rate_and_failures() -> None:
    ours, theirs = os.openpty()
    env = os.environ | {"TERM": "xterm", "COLUMNS": "100"}
    child = subprocess.Popen([sys.executable, "-c", BAR], stderr=theirs, stdout=subprocess.PIPE, env=env)
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # how a terminal ends
        pass
    out, _ = child.communicate(timeout=60)
    os.close(ours)
    assert (child.returncode, out) == (0, b"")
    for part in (b"run-1-abcd", b"12/12", b"4.8/s", b"2 failed"):
        assert part in shown


# Stdout


def test_while_agents_run_stdout_is_kept_for_the_report(capfd: pytest.CaptureFixture[str]) -> None:
    os.write(1, b"before\n")
    with stdout_kept_clean():
        os.write(1, b"by a library\n")
        subprocess.run(["echo", "by a child"], check=True)
    os.write(1, b"after\n")
    assert capfd.readouterr() == ("before\nafter\n", "by a library\nby a child\n")


CLOSED = """
import sys
from holdfast.cli.drive import stdout_kept_clean
with stdout_kept_clean():
    print("to nobody")
"""


def test_a_stdout_that_was_closed_is_left_alone() -> None:
    command = f"{shlex.quote(sys.executable)} -c {shlex.quote(CLOSED)} >&-"
    ran = subprocess.run(["bash", "-c", command], capture_output=True, text=True)
    assert (ran.returncode, ran.stderr) == (0, "")
