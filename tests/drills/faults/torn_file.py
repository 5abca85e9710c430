"""A torn log, and a damaged file.

Torn: the log of a store that was never closed is cut at every kind of place, zeroed from there, or one byte of it is
changed. What must hold exactly: reopened, the copy is the store as it was after the last transaction that lies whole before
that place. So every transaction acknowledged before it is there, and none is half there.

Damaged: pages or bytes of the file itself are overwritten. What must hold: opening, reading or checking it never ends in
anything but a clear error, and the check finds it whenever SQLite's own check does. What is left is damage that SQLite has
no means to see, a changed byte inside a value (its pages carry no checksums): it is counted.
"""

from __future__ import annotations

import bisect
import random
import shutil
from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from holdfast.contracts.errors import HoldfastError
from holdfast.store.check import check
from holdfast.store.store import Store, open_store
from tests.drills import picture, roles
from tests.drills.crew import Crew
from tests.drills.invariants import Findings
from tests.drills.journal import read
from tests.drills.scene import Setting, Tally

HEADER, FRAME = 32, 24 + 4096  # bytes of the log's own header, and of each page in it with its header
PAGE = 4096


@dataclass(frozen=True, slots=True)
class Tape:
    """A store with a long log, and what it was after each transaction."""

    file: Path
    log: bytes
    marks: list[tuple[int, str]]  # length of the log after each acknowledged call, and the digest of the store then

    def after(self, torn: bytes) -> tuple[int, str]:
        """How many transactions lie whole before the first difference, and the store's digest after them."""
        length = min(len(self.log), len(torn))
        same = bisect.bisect_left(range(length), True, key=lambda end: self.log[: end + 1] != torn[: end + 1])
        whole = 0 if same < HEADER else HEADER + (same - HEADER) // FRAME * FRAME
        return [(place, digest) for place, (length, digest) in enumerate(self.marks) if length <= whole][-1]


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="torn or corrupt file")
    tears, damages = (25, 25) if setting.quick else (400, 300)
    tape = record(setting.folder / "tape", 40 if setting.quick else 150)
    setting.say(f"a log of {len(tape.log) >> 10} KiB with {len(tape.marks) - 1} transactions")
    findings = Findings()
    for number in range(tears):
        _tear(setting, tape, number, findings)
    tally.events += tears
    tally.notes.append(f"{tears} tears of a log with {len(tape.marks) - 1} transactions, each compared row by row")
    tally.add(findings)
    setting.say(f"{tears} tears")
    tally.add(_damages(setting, tape, damages, tally))
    tally.events += damages
    return tally


def record(folder: Path, calls: int) -> Tape:
    """One process writes, one call at a time, while a reader keeps the log from reaching the file; then it is gone."""
    folder.mkdir()
    url = folder / "store.db"
    with Crew(folder) as crew:
        crew.start(roles.taper, str(url), calls)
        problems = crew.finish(120.0)
    notes = read(folder).notes
    problems += [note["crash"] for note in notes if "crash" in note]
    if problems:
        raise RuntimeError(f"the tape could not be recorded: {problems}")
    log = Path(f"{url}-wal").read_bytes()
    marks = [(note["log"], note["digest"]) for note in notes if "log" in note]
    assert marks[0][0] == 0 and len(log) >= marks[-1][0]
    return Tape(url, log[: marks[-1][0]], marks)


def _tear(setting: Setting, tape: Tape, number: int, findings: Findings) -> None:
    torn, how = torn_log(tape.log, tape.marks, setting.rng)
    copy = _copy(setting, tape.file, f"torn-{number}.db")
    Path(f"{copy}-wal").write_bytes(torn)
    if number % 2:  # an index of the log that is left behind is as good as none
        shutil.copy(f"{tape.file}-shm", f"{copy}-shm")
    expected, digest = tape.after(torn)
    found = picture.take(str(copy))
    if found.digest() != digest:
        digests = [mark[1] for mark in tape.marks]
        there = digests.index(found.digest()) if found.digest() in digests else None
        text = (
            f"{how}: {expected} transactions lie before it, the store has {'parts of some' if there is None else there}"
        )
        (findings.lost if there is not None and there < expected else findings.other).append(text)
    findings.rollouts = max(findings.rollouts, len(found.rollouts))
    findings.other += [f"{how}: {text}" for text in (*found.damage, *_goes_on(copy))]
    findings.chain += picture.chain(found.tables["ledger"])[0]
    _remove(copy)


def torn_log(log: bytes, marks: list[tuple[int, str]], chance: random.Random) -> tuple[bytes, str]:
    """One of many ways in which the end of a log can be missing or wrong."""
    if chance.random() < 0.5:
        place = chance.randrange(len(log))
    else:  # where one transaction ends and the next begins
        place = min(max(0, chance.choice(marks)[0] + chance.choice((-1, 0, 1, 8, 24, 25))), len(log) - 1)
    kind = chance.choice(("cut", "cut", "zeros", "byte", "byte", "garbage"))
    if kind == "cut":
        torn = log[:place]
    elif kind == "zeros":
        torn = log[:place] + bytes(len(log) - place)
    elif kind == "byte":
        torn = log[:place] + bytes([log[place] ^ chance.randrange(1, 256)]) + log[place + 1 :]
    else:
        torn = log[:place] + chance.randbytes(min(chance.randrange(1, 3 * FRAME), len(log) - place))
    return torn, f"{kind} at {place} of {len(log)}"


