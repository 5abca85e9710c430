"""What serves: releases and their moves, trials with who was given what and what came of it, flags."""

from collections.abc import Mapping
from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0004"
down_revision = "0003"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
real = sa.Float(53)
MOVES = {
    "candidate": ("shadow", "canary", "live", "rejected"),
    "shadow": ("canary", "live", "rejected"),
    "canary": ("canary", "live", "rolled_back"),
    "live": ("retired", "rolled_back"),
    "retired": ("live",),
    "rolled_back": ("candidate",),
    "rejected": ("candidate",),
}
SHARES = (
    "NEW.stage = 'live' AND NEW.share = 100 OR NEW.stage = 'canary' AND NEW.share BETWEEN 1 AND 100 "
    "OR NEW.stage NOT IN ('live', 'canary') AND NEW.share = 0"
)
TOLD = ("success", "reward", "safety_cost")  # by feedback, each of them once
FIXED = {  # what never changes once it is there
    "releases": ("key, project, policy, number, kind, source, parent, manifest, created_at", "a release is immutable"),
    "trials": ("key, project, name, kind, arms, salt, settings, created_at", "a trial is immutable"),
    "served": ("key, project, trial, id, arm, unit, at, error, latency_s, tokens", "a served request is immutable"),
}


def where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def key() -> sa.Column[int]:
    return sa.Column("key", big, autoincrement=True, nullable=False)


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def legal(table: Mapping[str, tuple[str, ...]]) -> str:
    pairs = [f"OLD.stage = '{old}' AND NEW.stage = '{new}'" for old, news in table.items() for new in news]
    return " OR ".join(pairs)


def upgrade() -> None:
    make_releases()
    make_trials()
    op.create_index("ix_ledger_run_seq", "ledger", ["run", "seq"])  # what was noted of a run
    op.create_table(
        "flags",
        col("project", sa.Text()),
        col("name", sa.Text()),
        col("body", sa.Text()),
        col("changed_at", real),
        sa.PrimaryKeyConstraint("project", "name", name="pk_flags"),
        sqlite_with_rowid=False,
    )
    guard("releases_move", "UPDATE OF stage ON releases", f"NOT ({legal(MOVES)})", "illegal move of releases")
    guard("releases_share", "UPDATE OF stage, share ON releases", f"NOT ({SHARES})", "illegal share of releases")
    born = "NEW.stage <> 'candidate' OR NEW.share <> 0"
    guard("releases_birth", "INSERT ON releases", born, "illegal birth of releases")
    guard("releases_delete", "DELETE ON releases", "true", "a release is never removed")
    guard("trials_end", "UPDATE OF ended_at ON trials", "OLD.ended_at IS NOT NULL", "a trial ends once")
    guard("exposures_update", "UPDATE ON exposures", "true", "an exposure is immutable")
    for table, (columns, message) in FIXED.items():
        guard(f"{table}_fixed", f"UPDATE OF {columns} ON {table}", "true", message)
    retold = " OR ".join(f"OLD.{it} IS NOT NULL AND (NEW.{it} IS NULL OR NEW.{it} <> OLD.{it})" for it in TOLD)
    guard("served_told", f"UPDATE OF {', '.join(TOLD)} ON served", retold, "feedback is told once")
    pulse = sa.table("pulse", sa.column("topic", sa.Text()), sa.column("n", big))
    op.bulk_insert(pulse, [{"topic": topic, "n": 0} for topic in ("releases", "trials", "flags")])


def make_releases() -> None:
    text, integer = sa.Text(), sa.Integer()
    op.create_table(
        "releases",
        key(),
        col("project", text),
        col("policy", text),
        col("number", integer),
        col("kind", text),
        col("source", text),
        col("parent", text, null=True),
        col("stage", text),
        col("share", integer),
        col("is_known_good", integer),
        col("evidence", text, null=True),
        col("manifest", text),
        col("created_at", real),
        col("changed_at", real),
        sa.PrimaryKeyConstraint("key", name="pk_releases"),
        sa.UniqueConstraint("project", "policy", "number", name="uq_releases_project_policy_number"),
        sa.UniqueConstraint("project", "policy", "source", name="uq_releases_project_policy_source"),
        sqlite_autoincrement=True,
    )
    for stage in ("live", "canary"):
        name, columns = f"ux_releases_{stage}", ["project", "policy"]
        op.create_index(name, "releases", columns, unique=True, **where(f"stage = '{stage}'"))


def make_trials() -> None:
    text, integer = sa.Text(), sa.Integer()
    op.create_table(
        "trials",
        key(),
        col("project", text),
        col("name", text),
        col("kind", text),
        col("arms", text),
        col("salt", text),
        col("created_at", real),
        col("ended_at", real, null=True),
        col("settings", text),
        sa.PrimaryKeyConstraint("key", name="pk_trials"),
        sa.UniqueConstraint("project", "name", name="uq_trials_project_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "exposures",
        col("trial", big),
        col("unit", text),
        col("arm", text),
        col("at", real),
        sa.PrimaryKeyConstraint("trial", "unit", name="pk_exposures"),
        sa.ForeignKeyConstraint(["trial"], ["trials.key"], name="fk_exposures_trial"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "served",
        key(),
        col("project", text),
        col("trial", big),
        col("id", text),
        col("arm", text),
        col("unit", text),
        col("at", real),
        col("error", integer),
        col("latency_s", real, null=True),
        col("tokens", big, null=True),
        col("success", real, null=True),
        col("reward", real, null=True),
        col("safety_cost", real, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_served"),
        sa.UniqueConstraint("project", "id", name="uq_served_project_id"),
        sa.ForeignKeyConstraint(["trial"], ["trials.key"], name="fk_served_trial"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_served_trial_key", "served", ["trial", "key"])


def guard(name: str, event: str, condition: str, message: str) -> None:
    """Refuse the event whenever the condition holds."""
    if op.get_bind().dialect.name == "sqlite":
        raising = f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} WHEN {condition} {raising}"))
        return
    raising = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'"
    op.execute(sa.text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$"))
    op.execute(
        sa.text(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()")
    )
