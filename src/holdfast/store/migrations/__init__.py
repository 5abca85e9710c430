"""Alembic migrations: `versions/` in order add up to `store.schema`; here are the words they are written in."""

from functools import partial
from typing import Any

import sqlalchemy as sa
from alembic import op

TEXT, REAL, INTEGER = sa.Text(), sa.Float(53), sa.Integer()
BIG = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
_SUMMED = """
alerts appointments artefacts attempts blobs budget_events budgets calibrations checkpoints commands doubts exposures
flags judgements labels releases resources rollouts runs scored scorings served signals spans steps tokens trials
workers
"""
SUMMED = _SUMMED.split()  # the tables of revision 0009, whose rows have checksums and are counted


def columns(kind: sa.types.TypeEngine[Any], names: str) -> list[sa.Column[Any]]:
    """Columns of one type; `?` after a name: it may be NULL."""
    return [sa.Column(name.rstrip("?"), kind, nullable=name.endswith("?")) for name in names.split()]


text, real, integer, big = (partial(columns, kind) for kind in (TEXT, REAL, INTEGER, BIG))


def table(name: str, *parts: list[sa.Column[Any]], key: str = "", unique: tuple[str, ...] = (), to: str = "") -> None:
    """A table with the given primary key, else with a number of its own; `to` is the table that a column refers to."""
    found = [column for part in parts for column in part]
    if not key:
        found.insert(0, sa.Column("key", BIG, autoincrement=True, nullable=False))
    constraints: list[sa.Constraint] = [sa.PrimaryKeyConstraint(*(key or "key").split(), name=f"pk_{name}")]
    constraints += [sa.UniqueConstraint(*one.split(), name=f"uq_{name}_{one.replace(' ', '_')}") for one in unique]
    if to:
        column = to.removesuffix("s")
        constraints.append(sa.ForeignKeyConstraint([column], [f"{to}.key"], name=f"fk_{name}_{column}"))
    has_rowid = name in ("ledger", "pulse")
    options = {} if has_rowid else {"sqlite_with_rowid": False} if key else {"sqlite_autoincrement": True}
    op.create_table(name, *found, *constraints, **options)


def index(name: str, of: str, names: list[Any], condition: str = "") -> None:
    """An index; one whose name begins with `ux` is unique."""
    where: dict[str, Any] = {f"{engine}_where": sa.text(condition) for engine in ("sqlite", "postgresql") if condition}
    op.create_index(name, of, names, unique=name.startswith("ux"), **where)


def guard(name: str, event: str, message: str, condition: str = "true", each: str = "ROW") -> None:
    """Refuse the event under the condition; blank: always, and the trigger has no condition."""
    if op.get_bind().dialect.name == "sqlite":
        when = f" WHEN {condition}" if condition else ""
        op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event}{when} BEGIN SELECT RAISE(ABORT, '{message}'); END"))
        return
    when = f" WHEN ({condition})" if condition else ""
    raising = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'"
    op.execute(sa.text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$"))
    op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH {each}{when} EXECUTE FUNCTION {name}()"))
