"""The tables: one truth for SQLite and Postgres. Migrations must add up to exactly this (a test compares).

Times are unix seconds. JSON is text. A `key` is the store's own number; an `id` or `name` is what people see.
"""

from __future__ import annotations

from typing import Any

from sqlalchemy import (
    BigInteger,
    Column,
    Float,
    ForeignKey,
    Index,
    Integer,
    MetaData,
    Table,
    Text,
    UniqueConstraint,
    text,
)

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite only auto-numbers a column that says INTEGER


def _key() -> Column[int]:
    return Column("key", Big, primary_key=True, autoincrement=True)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


runs = Table(
    "runs",
    metadata,
    _key(),
    Column("id", Text, nullable=False, unique=True),
    Column("project", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("state", Text, nullable=False),
    Column("wanted", Text, nullable=False),
    Column("model_ref", Text, nullable=False),
    Column("settings", Text, nullable=False),
    Column("queue_limit", Integer),
    Column("created_at", Float(53), nullable=False),
    Column("beat_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("error", Text),
    Column("driver", Integer, nullable=False, server_default=text("1")),  # grows with every process that takes it up
    Index("ix_runs_project_key", "project", "key"),
    sqlite_autoincrement=True,
)

rollouts = Table(
    "rollouts",
    metadata,
    _key(),
    Column("run", Big, ForeignKey("runs.key"), nullable=False),
    Column("name", Text, nullable=False),
    Column("input", Text, nullable=False),
    Column("split", Text),
    Column("status", Text, nullable=False),
    Column("priority", Integer, nullable=False),
    Column("max_attempts", Integer, nullable=False),
    Column("timeout_s", Float(53)),
    Column("resources", Big),
    Column("metadata", Text),
    Column("attempt_count", Integer, nullable=False),
    Column("faults", Integer, nullable=False),
    Column("enqueued_at", Float(53), nullable=False),
    Column("ready_at", Float(53), nullable=False),
    Column("started_at", Float(53)),
    Column("ended_at", Float(53)),
    Column("reason", Text),
    Column("final", Big),  # token of the attempt that decided it
    Column("reward", Float(53)),
    Column("step", Text),  # the durable step that it belongs to; NULL: of no step, or from before there were steps
    Column("version", Text),  # of the policy that has to act
    Column("outcome", Text),  # right, wrong, or NULL: not checked
    Column("max_faults", Integer, nullable=False, server_default=text("5")),
    Column("interruptions", Integer, nullable=False, server_default=text("0")),  # infrastructure faults so far
    UniqueConstraint("run", "name"),
    Index("ix_rollouts_run_key", "run", "key"),
    Index("ix_rollouts_run_status_key", "run", "status", "key", "outcome"),  # the last, so that counts read no rows
    Index("ix_rollouts_queue", "run", text("priority DESC"), "key", **_where("status = 'queuing'")),
    Index("ix_rollouts_waiting", "run", "ready_at", **_where("status = 'requeuing'")),
    Index("ix_rollouts_step", "run", "step", "key", **_where("step IS NOT NULL")),
    sqlite_autoincrement=True,
)

attempts = Table(
    "attempts",
    metadata,
    _key(),  # the fencing token: it grows with every claim
    Column("rollout", Big, ForeignKey("rollouts.key"), nullable=False),
    Column("number", Integer, nullable=False),
    Column("worker", Text, nullable=False),
    Column("status", Text, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("beat_at", Float(53), nullable=False),
    Column("lease_until", Float(53), nullable=False),
    Column("deadline", Float(53)),
    Column("ended_at", Float(53)),
    Column("error", Text),
    Column("output", Text),
    UniqueConstraint("rollout", "number"),
    Index("ix_attempts_lease", "lease_until", **_where("status = 'running'")),
    # The invariant itself: at most one attempt holds, or has won, a rollout.
    Index("ux_attempts_holder", "rollout", unique=True, **_where("status IN ('running', 'succeeded')")),
    sqlite_autoincrement=True,
)

spans = Table(
    "spans",
    metadata,
    Column("attempt", Big, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("body", Text),  # the rest of the record; NULL when there is no rest
    sqlite_with_rowid=False,
)

signals = Table(
    "signals",
    metadata,
    Column("attempt", Big, primary_key=True, autoincrement=False),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("value", Float(53), nullable=False),
    Column("weight", Float(53), nullable=False),
    Column("source", Text, nullable=False),
    Column("turn", Integer),
    Column("feedback", Text),  # in words
    sqlite_with_rowid=False,
)

budgets = Table(
    "budgets",
    metadata,
    Column("attempt", Big, primary_key=True, autoincrement=False),
    Column("tier", Text, nullable=False),
    Column("assessment", Text, nullable=False),
    Column("ceiling", Big, nullable=False),
    Column("cap", Big, nullable=False),
    Column("allowed", Big, nullable=False),
    Column("spent", Big, nullable=False),
    Column("overspent", Big, nullable=False),
    Column("calls", Big, nullable=False),
    Column("escalations", Big, nullable=False),
    Column("escalated_at", Text, nullable=False),
    Column("mode", Text),
    Column("events", Big, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("changed_at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

budget_events = Table(
    "budget_events",
    metadata,
    Column("attempt", Big, primary_key=True, autoincrement=False),
    Column("seq", Big, primary_key=True, autoincrement=False),
    Column("kind", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("tokens", Big, nullable=False),
    Column("allowed", Big, nullable=False),
    Column("spent", Big, nullable=False),
    Column("overspent", Big, nullable=False),
    Column("body", Text),  # the rest of the record; NULL when there is no rest
    sqlite_with_rowid=False,
)

resources = Table(
    "resources",
    metadata,
    _key(),
    Column("project", Text, nullable=False),
    Column("version", Integer, nullable=False),
    Column("sha256", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    UniqueConstraint("project", "version"),
    UniqueConstraint("project", "sha256"),
    sqlite_autoincrement=True,
)

workers = Table(
    "workers",
    metadata,
    _key(),
    Column("id", Text, nullable=False, unique=True),
    Column("project", Text, nullable=False),
    Column("host", Text, nullable=False),
    Column("pid", Integer, nullable=False),
    Column("slots", Integer, nullable=False),
    Column("started_at", Float(53), nullable=False),
    Column("beat_at", Float(53), nullable=False),
    Column("stopped_at", Float(53)),
    sqlite_autoincrement=True,
)

blobs = Table(
    "blobs",
    metadata,
    Column("sha256", Text, primary_key=True),
    Column("size", Big, nullable=False),
    Column("created_at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

checkpoints = Table(
    "checkpoints",
    metadata,
    _key(),
    Column("project", Text, nullable=False),
    Column("id", Text, nullable=False),
    Column("run", Big, ForeignKey("runs.key")),  # NULL: of no run, or of one that was pruned
    Column("parent", Text),
    Column("uri", Text),
    Column("sha256", Text),
    Column("body", Text, nullable=False),  # the whole record
    Column("added_at", Float(53), nullable=False),
    UniqueConstraint("project", "id"),
    Index("ix_checkpoints_project_key", "project", "key"),
    Index("ix_checkpoints_run_key", "run", "key"),
    sqlite_autoincrement=True,
)

steps = Table(
    "steps",
    metadata,
    Column("run", Big, ForeignKey("runs.key"), primary_key=True, autoincrement=False),
    Column("step", Big, primary_key=True, autoincrement=False),  # 1, 2, … in the order they were recorded
    Column("name", Text, nullable=False),
    Column("function", Text, nullable=False),
    Column("inputs_sha256", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("body", Text, nullable=False),  # the result
    UniqueConstraint("run", "name"),
    sqlite_with_rowid=False,
)

scorings = Table(
    "scorings",
    metadata,
    _key(),
    Column("project", Text, nullable=False),
    Column("run", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("scorers", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("rollouts", Integer),
    Column("sha256", Text),  # of its content; NULL: it is being written, or was interrupted
    UniqueConstraint("project", "run", "name"),
    sqlite_autoincrement=True,
)

scored = Table(
    "scored",
    metadata,
    Column("scoring", Big, ForeignKey("scorings.key"), primary_key=True, autoincrement=False),
    Column("rollout", Text, primary_key=True),
    Column("seq", Integer, primary_key=True, autoincrement=False),
    Column("name", Text, nullable=False),
    Column("value", Float(53), nullable=False),
    Column("weight", Float(53), nullable=False),
    Column("source", Text, nullable=False),
    Column("turn", Integer),
    Column("feedback", Text),
    sqlite_with_rowid=False,
)

releases = Table(
    "releases",
    metadata,
    _key(),
    Column("project", Text, nullable=False),
    Column("policy", Text, nullable=False),
    Column("number", Integer, nullable=False),
    Column("kind", Text, nullable=False),
    Column("source", Text, nullable=False),
    Column("parent", Text),
    Column("stage", Text, nullable=False),
    Column("share", Integer, nullable=False),
    Column("is_known_good", Integer, nullable=False),  # 0 or 1
    Column("evidence", Text),
    Column("manifest", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("changed_at", Float(53), nullable=False),
    UniqueConstraint("project", "policy", "number"),
    UniqueConstraint("project", "policy", "source"),
    # The invariant itself: one version answers, and one at most is being tried.
    Index("ux_releases_live", "project", "policy", unique=True, **_where("stage = 'live'")),
    Index("ux_releases_canary", "project", "policy", unique=True, **_where("stage = 'canary'")),
    sqlite_autoincrement=True,
)

trials = Table(
    "trials",
    metadata,
    _key(),
    Column("project", Text, nullable=False),
    Column("name", Text, nullable=False),
    Column("kind", Text, nullable=False),
    Column("arms", Text, nullable=False),  # in their order: the first is the control
    Column("salt", Text, nullable=False),
    Column("created_at", Float(53), nullable=False),
    Column("ended_at", Float(53)),
    Column("settings", Text, nullable=False),
    UniqueConstraint("project", "name"),
    sqlite_autoincrement=True,
)

exposures = Table(
    "exposures",
    metadata,
    Column("trial", Big, ForeignKey("trials.key"), primary_key=True, autoincrement=False),
    Column("unit", Text, primary_key=True),
    Column("arm", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

served = Table(
    "served",
    metadata,
    _key(),  # grows within a trial as requests arrive
    Column("project", Text, nullable=False),
    Column("trial", Big, ForeignKey("trials.key"), nullable=False),
    Column("id", Text, nullable=False),
    Column("arm", Text, nullable=False),
    Column("unit", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("error", Integer, nullable=False),  # 0 or 1
    Column("latency_s", Float(53)),
    Column("tokens", Big),
    Column("success", Float(53)),
    Column("reward", Float(53)),
    Column("safety_cost", Float(53)),
    UniqueConstraint("project", "id"),  # feedback names nothing else
    Index("ix_served_trial_key", "trial", "key"),
    sqlite_autoincrement=True,
)

flags = Table(
    "flags",
    metadata,
    Column("project", Text, primary_key=True),
    Column("name", Text, primary_key=True),
    Column("body", Text, nullable=False),  # the whole record
    Column("changed_at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

artefacts = Table(
    "artefacts",
    metadata,
    Column("project", Text, primary_key=True),
    Column("sha256", Text, primary_key=True),
    Column("body", Text, nullable=False),  # the whole record
    Column("at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

judgements = Table(
    "judgements",
    metadata,
    Column("project", Text, primary_key=True),
    Column("id", Text, primary_key=True),  # follows from judge, criterion, prompt and artefact
    Column("judge", Text, nullable=False),
    Column("criterion", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("artefact", Text, nullable=False),
    Column("grade", Text),
    Column("score", Float(53)),
    Column("why", Text, nullable=False),
    Column("tokens", Big, nullable=False),
    Column("cost", Float(53), nullable=False),
    Column("latency_s", Float(53), nullable=False),
    Column("at", Float(53), nullable=False),
    Index("ix_judgements_project_criterion_artefact", "project", "criterion", "artefact"),
    sqlite_with_rowid=False,
)

doubts = Table(
    "doubts",
    metadata,
    Column("project", Text, primary_key=True),
    Column("artefact", Text, primary_key=True),
    Column("criterion", Text, primary_key=True),
    Column("reason", Text, nullable=False),
    Column("why", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

labels = Table(
    "labels",
    metadata,
    Column("project", Text, primary_key=True),
    Column("artefact", Text, primary_key=True),
    Column("criterion", Text, primary_key=True),
    Column("maker", Text, primary_key=True),
    Column("who", Text, primary_key=True),
    Column("version", Integer, primary_key=True, autoincrement=False),
    Column("holds", Integer),  # 0 or 1; NULL: it cannot be told
    Column("why", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Index("ix_labels_project_criterion_artefact", "project", "criterion", "artefact"),
    sqlite_with_rowid=False,
)

calibrations = Table(
    "calibrations",
    metadata,
    _key(),  # the newest of a judge, criterion and prompt counts
    Column("project", Text, nullable=False),
    Column("judge", Text, nullable=False),
    Column("criterion", Text, nullable=False),
    Column("prompt", Text, nullable=False),
    Column("labels", Text, nullable=False),
    Column("body", Text, nullable=False),  # the whole record
    Column("at", Float(53), nullable=False),
    Index("ix_calibrations_project_judge_criterion_key", "project", "judge", "criterion", "key"),
    sqlite_autoincrement=True,
)

appointments = Table(
    "appointments",
    metadata,
    Column("project", Text, primary_key=True),
    Column("policy", Text, primary_key=True),
    Column("judge", Text, primary_key=True),  # one role for each policy, for good
    Column("role", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

tokens = Table(
    "tokens",
    metadata,
    _key(),  # its id is "tok-<key>"
    Column("project", Text, nullable=False),
    Column("label", Text, nullable=False),
    Column("role", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),  # of the token, which is nowhere
    Column("created_at", Float(53), nullable=False),
    Column("expires_at", Float(53)),
    Column("revoked_at", Float(53)),
    sqlite_autoincrement=True,
)

commands = Table(
    "commands",
    metadata,
    Column("project", Text, primary_key=True),
    Column("id", Text, primary_key=True),
    Column("body", Text, nullable=False),  # the whole record
    Column("role", Text, nullable=False),
    Column("answer", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    sqlite_with_rowid=False,
)

alerts = Table(
    "alerts",
    metadata,
    _key(),  # its id is "alert-<key>"
    Column("project", Text, nullable=False),
    Column("code", Text, nullable=False),
    Column("run", Text, nullable=False),  # blank: of the whole installation; no NULL, two of which are never the same
    Column("severity", Text, nullable=False),
    Column("message", Text, nullable=False),
    Column("at", Float(53), nullable=False),
    Column("acknowledged_at", Float(53)),
    Column("acknowledged_by", Text),
    Column("cleared_at", Float(53)),
    Index("ix_alerts_project_key", "project", "key"),
    # The invariant itself: what stands, stands once.
    Index("ux_alerts_standing", "project", "code", "run", unique=True, **_where("cleared_at IS NULL")),
    sqlite_autoincrement=True,
)

ledger = Table(
    "ledger",
    metadata,
    Column("seq", Big, primary_key=True, autoincrement=False),
    Column("at", Float(53), nullable=False),
    Column("project", Text, nullable=False),
    Column("run", Text),
    Column("kind", Text, nullable=False),
    Column("who", Text, nullable=False),
    Column("body", Text, nullable=False),
    Column("previous", Text, nullable=False),
    Column("sha256", Text, nullable=False, unique=True),
    Index("ix_ledger_run_seq", "run", "seq"),
)

pulse = Table(
    "pulse",  # SQLite only needs it: counters by which other processes see what kind of thing changed
    metadata,
    Column("topic", Text, primary_key=True),
    Column("n", Big, nullable=False),
)
