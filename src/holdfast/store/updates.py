"""What each step of learning did, by run and step: added once, never changed. What a body says is the learner's.

The ledger has the hash of each, so that a change behind the store's back shows. Those of versions before that are in
no ledger; where such a run goes on, they are noted as they are then.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from typing import Any

from sqlalchemy import bindparam, func, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import Conflict, StoreCorrupt
from holdfast.contracts.run import LearnUpdate
from holdfast.store import ledger, rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, canonical, from_json, to_json
from holdfast.store.writer import Pending

_c = schema.updates.c
ADD = (
    insert(schema.updates)
    .values({name: bindparam(name) for name in ("run", "step", "at", "body")})
    .on_conflict_do_nothing(index_elements=["run", "step"])
)
BODY = select(_c.body).where(_c.run == bindparam("run"), _c.step == bindparam("step"))
OF_RUN = select(_c.step, _c.at, _c.body).where(_c.run == bindparam("run")).order_by(_c.step)
_l, _u = schema.ledger.c, schema.runs.c
_of_run = _l.run == bindparam("run")
KEPT = (
    select(_c.step, _c.body)
    .select_from(schema.updates.join(schema.runs, _u.key == _c.run))
    .where(_u.id == bindparam("run"))
    .order_by(_c.step)
)
NOTED = select(_l.seq, _l.body).where(_of_run, _l.kind == "update").order_by(_l.seq)
LAST_NOTED = select(_l.seq).where(_of_run, _l.kind == "update").order_by(_l.seq.desc()).limit(1)
EARLIER = select(_c.step).where(_c.run == bindparam("run"), _c.step < bindparam("step")).limit(1)
BEGUN = select(func.min(_l.seq)).where(_of_run, _l.kind == "run")
PRUNED = select(func.min(_l.seq)).where(_of_run, _l.kind == "prune")
FIRST = select(func.min(_l.seq)).where(_l.kind == "update")
WITH_SOME = select(_u.id).where(_u.key.in_(select(_c.run))).order_by(_u.key)
WITH_ENTRIES = select(_l.run).where(_l.kind == "update").group_by(_l.run).order_by(func.min(_l.seq))


class Updates:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def add(
        self,
        run: str,
        step: int,
        body: Mapping[str, Any],
        *,
        now: float,
        driver: int | None = None,
        who: str = "learner",
    ) -> Pending[None]:
        """Keep what a step did; the same again is harmless (a resumed learner repeats itself), else a Conflict.

        With the number of the run's driver, one that another has replaced is refused.
        """
        LearnUpdate(run=run, step=step, at=now, body=body)  # refuses what cannot be one
        text = canonical(to_json(body))
        sha256 = _hashed(text)
        values = {"run": self._runs.key(run), "step": step, "at": now, "body": text}

        def operation(tx: Transaction) -> None:
            self._runs.driven_in(tx, run, driver)
            if tx.run(ADD, values).rowcount == 1:
                for body in (*_unnoted(tx, run, values), {"step": step, "sha256": sha256}):
                    ledger.append(tx, self._runs.project, run, "update", who, body, now)
            elif tx.one(BODY, values)[0] != text:
                why = "is there already, with other content"
                raise Conflict(f"update {step} of {run}", why=why, remedy="count on from the last step there is")

        return self._db.write(operation)

    def of_run(self, run: str) -> list[LearnUpdate]:
        """In the order of their steps."""
        return [rows.learning_update(row, run) for row in self._db.all(OF_RUN, {"run": self._runs.key(run)})]

    def verify(self, run: str) -> None:
        """StoreCorrupt with the first step that is not as it was when it was added."""
        self._runs.key(run)  # refuses what is no run of this project
        changed = self._db.reading(lambda view: next(_changed(view, run), None), snapshot=True)
        if changed is not None:
            step, why = changed
            raise StoreCorrupt(f"update {step} of {run}", why=why, remedy="nothing that rests on this run is proven")


def changed(view: Transaction) -> Iterator[str]:
    """What is wrong with the updates of all runs, a sentence each."""
    runs = dict.fromkeys(row[0] for statement in (WITH_SOME, WITH_ENTRIES) for row in view.all(statement, {}))
    for run in runs:
        yield from (f"update {step} of {run}: {why}" for step, why in _changed(view, run))


def _changed(view: Transaction, run: str) -> Iterator[tuple[int, str]]:
    """Steps that are not as the ledger has them, and what became of each."""
    noted: dict[int, str] = {}
    for seq, text in view.all(NOTED, {"run": run}):
        try:
            body = from_json(text)
            noted.setdefault(int(body["step"]), str(body["sha256"]))  # added again after a removal: the first counts
        except (KeyError, TypeError, ValueError) as error:
            why = f"entry {seq} says nothing about an update that makes sense"
            raise StoreCorrupt("ledger", why=why, remedy="nothing that rests on this run is proven") from error
    kept = {step: _hashed(body) for step, body in view.all(KEPT, {"run": run})}
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


def _unnoted(tx: Transaction, run: str, values: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Steps before this one, when none of the run is in the ledger yet."""
    earlier = tx.all(EARLIER, dict(values))
    if not earlier or tx.one(LAST_NOTED, {"run": run}) is not None:
        return []
    return [
        {"step": step, "sha256": _hashed(body)} for step, body in tx.all(KEPT, {"run": run}) if step < values["step"]
    ]


def _is_old(view: Transaction, run: str) -> bool:
    """Whether the run began before any update was noted."""
    first, begun = view.one(FIRST, {})[0], view.one(BEGUN, {"run": run})[0]
    return first is None or (begun is not None and begun < first)


def _hashed(text: str) -> str:
    return hashlib.sha256(text.encode()).hexdigest()
