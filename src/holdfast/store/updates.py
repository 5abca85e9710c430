"""What each step of learning did, by run and step: added once, never changed. What a body says is the learner's."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import Conflict
from holdfast.contracts.run import LearnUpdate
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, canonical, to_json
from holdfast.store.writer import Pending

_c = schema.updates.c
ADD = (
    insert(schema.updates)
    .values({name: bindparam(name) for name in ("run", "step", "at", "body")})
    .on_conflict_do_nothing(index_elements=["run", "step"])
)
BODY = select(_c.body).where(_c.run == bindparam("run"), _c.step == bindparam("step"))
OF_RUN = select(_c.step, _c.at, _c.body).where(_c.run == bindparam("run")).order_by(_c.step)


class Updates:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def add(
        self, run: str, step: int, body: Mapping[str, Any], *, now: float, driver: int | None = None
    ) -> Pending[None]:
        """Keep what a step did; the same again is harmless (a resumed learner repeats itself), else a Conflict.

        With the number of the run's driver, one that another has replaced is refused.
        """
        LearnUpdate(run=run, step=step, at=now, body=body)  # refuses what cannot be one
        text = canonical(to_json(body))
        values = {"run": self._runs.key(run), "step": step, "at": now, "body": text}

        def operation(tx: Transaction) -> None:
            self._runs.driven_in(tx, run, driver)
            if tx.run(ADD, values).rowcount == 0 and tx.one(BODY, values)[0] != text:
                why = "is there already, with other content"
                raise Conflict(f"update {step} of {run}", why=why, remedy="count on from the last step there is")

        return self._db.write(operation)

    def of_run(self, run: str) -> list[LearnUpdate]:
        """In the order of their steps."""
        return [rows.learning_update(row, run) for row in self._db.all(OF_RUN, {"run": self._runs.key(run)})]
