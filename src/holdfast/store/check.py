"""Is a store sound? The file, its guards, the life cycle of everything in it, what serves, what was judged, the
ledger's chain and what follows from it, the blobs. Reading only.

The guards are the triggers and indexes of the database. To compare them, the migrations are replayed on paper. SQLite
keeps each statement to the letter; Postgres rewrites it, so there the names and literals in it are compared, and a
guard's code to the letter.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from dataclasses import astuple, dataclass
from enum import StrEnum
from functools import lru_cache, partial
from pathlib import Path
from typing import Any, ClassVar

from sqlalchemy import (
    PrimaryKeyConstraint,
    Select,
    Table,
    Text,
    UniqueConstraint,
    and_,
    case,
    cast,
    func,
    literal_column,
    or_,
    select,
    text,
)

from holdfast.contracts.artifacts import MANIFEST, content_hash
from holdfast.contracts.errors import BadInput, StoreError
from holdfast.contracts.release import PolicyKind, Stage
from holdfast.contracts.rollout import DONE, AttemptState, RolloutState
from holdfast.contracts.run import DesiredState, RunState
from holdfast.store import experiments, rows, runs, schema, scorings, tasks
from holdfast.store.artifacts import sha256_of
from holdfast.store.commands import changed_tokens
from holdfast.store.db import COMMITS, MIGRATING, migrations
from holdfast.store.notifications import TOPICS
from holdfast.store.releases import hash_of, recompute, source_text
from holdfast.store.sql import Transaction, among, from_json, given, sum_of
from holdfast.store.store import Store

MADE = re.compile(r"CREATE (?:UNIQUE )?(TRIGGER|INDEX|FUNCTION) (\w+)")
GONE = re.compile(r"DROP (TRIGGER|INDEX|FUNCTION) (?:IF EXISTS )?(\w+)")
WORD = re.compile(r"'[^']*'|[a-z_][a-z_0-9]*")
# Where the two ways to write it differ: BETWEEN becomes two comparisons, IN becomes = ANY (ARRAY[…]).
NOISE = frozenset(("all", "and", "any", "array", "between", "btree", "in", "not", "or", "text", "using"))
IN_FILE = text("SELECT upper(type), name, sql FROM sqlite_master WHERE type IN ('trigger', 'index') AND sql <> ''")
TRIGGERS = text(
    "SELECT t.tgname, pg_get_triggerdef(t.oid, true), t.tgenabled = 'O', p.prosrc FROM pg_trigger t"
    " JOIN pg_class c ON c.oid = t.tgrelid JOIN pg_proc p ON p.oid = t.tgfoid"
    " WHERE NOT t.tgisinternal AND c.relnamespace = current_schema()::regnamespace"
)
INDEXES = text(
    "SELECT c.relname, pg_get_indexdef(c.oid, 0, true) FROM pg_index i JOIN pg_class c ON c.oid = i.indexrelid"
    " WHERE i.indisvalid AND c.relnamespace = current_schema()::regnamespace"
)
Kept = dict[tuple[str, str], Any]  # kind and name → what it says, in a form that can be compared


def missing(view: Transaction) -> Iterator[str]:
    """What is not as the migrations made it, a sentence each; an index more than these does no harm."""
    found = _in_file(view) if view.is_sqlite else _on_server(view)
    due = _due(view.is_sqlite)
    for (kind, name), says in sorted(due.items()):
        if (kind, name) not in found:
            yield f"{kind} {name}: is not there"
        elif found[kind, name] != says:
            yield f"{kind} {name}: is not the one that was made, or is switched off"
    yield from (
        f"{kind} {name}: is not one of the store's"
        for kind, name in sorted(found.keys() - due.keys())
        if kind == "trigger"
    )


def _in_file(view: Transaction) -> Kept:
    return {(kind.lower(), name): _plain(sql) for kind, name, sql in view.all(IN_FILE, {})}


def _on_server(view: Transaction) -> Kept:
    triggers = {("trigger", n): (_words(sql), is_on, code) for n, sql, is_on, code in view.all(TRIGGERS, {})}
    return triggers | {("index", name): _words(sql) for name, sql in view.all(INDEXES, {})}


@lru_cache
def _due(is_sqlite: bool) -> Kept:
    made = _replayed("sqlite" if is_sqlite else "postgresql")
    if is_sqlite:
        return {(kind, name): _plain(sql) for (kind, name), sql in made.items()}
    code = {name: sql.split("$$")[1] for (kind, name), sql in made.items() if kind == "function"}
    due: Kept = {("index", name): _words(sql) for (kind, name), sql in made.items() if kind == "index"}
    for table in schema.metadata.tables.values():
        for constraint in table.constraints:
            if isinstance(constraint, UniqueConstraint | PrimaryKeyConstraint):
                columns = ", ".join(constraint.columns.keys())
                due["index", str(constraint.name)] = _words(
                    f"CREATE UNIQUE INDEX {constraint.name} ON {table.name} ({columns})"
                )
    for (kind, name), sql in made.items():
        if kind == "trigger":
            due[kind, name] = (_words(sql), True, code[name])
    return due


def _replayed(dialect: str) -> dict[tuple[str, str], str]:
    """The statements that make guards, by kind and name, as the migrations up to today's leave them."""
    from alembic.operations import Operations
    from alembic.runtime.migration import MigrationContext
    from alembic.script import ScriptDirectory

    paper = Paper()
    context = MigrationContext.configure(dialect_name=dialect, opts={"as_sql": True, "output_buffer": paper})
    steps = list(ScriptDirectory.from_config(migrations()).walk_revisions())
    with MIGRATING, Operations.context(context):
        for step in reversed(steps):
            step.module.upgrade()
    kept: dict[tuple[str, str], str] = {}
    for sql in paper.statements:
        if (made := MADE.match(sql)) is not None:
            kept[made[1].lower(), made[2]] = sql
        elif (gone := GONE.match(sql)) is not None:
            kept.pop((gone[1].lower(), gone[2]), None)
    return kept


