"""The Postgres server dies, by kill -9 or by an immediate stop, and comes back; who uses it connects anew and goes on.

A worker that talks to the store directly keeps its store and repeats what it got no answer to; a pool ends with the
error and is started again, as its supervisor would. What was acknowledged before the server died is there afterwards.
"""

from __future__ import annotations

import os
import shlex
import signal
import subprocess
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psycopg

from holdfast.contracts.errors import Refused, StaleLease, StoreError
from holdfast.store.store import open_store
from tests.drills import roles
from tests.drills.crew import wait_until
from tests.drills.journal import Journal, Witness
from tests.drills.scene import Setting, Tally, scene, verdict
from tests.postgres import binary

LEASE_S = 2.0


class Server:
    """A running server that may be killed, and how it was started."""

    def __init__(self, url: str) -> None:
        with psycopg.connect(url) as connection:
            self._data = Path(connection.execute("SHOW data_directory").fetchone()[0])
        self._as = ["runuser", "-u", self._data.owner(), "--"] if os.getuid() == 0 else []

    def kill(self) -> None:
        """kill -9 of the server; its own processes notice and end."""
        pid = int((self._data / "postmaster.pid").read_text().splitlines()[0])
        options = self._options()
        os.kill(pid, signal.SIGKILL)
        wait_until(lambda: not Path(f"/proc/{pid}").exists(), 10.0)
        if not wait_until(lambda: self._control("-o", options, "start"), 20.0, 0.25):
            raise RuntimeError("the server did not start again")  # refused while one of the old processes lives

    def stop(self) -> None:
        """An immediate stop: no checkpoint, so that the next start has to recover."""
        options = self._options()
        if not (self._control("-m", "immediate", "stop") and self._control("-o", options, "start")):
            raise RuntimeError("the server did not stop, or did not start again")

    def _options(self) -> str:
        """What the running one was started with, but for the folder."""
        return shlex.join(shlex.split((self._data / "postmaster.opts").read_text())[3:])

    def _control(self, *arguments: str) -> bool:
        command = [*self._as, binary("pg_ctl"), "-D", str(self._data), "-w", "-l", str(self._data.parent / "log")]
        quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL}
        return subprocess.run([*command, *arguments], cwd="/", **quiet).returncode == 0


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="server killed")
    assert setting.server is not None
    kills, server = 2 if setting.quick else 20, Server(setting.server)
    with scene(setting, queue_limit=None) as here:
        crew = [here.crew.start(persistent, here.url, here.run, who, name=who) for who in ("ann", "bob")]
        for _ in range(2):
            here.crew.start(supervised, here.url, here.run, roles.Work(lease_s=LEASE_S))
        for number in range(kills):
            time.sleep(setting.rng.uniform(0.3, 1.5))
            (server.kill if number % 2 else server.stop)()
            setting.say(f"{number + 1} of {kills} times")
        time.sleep(1.0)
        for member in crew:
            os.kill(member.pid, signal.SIGTERM)
        problems = here.work_off()
    tally.events, tally.kills = kills, kills // 2  # every other one is an immediate stop
    tally.add(verdict(here.url, here.folder, problems))
    return tally


def persistent(journal: Journal, url: str, run: str, who: str) -> None:
    """Keeps its store whatever becomes of the server, and repeats what it got no answer to, until told to stop."""
    told, number = roles.told_to_stop(), 0
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        while not told.is_set():
            tasks = [roles.task(f"{who}-{number}-{place}") for place in range(2)]
            _until_answered(lambda tasks=tasks: store.queue.enqueue(run, tasks, now=time.time()))
            number += 1
            _until_answered(lambda: store.queue.sweep(now=time.time(), backoff=roles.SOON))
            claims = _until_answered(lambda: store.queue.claim(run, who, now=time.time(), lease_s=LEASE_S, most=2))
            for claim in claims:
                with suppress(StaleLease):
                    _until_answered(lambda a=claim.attempt: store.traces.add(a, [roles.span(1)], now=time.time()))
                    _until_answered(lambda a=claim.attempt: roles.succeed(store, a))


def _until_answered(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call().result()
        except StoreError as error:
            if isinstance(error, Refused):
                raise
            if "duplicate key" in error.why:
                return None  # the first try was kept after all
            time.sleep(0.05)


def supervised(journal: Journal, url: str, run: str, work: roles.Work) -> None:
    """A pool that is started again whenever the store failed it."""
    while True:
        try:
            roles.pool_worker(journal, url, run, work)
            return
        except StoreError as error:
            journal.notes(restarted=str(error))
            time.sleep(0.1)
