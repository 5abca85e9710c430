"""A store's records as lines of JSON, all of them from one moment.

Each line has a `kind` and a `record` as contracts.records writes it; what a record does not say itself (the attempt of
a span, the output of an attempt, the run of a checkpoint, the project of a trial, a flag or a label) stands beside it.
Of a token there is no record: all that is known of it but its hash stands on its line.
The first line says what wrote the file, the last how many lines of each kind it has: without it, it was cut short.
Ledger entries are as they were hashed; `ledger.anchors`, beside the store, is a file already, and is not exported.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import asdict, dataclass, field
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

from sqlalchemy import BindParameter, Integer, bindparam, func, select, tuple_

from holdfast.contracts.records import encode
from holdfast.store import rows, schema, scorings
from holdfast.store.db import HEAD
from holdfast.store.sql import Transaction, given
from holdfast.store.store import Store
from holdfast.store.traces import reward_term, span

VERSION = 1
PAGE = 100  # rollouts whose spans are held in memory at once
_u, _r, _a = schema.runs.c, schema.rollouts.c, schema.attempts.c
_k, _p, _e, _v, _l = schema.checkpoints.c, schema.steps.c, schema.exposures.c, schema.served.c, schema.ledger.c
_final = schema.attempts.alias("final")
_all: BindParameter[int] = bindparam("all")  # 1: of any project
_after: BindParameter[Any] = bindparam("after")


def _mine(table: Any) -> Any:
    return (_all == 1) | (table.c.project == bindparam("project"))


def _every(table: Any, *columns: Any) -> Any:
    """The rows of a table of the project, or of any, in the order of their keys."""
    return select(*columns or table.c).where(_mine(table)).order_by(*table.primary_key)


def _paged(table: Any, columns: Any) -> Any:
    """A page of such rows after a key; the project and the key stand at the end of each row."""
    keys = list(table.primary_key)
    after = tuple_(*(bindparam(f"after{place}", type_=key.type) for place, key in enumerate(keys)))
    found = select(*columns, table.c.project, *keys)
    return found.where(_mine(table), tuple_(*keys) > after).order_by(*keys).limit(1000)


RUNS, RESOURCES, RELEASES, TRIALS, TOKENS = (
    _every(table) for table in (schema.runs, schema.resources, schema.releases, schema.trials, schema.tokens)
)
FLAGS = _every(schema.flags, schema.flags.c.body, schema.flags.c.project)
CHECKPOINTS = _every(schema.checkpoints, _k.body, _u.id).select_from(
    schema.checkpoints.outerjoin(schema.runs, _u.key == _k.run)
)
EXPOSURES = select(*rows.EXPOSURE).where(_e.trial == bindparam("of"), _e.unit > _after).order_by(_e.unit).limit(1000)
SERVED = select(*rows.SERVED, _v.key).where(_v.trial == bindparam("of"), _v.key > _after).order_by(_v.key).limit(1000)
STEPS = select(*rows.STEP).where(_p.run == bindparam("of"), _p.step > _after).order_by(_p.step).limit(1000)
LEDGER = select(schema.ledger).where(_l.seq > _after).order_by(_l.seq).limit(1000)
OF_PROJECTS = tuple(  # kind, statement, how many columns the record has, its reader, and where the first page begins
    (
        kind,
        _paged(table, columns),
        len(columns),
        read,
        tuple(0 if isinstance(key.type, Integer) else "" for key in table.primary_key),
    )
    for kind, table, columns, read in (
        ("artefact", schema.artefacts, (schema.artefacts.c.body,), rows.eval_item),
        ("judgement", schema.judgements, rows.JUDGEMENT, rows.judgement),
        ("doubt", schema.doubts, rows.REVIEW_REQUEST, rows.review_request),
        ("label", schema.labels, rows.LABEL, rows.label),
        ("calibration", schema.calibrations, (schema.calibrations.c.body,), rows.calibration),
        ("appointment", schema.appointments, rows.JUDGE_ASSIGNMENT, rows.judge_assignment),
        ("command", schema.commands, (schema.commands.c.body,), rows.command),
        ("alert", schema.alerts, tuple(schema.alerts.c), rows.alert),
    )
)
EDGES = select(func.min(_r.key), func.max(_r.key)).where(given(_r, "run"))
ROLLOUTS = (
    select(*rows.ROLLOUT, _r.run, _final.c.number)
    .select_from(schema.rollouts.outerjoin(_final, _final.c.key == _r.final))
    .where(given(_r, "run"), _r.key > _after, _r.key <= bindparam("last"))
    .order_by(_r.key)
    .limit(PAGE)
)
EVERY = select(func.count()).select_from(schema.rollouts)
_page = (given(_r, "run"), _r.key >= bindparam("first"), _r.key <= bindparam("last"))
_below = schema.attempts.join(schema.rollouts, _r.key == _a.rollout)
ATTEMPTS = (
    select(_a.rollout, _a.output, *rows.ATTEMPT).select_from(_below).where(*_page).order_by(_a.rollout, _a.number)
)
OF_ATTEMPTS: tuple[tuple[Any, Callable[[Any, str], tuple[str, object, dict[str, Any]]]], ...] = tuple(
    (
        select(table)
        .select_from(_below.join(table, table.c.attempt == _a.key))
        .where(*_page)
        .order_by(*table.primary_key),
        line,
    )
    for table, line in (
        (schema.spans, lambda row, attempt: ("span", span(row), {"attempt": attempt})),
        (schema.signals, lambda row, attempt: ("signal", reward_term(row), {"attempt": attempt})),
        (schema.budgets, lambda row, attempt: ("budget", rows.budget(row, attempt), {})),
        (schema.budget_events, lambda row, attempt: ("budget-event", rows.budget_event(row, attempt), {})),
    )
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote."""

    SCHEMA: ClassVar[int] = 1

    output: str
    lines: Mapping[str, int]  # by kind
    left_out: Mapping[str, int] = field(default_factory=dict)  # rollouts without a line, by reason


