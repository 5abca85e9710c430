"""Signals become wishes: the first says how to stop, the second to stop now, the third that it may not wait."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

SCRIPT = """
import asyncio, sys
from holdfast.cli.drive import obeying

class Control:
    def drain(self): print("drain", flush=True)
    def stop(self): print("stop", flush=True)

async def main():
    with obeying(Control()) as caught:
        print("ready", flush=True)
        while await asyncio.to_thread(sys.stdin.readline) != "end\\n":
            pass
    print(caught.exit_code, caught.count, flush=True)
    await asyncio.to_thread(sys.stdin.readline)

asyncio.run(main())
"""
INT, TERM = signal.SIGINT, signal.SIGTERM


@contextmanager
def listening() -> Iterator[subprocess.Popen[str]]:
    pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    child = subprocess.Popen([sys.executable, "-c", SCRIPT], text=True, **pipes)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    try:
        yield child
    finally:
        child.kill()
        child.communicate()


@pytest.mark.parametrize(
    ("sent", "wishes", "code"),
    [
        ([], [], 0),
        ([INT], ["stop"], 130),  # Ctrl-C hands back at once
        ([TERM], ["drain"], 143),  # an operator lets running work finish
        ([TERM, TERM], ["drain", "stop"], 143),
        ([TERM, INT], ["drain", "stop"], 130),
        ([INT, TERM], ["stop", "stop"], 143),
    ],
)
def test_a_signal_becomes_a_wish(sent: list[signal.Signals], wishes: list[str], code: int) -> None:
    with listening() as child:
        assert child.stdin is not None and child.stdout is not None
        for number, wish in zip(sent, wishes, strict=True):
            os.kill(child.pid, number)
            assert child.stdout.readline() == f"{wish}\n"
        child.stdin.write("end\n")
        child.stdin.flush()
        assert child.stdout.readline() == f"{code} {len(sent)}\n"


def test_the_third_signal_does_not_wait() -> None:
    with listening() as child:
        assert child.stdout is not None
        for _ in range(2):
            os.kill(child.pid, INT)
            assert child.stdout.readline() == "stop\n"
        os.kill(child.pid, INT)
        assert child.wait(60) == 130


def test_what_a_signal_leads_to_is_said() -> None:
    with listening() as child:
        assert child.stdout is not None and child.stderr is not None
        for number, said in (
            (TERM, "holdfast: finishing what runs (again to stop now)\n"),
            (TERM, "holdfast: stopping, running work is handed back\n"),
        ):
            os.kill(child.pid, number)
            assert child.stderr.readline() == said


def test_afterwards_a_signal_is_again_what_it_was() -> None:
    with listening() as child:
        assert child.stdin is not None and child.stdout is not None
        child.stdin.write("end\n")
        child.stdin.flush()
        child.stdout.readline()
        os.kill(child.pid, TERM)
        assert child.wait(60) == -TERM
