"""Durable steps take the place of learning updates; rollouts know their step, policy version and outcome; scorings."""

import sqlalchemy as sa
from alembic import op

from holdfast.store.migrations import big, guard, index, integer, real, table, text

revision = "0008"
down_revision = "0007"

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


def upgrade() -> None:
    is_sqlite = op.get_bind().dialect.name == "sqlite"
    step = big("run step"), text("name function inputs_sha256"), real("at"), text("body")
    table("steps", *step, key="run step", unique=("run name",), to="runs")
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
    for column in text("step? version? outcome?"):
        op.add_column("rollouts", column)
    for name, default in (("max_faults", "5"), ("interruptions", "0")):
        op.add_column("rollouts", sa.Column(name, sa.Integer(), nullable=False, server_default=sa.text(default)))
    op.drop_index("ix_rollouts_run_status_key", table_name="rollouts")
    op.execute(sa.text(OUTCOMES))
    index("ix_rollouts_run_status_key", "rollouts", ["run", "status", "key", "outcome"])
    index("ix_rollouts_step", "rollouts", ["run", "step", "key"], "step IS NOT NULL")
    op.add_column("signals", *text("feedback?"))
    scoring = text("project run name scorers who"), real("at"), integer("rollouts?"), text("sha256?")
    table("scorings", *scoring, unique=("project run name",))
    signal = text("name"), real("value weight"), text("source"), integer("turn?"), text("feedback?")
    key = "scoring rollout seq"
    table("scored", big("scoring"), text("rollout"), integer("seq"), *signal, key=key, to="scorings")
    guard("scorings_update", "UPDATE ON scorings", "a scoring is immutable", "OLD.sha256 IS NOT NULL")
    guard("scored_update", "UPDATE ON scored", "a scoring is immutable")