def rollouts(store: Store) -> int:
    """How many there are, in all projects."""
    n: int = store.db.one(EVERY, {})[0]
    return n


def export(
    store: Store,
    write: Callable[[str], object],
    *,
    version: str,
    now: float,
    project: str | None = None,
    run: str | None = None,
    done: Callable[[int], object] = lambda rollouts: None,
) -> dict[str, int]:
    """Hand every line to `write`; the number of lines by kind. `run` is the id of the only run that is wanted."""
    counted: Counter[str] = Counter()

    def line(kind: str, record: object = None, **beside: Any) -> None:
        data = {"kind": kind, **beside} | ({} if record is None else {"record": encode(record)})
        write(json.dumps(data, allow_nan=False, separators=(",", ":")) + "\n")
        counted[kind] += 1

    def look(view: Transaction) -> None:
        line("header", format=VERSION, holdfast=version, schema=HEAD, store=store.url, exported_at=now)
        everything = {"all": int(project is None), "project": project or ""}
        for row in view.all(RESOURCES, everything):
            line("resource-version", rows.resource_version(row))
        for row in view.all(RUNS, everything):
            if run in (None, row[1]):
                line("run", rows.run(row))
                for rollouts in _pages(view, row[0]):
                    _write_page(view, row[1], rollouts, line)
                    done(len(rollouts))
                for step in _rows(view, STEPS, -1, 0, row[0]):
                    line("step", **asdict(rows.step(step, row[1])))
                _write_scorings(view, row, line)
        for body, of in view.all(CHECKPOINTS, everything):
            if run in (None, of):
                line("checkpoint", rows.checkpoint((body,)), run=of)
        if run is None:
            _write_service(view, everything, line)
            _write_of_projects(view, everything, line)
        for entry in map(rows.ledger_entry, _rows(view, LEDGER, 0, 0)):
            if (project is None or entry.project == project) and run in (None, entry.run):
                line("ledger-entry", entry)

    store.db.reading(look, snapshot=True, again=False)  # it writes as it reads
    write(json.dumps({"kind": "end", "lines": dict(counted)}) + "\n")
    return dict(counted)


