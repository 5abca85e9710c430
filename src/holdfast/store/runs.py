"""Runs, the state their operator wants them in, and the worker processes; a run belongs to a project."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import asdict
from math import ceil
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, select, update

from holdfast.contracts.commands import WANTS, guarded
from holdfast.contracts.errors import BadInput, IllegalMove, NotFound, StaleLease
from holdfast.contracts.run import DesiredState, Process, RunRecord, RunState, WorkerRecord
from holdfast.store import ledger, notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.ledger import OfProject
from holdfast.store.notifications import ORDERS, Notifications
from holdfast.store.sql import AT_MOST, Transaction, from_json, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_c = schema.runs.c
_born = {"state": "running", "wanted": "running", "created_at": bindparam("now"), "beat_at": bindparam("now")}
BEGIN = into(schema.runs, but=("key", "ended_at", "error", "driver"), **_born).returning(_c.key)
_change = update(schema.runs).where(_c.key == bindparam("run"))
NAME = _change.values(id=bindparam("id"))
FIND = select(schema.runs).where(given(schema.runs, "project", "id"))
# Compared letter by letter: LIKE has wildcards, and in SQLite no capitals.
_prefix: BindParameter[str] = bindparam("prefix")
STARTING_WITH = (
    select(schema.runs)
    .where(given(_c, "project"), func.substr(_c.id, 1, func.length(_prefix)) == _prefix)
    .order_by(_c.key)
    .limit(3)
)
NEWEST = (
    select(schema.runs).where(given(_c, "project"), _c.key < bindparam("before")).order_by(_c.key.desc()).limit(AT_MOST)
)
DESIRED_STATE = select(_c.wanted).where(_c.key == bindparam("run"))
# One operator at a time.
STATE = select(_c.state, _c.wanted, _c.driver).where(_c.key == bindparam("run")).with_for_update()
WANT = _change.values(wanted=bindparam("wanted"))
BEAT = _change.where(given(_c, "driver")).values(beat_at=bindparam("now"))
END = _change.values(
    state=bindparam("state"), ended_at=bindparam("now"), beat_at=bindparam("now"), error=bindparam("error")
)
_again: dict[str, Any] = {
    "state": "running",
    "wanted": "running",
    "ended_at": None,
    "error": None,
    "beat_at": bindparam("now"),
}
RESUME = _change.values(**_again, driver=_c.driver + 1)
# What begins a run and takes it up notes by which process; an end notes none.
_l = schema.ledger.c
DRIVEN_BY = select(_l.body).where(given(_l, "run"), _l.kind == "run").order_by(_l.seq.desc()).limit(1)
_WANTED = {str(wanted): wanted for wanted in DesiredState}
_ORDER = {wanted: order for order, wanted in WANTS.items()}


class Runs:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self.project = db, project
        self._known: dict[str, tuple[int, int | None]] = {}  # neither ever changes: id → key, queue limit

    def begin(
        self,
        *,
        kind: str,
        model_ref: str,
        settings: Mapping[str, Any],
        salt: str,
        who: str,
        now: float,
        queue_limit: int | None = None,
        process: Process | None = None,
    ) -> WriteFuture[RunRecord]:
        """A new run, named `run-<number>-<salt>`; noted in the ledger, with the process that drives it."""
        values = {"id": f"new-{salt}-{now}", "project": self.project, "kind": kind, "model_ref": model_ref, "now": now}
        values |= {"settings": to_json(settings), "queue_limit": queue_limit}

        def operation(tx: Transaction) -> RunRecord:
            key = tx.one(BEGIN, values)[0]
            run_id = f"run-{key}-{salt}"
            tx.run(NAME, {"run": key, "id": run_id})
            body = {"begin": kind, "model_ref": model_ref, **_by(process)}
            ledger.append(tx, self.project, run_id, "run", who, body, now)
            return rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))

        return self._db.write(operation)

    def get(self, run_id: str) -> RunRecord:
        """The run with this id, or with the only id that starts so; `run-1` is run 1, and never run 10."""
        row = self._db.one(FIND, {"project": self.project, "id": run_id})
        if row is not None:
            return rows.run(row)
        prefix = f"{run_id}-" if re.fullmatch(r"run-\d+", run_id) else run_id
        found = self._db.all(STARTING_WITH, {"project": self.project, "prefix": prefix})
        if len(found) == 1 and run_id:
            return rows.run(found[0])
        why = f"there is none in project {self.project!r}"
        if found:
            why = "several start so: " + ", ".join(row[1] for row in found)
        raise NotFound(f"run {run_id!r}", why=why, remedy="'holdfast runs' lists them")

    def newest(self, *, most: int = 50, before: str | None = None) -> list[RunRecord]:
        """Newest first; `before` is the id of the last run already seen."""
        bound = 2**62 if before is None else self.key(before)
        return [rows.run(row) for row in self._db.all(NEWEST, {"project": self.project, "before": bound, "most": most})]

    def key(self, run_id: str) -> int:
        return self._lookup(run_id)[0]

    def queue_limit(self, run_id: str) -> int | None:
        return self._lookup(run_id)[1]

    def want(self, run_id: str, wanted: DesiredState, *, who: str, why: str, now: float) -> WriteFuture[RunRecord]:
        """An operator's order, obeyed by claim and every beat; noted in the ledger with who and why."""
        self.key(run_id)  # one that is not there is refused before it is handed over
        return self._db.write(lambda tx: self.want_in(tx, run_id, wanted, who=who, why=why, now=now))

    def want_in(
        self, tx: Transaction, run_id: str, wanted: DesiredState, *, who: str, why: str, now: float
    ) -> RunRecord:
        key = self.key(run_id)
        state, before, _ = tx.one(STATE, {"run": key})
        guarded(run_id, RunState(state), _WANTED[before], _ORDER[wanted])
        tx.run(WANT, {"run": key, "wanted": str(wanted)})
        ledger.append(tx, self.project, run_id, "order", who, {"wanted": wanted, "before": before, "why": why}, now)
        tx.touch(notifications.ORDERS)
        tx.touch(notifications.QUEUE)
        return rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))

    def wanted_in(self, tx: Transaction, key: int) -> DesiredState:
        return _WANTED[tx.one(DESIRED_STATE, {"run": key})[0]]

    def driven_in(self, tx: Transaction, run_id: str, driver: int | None) -> None:
        """Refuse what a driver writes that is not the run's any more; None is nobody's driver, and passes."""
        if driver is not None and tx.one(STATE, {"run": self.key(run_id)})[2] != driver:
            raise taken_up(run_id)

    def beat(self, run_id: str, *, driver: int, now: float) -> WriteFuture[None]:
        """A sign of life of the process that drives the run; StaleLease when another has taken it up."""
        key = self.key(run_id)

        def operation(tx: Transaction) -> None:
            if tx.run(BEAT, {"run": key, "driver": driver, "now": now}).rowcount != 1:
                raise taken_up(run_id)

        return self._db.write(operation)

    def end(
        self, run_id: str, state: RunState, *, who: str, now: float, error: str | None = None, driver: int | None = None
    ) -> WriteFuture[RunRecord]:
        """By its driver, with the number that `begin` or `resume` gave it, or, without one, by an operator's word."""
        key, error = self.key(run_id), plain_text(error)
        if state is RunState.RUNNING:
            raise BadInput(f"run {run_id}", why="running is not an end")

        def operation(tx: Transaction) -> RunRecord:
            self.driven_in(tx, run_id, driver)
            tx.run(END, {"run": key, "state": str(state), "now": now, "error": error})
            ledger.append(tx, self.project, run_id, "run", who, {"end": state, "error": error}, now)
            tx.touch(notifications.ORDERS)
            return rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))

        return self._db.write(operation)

    def resume(
        self,
        run_id: str,
        *,
        who: str,
        now: float,
        silent_s: float,
        process: Process | None = None,
        is_gone: Callable[[Process], bool] = lambda process: False,
    ) -> WriteFuture[RunRecord]:
        """Take up a run that stopped; refused while another process still drives it: it beat within `silent_s`, and
        nobody knows that it is gone.

        Who drove it before is refused from now on, should it wake: the answer carries the new driver's number.
        """
        key = self.key(run_id)

        def operation(tx: Transaction) -> RunRecord:
            tx.one(STATE, {"run": key})
            run = rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))
            if run.wanted is DesiredState.CANCELLED:
                raise IllegalMove(f"run {run_id}", why="was cancelled for good", remedy="start a new run")
            left_s = silent_s - abs(now - run.beat_at)  # a beat from the future is none
            if run.state is RunState.RUNNING and left_s > 0 and not _has_gone(tx, run_id, is_gone):
                raise IllegalMove(
                    f"run {run_id}",
                    why=f"another process drives it (last sign of life {now - run.beat_at:.1f} s ago)",
                    remedy=f"stop that process, or wait {ceil(left_s)} s if it is dead",
                )
            tx.run(RESUME, {"run": key, "now": now})
            ledger.append(tx, self.project, run_id, "run", who, {"resume": run.state, **_by(process)}, now)
            tx.touch(notifications.QUEUE)
            return rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))

        return self._db.write(operation)

    def _lookup(self, run_id: str) -> tuple[int, int | None]:
        known = self._known.get(run_id)
        if known is None:
            row = self._db.one(FIND, {"project": self.project, "id": run_id})
            if row is None:
                why = f"there is none in project {self.project!r}"
                raise NotFound(f"run {run_id!r}", why=why, remedy="'holdfast runs' lists them")
            known = self._known[run_id] = (row[0], row[8])
        return known


