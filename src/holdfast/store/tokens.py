"""Tokens: whose they are, which role they give and how long; never the token itself, only its hash.

Each change is in the ledger, without the hash. Making a token, and telling who stands behind one, is `operate.auth`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import bindparam, insert, select, update

from holdfast.contracts.commands import Role, Token, check_why
from holdfast.contracts.errors import BadInput, IllegalMove, NotFound
from holdfast.store import ledger, rows, schema
from holdfast.store.db import Db
from holdfast.store.sql import Transaction, plain_text
from holdfast.store.versions import number
from holdfast.store.writer import WriteFuture

_c = schema.tokens.c
_mine = _c.project == bindparam("project")
_key = _c.key == bindparam("token")
ADD = (
    insert(schema.tokens)
    .values(
        {
            name: bindparam(name)
            for name in ("project", "label", "role", "sha256", "created_at", "expires_at", "revoked_at")
        }
    )
    .returning(_c.key)
)
FIND = select(schema.tokens).where(_mine, _c.sha256 == bindparam("sha256"))
GET = select(schema.tokens).where(_mine, _key)
HELD = GET.with_for_update()  # one change at a time
ALL = select(schema.tokens).where(_mine).order_by(_c.key)
ANY = select(_c.key).where(_c.sha256 == bindparam("sha256"))
EXPIRE = update(schema.tokens).where(_key).values(expires_at=bindparam("expires_at"))
REVOKE = update(schema.tokens).where(_key).values(revoked_at=bindparam("revoked_at"))
DAY_S = 86_400.0


class Tokens:
    def __init__(self, db: Db, project: str) -> None:
        self._db, self._project = db, project

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
        row = self._db.one(FIND, {"project": self._project, "sha256": sha256})
        return None if row is None else rows.token(row)

    def get(self, token_id: str) -> Token:
        return rows.token(self._db.reading(lambda view: self._row(view, GET, token_id)))

    def all(self) -> list[Token]:
        """Oldest first, with those that are no good any more."""
        return [rows.token(row) for row in self._db.all(ALL, {"project": self._project})]

    def revoke(self, token_id: str, who: str, why: str, now: float) -> WriteFuture[Token]:
        """It is no good from now on; IllegalMove when it was revoked before."""
        check_why("token", why)

        def operation(tx: Transaction) -> Token:
            before = self._row(tx, HELD, token_id)
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
            row = self._row(tx, HELD, token_id)
            old = rows.token(row)
            self._refuse_revoked(old)
            if not old.is_good(now):
                raise IllegalMove(f"token {token_id}", why="has expired", remedy="'holdfast tokens add' makes another")
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
        values = {"project": self._project, "label": label, "role": made.role.value, "sha256": made.sha256}
        times = {"created_at": made.created_at, "expires_at": made.expires_at, "revoked_at": None}
        key = tx.one(ADD, {**values, **times})[0]
        body = {"add": f"tok-{key}", "label": label, "role": made.role, "expires_at": made.expires_at, **more}
        ledger.append(tx, self._project, None, "token", who, body, made.created_at)
        return rows.token(tx.one(FIND, values))

    def _row(self, view: Transaction, statement: Any, token_id: str) -> Any:
        n = number(token_id.removeprefix("tok-")) if token_id.startswith("tok-") else None
        row = None if n is None else view.one(statement, {"project": self._project, "token": n})
        if row is None:
            why = f"there is none in project {self._project!r}"
            raise NotFound(f"token {token_id!r}", why=why, remedy="'holdfast tokens list' shows them")
        return row

    def _refuse_revoked(self, token: Token) -> None:
        if token.revoked_at is not None:
            why = "was revoked, and stays so"
            raise IllegalMove(f"token {token.id}", why=why, remedy="'holdfast tokens add' makes another")
