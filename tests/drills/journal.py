"""What each process of a drill asked for and was told: a line before every call, a line after its answer.

A line is handed to the operating system whole before the process goes on, so it outlives kill -9. Times are the
machine's monotonic clock, which all processes share and no drill moves. A `Witness` is a store that writes down what is
asked of it: only calls that must survive a fault; the store behind it is the real one.
"""

from __future__ import annotations

import itertools
import json
import os
import threading
import time
from collections.abc import Callable, Generator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import HoldfastError
from holdfast.store.store import Store


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


Facts = dict[str, Any]


def _enqueue(run: str, tasks: Any, *, now: float, up_to: bool = False) -> Facts:
    return {"ids": [f"{run}/{task.name}" for task in tasks], "up_to": up_to}


def _claim(run: str, worker: str, *, now: float, lease_s: float, most: int = 1, versions: Any = None) -> Facts:
    return {"now": now, "until": now + lease_s}


def _beat(run: str, tokens: Any, *, now: float, lease_s: float) -> Facts:
    return {"tokens": list(tokens), "now": now, "until": now + lease_s}


def _sweep(*, now: float, **rest: Any) -> Facts:
    return {"now": now}


def _finish(attempt: Any, state: Any, *, now: float, reward: float | None = None, **rest: Any) -> Facts:
    return {"token": attempt.token, "rollout": attempt.rollout, "now": now, "state": str(state), "reward": reward}


def _add(attempt: Any, spans: Any, *, now: float) -> Facts:
    return {"token": attempt.token, "now": now, "seqs": [span.seq for span in spans]}


def _score(attempt: Any, signals: Any, *, now: float, first: int = 1) -> Facts:
    return {"token": attempt.token, "now": now, "seqs": [first + place for place in range(len(signals))]}


def _append(kind: str, body: Any, *, who: str, now: float, run: str | None = None) -> Facts:
    return {"body": dict(body)}


def _tokens(claims: Any) -> list[list[Any]]:
    return [[claim.attempt.token, claim.rollout.id, claim.attempt.number] for claim in claims]


WATCHED: dict[str, tuple[Callable[..., Facts], Callable[[Any], Any]]] = {
    "enqueue": (_enqueue, lambda answer: answer),
    "claim": (_claim, _tokens),
    "beat": (_beat, lambda beats: sorted(beats.alive)),
    "sweep": (_sweep, lambda answer: answer),
    "finish": (_finish, str),
    "add": (_add, lambda answer: answer),
    "score": (_score, lambda answer: answer),
    "append": (_append, lambda answer: answer),
}


class Witness:
    """The store, with its queue, traces and ledger watched."""

    def __init__(self, store: Store, journal: Journal) -> None:
        self._store, self.journal = store, journal
        self.queue = Watched(store.queue, journal)
        self.traces = Watched(store.traces, journal)
        self.ledger = Watched(store.ledger, journal)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._store, name)


class Watched:
    def __init__(self, room: Any, journal: Journal) -> None:
        self._room, self._journal = room, journal

    def __getattr__(self, name: str) -> Any:
        call = getattr(self._room, name)
        if name not in WATCHED:
            return call
        facts_of, told = WATCHED[name]

        def watched(*args: Any, **kwargs: Any) -> Answer:
            number = self._journal.asks(name, **facts_of(*args, **kwargs))
            try:
                return Answer(call(*args, **kwargs), self._journal, number, told)
            except HoldfastError as error:
                self._journal.refused(number, error)
                raise

        return watched


class Answer:
    """A Pending whose answer is written down by whoever takes it, before they can act upon it."""

    def __init__(self, pending: Any, journal: Journal, number: int, told: Callable[[Any], Any]) -> None:
        self._pending, self._journal, self._number, self._told = pending, journal, number, told

    def __getattr__(self, name: str) -> Any:
        return getattr(self._pending, name)

    def result(self, timeout: float | None = None) -> Any:
        return self._noted(lambda: self._pending.result(timeout))

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            value = yield from self._pending.__await__()
        except HoldfastError as error:
            self._journal.refused(self._number, error)
            raise
        return self._noted(lambda: value)

    def _noted(self, take: Callable[[], Any]) -> Any:
        try:
            value = take()
        except HoldfastError as error:
            self._journal.refused(self._number, error)
            raise
        self._journal.told(self._number, self._told(value))
        return value