class Paper:
    """What a migration that runs on paper writes to: one statement at a time."""

    def __init__(self) -> None:
        self.statements: list[str] = []

    def write(self, sql: str) -> None:
        self.statements.append(sql.strip())

    def flush(self) -> None:
        pass


def _plain(sql: str) -> str:
    return " ".join(sql.split()).rstrip("; ")


def _words(sql: str) -> frozenset[str]:
    """The names and literals in a statement."""
    return frozenset(WORD.findall(sql.replace("public.", "").lower())) - NOISE


MOST = 20  # problems of one kind that are listed
MORE = f"… and more of the same kind: only the first {MOST} are listed"
_u, _r, _a = schema.runs.c, schema.rollouts.c, schema.attempts.c
_holder = schema.attempts.alias("holder")
_final = schema.attempts.alias("final")
_with_run = schema.rollouts.join(schema.runs, _u.key == _r.run)


@dataclass(frozen=True, slots=True, kw_only=True)
class CheckedPart:
    """One thing that was looked at, what is wrong with it, and what could not be looked at, a sentence each."""

    name: str
    problems: tuple[str, ...]
    notes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Checked:
    """The answer of a whole check."""

    SCHEMA: ClassVar[int] = 1

    store: str
    ok: bool
    parts: tuple[CheckedPart, ...]


def _among(column: Any, values: Iterable[StrEnum]) -> Any:
    return among(column, *(value.value for value in sorted(values)))


Rule = tuple[Select[Any], Callable[..., str]]  # finds the rows that break it, and says so of one


def _rule(statement: Select[Any], says: str | Callable[..., str]) -> Rule:
    """In a sentence, {0}, {1} … are the columns of a row."""
    return statement.limit(MOST + 1), says.format if isinstance(says, str) else says


