"""The life cycle, the fence and the ledger's permanence, kept by the database itself."""

from collections.abc import Mapping

import sqlalchemy as sa
from alembic import op

revision = "0002"
down_revision = "0001"

ROLLOUTS = {
    "queuing": ("running", "cancelled"),
    "requeuing": ("queuing", "cancelled"),
    "running": ("succeeded", "failed", "dead", "requeuing", "queuing", "cancelled"),
    "succeeded": (),
    "failed": ("queuing",),
    "dead": ("queuing",),
    "cancelled": ("queuing",),
}
ATTEMPTS = {
    "running": ("succeeded", "failed", "fault", "timeout", "unresponsive", "cancelled", "released"),
    **dict.fromkeys(("succeeded", "failed", "fault", "timeout", "unresponsive", "cancelled", "released"), ()),
}


def legal(table: Mapping[str, tuple[str, ...]]) -> str:
    pairs = [f"OLD.status = '{old}' AND NEW.status = '{new}'" for old, news in table.items() for new in news]
    return " OR ".join(pairs)


def upgrade() -> None:
    sqlite = op.get_bind().dialect.name == "sqlite"
    for name, table, first in (("rollouts", ROLLOUTS, "queuing"), ("attempts", ATTEMPTS, "running")):
        guard(sqlite, f"{name}_move", f"UPDATE OF status ON {name}", f"NOT ({legal(table)})", f"illegal move of {name}")
        guard(sqlite, f"{name}_birth", f"INSERT ON {name}", f"NEW.status <> '{first}'", f"illegal birth of {name}")
    guard(sqlite, "ledger_update", "UPDATE ON ledger", "true", "the ledger is append-only")
    guard(sqlite, "ledger_delete", "DELETE ON ledger", "true", "the ledger is append-only")
    if not sqlite:  # SQLite has no TRUNCATE
        guard(sqlite, "ledger_truncate", "TRUNCATE ON ledger", "true", "the ledger is append-only", each="STATEMENT")
    guard(sqlite, "resources_update", "UPDATE ON resources", "true", "a resource version is immutable")


def guard(sqlite: bool, name: str, event: str, condition: str, message: str, each: str = "ROW") -> None:
    """Refuse the event whenever the condition holds."""
    if sqlite:
        op.execute(
            sa.text(
                f"CREATE TRIGGER {name} BEFORE {event} WHEN {condition} BEGIN SELECT RAISE(ABORT, '{message}'); END"
            )
        )
        return
    op.execute(
        sa.text(
            f"CREATE FUNCTION {name}() RETURNS trigger LANGUAGE plpgsql AS "
            f"$$ BEGIN RAISE EXCEPTION '{message}' USING ERRCODE = 'check_violation'; END $$"
        )
    )
    op.execute(
        sa.text(f"CREATE TRIGGER {name} BEFORE {event} FOR EACH {each} WHEN ({condition}) EXECUTE FUNCTION {name}()")
    )
