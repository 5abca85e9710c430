"""Commands of operators, each obeyed once; the tokens that allow them; alerts; overrides for following learners.

A command, its answer and its line in the ledger are one transaction, known by its id. Of a token only the hash is
kept. Of one alert code, one alert stands for each run. Who may command, what a command does and when an alert is
raised is decided in `operate`.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import Any

import orjson
from sqlalchemy import bindparam, select, text

from holdfast.contracts.commands import Alert, Command, Overrides, Role, Token, check_why
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, IllegalMove, NotFound, StoreCorrupt
from holdfast.contracts.records import dumps
from holdfast.store import ledger, notifications, rows, schema, sql
from holdfast.store.artifacts import locked, write_atomically
from holdfast.store.ledger import OfProject
from holdfast.store.sql import Transaction, from_json, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_c = schema.commands.c
RECORD = into(schema.commands)
FIND_COMMAND = select(_c.body, _c.answer).where(given(schema.commands, "project", "id"))
LOCK = text("LOCK TABLE commands IN SHARE ROW EXCLUSIVE MODE")  # Postgres: of two with one id, one is the first

Act = Callable[[Transaction], Mapping[str, Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class CommandResult:
    """What an order came to."""

    body: Mapping[str, Any]
    again: bool  # it had been obeyed before, and nothing was done this time


class Commands(OfProject):
    def once(self, command: Command, role: str, act: Act, *, run: str | None = None) -> WriteFuture[CommandResult]:
        """Obey the order, unless that was done before: then the answer is the earlier one.

        A known id with other content is a Conflict. What `act` raises leaves nothing behind. `run` is the id of the
        run that it is about, for the ledger.
        """
        command = _plain(command)

        def operation(tx: Transaction) -> CommandResult:
            if not tx.is_sqlite:
                tx.run(LOCK, {})
            result = self._known(tx, command)
            if result is not None:
                return result
            answer = to_json(act(tx))
            values = self._of(id=command.id, body=dumps(command), role=str(role))
            tx.run(RECORD, {**values, "answer": answer, "at": command.at})
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
        row = view.one(FIND_COMMAND, self._of(id=command.id))
        if row is None:
            return None
        before = rows.command(row)
        if _content(before) != _content(command):
            message = f"{before.action} {before.subject} by {before.who}"
            raise Conflict(
                f"order {command.id}", why=f"was another one: {message}", remedy="give each order its own id"
            )
        return CommandResult(body=from_json(row[1]), again=True)


def _body(command: Command, role: str) -> dict[str, Any]:
    """What the ledger has of an order, what people look for first."""
    payload = {"action": command.action, "subject": command.subject, "why": command.why}
    return {**payload, "id": command.id, "args": dict(command.args), "role": str(role)}


def _content(command: Command) -> tuple[str, ...]:
    """All but when it was given: whoever asks again asks later."""
    return command.action, command.subject, command.who, command.why, sql.canonical(to_json(dict(command.args)))


def _plain(command: Command) -> Command:
    words = {name: plain_text(getattr(command, name)) for name in ("id", "action", "subject", "who", "why")}
    return replace(command, **words)


_tokens = schema.tokens.c
_one_token = _tokens.key == bindparam("token")
ADD = into(schema.tokens).returning(_tokens.key)
_my_tokens = select(schema.tokens).where(given(schema.tokens, "project"))
FIND_TOKEN = _my_tokens.where(given(schema.tokens, "sha256"))
GET = _my_tokens.where(_one_token)
HELD_TOKEN = GET.with_for_update()  # one change at a time
ALL_TOKENS = _my_tokens.order_by(_tokens.key)
ANY = select(_tokens.key).where(given(schema.tokens, "sha256"))
EXPIRE, REVOKE = (sql.changing(schema.tokens, "token", name) for name in ("expires_at", "revoked_at"))
DAY_S = 86_400.0
EVERY_TOKEN = select(schema.tokens).order_by(_tokens.key)
_noted = schema.ledger.c
TOKENS_NOTED = select(_noted.project, _noted.body).where(_noted.kind == "token").order_by(_noted.seq)


def fingerprint(sha256: str) -> str:
    """Of a token's hash: it tells one from another, and is no help to whoever reads the ledger."""
    return hashlib.sha256(sha256.encode()).hexdigest()[:32]


