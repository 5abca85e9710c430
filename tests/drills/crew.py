"""The processes of a drill: started, killed, stopped, woken, and at the end looked for, so that none is left behind.

They are forked from a server that has everything imported and has opened nothing, so a replacement works within
milliseconds and kills land in the middle of work. Each carries a mark that its own children inherit.
"""

from __future__ import annotations

import multiprocessing
import os
import secrets
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any
from unittest import mock

from holdfast.operate.drills import Running
from tests.drills.journal import Journal
from tests.store.children import unmeasured

ROOT = Path(__file__).resolve().parents[2]
MARK = "HOLDFAST_DRILL"
_fork = multiprocessing.get_context("forkserver")
_fork.set_forkserver_preload(["tests.drills.run"])


def _life(mark: str, folder: Path, role: Callable[..., None], name: str, arguments: tuple[Any, ...]) -> None:
    os.environ[MARK] = mark
    journal = Journal(folder, name)
    try:
        role(journal, *arguments)
    except BaseException as error:
        if not isinstance(error, SystemExit):
            journal.notes(crash=f"{type(error).__name__}: {error}", trace=traceback.format_exc())
            os._exit(70)
        raise


class Crew:
    """Use as a context: whatever happens inside, nobody is left when it ends."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._mark = secrets.token_hex(8)
        self._members: list[Any] = []
        self._commands: list[Running] = []

    def start(self, role: Callable[..., None], *arguments: Any, name: str | None = None) -> Any:
        """A process that plays the role with a journal of its own."""
        label = name or role.__name__
        member = _fork.Process(target=_life, args=(self._mark, self.folder, role, label, arguments), name=label)
        member.start()
        self._members.append(member)
        return member

    def command(self, *arguments: str) -> Running:
        """`holdfast …`, as a person would start it."""
        environment = unmeasured() | {MARK: self._mark, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        stem = self.folder / f"command-{len(self._commands) + 1}"
        with mock.patch.dict(os.environ, environment, clear=True):
            self._commands.append(Running(arguments, stem, ROOT))
        return self._commands[-1]

    def finish(self, timeout_s: float = 300.0) -> list[str]:
        """Wait until all have ended by themselves; who has not, and who left a child behind."""
        end = time.monotonic() + timeout_s
        for member in self._members:
            member.join(max(0.0, end - time.monotonic()))
        problems = [f"{member.name} {member.pid} did not end" for member in self._members if member.is_alive()]
        return problems + self.leftovers()

    def leftovers(self, within_s: float = 15.0) -> list[str]:
        """Processes that carry the crew's mark though nobody we started is alive; they get a moment to notice."""
        ours = {member.pid for member in self._members} | {one.pid for one in self._commands if not one.has_ended()}
        end = time.monotonic() + within_s
        while (found := self._marked() - ours) and time.monotonic() < end:
            time.sleep(0.05)
        return [f"process {pid} was left behind: {_command_line(pid)}" for pid in sorted(found)]

    def __enter__(self) -> Crew:
        return self

    def __exit__(self, *_: object) -> None:
        for member in self._members:
            if member.is_alive():
                member.kill()
            member.join()
        for command in self._commands:
            command.kill()
        for pid in self._marked():
            os.kill(pid, signal.SIGKILL)

    def _marked(self) -> set[int]:
        wanted, found = f"{MARK}={self._mark}".encode(), set()
        for entry in Path("/proc").iterdir():
            try:
                if entry.name.isdigit() and wanted in (entry / "environ").read_bytes().split(b"\0"):
                    found.add(int(entry.name))
            except OSError:  # it has ended meanwhile, or is another user's
                continue
        return found - {os.getpid()}


def _command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace").strip()[:80]
    except OSError:
        return "ended just now"


def wait_until(condition: Callable[[], bool], timeout_s: float, every_s: float = 0.02) -> bool:
    end = time.monotonic() + timeout_s
    while not condition():
        if time.monotonic() > end:
            return False
        time.sleep(every_s)
    return True
