"""Tables, indexes and guards as they were at revision 0007; the revisions before it were never released."""

from collections.abc import Mapping

import sqlalchemy as sa
from alembic import op

from holdfast.store.migrations import BIG, INTEGER, TEXT, big, guard, index, integer, real, table, text

revision = "0007"
down_revision = None

Moves = Mapping[str, tuple[str, ...]]
ROLLOUTS: Moves = {
    "queuing": ("running", "cancelled"),
    "requeuing": ("queuing", "cancelled"),
    "running": ("succeeded", "failed", "dead", "requeuing", "queuing", "cancelled"),
    "succeeded": (),
    "failed": ("queuing",),
    "dead": ("queuing",),
    "cancelled": ("queuing",),
}
ATTEMPTS: Moves = {"running": ("succeeded", "failed", "fault", "timeout", "unresponsive", "cancelled", "released")}
RELEASES: Moves = {
    "candidate": ("shadow", "canary", "live", "rejected"),
    "shadow": ("canary", "live", "rejected"),
    "canary": ("canary", "live", "rolled_back"),
    "live": ("retired", "rolled_back"),
    "retired": ("live",),
    "rolled_back": ("candidate",),
    "rejected": ("candidate",),
}
SHARES = (
    "NEW.stage = 'live' AND NEW.share = 100 OR NEW.stage = 'canary' AND NEW.share BETWEEN 1 AND 100 "
    "OR NEW.stage NOT IN ('live', 'canary') AND NEW.share = 0"
)
FEEDBACK = ("success", "reward", "safety_cost")
SHRINKS = " OR ".join(f"NEW.{name} < OLD.{name}" for name in ("allowed", "spent", "overspent", "calls", "events"))
UNFIT = "NEW.allowed < NEW.ceiling OR NEW.allowed > NEW.cap OR NEW.overspent > NEW.spent OR NEW.overspent < 0"
UNGRADED = "(NEW.grade IS NULL) <> (NEW.score IS NULL) OR NEW.grade NOT IN ('yes', 'partly', 'no')"
UNSCORED = "NEW.score * NEW.score > NEW.score"  # below 0 or above 1, without a number that Postgres would rewrite
UNMADE = "NEW.maker NOT IN ('program', 'model', 'person') OR NEW.version < 1 OR NEW.holds NOT IN (0, 1)"
LATER = "OLD.expires_at IS NOT NULL AND (NEW.expires_at IS NULL OR NEW.expires_at > OLD.expires_at)"


def illegal(column: str, moves: Moves) -> str:
    pairs = (f"OLD.{column} = '{old}' AND NEW.{column} = '{new}'" for old, news in moves.items() for new in news)
    return f"NOT ({' OR '.join(pairs)})"


def upgrade() -> None:
    make_work()
    make_learning()
    make_service()
    make_judgements()
    make_commands()
    table(
        "ledger",
        big("seq"),
        real("at"),
        text("project run? kind who body previous sha256"),
        key="seq",
        unique=("sha256",),
    )
    index("ix_ledger_run_seq", "ledger", ["run", "seq"])
    table("pulse", text("topic"), big("n"), key="topic")
    topics = ("queue", "room", "done", "orders", "releases", "trials", "flags", "alerts")
    pulse = sa.table("pulse", sa.column("topic", TEXT), sa.column("n", BIG))
    op.bulk_insert(pulse, [{"topic": topic, "n": 0} for topic in topics])
    make_guards()


def make_work() -> None:
    """Runs, rollouts and attempts, and what attempts leave."""
    names = text("id project kind state wanted model_ref settings"), integer("queue_limit?"), real("created_at beat_at")
    driver = sa.Column("driver", INTEGER, nullable=False, server_default=sa.text("1"))
    table("runs", *names, real("ended_at?"), text("error?"), [driver], unique=("id",))
    index("ix_runs_project_key", "runs", ["project", "key"])
    table(
        "rollouts",
        *(big("run"), text("name input split? status"), integer("priority max_attempts"), real("timeout_s?")),
        *(big("resources?"), text("metadata?"), integer("attempt_count faults"), real("enqueued_at ready_at")),
        *(real("started_at? ended_at?"), text("reason?"), big("final?"), real("reward?")),
        unique=("run name",),
        to="runs",
    )
    index("ix_rollouts_run_key", "rollouts", ["run", "key"])
    index("ix_rollouts_run_status_key", "rollouts", ["run", "status", "key"])
    index("ix_rollouts_queue", "rollouts", ["run", sa.text("priority DESC"), "key"], "status = 'queuing'")
    index("ix_rollouts_waiting", "rollouts", ["run", "ready_at"], "status = 'requeuing'")
    times = real("started_at beat_at lease_until deadline? ended_at?")
    attempt = big("rollout"), integer("number"), text("worker status"), times, text("error? output?")
    table("attempts", *attempt, unique=("rollout number",), to="rollouts")
    index("ix_attempts_lease", "attempts", ["lease_until"], "status = 'running'")
    index("ux_attempts_holder", "attempts", ["rollout"], "status IN ('running', 'succeeded')")
    numbered = big("attempt"), integer("seq")
    table("spans", *numbered, text("kind name"), real("started_at ended_at?"), text("body?"), key="attempt seq")
    weighed = text("name"), real("value weight"), text("source"), integer("turn?")
    table("signals", *(big("attempt"), integer("seq")), *weighed, key="attempt seq")
    counts = big("ceiling cap allowed spent overspent calls escalations")
    budget = big("attempt"), text("tier assessment"), counts, text("escalated_at mode?"), big("events")
    table("budgets", *budget, real("created_at changed_at"), key="attempt")
    event = big("attempt seq"), text("kind"), real("at"), big("tokens allowed spent overspent"), text("body?")
    table("budget_events", *event, key="attempt seq")
    worker = text("id project host"), integer("pid slots"), real("started_at beat_at stopped_at?")
    table("workers", *worker, unique=("id",))


