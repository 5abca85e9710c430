"""How much the tests notice: a seeded sample of mutants per room, each against the tests of that room.

    python tools/mutate.py [ROOM …] [--sample 40] [--seed 0] [--minutes 30] [--jobs 2] [--near] [--json]

mutmut makes the mutants. The tests are run here, each time in fresh processes on a copy of the repository: they start
servers and workers of their own, which mutmut's runner, a fork of one warm process, can neither trace nor stop.
A mutant is tried on the test files that import its module first, then on the rest of the room's tests; with --near on
the first alone, which a room whose tests take long needs: what is killed then is a lower bound.
"""

from __future__ import annotations

import argparse
import compileall
import difflib
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from py_compile import PycInvalidationMode
from queue import SimpleQueue
from typing import Any

import libcst
from mutmut.mutation.file_mutation import Mutation, create_mutations, deep_replace

ROOT = Path(__file__).resolve().parents[1]
GENERATED = shutil.ignore_patterns(".git", ".venv*", ".holdfast", "__pycache__", ".*_cache", ".hypothesis", "build")


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
        lines = list(difflib.unified_diff(self.source.splitlines(), self.code().splitlines(), n=0, lineterm=""))[2:]
        where = lines[0].split()[1].lstrip("-").partition(",")[0]
        return "\n".join([f"{self.path}:{where}", *(f"    {line}" for line in lines[1:] if not line.startswith("@@"))])


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


def tests_pass(tree: Path, selection: list[str], limit_s: float) -> bool | None:
    """Run pytest on a copy of the repository; None when the time was up."""
    left_out = ("COVERAGE", "PYTHONDONTWRITEBYTECODE")
    env = {name: value for name, value in os.environ.items() if not name.startswith(left_out)}
    env["PYTHONPATH"] = str(tree / "src")
    command = [sys.executable, "-m", "pytest", "-x", "-q", "-p", "no:cacheprovider", "--hypothesis-seed=0", *selection]
    quiet = {"stdout": subprocess.DEVNULL, "stderr": subprocess.DEVNULL, "stdin": subprocess.DEVNULL}
    run = subprocess.Popen(command, cwd=tree, env=env, start_new_session=True, **quiet)
    try:
        return run.wait(max(limit_s, 0.0)) in (0, 5)  # 5: nothing to run
    except subprocess.TimeoutExpired:
        run.send_signal(signal.SIGINT)  # lets fixtures stop their servers
        try:
            run.wait(15)
        except subprocess.TimeoutExpired:
            os.killpg(run.pid, signal.SIGKILL)
            run.wait()
        return None


def tests_near(path: Path, room: str) -> list[str]:
    """The room's test files that are named like the module, or import it."""
    name = ".".join(path.with_suffix("").parts[1:])
    files = sorted(Path("tests", room).rglob("test_*.py"))
    return [str(one) for one in files if one.stem == f"test_{path.stem}" or f"{name} import" in one.read_text("utf-8")]


def limit_of(selection: list[str], tree: Path, end: float) -> float | None:
    """Seconds within which tests end that take thrice as long as now, without a mutant; None where they do not pass."""
    begun = time.monotonic()
    return 20 + 3 * (time.monotonic() - begun) if tests_pass(tree, selection, end - begun) else None


def is_killed(mutant: Mutant, room: str, tree: Path, limit_s: float, end: float, *, is_near: bool) -> bool | None:
    """True when a test failed or hung; None when the whole run's time was up first."""
    target, near = tree / mutant.path, tests_near(mutant.path, room)
    rest = [f"tests/{room}", *(f"--ignore={test}" for test in near)]
    target.write_text(mutant.code(), encoding="utf-8")
    try:
        for selection in (near,) if is_near else (near, rest) if near else (rest,):
            if not tests_pass(tree, selection, min(limit_s, end - time.monotonic())):
                return True if time.monotonic() < end else None
        return False
    finally:
        target.write_text(mutant.source, encoding="utf-8")


