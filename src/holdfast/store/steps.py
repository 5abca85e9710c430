"""Durable steps: a name, the function that ran, a hash of its inputs and its result. Recorded once, never changed.

A step's row and its effects in the store share one transaction, under the fence of the run's driver. The ledger has
the hash of each row, so that a change behind the store's back shows. Rows of versions before durable steps (their
function is `lesson`) are noted by the hash of their result alone, and the oldest of them are in no ledger.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

from sqlalchemy import bindparam, func, select

from holdfast.contracts.errors import BadRecord, Conflict, StoreCorrupt
from holdfast.contracts.run import LEGACY_STEP, StepRecord
from holdfast.store import ledger, rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, among, canonical, from_json, into, to_json
from holdfast.store.writer import WriteFuture

LARGEST = 64 * 1024  # bytes of a result: it refers to rollouts, artifacts and blobs, and does not hold them
Effect = Callable[[Transaction], None]

_c = schema.steps.c
ADD = into(schema.steps, "run", "name")
LAST = select(func.coalesce(func.max(_c.step), 0)).where(_c.run == bindparam("run"))
NAMED = select(*rows.STEP).where(_c.run == bindparam("run"), _c.name == bindparam("name"))
OF_RUN = select(*rows.STEP).where(_c.run == bindparam("run")).order_by(_c.step)
_l, _u = schema.ledger.c, schema.runs.c
_of_run = _l.run == bindparam("run")
_is_note = among(_l.kind, "update", "step")  # the kinds of entries before durable steps, and since
KEPT = (
    select(_c.step, _c.name, _c.function, _c.inputs_sha256, _c.body)
    .select_from(schema.steps.join(schema.runs, _u.key == _c.run))
    .where(_u.id == bindparam("run"))
    .order_by(_c.step)
)
NOTED = select(_l.seq, _l.body).where(_of_run, _is_note).order_by(_l.seq)
LAST_NOTED = select(_l.seq).where(_of_run, _is_note).order_by(_l.seq.desc()).limit(1)
BEGUN = select(func.min(_l.seq)).where(_of_run, _l.kind == "run")
PRUNED = select(func.min(_l.seq)).where(_of_run, _l.kind == "prune")
FIRST = select(func.min(_l.seq)).where(_is_note)
WITH_SOME = select(_u.id).where(_u.key.in_(select(_c.run))).order_by(_u.key)
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
        text = canonical(to_json(result))
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


def changed(view: Transaction) -> Iterator[str]:
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