def _of_rollout(source: Any, says: str, *conditions: Any, more: tuple[Any, ...] = ()) -> Rule:
    """A sentence about a rollout; {2} is its status, {3} … are the further columns."""
    statement = select(_u.id, _r.name, _r.status, *more).select_from(source).where(*conditions)
    return _rule(statement, "rollout {0}/{1}: " + says)


def _lost(child: Any, parent: Any, says: str) -> Rule:
    """Rows that refer to something that is not there; {0} is what they refer to, {1} how many they are."""
    source = child.table.outerjoin(parent.table, parent == child)
    found = select(child, func.count()).select_from(source).where(parent.is_(None)).group_by(child)
    return _rule(found, says)


def _about_nothing(table: Any) -> Rule:
    source = table.outerjoin(schema.artefacts, and_(_f.project == table.c.project, _f.sha256 == table.c.artefact))
    found = (
        select(table.c.artefact, func.count())
        .select_from(source)
        .where(_f.sha256.is_(None))
        .group_by(table.c.project, table.c.artefact)
        .order_by(table.c.artefact)
    )
    return _rule(found, f"artefact {{0!s:.12}}: is not there, but has {{1}} {table.name}")


_running_attempts = (
    select(func.count())
    .select_from(_holder)
    .where(_holder.c.rollout == _r.key, _holder.c.status == "running")
    .correlate(schema.rollouts)
    .scalar_subquery()
)
_held = and_(_holder.c.rollout == _r.key, _holder.c.status == "running")
_tries = select(_a.rollout, func.count().label("n"), func.max(_a.number).label("last")).group_by(_a.rollout).subquery()
_tries_n, _tries_last = func.coalesce(_tries.c.n, 0), func.coalesce(_tries.c.last, 0)
_decided = or_(_r.status == "succeeded", _r.status == "failed")
# A failed one was ended by the agent: it raised, ran out of time, or took its workers down.
_decides = or_(
    _final.c.status == _r.status,
    and_(_r.status == "failed", _among(_final.c.status, (AttemptState.TIMEOUT, AttemptState.UNRESPONSIVE))),
)
_with_final = _with_run.outerjoin(_final, and_(_final.c.key == _r.final, _final.c.rollout == _r.key, _decides))
_given = and_(schema.resources.c.project == _u.project, schema.resources.c.version == _r.resources)
RUN_KNOWN = select(_u.id, _u.state, _u.wanted).where(
    or_(
        ~_among(_u.state, RunState),
        ~_among(_u.wanted, DesiredState),
        (_u.state == "running") == _u.ended_at.is_not(None),
    )
)
_b, _spent = schema.budgets.c, schema.budget_events.alias("spent")
_told = (
    select(
        _spent.c.attempt,
        func.sum(case((_spent.c.kind == "spend", _spent.c.tokens), else_=0)).label("spent"),
        func.max(_spent.c.seq).label("last"),
        func.count().label("n"),
        func.max(_spent.c.allowed).label("allowed"),
    )
    .group_by(_spent.c.attempt)
    .subquery()
)
_t = _told.c
ADD_UP = (
    select(_b.attempt, _b.spent, func.coalesce(_t.spent, 0), _b.events, func.coalesce(_t.n, 0))
    .select_from(schema.budgets.outerjoin(_told, _t.attempt == _b.attempt))
    .where(or_(_t.n.is_(None), _b.spent != _t.spent, _b.allowed != _t.allowed, _b.events != _t.n, _b.events != _t.last))
)
_k, _parent = schema.checkpoints.c, schema.checkpoints.alias("parent")
_grown = schema.checkpoints.outerjoin(_parent, and_(_parent.c.project == _k.project, _parent.c.id == _k.parent))
HAS_PARENT = select(_k.id, _k.parent).select_from(_grown).where(_k.parent.is_not(None), _parent.c.key.is_(None))
SAVED = select(_k.id, _k.uri, _k.sha256).where(_k.uri.is_not(None)).order_by(_k.key)
_y, _z = schema.scorings.c, schema.scored.c
_scored_run = and_(_u.id == _y.run, _u.project == _y.project)
_scored_runs = schema.scorings.outerjoin(schema.runs, _scored_run)
SCORES_NO_RUN = select(_y.name, _y.run).select_from(_scored_runs).where(_u.key.is_(None))
SCORES_NOTHING = (
    select(_y.name, _y.run, _z.rollout)
    .select_from(
        schema.scored.join(schema.scorings, _y.key == _z.scoring)
        .join(schema.runs, _scored_run)
        .outerjoin(schema.rollouts, and_(_r.run == _u.key, _r.name == func.substr(_z.rollout, func.length(_y.run) + 2)))
    )
    .where(_z.seq == 1, _r.key.is_(None))
)
_p = schema.steps.c
_before = func.coalesce(func.lag(_p.step).over(partition_by=_p.run, order_by=_p.step), 0)
_steps = select(_p.run, _p.step, _before.label("before")).subquery()
WITHOUT_A_GAP = (
    select(_u.id, _steps.c.before, _steps.c.step)
    .select_from(_steps.join(schema.runs, _u.key == _steps.c.run))
    .where(_steps.c.before < _steps.c.step - 1)
    .order_by(_steps.c.run, _steps.c.step)
)
_l, _x, _s = schema.releases.c, schema.trials.c, schema.served.c
RELEASE_KNOWN = select(_l.policy, _l.number, _l.stage, _l.share, _l.kind).where(
    or_(
        ~_among(_l.stage, Stage),
        ~_among(_l.kind, PolicyKind),
        and_(_l.stage == "live", _l.share != 100),
        and_(_l.stage == "canary", ~_l.share.between(1, 100)),
        and_(_l.stage != "live", _l.stage != "canary", _l.share != 0),
    )
)
_alone = select(_l.policy, _l.stage, func.count()).where(or_(_l.stage == "live", _l.stage == "canary"))
ALONE = _alone.group_by(_l.project, _l.policy, _l.stage).having(func.count() > 1)
HAS_EVIDENCE = (
    select(_l.policy, _l.number, _l.evidence)
    .select_from(schema.releases.outerjoin(schema.blobs, schema.blobs.c.sha256 == _l.evidence))
    .where(_l.evidence.is_not(None), schema.blobs.c.sha256.is_(None))
)
OF_ANOTHER_PROJECT = (
    select(_s.id, _x.name, _s.project, _x.project)
    .select_from(schema.served.join(schema.trials, _x.key == _s.trial))
    .where(_s.project != _x.project)
)
RELEASES = select(schema.releases).order_by(_l.key)
BODIES = select(_k.id, _k.parent, _k.uri, _k.sha256, _k.body).order_by(_k.key)
RESOURCES = select(schema.resources.c.version, schema.resources.c.sha256, schema.resources.c.body)
TRIALS = select(schema.trials).order_by(_x.key)
ARMS = [
    (what, select(table.c.trial, table.c.arm, func.count()).group_by(table.c.trial, table.c.arm))
    for what, table in (("units were given", schema.exposures), ("requests were answered by", schema.served))
]
FLAGS = select(schema.flags.c.body, schema.flags.c.name, schema.flags.c.changed_at)
_f, _o, _d, _c = schema.artefacts.c, schema.judgements.c, schema.labels.c, schema.calibrations.c
_versions_all = select(_d.artefact, _d.criterion, _d.who, func.count().label("n"), func.max(_d.version).label("last"))
_versions = _versions_all.group_by(_d.project, _d.artefact, _d.criterion, _d.maker, _d.who).subquery()
COUNTED = select(_versions).where(_versions.c.n != _versions.c.last)
JUDGEMENTS = select(_o.id, *rows.JUDGEMENT)
ABOUT = select(_f.sha256, _f.body)
BOUND = select(_c.body, _c.judge, _c.criterion, _c.prompt, _c.labels)
_m, _n = schema.commands.c, schema.ledger.c
COMMANDS = select(_m.body, _m.project, _m.id, _m.answer)
NOTED = select(_n.project, _n.body).where(_n.kind == "command")
ALERTS = select(schema.alerts)


