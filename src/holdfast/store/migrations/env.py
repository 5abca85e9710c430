"""Alembic's door: runs the revisions inside the transaction that `store.db.upgrade` has opened."""

from alembic import context

connection = context.config.attributes["connection"]
context.configure(connection=connection)
context.run_migrations()
