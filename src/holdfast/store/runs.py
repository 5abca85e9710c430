"""Runs with the state their operator wants them in and their durable steps, and the worker processes.

A step is a name, the function that ran, a hash of its inputs and its result: recorded once, never changed. Its row and
its effects in the store share one transaction, under the fence of the run's driver. The ledger has the hash of each
row, so that a change behind the store's back shows. Rows of versions before durable steps (their function is `lesson`)
are noted by the hash of their result alone, and the oldest of them are in no ledger.
"""

from __future__ import annotations

import hashlib
import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict
from math import ceil
from typing import Any

from sqlalchemy import BindParameter, bindparam, func, select, update

from holdfast.contracts.commands import WANTS, guarded
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, IllegalMove, NotFound, StaleLease, StoreCorrupt
from holdfast.contracts.run import LEGACY_STEP, DesiredState, Process, RunRecord, RunState, StepRecord, WorkerRecord
from holdfast.store import ledger, notifications, rows, schema, sql, tasks
from holdfast.store.db import Db
from holdfast.store.ledger import OfProject
from holdfast.store.notifications import LOOK_S, ORDERS, Notifications
from holdfast.store.sql import Transaction, from_json, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_c = schema.runs.c
_born = {"state": "running", "wanted": "running", "created_at": bindparam("now"), "beat_at": bindparam("now")}
BEGIN = into(schema.runs, but=("key", "ended_at", "error", "driver"), **_born).returning(_c.key)
_change = update(schema.runs).where(_c.key == bindparam("run"))
NAME = _change.values(id=bindparam("id"))
FIND = select(schema.runs).where(given(schema.runs, "project", "id"))
# Compared letter by letter: LIKE has wildcards, and in SQLite no capitals.
_prefix: BindParameter[str] = bindparam("prefix")
_starting_with = select(schema.runs).where(given(_c, "project"), func.substr(_c.id, 1, func.length(_prefix)) == _prefix)
STARTING_WITH = _starting_with.order_by(_c.key).limit(3)
_newest = select(schema.runs).where(given(_c, "project"), _c.key < bindparam("before")).order_by(_c.key.desc())
NEWEST = _newest.limit(sql.AT_MOST)
DESIRED_STATE = select(_c.wanted).where(_c.key == bindparam("run"))
# One operator at a time.
STATE = select(_c.state, _c.wanted, _c.driver).where(_c.key == bindparam("run")).with_for_update()
WANT = _change.values(wanted=bindparam("wanted"))
BEAT = _change.where(given(_c, "driver")).values(beat_at=bindparam("now"))
END = sql.changing(schema.runs, "run", "state", "error", ended_at=bindparam("now"), beat_at=bindparam("now"))
_again: dict[str, Any] = {"state": "running", "wanted": "running", "ended_at": None, "error": None}
RESUME = _change.values(**_again, beat_at=bindparam("now"), driver=_c.driver + 1)
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
            body = {"begin": kind, "model_ref": model_ref, "settings": _settled(values["settings"]), **_by(process)}
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
        raise NotFound(f"run {run_id!r}", why=why, remedy="'holdfast run list' lists them")

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
            if self._db.is_sealed and (given := tasks.of_run(tx, key)) is not None:
                ledger.append(tx, self.project, run_id, tasks.KIND, who, given, now)
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
        changed: Sequence[str] = (),
    ) -> WriteFuture[RunRecord]:
        """Take up a run that stopped; refused while another process still drives it: it beat within `silent_s`, and
        nobody knows that it is gone. `changed` are files of its code that were others when it began.

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
            body = {"resume": run.state, **_by(process), **({"changed": list(changed)} if changed else {})}
            ledger.append(tx, self.project, run_id, "run", who, body, now)
            tx.touch(notifications.QUEUE)
            return rows.run(tx.one(FIND, {"project": self.project, "id": run_id}))

        return self._db.write(operation)

    def _lookup(self, run_id: str) -> tuple[int, int | None]:
        known = self._known.get(run_id)
        if known is None:
            row = self._db.one(FIND, {"project": self.project, "id": run_id})
            if row is None:
                why = f"there is none in project {self.project!r}"
                raise NotFound(f"run {run_id!r}", why=why, remedy="'holdfast run list' lists them")
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
    return StaleLease(f"run {run_id}", why=why, remedy="'holdfast run list' shows how the other fares")


_workers = schema.workers.c
REGISTER = into(schema.workers, but=("key", "stopped_at"), started_at=bindparam("now"), beat_at=bindparam("now"))
_worker = update(schema.workers).where(_workers.id == bindparam("worker"))
BEAT_WORKER = _worker.values(beat_at=bindparam("now"))
STOP = _worker.values(beat_at=bindparam("now"), stopped_at=bindparam("now"))
_my_workers = select(schema.workers).where(given(_workers, "project"))
NEWEST_WORKERS = _my_workers.order_by(_workers.key.desc()).limit(sql.AT_MOST)


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
        self._looked_at = 0.0  # monotonic seconds

    def of(self, run: str) -> DesiredState:
        """What is wanted of it."""
        is_old = time.monotonic() - self._looked_at > LOOK_S  # should a wake-up have been lost
        if self._next is None or self._next.settled or is_old or len(self._known) >= MOST:
            if self._next is not None and not self._next.settled:
                self._changes.forget(self._next)
            self._looked_at = time.monotonic()
            self._next = self._changes.after(ORDERS, self._changes.seen(ORDERS))  # before we look: none is missed
            self._known = {}
        known = self._known
        if run not in known:
            known[run] = self._runs.get(run).wanted
        return known[run]

    def wait(self, at_most_s: float) -> None:
        """Until the next order, of whichever run, or so long."""
        self._changes.wait(ORDERS, self._changes.seen(ORDERS), at_most_s)


LARGEST = 64 * 1024  # bytes of a result: it refers to rollouts, artifacts and blobs, and does not hold them
Effect = Callable[[Transaction], None]

_steps = schema.steps.c
ADD = into(schema.steps, "run", "name")
LAST = select(func.coalesce(func.max(_steps.step), 0)).where(given(_steps, "run"))
NAMED = select(*rows.STEP).where(given(_steps, "run", "name"))
OF_RUN = select(*rows.STEP).where(given(_steps, "run")).order_by(_steps.step)
_of_run = given(_l, "run")
_is_note = sql.among(_l.kind, "update", "step")  # the kinds of entries before durable steps, and since
KEPT = (
    select(_steps.step, _steps.name, _steps.function, _steps.inputs_sha256, _steps.body)
    .select_from(schema.steps.join(schema.runs, _c.key == _steps.run))
    .where(_c.id == bindparam("run"))
    .order_by(_steps.step)
)
NOTED = select(_l.seq, _l.body).where(_of_run, _is_note).order_by(_l.seq)
LAST_NOTED = select(_l.seq).where(_of_run, _is_note).order_by(_l.seq.desc()).limit(1)
BEGUN = select(func.min(_l.seq)).where(_of_run, _l.kind == "run")
PRUNED = select(func.min(_l.seq)).where(_of_run, _l.kind == "prune")
FIRST = select(func.min(_l.seq)).where(_is_note)
WITH_SOME = select(_c.id).where(_c.key.in_(select(_steps.run))).order_by(_c.key)
WITH_ENTRIES = select(_l.run).where(_is_note).group_by(_l.run).order_by(func.min(_l.seq))


class Steps:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def add(
        self,
        run: str,
        name: str,
        result: Mapping[str, Any],
        *,
        function: str,
        inputs_sha256: str = "",
        now: float,
        driver: int | None = None,
        who: str = "driver",
        effects: Sequence[Effect] = (),
    ) -> WriteFuture[StepRecord]:
        """Record a step that is done, with its effects, in one transaction. The same again is harmless, else Conflict.

        With the number of the run's driver, one that another has replaced is refused.
        """
        StepRecord(run=run, step=0, name=name, function=function, inputs_sha256=inputs_sha256, at=now, body=result)
        text = sql.canonical(to_json(result))
        if len(text) > LARGEST:
            why = f"its result has {len(text)} bytes, {LARGEST} are allowed"
            raise BadRecord(f"step {name} of {run}", why=why, remedy="keep the data in a blob and refer to it")
        values = {
            "run": self._runs.key(run),
            "name": name,
            "function": function,
            "inputs_sha256": inputs_sha256,
            "at": now,
            "body": text,
        }

        def operation(tx: Transaction) -> StepRecord:
            self._runs.driven_in(tx, run, driver)
            known = tx.one(NAMED, values)
            if known is None:
                for effect in effects:
                    effect(tx)
                number = tx.one(LAST, values)[0] + 1
                notes = _unnoted(tx, run)
                tx.run(ADD, {**values, "step": number})
                body = {"step": number, "name": name, "function": function, "inputs_sha256": inputs_sha256}
                for note in (*notes, {**body, "sha256": _hashed(name, function, inputs_sha256, text)}):
                    ledger.append(tx, self._runs.project, run, "step", who, note, now)
                known = tx.one(NAMED, values)
            elif (known[2], known[3], known[5]) != (function, inputs_sha256, text):
                why = "is there already, with another function, other inputs or another result"
                raise Conflict(f"step {name} of {run}", why=why, remedy="a recorded step is never changed")
            return rows.step(known, run)

        return self._db.write(operation)

    def get(self, run: str, name: str) -> StepRecord | None:
        """The step of that name; None while it is not done."""
        row = self._db.one(NAMED, {"run": self._runs.key(run), "name": name})
        return None if row is None else rows.step(row, run)

    def is_recorded_in(self, tx: Transaction, run: str, name: str | None) -> bool:
        """Whether the step is done, within somebody's transaction; None is the step of what belongs to none."""
        return name is not None and tx.one(NAMED, {"run": self._runs.key(run), "name": name}) is not None

    def of_run(self, run: str) -> list[StepRecord]:
        """In the order they were recorded."""
        return [rows.step(row, run) for row in self._db.all(OF_RUN, {"run": self._runs.key(run)})]

    def verify(self, run: str) -> None:
        """StoreCorrupt with the first step that is not as it was when it was recorded."""
        self._runs.key(run)  # refuses what is no run of this project
        changed = self._db.reading(lambda view: next(_changed(view, run), None), snapshot=True)
        if changed is not None:
            step, why = changed
            raise StoreCorrupt(f"step {step} of {run}", why=why, remedy="nothing that rests on this run is proven")


