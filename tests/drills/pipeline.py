"""The drill of the pipeline: runs that improve a prompt, a model or a network are killed, and must come to the same.

    .venv/bin/python tests/drills/pipeline.py [--quick] [--json] [--seed N] [--instants N] [--only KIND] [--folder F]

Each is driven once in peace; then killed -9 at every boundary of its steps, before and after the step is recorded; then
at instants of no meaning, once or twice in each run. Weights, token ids, rewards, evidence and decision must be those
of the run that nobody disturbed. What is done is kept in the folder: a drill that was stopped goes on there, and with
another seed or when all of it was done it begins anew.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import sys
import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, field
from itertools import count
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
if __name__ == "__main__":
    sys.path[0] = str(ROOT)  # in place of this folder
    os.environ["OMP_NUM_THREADS"] = "1"  # processes are forked from here: nothing may run beside it

from tests.pipeline.learning import SPECS, Ended, through  # noqa: E402
from tests.workloads.scene import tiny  # noqa: E402

INSTANTS = 30  # of no meaning, in all
QUICK = 3
CALM, BOUNDARIES = "in peace", "boundaries"
SEED = "seed"
BASE = "tiny"


@dataclass(frozen=True)
class Case:
    """One run, and how often and when it is killed: in shares of the time that one in peace takes."""

    kind: str
    name: str
    shares: tuple[float, ...] | None  # None: at every boundary

    @property
    def file(self) -> str:
        return f"{self.kind}-{self.name}".replace(" ", "-")


@dataclass
class Row:
    """Of the table: one kind of run."""

    kind: str
    runs: int = 0
    kills: int = 0
    steps: int = 0
    seconds: float = 0.0
    differing: list[str] = field(default_factory=list)


def cases(kind: str, seed: int) -> Iterator[Case]:
    """In peace, at every boundary, and then for as long as instants are wanted."""
    yield Case(kind, CALM, ())
    yield Case(kind, BOUNDARIES, None)
    rng = random.Random(f"{seed}/{kind}")
    for number in count(1):
        times = 1 + rng.randrange(2)  # three lost workers would be the agent's failure, by the rules
        yield Case(kind, f"instant {number}", tuple(rng.random() / times for _ in range(times)))


def drill(kind: str, folder: Path, seed: int, instants: int) -> Row:
    row, calm, killed = Row(kind), Ended(kills=0, seconds=0.0), 0
    for case in cases(kind, seed):
        ended = _kept(folder, case) or _driven(folder, case, calm)
        if case.name == CALM:
            calm, row.steps = ended, len(ended.came["steps"])
        row.runs, row.kills, row.seconds = row.runs + 1, row.kills + ended.kills, row.seconds + ended.seconds
        differs = sorted(part for part in calm.came if ended.came[part] != calm.came[part])
        if differs:
            row.differing.append(f"{case.file}: {', '.join(differs)}")
        _say(f"{kind}: {case.name}, {ended.kills} kills, {'DIFFERS' if differs else 'the same'}, {ended.seconds:.0f} s")
        killed += ended.kills if case.shares else 0  # one that came too late does not count
        if killed >= instants:
            break
    return row


def _driven(folder: Path, case: Case, calm: Ended) -> Ended:
    at = folder / case.file
    shutil.rmtree(at, ignore_errors=True)  # left by a drill that was stopped
    at.mkdir(parents=True)
    shares = None if case.shares is None else [share * calm.seconds for share in case.shares]
    ended = through(case.kind, str(folder / BASE), str(at / "store.db"), shares)
    aside = folder / f".{case.file}.json"
    aside.write_text(json.dumps(asdict(ended)))
    aside.replace(folder / f"{case.file}.json")
    shutil.rmtree(at)
    return ended


def _kept(folder: Path, case: Case) -> Ended | None:
    file = folder / f"{case.file}.json"
    return Ended(**json.loads(file.read_text())) if file.exists() else None


def _taken_up(folder: Path, seed: int | None, *, quick: bool) -> int:
    """The seed of the drill that goes on in the folder, or of a new one."""
    file = folder / SEED
    known = json.loads(file.read_text()) if file.exists() else None
    if known is not None and known["quick"] == quick and seed in (None, known["seed"]):
        _say(f"goes on in {folder}")
        return int(known["seed"])
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir(parents=True)
    chosen = random.randrange(1_000_000) if seed is None else seed
    tiny(folder / BASE)
    file.write_text(json.dumps({"seed": chosen, "quick": quick}))
    return chosen


def main() -> int:
    options, began = _options(), time.monotonic()
    folder, quick = Path(options.folder), options.quick
    seed = _taken_up(folder, options.seed, quick=quick)
    instants = options.instants or (QUICK if quick else INSTANTS)
    rows = [drill(kind, folder, seed, instants) for kind in options.only or SPECS]
    holds = not any(row.differing for row in rows)
    if options.json:
        told = [asdict(row) | {"holds": not row.differing} for row in rows]
        print(json.dumps({"seed": seed, "quick": quick, "holds": holds, "kinds": told}, indent=2))
    else:
        print(f"{'kind':10}{'runs':>6}{'steps':>7}{'kills':>7}{'differing':>11}{'seconds':>9}")
        for row in rows:
            print(f"{row.kind:10}{row.runs:6}{row.steps:7}{row.kills:7}{len(row.differing):11}{row.seconds:9.0f}")
            print("".join(f"  {text}\n" for text in row.differing), end="")
        said = "all came to the same bytes" if holds else "SOMETHING DIFFERS"
        print(f"\n{said}; {time.monotonic() - began:.0f} s, seed {seed}")
    if holds:
        shutil.rmtree(folder)
    return 0 if holds else 1


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description="Kill runs that improve, and compare what they come to.")
    parser.add_argument("--quick", action="store_true", help=f"{QUICK} instants of each kind in place of {INSTANTS}")
    parser.add_argument("--json", action="store_true", help="print one JSON object instead of the table")
    parser.add_argument("--seed", type=int, help="of the instants; chosen by chance if not given")
    parser.add_argument("--instants", type=int, metavar="N", help="at which each kind of run is killed")
    parser.add_argument("--only", action="append", choices=[*SPECS], help="this kind of run")
    parser.add_argument("--folder", default=str(ROOT / "build" / "drill-pipeline"), help="where it keeps what is done")
    return parser.parse_args()


def _say(text: str) -> None:
    print(f"drill: {text}", file=sys.stderr, flush=True)


if __name__ == "__main__":
    sys.exit(main())
