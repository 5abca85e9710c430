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
from dataclasses import asdict, dataclass
from functools import partial
from itertools import groupby
from typing import Any, ClassVar

from sqlalchemy import BindParameter, Integer, bindparam, func, select, tuple_

from holdfast.contracts.records import encode
from holdfast.contracts.run import StepRecord
from holdfast.store import rows, schema, scorings
from holdfast.store.db import HEAD
from holdfast.store.sql import Transaction, from_json
from holdfast.store.store import Store
from holdfast.store.traces import signal, span

VERSION = 1
PAGE = 100  # rollouts whose spans are held in memory at once
_u, _r, _a = schema.runs.c, schema.rollouts.c, schema.attempts.c
_s, _g = schema.spans.c, schema.signals.c
_b, _h = schema.budgets.c, schema.budget_events.c
_final = schema.attempts.alias("final")
_all: BindParameter[int] = bindparam("all")  # 1: of any project

RUNS = select(schema.runs).where((_all == 1) | (_u.project == bindparam("project"))).order_by(_u.key)
RESOURCES = (
    select(schema.resources)
    .where((_all == 1) | (schema.resources.c.project == bindparam("project")))
    .order_by(schema.resources.c.key)
)
_k, _p = schema.checkpoints.c, schema.steps.c
CHECKPOINTS = (
    select(_k.body, _u.id)
    .select_from(schema.checkpoints.outerjoin(schema.runs, _u.key == _k.run))
    .where((_all == 1) | (_k.project == bindparam("project")))
    .order_by(_k.key)
)
_t, _e, _v, _f = schema.trials.c, schema.exposures.c, schema.served.c, schema.flags.c
RELEASES = (
    select(schema.releases)
    .where((_all == 1) | (schema.releases.c.project == bindparam("project")))
    .order_by(schema.releases.c.key)
)
TRIALS = select(schema.trials).where((_all == 1) | (_t.project == bindparam("project"))).order_by(_t.key)
EXPOSURES = (
    select(*rows.EXPOSURE)
    .where(_e.trial == bindparam("trial"), _e.unit > bindparam("after"))
    .order_by(_e.unit)
    .limit(1000)
)
SERVED = (
    select(*rows.SERVED, _v.key)
    .where(_v.trial == bindparam("trial"), _v.key > bindparam("after"))
    .order_by(_v.key)
    .limit(1000)
)
FLAGS = (
    select(_f.body, _f.project).where((_all == 1) | (_f.project == bindparam("project"))).order_by(_f.project, _f.name)
)


def _paged(table: Any, columns: Any) -> Any:
    """A page of a table of the project, or of any, after a key; the key stands at the end of each row."""
    keys = list(table.primary_key)
    after = tuple_(*(bindparam(f"after{place}", type_=key.type) for place, key in enumerate(keys)))
    mine = (_all == 1) | (table.c.project == bindparam("project"))
    return select(*columns, table.c.project, *keys).where(mine, tuple_(*keys) > after).order_by(*keys).limit(1000)