def changed_tokens(view: Transaction) -> Iterator[str]:
    """Tokens that are not as the ledger has them, a sentence each; the chain shows a change of the ledger."""
    due: dict[tuple[str, str], dict[str, Any]] = {}
    for project, told in view.all(TOKENS_NOTED, {}):
        body = from_json(told)
        if (made := body.get("add")) is not None:
            due[project, made] = {"is_revoked": False, **body}
        for name, change in (("revoke", {"is_revoked": True}), ("rotate", {"expires_at": body.get("old_expires_at")})):
            if (project, body.get(name)) in due:
                due[project, body[name]] |= change
    for row in view.all(EVERY_TOKEN, {}):
        token, project = rows.token(row), row[1]
        kept = {"label": token.label, "role": str(token.role), "expires_at": token.expires_at}
        kept |= {"is_revoked": token.revoked_at is not None, "fingerprint": fingerprint(token.sha256)}
        noted = due.pop((project, token.id), None)
        if noted is None:
            yield f"token {token.id}: is not in the ledger"
            continue
        if wrong := [name for name, value in kept.items() if name in noted and noted[name] != value]:
            yield f"token {token.id}: its {wrong[0].removeprefix('is_')} is not what the ledger has"
    yield from (f"token {name}: is in the ledger, and not in the store" for _, name in due)


class Tokens(OfProject):
    def add(
        self,
        label: str,
        role: Role,
        sha256: str,
        now: float,
        expires_at: float | None = None,
        *,
        who: str | None = None,
    ) -> WriteFuture[Token]:
        """Keep a token by its hash; made by whoever it is for, unless `who` says otherwise."""
        made = Token(id="tok", label=label, role=Role(role), sha256=sha256, created_at=now, expires_at=expires_at)
        return self._db.write(lambda tx: self._add(tx, made, who or label, {}))

    def find(self, sha256: str) -> Token | None:
        """The token with this hash, good or not."""
        row = self._db.one(FIND_TOKEN, self._of(sha256=sha256))
        return None if row is None else rows.token(row)

    def all(self) -> list[Token]:
        """Oldest first, with those that are no good any more."""
        return [rows.token(row) for row in self._db.all(ALL_TOKENS, self._of())]

    def revoke(self, token_id: str, who: str, why: str, now: float) -> WriteFuture[Token]:
        """It is no good from now on; IllegalMove when it was revoked before."""
        check_why("token", why)

        def operation(tx: Transaction) -> Token:
            before = self._row(tx, HELD_TOKEN, token_id)
            self._refuse_revoked(rows.token(before))
            tx.run(REVOKE, {"token": before[0], "revoked_at": now})
            ledger.append(tx, self._project, None, "token", who, {"revoke": token_id, "why": plain_text(why)}, now)
            return rows.token(self._row(tx, GET, token_id))

        return self._db.write(operation)

    def rotate(
        self,
        token_id: str,
        sha256: str,
        who: str,
        now: float,
        *,
        grace_s: float = DAY_S,
        expires_at: float | None = None,
    ) -> WriteFuture[Token]:
        """Another one with the same label and role; the old one is good for `grace_s` seconds more, and no longer.

        Unless it is said when the new one ends, it lives as long as the old one was to live: without an end only where
        that had none. One that was rotated before ends soon, and so does what takes its place a second time.
        """
        if not 0.0 <= grace_s < float("inf"):
            raise BadInput(f"token {token_id}: grace of {grace_s} s", why="must be finite, and not negative")

        def operation(tx: Transaction) -> Token:
            row = self._row(tx, HELD_TOKEN, token_id)
            old = rows.token(row)
            self._refuse_revoked(old)
            if not old.is_good(now):
                raise IllegalMove(
                    f"token {token_id}", why="has expired", remedy="'holdfast control tokens add' makes another"
                )
            until = now + grace_s if old.expires_at is None else min(now + grace_s, old.expires_at)
            tx.run(EXPIRE, {"token": row[0], "expires_at": until})
            ends = expires_at
            if ends is None and old.expires_at is not None:
                ends = now + (old.expires_at - old.created_at)
            made = Token(id="tok", label=old.label, role=old.role, sha256=sha256, created_at=now, expires_at=ends)
            return self._add(tx, made, who, {"rotate": token_id, "old_expires_at": until})

        return self._db.write(operation)

    def _add(self, tx: Transaction, made: Token, who: str, more: Mapping[str, Any]) -> Token:
        if tx.one(ANY, {"sha256": made.sha256}) is not None:
            raise BadInput("token", why="this one is known already", remedy="make another")
        label = plain_text(made.label)
        values = self._of(label=label, role=made.role.value, sha256=made.sha256)
        times = {"created_at": made.created_at, "expires_at": made.expires_at, "revoked_at": None}
        key = tx.one(ADD, {**values, **times})[0]
        body = {"add": f"tok-{key}", "label": label, "role": made.role, "expires_at": made.expires_at, **more}
        body["fingerprint"] = fingerprint(made.sha256)
        ledger.append(tx, self._project, None, "token", who, body, made.created_at)
        return rows.token(tx.one(FIND_TOKEN, values))

    def _row(self, view: Transaction, statement: Any, token_id: str) -> Any:
        n = sql.number(token_id.removeprefix("tok-")) if token_id.startswith("tok-") else None
        row = None if n is None else view.one(statement, self._of(token=n))
        if row is None:
            raise self._none(f"token {token_id!r}", "'holdfast control tokens list' shows them")
        return row

    def _refuse_revoked(self, token: Token) -> None:
        if token.revoked_at is not None:
            why = "was revoked, and stays so"
            raise IllegalMove(f"token {token.id}", why=why, remedy="'holdfast control tokens add' makes another")


