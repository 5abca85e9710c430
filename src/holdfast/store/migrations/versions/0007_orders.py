"""What people order: whose token gives which role, each order and its answer once, and what stands as an alert."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0007"
down_revision = "0006"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
text, real = sa.Text(), sa.Float(53)
LATER = "OLD.expires_at IS NOT NULL AND (NEW.expires_at IS NULL OR NEW.expires_at > OLD.expires_at)"


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    op.create_table(
        "tokens",
        sa.Column("key", big, autoincrement=True, nullable=False),
        *(col(name, text) for name in ("project", "label", "role", "sha256")),
        col("created_at", real),
        *(col(name, real, null=True) for name in ("expires_at", "revoked_at")),
        sa.PrimaryKeyConstraint("key", name="pk_tokens"),
        sa.UniqueConstraint("sha256", name="uq_tokens_sha256"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "commands",
        *(col(name, text) for name in ("project", "id", "body", "role", "answer")),
        col("at", real),
        sa.PrimaryKeyConstraint("project", "id", name="pk_commands"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "alerts",
        sa.Column("key", big, autoincrement=True, nullable=False),
        *(col(name, text) for name in ("project", "code", "run", "severity", "message")),
        col("at", real),
        col("acknowledged_at", real, null=True),
        col("acknowledged_by", text, null=True),
        col("cleared_at", real, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_alerts"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_alerts_project_key", "alerts", ["project", "key"])
    stands = sa.text("cleared_at IS NULL")
    op.create_index(
        "ux_alerts_standing",
        "alerts",
        ["project", "code", "run"],
        unique=True,
        sqlite_where=stands,
        postgresql_where=stands,
    )
    make_guards()
    pulse = sa.table("pulse", sa.column("topic", text), sa.column("n", big))
    op.bulk_insert(pulse, [{"topic": "alerts", "n": 0}])


def make_guards() -> None:
    guard("tokens_birth", "INSERT ON tokens", "NEW.role NOT IN ('viewer', 'operator', 'admin')", "an unknown role")
    fixed = "key, project, label, role, sha256, created_at"
    guard("tokens_fixed", f"UPDATE OF {fixed} ON tokens", "true", "a token is immutable")
    guard("tokens_life", "UPDATE OF expires_at ON tokens", LATER, "the life of a token is only ever shortened")
    guard("tokens_end", "UPDATE OF revoked_at ON tokens", "OLD.revoked_at IS NOT NULL", "a token is revoked once")
    guard("tokens_delete", "DELETE ON tokens", "true", "a token is never removed")
    guard("commands_update", "UPDATE ON commands", "true", "a command is immutable")
    guard("commands_delete", "DELETE ON commands", "true", "a command is never removed")
    unknown = "NEW.severity NOT IN ('critical', 'warning', 'info')"
    guard("alerts_birth", "INSERT ON alerts", unknown, "an unknown severity")
    guard("alerts_fixed", "UPDATE OF key, project, code, run, at ON alerts", "true", "an alert is immutable")
    guard("alerts_end", "UPDATE ON alerts", "OLD.cleared_at IS NOT NULL", "an alert is cleared once")
    guard("alerts_delete", "DELETE ON alerts", "true", "an alert is never removed")


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
