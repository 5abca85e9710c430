"""A store that writes down what is asked of it and what it answers; pools and workers use it like any other.

Only calls that must survive a fault are written down. The store behind it is the real one, unchanged.
"""

from __future__ import annotations

from collections.abc import Callable, Generator
from typing import Any

from holdfast.contracts.errors import HoldfastError
from holdfast.store.store import Store
from tests.drills.journal import Journal

Facts = dict[str, Any]


def _enqueue(run: str, tasks: Any, *, now: float, up_to: bool = False) -> Facts:
    return {"ids": [f"{run}/{task.name}" for task in tasks], "up_to": up_to}


def _claim(run: str, worker: str, *, now: float, lease_s: float, most: int = 1, versions: Any = None) -> Facts:
    return {"now": now, "until": now + lease_s}


def _beat(run: str, tokens: Any, *, now: float, lease_s: float) -> Facts:
    return {"tokens": list(tokens), "now": now, "until": now + lease_s}


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


def _same(answer: Any) -> Any:
    return answer


WATCHED: dict[str, tuple[Callable[..., Facts], Callable[[Any], Any]]] = {
    "enqueue": (_enqueue, _same),
    "claim": (_claim, _tokens),
    "beat": (_beat, lambda beats: sorted(beats.alive)),
    "finish": (_finish, str),
    "add": (_add, _same),
    "score": (_score, _same),
    "append": (_append, _same),
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
        try:
            value = self._pending.result(timeout)
        except HoldfastError as error:
            self._journal.refused(self._number, error)
            raise
        self._journal.told(self._number, self._told(value))
        return value

    def __await__(self) -> Generator[Any, None, Any]:
        try:
            value = yield from self._pending.__await__()
        except HoldfastError as error:
            self._journal.refused(self._number, error)
            raise
        self._journal.told(self._number, self._told(value))
        return value
