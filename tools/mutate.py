"""How much the tests notice: a seeded sample of mutants per room, each against the tests of its room.

    python -m tools.mutate [ROOM[:SAMPLE] …] [--sample 20] [--seed 0] [--minutes 60] [--seconds 30] [--jobs 1]
                           [--into FILE]

mutmut makes all mutants of a room (some 75 s of processor time for all rooms), and each is as likely to be drawn as any
other, texts of messages included. The score of several rooms is the mean of theirs, weighed by how many mutants each
has. The intervals are Wilson's, 95 %.

Each mutant lives in a copy of the repository, and its tests in a process forked from one that has imported pytest and
the libraries, but nothing of Holdfast. It is tried on the room's tests that are named like its module or a function of
it, or import it, then on the rest of the room's, then on those of other rooms that import it, until one fails or hangs.
What none has killed when `--seconds` are over counts as survived. A kill counts if its test passes without the mutant.
With `--into` a run that was stopped goes on, and rooms can be measured one by one.
"""

from __future__ import annotations

import argparse
import compileall
import json
import math
import os
import random
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from difflib import SequenceMatcher, unified_diff
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from threading import Lock
from typing import Any

import libcst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

from tests.warm import LIBRARIES, Warm

ROOT = Path(__file__).resolve().parents[1]
GENERATED = shutil.ignore_patterns(".git", ".venv*", ".holdfast", "*.pyc", ".*_cache", ".hypothesis", "build")
ROOMS = sorted(path.parent.name for path in (ROOT / "src/holdfast").glob("*/__init__.py"))
HANG_S = 240  # no test takes so long without a mutant, even where kernels are compiled anew on a busy machine
START = Lock()
Result = dict[str, Any]  # mutants, tried, killed, and of the survivors their diffs and how many are texts


class Tests(Warm):
    libraries = (
        *("pytest", "_hypothesis_pytestplugin", "hypothesis.stateful", "schemathesis", "typer.testing", *LIBRARIES),
        *("aiohttp", "alembic.command", "gymnasium", "jsonschema", "numba", "openfeature.client", "pettingzoo"),
        *("psycopg", "requests", "rich.live", "safetensors.torch", "sqlalchemy.dialects.postgresql.psycopg"),
        *("sqlalchemy.dialects.sqlite", "starlette.applications", "uvicorn"),
    )


@dataclass(frozen=True, slots=True)
class Mutant:
    path: Path  # of the source file, from the root of the repository
    source: str
    module: libcst.Module
    mutation: Mutation

    def code(self) -> str:
        changed = deep_replace(self.module, self.mutation.original_node, self.mutation.mutated_node)
        assert isinstance(changed, libcst.Module)
        return changed.code

    def diff(self) -> str:
        lines = list(unified_diff(self.source.splitlines(), self.code().splitlines(), n=0, lineterm=""))[2:]
        where = lines[0].split()[1].lstrip("-").partition(",")[0]
        return "\n".join([f"{self.path}:{where}", *(f"    {line}" for line in lines[1:] if not line.startswith("@@"))])

    def is_text(self) -> bool:
        """Whether only words for people have changed: a literal of several words."""
        node = self.mutation.original_node
        return isinstance(node, libcst.SimpleString) and " " in node.value

    def tests(self) -> list[list[str]]:
        """Its test files, nearest first: the room's that name it, the rest of the room's, others that import it."""
        name, room = ".".join(self.path.with_suffix("").parts[1:]).removesuffix(".__init__"), self.path.parts[2]
        package, _, stem = name.rpartition(".")
        named = rf"\b{name} import|import {name}\b|from {package} import .*\b{stem}\b"
        imports = re.compile(named if Path("tests", room).is_dir() else rf"{named}|\bholdfast\.{room}\b")
        found: list[list[str]] = [[], [], []]
        alike = SequenceMatcher(b=f"test_{stem}")  # what it is compared with is read once

        def unlike(file: Path) -> tuple[float, Path]:
            alike.set_seq1(file.stem)
            return -alike.ratio(), file

        for file in sorted(Path("tests").glob("*/**/test_*.py"), key=unlike):
            about = file.stem.removeprefix("test_")
            is_near = about == stem or f"def {about}(" in self.source or bool(imports.search(file.read_text("utf-8")))
            if file.parts[1] == room:
                found[not is_near].append(str(file))
            elif is_near and file.parts[1] in (*ROOMS, "security"):
                found[2].append(str(file))
        return found


