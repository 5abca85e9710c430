"""The drill: real processes, real faults, and a table of what was lost. `make drill` runs all of it.

    .venv/bin/python tests/drills/run.py [--quick] [--json] [--seed N] [--only NAME] [--url postgresql://…]

What is killed, stopped or torn, and how often, follows from the seed; the instants depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import tempfile
import textwrap
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass
from pathlib import Path

import psycopg

ROOT = str(Path(__file__).resolve().parents[2])
if __name__ == "__main__":
    sys.path[0] = ROOT  # in place of this folder
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

from tests.drills.faults import damage, disk_full, main_process, power_loss, processes, server_killed  # noqa: E402
from tests.drills.scene import Setting, Tally  # noqa: E402
from tests.postgres import postgres_server  # noqa: E402

WIDTH = 80
COLUMNS = ("rounds", "events", "rollouts", "lost", "twice", "stale", "chain")
LEGEND = {
    "events": "kills, stops, fillings, tears, damages, jumps, or calls under watch",
    "lost": "acknowledged, and not there afterwards",
    "twice": "rollouts finished more than once",
    "stale": "writes accepted from an attempt that had lost its rollout",
    "chain": "ledger entries whose hashes were computed anew",
}


@dataclass(frozen=True, slots=True)
class Part:
    name: str
    drill: Callable[[Setting], Tally]
    is_postgres: bool = False
    kills_server: bool = False


ON_SQLITE = (
    Part("workers", processes.killed_workers),
    Part("main", main_process.drill),
    Part("zombies", processes.zombies),
    Part("two", processes.two_processes),
    Part("full", disk_full.drill),
    Part("torn", damage.torn_log),
    Part("corrupt", damage.corrupt_file),
    Part("clock", processes.jumping_clock),
    Part("power", power_loss.drill),
)
ON_POSTGRES = (
    Part("workers-postgres", processes.killed_workers, is_postgres=True),
    Part("zombies-postgres", processes.zombies, is_postgres=True),
    Part("two-postgres", processes.two_processes, is_postgres=True),
    Part("server-postgres", server_killed.drill, is_postgres=True, kills_server=True),
)


def play(part: Part, *, seed: int, quick: bool, say: Callable[[str], None], server: str | None = None) -> Tally:
    """One fault in a folder of its own, on the Postgres server at that URL if it is one for Postgres.

    What the drill leaves is removed when all held, and kept for a look when not.
    """
    folder, made = Path(tempfile.mkdtemp(prefix=f"holdfast-drill-{part.name}-")), list[str]()

    def fresh() -> str:
        made.append(str(folder / f"store-{len(made) + 1}.db"))
        if part.is_postgres and server:
            name = f"holdfast_drill_{time.time_ns()}"
            _command(server, f"CREATE DATABASE {name}")
            made[-1] = f"{server.rpartition('/')[0]}/{name}"
        return made[-1]

    setting = Setting(
        folder=folder,
        rng=random.Random(f"{seed}/{part.name}"),
        quick=quick,
        fresh=fresh,
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
    if not tally.holds:
        tally.notes.append(f"journals and stores are kept: {folder} {' '.join(made)}".rstrip())
        return tally
    shutil.rmtree(folder)
    for url in made if part.is_postgres and server else ():
        _command(str(server), f"DROP DATABASE {url.rpartition('/')[2]} WITH (FORCE)")
    return tally


def _command(server: str, statement: str) -> None:
    with psycopg.connect(server, autocommit=True) as connection:
        connection.execute(statement.encode())


def render(tallies: Sequence[Tally]) -> str:
    """The table: a row for each fault, 80 columns wide, and below it what there is to say."""
    lines = [_row("fault", COLUMNS, "verdict"), "─" * WIDTH]
    lines += [_row(t.fault, [getattr(t, name) for name in COLUMNS], "holds" if t.holds else "BROKEN") for t in tallies]
    lines += ["─" * WIDTH, *(f"{name:<8} {meaning}" for name, meaning in LEGEND.items()), ""]
    for tally in tallies:
        texts = [f"  {text}" for text in _told(tally)]
        wrapped = (textwrap.wrap(text, WIDTH, subsequent_indent="    ", break_long_words=False) for text in texts)
        lines += [f"{tally.fault} ({tally.seconds:.0f} s)", *(line for one in wrapped for line in one)]
    return "\n".join(lines)


def _row(fault: str, values: Sequence[object], verdict: str) -> str:
    cells = [f"{value!s:>{len(name)}}" for value, name in zip(values, COLUMNS, strict=True)]
    return f"{fault:<25}{' '.join(cells)}  {verdict}"


def _told(tally: Tally) -> Iterator[str]:
    seen = {
        "attempts written off": tally.written_off,
        "calls whose answer nobody took": tally.unanswered,
        "writes tried after the loss": tally.tried_stale,
    }
    if any(seen.values()):
        yield "; ".join(f"{n} {what}" for what, n in seen.items() if n)
    yield from tally.notes
    yield from (f"BROKEN {text}" for text in tally.problems)


def main() -> int:
    options = _options()
    parts = [*ON_SQLITE, *(() if options.quick and not options.only else ON_POSTGRES)]
    if options.only:
        parts = [part for part in parts if part.name in options.only]
    if options.url:
        parts = [part for part in parts if part.is_postgres and not part.kills_server]
    _say(f"seed {options.seed}; {', '.join(part.name for part in parts)}")
    began, tallies = time.monotonic(), list[Tally]()
    with ExitStack() as stack:
        server = options.url
        for part in parts:
            if part.is_postgres and server is None:
                server = stack.enter_context(postgres_server())
            tallies.append(play(part, seed=options.seed, quick=options.quick, say=_say, server=server))
            _say(f"{part.name}: {'holds' if tallies[-1].holds else 'BROKEN'}, {tallies[-1].seconds:.0f} s")
    holds = bool(tallies) and all(tally.holds for tally in tallies)
    if options.json:
        rows = [asdict(tally) | {"holds": tally.holds} for tally in tallies]
        print(json.dumps({"seed": options.seed, "quick": options.quick, "holds": holds, "faults": rows}, indent=2))
    else:
        said = "everything holds" if holds else "SOMETHING BROKE"
        kills = sum(tally.kills for tally in tallies)
        print(f"{render(tallies)}\n\n{said}; {kills} by kill -9; {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 0 if holds else 1


def _options() -> argparse.Namespace:
    names = [part.name for part in (*ON_SQLITE, *ON_POSTGRES)]
    parser = argparse.ArgumentParser(description="Break everything that can break, and count what was lost.")
    parser.add_argument("--quick", action="store_true", help="a small dose of each fault, SQLite only; under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="chosen by chance if not given")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument("--url", help="the faults for Postgres, on this server instead of one of our own")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"drill: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
