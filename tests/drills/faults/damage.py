"""A torn log and a damaged file, from one recording: a store whose log is long and was never closed.

A torn log: it is cut, zeroed, overwritten, or one byte of it is changed. Reopened, the copy is exactly the store as it
was after the last transaction that lies whole before that place; none is half there, and the store goes on from it.

A damaged file: pages or bytes of it are overwritten, swapped or missing. Opening, reading or checking it never ends in
anything but a clear error, and the check finds the damage whenever SQLite's own does. What is left is damage that
SQLite has no means to see, a changed byte inside a value (its pages carry no checksums): it is counted.
"""

from __future__ import annotations

import bisect
import os
import random
import shutil
import sqlite3
import time
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast.contracts.errors import HoldfastError
from holdfast.contracts.rollout import AttemptState, Claim, Task
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.drills import picture, roles
from tests.drills.crew import Crew
from tests.drills.invariants import Findings
from tests.drills.journal import Journal, read
from tests.drills.scene import Setting, Tally

PAGE = 4096
HEADER, FRAME = 32, 24 + PAGE  # bytes of the log's own header, and of each page in it with its header
FOUND, READ, HARMLESS, UNSEEN = "found by the check", "found on reading", "harmless", "unseen by SQLite too"
MOST_UNSEEN = 0.01  # of the damages that change something


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
        store.traces.score(held[0].attempt, [roles.REWARD], now=now, first=number).result()
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


def torn_log(setting: Setting) -> Tally:
    tally = Tally(fault="torn log")
    tears, calls = (25, 40) if setting.quick else (400, 150)
    tape, findings = record(setting.folder / "tape", calls), Findings()
    setting.say(f"{tears} tears of a log of {len(tape.log) >> 10} KiB")
    for number in range(tears):
        torn, how = tear(tape, setting.rng)
        copy = Path(shutil.copy(tape.file, setting.folder / "torn.db"))
        Path(f"{copy}-wal").write_bytes(torn)
        if number % 2:  # an index of the log that was left behind is as good as none
            shutil.copy(f"{tape.file}-shm", f"{copy}-shm")
        _compare(tape, torn, copy, how, findings)
        for path in picture.beside(str(copy)):
            path.unlink()
    tally.events = tears
    tally.notes.append(f"{len(tape.marks) - 1} transactions in the log, every tear compared row by row")
    tally.add(findings)
    return tally


def tear(tape: Tape, chance: random.Random) -> tuple[bytes, str]:
    """The log with its end missing or wrong, in one of many ways, and how."""
    log = tape.log
    if chance.random() < 0.5:
        place = chance.randrange(len(log))
    else:  # where one transaction ends and the next begins
        place = min(max(0, chance.choice(tape.marks)[0] + chance.choice((-1, 0, 1, 8, 24, 25))), len(log) - 1)
    kind = chance.choice(("cut", "cut", "zeros", "byte", "byte", "noise"))
    if kind == "cut":
        torn = log[:place]
    elif kind == "zeros":
        torn = log[:place] + bytes(len(log) - place)
    elif kind == "byte":
        torn = log[:place] + bytes([log[place] ^ chance.randrange(1, 256)]) + log[place + 1 :]
    else:
        torn = log[:place] + chance.randbytes(min(chance.randrange(1, 3 * FRAME), len(log) - place))
    return torn, f"{kind} at {place} of {len(log)}"


def _compare(tape: Tape, torn: bytes, copy: Path, how: str, findings: Findings) -> None:
    expected, digest = tape.after(torn)
    found = picture.take(str(copy))
    if found.digest() != digest:
        digests = [mark[1] for mark in tape.marks]
        there = digests.index(found.digest()) if found.digest() in digests else None
        has = "something else" if there is None else f"{there} transactions"
        text = f"{how}: {expected} transactions lie before it, the store has {has}"
        (findings.other if there is None or there > expected else findings.lost).append(text)
    findings.rollouts = max(findings.rollouts, len(found.rollouts))
    entries, broken = picture.chain(found.tables["ledger"])
    findings.chain += entries
    with open_store(copy, create=False) as store:  # it finds the copy sound, and takes the next write
        problems = [f"{part.name}: {text}" for part in check(store) for text in part.problems]
        store.ledger.append("note", {"note": "after the tear"}, who="drill", now=1.0).result()
        store.ledger.verify()
    findings.other += [f"{how}: {text}" for text in (*found.damage, *broken, *problems)]


