"""Feature flags, as they are now; what they were, who changed them and why is in the ledger.

What a flag's value is for somebody, and whether its rules make sense together, is `promote`'s business.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from sqlalchemy import bindparam, delete, select
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.errors import Conflict, NotFound
from holdfast.contracts.flag import Flag
from holdfast.contracts.records import dumps, encode
from holdfast.contracts.release import check_name
from holdfast.store import ledger, notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction
from holdfast.store.writer import WriteFuture

_flags = schema.flags.c
_my_flags = _flags.project == bindparam("project")
_put = insert(schema.flags).values({column.name: bindparam(column.name) for column in _flags})
PUT = _put.on_conflict_do_update(
    index_elements=["project", "name"], set_={"body": _put.excluded.body, "changed_at": _put.excluded.changed_at}
)
FIND_FLAG = select(_flags.body).where(_my_flags, _flags.name == bindparam("name"))
HELD_FLAG = FIND_FLAG.with_for_update()  # one change at a time
ALL_FLAGS = select(_flags.body).where(_my_flags).order_by(_flags.name)
DROP = delete(schema.flags).where(_my_flags, _flags.name == bindparam("name"))


class Flags:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

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
        tx.run(PUT, {"project": self._project, "name": flag.name, "body": dumps(flag), "changed_at": now})
        body = {"put": flag.name, "why": why, "flag": encode(flag)}
        self._note(tx, who, {**body, "before": None if before is None else encode(before)}, now)
        return flag

    def get(self, name: str) -> Flag:
        row = self._db.one(FIND_FLAG, {"project": self._project, "name": name})
        if row is None:
            raise self._none(name)
        return rows.flag(row)

    def all(self) -> list[Flag]:
        """By name."""
        return [rows.flag(row) for row in self._db.all(ALL_FLAGS, {"project": self._project})]

    def drop(self, name: str, *, who: str, why: str, now: float) -> WriteFuture[Flag]:
        """Remove it; the answer is what it was."""

        def operation(tx: Transaction) -> Flag:
            before = self.held(tx, name)
            if before is None:
                raise self._none(name)
            tx.run(DROP, {"project": self._project, "name": name})
            self._note(tx, who, {"drop": name, "why": why, "before": encode(before)}, now)
            return before

        return self._db.write(operation)

    def held(self, tx: Transaction, name: str) -> Flag | None:
        """As it is, and stays while this transaction lasts."""
        row = tx.one(HELD_FLAG, {"project": self._project, "name": name})
        return None if row is None else rows.flag(row)

    def _note(self, tx: Transaction, who: str, body: dict[str, Any], now: float) -> None:
        ledger.append(tx, self._project, None, "flag", who, body, now)
        tx.touch(notifications.FLAGS)

    def _none(self, name: str) -> NotFound:
        why = f"there is none in project {self._project!r}"
        return NotFound(f"flag {name!r}", why=why, remedy="'holdfast flags list' shows them")
