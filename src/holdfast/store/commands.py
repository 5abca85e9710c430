"""Orders, each obeyed once: the deed, its answer and its line in the ledger are one transaction, known by its id.

Who may give an order, and what it does, is `operate.control`'s business.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from sqlalchemy import bindparam, insert, select, text

from holdfast.contracts.commands import Command
from holdfast.contracts.errors import Conflict
from holdfast.contracts.records import dumps
from holdfast.store import ledger, rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction, canonical, from_json, plain_text, to_json
from holdfast.store.writer import WriteFuture

_c = schema.commands.c
KEEP = insert(schema.commands).values({column.name: bindparam(column.name) for column in _c})
FIND_COMMAND = select(_c.body, _c.answer).where(_c.project == bindparam("project"), _c.id == bindparam("id"))
LOCK = text("LOCK TABLE commands IN SHARE ROW EXCLUSIVE MODE")  # Postgres: of two with one id, one is the first

Act = Callable[[Transaction], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What an order came to."""

    body: Mapping[str, Any]
    again: bool  # it had been obeyed before, and nothing was done this time


class Commands:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

    def once(self, command: Command, role: str, act: Act, *, run: str | None = None) -> WriteFuture[CommandResult]:
        """Obey the order, unless that was done before: then the answer is the earlier one.

        A known id with other content is a Conflict. What `act` raises leaves nothing behind. `run` is the id of the
        run that it is about, for the ledger.
        """
        command = _plain(command)

        def operation(tx: Transaction) -> CommandResult:
            if not tx.is_sqlite:
                tx.run(LOCK, {})
            found = self._known(tx, command)
            if found is not None:
                return found
            answer = to_json(act(tx))
            values = {"project": self._project, "id": command.id, "body": dumps(command), "role": str(role)}
            tx.run(KEEP, {**values, "answer": answer, "at": command.at})
            told = from_json(answer)
            ledger.append(
                tx, self._project, run, "command", command.who, {**_body(command, role), "answer": told}, command.at
            )
            return CommandResult(body=told, again=False)

        return self._db.write(operation)

    def known(self, command: Command) -> CommandResult | None:
        """The answer that was given to this order before; Conflict when its id was another's."""
        return self._db.reading(lambda view: self._known(view, _plain(command)))

    def refused(self, command: Command, role: str, why: str, *, run: str | None = None) -> WriteFuture[None]:
        """Note that an order was not obeyed, and why not; its id stays free."""
        command = _plain(command)
        body = {**_body(command, role), "refused": plain_text(why)}

        def operation(tx: Transaction) -> None:
            ledger.append(tx, self._project, run, "refusal", command.who, body, command.at)

        return self._db.write(operation)

    def _known(self, view: Transaction, command: Command) -> CommandResult | None:
        row = view.one(FIND_COMMAND, {"project": self._project, "id": command.id})
        if row is None:
            return None
        before = rows.command(row)
        if _content(before) != _content(command):
            told = f"{before.action} {before.subject} by {before.who}"
            raise Conflict(f"order {command.id}", why=f"was another one: {told}", remedy="give each order its own id")
        return CommandResult(body=from_json(row[1]), again=True)


def _body(command: Command, role: str) -> dict[str, Any]:
    """What the ledger has of an order, what people look for first."""
    told = {"action": command.action, "subject": command.subject, "why": command.why}
    return {**told, "id": command.id, "args": dict(command.args), "role": str(role)}


def _content(command: Command) -> tuple[str, ...]:
    """All but when it was given: whoever asks again asks later."""
    return command.action, command.subject, command.who, command.why, canonical(to_json(dict(command.args)))


def _plain(command: Command) -> Command:
    words = {name: plain_text(getattr(command, name)) for name in ("id", "action", "subject", "who", "why")}
    return replace(command, **words)
