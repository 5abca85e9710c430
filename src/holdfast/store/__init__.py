"""Durable state: runs, the queue, traces, versions, orders and the ledger, in SQLite or Postgres."""
