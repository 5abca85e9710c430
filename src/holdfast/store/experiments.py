"""Trials: which arms run side by side, which unit was given which, and what came of each request.

Requests are recorded on the serving path, so that is one insert for many of them; nobody is woken by it, and whoever
watches a trial looks at intervals. Which arm a unit gets is `promote`'s business, what the numbers mean `prove`'s.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, func, select, update
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import BadInput, Conflict, IllegalMove, NotFound
from holdfast.contracts.release import Experiment, Exposure, ServedRequest, Stage, check_name
from holdfast.store import ledger, notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction, canonical, plain_text, to_json
from holdfast.store.writer import WriteFuture

_t, _e, _s = schema.trials.c, schema.exposures.c, schema.served.c
_mine = _t.project == bindparam("project")
BEGIN = (
    insert(schema.trials)
    .values({column.name: bindparam(column.name) for column in _t if column.name not in ("key", "ended_at")})
    .on_conflict_do_nothing(index_elements=["project", "name"])
)
FIND = select(schema.trials).where(_mine, _t.name == bindparam("name"))
ALL = select(schema.trials).where(_mine).order_by(_t.key.desc())
# Not a lock that those who only refer to the trial wait for.
HOLD = select(_t.ended_at).where(_t.key == bindparam("trial")).with_for_update(key_share=True)
END = update(schema.trials).where(_t.key == bindparam("trial")).values(ended_at=bindparam("now"))
EXPOSE = (
    insert(schema.exposures)
    .values({column.name: bindparam(column.name) for column in _e})
    .on_conflict_do_nothing(index_elements=["trial", "unit"])
)
EXPOSURE = select(_e.unit, _e.arm, _e.at).where(_e.trial == bindparam("trial"), _e.unit == bindparam("unit"))
EXPOSED = select(_e.arm, func.count()).where(_e.trial == bindparam("trial")).group_by(_e.arm)
RECORD = (
    insert(schema.served)
    .values({column.name: bindparam(column.name) for column in _s if column.name != "key"})
    .on_conflict_do_nothing(index_elements=["project", "id"])
)
REQUEST = (
    select(_s.key, _t.name, *rows.SERVED)
    .select_from(schema.served.join(schema.trials, _t.key == _s.trial))
    .where(_s.project == bindparam("project"), _s.id == bindparam("id"))
    .with_for_update(of=schema.served)
)
TELL = (
    update(schema.served)
    .where(_s.key == bindparam("request"))
    .values({name: bindparam(name) for name in ("success", "reward", "safety_cost")})
)
SERVED = (
    select(*rows.SERVED)
    .where(_s.trial == bindparam("trial"))
    .order_by(_s.key)
    .limit(bindparam("most"))
    .offset(bindparam("after"))
)
SERVED_BY = SERVED.where(_s.arm == bindparam("arm"))
MOST = 2**31 - 1
STAGES = frozenset((str(Stage.SHADOW), str(Stage.CANARY)))  # trials of a release are named after its id


class Trials:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project
        self._known: dict[str, tuple[int, Mapping[str, float]]] = {}  # neither ever changes: name → key, arms

    def begin(self, trial: Experiment, *, who: str, now: float) -> WriteFuture[Experiment]:
        """Begin it; the same again is the trial that is there, another of that name or one that ended a Conflict."""
        if trial.kind not in STAGES:
            check_name("trial", trial.name)
        values: dict[str, Any] = {"project": self._project, "name": trial.name, "kind": trial.kind, "salt": trial.salt}
        values |= {"arms": to_json(trial.arms), "settings": canonical(to_json(trial.settings))}
        values["created_at"] = trial.created_at

        def operation(tx: Transaction) -> Experiment:
            is_new = tx.run(BEGIN, values).rowcount == 1
            row = tx.one(FIND, values)
            if is_new:
                body = {"begin": trial.name, "kind": trial.kind, "arms": trial.arms, "salt": trial.salt}
                ledger.append(tx, self._project, None, "trial", who, {**body, "settings": trial.settings}, now)
                tx.touch(notifications.TRIALS)
            elif row[7] is not None:
                raise Conflict(f"trial {trial.name}", why="has ended", remedy="give it another name")
            elif (row[3], row[4], row[5], row[8]) != tuple(values[it] for it in ("kind", "arms", "salt", "settings")):
                why = "is there already, with other content"
                raise Conflict(f"trial {trial.name}", why=why, remedy="give it another name")
            return rows.trial(row)

        return self._db.write(operation)

    def end(self, name: str, *, who: str, why: str, now: float) -> WriteFuture[Experiment]:
        """No unit is given an arm from now on; requests that were under way are still recorded. Again is harmless."""
        key, _ = self._lookup(name)

        def operation(tx: Transaction) -> Experiment:
            if tx.one(HOLD, {"trial": key})[0] is None:
                tx.run(END, {"trial": key, "now": now})
                ledger.append(tx, self._project, None, "trial", who, {"end": name, "why": why}, now)
                tx.touch(notifications.TRIALS)
            return rows.trial(tx.one(FIND, {"project": self._project, "name": name}))

        return self._db.write(operation)

    def get(self, name: str) -> Experiment:
        row = self._db.one(FIND, {"project": self._project, "name": name})
        if row is None:
            raise self._none(name)
        return rows.trial(row)

    def all(self, kind: str | None = None) -> list[Experiment]:
        """Newest first."""
        found = [rows.trial(row) for row in self._db.all(ALL, {"project": self._project})]
        return [trial for trial in found if kind in (None, trial.kind)]

    def expose(self, trial: str, unit: str, arm: str, *, now: float) -> WriteFuture[Exposure]:
        """The unit has the arm from now on; it keeps the first that it was given."""
        if not unit.strip():
            raise BadInput(
                f"trial {trial}: unit {unit!r}", why="must not be blank", remedy="name who or what is given it"
            )
        values = {"trial": self._arm(trial, arm), "unit": plain_text(unit), "arm": arm, "at": now}

        def operation(tx: Transaction) -> Exposure:
            row = tx.one(EXPOSURE, values)
            if row is None:
                if tx.one(FIND, {"project": self._project, "name": trial})[7] is not None:
                    raise IllegalMove(f"trial {trial}", why="has ended", remedy="begin another")
                tx.run(EXPOSE, values)
                row = tx.one(EXPOSURE, values)
            return rows.exposure(row, trial)

        return self._db.write(operation)

    def exposure(self, trial: str, unit: str) -> Exposure | None:
        row = self._db.one(EXPOSURE, {"trial": self._lookup(trial)[0], "unit": plain_text(unit)})
        return None if row is None else rows.exposure(row, trial)

    def exposed(self, trial: str) -> dict[str, int]:
        """How many units each arm was given to."""
        key, arms = self._lookup(trial)
        return dict.fromkeys(arms, 0) | dict(self._db.all(EXPOSED, {"trial": key}))

    def record(self, served: Sequence[ServedRequest]) -> WriteFuture[int]:
        """Keep what was served, and how many of it are new; of two with one id, the first stays."""
        params = [self._params(one) for one in served]
        trials = sorted({values["trial"] for values in params})

        def operation(tx: Transaction) -> int:
            if not tx.is_sqlite:  # within a trial keys grow as transactions end: nobody who has looked misses one
                for trial in trials:
                    tx.one(HOLD, {"trial": trial})
            return tx.many(RECORD, params) if params else 0

        return self._db.write(operation)

    def feedback(
        self,
        request_id: str,
        *,
        success: float | None = None,
        reward: float | None = None,
        safety_cost: float | None = None,
    ) -> WriteFuture[bool]:
        """What came of a request; False when there is no such request. Each value is told once: again is harmless,
        another value a Conflict."""
        given = {"success": success, "reward": reward, "safety_cost": safety_cost}
        told: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not told:
            raise BadInput(f"feedback on {request_id}", why="says nothing", remedy=f"give one of {', '.join(given)}")

        def operation(tx: Transaction) -> bool:
            row = tx.one(REQUEST, {"project": self._project, "id": plain_text(request_id)})
            if row is None:
                return False
            before = rows.served_request(row[2:], row[1])
            for name, value in told.items():
                if getattr(before, name) not in (None, value):
                    why = f"{name} was told before: {getattr(before, name)}, not {value}"
                    raise Conflict(f"request {request_id}", why=why)
            after = replace(before, **told)
            if after != before:
                values = {name: getattr(after, name) for name in given}
                tx.run(TELL, {"request": row[0], **values})
            return True

        return self._db.write(operation)

    def served(
        self, trial: str, *, arm: str | None = None, after: int = 0, most: int | None = None
    ) -> list[ServedRequest]:
        """In the order of their arrival; `after` is how many of them (of that arm) have been seen already."""
        key = self._lookup(trial)[0] if arm is None else self._arm(trial, arm)
        params = {"trial": key, "after": after, "most": MOST if most is None else most}
        if arm is None:
            found = self._db.all(SERVED, params)
        else:
            found = self._db.all(SERVED_BY, {**params, "arm": arm})
        return [rows.served_request(row, trial) for row in found]

    def _params(self, one: ServedRequest) -> dict[str, Any]:
        return {
            "project": self._project,
            "trial": self._arm(one.trial, one.arm),
            "id": plain_text(one.id),
            "arm": one.arm,
            "unit": plain_text(one.unit),
            "at": one.at,
            "error": int(one.error),
            "latency_s": one.latency_s,
            "tokens": one.tokens,
            "success": one.success,
            "reward": one.reward,
            "safety_cost": one.safety_cost,
        }

    def _arm(self, trial: str, arm: str) -> int:
        """The trial's key, when the arm is one of its own."""
        key, arms = self._known.get(trial) or self._lookup(trial)
        if arm not in arms:
            raise BadInput(f"trial {trial}: arm {arm!r}", why="is not one of its arms", remedy=f"use {', '.join(arms)}")
        return key

    def _lookup(self, name: str) -> tuple[int, Mapping[str, float]]:
        known = self._known.get(name)
        if known is None:
            row = self._db.one(FIND, {"project": self._project, "name": name})
            if row is None:
                raise self._none(name)
            known = self._known[name] = (row[0], rows.trial(row).arms)
        return known

    def _none(self, name: str) -> NotFound:
        return NotFound(f"trial {name!r}", why=f"there is none in project {self._project!r}", remedy="begin it first")