def _write_service(view: Transaction, everything: Mapping[str, Any], line: Callable[..., None]) -> None:
    """What serves belongs to a project, and to no run."""
    for row in view.all(RELEASES, dict(everything)):
        line("release", rows.release(row))
    for row in view.all(TRIALS, dict(everything)):
        key, project, name = row[:3]
        line("trial", rows.experiment(row), project=project)
        for found in _rows(view, EXPOSURES, "", 0, key):
            line("exposure", rows.exposure(found, name), project=project)
        for found in _rows(view, SERVED, 0, -1, key):
            line("served", rows.served_request(found, name), project=project)
    for body, project in view.all(FLAGS, dict(everything)):
        line("flag", rows.flag((body,)), project=project)


def _write_of_projects(view: Transaction, everything: Mapping[str, Any], line: Callable[..., None]) -> None:
    """What judges said, what is known and what was ordered belongs to a project; so do those who may order."""
    for kind, statement, width, read, first in OF_PROJECTS:
        after = first
        while page := view.all(statement, {**everything, **{f"after{n}": value for n, value in enumerate(after)}}):
            for row in page:
                line(kind, read(row[:width]), project=row[width])
            after = page[-1][width + 1 :]
    for row in view.all(TOKENS, dict(everything)):
        token = rows.token(row)
        times = {"created_at": token.created_at, "expires_at": token.expires_at, "revoked_at": token.revoked_at}
        line("token", project=row[1], id=token.id, label=token.label, role=token.role, **times)


def _rows(view: Transaction, statement: Any, after: Any, place: int, of: int | None = None) -> Iterator[Any]:
    """All rows, page by page: each page goes on after the last row's value in that place."""
    while page := view.all(statement, {"after": after} | ({} if of is None else {"of": of})):
        yield from page
        after = page[-1][place]


def _pages(view: Transaction, run: int) -> Iterator[list[Any]]:
    first, last = view.one(EDGES, {"run": run})
    after = (first or 0) - 1
    while last is not None and (page := view.all(ROLLOUTS, {"run": run, "after": after, "last": last})):
        yield page
        after = page[-1][0]


def _write_page(view: Transaction, run: str, page: list[Any], line: Callable[..., None]) -> None:
    params = {"run": page[0][-2], "first": page[0][0], "last": page[-1][0]}
    attempts = _by_first(view.all(ATTEMPTS, params))
    below = [(_by_first(view.all(statement, params)), record) for statement, record in OF_ATTEMPTS]
    for row in page:
        rollout = rows.rollout(row, run, row[-1])
        line("rollout", rollout)
        for found in attempts.get(row[0], ()):
            attempt = rows.attempt(found[2:], rollout.id)
            line("attempt", attempt, output=rows.output(found[1:]))
            for kept, record in below:
                for values in kept.get(attempt.token, ()):
                    kind, made, beside = record(values, attempt.id)
                    line(kind, made, **beside)


def _by_first(found: list[Any]) -> dict[int, list[Any]]:
    return {key: list(group) for key, group in groupby(found, key=lambda row: row[0])}


def _write_scorings(view: Transaction, run: Any, line: Callable[..., None]) -> None:
    """The scorings of a run, each before its signals."""
    for row in view.all(scorings.OF_RUN, {"run": run[1], "project": run[2]}):
        scoring = rows.scoring(row)
        line("scoring", scoring)
        for rollout, signals in scorings.pages(partial(view.all, scorings.AFTER), row[0]):
            for term in signals:
                line("scored", term, scoring=scoring.name, rollout=rollout)
