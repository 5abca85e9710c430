"""Experiments (arms, exposures, served requests) and feature flags.

Requests are recorded on the serving path with one insert for many; nobody is woken by it, and whoever watches an
experiment looks at intervals. Which arm a unit gets and what a flag's value is for somebody is decided in `promote`.
What a flag was, who changed it and why is in the ledger.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, delete, func, or_, select

from holdfast.contracts.errors import BadInput, Conflict, IllegalMove
from holdfast.contracts.flag import Flag
from holdfast.contracts.records import dumps, encode
from holdfast.contracts.release import Experiment, Exposure, ServedRequest, Stage, check_name
from holdfast.store import ledger, notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.ledger import OfProject
from holdfast.store.sql import AT_MOST, Transaction, canonical, changing, from_json, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_t, _e, _s = schema.trials.c, schema.exposures.c, schema.served.c
_mine = given(_t, "project")
BEGIN = into(schema.trials, "project", "name", but=("key", "ended_at"))
FIND = select(schema.trials).where(_mine, given(_t, "name"))
ALL = select(schema.trials).where(_mine).order_by(_t.key.desc())
# Not a lock that those who only refer to the trial wait for.
HOLD = select(_t.ended_at).where(_t.key == bindparam("trial")).with_for_update(key_share=True)
END = changing(schema.trials, "trial", ended_at=bindparam("now"))
EXPOSE = into(schema.exposures, "trial", "unit")
EXPOSURE = select(*rows.EXPOSURE).where(given(_e, "trial", "unit"))
EXPOSURES = select(*rows.EXPOSURE).where(given(_e, "trial")).order_by(_e.at, _e.unit)
COUNT = select(func.count()).select_from(schema.served).where(given(_s, "trial"))
EXPOSED = select(_e.arm, func.count()).where(given(_e, "trial")).group_by(_e.arm)
RECORD = into(schema.served, "project", "id")
_request = select(_s.key, _t.name, *rows.SERVED).select_from(schema.served.join(schema.trials, _t.key == _s.trial))
REQUEST = _request.where(given(_s, "project", "id")).with_for_update(of=schema.served)
TELL = changing(schema.served, "request", "success", "reward", "safety_cost")
SERVED = select(*rows.SERVED).where(given(_s, "trial")).order_by(_s.key).limit(AT_MOST).offset(bindparam("after"))
SERVED_BY = SERVED.where(given(_s, "arm"))
MOST = 2**31 - 1
STAGES = frozenset((str(Stage.SHADOW), str(Stage.CANARY), str(Stage.LIVE)))  # trials named after a release


class Trials(OfProject):
    def __init__(self, db: Db, project: str) -> None:
        super().__init__(db, project)
        self._known: dict[str, tuple[int, Mapping[str, float]]] = {}  # neither ever changes: name → key, arms

    def begin(
        self, trial: Experiment, *, who: str, now: float, also: Callable[[Transaction], None] | None = None
    ) -> WriteFuture[Experiment]:
        """Begin it; the same again is the trial that is there, another of that name or one that ended a Conflict.
        `also`: what is done in the same transaction, or not at all."""
        if trial.kind not in STAGES:
            check_name("trial", trial.name)
        values: dict[str, Any] = self._of(name=trial.name, kind=trial.kind, salt=trial.salt)
        values |= {"arms": to_json(trial.arms), "settings": canonical(to_json(trial.settings))}
        values["created_at"] = trial.created_at

        def operation(tx: Transaction) -> Experiment:
            if also is not None:
                also(tx)
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
            return rows.experiment(row)

        return self._db.write(operation)

    def end(self, name: str, *, who: str, why: str, now: float) -> WriteFuture[Experiment]:
        """No unit is given an arm from now on; requests that were under way are still recorded. Again is harmless."""
        key, _ = self._lookup(name)

        def operation(tx: Transaction) -> Experiment:
            if tx.one(HOLD, {"trial": key})[0] is None:
                tx.run(END, {"trial": key, "now": now})
                ledger.append(tx, self._project, None, "trial", who, {"end": name, "why": why}, now)
                tx.touch(notifications.TRIALS)
            return rows.experiment(tx.one(FIND, self._of(name=name)))

        return self._db.write(operation)

    def get(self, name: str) -> Experiment:
        row = self._db.one(FIND, self._of(name=name))
        if row is None:
            raise self._none(f"trial {name!r}", "begin it first")
        return rows.experiment(row)

    def all(self, kind: str | None = None) -> list[Experiment]:
        """Newest first."""
        experiments = [rows.experiment(row) for row in self._db.all(ALL, self._of())]
        return [trial for trial in experiments if kind in (None, trial.kind)]

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
                if tx.one(FIND, self._of(name=trial))[7] is not None:
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

    def exposures(self, trial: str) -> list[Exposure]:
        """Every unit with its arm, in the order in which they were given."""
        return [rows.exposure(row, trial) for row in self._db.all(EXPOSURES, {"trial": self._lookup(trial)[0]})]

    def record(self, served: Sequence[ServedRequest]) -> WriteFuture[int]:
        """Keep what was served, and how many of it are new; of two with one id, the first stays."""
        params = [self._params(request) for request in served]
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
        payload: dict[str, Any] = {name: value for name, value in given.items() if value is not None}
        if not payload:
            raise BadInput(f"feedback on {request_id}", why="says nothing", remedy=f"give one of {', '.join(given)}")

        def operation(tx: Transaction) -> bool:
            row = tx.one(REQUEST, self._of(id=plain_text(request_id)))
            if row is None:
                return False
            before = rows.served_request(row[2:], row[1])
            for name, value in payload.items():
                if getattr(before, name) not in (None, value):
                    why = f"{name} was told before: {getattr(before, name)}, not {value}"
                    raise Conflict(f"request {request_id}", why=why)
            after = replace(before, **payload)
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

    def count(self, trial: str) -> int:
        """How many requests were recorded."""
        counted: int = self._db.one(COUNT, {"trial": self._lookup(trial)[0]})[0]
        return counted

    def _params(self, one: ServedRequest) -> dict[str, Any]:
        values = {name: getattr(one, name) for name in ServedRequest.__slots__}
        values |= {"id": plain_text(one.id), "unit": plain_text(one.unit), "error": int(one.error)}
        return values | self._of(trial=self._arm(one.trial, one.arm))

    def _arm(self, trial: str, arm: str) -> int:
        """The trial's key, when the arm is one of its own."""
        key, arms = self._known.get(trial) or self._lookup(trial)
        if arm not in arms:
            raise BadInput(f"trial {trial}: arm {arm!r}", why="is not one of its arms", remedy=f"use {', '.join(arms)}")
        return key

    def _lookup(self, name: str) -> tuple[int, Mapping[str, float]]:
        known = self._known.get(name)
        if known is None:
            row = self._db.one(FIND, self._of(name=name))
            if row is None:
                raise self._none(f"trial {name!r}", "begin it first")
            known = self._known[name] = (row[0], rows.experiment(row).arms)
        return known


