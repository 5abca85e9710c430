"""The parts that can be looked at from outside; what it keeps in and out is tested in test_sandbox."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from dataclasses import asdict
from pathlib import Path

from experiments.coding import sandbox_supervisor
from experiments.coding.sandbox import SandboxLimits


def test_an_ending_is_told_in_a_word() -> None:
    statuses = {0: "exit 0", 7 << 8: "exit 7", 120 << 8: "isolation"}
    statuses |= {signal.SIGKILL: "killed", signal.SIGXCPU: "cpu", signal.SIGPROF: "cpu", signal.SIGSEGV: "signal 11"}
    assert {status: sandbox_supervisor._ending(status) for status in statuses} == statuses


def test_the_libraries_hold_the_interpreter_and_come_outer_ones_first() -> None:
    found = sandbox_supervisor._libraries()
    assert Path(sys.base_prefix, "lib") in found
    assert [len(one.parts) for one in found] == sorted(len(one.parts) for one in found)
    assert not {Path("/"), Path("/usr"), Path("/etc")} & set(found)


def test_it_needs_nothing_but_the_standard_library() -> None:
    order = [sys.executable, "-I", "-S", sandbox_supervisor.__file__, json.dumps(asdict(SandboxLimits()))]
    ran = subprocess.run(order, stdin=subprocess.DEVNULL, capture_output=True, text=True, env={}, cwd="/", timeout=60)
    said = json.loads(ran.stdout.splitlines()[0])
    assert said == {"ready": 1} or set(said) == {"refused"}
    assert not ran.stderr
    assert len(ran.stdout.splitlines()) == 1  # asked nothing, it says nothing, and ends


def test_a_call_that_fails_names_itself() -> None:
    try:
        sandbox_supervisor._call("close", -1)
    except OSError as error:
        assert (error.filename, error.strerror) == ("close", "Bad file descriptor")
    else:
        raise AssertionError("it was let through")
