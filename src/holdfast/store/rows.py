"""Rows become records here, and only here."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import fields
from functools import wraps
from operator import itemgetter
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Column, Table

from holdfast.contracts.budget import Assessment, BudgetEvent, BudgetEventKind, Mode, ThinkingBudget, Trigger
from holdfast.contracts.commands import Alert, Command, Severity, Token
from holdfast.contracts.commands import Role as Access
from holdfast.contracts.errors import BadRecord, StoreCorrupt
from holdfast.contracts.experience import ScoredRollout
from holdfast.contracts.flag import Flag
from holdfast.contracts.judgement import (
    Calibration,
    Doubtful,
    EvalItem,
    Grade,
    JudgeAssignment,
    Judgement,
    Label,
    Maker,
    ReviewRequest,
    Role,
)
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.records import decode
from holdfast.contracts.release import Experiment, Exposure, PolicyKind, Release, ServedRequest, Stage
from holdfast.contracts.reward import RewardTerm, Scoring
from holdfast.contracts.rollout import Attempt, AttemptState, Rollout, RolloutState, Split
from holdfast.contracts.run import (
    DesiredState,
    LedgerEntry,
    ResourceVersion,
    RunRecord,
    RunState,
    StepRecord,
    WorkerRecord,
)
from holdfast.contracts.shapes import Unfit, shape
from holdfast.contracts.trace import Span
from holdfast.store import schema
from holdfast.store.sql import from_json

P = ParamSpec("P")
T = TypeVar("T")
Columns = tuple[Column[Any], ...]
Decoder = Callable[[Any], Any]


def _but(table: Table, *names: str) -> Columns:
    """All columns of a table but these, in their order."""
    return tuple(column for column in table.c if column.name not in (*names, schema.CHECKSUM))


ROLLOUT = _but(schema.rollouts, "run", "final")
ATTEMPT = _but(schema.attempts, "rollout", "output")
STEP = _but(schema.steps, "run")
EXPOSURE = _but(schema.exposures, "trial")
SERVED = _but(schema.served, "key", "project", "trial")
JUDGEMENT = _but(schema.judgements, "project", "id")
REVIEW_REQUEST = _but(schema.doubts, "project")
LABEL = _but(schema.labels, "project")
JUDGE_ASSIGNMENT = _but(schema.appointments, "project")
_r, _a = schema.rollouts.c, schema.attempts.c
_scored = (_r.name, _r.input, _r.split, _r.status, _r.metadata, _r.reward, _r.outcome, _r.step, _r.version)
SCORED_ROLLOUT: Columns = (*_scored, _a.output, _a.error)
ASSESSMENT = shape(Assessment)


def whole(read: Callable[P, T]) -> Callable[P, T]:
    """A row that does not make its record is damage to the store, and is called so."""

    @wraps(read)
    def reading(*args: P.args, **kwargs: P.kwargs) -> T:
        try:
            return read(*args, **kwargs)
        except (ArithmeticError, AttributeError, LookupError, TypeError, ValueError, BadRecord, Unfit) as error:
            raise StoreCorrupt(
                f"a stored {read.__name__.replace('_', ' ')}",
                why=f"cannot be read: {type(error).__name__}: {error}",
                remedy="run 'holdfast store check', or restore the store from a copy",
            ) from error

    return reading


def _fields(
    record: type[Any], columns: Iterable[Column[Any]], /, *given: str, **decoders: Decoder
) -> Callable[[Any], dict[str, Any]]:
    """Gives the fields of a record that have a column of their name, but those given; a row may have more columns."""
    known = {field.name for field in fields(record)} - set(given)
    places = {column.name: place for place, column in enumerate(columns) if column.name in known}
    pick, steps = itemgetter(*places.values()), tuple(decoders.items())

    def values(row: Any) -> dict[str, Any]:
        found = dict(zip(places, pick(row), strict=True))
        for name, decoder in steps:
            found[name] = decoder(found[name])
        return found

    return values


def _reader(
    called: str,
    record: type[T],
    columns: Iterable[Column[Any]],
    /,
    *given: str,
    made: Mapping[str, Decoder] | None = None,
    **decoders: Decoder,
) -> Callable[..., T]:
    """Reads a record: fields from columns, those that are given after the row, and those made of the whole row."""
    values, made = _fields(record, columns, *given, **decoders), made or {}

    def read(row: Any, *those: Any) -> T:
        more = {name: make(row) for name, make in made.items()}
        return record(**values(row), **dict(zip(given, those, strict=True)), **more)

    read.__name__ = called
    return whole(read)


def _body_reader(name: str, kind: type[T]) -> Callable[[Any], T]:
    """Reads a record from the column `body`, which holds all of it."""

    def read(row: Any) -> T:
        return decode(kind, from_json(row[0]))

    read.__name__ = name
    return whole(read)


def _or_none(decoder: Decoder) -> Decoder:
    return lambda value: None if value is None else decoder(value)


_json_or_none = _or_none(from_json)
_SPLITS: dict[str | None, Split | None] = {None: None, **{str(split): split for split in Split}}
_ROLLOUT_STATES = {str(state): state for state in RolloutState}
_ATTEMPT_STATES = {str(state): state for state in AttemptState}
_scored_rollout = _fields(
    ScoredRollout,
    SCORED_ROLLOUT,
    input=from_json,
    split=_SPLITS.__getitem__,
    metadata=lambda text: from_json(text) if text else {},
    status=_ROLLOUT_STATES.__getitem__,
    output=_json_or_none,
)
_budget_event = _fields(BudgetEvent, schema.budget_events.c, "attempt", kind=BudgetEventKind)

run = _reader("run", RunRecord, schema.runs.c, state=RunState, wanted=DesiredState, settings=from_json)
scoring = _reader("scoring", Scoring, schema.scorings.c, scorers=from_json)
step = _reader("step", StepRecord, STEP, "run", body=from_json)
resource_version = _reader(
    "resource version",
    ResourceVersion,
    schema.resources.c,
    made={"id": lambda row: f"resources-{row[2]}", "resources": lambda row: from_json(row[4])},
)
release = _reader(
    "release",
    Release,
    schema.releases.c,
    made={"id": lambda row: f"{row[2]}@{row[3]}"},
    kind=PolicyKind,
    stage=Stage,
    is_known_good=bool,
    manifest=from_json,
)
exposure = _reader("exposure", Exposure, EXPOSURE, "trial")
served_request = _reader("served request", ServedRequest, SERVED, "trial", error=bool)
budget = _reader(
    "budget",
    ThinkingBudget,
    schema.budgets.c,
    "attempt",
    assessment=lambda text: ASSESSMENT.decode(from_json(text)),
    escalated_at=from_json,
    mode=_or_none(Mode),
)
token = _reader("token", Token, schema.tokens.c, made={"id": lambda row: f"tok-{row[0]}"}, role=Access)
alert = _reader(
    "alert",
    Alert,
    schema.alerts.c,
    made={"id": lambda row: f"alert-{row[0]}"},
    severity=Severity,
    run=lambda run: run or None,
)
worker = _reader("worker", WorkerRecord, schema.workers.c)
ledger_entry = _reader("ledger_entry", LedgerEntry, schema.ledger.c, body=from_json)
experiment = _reader("trial", Experiment, schema.trials.c, arms=from_json, settings=from_json)
judgement = _reader("judgement", Judgement, JUDGEMENT, grade=_or_none(Grade))
review_request = _reader("doubt", ReviewRequest, REVIEW_REQUEST, reason=Doubtful)
label = _reader("label", Label, LABEL, maker=Maker, holds=_or_none(bool))
judge_assignment = _reader("appointment", JudgeAssignment, JUDGE_ASSIGNMENT, role=Role)
checkpoint = _body_reader("checkpoint", Checkpoint)
flag = _body_reader("flag", Flag)
eval_item = _body_reader("artefact", EvalItem)
calibration = _body_reader("calibration", Calibration)
command = _body_reader("command", Command)


@whole
def rollout(row: Any, run: str, final: int | None = None) -> Rollout:
    """From the columns of ROLLOUT, the run's id, and the number of the attempt that decided it.

    This and `attempt` are written out, because that is twice as fast and every claim reads both.
    """
    name = row[1]
    return Rollout(
        id=f"{run}/{name}",
        run=run,
        name=name,
        input=from_json(row[2]),
        split=_SPLITS[row[3]],
        status=_ROLLOUT_STATES[row[4]],
        priority=row[5],
        max_attempts=row[6],
        timeout_s=row[7],
        resources=row[8],
        metadata=from_json(row[9]) if row[9] else {},
        attempt_count=row[10],
        faults=row[11],
        enqueued_at=row[12],
        ready_at=row[13],
        started_at=row[14],
        ended_at=row[15],
        reason=row[16],
        final_attempt=None if final is None else f"{run}/{name}:attempt-{final}",
        reward=row[17],
        step=row[18],
        version=row[19],
        outcome=row[20],
        max_faults=row[21],
        interruptions=row[22],
    )


@whole
def attempt(row: Any, rollout_id: str) -> Attempt:
    """From the columns of ATTEMPT, and the rollout's id."""
    return Attempt(
        id=f"{rollout_id}:attempt-{row[1]}",
        rollout=rollout_id,
        number=row[1],
        worker=row[2],
        token=row[0],
        status=_ATTEMPT_STATES[row[3]],
        started_at=row[4],
        beat_at=row[5],
        lease_until=row[6],
        deadline=row[7],
        ended_at=row[8],
        error=row[9],
    )


@whole
def output(row: Any) -> Any:
    """From the column of that name."""
    return _json_or_none(row[0])


@whole
def scored_rollout(row: Any, run: str, *, signals: tuple[RewardTerm, ...], spans: tuple[Span, ...]) -> ScoredRollout:
    """From the columns of SCORED_ROLLOUT, the run's id, and what the deciding attempt was given and did."""
    return ScoredRollout(rollout=f"{run}/{row[0]}", signals=signals, spans=spans, **_scored_rollout(row))


@whole
def budget_event(row: Any, attempt: str) -> BudgetEvent:
    """From all columns of `budget_events`, and the attempt's id."""
    rest = from_json(row[8]) if row[8] else {}
    for name, kind in (("mode", Mode), ("trigger", Trigger)):
        if name in rest:
            rest[name] = kind(rest[name])
    return BudgetEvent(attempt=attempt, **_budget_event(row), **rest)
