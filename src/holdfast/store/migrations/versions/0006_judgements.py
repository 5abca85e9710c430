"""What judges say, what is known to be true, and how far a judge may be believed: only ever added to."""

from typing import Any

import sqlalchemy as sa
from alembic import op

revision = "0006"
down_revision = "0005"

big = sa.BigInteger().with_variant(sa.Integer(), "sqlite")
text, real, whole = sa.Text(), sa.Float(53), sa.Integer()
FIXED = {
    "artefacts": "an artefact",
    "judgements": "a judgement",
    "doubts": "a doubt",
    "labels": "a label",
    "calibrations": "a calibration",
    "appointments": "an appointment",
}
UNGRADED = "(NEW.grade IS NULL) <> (NEW.score IS NULL) OR NEW.grade NOT IN ('yes', 'partly', 'no')"
UNSCORED = "NEW.score * NEW.score > NEW.score"  # below 0 or above 1, without a number that Postgres would rewrite
UNMADE = "NEW.maker NOT IN ('program', 'model', 'person') OR NEW.version < 1 OR NEW.holds NOT IN (0, 1)"


def col(name: str, kind: sa.types.TypeEngine[Any], *, null: bool = False) -> sa.Column[Any]:
    return sa.Column(name, kind, nullable=null)


def upgrade() -> None:
    op.create_table(
        "artefacts",
        col("project", text),
        col("sha256", text),
        col("body", text),
        col("at", real),
        sa.PrimaryKeyConstraint("project", "sha256", name="pk_artefacts"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "judgements",
        *(col(name, text) for name in ("project", "id", "judge", "criterion", "prompt", "artefact")),
        col("grade", text, null=True),
        col("score", real, null=True),
        col("why", text),
        col("tokens", big),
        *(col(name, real) for name in ("cost", "latency_s", "at")),
        sa.PrimaryKeyConstraint("project", "id", name="pk_judgements"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "doubts",
        *(col(name, text) for name in ("project", "artefact", "criterion", "reason", "why")),
        col("at", real),
        sa.PrimaryKeyConstraint("project", "artefact", "criterion", name="pk_doubts"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "labels",
        *(col(name, text) for name in ("project", "artefact", "criterion", "maker", "who")),
        col("version", whole),
        col("holds", whole, null=True),
        col("why", text),
        col("at", real),
        sa.PrimaryKeyConstraint("project", "artefact", "criterion", "maker", "who", "version", name="pk_labels"),
        sqlite_with_rowid=False,
    )
    op.create_table(
        "calibrations",
        sa.Column("key", big, autoincrement=True, nullable=False),
        *(col(name, text) for name in ("project", "judge", "criterion", "prompt", "labels", "body")),
        col("at", real),
        sa.PrimaryKeyConstraint("key", name="pk_calibrations"),
        sqlite_autoincrement=True,
    )
    op.create_table(
        "appointments",
        *(col(name, text) for name in ("project", "policy", "judge", "role")),
        col("at", real),
        sa.PrimaryKeyConstraint("project", "policy", "judge", name="pk_appointments"),
        sqlite_with_rowid=False,
    )
    for table in ("judgements", "labels"):
        op.create_index(f"ix_{table}_project_criterion_artefact", table, ["project", "criterion", "artefact"])
    op.create_index(
        "ix_calibrations_project_judge_criterion_key", "calibrations", ["project", "judge", "criterion", "key"]
    )
    for table, what in FIXED.items():
        guard(f"{table}_update", f"UPDATE ON {table}", "true", f"{what} is immutable")
    guard("judgements_birth", "INSERT ON judgements", f"{UNGRADED} OR {UNSCORED}", "a judgement that says nothing")
    guard("labels_birth", "INSERT ON labels", UNMADE, "a label of nobody")
    guard("labels_delete", "DELETE ON labels", "true", "a label is never removed")
    guard("appointments_birth", "INSERT ON appointments", "NEW.role NOT IN ('train', 'audit')", "an unknown role")
    guard("appointments_delete", "DELETE ON appointments", "true", "an appointment is for good")


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
