"""`holdfast label`: one answer after the other, each label kept at once; whoever stops goes on where they were."""

from __future__ import annotations

import os
import pty
import re
import select
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from typer.testing import CliRunner

from holdfast.cli.main import app
from holdfast.contracts.judgement import Doubtful, EvalItem, Maker, ReviewRequest
from holdfast.contracts.records import decode
from holdfast.store.store import open_store
from tests.cli.conftest import Cli

ON = "correctness@1"


@pytest.fixture
def at(tmp_path: Path) -> tuple[str, str]:
    """Three answers wait."""
    url = str(tmp_path / "store.sqlite")
    with open_store(url) as store:
        for n in range(3):
            one = EvalItem(task=f"What is {n} + 1?", output=f"{n + 1}\x1b[31m", context="none")
            waits = ReviewRequest(
                artefact=one.sha256, criterion=ON, reason=Doubtful.ABSTAINED, why="unsure: 0.50", at=float(n)
            )
            store.judgements.request_review(one, waits).result()
    return "--store", url


def label(at: tuple[str, str], typed: str, *more: str) -> tuple[int, list[str]]:
    """Typed at a terminal; then the input ends."""
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "label", *at, *more]
    running = subprocess.Popen(command, stdin=inner, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    os.close(inner)
    try:
        os.write(outer, typed.encode() + b"\x04")
        told, _ = running.communicate(timeout=60)
    finally:
        running.kill()
        os.close(outer)
    return running.returncode, told.replace("holds? [y/n/u/s/q] ", "").splitlines()


def kept(at: tuple[str, str]) -> list[tuple[bool | None, str, str]]:
    with open_store(at[1]) as store:
        found = sorted(store.judgements.labels(ON), key=lambda one: one.at)
        assert {one.maker for one in found} <= {Maker.PERSON}
        return [(one.holds, one.why, one.who) for one in found]


def test_each_is_shown_and_labelled(cli: Cli, at: tuple[str, str]) -> None:
    code, lines = label(at, "y\nn the sum is wrong\nu\n", "--who", "ann")
    assert code == 0
    assert kept(at) == [(True, "", "ann"), (False, "the sum is wrong", "ann"), (None, "", "ann")]
    assert "--- 1 of 3 · correctness@1 · abstained · unsure: 0.50" in lines
    assert "  What is 0 + 1?" in lines and "  1�[31m" in lines  # nothing of an answer reaches the terminal as it is
    assert "Is the answer right, and nothing but the answer?" in lines
    assert lines[-1] == "3 labels kept, 0 to go"
    assert label(at, "") == (0, ["nothing waits for a label"])


def test_whoever_stops_goes_on_where_they_were(cli: Cli, at: tuple[str, str]) -> None:
    assert label(at, "y\nq\n")[1][-1] == "1 label kept, 2 to go: holdfast label " + " ".join(at)
    assert (
        label(at, "what\nyes\ns\ny\n")[1].count("y yes, n no, u cannot be told, s skip, q quit; a reason may follow")
        == 2
    )
    assert len(kept(at)) == 2  # one was skipped
    assert label(at, "")[1][-1].startswith("0 labels kept, 1 to go: holdfast label")  # the input ended at once


def test_what_is_piped_is_no_persons_word(cli: Cli, at: tuple[str, str]) -> None:
    ran = CliRunner().invoke(app, ["label", *at, "--who", "bob"], input="n\n" * 9, prog_name="holdfast")
    assert ran.exit_code == 2 and "the input is no terminal" in ran.output and "--labels FILE" in ran.output
    assert kept(at) == []


def test_programs_get_what_waits(cli: Cli, at: tuple[str, str]) -> None:
    told = cli("label", *at, "--json").json
    assert [decode(ReviewRequest, one).at for one in told] == [0.0, 1.0, 2.0]
    assert len(cli("label", *at, "--json", "--limit", 2).json) == 2


def test_ctrl_c_loses_nothing(at: tuple[str, str]) -> None:
    outer, inner = pty.openpty()
    command = [sys.executable, "-m", "holdfast.cli", "label", *at, "--who", "ann"]
    running = subprocess.Popen(command, stdin=inner, stdout=inner, stderr=inner, start_new_session=True)
    os.close(inner)
    try:
        seen = _until(outer, b"", b"holds? [y/n/u/s/q] ")
        while b"2 of 3" not in seen:  # a terminal that is just being set up may lose what is typed
            time.sleep(0.3)
            os.write(outer, b"y\n")
            while select.select([outer], [], [], 5.0)[0] and b"2 of 3" not in seen:
                seen += os.read(outer, 4096)
        seen = _until(outer, seen, b"2 of 3", b"holds? [y/n/u/s/q] ")
        while b"to go" not in seen and running.poll() is None:  # one that comes amid a clean-up of Python's is lost
            running.send_signal(signal.SIGINT)
            while select.select([outer], [], [], 10.0)[0] and b"to go" not in seen:
                seen += os.read(outer, 4096)
        assert running.wait(60) == 0
    finally:
        running.kill()
        running.wait()
        os.close(outer)
    told = re.search(rb"(\d) labels? kept, (\d) to go", seen)
    assert told is not None and int(told[1]) >= 1 and int(told[1]) + int(told[2]) == 3
    assert kept(at) == [(True, "", "ann")] * int(told[1])


def _until(terminal: int, seen: bytes, *texts: bytes, patience_s: float = 60.0) -> bytes:
    """All that was printed, once it holds the texts, one after the other."""
    end = time.monotonic() + patience_s
    while not re.search(b".*".join(map(re.escape, texts)), seen, re.S):
        assert select.select([terminal], [], [], max(0.0, end - time.monotonic()))[0], seen
        seen += os.read(terminal, 4096)
    return seen
