"""A crew knows who is left, and leaves nobody."""

from __future__ import annotations

import os
import signal
import subprocess
import time
from pathlib import Path

from tests.drills import journal
from tests.drills.crew import Crew, wait_until
from tests.drills.journal import Journal


def leaves_a_child(journal: Journal) -> None:
    journal.notes(child=subprocess.Popen(["sleep", "60"]).pid)


def crashes(journal: Journal) -> None:
    raise ValueError("oh")


def sleeps(journal: Journal) -> None:
    time.sleep(60)


def is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except ProcessLookupError:
        return False
    return Path(f"/proc/{pid}/stat").read_text().split()[2] != "Z"


def test_a_child_left_behind_is_named_and_then_ended(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        crew.start(leaves_a_child).join()
        (note,) = journal.read(tmp_path).notes
        (problem,) = crew.leftovers(within_s=0.1)
        assert f"process {note['child']} was left behind: sleep 60" in problem
    assert wait_until(lambda: not is_alive(note["child"]), 5.0)


def test_who_does_not_end_is_named_and_then_ended(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        sleeper = crew.start(sleeps)
        assert crew.finish(0.1) == [f"sleeps {sleeper.pid} did not end"]
    assert sleeper.exitcode == -signal.SIGKILL


def test_a_crash_is_in_the_journal(tmp_path: Path) -> None:
    with Crew(tmp_path) as crew:
        crew.start(crashes)
        assert crew.finish(20.0) == []
    (note,) = journal.read(tmp_path).notes
    assert note["crash"] == "ValueError: oh"
