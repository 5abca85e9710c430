"""Durable steps take the place of learning updates; rollouts know their step, policy version and outcome; scorings."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0008"
down_revision = "0007"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
text, real = sa.Text(), sa.Float(53)

# A rollout that was checked says so by one of these signals of the attempt that decided it, and not by the agent's own;
# the same as `contracts.reward.outcome_of`.
OUTCOMES = """
UPDATE rollouts SET outcome = CASE WHEN status = 'failed' THEN 'wrong' ELSE (
    SELECT CASE WHEN s.value >= 0.999999999 THEN 'right' ELSE 'wrong' END FROM signals s
    WHERE s.attempt = rollouts.final AND s.name IN ('success', 'exact_match')
        AND s.source <> 'agent' AND substr(s.source, 1, 6) <> 'agent:'
    ORDER BY CASE s.name WHEN 'success' THEN 0 ELSE 1 END, s.seq DESC LIMIT 1) END
WHERE final IS NOT NULL
"""


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    op.create_table(
        "steps",
        col("run", big),
        col("step", big),
        *(col(name, text) for name in ("name", "function", "inputs_sha256")),
        col("at", real),
        col("body", text),
        sa.PrimaryKeyConstraint("run", "step", name="pk_steps"),
        sa.UniqueConstraint("run", "name", name="uq_steps_run_name"),
        sa.ForeignKeyConstraint(["run"], ["runs.key"], name="fk_steps_run"),
        sqlite_with_rowid=False,
    )
    op.execute(
        sa.text(
            "INSERT INTO steps (run, step, name, function, inputs_sha256, at, body) "
            "SELECT run, step, 'lesson-' || step, 'lesson', '', at, body FROM updates"
        )
    )
    op.execute(sa.text(f"DROP TRIGGER updates_update{'' if is_sqlite else ' ON updates'}"))
    if not is_sqlite:
        op.execute(sa.text("DROP FUNCTION updates_update"))
    op.drop_table("updates")
    guard("steps_update", "UPDATE ON steps", "a recorded step is immutable")
    for name in ("step", "version", "outcome"):
        op.add_column("rollouts", col(name, text, null=True))
    for name, default in (("max_faults", "5"), ("interruptions", "0")):
        op.add_column("rollouts", sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text(default)))
    op.drop_index("ix_rollouts_run_status_key", table_name="rollouts")
    op.execute(sa.text(OUTCOMES))
    op.create_index("ix_rollouts_run_status_key", "rollouts", ["run", "status", "key", "outcome"])
    has_step = sa.text("step IS NOT NULL")
    op.create_index(
        "ix_rollouts_step", "rollouts", ["run", "step", "key"], sqlite_where=has_step, postgresql_where=has_step
    )
    op.add_column("signals", col("feedback", text, null=True))
    op.create_table(
        "scorings",
        sa.Column("key", big, autoincrement=True, nullable=False),
        *(col(name, text) for name in ("project", "run", "name", "scorers", "who")),
        col("at", real),
        col("rollouts", sa.Integer(), null=True),
        col("sha256", text, null=True),
        sa.PrimaryKeyConstraint("key", name="pk_scorings"),
        sa.UniqueConstraint("project", "run", "name", name="uq_scorings_project_run_name"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "scored",
        col("scoring", big),
        col("rollout", text),
        col("seq", sa.Integer()),
        col("name", text),
        col("value", real),
        col("weight", real),
        col("source", text),
        col("turn", sa.Integer(), null=True),
        col("feedback", text, null=True),
        sa.PrimaryKeyConstraint("scoring", "rollout", "seq", name="pk_scored"),
        sa.ForeignKeyConstraint(["scoring"], ["scorings.key"], name="fk_scored_scoring"),
        sqlite_with_rowid=False,
    )
    guard("scorings_update", "UPDATE ON scorings", "a scoring is immutable", "OLD.sha256 IS NOT NULL")
    guard("scored_update", "UPDATE ON scored", "a scoring is immutable")


def guard(name: str, event: str, message: str, condition: str = "true") -> None:
    """Refuse the event under the condition."""
    if op.get_bind().dialect.name == "sqlite":
        code = f"BEGIN SELECT RAISE(ABORT, '{message}'); END"
        op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} WHEN {condition} {code}"))
        return
    raising = f"RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'"
    op.execute(sa.text(f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS $$ BEGIN {raising}; END $$"))
    each = f"FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION {name}()"
    op.execute(sa.text(f"CREATE TRIGGER {name} BEFORE {event} {each}"))
