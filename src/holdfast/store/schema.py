"""The tables: one truth for SQLite and Postgres. Migrations must add up to exactly this (a test compares).

Times are unix seconds. JSON is text, yes and no are 1 and 0. A `key` is the store's own number; an `id` or `name` is
what people see. A `body` is a whole record, or what has no column of its own (NULL: nothing).
"""

from __future__ import annotations

from functools import partial
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
from sqlalchemy.schema import SchemaItem
from sqlalchemy.types import TypeEngine

metadata = MetaData(
    naming_convention={
        "ix": "ix_%(table_name)s_%(column_0_N_name)s",
        "uq": "uq_%(table_name)s_%(column_0_N_name)s",
        "fk": "fk_%(table_name)s_%(column_0_N_name)s",
        "pk": "pk_%(table_name)s",
    }
)

Big = BigInteger().with_variant(Integer, "sqlite")  # SQLite only auto-numbers a column that says INTEGER


def _columns(kind: TypeEngine[Any], names: str) -> list[Column[Any]]:
    """Columns of one type by their names. `*` after a name: of the primary key; `?`: it may be NULL."""
    return [
        Column(name.rstrip("*?"), kind, nullable=False, primary_key=True, autoincrement=False)
        if name.endswith("*")
        else Column(name.rstrip("?"), kind, nullable=name.endswith("?"))
        for name in names.split()
    ]


_text, _real, _integer, _big = (partial(_columns, kind) for kind in (Text(), Float(53), Integer(), Big))


def _table(name: str, *parts: SchemaItem | list[Column[Any]], **options: Any) -> Table:
    items = [item for part in parts for item in (part if isinstance(part, list) else (part,))]
    return Table(name, metadata, *items, **options)


def _numbered(name: str, *parts: SchemaItem | list[Column[Any]]) -> Table:
    """A table whose rows have a number, `key`, that is never given twice."""
    return _table(name, Column("key", Big, primary_key=True, autoincrement=True), *parts, sqlite_autoincrement=True)


def _keyed(name: str, *parts: SchemaItem | list[Column[Any]]) -> Table:
    return _table(name, *parts, sqlite_with_rowid=False)


def _where(condition: str) -> dict[str, Any]:
    return {"sqlite_where": text(condition), "postgresql_where": text(condition)}


runs = _numbered(
    "runs",
    Column("id", Text, nullable=False, unique=True),
    _text("project kind state wanted model_ref settings"),
    _integer("queue_limit?"),
    _real("created_at beat_at ended_at?"),
    _text("error?"),
    Column("driver", Integer, nullable=False, server_default=text("1")),  # grows with every process that takes it up
    Index("ix_runs_project_key", "project", "key"),
)

rollouts = _numbered(
    "rollouts",
    Column("run", Big, ForeignKey("runs.key"), nullable=False),
    _text("name input split? status"),
    _integer("priority max_attempts"),
    _real("timeout_s?"),
    _big("resources?"),
    _text("metadata?"),
    _integer("attempt_count faults"),
    _real("enqueued_at ready_at started_at? ended_at?"),
    _text("reason?"),
    _big("final?"),  # token of the attempt that decided it
    _real("reward?"),
    _text("step?"),  # the durable step that it belongs to; NULL: of no step, or from before there were steps
    _text("version?"),  # of the policy that has to act
    _text("outcome?"),  # right, wrong, or NULL: not checked
    Column("max_faults", Integer, nullable=False, server_default=text("5")),
    Column("interruptions", Integer, nullable=False, server_default=text("0")),  # infrastructure faults so far
    UniqueConstraint("run", "name"),
    Index("ix_rollouts_run_key", "run", "key"),
    Index("ix_rollouts_run_status_key", "run", "status", "key", "outcome"),  # the last, so that counts read no rows
    Index("ix_rollouts_queue", "run", text("priority DESC"), "key", **_where("status = 'queuing'")),
    Index("ix_rollouts_waiting", "run", "ready_at", **_where("status = 'requeuing'")),
    Index("ix_rollouts_step", "run", "step", "key", **_where("step IS NOT NULL")),
)