def mutants_of(room: str) -> list[Mutant]:
    """Every mutant mutmut would make of the room's functions."""
    found = []
    for path in sorted((ROOT / "src/holdfast" / room).rglob("*.py")):
        if "migrations" in path.parts:
            continue
        source = path.read_text(encoding="utf-8")
        module, mutations, *_ = create_mutations(str(path), source)
        inside = [one for one in mutations if isinstance(one.contained_by_top_level_function, libcst.FunctionDef)]
        found += [Mutant(path.relative_to(ROOT), source, module, mutation) for mutation in inside]
    return found


def copied(tree: Path) -> Path:
    """A copy of the repository, compiled: it need not be compiled again for every mutant.

    Bytecode is checked by the source's hash. By time and length, a mutant of the same length, written within the same
    second, would be taken for the one before."""
    shutil.copytree(ROOT, tree, ignore=GENERATED)
    checked = compileall.compile_dir(tree / "src", quiet=2, invalidation_mode=PycInvalidationMode.CHECKED_HASH)
    assert checked, "the source cannot be compiled"
    return tree


def failed(tree: Path, tests: list[str], seconds: float, *flags: str) -> list[str]:
    """Which of the tests failed or hung on a copy of the repository; all, where something else ended them."""
    left_out, cache = ("COVERAGE", "PYTHONDONTWRITEBYTECODE"), tree / ".failed"
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    command = ["-m", "pytest", "-q", "--tb=no", "-o", f"cache_dir={cache}", "--hypothesis-seed=0", *flags, *tests]
    command += [f"--timeout={HANG_S}", "--timeout-method=signal", f"--session-timeout={max(seconds, 1)}"]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    shutil.rmtree(cache, ignore_errors=True)
    with START:
        run = Tests(command, cwd=tree, env=env | {"PYTHONPATH": str(tree / "src")}, start_new_session=True, **quiet)
    try:
        code = run.wait(seconds + HANG_S)
    except subprocess.TimeoutExpired:
        code = 0
        run.send_signal(signal.SIGINT)  # lets fixtures stop their servers
        with suppress(subprocess.TimeoutExpired):
            run.wait(15)
    with suppress(ProcessLookupError):
        os.killpg(run.pid, signal.SIGKILL)
    run.wait()
    named = cache / "v/cache/lastfailed"
    if named.is_file():
        return [test.partition("[")[0] for test in json.loads(named.read_text())]
    return [] if code in (0, 1, 5) else tests  # 1 without a name: the time was up; 5: nothing to run


def killers(mutant: Mutant, tree: Path, seconds: float) -> list[str]:
    """The tests that the mutant fails; none, where it survives."""
    target, end = tree / mutant.path, time.monotonic() + seconds
    target.write_text(mutant.code(), encoding="utf-8")
    try:
        for tests in mutant.tests():
            left_s = end - time.monotonic()
            if tests and left_s > 0 and (found := failed(tree, tests, left_s, "-x")):
                return found
        return []
    finally:
        target.write_text(mutant.source, encoding="utf-8")