def _missing_steps(run: str, before: int, after: int) -> str:
    first, last = before + 1, after - 1
    return f"run {run}: " + (f"step {first} is missing" if first == last else f"steps {first} to {last} are missing")


RULES: dict[str, tuple[Rule, ...]] = {
    "runs": (_rule(RUN_KNOWN, "run {0}: state {1}, wanted {2} and its end do not fit together"),),
    "leases": (
        _of_rollout(
            _with_run,
            "is running with {3} running attempts, not 1",
            *(_r.status == "running", _running_attempts != 1),
            more=(_running_attempts,),
        ),
        _of_rollout(
            _with_run.join(_holder, _held),
            "is {2}, yet its attempt {3} is running",
            _r.status != "running",
            more=(_holder.c.number,),
        ),
    ),
    "rollouts": (
        _of_rollout(_with_run, "has the unknown status {2!r}", ~_among(_r.status, RolloutState)),
        _of_rollout(
            _with_run,
            "is {2}, and its time of ending says otherwise",
            _among(_r.status, DONE) != _r.ended_at.is_not(None),
        ),
        _of_rollout(_with_final, "is {2}, but no {2} attempt of its own decided it", _decided, _final.c.key.is_(None)),
        _of_rollout(_with_run, "is {2}, yet names a deciding attempt", ~_decided, _r.final.is_not(None)),
        _of_rollout(
            _with_run.outerjoin(schema.resources, _given),
            "names resources-{3}, which is not there",
            *(_r.resources.is_not(None), schema.resources.c.key.is_(None)),
            more=(_r.resources,),
        ),
    ),
    "attempts": (
        _of_rollout(
            _with_run.outerjoin(_tries, _tries.c.rollout == _r.key),
            "has {3} attempts, the last is number {4}, and says {5}",
            or_(_tries_n != _r.attempt_count, _tries_last != _tries_n),
            more=(_tries_n, _tries_last, _r.attempt_count),
        ),
        _of_rollout(
            _with_run.join(schema.attempts, _a.rollout == _r.key),
            "attempt {3} is {4!r}, and its time of ending says otherwise",
            or_(~_among(_a.status, AttemptState), (_a.status == "running") == _a.ended_at.is_not(None)),
            more=(_a.number, _a.status),
        ),
    ),
    "spans": (_lost(schema.spans.c.attempt, _a.key, "attempt {0}: is not there, but has {1} spans"),),
    "signals": (_lost(schema.signals.c.attempt, _a.key, "attempt {0}: is not there, but has {1} signals"),),
    "budgets": (
        _lost(_b.attempt, _a.key, "attempt {0}: is not there, but has a budget"),
        _lost(schema.budget_events.c.attempt, _a.key, "attempt {0}: is not there, but has {1} events"),
        _rule(ADD_UP, "attempt {0}: its budget says {1} tokens in {3} events, they {2} in {4}"),
    ),
    "steps": (_lost(_p.run, _u.key, "run {0}: is not there, but has {1} steps"), _rule(WITHOUT_A_GAP, _missing_steps)),
    "scorings": (
        _lost(_z.scoring, _y.key, "scoring {0}: is not there, but has {1} signals"),
        _rule(SCORES_NO_RUN, "scoring {0} of {1}: its run is not there"),
        _rule(SCORES_NOTHING, "scoring {0} of {1}: scores {2}, which is not there"),
    ),
    "checkpoints": (_rule(HAS_PARENT, "checkpoint {0}: its parent {1} is not there"),),
    "releases": (
        _rule(RELEASE_KNOWN, "release {0}@{1}: {2} with {3} % and {4} do not fit together"),
        _rule(ALONE, "policy {0}: {2} releases are {1} at once"),
        _rule(HAS_EVIDENCE, "release {0}@{1}: its evidence {2!s:.12} is not there"),
    ),
    "trials": (
        _lost(schema.exposures.c.trial, _x.key, "trial {0}: is not there, but has {1} exposures"),
        _lost(_s.trial, _x.key, "trial {0}: is not there, but served {1} requests"),
        _rule(OF_ANOTHER_PROJECT, "request {0}: of project {2}, its trial {1} of {3}"),
    ),
    "labels": (
        *map(_about_nothing, (schema.judgements, schema.doubts, schema.labels)),
        _rule(COUNTED, "label of {0!s:.12} on {1} by {2}: version {4} is the last of {3}"),
    ),
}
Finder = Callable[[], Iterable[str]]
INTEGRITY = text(f"PRAGMA integrity_check({MOST})")
QUICK = text(f"PRAGMA quick_check({MOST})")
FOREIGN = text("PRAGMA foreign_key_check")
COUNTER = select(schema.pulse.c.n).where(given(schema.pulse, "topic"))
TOPICS_KEPT = select(schema.pulse.c.topic, schema.pulse.c.n)
GIVEN = text("SELECT seq FROM sqlite_sequence WHERE name = :name")
VERIFIED = text("SHOW data_checksums")
UNVERIFIED = "the server verifies no page: a changed value would not show; stop it and run 'pg_checksums --enable'"
# Of a record that is no JSON, or of another form:
UNREADABLE = (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, BadInput)


