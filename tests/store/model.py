"""The queue as it should be, in a few plain loops and no database: what `test_lifecycle` holds the store against."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from holdfast.contracts.errors import Conflict, IllegalMove, NotFound, QueueFull, StaleLease
from holdfast.contracts.rollout import DONE, OPEN, AttemptState, Backoff, RolloutState, Task
from holdfast.contracts.run import DesiredState
from holdfast.store.queue import CLOCKS_S, KILLS

A, R = AttemptState, RolloutState


@dataclass
class Try:
    """One attempt."""

    token: int
    worker: str
    beat_at: float
    lease_until: float
    deadline: float | None
    status: A = A.RUNNING
    ended_at: float | None = None

    def end(self, status: A, now: float) -> None:
        self.status, self.ended_at = status, now


@dataclass
class Entry:
    """One rollout."""

    task: Task
    place: int  # in the order of enqueuing
    ready_at: float
    status: R = R.QUEUING
    faults: int = 0  # failures of the agent
    interruptions: int = 0  # failures of infrastructure
    killed: int = 0  # workers that it took down since it was last put into the queue
    outcome: str | None = None
    tries: list[Try] = field(default_factory=list)
    final: int | None = None  # number of the deciding attempt


class Model:
    def __init__(self, limit: int | None) -> None:
        self.limit = limit
        self.wanted = DesiredState.RUNNING
        self.entries: dict[str, Entry] = {}
        self.recorded: set[str] = set()  # steps that are done

    def enqueue(self, tasks: list[Task], now: float, up_to: bool) -> int:
        waiting = sum(entry.status is R.QUEUING for entry in self.entries.values())
        room = len(tasks) if self.limit is None else self.limit - min(waiting, self.limit)
        after, taken = dict(self.entries), 0
        for task in tasks:
            known = after.get(task.name)
            if known is not None and _content(known.task) != _content(task):
                raise Conflict(task.name)
            if known is not None and known.task.step is None and task.step is not None:  # it is taken in
                after[task.name] = replace(known, task=replace(known.task, step=task.step, version=task.version))
            if known is None:
                if not room:
                    if up_to:
                        break
                    raise QueueFull(task.name)
                room -= 1
                after[task.name] = Entry(task, len(after), now)
            taken += 1
        self.entries = after
        return taken

    def claim(self, most: int, now: float) -> list[Entry]:
        """Those that a claim takes, in order; `started` adds what only the store knows."""
        waiting = [entry for entry in self.entries.values() if entry.status is R.REQUEUING]
        for entry in waiting:
            if entry.ready_at <= now:
                entry.status = R.QUEUING
        if not (heads := self._heads(most)):
            for entry in waiting:
                ended_at = max(held.ended_at or 0.0 for held in entry.tries)
                if entry.status is R.REQUEUING and min(entry.ready_at, ended_at) > now + CLOCKS_S:
                    entry.status = R.QUEUING  # it began to wait in what is now the future
            heads = self._heads(most)
        return heads

    def started(self, entry: Entry, token: int, worker: str, now: float, lease_s: float) -> Try:
        deadline = None if entry.task.timeout_s is None else now + entry.task.timeout_s
        entry.status = R.RUNNING
        entry.tries.append(Try(token, worker, now, _capped(now + lease_s, deadline), deadline))
        return entry.tries[-1]

    def beat(self, tokens: Iterable[int], now: float, lease_s: float) -> set[int]:
        alive = set()
        for token in tokens:
            found = self._holding(token, now)
            if found is not None:
                found[1].beat_at, found[1].lease_until = now, _capped(now + lease_s, found[1].deadline)
                alive.add(token)
        return alive

    def write(self, token: int, now: float) -> None:
        if self._holding(token, now) is None:
            raise StaleLease(str(token))

    def finish(
        self, token: int, state: A, now: float, backoff: Backoff, chance: float, outcome: str | None = None
    ) -> R:
        found = self._holding(token, now)
        if found is None:
            raise StaleLease(str(token))
        entry, held = found
        held.end(state, now)
        if state is A.SUCCEEDED:
            entry.status, entry.final, entry.outcome = R.SUCCEEDED, len(entry.tries), outcome
        elif state is A.RELEASED:
            entry.status = R.QUEUING
        else:
            self._failed(entry, held, now, backoff, chance)
        return entry.status

    def sweep(self, now: float, backoff: Backoff, chance: float) -> int:
        swept = 0
        for entry in self.entries.values():
            for held in entry.tries:
                if held.status is A.RUNNING and min(held.lease_until, held.beat_at) > now + CLOCKS_S:
                    held.lease_until, held.beat_at = now + (held.lease_until - held.beat_at), now
                if held.status is A.RUNNING and held.lease_until <= now:
                    overdue = held.deadline is not None and held.deadline <= now
                    held.end(A.TIMEOUT if overdue else A.UNRESPONSIVE, now)
                    spread = (chance + held.token * 0.6180339887) % 1.0
                    self._failed(entry, held, now, backoff, spread)
                    swept += 1
        return swept

    def cancel(self, name: str, now: float) -> None:
        entry = self._named(name)
        if entry.status not in OPEN:
            raise IllegalMove(name)
        for held in entry.tries:
            if held.status is A.RUNNING:
                held.end(A.CANCELLED, now)
        entry.status = R.CANCELLED

    def cancel_open(self, now: float) -> int:
        open_ones = [name for name, entry in self.entries.items() if entry.status in OPEN]
        for name in open_ones:
            self.cancel(name, now)
        return len(open_ones)

    def requeue(self, name: str, now: float) -> None:
        entry = self._named(name)
        if entry.status not in DONE - {R.SUCCEEDED}:
            raise IllegalMove(name)
        entry.status, entry.faults, entry.final, entry.ready_at = R.QUEUING, 0, None, now
        entry.interruptions, entry.killed, entry.outcome = 0, 0, None

    def want(self, wanted: DesiredState) -> None:
        if self.wanted is DesiredState.CANCELLED and wanted is not DesiredState.CANCELLED:
            raise IllegalMove(wanted)
        self.wanted = wanted

    def leases(self) -> list[float]:
        """When those that hold a rollout will lose it."""
        return [t.lease_until for entry in self.entries.values() for t in entry.tries if t.status is A.RUNNING]

    def _heads(self, most: int) -> list[Entry]:
        queue = [
            entry
            for entry in self.entries.values()
            if entry.status is R.QUEUING and entry.task.step not in self.recorded
        ]
        heads = sorted(queue, key=lambda entry: (-entry.task.priority, entry.place))[:most]
        return heads if self.wanted is DesiredState.RUNNING else []

    def _failed(self, entry: Entry, held: Try, now: float, backoff: Backoff, chance: float) -> None:
        """The table "what failing means": the agent's failures use up its tries, those of infrastructure do not."""
        entry.killed += held.status is A.UNRESPONSIVE
        is_killer = held.status is A.UNRESPONSIVE and entry.killed >= KILLS
        if is_killer or held.status in (A.FAILED, A.TIMEOUT):
            entry.faults += 1
            is_over, delay_s = (
                is_killer or entry.faults >= entry.task.max_attempts,
                backoff.delay_s(entry.faults, chance),
            )
        else:
            entry.interruptions += 1
            is_over = entry.interruptions > entry.task.max_faults
            delay_s = backoff.delay_s(entry.interruptions, chance)
        if not is_over:
            entry.status, entry.ready_at = R.REQUEUING, now + delay_s
        elif is_killer or held.status in (A.FAILED, A.TIMEOUT):
            entry.status, entry.final, entry.outcome = R.FAILED, len(entry.tries), "wrong"
        else:
            entry.status = R.DEAD

    def _holding(self, token: int, now: float) -> tuple[Entry, Try] | None:
        for entry in self.entries.values():
            for held in entry.tries:
                if held.token == token and held.status is A.RUNNING and held.lease_until > now:
                    return entry, held
        return None

    def _named(self, name: str) -> Entry:
        if name not in self.entries:
            raise NotFound(name)
        return self.entries[name]


def _content(task: Task) -> Task:
    """What must be the same when a name comes again."""
    return replace(task, step=None, version=None, max_faults=0)


def _capped(until: float, deadline: float | None) -> float:
    return until if deadline is None else min(until, deadline)
