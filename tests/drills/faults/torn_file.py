"""A torn log and a damaged file.

Torn: while a store is written, its log is copied and cut at every kind of place, or one byte of it is changed. What must
hold exactly: reopened, the copy is the store as it was after its last transaction that lies whole before that place, all
of it and nothing of the next. Acknowledged transactions in front of the tear are there, none is half there.

Damaged: pages or bytes of the file itself are overwritten. What must hold: opening it or checking it says so in one clear
error whenever SQLite can see the damage; if nothing is said, every row reads as it was, or the damage is one that SQLite
has no means to see (a changed byte inside a value: its pages carry no checksums).
"""

from __future__ import annotations

import random
import shutil
import sqlite3
from dataclasses import dataclass
from pathlib import Path

from holdfast.contracts.errors import HoldfastError
from holdfast.store.check import check
from holdfast.store.store import open_store
from tests.drills import picture, roles
from tests.drills.crew import Crew
from tests.drills.invariants import Findings
from tests.drills.journal import Account, read
from tests.drills.invariants import examine
from tests.drills.scene import Setting, Tally

HEADER, FRAME = 32, 24 + 4096  # bytes of the log's header, and of each page in it with its own


@dataclass(frozen=True, slots=True)
class Tape:
    """A store with a long log, and what it was after each transaction."""

    url: Path
    marks: list[tuple[int, str]]  # length of the log after each acknowledged call, and the digest of the store then
    account: Account

    def expected(self, whole: int) -> tuple[int, str]:
        """How many transactions lie before that place in the log, and the digest after them."""
        found = [(place, digest) for place, (length, digest) in enumerate(self.marks) if length <= whole]
        return found[-1]


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="torn or corrupt file")
    tears, damages = (30, 20) if setting.quick else (400, 200)
    tape = _record(setting)
    findings = Findings(rollouts=len(picture.take(str(tape.url)).rollouts))
    for number in range(tears):
        _tear(setting, tape, number, findings)
    setting.say(f"{tears} tears of a log with {len(tape.marks) - 1} transactions")
    tally.add(findings)
    tally.notes.append(f"{tears} tears: each left exactly the transactions before it")
    tally.events = tears + damages
    _damage(setting, tape, damages, tally)
    return tally


def _record(setting: Setting) -> Tape:
    """One process writes, one call at a time; a reader holds the log so that nothing of it reaches the file."""
    folder = setting.folder / "tape"
    folder.mkdir()
    url = folder / "store.db"
    with Crew(folder) as crew:
        crew.start(roles.taper, str(url), 40 if setting.quick else 150)
        problems = crew.finish(120.0)
    account = read(folder)
    crashes = [note["crash"] for note in account.notes if "crash" in note]
    if problems or crashes:
        raise RuntimeError(f"the tape could not be recorded: {problems + crashes}")
    marks = [(note["log"], note["digest"]) for note in account.notes if "log" in note]
    return Tape(url, marks, account)
