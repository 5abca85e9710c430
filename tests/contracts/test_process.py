"""A process is gone once nobody has its number, on the machine that it was one of."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace

from holdfast.contracts.run import Process, is_alive, is_gone, this_process

CHILD = (
    "import dataclasses, json, sys; from holdfast.contracts.run import this_process; "
    "print(json.dumps(dataclasses.asdict(this_process())), flush=True); sys.stdin.read()"
)


def test_a_process_that_was_killed_is_gone_and_one_that_lives_is_not() -> None:
    child = subprocess.Popen([sys.executable, "-c", CHILD], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)
    with child:
        assert child.stdout is not None
        told = Process(**json.loads(child.stdout.readline()))
        assert told.pid == child.pid and told.machine == this_process().machine
        assert is_alive(told.pid) and not is_gone(told)
        child.kill()
    assert not is_alive(told.pid) and is_gone(told)
    assert not is_gone(replace(told, machine="another one"))  # nobody here knows


def test_this_process_is_not_gone() -> None:
    assert not is_gone(this_process())
    assert is_alive(1)  # somebody else's, as a rule
