"""The tables as they were first."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0001"
down_revision = None

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
real = sa.Float(53)


def where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": sa.text(condition), "postgresql_where": sa.text(condition)}


def key() -> sa.Column[int]:
    return sa.Column("key", big, autoincrement=True, nullable=False)


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    text, integer = sa.Text(), sa.Integer()
    op.create_table(
        "runs",
        key(),
        col("id", text),
        col("project", text),
        col("kind", text),
        col("state", text),
        col("wanted", text),
        col("model_ref", text),
        col("settings", text),
        col("queue_limit", integer, null=True),
        col("created_at", real),
        col("beat_at", real),
        col("ended_at", real, null=True),
        col("error", text, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_runs"),
        sa.UniqueConstraint("id", name="uq_runs_id"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_runs_project_key", "runs", ["project", "key"])
    op.create_table(
        "rollouts",
        key(),
        col("run", big),
        col("name", text),
        col("input", text),
        col("split", text, null=True),
        col("status", text),
        col("priority", integer),
        col("max_attempts", integer),
        col("timeout_s", real, null=True),
        col("resources", big, null=True),
        col("metadata", text, null=True),
        col("attempt_count", integer),
        col("faults", integer),
        col("enqueued_at", real),
        col("ready_at", real),
        col("started_at", real, null=True),
        col("ended_at", real, null=True),
        col("reason", text, null=True),
        col("final", big, null=True),
        col("reward", real, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_rollouts"),
        sa.UniqueConstraint("run", "name", name="uq_rollouts_run_name"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_rollouts_run"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_rollouts_run_key", "rollouts", ["run", "key"])
    op.create_index("ix_rollouts_run_status_key", "rollouts", ["run", "status", "key"])
    op.create_index(
        "ix_rollouts_queue", "rollouts", ["run", sa.text("priority DESC"), "key"], **where("status = 'queuing'")
    )
    op.create_index("ix_rollouts_waiting", "rollouts", ["run", "ready_at"], **where("status = 'requeuing'"))
    op.create_table(
        "attempts",
        key(),
        col("rollout", big),
        col("number", integer),
        col("worker", text),
        col("status", text),
        col("started_at", real),
        col("beat_at", real),
        col("lease_until", real),
        col("deadline", real, null=True),
        col("ended_at", real, null=True),
        col("error", text, null=True),
        col("output", text, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_attempts"),
        sa.UniqueConstraint("rollout", "number", name="uq_attempts_rollout_number"),
        sa.ForeignKeyConstraint(["rollout"], ["rollouts.key"], name="fk_attempts_rollout"),
        sqlite_autoincrement=True,
    )
    op.create_index("ix_attempts_lease", "attempts", ["lease_until"], **where("status = 'running'"))
    op.create_index(
        "ux_attempts_holder", "attempts", ["rollout"], unique=True, **where("status IN ('running', 'succeeded')")
    )
    op.create_table(
        "spans",
        col("attempt", big),
        col("seq", integer),
        col("kind", text),
        col("name", text),
        col("started_at", real),
        col("ended_at", real, null=True),
        col("body", text, null=True),
        sa.PrimaryKeyConstraint("attempt", "seq", name="pk_spans"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "signals",
        col("attempt", big),
        col("seq", integer),
        col("name", text),
        col("value", real),
        col("weight", real),
        col("source", text),
        col("turn", integer, null=True),
        sa.PrimaryKeyConstraint("attempt", "seq", name="pk_signals"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "resources",
        key(),
        col("project", text),
        col("version", integer),
        col("sha256", text),
        col("body", text),
        col("created_at", real),
        sa.PrimaryKeyConstraint("key", name="pk_resources"),
        sa.UniqueConstraint("project", "version", name="uq_resources_project_version"),
        sa.UniqueConstraint("project", "sha256", name="uq_resources_project_sha256"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "workers",
        key(),
        col("id", text),
        col("project", text),
        col("host", text),
        col("pid", integer),
        col("slots", integer),
        col("started_at", real),
        col("beat_at", real),
        col("stopped_at", real, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_workers"),
        sa.UniqueConstraint("id", name="uq_workers_id"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "blobs",
        col("sha256", text),
        col("size", big),
        col("created_at", real),
        sa.PrimaryKeyConstraint("sha256", name="pk_blobs"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "ledger",
        col("seq", big),
        col("at", real),
        col("project", text),
        col("run", text, null=True),
        col("kind", text),
        col("who", text),
        col("body", text),
        col("previous", text),
        col("sha256", text),
        sa.PrimaryKeyConstraint("seq", name="pk_ledger"),
        sa.UniqueConstraint("sha256", name="uq_ledger_sha256"),
    )
    pulse = op.create_table(
        "pulse", col("topic", text), col("n", big), sa.PrimaryKeyConstraint("topic", name="pk_pulse")
    )
    op.bulk_insert(pulse, [{"topic": topic, "n": 0} for topic in ("queue", "room", "done", "orders")])
