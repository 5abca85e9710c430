"""The drill of the pipeline: runs that improve a prompt, a model or a network are killed, and must come to the same.

    .venv/bin/python tests/drills/pipeline.py [--quick] [--json] [--seed N] [--only KIND]

Each is driven once in peace; then killed -9 at every boundary of its steps, before and after the step is recorded; then
at instants of no meaning, once or twice in each run. Weights, token ids, rewards, evidence and decision must be those
of the run that nobody disturbed.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

if __name__ == "__main__":
    sys.path[0] = str(Path(__file__).resolve().parents[2])  # in place of this folder
    os.environ["OMP_NUM_THREADS"] = "1"  # processes are forked from here: nothing may run beside it

from tests.pipeline.learning import SPECS, Ended, through
from tests.workloads.scene import tiny

INSTANTS, QUICK = 30, 3  # of no meaning, for each kind


@dataclass
class Row:
    """Of the table: one kind of run."""

    kind: str
    runs: int = 0
    kills: int = 0
    steps: int = 0
    seconds: float = 0.0
    differing: list[str] = field(default_factory=list)


def cases(kind: str, seed: int) -> Iterator[tuple[str, list[float] | None]]:
    """Names, and when to kill in shares of the time that one in peace takes; None: at every boundary."""
    yield "in peace", []
    yield "boundaries", None
    rng = random.Random(f"{seed}/{kind}")
    for number in count(1):
        times = 1 + rng.randrange(2)  # three lost workers would be the agent's failure, by the rules
        yield f"instant {number}", [rng.random() / times for _ in range(times)]


def drill(kind: str, folder: Path, seed: int, instants: int) -> Row:
    row, calm, killed = Row(kind), Ended(kills=0, seconds=0.0), 0
    for name, shares in cases(kind, seed):
        at = Path(tempfile.mkdtemp(dir=folder))
        seconds = None if shares is None else [share * calm.seconds for share in shares]
        ended = through(kind, str(folder / "tiny"), str(at / "store.db"), seconds)
        if not calm.came:
            calm, row.steps = ended, len(ended.came["steps"])
        row.runs, row.kills, row.seconds = row.runs + 1, row.kills + ended.kills, row.seconds + ended.seconds
        differs = sorted(part for part in calm.came if ended.came[part] != calm.came[part])
        row.differing += [f"{name}: {', '.join(differs)}"] if differs else []
        _say(f"{kind}: {name}, {ended.kills} kills, {'DIFFERS' if differs else 'the same'}, {ended.seconds:.0f} s")
        killed += ended.kills if shares else 0  # one that came too late does not count
        if killed >= instants:
            break
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description="Kill runs that improve, and compare what they come to.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} instants of each kind in place of {INSTANTS}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--seed", type=int, default=random.randrange(1_000_000), help="chosen by chance if not given")
    parser.add_argument("--only", action="append", choices=[*SPECS], help="this kind of run")
    options, began = parser.parse_args(), time.monotonic()
    with tempfile.TemporaryDirectory() as folder:
        tiny(Path(folder) / "tiny")
        instants = QUICK if options.quick else INSTANTS
        rows = [drill(kind, Path(folder), options.seed, instants) for kind in options.only or SPECS]
    holds = not any(row.differing for row in rows)
    if options.json:
        told = [asdict(row) | {"holds": not row.differing} for row in rows]
        print(json.dumps({"seed": options.seed, "quick": options.quick, "holds": holds, "kinds": told}, indent=2))
    else:
        print(f"{'kind':10}{'runs':>6}{'steps':>7}{'kills':>7}{'differing':>11}{'seconds':>9}")
        for row in rows:
            print(f"{row.kind:10}{row.runs:6}{row.steps:7}{row.kills:7}{len(row.differing):11}{row.seconds:9.0f}")
            print("".join(f"  {text}\n" for text in row.differing), end="")
        said = "all came to the same bytes" if holds else "SOMETHING DIFFERS"
        kills = sum(row.kills for row in rows)
        print(f"\n{said}; {kills} by kill -9; {time.monotonic() - began:.0f} s, seed {options.seed}")
    return 0 if holds else 1


def _say(text: str) -> None:
    print(f"drill: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