def make_learning() -> None:
    """Resources, blobs, checkpoints and learning updates."""
    version = text("project"), integer("version"), text("sha256 body"), real("created_at")
    table("resources", *version, unique=("project version", "project sha256"))
    table("blobs", text("sha256"), big("size"), real("created_at"), key="sha256")
    checkpoint = text("project id"), big("run?"), text("parent? uri? sha256? body"), real("added_at")
    table("checkpoints", *checkpoint, unique=("project id",), to="runs")
    index("ix_checkpoints_project_key", "checkpoints", ["project", "key"])
    index("ix_checkpoints_run_key", "checkpoints", ["run", "key"])
    table("updates", big("run step"), real("at"), text("body"), key="run step", to="runs")


def make_service() -> None:
    """Releases, experiments and flags."""
    table(
        "releases",
        *(text("project policy"), integer("number"), text("kind source parent? stage"), integer("share is_known_good")),
        *(text("evidence? manifest"), real("created_at changed_at")),
        unique=("project policy number", "project policy source"),
    )
    for stage in ("live", "canary"):
        index(f"ux_releases_{stage}", "releases", ["project", "policy"], f"stage = '{stage}'")
    trial = text("project name kind arms salt"), real("created_at ended_at?"), text("settings")
    table("trials", *trial, unique=("project name",))
    table("exposures", big("trial"), text("unit arm"), real("at"), key="trial unit", to="trials")
    request = text("project"), big("trial"), text("id arm unit"), real("at"), integer("error"), real("latency_s?")
    table(
        "served", *request, big("tokens?"), real("success? reward? safety_cost?"), unique=("project id",), to="trials"
    )
    index("ix_served_trial_key", "served", ["trial", "key"])
    table("flags", text("project name body"), real("changed_at"), key="project name")


def make_judgements() -> None:
    """What judges say, what is known to be true, and how far a judge may be believed."""
    table("artefacts", text("project sha256 body"), real("at"), key="project sha256")
    judgement = text("project id judge criterion prompt artefact grade?"), real("score?"), text("why"), big("tokens")
    table("judgements", *judgement, real("cost latency_s at"), key="project id")
    table("doubts", text("project artefact criterion reason why"), real("at"), key="project artefact criterion")
    label = text("project artefact criterion maker who"), integer("version holds?"), text("why"), real("at")
    table("labels", *label, key="project artefact criterion maker who version")
    table("calibrations", text("project judge criterion prompt labels body"), real("at"))
    table("appointments", text("project policy judge role"), real("at"), key="project policy judge")
    for of in ("judgements", "labels"):
        index(f"ix_{of}_project_criterion_artefact", of, ["project", "criterion", "artefact"])
    bound = ["project", "judge", "criterion", "key"]
    index("ix_calibrations_project_judge_criterion_key", "calibrations", bound)


def make_commands() -> None:
    """Tokens, commands and alerts."""
    token = text("project label role sha256"), real("created_at expires_at? revoked_at?")
    table("tokens", *token, unique=("sha256",))
    table("commands", text("project id body role answer"), real("at"), key="project id")
    seen = real("at acknowledged_at?"), text("acknowledged_by?"), real("cleared_at?")
    table("alerts", text("project code run severity message"), *seen)
    index("ix_alerts_project_key", "alerts", ["project", "key"])
    index("ux_alerts_standing", "alerts", ["project", "code", "run"], "cleared_at IS NULL")


