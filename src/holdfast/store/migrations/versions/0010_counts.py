"""SQLite: the rows of each table are counted as they come, so that one that was lost shows."""

import sqlalchemy as sa
from alembic import op

from holdfast.store.migrations import SUMMED

revision = "0010"
down_revision = "0009"


def upgrade() -> None:
    if op.get_bind().dialect.name != "sqlite":  # a counter would make its writers wait for one another
        return
    for name in SUMMED:
        for topic, counted in (("rows of", "count(*)"), ("unsummed of", "count(*) - count(checksum)")):
            op.execute(sa.text(f"INSERT INTO pulse (topic, n) SELECT '{topic} {name}', {counted} FROM {name}"))
        count = f"UPDATE pulse SET n = n + 1 WHERE topic = 'rows of {name}'"
        op.execute(sa.text(f"CREATE TRIGGER {name}_count AFTER INSERT ON {name} BEGIN {count}; END"))
