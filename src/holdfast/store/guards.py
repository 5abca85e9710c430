"""The guards that the database keeps by itself, triggers and indexes, beside those that the migrations make.

The migrations are replayed on paper, so nothing is written. SQLite keeps each statement to the letter; Postgres writes
its own words for the same thing, so there the names and literals in it are compared, and a guard's code to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

from sqlalchemy import PrimaryKeyConstraint, UniqueConstraint, text

from holdfast.store import schema
from holdfast.store.db import MIGRATING
from holdfast.store.sql import Transaction

MADE = re.compile(r"CREATE (?:UNIQUE )?(TRIGGER|INDEX|FUNCTION) (\w+)")
GONE = re.compile(r"DROP (TRIGGER|INDEX|FUNCTION) (?:IF EXISTS )?(\w+)")
WORD = re.compile(r"'[^']*'|[a-z_][a-z_0-9]*")
# Where the two ways to write it differ: BETWEEN becomes two comparisons, IN becomes = ANY (ARRAY[…]).
NOISE = frozenset(("all", "and", "any", "array", "between", "btree", "in", "not", "or", "text", "using"))
IN_FILE = text("SELECT upper(type), name, sql FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql <> ''")
TRIGGERS = text(
    "SELECT t.tgname, pg_get_triggerdef(t.oid, true), t.tgenabled = 'O', p.prosrc FROM pg_trigger t"
    " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid"
    " WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace"
)
INDEXES = text(
    "SELECT c.relname, pg_get_indexdef(c.oid, 0, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE i.indisvalid AND c.relnamespace = current_schema()::regnamespace"
)
Kept = dict[tuple[str, str], Any]  # kind and name → what it says, in a form that can be compared


def missing(view: Transaction) -> Iterator[str]:
    """What is not as the migrations made it, a sentence each; an index more than these does no harm."""
    found = _in_file(view) if view.is_sqlite else _on_server(view)
    due = _due(view.is_sqlite)
    for (kind, name), says in sorted(due.items()):
        if (kind, name) not in found:
            yield f"{kind} {name}: is not there"
        elif found[kind, name] != says:
            yield f"{kind} {name}: is not the one that was made, or is switched off"
    yield from (
        f"{kind} {name}: is not one of the store's"
        for kind, name in sorted(found.keys() - due.keys())
        if kind == "trigger"
    )


def _in_file(view: Transaction) -> Kept:
    return {(kind.lower(), name): _plain(sql) for kind, name, sql in view.all(IN_FILE, {})}


def _on_server(view: Transaction) -> Kept:
    triggers = {("trigger", n): (_words(sql), is_on, code) for n, sql, is_on, code in view.all(TRIGGERS, {})}
    return triggers | {("index", name): _words(sql) for name, sql in view.all(INDEXES, {})}


@lru_cache
def _due(is_sqlite: bool) -> Kept:
    made = _replayed("sqlite" if is_sqlite else "postgresql")
    if is_sqlite:
        return {(kind, name): _plain(sql) for (kind, name), sql in made.items()}
    code = {name: sql.split("$$")[1] for (kind, name), sql in made.items() if kind == "function"}
    due: Kept = {("index", name): _words(sql) for (kind, name), sql in made.items() if kind == "index"}
    for table in schema.metadata.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, UniqueConstraint | PrimaryKeyConstraint):
                columns = ", ".join(constraint.columns.keys())
                due["index", str(constraint.name)] = _words(
                    f"CREATE UNIQUE INDEX {constraint.name} ON {table.name} ({columns})"
                )
    for (kind, name), sql in made.items():
        if kind == "trigger":
            due[kind, name] = (_words(sql), True, code[name])
    return due


def _replayed(dialect: str) -> dict[tuple[str, str], str]:
    """The statements that make guards, by kind and name, as the migrations up to today's leave them."""
    import alembic.config
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    config = alembic.config.Config()
    config.set_main_option("script_location", "holdfast.store:migrations")
    paper = Paper()
    context = MigrationContext.configure(dialect_name=dialect, opts={"as_sql": True, "output_buffer": paper})
    steps = list(ScriptDirectory.from_config(config).walk_revisions())
    with MIGRATING, Operations.context(context):
        for step in reversed(steps):
            step.module.upgrade()
    kept: dict[tuple[str, str], str] = {}
    for sql in paper.statements:
        if (made := MADE.match(sql)) is not None:
            kept[made[1].lower(), made[2]] = sql
        elif (gone := GONE.match(sql)) is not None:
            kept.pop((gone[1].lower(), gone[2]), None)
    return kept


class Paper:
    """What a migration that runs on paper writes to: one statement at a time."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def write(self, sql: str) -> None:
        self.statements.append(sql.strip())

    def flush(self) -> None:
        pass


def _plain(sql: str) -> str:
    return " ".join(sql.split()).rstrip("; ")


def _words(sql: str) -> frozenset[str]:
    """The names and literals in a statement."""
    return frozenset(WORD.findall(sql.replace("public.", "").lower())) - NOISE
