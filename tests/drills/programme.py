"""Which faults there are, on which engine each is played, and a fresh setting for each."""

from __future__ import annotations

import random
import shutil
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from itertools import count
from pathlib import Path

import psycopg

from tests.drills.faults import disk_full, jumping_clock, main_process, power_loss, server, torn_file, two_processes, workers, zombies
from tests.drills.scene import Setting, Tally

Drill = Callable[[Setting], Tally]
Say = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    drill: Drill
    postgres: bool = False


PROGRAMME = (
    Part("workers", workers.drill),
    Part("workers-postgres", workers.drill, postgres=True),
    Part("main", main_process.drill),
    Part("zombies", zombies.drill),
    Part("zombies-postgres", zombies.drill, postgres=True),
    Part("two", two_processes.drill),
    Part("two-postgres", two_processes.drill, postgres=True),
    Part("full", disk_full.drill),
    Part("torn", torn_file.drill),
    Part("clock", jumping_clock.drill),
    Part("power", power_loss.drill),
    Part("server-postgres", server.drill, postgres=True),
)
_databases = count(1)


def play(part: Part, *, seed: int, quick: bool, say: Say, server: str | None = None, owned: bool = False) -> Tally:
    """One fault in a folder of its own. `server`: a Postgres URL; `owned`: whether that server may be killed."""
    folder = Path(tempfile.mkdtemp(prefix=f"holdfast-drill-{part.name}-"))
    numbers = count(1)

    def fresh() -> str:
        if not part.postgres:
            return str(folder / f"store-{next(numbers)}.db")
        assert server is not None
        return new_database(server)

    setting = Setting(
        folder=folder,
        rng=random.Random(f"{seed}/{part.name}"),
        quick=quick,
        fresh=fresh,
        say=lambda text: say(f"{part.name}: {text}"),
        server=server if owned else None,
    )
    began = time.monotonic()
    tally = part.drill(setting)
    tally.seconds = time.monotonic() - began
    if part.postgres:
        tally.fault += " (postgres)"
    if tally.holds:
        shutil.rmtree(folder)
    else:
        tally.notes.append(f"journals and stores are kept in {folder}")
    return tally


def new_database(server: str) -> str:
    name = f"drill_{time.time_ns()}_{next(_databases)}"
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}".encode())
    return f"{server.rpartition('/')[0]}/{name}"