_alerts = schema.alerts.c
_my_alerts = select(schema.alerts).where(given(schema.alerts, "project"))
RAISE = into(schema.alerts, but=("key", "acknowledged_at", "acknowledged_by", "cleared_at")).on_conflict_do_nothing()
STANDING = _my_alerts.where(_alerts.cleared_at.is_(None))
FIND_ALERT = STANDING.where(given(schema.alerts, "code", "run"))
HELD_ALERT = FIND_ALERT.with_for_update()  # one change at a time
ALL_STANDING = STANDING.order_by(_alerts.key.desc())
NEWEST = _my_alerts.where(_alerts.key < bindparam("before")).order_by(_alerts.key.desc()).limit(sql.AT_MOST)
# Who knew of a warning does not know that it is critical by now.
_unseen: dict[str, Any] = {"acknowledged_at": None, "acknowledged_by": None}
WORSE = sql.changing(schema.alerts, "alert", "severity", "message", **_unseen)
CLEAR = sql.changing(schema.alerts, "alert", "cleared_at")
ACKNOWLEDGE = sql.changing(schema.alerts, "alert", *_unseen)
WATCH = "watch"  # who raises and clears, where nobody else is named


class Alerts(OfProject):
    def raise_(self, alert: Alert, *, who: str = WATCH) -> WriteFuture[Alert]:
        """The alert that stands then. One that stood already stays as it is, unless it has another severity now."""
        values = self._about(alert.code, alert.run)
        payload = {"severity": alert.severity.value, "message": plain_text(alert.message)}

        def operation(tx: Transaction) -> Alert:
            row = tx.one(HELD_ALERT, values)
            if row is not None and rows.alert(row).severity is alert.severity:
                return rows.alert(row)
            if row is None:
                if tx.run(RAISE, {**values, **payload, "at": alert.at}).rowcount == 0:  # another process was faster
                    return rows.alert(tx.one(FIND_ALERT, values))
            else:
                tx.run(WORSE, {"alert": row[0], **payload})
            return self._note(tx, values, who, {"raise": values["code"], **payload}, alert.at)

        return self._db.write(operation)

    def clear(self, code: str, run: str | None = None, *, at: float, who: str = WATCH) -> WriteFuture[Alert | None]:
        """What stood until now, or None when nothing did."""
        values = self._about(code, run)

        def operation(tx: Transaction) -> Alert | None:
            row = tx.one(HELD_ALERT, values)
            if row is None:
                return None
            ended = max(at, row[6])  # a clock may be set back
            self._note(tx, values, who, {"clear": values["code"]}, at)
            tx.run(CLEAR, {"alert": row[0], "cleared_at": ended})
            return rows.alert((*row[:9], ended))

        return self._db.write(operation)

    def acknowledge_in(
        self, tx: Transaction, code: str, run: str | None, who: str, at: float, *, why: str = ""
    ) -> Alert:
        values = self._about(code, run)
        row = tx.one(HELD_ALERT, values)
        if row is None:
            raise self._unknown(code, run)
        if row[7] is not None:
            return rows.alert(row)
        tx.run(ACKNOWLEDGE, {"alert": row[0], "acknowledged_at": at, "acknowledged_by": plain_text(who)})
        return self._note(tx, values, who, {"acknowledge": values["code"], "why": plain_text(why)}, at)

    def standing(self) -> list[Alert]:
        """Newest first."""
        return [rows.alert(row) for row in self._db.all(ALL_STANDING, self._of())]

    def history(self, most: int = 50, before: str | None = None) -> list[Alert]:
        """Those that stand and those that did, newest first; `before` is the id of the last one already seen."""
        key = 2**62 if before is None else sql.number(before.removeprefix("alert-"))
        if key is None:
            raise NotFound(f"alert {before!r}", why="is not the id of one", remedy="'holdfast control alerts' has them")
        return [rows.alert(row) for row in self._db.all(NEWEST, self._of(before=key, most=most))]

    def _about(self, code: str, run: str | None) -> dict[str, Any]:
        return self._of(code=plain_text(code), run=plain_text(run or ""))

    def _note(self, tx: Transaction, values: Mapping[str, Any], who: str, body: Mapping[str, Any], at: float) -> Alert:
        ledger.append(tx, self._project, values["run"] or None, "alert", who, body, at)
        tx.touch(notifications.ALERTS)
        return rows.alert(tx.one(FIND_ALERT, dict(values)))

    def _unknown(self, code: str, run: str | None) -> NotFound:
        of = f" of {run}" if run else ""
        return NotFound(f"alert {code!r}{of}", why="does not stand", remedy="'holdfast control alerts' lists what does")