def try_room(room: str, trees: list[Path], given: argparse.Namespace, room_end: float, end: float) -> dict[str, Any]:
    mutants = mutants_of(room)
    chosen = random.Random(f"{given.seed}/{room}").sample(mutants, min(given.sample, len(mutants)))
    limits: dict[str, float | None] = {}  # by module
    if not given.near:
        limits[""] = limit_of([f"tests/{room}"], trees[0], room_end)
        if limits[""] is None:
            print(f"{room}: its tests fail, or outlast its share of the time, without any mutant", file=sys.stderr)
            chosen = []
    free: SimpleQueue[Path] = SimpleQueue()
    for tree in trees:
        free.put(tree)

    def attempt(mutant: Mutant) -> bool | None:
        if time.monotonic() > room_end:
            return None
        tree, near = free.get(), tests_near(mutant.path, room) if given.near else []
        name = str(mutant.path) if given.near else ""
        if name not in limits:
            limits[name] = limit_of(near, tree, room_end) if near else None
        limit_s = limits[name]
        killed = None if limit_s is None else is_killed(mutant, room, tree, limit_s, end, is_near=given.near)
        free.put(tree)
        print(".", end="", file=sys.stderr, flush=True)
        return killed

    with ThreadPoolExecutor(len(trees)) as pool:
        verdicts = list(zip(chosen, pool.map(attempt, chosen), strict=True))
    print(f" {room}", file=sys.stderr)
    tried = [killed for _, killed in verdicts if killed is not None]
    survivors = [mutant.diff() for mutant, killed in verdicts if killed is False]
    counts = {"mutants": len(mutants), "tried": len(tried), "killed": sum(tried)}
    return counts | {"score": round(sum(tried) / max(len(tried), 1), 3), "survivors": survivors}


def report(rooms: dict[str, dict[str, Any]], given: argparse.Namespace) -> None:
    """The mutants nobody noticed, and a table; the overall score weighs each room by how many mutants it has."""
    total = {name: sum(result[name] for result in rooms.values()) for name in ("mutants", "tried", "killed")}
    weights = {room: result["mutants"] for room, result in rooms.items() if result["tried"]}
    weighed = sum(rooms[room]["score"] * weight for room, weight in weights.items())
    total["score"] = round(weighed / max(sum(weights.values()), 1), 3)
    if given.json:
        print(json.dumps({"seed": given.seed, "rooms": rooms, "overall": total}, indent=2))
        return
    print(*(survivor for result in rooms.values() for survivor in result["survivors"]), sep="\n")
    print(f"\n| room (seed {given.seed}) | mutants | tried | killed | score |\n|---|---:|---:|---:|---:|")
    for room, result in [*rooms.items(), ("overall", total)]:
        score = f"{result['score']:.0%}" if result["tried"] else "-"
        print(f"| {room} | {result['mutants']} | {result['tried']} | {result['killed']} | {score} |")


def main() -> None:
    rooms = sorted(path.name for path in (ROOT / "src/holdfast").iterdir() if (ROOT / "tests" / path.name).is_dir())
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("rooms", nargs="*", metavar="ROOM", help=f"of {', '.join(rooms)}; all unless named")
    parser.add_argument("--sample", type=int, default=40, help="mutants a room")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--minutes", type=float, default=30, help="for all rooms; one that runs out tries fewer")
    parser.add_argument("--jobs", type=int, default=2)
    parser.add_argument("--near", action="store_true", help="on the tests of each module alone: a lower bound")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    chosen = given.rooms or rooms
    if unknown := set(chosen) - set(rooms):
        parser.error(f"no room {', '.join(sorted(unknown))} with tests; there are {', '.join(rooms)}")
    os.chdir(ROOT)  # mutmut reads its settings from here
    end = time.monotonic() + 60 * given.minutes
    results = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-mutate-") as scratch:
        trees = [copied(Path(scratch, str(job))) for job in range(given.jobs)]
        for done, room in enumerate(chosen):
            share = (end - time.monotonic()) / (len(chosen) - done)
            results[room] = try_room(room, trees, given, time.monotonic() + share, end)
    report(results, given)
    sys.exit(0 if all(result["tried"] for result in results.values()) else 1)


if __name__ == "__main__":
    main()
