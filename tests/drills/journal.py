"""What each process of a drill asked for and was told: a line before every call, a line after its answer.

A line is handed to the operating system whole before the process goes on, so it outlives kill -9. Times are the
machine's monotonic clock, which all processes share and no drill moves.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any


class Journal:
    """One process's own file; safe to use from all of its threads."""

    _lives = itertools.count(1)

    def __init__(self, folder: Path, who: str) -> None:
        path = folder / f"{who}-{os.getpid()}-{next(self._lives)}.journal"
        self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND)
        self._numbers = itertools.count(1)
        self._lock = threading.Lock()

    def asks(self, call: str, **facts: Any) -> int:
        """Before a call; the number under which its answer goes."""
        with self._lock:
            number = next(self._numbers)
        self._write(n=number, call=call, **facts)
        return number

    def told(self, number: int, answer: Any = None) -> None:
        self._write(n=number, ok=True, answer=answer)

    def refused(self, number: int, error: Exception) -> None:
        self._write(n=number, ok=False, error=type(error).__name__, why=getattr(error, "why", "") or str(error))

    def notes(self, **facts: Any) -> None:
        """Something worth knowing that is no call to the store."""
        self._write(**facts)

    def _write(self, **facts: Any) -> None:
        line = json.dumps({"t": time.monotonic_ns(), **facts}, separators=(",", ":")) + "\n"
        os.write(self._file, line.encode())


@dataclass(slots=True)
class Call:
    """One call as its process saw it. `ok` is None when the process was killed before the answer came."""

    who: str
    name: str
    facts: dict[str, Any]
    begun_ns: int
    ended_ns: int | None = None
    ok: bool | None = None
    answer: Any = None
    error: str = ""
    why: str = ""


@dataclass(slots=True)
class Account:
    """All journals of a drill: calls in the order in which they began, and the other notes."""

    calls: list[Call] = field(default_factory=list)
    notes: list[dict[str, Any]] = field(default_factory=list)


def read(folder: Path) -> Account:
    account = Account()
    for path in sorted(folder.glob("*.journal")):
        _read_one(path, account)
    account.calls.sort(key=lambda call: call.begun_ns)
    return account


def _read_one(path: Path, account: Account) -> None:
    open_calls: dict[int, Call] = {}
    *lines, _cut_off = path.read_text().split("\n")  # a kill may cut a line in two
    for line in lines:
        facts = json.loads(line)
        at, number = facts.pop("t"), facts.pop("n", None)
        if number is None:
            account.notes.append(facts | {"who": path.stem, "t": at})
        elif "call" in facts:
            call = Call(path.stem, facts.pop("call"), facts, at)
            open_calls[number] = call
            account.calls.append(call)
        else:
            call = open_calls[number]
            if call.ok is not None:
                continue  # an answer may be taken more than once: the first time counts
            call.ended_ns, call.ok, call.answer = at, facts["ok"], facts.get("answer")
            call.error, call.why = facts.get("error", ""), facts.get("why", "")
            if call.why.startswith("connection lost"):
                call.ok = None  # the answer itself is that nobody knows
            elif "duplicate key" in call.why:
                call.ok = True  # it was made again, and the store says that it has it
