"""Child processes of the tests: a script, its arguments, what it printed."""

from __future__ import annotations

import os
import subprocess
import sys


def unmeasured() -> dict[str, str]:
    """An environment in which coverage is not measured: for what is killed, or done in the tests' own process too."""
    return {name: value for name, value in os.environ.items() if not name.startswith("COVERAGE_")}


def start_child(script: str, *arguments: str) -> subprocess.Popen[str]:
    command, pipe = [sys.executable, "-c", script, *arguments], subprocess.PIPE
    return subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, text=True, env=unmeasured())


def run_child(script: str, *arguments: str) -> str:
    """What the child printed; a child that fails fails the test, with its last words."""
    return ended(start_child(script, *arguments))


def ready(script: str, *arguments: str) -> subprocess.Popen[str]:
    """A child that has said that it is ready, and waits to be told."""
    child = start_child(script, *arguments)
    assert child.stdout is not None and child.stdout.readline() == "ready\n"
    return child


def tell(child: subprocess.Popen[str], word: str = "go") -> None:
    assert child.stdin is not None
    child.stdin.write(f"{word}\n")
    child.stdin.flush()


def ended(child: subprocess.Popen[str]) -> str:
    """What it printed until its end, which was a good one."""
    out, err = child.communicate(timeout=120)
    assert child.returncode == 0, err
    return out