OF_PROJECTS = tuple(  # kind, statement, how many columns the record has, its reader, and where the first page begins
    (
        kind,
        _paged(table, columns),
        len(columns),
        read,
        tuple(0 if isinstance(key.type, Integer) else "" for key in table.primary_key),
    )
    for kind, table, columns, read in (
        ("artefact", schema.artefacts, (schema.artefacts.c.body,), rows.artefact),
        ("judgement", schema.judgements, rows.JUDGEMENT, rows.judgement),
        ("doubt", schema.doubts, rows.DOUBT, rows.doubt),
        ("label", schema.labels, rows.LABEL, rows.label),
        ("calibration", schema.calibrations, (schema.calibrations.c.body,), rows.calibration),
        ("appointment", schema.appointments, rows.APPOINTMENT, rows.appointment),
        ("command", schema.commands, (schema.commands.c.body,), rows.command),
        ("alert", schema.alerts, tuple(schema.alerts.c), rows.alert),
    )
)
TOKENS = (
    select(schema.tokens)
    .where((_all == 1) | (schema.tokens.c.project == bindparam("project")))
    .order_by(schema.tokens.c.key)
)
STEPS = select(*rows.STEP).where(_p.run == bindparam("run"), _p.step > bindparam("after")).order_by(_p.step).limit(1000)
LEDGER = select(schema.ledger).where(schema.ledger.c.seq > bindparam("after")).order_by(schema.ledger.c.seq).limit(1000)
EDGES = select(func.min(_r.key), func.max(_r.key)).where(_r.run == bindparam("run"))
ROLLOUTS = (
    select(*rows.ROLLOUT, _r.run, _final.c.number)
    .select_from(schema.rollouts.outerjoin(_final, _final.c.key == _r.final))
    .where(_r.run == bindparam("run"), _r.key > bindparam("after"), _r.key <= bindparam("last"))
    .order_by(_r.key)
    .limit(PAGE)
)
EVERY = select(func.count()).select_from(schema.rollouts)
_page = (_r.run == bindparam("run"), _r.key >= bindparam("first"), _r.key <= bindparam("last"))
_below = schema.attempts.join(schema.rollouts, _r.key == _a.rollout)
ATTEMPTS = (
    select(_a.rollout, _a.output, *rows.ATTEMPT).select_from(_below).where(*_page).order_by(_a.rollout, _a.number)
)
SPANS = (
    select(schema.spans)
    .select_from(_below.join(schema.spans, _s.attempt == _a.key))
    .where(*_page)
    .order_by(_s.attempt, _s.seq)
)
SIGNALS = (
    select(schema.signals)
    .select_from(_below.join(schema.signals, _g.attempt == _a.key))
    .where(*_page)
    .order_by(_g.attempt, _g.seq)
)
BUDGETS = (
    select(schema.budgets)
    .select_from(_below.join(schema.budgets, _b.attempt == _a.key))
    .where(*_page)
    .order_by(_b.attempt)
)
BUDGET_EVENTS = (
    select(schema.budget_events)
    .select_from(_below.join(schema.budget_events, _h.attempt == _a.key))
    .where(*_page)
    .order_by(_h.attempt, _h.seq)
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exported:
    """What an export wrote."""

    SCHEMA: ClassVar[int] = 1

    output: str
    lines: Mapping[str, int]  # by kind


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
                for step in _steps(view, *row[:2]):
                    line("step", **asdict(step))
                _write_scorings(view, row, line)
        for body, of in view.all(CHECKPOINTS, everything):
            if run in (None, of):
                line("checkpoint", rows.checkpoint((body,)), run=of)
        if run is None:
            _write_service(view, everything, line)
            _write_of_projects(view, everything, line)
        for entry in _ledger(view):
            if (project is None or entry.project == project) and run in (None, entry.run):
                line("ledger-entry", entry)

    store.db.reading(look, snapshot=True)
    write(json.dumps({"kind": "end", "lines": dict(counted)}) + "\n")
    return dict(counted)


def _write_service(view: Transaction, everything: Mapping[str, Any], line: Callable[..., None]) -> None:
    """What serves belongs to a project, and to no run."""
    for row in view.all(RELEASES, dict(everything)):
        line("release", rows.release(row))
    for row in view.all(TRIALS, dict(everything)):
        key, project, name = row[:3]
        line("trial", rows.trial(row), project=project)
        for found in _after(view, EXPOSURES, key, "", 0):
            line("exposure", rows.exposure(found, name), project=project)
        for found in _after(view, SERVED, key, 0, -1):
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


def _after(view: Transaction, statement: Any, trial: int, after: Any, place: int) -> Iterator[Any]:
    """Rows of a trial, page by page: each goes on after the last one's value in that place."""
    while page := view.all(statement, {"trial": trial, "after": after}):
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
    attempts = _by(0, view.all(ATTEMPTS, params))
    spans, signals = _by(0, view.all(SPANS, params)), _by(0, view.all(SIGNALS, params))
    budgets, events = _by(0, view.all(BUDGETS, params)), _by(0, view.all(BUDGET_EVENTS, params))
    for row in page:
        rollout = rows.rollout(row, run, row[-1])
        line("rollout", rollout)
        for found in attempts.get(row[0], ()):
            attempt = rows.attempt(found[2:], rollout.id)
            line("attempt", attempt, output=None if found[1] is None else from_json(found[1]))
            for values in spans.get(attempt.token, ()):
                line("span", span(values), attempt=attempt.id)
            for values in signals.get(attempt.token, ()):
                line("signal", signal(values), attempt=attempt.id)
            for values in budgets.get(attempt.token, ()):
                line("budget", rows.budget(values, attempt.id))
            for values in events.get(attempt.token, ()):
                line("budget-event", rows.budget_event(values, attempt.id))


def _by(place: int, found: list[Any]) -> dict[int, list[Any]]:
    return {key: list(group) for key, group in groupby(found, key=lambda row: row[place])}


def _steps(view: Transaction, key: int, run: str) -> Iterator[StepRecord]:
    after = -1
    while page := view.all(STEPS, {"run": key, "after": after}):
        yield from (rows.step(row, run) for row in page)
        after = page[-1][0]


def _write_scorings(view: Transaction, run: Any, line: Callable[..., None]) -> None:
    """The scorings of a run, each before its signals."""
    for row in view.all(scorings.OF_RUN, {"run": run[1], "project": run[2]}):
        scoring = rows.scoring(row)
        line("scoring", scoring)
        for rollout, signals in scorings.pages(partial(view.all, scorings.AFTER), row[0]):
            for told in signals:
                line("scored", told, scoring=scoring.name, rollout=rollout)


def _ledger(view: Transaction) -> Iterator[Any]:
    after = 0
    while page := view.all(LEDGER, {"after": after}):
        yield from map(rows.ledger_entry, page)
        after = page[-1][0]
