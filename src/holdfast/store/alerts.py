"""Alerts: what stands, who knows of it, and what stood before. Of one code, one stands for each run.

When one is raised, and when it may fall, is for the rules of `operate` to say.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, select, update
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.commands import Alert
from holdfast.contracts.errors import NotFound
from holdfast.store import ledger, notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction, plain_text
from holdfast.store.sql import number
from holdfast.store.writer import WriteFuture

_alerts = schema.alerts.c
_my_alerts = _alerts.project == bindparam("project")
_stands = _alerts.cleared_at.is_(None)
_one = (_alerts.code == bindparam("code"), _alerts.run == bindparam("run"))
_one_alert = _alerts.key == bindparam("alert")
RAISE = (
    insert(schema.alerts)
    .values({name: bindparam(name) for name in ("project", "code", "run", "severity", "message", "at")})
    .on_conflict_do_nothing()
)
STANDING = select(schema.alerts).where(_my_alerts, _stands)
FIND_ALERT = STANDING.where(*_one)
HELD_ALERT = FIND_ALERT.with_for_update()  # one change at a time
ALL_STANDING = STANDING.order_by(_alerts.key.desc())
NEWEST = (
    select(schema.alerts).where(_my_alerts, _alerts.key < bindparam("before")).order_by(_alerts.key.desc()).limit(bindparam("most"))
)
# Who knew of a warning does not know that it is critical by now.
WORSE = (
    update(schema.alerts)
    .where(_one_alert)
    .values(severity=bindparam("severity"), message=bindparam("message"), acknowledged_at=None, acknowledged_by=None)
)
CLEAR = update(schema.alerts).where(_one_alert).values(cleared_at=bindparam("cleared_at"))
ACKNOWLEDGE = (
    update(schema.alerts)
    .where(_one_alert)
    .values(acknowledged_at=bindparam("acknowledged_at"), acknowledged_by=bindparam("acknowledged_by"))
)
WATCH = "watch"  # who raises and clears, where nobody else is named


class Alerts:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

    def raise_(self, alert: Alert, *, who: str = WATCH) -> WriteFuture[Alert]:
        """The alert that stands then. One that stood already stays as it is, unless it has another severity now."""
        values = self._of(alert.code, alert.run)
        told = {"severity": alert.severity.value, "message": plain_text(alert.message)}

        def operation(tx: Transaction) -> Alert:
            row = tx.one(HELD_ALERT, values)
            if row is not None and rows.alert(row).severity is alert.severity:
                return rows.alert(row)
            if row is None:
                if tx.run(RAISE, {**values, **told, "at": alert.at}).rowcount == 0:  # another process was faster
                    return rows.alert(tx.one(FIND_ALERT, values))
            else:
                tx.run(WORSE, {"alert": row[0], **told})
            return self._note(tx, values, who, {"raise": values["code"], **told}, alert.at)

        return self._db.write(operation)

    def clear(self, code: str, run: str | None = None, *, at: float, who: str = WATCH) -> WriteFuture[Alert | None]:
        """What stood until now, or None when nothing did."""
        values = self._of(code, run)

        def operation(tx: Transaction) -> Alert | None:
            row = tx.one(HELD_ALERT, values)
            if row is None:
                return None
            ended = max(at, row[6])  # a clock may be set back
            self._note(tx, values, who, {"clear": values["code"]}, at)
            tx.run(CLEAR, {"alert": row[0], "cleared_at": ended})
            return rows.alert((*row[:9], ended))

        return self._db.write(operation)

    def acknowledge(self, code: str, run: str | None, who: str, at: float, *, why: str = "") -> WriteFuture[Alert]:
        """Somebody knows of it; who was the first stays. NotFound when it does not stand."""
        return self._db.write(lambda tx: self.acknowledge_in(tx, code, run, who, at, why=why))

    def acknowledge_in(
        self, tx: Transaction, code: str, run: str | None, who: str, at: float, *, why: str = ""
    ) -> Alert:
        values = self._of(code, run)
        row = tx.one(HELD_ALERT, values)
        if row is None:
            raise self._none(code, run)
        if row[7] is not None:
            return rows.alert(row)
        tx.run(ACKNOWLEDGE, {"alert": row[0], "acknowledged_at": at, "acknowledged_by": plain_text(who)})
        return self._note(tx, values, who, {"acknowledge": values["code"], "why": plain_text(why)}, at)

    def find(self, code: str, run: str | None = None) -> Alert:
        """The one that stands."""
        row = self._db.one(FIND_ALERT, self._of(code, run))
        if row is None:
            raise self._none(code, run)
        return rows.alert(row)

    def standing(self) -> list[Alert]:
        """Newest first."""
        return [rows.alert(row) for row in self._db.all(ALL_STANDING, {"project": self._project})]

    def history(self, most: int = 50, before: str | None = None) -> list[Alert]:
        """Those that stand and those that did, newest first; `before` is the id of the last one already seen."""
        key = 2**62 if before is None else number(before.removeprefix("alert-"))
        if key is None:
            raise NotFound(f"alert {before!r}", why="is not the id of one", remedy="'holdfast control alerts' has them")
        return [
            rows.alert(row) for row in self._db.all(NEWEST, {"project": self._project, "before": key, "most": most})
        ]

    def _of(self, code: str, run: str | None) -> dict[str, Any]:
        return {"project": self._project, "code": plain_text(code), "run": plain_text(run or "")}

    def _note(self, tx: Transaction, values: Mapping[str, Any], who: str, body: Mapping[str, Any], at: float) -> Alert:
        ledger.append(tx, self._project, values["run"] or None, "alert", who, body, at)
        tx.touch(notifications.ALERTS)
        return rows.alert(tx.one(FIND_ALERT, dict(values)))

    def _none(self, code: str, run: str | None) -> NotFound:
        of = f" of {run}" if run else ""
        return NotFound(f"alert {code!r}{of}", why="does not stand", remedy="'holdfast control alerts' lists what does")