@dataclass(frozen=True, slots=True)
class Sealed:
    """What the ledger is compared with, besides itself and the file beside the store."""

    key: bytes | None = None
    copy: Path | None = None  # of the file beside the store, or a witness's


UNSEALED = Sealed()


def parts(
    store: Store, *, quick: bool = False, deep: bool = False, sealed: Sealed = UNSEALED
) -> list[tuple[str, Finder]]:
    """What there is to look at, by name; each function gives the problems it finds. Deeply, every value is read."""
    found: list[tuple[str, Finder]] = []
    if store.db.engine.name == "sqlite":
        found.append(("file", partial(_file, store, quick)))
        found.append(("references", partial(_references, store)))
    found += [(name, partial(_broken, store, rules)) for name, rules in RULES.items()]
    found += [(name, partial(_read, store, look)) for name, look in READ]
    if deep:
        found.append(("values", partial(changed_values, store)))
    found.append(("ledger", partial(_ledger, store, sealed)))
    found.append(("blobs", store.blobs.broken))
    found.append(("weights", partial(_weights, store, quick)))
    return found


def check(store: Store, *, quick: bool = False, deep: bool = False, sealed: Sealed = UNSEALED) -> Iterator[CheckedPart]:
    """Look at everything; what cannot be read is a problem of its part, and the rest is looked at all the same."""
    for name, look in parts(store, quick=quick, deep=deep, sealed=sealed):
        problems = list[str]()
        try:
            problems.extend(look())
        except StoreError as error:
            problems.append(str(error))
        except UNREADABLE as error:
            problems.append(f"a record cannot be read: {type(error).__name__}: {error}")
        notes = tuple(text for text in problems if text == UNVERIFIED)  # a server that cannot tell is not damaged
        yield CheckedPart(name=name, problems=tuple(text for text in problems if text not in notes), notes=notes)