SCHEMA = 1
NAME = "training-config-overrides"
NAMES = frozenset(field.name for field in fields(Overrides))


class OverridesFile:
    """Overrides for learners that follow others, in a file beside the store, in its documented shape.

    Written whole, one writer at a time. A learner reads it on the machine where it runs: with a database elsewhere,
    the folder has to be the same one.
    """

    def __init__(self, folder: Path, project: str) -> None:
        # The documented name is the default project's; others must not be heard by its learners.
        mark = "" if project == "default" else f"-{hashlib.sha256(project.encode()).hexdigest()[:12]}"
        self.path = folder / f"{NAME}{mark}.json"

    def get(self) -> Overrides:
        try:
            kept = orjson.loads(self.path.read_bytes())["pending_overrides"]
            return Overrides(**{name: value for name, value in kept.items() if name in NAMES})  # older ones had more
        except FileNotFoundError:
            return Overrides()
        except (orjson.JSONDecodeError, KeyError, TypeError, AttributeError, BadRecord) as error:
            raise StoreCorrupt(f"{self.path}", why=f"is not what was written: {error}", remedy="remove it") from None

    def put(self, given: Mapping[str, Any], *, now: float) -> dict[str, Any]:
        """What is pending then: what was, and what is given upon it."""
        with locked(self.path.with_suffix(".lock")):
            pending = pending_of(self.get()) | dict(given)
            Overrides(**pending)  # refused before anything is written
            kept = {"schema_version": SCHEMA, "updated_unix_ms": round(now * 1000), "pending_overrides": pending}
            write_atomically(self.path, orjson.dumps(kept, option=orjson.OPT_INDENT_2) + b"\n")
        return pending


def pending_of(overrides: Overrides) -> dict[str, Any]:
    """Those that are set."""
    return {name: value for name, value in asdict(overrides).items() if value is not None}