RUNS_NOTED = select(_l.run, _l.body).where(_l.kind == "run").order_by(_l.seq)
EVERY_RUN = select(_c.id, _c.kind, _c.model_ref, _c.settings, _c.state)


def _settled(settings: Any) -> str:
    return hashlib.sha256(str(settings).encode()).hexdigest()


def changed_runs(view: Transaction) -> Iterator[str]:
    """Runs whose beginning or end is not as the ledger has it, a sentence each."""
    due: dict[str, dict[str, Any]] = {}
    for run, text in view.all(RUNS_NOTED, {}):
        body = from_json(text)
        if "begin" in body:
            due[run] = {"kind": body["begin"], **{name: body.get(name) for name in ("model_ref", "settings")}}
        if run in due:
            due[run]["state"] = str(body.get("end", RunState.RUNNING))
    for run, kind, model_ref, settings, state in view.all(EVERY_RUN, {}):
        kept = {"kind": kind, "model_ref": model_ref, "settings": _settled(settings), "state": state}
        noted = due.get(run, {})
        yield from (
            f"run {run}: its {name} is not what the ledger has"
            for name, value in kept.items()
            if noted.get(name) not in (None, value)
        )


def changed_steps(view: Transaction) -> Iterator[str]:
    """What is wrong with the steps of all runs, a sentence each."""
    runs = dict.fromkeys(row[0] for statement in (WITH_SOME, WITH_ENTRIES) for row in view.all(statement, {}))
    for run in runs:
        yield from (f"step {step} of {run}: {why}" for step, why in _changed(view, run))