def _file(store: Store, quick: bool) -> Iterator[str]:
    for row in store.db.all(QUICK if quick else INTEGRITY, {}):
        if row[0] != "ok":
            yield " ".join(str(row[0]).split())


def _references(store: Store) -> Iterator[str]:
    for table, key, parent, _ in store.db.all(FOREIGN, {})[:MOST]:
        yield f"{table} {key}: refers to a row of {parent} that is not there"


def _broken(store: Store, rules: Iterable[Rule]) -> Iterator[str]:
    for statement, says in rules:
        found = store.db.all(statement, {})
        yield from (says(*row) for row in found[:MOST])
        if len(found) > MOST:
            yield MORE


def _sources(view: Transaction) -> Iterator[str]:
    """Releases that nothing could serve, and those that grew from none."""
    releases = [rows.release(row) for row in view.all(RELEASES, {})]
    known = {(release.project, release.id) for release in releases}
    for release in releases:
        if source_text(view, release.project, release.source) is None:
            yield f"release {release.id}: its source {release.source} is not there"
        if release.parent is not None and (release.project, release.parent) not in known:
            yield f"release {release.id}: its parent {release.parent} is not there"
    for identity, *columns, body in view.all(BODIES, {}):
        checkpoint = rows.checkpoint((body,))
        if [
            checkpoint.id,
            checkpoint.parent,
            *(astuple(checkpoint.artifact) if checkpoint.artifact else (None, None)),
        ] != [identity, *columns]:
            yield f"checkpoint {identity}: its record is of another"
    for version, sha256, body in view.all(RESOURCES, {}):
        if hash_of(body) != sha256:
            yield f"resources-{version}: are not what they were"