# The fencing token: it grows with every claim.
attempts = _numbered(
    "attempts",
    Column("rollout", Big, ForeignKey("rollouts.key"), nullable=False),
    _integer("number"),
    _text("worker status"),
    _real("started_at beat_at lease_until deadline? ended_at?"),
    _text("error? output?"),
    UniqueConstraint("rollout", "number"),
    Index("ix_attempts_lease", "lease_until", **_where("status = 'running'")),
    # The invariant itself: at most one attempt holds, or has won, a rollout.
    Index("ux_attempts_holder", "rollout", unique=True, **_where("status IN ('running', 'succeeded')")),
)

spans = _keyed(
    "spans", _big("attempt*"), _integer("seq*"), _text("kind name"), _real("started_at ended_at?"), _text("body?")
)

signals = _keyed(
    "signals",
    _big("attempt*"),
    _integer("seq*"),
    _text("name"),
    _real("value weight"),
    _text("source"),
    _integer("turn?"),
    _text("feedback?"),  # in words
)

budgets = _keyed(
    "budgets",
    _big("attempt*"),
    _text("tier assessment"),
    _big("ceiling cap allowed spent overspent calls escalations"),
    _text("escalated_at mode?"),
    _big("events"),
    _real("created_at changed_at"),
)

budget_events = _keyed(
    "budget_events",
    _big("attempt* seq*"),
    _text("kind"),
    _real("at"),
    _big("tokens allowed spent overspent"),
    _text("body?"),
)

resources = _numbered(
    "resources",
    _text("project"),
    _integer("version"),
    _text("sha256 body"),
    _real("created_at"),
    UniqueConstraint("project", "version"),
    UniqueConstraint("project", "sha256"),
)

workers = _numbered(
    "workers",
    Column("id", Text, nullable=False, unique=True),
    _text("project host"),
    _integer("pid slots"),
    _real("started_at beat_at stopped_at?"),
)

blobs = _keyed("blobs", _text("sha256*"), _big("size"), _real("created_at"))

checkpoints = _numbered(
    "checkpoints",
    _text("project id"),
    Column("run", Big, ForeignKey("runs.key")),  # NULL: of no run, or of one that was pruned
    _text("parent? uri? sha256? body"),
    _real("added_at"),
    UniqueConstraint("project", "id"),
    Index("ix_checkpoints_project_key", "project", "key"),
    Index("ix_checkpoints_run_key", "run", "key"),
)

steps = _keyed(
    "steps",
    Column("run", Big, ForeignKey("runs.key"), primary_key=True, autoincrement=False),
    _big("step*"),  # 1, 2, … in the order they were recorded
    _text("name function inputs_sha256"),
    _real("at"),
    _text("body"),
    UniqueConstraint("run", "name"),
)

scorings = _numbered(
    "scorings",
    _text("project run name scorers who"),
    _real("at"),
    _integer("rollouts?"),
    _text("sha256?"),  # of its content; NULL: it is being written, or was interrupted
    UniqueConstraint("project", "run", "name"),
)

scored = _keyed(
    "scored",
    Column("scoring", Big, ForeignKey("scorings.key"), primary_key=True, autoincrement=False),
    _text("rollout*"),
    _integer("seq*"),
    _text("name"),
    _real("value weight"),
    _text("source"),
    _integer("turn?"),
    _text("feedback?"),
)

releases = _numbered(
    "releases",
    _text("project policy"),
    _integer("number"),
    _text("kind source parent? stage"),
    _integer("share is_known_good"),
    _text("evidence? manifest"),
    _real("created_at changed_at"),
    UniqueConstraint("project", "policy", "number"),
    UniqueConstraint("project", "policy", "source"),
    # The invariant itself: one version answers, and one at most is being tried.
    Index("ux_releases_live", "project", "policy", unique=True, **_where("stage = 'live'")),
    Index("ux_releases_canary", "project", "policy", unique=True, **_where("stage = 'canary'")),
)