def try_room(room: str, sample: int, trees: list[Path], given: argparse.Namespace, end: float) -> Result:
    mutants = mutants_of(room)
    chosen = random.Random(f"{given.seed}/{room}").sample(mutants, min(sample, len(mutants)))
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(mutant: Mutant) -> list[str] | None:
        if time.monotonic() > end:
            return None
        tree = free.get()
        found = killers(mutant, tree, given.seconds)
        free.put(tree)
        print(f"{mutant.diff()}\n    {found[0] if found else 'SURVIVED'}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(len(trees)) as pool:
        verdicts = [pair for pair in zip(chosen, pool.map(attempt, chosen), strict=True) if pair[1] is not None]
    suspected = sorted({test for _, found in verdicts for test in found or ()})
    broken = set(failed(trees[0], suspected, 1200)) if suspected else set()
    if broken:
        print(f"{room}: these fail without a mutant too, and kill none: {', '.join(sorted(broken))}", file=sys.stderr)
    survivors = [mutant for mutant, found in verdicts if not set(found or ()) - broken]
    counts = {"mutants": len(mutants), "tried": len(verdicts), "killed": len(verdicts) - len(survivors)}
    texts = sum(mutant.is_text() for mutant in survivors)
    return {**counts, "texts": texts, "survivors": [mutant.diff() for mutant in survivors]}


def wilson(share: float, n: float) -> tuple[float, float]:
    """The 95 % interval of a share that was seen in n tries."""
    z = 1.96
    middle, half = share + z * z / (2 * n), z * math.sqrt(share * (1 - share) / n + (z / (2 * n)) ** 2)
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def overall(rooms: dict[str, Result]) -> tuple[float, float]:
    """The score of all rooms, each weighed by its mutants, and of how many tries of one room it has the spread."""
    total = sum(room["mutants"] for room in rooms.values())
    parts = [(room["mutants"] / total, room["killed"] / room["tried"], room["tried"]) for room in rooms.values()]
    score = sum(weight * share for weight, share, _ in parts)
    spread = sum(weight**2 * share * (1 - share) / n for weight, share, n in parts)
    return score, score * (1 - score) / spread if spread else sum(n for *_, n in parts)


def report(rooms: dict[str, Result]) -> None:
    """The mutants nobody noticed, and a table."""
    print(*(survivor for room in rooms.values() for survivor in room["survivors"]), sep="\n")
    print("\n| room | mutants | tried | killed | score | 95 % interval | survivors that are texts |")
    print("|---|---:|---:|---:|---:|---:|---:|")
    sums = {name: sum(room[name] for room in rooms.values()) for name in ("mutants", "tried", "killed", "texts")}
    for name, room in [*rooms.items(), ("all", sums)]:
        score, n = overall(rooms) if name == "all" else (room["killed"] / room["tried"], room["tried"])
        low, high = wilson(score, n)
        counts = f"{room['mutants']} | {room['tried']} | {room['killed']}"
        print(f"| {name} | {counts} | {score:.0%} | {low:.0%} to {high:.0%} | {room['texts']} |")
    print("\nLower bounds: what was not killed in its time counts as survived, and so does what changes nothing.")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM[:SAMPLE]", help=f"of {', '.join(ROOMS)}; all unless named")
    parser.add_argument("--sample", type=int, default=20, help="mutants a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=60, help="for all rooms; one that runs out tries fewer")
    parser.add_argument("--seconds", type=float, default=30, help="a mutant's tests have; a test that began may end")
    parser.add_argument("--jobs", type=int, default=1)
    parser.add_argument("--into", type=Path, help="JSON to keep each room's result in; rooms in it are not tried again")
    given = parser.parse_args()
    results: dict[str, Result] = json.loads(given.into.read_text()) if given.into and given.into.is_file() else {}
    asked = {
        room: int(most or given.sample) for room, _, most in (word.partition(":") for word in given.rooms or ROOMS)
    }
    if unknown := set(asked) - set(ROOMS):
        parser.error(f"no room {', '.join(sorted(unknown))}; there are {', '.join(ROOMS)}")
    os.chdir(ROOT)  # mutmut reads its settings from here
    os.environ["OMP_NUM_THREADS"] = "1"  # before anything loads that would start threads, which no fork has
    end, missing = time.monotonic() + 60 * given.minutes, [room for room in asked if room not in results]
    with tempfile.TemporaryDirectory(prefix="holdfast-mutate-") as scratch:
        trees = [copied(Path(scratch, str(job))) for job in range(given.jobs)]
        for done, room in enumerate(missing):
            share_s = (end - time.monotonic()) / (len(missing) - done)
            result = try_room(room, asked[room], trees, given, time.monotonic() + share_s)
            if result["tried"]:
                results[room] = result
            if given.into:
                given.into.write_text(json.dumps(results, indent=2))
    report(results)
    sys.exit(0 if all(room in results for room in asked) else 1)


if __name__ == "__main__":
    main()