def corrupt_file(setting: Setting) -> Tally:
    tally = Tally(fault="corrupt file")
    damages, commands = (25, 1) if setting.quick else (300, 8)
    tape = record(setting.folder / "tape", 40 if setting.quick else 150)
    whole = Path(shutil.copy(tape.file, setting.folder / "whole.db"))
    Path(f"{whole}-wal").write_bytes(tape.log)
    before = picture.take(str(whole))  # when the last connection closes, the log is brought into the file
    findings, seen = Findings(rollouts=len(before.rollouts)), Counter[str]()
    findings.chain, findings.other = picture.chain(before.tables["ledger"])
    for number in range(damages):
        copy = Path(shutil.copy(whole, setting.folder / "damaged.db"))
        how = spoil(copy, setting.rng)
        outcome = outcome_of(copy, before.digest())
        seen[outcome if outcome in (FOUND, READ, HARMLESS, UNSEEN) else "WRONG"] += 1
        if outcome not in seen:
            findings.other.append(f"{how}: {outcome}")
        if number % (damages // commands) == 0:
            findings.other += [f"{how}: {text}" for text in _command(setting, copy, is_found=outcome == FOUND)]
        for path in picture.beside(str(copy)):
            path.unlink()
    tally.events = damages
    real = damages - seen[HARMLESS]
    if seen[UNSEEN] > MOST_UNSEEN * real:
        findings.other.append(f"{seen[UNSEEN]} of {real} damages went unseen, {MOST_UNSEEN:.0%} may")
    tally.notes.append(", ".join(f"{n} {outcome}" for outcome, n in seen.most_common()))
    tally.add(findings)
    return tally


def spoil(file: Path, chance: random.Random) -> str:
    """Overwrite something; what it was."""
    data = bytearray(file.read_bytes())
    place = chance.randrange(len(data) // PAGE) * PAGE
    kind = chance.choice(("header byte", "byte", "byte", "page of noise", "page of zeros", "swapped pages", "cut"))
    if kind == "cut":
        place = chance.randrange(1, len(data))
        del data[place:]
    elif kind.endswith("byte"):
        place = chance.randrange(100) if kind.startswith("header") else chance.randrange(len(data))
        data[place] ^= chance.randrange(1, 256)
    elif kind == "swapped pages":
        other = chance.randrange(len(data) // PAGE) * PAGE
        data[place : place + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[place : place + PAGE]
    else:
        data[place : place + PAGE] = bytes(PAGE) if kind.endswith("zeros") else chance.randbytes(PAGE)
    file.write_bytes(data)
    return f"{kind} at {place}"


def outcome_of(copy: Path, digest: str) -> str:
    """One of the four good outcomes, or what is wrong."""
    problems: list[str] = []
    outcome = FOUND
    try:
        with open_store(copy, create=False, migrate=False) as store:
            problems += [text for part in check(store, deep=True) for text in part.problems]
            outcome = FOUND if problems else READ
            _read_all(store)
    except HoldfastError as error:
        problems.append(str(error))
    except Exception as error:
        return f"ends in {type(error).__name__}: {error}"
    if any("\n" in text for text in problems):
        return f"not one line: {problems}"
    if problems:
        return outcome
    found = picture.take(str(copy))
    if found.damage:
        return f"SQLite says {found.damage[0]}, the check says nothing"
    return HARMLESS if found.digest() == digest else UNSEEN


def _read_all(store: Store) -> None:
    """Everything a user can look at."""
    for run in store.runs.newest():
        store.views.counts(run.id)
        store.views.rewards(run.id)
        for rollout in store.views.rollouts(run.id, most=1000):
            for attempt in store.views.attempts(rollout.id):
                store.views.output(attempt)
                store.traces.spans(attempt.token)
                store.traces.breakdown(attempt.token)
    store.workers.newest()
    list(store.ledger.entries())


def _command(setting: Setting, copy: Path, *, is_found: bool) -> list[str]:
    folder = setting.folder / f"command-{time.monotonic_ns()}"
    folder.mkdir()
    with Crew(folder) as crew:
        command = crew.command("store", "check", "--deep", "--store", str(copy))
        if not command.has_ended(60.0):
            return ["'holdfast store check' did not end within 60 s"]
    if command.code != (5 if is_found else 0) or "Traceback" in command.err or command.err.count("holdfast: ") > 1:
        return [f"'holdfast store check' ended with {command.code}: {command.err or command.out}"]
    return []
