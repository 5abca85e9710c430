"""The drill: real processes, real faults, and a table of what was lost. `make drill` runs all of it.

    .venv/bin/python tests/drills/run.py [--quick] [--json] [--seed N] [--only NAME] [--url postgresql://…]

What is killed, stopped or torn, and how often, follows from the seed; the instants depend on the machine.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import time
from contextlib import ExitStack
from dataclasses import asdict
from pathlib import Path

ROOT = str(Path(__file__).resolve().parents[2])
sys.path[0] = ROOT  # in place of this folder
os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, (ROOT, os.environ.get("PYTHONPATH"))))

from tests.drills import table  # noqa: E402
from tests.drills.programme import ON_POSTGRES, ON_SQLITE, Part, play  # noqa: E402
from tests.drills.scene import Tally  # noqa: E402
from tests.postgres import postgres_server  # noqa: E402


def main() -> int:
    options = _options()
    parts = [*ON_SQLITE, *(() if options.quick and not options.only else ON_POSTGRES)]
    if options.only:
        parts = [part for part in parts if part.name in options.only]
    if options.url:
        parts = [part for part in parts if part.is_postgres and not part.kills_server]
    _say(f"seed {options.seed}; {', '.join(part.name for part in parts)}")
    began = time.monotonic()
    tallies = _play(parts, options)
    holds = bool(tallies) and all(tally.holds for tally in tallies)
    if options.json:
        rows = [asdict(tally) | {"holds": tally.holds} for tally in tallies]
        print(json.dumps({"seed": options.seed, "quick": options.quick, "holds": holds, "faults": rows}, indent=2))
    else:
        print(table.render(tallies))
        said = "everything holds" if holds else "SOMETHING BROKE"
        print(f"\n{said}; {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 0 if holds else 1


def _play(parts: list[Part], options: argparse.Namespace) -> list[Tally]:
    tallies: list[Tally] = []
    with ExitStack() as stack:
        server = options.url
        for part in parts:
            if part.is_postgres and server is None:
                server = stack.enter_context(postgres_server())
            tallies.append(play(part, seed=options.seed, quick=options.quick, say=_say, server=server))
            _say(f"{part.name}: {'holds' if tallies[-1].holds else 'BROKEN'}, {tallies[-1].seconds:.0f} s")
    return tallies


def _options() -> argparse.Namespace:
    names = [part.name for part in (*ON_SQLITE, *ON_POSTGRES)]
    parser = argparse.ArgumentParser(description="Break everything that can break, and count what was lost.")
    parser.add_argument("--quick", action="store_true", help="a small dose of each fault, SQLite only; under a minute")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="chosen by chance if not given")
    parser.add_argument("--only", action="append", choices=names, metavar="NAME", help=f"one of {', '.join(names)}")
    parser.add_argument(
        "--url", metavar="URL", help="the faults for Postgres, on this server instead of one of our own"
    )
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"drill: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