def _changed(view: Transaction, run: str) -> Iterator[tuple[int, str]]:
    """Steps that are not as the ledger has them, and what became of each."""
    noted: dict[int, str] = {}
    for seq, text in view.all(NOTED, {"run": run}):
        try:
            body = from_json(text)
            noted.setdefault(int(body["step"]), str(body["sha256"]))  # added again after a removal: the first counts
        except (KeyError, TypeError, ValueError) as error:
            why = f"entry {seq} says nothing about a step that makes sense"
            raise StoreCorrupt("ledger", why=why, remedy="nothing that rests on this run is proven") from error
    kept = {step: _hashed(*rest) for step, *rest in view.all(KEPT, {"run": run})}
    is_pruned = view.one(PRUNED, {"run": run})[0] is not None
    for step in sorted(kept.keys() | noted.keys()):
        if step not in kept:
            if not is_pruned:
                yield step, "is in the ledger, and not in the store"
        elif step in noted:
            if kept[step] != noted[step]:
                yield step, "was changed after it was written"
        elif noted or not _is_old(view, run):
            yield step, "is not in the ledger"


def _unnoted(tx: Transaction, run: str) -> list[dict[str, Any]]:
    """Steps of the run, when none of it is in the ledger yet: what was written before they were noted."""
    if tx.one(LAST_NOTED, {"run": run}) is not None:
        return []
    return [{"step": step, "sha256": _hashed(*rest)} for step, *rest in tx.all(KEPT, {"run": run})]


def _is_old(view: Transaction, run: str) -> bool:
    """Whether the run began before any step was noted."""
    first, begun = view.one(FIRST, {})[0], view.one(BEGUN, {"run": run})[0]
    return first is None or (begun is not None and begun < first)


def _hashed(name: str, function: str, inputs_sha256: str, body: str) -> str:
    """Of the whole row; of those before durable steps, of the result alone."""
    text = body if function == LEGACY_STEP else f"{name}\n{function}\n{inputs_sha256}\n{body}"
    return hashlib.sha256(text.encode()).hexdigest()