def _by(process: Process | None) -> dict[str, Any]:
    return {} if process is None else {"process": asdict(process)}


def _has_gone(tx: Transaction, run_id: str, is_gone: Callable[[Process], bool]) -> bool:
    """Of the process that began the run or took it up last, where that is noted."""
    row = tx.one(DRIVEN_BY, {"run": run_id})
    noted = None if row is None else from_json(row[0]).get("process")
    return noted is not None and is_gone(Process(**noted))


def taken_up(run_id: str) -> StaleLease:
    """What a driver is told that slept until another took its run up."""
    why = "another process has taken it up, and this one may not go on"
    return StaleLease(f"run {run_id}", why=why, remedy="'holdfast runs' shows how the other fares")


_workers = schema.workers.c
REGISTER = into(schema.workers, but=("key", "stopped_at"), started_at=bindparam("now"), beat_at=bindparam("now"))
_worker = update(schema.workers).where(_workers.id == bindparam("worker"))
BEAT_WORKER = _worker.values(beat_at=bindparam("now"))
STOP = _worker.values(beat_at=bindparam("now"), stopped_at=bindparam("now"))
_my_workers = select(schema.workers).where(given(_workers, "project"))
NEWEST_WORKERS = _my_workers.order_by(_workers.key.desc()).limit(AT_MOST)