def make_guards() -> None:
    """The legal moves, what never changes, and what is never removed, kept by the database itself."""
    moving = (
        ("rollouts", "status", ROLLOUTS, "NEW.status <> 'queuing'"),
        ("attempts", "status", ATTEMPTS, "NEW.status <> 'running'"),
        ("releases", "stage", RELEASES, "NEW.stage <> 'candidate' OR NEW.share <> 0"),
    )
    for of, column, moves, unborn in moving:
        guard(f"{of}_move", f"UPDATE OF {column} ON {of}", f"illegal move of {of}", illegal(column, moves))
        guard(f"{of}_birth", f"INSERT ON {of}", f"illegal birth of {of}", unborn)
    shares = "UPDATE OF stage, share ON releases"
    guard("releases_share", shares, "illegal share of releases", f"NOT ({SHARES})")
    if op.get_bind().dialect.name != "sqlite":  # which has no TRUNCATE
        guard("ledger_truncate", "TRUNCATE ON ledger", "the ledger is append-only", each="STATEMENT")
    for of, message in {
        "ledger": "the ledger is append-only",
        "resources": "a resource version is immutable",
        "exposures": "an exposure is immutable",
        "budget_events": "a budget event is immutable",
        "artefacts": "an artefact is immutable",
        "judgements": "a judgement is immutable",
        "doubts": "a doubt is immutable",
        "labels": "a label is immutable",
        "calibrations": "a calibration is immutable",
        "appointments": "an appointment is immutable",
        "commands": "a command is immutable",
    }.items():
        guard(f"{of}_update", f"UPDATE ON {of}", message)
    guard("updates_update", "UPDATE ON updates", "a learning update is immutable", "")
    checkpoint = "project, id, parent, uri, sha256, body, added_at"  # all but the run, which may be pruned
    guard("checkpoints_update", f"UPDATE OF {checkpoint} ON checkpoints", "a checkpoint is immutable", "")
    for of, fixed, message in (
        (
            "releases",
            "key, project, policy, number, kind, source, parent, manifest, created_at",
            "a release is immutable",
        ),
        ("trials", "key, project, name, kind, arms, salt, settings, created_at", "a trial is immutable"),
        ("served", "key, project, trial, id, arm, unit, at, error, latency_s, tokens", "a served request is immutable"),
        ("budgets", "attempt, tier, assessment, ceiling, cap, created_at", "a budget is immutable"),
        ("tokens", "key, project, label, role, sha256, created_at", "a token is immutable"),
        ("alerts", "key, project, code, run, at", "an alert is immutable"),
    ):
        guard(f"{of}_fixed", f"UPDATE OF {fixed} ON {of}", message)
    for of, message in {
        "ledger": "the ledger is append-only",
        "releases": "a release is never removed",
        "labels": "a label is never removed",
        "appointments": "an appointment is for good",
        "tokens": "a token is never removed",
        "commands": "a command is never removed",
        "alerts": "an alert is never removed",
    }.items():
        guard(f"{of}_delete", f"DELETE ON {of}", message)
    guard("trials_end", "UPDATE OF ended_at ON trials", "a trial ends once", "OLD.ended_at IS NOT NULL")
    retold = " OR ".join(f"OLD.{it} IS NOT NULL AND (NEW.{it} IS NULL OR NEW.{it} <> OLD.{it})" for it in FEEDBACK)
    guard("served_told", f"UPDATE OF {', '.join(FEEDBACK)} ON served", "feedback is told once", retold)
    guard("budgets_shrink", "UPDATE ON budgets", "nothing of a budget is taken back", SHRINKS)
    guard("budgets_unfit", "UPDATE ON budgets", "a budget beyond its limits", UNFIT)
    guard("budgets_birth", "INSERT ON budgets", "a budget beyond its limits", UNFIT)
    guard("judgements_birth", "INSERT ON judgements", "a judgement that says nothing", f"{UNGRADED} OR {UNSCORED}")
    guard("labels_birth", "INSERT ON labels", "a label of nobody", UNMADE)
    guard("appointments_birth", "INSERT ON appointments", "an unknown role", "NEW.role NOT IN ('train', 'audit')")
    guard("tokens_birth", "INSERT ON tokens", "an unknown role", "NEW.role NOT IN ('viewer', 'operator', 'admin')")
    guard("tokens_life", "UPDATE OF expires_at ON tokens", "the life of a token is only ever shortened", LATER)
    guard("tokens_end", "UPDATE OF revoked_at ON tokens", "a token is revoked once", "OLD.revoked_at IS NOT NULL")
    unknown = "NEW.severity NOT IN ('critical', 'warning', 'info')"
    guard("alerts_birth", "INSERT ON alerts", "an unknown severity", unknown)
    guard("alerts_end", "UPDATE ON alerts", "an alert is cleared once", "OLD.cleared_at IS NOT NULL")