_flags = schema.flags.c
_my_flags = given(_flags, "project")
_put = into(schema.flags)
PUT = _put.on_conflict_do_update(
    index_elements=["project", "name"], set_={"body": _put.excluded.body, "changed_at": _put.excluded.changed_at}
)
FIND_FLAG = select(_flags.body).where(_my_flags, given(_flags, "name"))
HELD_FLAG = FIND_FLAG.with_for_update()  # one change at a time
ALL_FLAGS = select(_flags.body).where(_my_flags).order_by(_flags.name)
DROP = delete(schema.flags).where(_my_flags, given(_flags, "name"))


class Flags(OfProject):
    def put(self, flag: Flag, *, who: str, why: str, now: float, seen: Flag | None = None) -> WriteFuture[Flag]:
        """Keep the flag in the place of what there was. With `seen`, a Conflict when it is not that any more.

        Who changes a part of a flag gives what was read, so that no kill switch is undone by somebody who did not
        see it.
        """
        check_name("flag", flag.name)
        return self._db.write(lambda tx: self.put_in(tx, flag, who=who, why=why, now=now, seen=seen))

    def put_in(self, tx: Transaction, flag: Flag, *, who: str, why: str, now: float, seen: Flag | None = None) -> Flag:
        flag = replace(flag, changed_at=now)
        before = self.held(tx, flag.name)
        if seen is not None and before != seen:
            raise Conflict(f"flag {flag.name}", why="was changed by another meanwhile", remedy="look at it again")
        tx.run(PUT, self._of(name=flag.name, body=dumps(flag), changed_at=now))
        body = {"put": flag.name, "why": why, "flag": encode(flag)}
        self._note(tx, who, {**body, "before": None if before is None else encode(before)}, now)
        return flag

    def get(self, name: str) -> Flag:
        row = self._db.one(FIND_FLAG, self._of(name=name))
        if row is None:
            raise self._none(f"flag {name!r}", "'holdfast release flags list' shows them")
        return rows.flag(row)

    def all(self) -> list[Flag]:
        """By name."""
        return [rows.flag(row) for row in self._db.all(ALL_FLAGS, self._of())]

    def drop(self, name: str, *, who: str, why: str, now: float) -> WriteFuture[Flag]:
        """Remove it; the answer is what it was."""

        def operation(tx: Transaction) -> Flag:
            before = self.held(tx, name)
            if before is None:
                raise self._none(f"flag {name!r}", "'holdfast release flags list' shows them")
            tx.run(DROP, self._of(name=name))
            self._note(tx, who, {"drop": name, "why": why, "before": encode(before)}, now)
            return before

        return self._db.write(operation)

    def held(self, tx: Transaction, name: str) -> Flag | None:
        """As it is, and stays while this transaction lasts."""
        row = tx.one(HELD_FLAG, self._of(name=name))
        return None if row is None else rows.flag(row)

    def _note(self, tx: Transaction, who: str, body: dict[str, Any], now: float) -> None:
        ledger.append(tx, self._project, None, "flag", who, body, now)
        tx.touch(notifications.FLAGS)


