"""The Postgres server dies, by kill -9 or by an immediate stop, and comes back; those who use it connect anew and go on.

A worker that talks to the store directly keeps its store and repeats what it got no answer to; a pool ends with the error
and is started again, as whoever supervises it would. What was acknowledged before the server died is there afterwards.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from pathlib import Path

import psycopg

from tests.drills import roles
from tests.drills.crew import wait_until
from tests.drills.scene import Setting, Tally, scene, verdict
from tests.postgres import binary


class Server:
    """A running server that may be killed, and how it was started."""

    def __init__(self, url: str) -> None:
        self._url = url
        with psycopg.connect(url) as connection:
            self._data = Path(connection.execute("SHOW data_directory").fetchone()[0])
        owner = self._data.owner()
        self._as = ["runuser", "-u", owner, "--"] if os.getuid() == 0 else []

    def kill(self) -> None:
        """kill -9 of the server; its own processes notice and end."""
        pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        options = self._options()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10.0)
        for _ in range(20):  # while one of them still lives, a new server is refused
            if self._control("-o", options, "start") == 0:
                return
            time.sleep(0.25)
        raise RuntimeError("the server did not start again")

    def stop(self) -> None:
        """An immediate stop: no checkpoint, so that the next start has to recover."""
        options = self._options()
        if self._control("-m", "immediate", "stop") or self._control("-o", options, "start"):
            raise RuntimeError("the server did not stop, or did not start again")

    def _options(self) -> str:
        """What the running one was started with, but for the folder."""
        return shlex.join(shlex.split((self._data / "postmaster.opts").read_text())[3:])

    def _control(self, *arguments: str) -> int:
        command = [*self._as, binary("pg_ctl"), "-D", str(self._data), "-w", "-l", str(self._data.parent / "log")]
        return subprocess.run(
            [*command, *arguments], cwd="/", stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
        ).returncode


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="server killed")
    kills = 2 if setting.quick else 10
    server = Server(setting.server)
    with scene(setting, queue_limit=None) as here:
        crew = [here.crew.start(roles.persistent, here.url, here.run, who, name=who) for who in ("ann", "bob")]
        for _ in range(2):
            here.crew.start(roles.supervised, here.url, here.run, roles.Work(lease_s=2.0))
        for number in range(kills):
            time.sleep(setting.rng.uniform(0.3, 1.5))
            (server.kill if number % 2 else server.stop)()
            setting.say(f"{number + 1} of {kills} times")
        time.sleep(1.0)
        for member in crew:
            os.kill(member.pid, signal.SIGTERM)
        problems = here.work_off(60.0)
    tally.events = kills
    tally.add(verdict(here.url, here.folder, problems))
    return tally
