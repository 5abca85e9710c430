"""What operators want of runs, at hand: the store is read again only after an order was given, by whichever process.

For those who ask too often to read it each time: a learner between two steps, a proxy before every call. Who gives
orders, and what follows from one, is others' business.
"""

from __future__ import annotations

from holdfast.contracts.run import DesiredState
from holdfast.store.notifications import ORDERS, Changes
from holdfast.store.runs import Runs
from holdfast.store.writer import WriteFuture

HELD = frozenset({DesiredState.PAUSED, DesiredState.FROZEN})  # a run that is to wait, and may go on later
MOST = 10_000  # runs that are remembered


class Orders:
    def __init__(self, runs: Runs, changes: Changes) -> None:
        self._runs, self._changes = runs, changes
        self._known: dict[str, DesiredState] = {}
        self._next: WriteFuture[None] | None = None  # the order after those that are known

    def of(self, run: str) -> DesiredState:
        """What is wanted of it."""
        if self._next is None or self._next.settled or len(self._known) >= MOST:
            self._next = self._changes.after(ORDERS, self._changes.seen(ORDERS))  # before we look: none is missed
            self._known = {}
        known = self._known
        if run not in known:
            known[run] = self._runs.get(run).wanted
        return known[run]

    def wait(self, at_most_s: float) -> None:
        """Until the next order, of whichever run, or so long."""
        self._changes.wait(ORDERS, self._changes.seen(ORDERS), at_most_s)