class Workers(OfProject):
    def register(self, worker: str, *, host: str, pid: int, slots: int, now: float) -> WriteFuture[None]:
        values = {"id": worker, "project": self._project, "host": host, "pid": pid, "slots": slots, "now": now}
        return self._db.write(lambda tx: tx.run(REGISTER, values) and None)

    def beat(self, worker: str, *, now: float) -> WriteFuture[None]:
        return self._db.write(lambda tx: tx.run(BEAT_WORKER, {"worker": worker, "now": now}) and None)

    def stop(self, worker: str, *, now: float) -> WriteFuture[None]:
        return self._db.write(lambda tx: tx.run(STOP, {"worker": worker, "now": now}) and None)

    def newest(self, most: int = 50) -> list[WorkerRecord]:
        return [rows.worker(row) for row in self._db.all(NEWEST_WORKERS, self._of(most=most))]


HELD = frozenset({DesiredState.PAUSED, DesiredState.FROZEN})  # a run that is to wait, and may go on later
MOST = 10_000  # runs that are remembered


class DesiredStates:
    """What operators want of runs, at hand: the store is read again only after an order was given, by any process.

    For those who ask too often to read it each time: a learner between two steps, a proxy before every call.
    """

    def __init__(self, runs: Runs, changes: Notifications) -> None:
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
