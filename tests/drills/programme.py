"""Which faults there are, on which engine each is played, and a fresh setting for each."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
import traceback
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg

from tests.drills.faults import (
    corrupt_file,
    disk_full,
    jumping_clock,
    main_process,
    power_loss,
    server_killed,
    torn_log,
    two_processes,
    workers,
    zombies,
)
from tests.drills.scene import Setting, Tally

Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    drill: Callable[[Setting], Tally]
    is_postgres: bool = False
    kills_server: bool = False


ON_SQLITE = (
    Part("workers", workers.drill),
    Part("main", main_process.drill),
    Part("zombies", zombies.drill),
    Part("two", two_processes.drill),
    Part("full", disk_full.drill),
    Part("torn", torn_log.drill),
    Part("corrupt", corrupt_file.drill),
    Part("clock", jumping_clock.drill),
    Part("power", power_loss.drill),
)
ON_POSTGRES = (
    Part("workers-postgres", workers.drill, is_postgres=True),
    Part("zombies-postgres", zombies.drill, is_postgres=True),
    Part("two-postgres", two_processes.drill, is_postgres=True),
    Part("server-postgres", server_killed.drill, is_postgres=True, kills_server=True),
)


def play(part: Part, *, seed: int, quick: bool, say: Say, server: str | None = None) -> Tally:
    """One fault in a folder of its own, on the Postgres server at that URL if it is one for Postgres.

    What the drill leaves is removed when all held, and kept for a look when not.
    """
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-drill-{part.name}-"))
    places = _Databases(server) if part.is_postgres and server else _Files(folder)
    setting = Setting(
        folder=folder,
        rng=random.Random(f"{seed}/{part.name}"),
        quick=quick,
        fresh=places.fresh,
        say=lambda text: say(f"{part.name}: {text}"),
        server=server,
    )
    began = time.monotonic()
    try:
        tally = part.drill(setting)
    except Exception as error:  # the other faults are still worth their table
        traceback.print_exc()
        tally = Tally(fault=part.name, problems=[f"the drill itself failed: {type(error).__name__}: {error}"])
    tally.seconds = round(time.monotonic() - began, 1)
    tally.fault += ", Postgres" if part.is_postgres else ""
    if tally.holds:
        shutil.rmtree(folder)
        places.remove()
    else:
        tally.notes.append(f"journals and stores are kept: {folder} {' '.join(places.made)}".rstrip())
    return tally


class _Files:
    def __init__(self, folder: Path) -> None:
        self._folder, self.made = folder, list[str]()

    def fresh(self) -> str:
        self.made.append(str(self._folder / f"store-{len(self.made) + 1}.db"))
        return self.made[-1]

    def remove(self) -> None:
        """They go with their folder."""


class _Databases:
    _numbers = count(1)

    def __init__(self, server: str) -> None:
        self._server, self.made = server, list[str]()

    def fresh(self) -> str:
        name = f"holdfast_drill_{time.time_ns()}_{next(self._numbers)}"
        self._command(f"CREATE DATABASE {name}")
        self.made.append(f"{self._server.rpartition('/')[0]}/{name}")
        return self.made[-1]

    def remove(self) -> None:
        for url in self.made:
            self._command(f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")

    def _command(self, statement: str) -> None:
        with psycopg.connect(self._server, autocommit=True) as connection:
            connection.execute(statement.encode())
