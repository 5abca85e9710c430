"""Thinking budgets of attempts, and what happened to each: only ever added to."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0005"
down_revision = "0004"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
text, real = sa.Text(), sa.Float(53)
FIXED = "attempt, tier, assessment, ceiling, cap, created_at"
SHRINKS = " OR ".join(f"NEW.{name} < OLD.{name}" for name in ("allowed", "spent", "overspent", "calls", "events"))
UNFIT = "NEW.allowed < NEW.ceiling OR NEW.allowed > NEW.cap OR NEW.overspent > NEW.spent OR NEW.overspent < 0"


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    op.create_table(
        "budgets",
        col("attempt", big),
        col("tier", text),
        col("assessment", text),
        col("ceiling", big),
        col("cap", big),
        col("allowed", big),
        col("spent", big),
        col("overspent", big),
        col("calls", big),
        col("escalations", big),
        col("escalated_at", text),
        col("mode", text, null=True),
        col("events", big),
        col("created_at", real),
        col("changed_at", real),
        sa.PrimaryKeyConstraint("attempt", name="pk_budgets"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "budget_events",
        col("attempt", big),
        col("seq", big),
        col("kind", text),
        col("at", real),
        col("tokens", big),
        col("allowed", big),
        col("spent", big),
        col("overspent", big),
        col("body", text, null=True),
        sa.PrimaryKeyConstraint("attempt", "seq", name="pk_budget_events"),
        sqlite_with_rowid=False,
    )
    guard("budgets_fixed", f"UPDATE OF {FIXED} ON budgets", "true", "a budget is immutable")
    guard("budgets_shrink", "UPDATE ON budgets", SHRINKS, "nothing of a budget is taken back")
    guard("budgets_unfit", "UPDATE ON budgets", UNFIT, "a budget beyond its limits")
    guard("budgets_birth", "INSERT ON budgets", UNFIT, "a budget beyond its limits")
    guard("budget_events_update", "UPDATE ON budget_events", "true", "a budget event is immutable")


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
