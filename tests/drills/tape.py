"""A store whose log is long and was never closed, and what the store held after each of its transactions."""

from __future__ import annotations

import bisect
import os
import random
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, Task
from holdfast.store.store import Store, open_store
from tests.drills import picture, roles
from tests.drills.crew import Crew
from tests.drills.journal import Journal, read

HEADER, FRAME = 32, 24 + 4096  # bytes of the log's own header, and of each page in it with its header


@dataclass(frozen=True, slots=True)
class Tape:
    file: Path  # as it was before the log began
    log: bytes
    marks: list[tuple[int, str]]  # length of the log after each acknowledged call, and the digest of the store then

    def after(self, torn: bytes) -> tuple[int, str]:
        """How many transactions lie whole before the first difference, and the store's digest after them."""
        length = min(len(self.log), len(torn))
        same = bisect.bisect_left(range(length), True, key=lambda end: self.log[: end + 1] != torn[: end + 1])
        whole = 0 if same < HEADER else HEADER + (same - HEADER) // FRAME * FRAME
        return [(place, digest) for place, (mark, digest) in enumerate(self.marks) if mark <= whole][-1]


def record(folder: Path, calls: int) -> Tape:
    folder.mkdir()
    url = folder / "store.db"
    with Crew(folder) as crew:
        crew.start(taper, str(url), calls)
        problems = crew.finish(120.0)
    notes = read(folder).notes
    problems += [note["crash"] for note in notes if "crash" in note]
    if problems:
        raise RuntimeError(f"the tape could not be recorded: {problems}")
    marks = [(note["log"], note["digest"]) for note in notes if "log" in note]
    log = Path(f"{url}-wal").read_bytes()[: marks[-1][0]]
    assert marks[0][0] == 0 and len(log) == marks[-1][0]
    return Tape(url, log, marks)


def taper(journal: Journal, url: str, calls: int) -> None:
    """Fills the log, one call at a time, and notes after each what there is. It ends without closing anything."""
    store = open_store(url)
    begun = store.runs.begin(kind="drill", model_ref="none", settings={}, salt="d", who="drill", now=1.0).result()
    holding = sqlite3.connect(url, isolation_level=None)
    holding.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    holding.execute("BEGIN")
    holding.execute("SELECT count(*) FROM runs").fetchone()  # while this reader looks, no part of the log is moved
    log, held, chance = Path(f"{url}-wal"), list[Claim](), random.Random(calls)
    for number in range(calls + 1):
        journal.notes(log=log.stat().st_size, digest=picture.take(url).digest())
        _any_call(store, begun.id, number, held, chance)
    os._exit(0)


def _any_call(store: Store, run: str, number: int, held: list[Claim], chance: random.Random) -> None:
    """Enqueue, claim, write, score, finish, sweep, note or publish: each of them is one transaction."""
    now, kind = 10.0 + number, chance.choice("eecaassffwlp") if number > 3 else "ec"[number % 2]
    if kind == "c":
        held += store.queue.claim(run, "taper", now=now, lease_s=1000.0, most=3).result()
    elif kind == "a" and held:
        spans = [roles.span(number * 10 + place) for place in range(3)]
        store.traces.add(held[0].attempt, spans, now=now).result()
    elif kind == "s" and held:
        reward = RewardTerm(name="n", value=1.0, source="rule:drill")
        store.traces.score(held[0].attempt, [reward], now=now, first=number).result()
    elif kind == "f" and held:
        state = chance.choice((AttemptState.SUCCEEDED, AttemptState.FAULT, AttemptState.RELEASED))
        store.queue.finish(held.pop(0).attempt, state, now=now, reward=0.5, output={"n": number}).result()
    elif kind == "w":
        store.queue.sweep(now=now + 2000.0).result()
        held.clear()
    elif kind == "l":
        store.ledger.append("note", {"note": f"call {number}"}, who="taper", now=now).result()
    elif kind == "p":
        store.versions.publish({"prompt": f"version {number}"}, now=now).result()
    else:
        tasks = [Task(name=f"task-{number}-{n}", input={"prompt": roles.PADDING[:300]}) for n in range(4)]
        store.queue.enqueue(run, tasks, now=now).result()
