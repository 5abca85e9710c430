"""A damaged file: pages or bytes of it are overwritten, swapped or missing.

What must hold: opening, reading or checking it never ends in anything but a clear error, and the check finds the damage
whenever SQLite's own does. What is left is damage that SQLite has no means to see, a changed byte inside a value (its
pages carry no checksums): it is counted, whether the value can still be read or not.
"""

from __future__ import annotations

import random
import shutil
import time
from collections import Counter
from pathlib import Path

from holdfast.contracts.errors import HoldfastError
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.drills import picture
from tests.drills.crew import Crew
from tests.drills.invariants import Findings
from tests.drills.scene import Setting, Tally
from tests.drills.tape import record

PAGE = 4096
FOUND, READ, HARMLESS, UNSEEN = "found by the check", "found on reading", "harmless", "unseen by SQLite too"


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="corrupt file")
    damages, commands = (25, 1) if setting.quick else (300, 8)
    whole = _whole_store(setting, 40 if setting.quick else 150)
    before = picture.take(str(whole))
    findings, seen = Findings(rollouts=len(before.rollouts)), Counter[str]()
    findings.chain, findings.other = picture.chain(before.tables["ledger"])
    for number in range(damages):
        copy = Path(shutil.copy(whole, setting.folder / "damaged.db"))
        how = damage(copy, setting.rng)
        outcome = outcome_of(copy, before.digest())
        seen[outcome if outcome in (FOUND, READ, HARMLESS, UNSEEN) else "WRONG"] += 1
        if outcome not in seen:
            findings.other.append(f"{how}: {outcome}")
        if number % (damages // commands) == 0:
            findings.other += [f"{how}: {text}" for text in _command(setting, copy, is_found=outcome == FOUND)]
        for path in picture.beside(str(copy)):
            path.unlink()
    tally.events = damages
    tally.notes.append(", ".join(f"{n} {outcome}" for outcome, n in seen.most_common()))
    tally.add(findings)
    return tally


def _whole_store(setting: Setting, calls: int) -> Path:
    tape = record(setting.folder / "tape", calls)
    whole = Path(shutil.copy(tape.file, setting.folder / "whole.db"))
    Path(f"{whole}-wal").write_bytes(tape.log)
    picture.take(str(whole))  # when the last connection closes, the log is brought into the file
    return whole


def damage(file: Path, chance: random.Random) -> str:
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
            problems += [text for part in check(store) for text in part.problems]
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
        command = crew.command("store", "check", "--store", str(copy))
        if not command.has_ended(60.0):
            return ["'holdfast store check' did not end within 60 s"]
    if command.code != (5 if is_found else 0) or "Traceback" in command.err or "\n" in command.err:
        return [f"'holdfast store check' ended with {command.code}: {command.err or command.out}"]
    return []
