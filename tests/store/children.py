"""Child processes of the tests: a script, its arguments, what it printed."""

from __future__ import annotations

import subprocess
import sys


def start_child(script: str, *arguments: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-c", script, *arguments]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def run_child(script: str, *arguments: str) -> str:
    """What the child printed; a child that fails fails the test, with its last words."""
    out, err = (child := start_child(script, *arguments)).communicate(timeout=60)
    assert child.returncode == 0, err
    return out
