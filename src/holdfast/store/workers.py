"""Who works: one row per worker process, with its last sign of life."""

from __future__ import annotations

from sqlalchemy import bindparam, insert, select, update

from holdfast.contracts.run import WorkerRecord
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.writer import WriteFuture

_workers = schema.workers.c
REGISTER = insert(schema.workers).values(
    {
        **{name: bindparam(name) for name in ("id", "project", "host", "pid", "slots")},
        "started_at": bindparam("now"),
        "beat_at": bindparam("now"),
    }
)
BEAT_WORKER = update(schema.workers).where(_workers.id == bindparam("worker")).values(beat_at=bindparam("now"))
STOP = (
    update(schema.workers)
    .where(_workers.id == bindparam("worker"))
    .values(beat_at=bindparam("now"), stopped_at=bindparam("now"))
)
NEWEST_WORKERS = (
    select(schema.workers).where(_workers.project == bindparam("project")).order_by(_workers.key.desc()).limit(bindparam("most"))
)


class Workers:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

    def register(self, worker: str, *, host: str, pid: int, slots: int, now: float) -> WriteFuture[None]:
        values = {"id": worker, "project": self._project, "host": host, "pid": pid, "slots": slots, "now": now}
        return self._db.write(lambda tx: tx.run(REGISTER, values) and None)

    def beat(self, worker: str, *, now: float) -> WriteFuture[None]:
        return self._db.write(lambda tx: tx.run(BEAT_WORKER, {"worker": worker, "now": now}) and None)

    def stop(self, worker: str, *, now: float) -> WriteFuture[None]:
        return self._db.write(lambda tx: tx.run(STOP, {"worker": worker, "now": now}) and None)

    def newest(self, most: int = 50) -> list[WorkerRecord]:
        return [rows.worker(row) for row in self._db.all(NEWEST_WORKERS, {"project": self._project, "most": most})]