trials = _numbered(
    "trials",
    _text("project name kind"),
    _text("arms"),  # in their order: the first is the control
    _text("salt"),
    _real("created_at ended_at?"),
    _text("settings"),
    UniqueConstraint("project", "name"),
)

exposures = _keyed(
    "exposures",
    Column("trial", Big, ForeignKey("trials.key"), primary_key=True, autoincrement=False),
    _text("unit* arm"),
    _real("at"),
)

# Grows within a trial as requests arrive.
served = _numbered(
    "served",
    _text("project"),
    Column("trial", Big, ForeignKey("trials.key"), nullable=False),
    _text("id arm unit"),
    _real("at"),
    _integer("error"),
    _real("latency_s?"),
    _big("tokens?"),
    _real("success? reward? safety_cost?"),
    UniqueConstraint("project", "id"),  # feedback names nothing else
    Index("ix_served_trial_key", "trial", "key"),
)

flags = _keyed("flags", _text("project* name* body"), _real("changed_at"))

artefacts = _keyed("artefacts", _text("project* sha256* body"), _real("at"))

judgements = _keyed(
    "judgements",
    _text("project* id* judge criterion prompt artefact grade?"),
    _real("score?"),
    _text("why"),
    _big("tokens"),
    _real("cost latency_s at"),
    Index("ix_judgements_project_criterion_artefact", "project", "criterion", "artefact"),
)

doubts = _keyed("doubts", _text("project* artefact* criterion* reason why"), _real("at"))

labels = _keyed(
    "labels",
    _text("project* artefact* criterion* maker* who*"),
    _integer("version* holds?"),  # NULL: it cannot be told
    _text("why"),
    _real("at"),
    Index("ix_labels_project_criterion_artefact", "project", "criterion", "artefact"),
)

# The newest of a judge, criterion and prompt counts.
calibrations = _numbered(
    "calibrations",
    _text("project judge criterion prompt labels body"),
    _real("at"),
    Index("ix_calibrations_project_judge_criterion_key", "project", "judge", "criterion", "key"),
)

appointments = _keyed("appointments", _text("project* policy* judge* role"), _real("at"))

# Its id is "tok-<key>".
tokens = _numbered(
    "tokens",
    _text("project label role"),
    Column("sha256", Text, nullable=False, unique=True),  # of the token, which is nowhere
    _real("created_at expires_at? revoked_at?"),
)

commands = _keyed("commands", _text("project* id* body"), _text("role answer"), _real("at"))

# Its id is "alert-<key>".
alerts = _numbered(
    "alerts",
    _text("project code"),
    _text("run"),  # blank: of the whole installation; no NULL, two of which are never the same
    _text("severity message"),
    _real("at acknowledged_at?"),
    _text("acknowledged_by?"),
    _real("cleared_at?"),
    Index("ix_alerts_project_key", "project", "key"),
    # The invariant itself: what stands, stands once.
    Index("ux_alerts_standing", "project", "code", "run", unique=True, **_where("cleared_at IS NULL")),
)

ledger = _table(
    "ledger",
    _big("seq*"),
    _real("at"),
    _text("project run? kind who body previous"),
    Column("sha256", Text, nullable=False, unique=True),
    Index("ix_ledger_run_seq", "run", "seq"),
)

pulse = _table(
    # SQLite: counters by which others see what kind of thing changed, and of rows. Postgres: each session's last commit
    "pulse",
    _text("topic*"),
    _big("n"),
)

# Of the other columns but `key`, as `sql.checksum` computes it; NULL: of a row from before, or on Postgres, which has
# checksums of its own. The ledger has a chain instead.
CHECKSUM = "checksum"
COUNTED, UNSUMMED = "rows of {}", "unsummed of {}"  # topics of `pulse`: of a table's rows, and of those from before
SUMMED = tuple(table for table in metadata.sorted_tables if table not in (ledger, pulse))
for _each in SUMMED:
    _each.append_column(Column(CHECKSUM, Big))
