"""Alembic migrations: `versions/` in order add up to `store.schema`."""