_l = schema.ledger.c
NOTED = select(_l.kind, _l.project, _l.body).where(or_(_l.kind == "trial", _l.kind == "flag")).order_by(_l.seq)
EVERY_TRIAL = select(_t.project, _t.name, _t.kind, _t.arms, _t.salt, _t.settings, _t.ended_at).order_by(_t.key)
EVERY_FLAG = select(_flags.project, _flags.name, _flags.body)


def changed(view: Transaction) -> Iterator[str]:
    """Trials and flags that are not as the ledger has them, a sentence each."""
    due: dict[tuple[str, str, str], list[Any]] = {}
    for kind, project, text in view.all(NOTED, {}):
        _follow(due, kind, project, from_json(text))
    kept = {
        ("trial", project, name): _trial(kind, from_json(arms), salt, from_json(settings), ended_at is not None)
        for project, name, kind, arms, salt, settings, ended_at in view.all(EVERY_TRIAL, {})
    }
    kept |= {("flag", project, name): [from_json(body)] for project, name, body in view.all(EVERY_FLAG, {})}
    for key in dict.fromkeys((*kept, *due)):
        if key not in due or key not in kept:
            there, missing = ("store", "ledger") if key in kept else ("ledger", "store")
            yield f"{key[0]} {key[2]}: is in the {there}, and not in the {missing}"
        elif kept[key] != due[key]:
            yield f"{key[0]} {key[2]}: is not what the ledger has"


def _follow(due: dict[tuple[str, str, str], list[Any]], kind: str, project: str, body: Mapping[str, Any]) -> None:
    """One entry more: the same that was done to the rows when it was written."""
    if "begin" in body:
        values = _trial(body["kind"], body["arms"], body["salt"], body["settings"], False)
        due[kind, project, body["begin"]] = values
    elif "end" in body:
        due[kind, project, body["end"]][-1] = True
    elif "put" in body:
        due[kind, project, body["put"]] = [body["flag"]]
    elif "drop" in body:
        del due[kind, project, body["drop"]]


def _trial(kind: str, arms: Mapping[str, float], salt: str, settings: Any, is_ended: bool) -> list[Any]:
    return [kind, to_json(arms), salt, settings, is_ended]  # the first of the arms is the control