def _arms(view: Transaction) -> Iterator[str]:
    trials = {row[0]: rows.experiment(row) for row in view.all(TRIALS, {})}
    for what, statement in ARMS:
        for key, arm, n in view.all(statement, {}):
            if key in trials and arm not in trials[key].arms:
                yield f"trial {trials[key].name}: {n} {what} {arm!r}, which is not one of its arms"


def _flags(view: Transaction) -> Iterator[str]:
    for body, name, changed_at in view.all(FLAGS, {}):
        flag = rows.flag((body,))
        if (flag.name, flag.changed_at) != (name, changed_at):
            yield f"flag {name}: its record is of {flag.name} at {flag.changed_at}"


def _judged(view: Transaction) -> Iterator[str]:
    """Artefacts and judgements that are not what their names say; calibrations of something else."""
    for sha256, body in view.all(ABOUT, {}):
        if rows.eval_item((body,)).sha256 != sha256:
            yield f"artefact {sha256!s:.12}: is not what it was when it was kept"
    for identity, *row in view.all(JUDGEMENTS, {}):
        if rows.judgement(row).id != identity:
            yield f"judgement {identity!s:.12}: is not the answer to what was asked"
    for body, *bound in view.all(BOUND, {}):
        calibration = rows.calibration((body,))
        if [calibration.judge, calibration.criterion, calibration.prompt, calibration.labels] != bound:
            record = f"{calibration.judge} on {calibration.criterion}"
            yield f"calibration of {bound[0]} on {bound[1]}: its record is of {record}"


def _orders(view: Transaction) -> Iterator[str]:
    """Orders that the ledger does not know, or knows otherwise; tokens and alerts that cannot be read."""
    noted = {
        (project, told["id"]): told for project, told in ((row[0], from_json(row[1])) for row in view.all(NOTED, {}))
    }
    for body, project, identity, answer in view.all(COMMANDS, {}):
        command, told = rows.command((body,)), noted.get((project, identity), {})
        said = (command.id, command.action, command.subject, from_json(answer))
        if said != (identity, *(told.get(name) for name in ("action", "subject", "answer"))):
            yield f"order {identity}: is not the one that the ledger has"
    yield from changed_tokens(view)
    for row in view.all(ALERTS, {}):
        rows.alert(row)


def _counters(view: Transaction) -> Iterator[str]:
    """Without its counter nothing of a kind can be written any more."""
    kept = dict(view.all(TOPICS_KEPT, {}))
    for topic in (*TOPICS, COMMITS) if view.is_sqlite else ():
        if kept.get(topic, -1) < 0:
            yield f"counter {topic}: is not there, or below 0"


