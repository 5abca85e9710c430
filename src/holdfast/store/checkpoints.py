"""Checkpoints: which policies were saved, in which run, and which grew from which. Their bytes are `artifacts`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from sqlalchemy import bindparam, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.artifacts import Artifacts, content_hash
from holdfast.contracts.errors import Conflict, Lost, NotFound, StoreCorrupt
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import dumps
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction
from holdfast.store.writer import WriteFuture

_checkpoints = schema.checkpoints.c
_my_checkpoints = _checkpoints.project == bindparam("project")
ADD = (
    insert(schema.checkpoints)
    .values({column.name: bindparam(column.name) for column in _checkpoints if column.name != "key"})
    .on_conflict_do_nothing(index_elements=["project", "id"])
)
FIND_CHECKPOINT = select(_checkpoints.body, _checkpoints.run).where(_my_checkpoints, _checkpoints.id == bindparam("id"))
NEWEST = select(_checkpoints.body).where(_my_checkpoints).order_by(_checkpoints.key.desc()).limit(bindparam("most"))
OF_RUN = select(_checkpoints.body).where(_checkpoints.run == bindparam("run")).order_by(_checkpoints.key)


class Checkpoints:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs, self._project = db, runs, runs.project

    def add(
        self, checkpoint: Checkpoint, run: str | None = None, *, now: float, driver: int | None = None
    ) -> WriteFuture[None]:
        """Keep the record; again is harmless, other content under the same id a Conflict. Its parent must be there.

        With the number of the run's driver, one that another has replaced is refused.
        """
        add = self.adding(checkpoint, run, now=now)

        def operation(tx: Transaction) -> None:
            if run is not None:
                self._runs.driven_in(tx, run, driver)
            add(tx)

        return self._db.write(operation)

    def adding(self, checkpoint: Checkpoint, run: str | None, *, now: float) -> Callable[[Transaction], None]:
        """The same as an effect of somebody else's transaction."""
        key = None if run is None else self._runs.key(run)
        artifact, body = checkpoint.artifact, dumps(checkpoint)
        values = {
            "project": self._project,
            "id": checkpoint.id,
            "run": key,
            "parent": checkpoint.parent,
            "uri": None if artifact is None else artifact.uri,
            "sha256": None if artifact is None else artifact.sha256,
            "body": body,
            "added_at": now,
        }

        def operation(tx: Transaction) -> None:
            if checkpoint.parent is not None and self._row(tx, checkpoint.parent) is None:
                raise self._none(checkpoint.parent, f"add it before {checkpoint.id}, which grew from it")
            if tx.run(ADD, values).rowcount == 0 and tuple(self._row(tx, checkpoint.id)) != (body, key):
                why = "is there already, with other content or of another run"
                raise Conflict(f"checkpoint {checkpoint.id}", why=why, remedy="give it another id")

        return operation

    def get(self, checkpoint_id: str) -> Checkpoint:
        row = self._db.reading(lambda view: self._row(view, checkpoint_id))
        if row is None:
            raise self._none(checkpoint_id)
        return rows.checkpoint(row)

    def newest(self, most: int = 50) -> list[Checkpoint]:
        """Those added last come first."""
        return [rows.checkpoint(row) for row in self._db.all(NEWEST, {"project": self._project, "most": most})]

    def of_run(self, run: str) -> list[Checkpoint]:
        """In the order they were added."""
        return [rows.checkpoint(row) for row in self._db.all(OF_RUN, {"run": self._runs.key(run)})]

    def lineage(self, checkpoint_id: str) -> list[Checkpoint]:
        """From the root of the line to this one."""

        def look(view: Transaction) -> list[Checkpoint]:
            line: dict[str, Checkpoint] = {}
            wanted: str | None = checkpoint_id
            while wanted is not None:
                row = self._row(view, wanted)
                if wanted in line or (row is None and line):
                    why = f"its line does not lead to a root: {' <- '.join([*line, wanted])}"
                    raise StoreCorrupt(f"checkpoint {checkpoint_id}", why=why, remedy="run 'holdfast store check'")
                if row is None:
                    raise self._none(checkpoint_id)
                line[wanted] = rows.checkpoint(row)
                wanted = line[wanted].parent
            return [*reversed(line.values())]

        return self._db.reading(look, snapshot=True)

    def _row(self, view: Transaction, checkpoint_id: str) -> Any:
        return view.one(FIND_CHECKPOINT, {"project": self._project, "id": checkpoint_id})

    def _none(self, checkpoint_id: str, remedy: str = "") -> NotFound:
        why = f"there is none in project {self._project!r}"
        return NotFound(f"checkpoint {checkpoint_id}", why=why, remedy=remedy)


def damage_of(checkpoint: Checkpoint, files: Artifacts) -> str | None:
    """Why its files are not what was recorded, its trainer's included; None: they are, or it has none of its own."""
    if checkpoint.artifact is None:
        return None
    try:
        at = files.get(checkpoint.artifact)
    except Lost as lost:
        return lost.why
    try:
        if (at / "trainer").is_dir():
            content_hash(at / "trainer")
    except (OSError, ValueError) as error:
        return f"{at}: {error.strerror if isinstance(error, OSError) else error}"
    return None