def _goes_on(copy: Path) -> list[str]:
    """The store itself finds the copy sound, and goes on with it."""
    with open_store(copy, create=False) as store:
        problems = [f"{part.name}: {text}" for part in check(store) for text in part.problems]
        store.ledger.append("note", {"note": "after the tear"}, who="drill", now=1.0).result()
        store.ledger.verify()
    return problems


def _damages(setting: Setting, tape: Tape, damages: int, tally: Tally) -> Findings:
    whole = _copy(setting, tape.file, "whole.db")
    Path(f"{whole}-wal").write_bytes(tape.log)
    picture.take(str(whole))  # closing the last connection brings the log into the file
    before = picture.take(str(whole))
    findings, seen = (
        Findings(rollouts=len(before.rollouts), chain=picture.chain(before.tables["ledger"])[0]),
        Counter[str](),
    )
    for number in range(damages):
        copy = _copy(setting, whole, f"damaged-{number}.db")
        how = damage(copy, setting.rng)
        outcome = _outcome(copy, before.digest())
        seen[outcome.partition(":")[0]] += 1
        if outcome.startswith("wrong"):
            findings.other.append(f"{how}: {outcome}")
        if number % (damages // (1 if setting.quick else 8)) == 0:
            findings.other += [f"{how}: {text}" for text in _command(setting, copy, is_found=outcome == "found")]
        _remove(copy)
    tally.notes.append(f"{damages} damages: " + ", ".join(f"{n} {outcome}" for outcome, n in seen.most_common()))
    return findings


def damage(file: Path, chance: random.Random) -> str:
    """Overwrite something; what it was."""
    data = bytearray(file.read_bytes())
    page = chance.randrange(len(data) // PAGE) * PAGE
    kind = chance.choice(("header byte", "byte", "byte", "page of noise", "page of zeros", "swapped pages", "cut"))
    if kind == "header byte":
        page = chance.randrange(100)
        data[page] ^= chance.randrange(1, 256)
    elif kind == "byte":
        page += chance.randrange(PAGE)
        data[page] ^= chance.randrange(1, 256)
    elif kind == "cut":
        page = chance.randrange(1, len(data))
        del data[page:]
    elif kind == "swapped pages":
        other = chance.randrange(len(data) // PAGE) * PAGE
        data[page : page + PAGE], data[other : other + PAGE] = data[other : other + PAGE], data[page : page + PAGE]
    else:
        data[page : page + PAGE] = bytes(PAGE) if kind.endswith("zeros") else chance.randbytes(PAGE)
    file.write_bytes(data)
    return f"{kind} at {page}"


def _outcome(copy: Path, digest: str) -> str:
    """found · harmless · unseen by SQLite too · wrong: …"""
    try:
        with open_store(copy, create=False, migrate=False) as store:
            problems = [text for part in check(store) for text in part.problems]
            _read_all(store)
    except HoldfastError as error:
        problems = [str(error)]
    except Exception as error:
        return f"wrong: ends in {type(error).__name__}: {error}"
    if any("\n" in text for text in problems):
        return f"wrong: not one line: {problems}"
    if problems:
        return "found"
    found = picture.take(str(copy))
    if found.damage:
        return f"wrong: SQLite says {found.damage[0]}, the check says nothing"
    return "harmless" if found.digest() == digest else "unseen by SQLite too"


def _read_all(store: Store) -> None:
    """Everything a user can look at."""
    for run in store.runs.newest():
        store.views.counts(run.id)
        store.views.rewards(run.id)
        for rollout in store.views.rollouts(run.id, most=1000):
            for attempt in store.views.attempts(rollout.id):
                store.views.output(attempt)
                store.traces.spans(attempt.token)
                store.traces.sheet(attempt.token)
    store.versions.latest(100)
    store.workers.newest()
    list(store.ledger.entries())


def _command(setting: Setting, copy: Path, *, is_found: bool) -> list[str]:
    with Crew(setting.folder) as crew:
        child = crew.command("store", "check", "--store", str(copy))
        out, err = child.communicate(timeout=60.0)
    if child.returncode != (5 if is_found else 0) or "Traceback" in err or len(err.strip().splitlines()) > 1:
        return [f"'holdfast store check' ended with {child.returncode}: {err.strip() or out}"]
    return []


def _copy(setting: Setting, file: Path, name: str) -> Path:
    return Path(shutil.copy(file, setting.folder / name))


def _remove(copy: Path) -> None:
    for path in picture.beside(str(copy)):
        path.unlink()