READ: tuple[tuple[str, Callable[[Transaction], Iterable[str]]], ...] = (
    ("guards", missing),
    ("sources", _sources),
    ("arms", _arms),
    ("flags", _flags),
    ("judgements", _judged),
    ("orders", _orders),
    ("recorded", runs.changed_steps),
    ("noted", lambda view: (*runs.changed_runs(view), *experiments.changed(view))),
    ("tasks", tasks.changed),
    ("scored", scorings.changed),
    ("recount", recompute),
    ("counters", _counters),
)


def _read(store: Store, look: Callable[[Transaction], Iterable[str]]) -> list[str]:
    """What only the records tell, all of one moment."""
    found = store.db.reading(lambda view: list(look(view)), snapshot=True)
    return found if len(found) <= MOST else [*found[:MOST], MORE]


def changed_values(store: Store, tables: Iterable[Table] = schema.SUMMED) -> Iterator[str]:
    """Rows that are not what was written. Postgres is asked for every value: it verifies its pages as it reads them."""
    is_sqlite = store.db.engine.name == "sqlite"
    if not is_sqlite and store.db.one(VERIFIED, {}) != ("on",):
        yield UNVERIFIED
    for table in tables:
        try:
            if not is_sqlite:
                read = func.md5(cast(literal_column(table.name), Text))
                store.db.all(select(func.count(read)).select_from(table), {})
                continue
            yield from store.db.reading(partial(_lost_rows, table), snapshot=True)
            keys = list(table.primary_key.columns)
            wrong = sum_of(table, {column.name: column for column in table.c}) != table.c[schema.CHECKSUM]
            found = store.db.all(select(*keys).where(wrong).limit(MOST + 1), {})
        except StoreError as error:
            yield f"{table.name}: a value cannot be read ({error.why or error})"
            continue
        for row in found[:MOST]:
            named = ", ".join(f"{key.name} {value}" for key, value in zip(keys, row, strict=True))
            yield f"{table.name}: the row with {named} is not what was written"
        if len(found) > MOST:
            yield MORE


def _lost_rows(table: Table, view: Transaction) -> list[str]:
    """Whether rows came or went behind the store's back, lost their checksum, or have numbers that were never given."""
    counters = (view.one(COUNTER, {"topic": of.format(table.name)}) for of in (schema.COUNTED, schema.UNSUMMED))
    was, unsummed = ((row or (None,))[0] for row in counters)
    rows, summed = view.one(select(func.count(), func.count(table.c[schema.CHECKSUM])).select_from(table), {})
    lines = [f"{table.name}: has {rows} rows, and {was} were written"] if rows != was else []
    if unsummed is None or rows - summed > unsummed:
        lines.append(f"{table.name}: {rows - summed} rows have no checksum, and {unsummed} were written without")
    if "key" in table.c and rows:
        least, most = view.one(select(func.min(table.c.key), func.max(table.c.key)), {})
        given = view.one(GIVEN, {"name": table.name})
        if least < 1 or given is None or most > given[0]:
            lines.append(f"{table.name}: the row with key {most if least > 0 else least} was never given that number")
    return lines


def _weights(store: Store, quick: bool) -> Iterator[str]:
    """Checkpoints whose files are gone or are not those that were saved; quickly, only whether there are any.

    What the trainer needs to go on, and the manifests, lie beside the weights."""
    for checkpoint, uri, sha256 in store.db.all(SAVED, {}):
        folder = store.folder / str(uri)
        if not any(quick or sha256_of(file) == sha256 for file in folder.glob("*.safetensors")):
            yield f"checkpoint {checkpoint}: its weights are not in {folder}"
            continue
        for manifest in () if quick else sorted(folder.rglob(MANIFEST)):
            try:
                content_hash(manifest.parent)
            except (OSError, ValueError) as error:
                yield f"checkpoint {checkpoint}: {manifest.parent} is damaged: {error}"


def _ledger(store: Store, sealed: Sealed) -> Iterator[str]:
    store.ledger.verify(key=sealed.key, copy=sealed.copy)
    if sealed.copy is None and (missing := store.ledger.unnoted()) is not None:
        yield missing
