"""Who drives a run, the checkpoints, and the learning updates."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0003"
down_revision = "0002"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
real = sa.Float(53)
CHECKPOINT = "project, id, parent, uri, sha256, body, added_at"  # all but the run, which may be pruned


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    text = sa.Text()
    op.add_column("runs", sa.Column("driver", sa.Integer(), nullable=False, server_default=sa.text("1")))
    op.create_table(
        "checkpoints",
        sa.Column("key", big, autoincrement=True, nullable=False),
        col("project", text),
        col("id", text),
        col("run", big, null=True),
        col("parent", text, null=True),
        col("uri", text, null=True),
        col("sha256", text, null=True),
        col("body", text),
        col("added_at", real),
        sa.PrimaryKeyConstraint("key", name="pk_checkpoints"),
        sa.UniqueConstraint("project", "id", name="uq_checkpoints_project_id"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_checkpoints_run"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_checkpoints_project_key", "checkpoints", ["project", "key"])
    op.create_index("ix_checkpoints_run_key", "checkpoints", ["run", "key"])
    op.create_table(
        "updates",
        col("run", big),
        col("step", big),
        col("at", real),
        col("body", text),
        sa.PrimaryKeyConstraint("run", "step", name="pk_updates"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_updates_run"),
        sqlite_with_rowid=False,
    )
    guard("checkpoints_update", f"UPDATE OF {CHECKPOINT} ON checkpoints", "a checkpoint is immutable")
    guard("updates_update", "UPDATE ON updates", "a learning update is immutable")


def guard(name: str, event: str, message: str) -> None:
    """Refuse the event."""
    if op.get_bind().dialect.name == "sqlite":
        op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} BEGIN SELECT RAISE(ABORT, '{message}'); END"))
        return
    raising = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'"
    op.execute(sa.text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$"))
    op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH ROW EXECUTE FUNCTION {name}()"))
