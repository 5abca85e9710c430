"""A torn log: that of a store which was never closed is cut, zeroed, overwritten, or one byte of it is changed.

What must hold exactly: reopened, the copy is the store as it was after the last transaction that lies whole before that
place. So every transaction acknowledged before it is there, none is half there, and the store goes on from it.
"""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from holdfast.store.check import check
from holdfast.store.store import open_store
from tests.drills import picture
from tests.drills.invariants import Findings
from tests.drills.scene import Setting, Tally
from tests.drills.tape import FRAME, Tape, record


def drill(setting: Setting) -> Tally:
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
    findings.other += [f"{how}: {text}" for text in (*found.damage, *broken, *_goes_on(copy))]


def _goes_on(copy: Path) -> list[str]:
    """The store itself finds the copy sound, and takes the next write."""
    with open_store(copy, create=False) as store:
        problems = [f"{part.name}: {text}" for part in check(store) for text in part.problems]
        store.ledger.append("note", {"note": "after the tear"}, who="drill", now=1.0).result()
        store.ledger.verify()
    return problems
