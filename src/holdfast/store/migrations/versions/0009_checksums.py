"""Rows carry a checksum; commits are counted, so that a log that was lost shows."""

import sqlalchemy as sa
from alembic import op

from holdfast.store.migrations import BIG, SUMMED, TEXT, big

revision = "0009"
down_revision = "0008"


def upgrade() -> None:
    for name in SUMMED:
        op.add_column(name, *big("checksum?"))
    pulse = sa.table("pulse", sa.column("topic", TEXT), sa.column("n", BIG))
    op.bulk_insert(pulse, [{"topic": "commits", "n": 0}])
