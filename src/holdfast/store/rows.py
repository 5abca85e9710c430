"""Rows become records here, and only here."""

from __future__ import annotations

from collections.abc import Callable
from functools import wraps
from typing import Any, ParamSpec, TypeVar

from sqlalchemy import Column

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

_r, _a, _s = schema.rollouts.c, schema.attempts.c, schema.served.c
_j, _d, _l, _p = schema.judgements.c, schema.doubts.c, schema.labels.c, schema.appointments.c

ROLLOUT: tuple[Column[Any], ...] = (
    _r.key,
    _r.name,
    _r.input,
    _r.split,
    _r.status,
    _r.priority,
    _r.max_attempts,
    _r.timeout_s,
    _r.resources,
    _r.metadata,
    _r.attempt_count,
    _r.faults,
    _r.enqueued_at,
    _r.ready_at,
    _r.started_at,
    _r.ended_at,
    _r.reason,
    _r.reward,
    _r.step,
    _r.version,
    _r.outcome,
    _r.max_faults,
    _r.interruptions,
)
DECIDED: tuple[Column[Any], ...] = (
    _r.name,
    _r.input,
    _r.split,
    _r.status,
    _r.metadata,
    _r.reward,
    _r.outcome,
    _r.step,
    _r.version,
    _a.output,
    _a.error,
)
ATTEMPT: tuple[Column[Any], ...] = (
    _a.key,
    _a.number,
    _a.worker,
    _a.status,
    _a.started_at,
    _a.beat_at,
    _a.lease_until,
    _a.deadline,
    _a.ended_at,
    _a.error,
)
SERVED: tuple[Column[Any], ...] = (
    _s.id,
    _s.arm,
    _s.unit,
    _s.at,
    _s.error,
    _s.latency_s,
    _s.tokens,
    _s.success,
    _s.reward,
    _s.safety_cost,
)
JUDGEMENT: tuple[Column[Any], ...] = (
    _j.judge,
    _j.criterion,
    _j.prompt,
    _j.artefact,
    _j.grade,
    _j.score,
    _j.why,
    _j.tokens,
    _j.cost,
    _j.latency_s,
    _j.at,
)
DOUBT: tuple[Column[Any], ...] = (_d.artefact, _d.criterion, _d.reason, _d.why, _d.at)
LABEL: tuple[Column[Any], ...] = (
    _l.artefact,
    _l.criterion,
    _l.maker,
    _l.who,
    _l.version,
    _l.holds,
    _l.why,
    _l.at,
)
APPOINTMENT: tuple[Column[Any], ...] = (_p.policy, _p.judge, _p.role, _p.at)
ASSESSMENT = shape(Assessment)
P = ParamSpec("P")
T = TypeVar("T")
_SPLITS: dict[str | None, Split | None] = {None: None, **{str(split): split for split in Split}}
_ROLLOUT_STATES = {str(state): state for state in RolloutState}
_ATTEMPT_STATES = {str(state): state for state in AttemptState}


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


@whole
def rollout(row: Any, run: str, final: int | None = None) -> Rollout:
    """From the columns of ROLLOUT, the run's id, and the number of the attempt that decided it."""
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
    return None if row[0] is None else from_json(row[0])


@whole
def run(row: Any) -> RunRecord:
    """From all columns of `runs` in their order."""
    return RunRecord(
        id=row[1],
        project=row[2],
        kind=row[3],
        state=RunState(row[4]),
        wanted=DesiredState(row[5]),
        model_ref=row[6],
        settings=from_json(row[7]),
        queue_limit=row[8],
        created_at=row[9],
        beat_at=row[10],
        ended_at=row[11],
        error=row[12],
        driver=row[13],
    )


@whole
def resource_version(row: Any) -> ResourceVersion:
    """From all columns of `resources` in their order."""
    return ResourceVersion(
        id=f"resources-{row[2]}",
        project=row[1],
        version=row[2],
        sha256=row[3],
        resources=from_json(row[4]),
        created_at=row[5],
    )


@whole
def checkpoint(row: Any) -> Checkpoint:
    """From the column `body`."""
    return decode(Checkpoint, from_json(row[0]))


@whole
def decided(row: Any, run: str, *, signals: tuple[RewardTerm, ...], spans: tuple[Span, ...]) -> ScoredRollout:
    """From the columns of DECIDED, the run's id, and what the deciding attempt was given and did."""
    name, given, split, status, metadata, reward, outcome, step, version, output, error = row
    return ScoredRollout(
        rollout=f"{run}/{name}",
        input=from_json(given),
        output=None if output is None else from_json(output),
        error=error,
        split=None if split is None else Split(split),
        status=RolloutState(status),
        metadata={} if metadata is None else from_json(metadata),
        reward=reward,
        outcome=outcome,
        step=step,
        version=version,
        signals=signals,
        spans=spans,
    )


@whole
def scoring(row: Any) -> Scoring:
    """From the columns of `scorings` from the run on, in their order."""
    run, name, scorers, who, at, n, sha256 = row
    return Scoring(run=run, name=name, scorers=from_json(scorers), who=who, at=at, rollouts=n, sha256=sha256)


@whole
def step(row: Any, run: str) -> StepRecord:
    """From the columns of `steps` but the run, in their order."""
    return StepRecord(
        run=run,
        step=row[0],
        name=row[1],
        function=row[2],
        inputs_sha256=row[3],
        at=row[4],
        body=from_json(row[5]),
    )


@whole
def worker(row: Any) -> WorkerRecord:
    """From all columns of `workers` in their order."""
    return WorkerRecord(
        id=row[1], host=row[3], pid=row[4], slots=row[5], started_at=row[6], beat_at=row[7], stopped_at=row[8]
    )


@whole
def ledger_entry(row: Any) -> LedgerEntry:
    """From all columns of `ledger` in their order."""
    return LedgerEntry(
        seq=row[0],
        at=row[1],
        project=row[2],
        run=row[3],
        kind=row[4],
        who=row[5],
        body=from_json(row[6]),
        previous=row[7],
        sha256=row[8],
    )


@whole
def release(row: Any) -> Release:
    """From all columns of `releases` in their order."""
    return Release(
        id=f"{row[2]}@{row[3]}",
        project=row[1],
        policy=row[2],
        number=row[3],
        kind=PolicyKind(row[4]),
        source=row[5],
        parent=row[6],
        stage=Stage(row[7]),
        share=row[8],
        is_known_good=bool(row[9]),
        evidence=row[10],
        manifest=from_json(row[11]),
        created_at=row[12],
        changed_at=row[13],
    )


@whole
def trial(row: Any) -> Experiment:
    """From all columns of `trials` in their order."""
    return Experiment(
        name=row[2],
        kind=row[3],
        arms=from_json(row[4]),
        salt=row[5],
        created_at=row[6],
        ended_at=row[7],
        settings=from_json(row[8]),
    )


@whole
def exposure(row: Any, trial: str) -> Exposure:
    """From the columns of `exposures` but the trial, in their order."""
    return Exposure(trial=trial, unit=row[0], arm=row[1], at=row[2])


@whole
def served_request(row: Any, trial: str) -> ServedRequest:
    """From the columns of SERVED, and the trial's name."""
    return ServedRequest(
        id=row[0],
        trial=trial,
        arm=row[1],
        unit=row[2],
        at=row[3],
        error=bool(row[4]),
        latency_s=row[5],
        tokens=row[6],
        success=row[7],
        reward=row[8],
        safety_cost=row[9],
    )


@whole
def flag(row: Any) -> Flag:
    """From the column `body`."""
    return decode(Flag, from_json(row[0]))


@whole
def budget(row: Any, attempt: str) -> ThinkingBudget:
    """From all columns of `budgets` in their order, and the attempt's id."""
    return ThinkingBudget(
        attempt=attempt,
        assessment=ASSESSMENT.decode(from_json(row[2])),
        ceiling=row[3],
        cap=row[4],
        allowed=row[5],
        spent=row[6],
        overspent=row[7],
        calls=row[8],
        escalations=row[9],
        escalated_at=from_json(row[10]),
        mode=None if row[11] is None else Mode(row[11]),
        events=row[12],
        created_at=row[13],
        changed_at=row[14],
    )


@whole
def budget_event(row: Any, attempt: str) -> BudgetEvent:
    """From all columns of `budget_events` in their order, and the attempt's id."""
    rest = from_json(row[8]) if row[8] else {}
    return BudgetEvent(
        attempt=attempt,
        seq=row[1],
        kind=BudgetEventKind(row[2]),
        at=row[3],
        tokens=row[4],
        allowed=row[5],
        spent=row[6],
        overspent=row[7],
        mode=Mode(rest["mode"]) if "mode" in rest else None,
        trigger=Trigger(rest["trigger"]) if "trigger" in rest else None,
        confidence=rest.get("confidence"),
        why=rest.get("why", ""),
    )


@whole
def artefact(row: Any) -> EvalItem:
    """From the column `body`."""
    return decode(EvalItem, from_json(row[0]))


@whole
def judgement(row: Any) -> Judgement:
    """From the columns of JUDGEMENT."""
    return Judgement(
        judge=row[0],
        criterion=row[1],
        prompt=row[2],
        artefact=row[3],
        grade=None if row[4] is None else Grade(row[4]),
        score=row[5],
        why=row[6],
        tokens=row[7],
        cost=row[8],
        latency_s=row[9],
        at=row[10],
    )


@whole
def doubt(row: Any) -> ReviewRequest:
    """From the columns of DOUBT."""
    return ReviewRequest(artefact=row[0], criterion=row[1], reason=Doubtful(row[2]), why=row[3], at=row[4])


@whole
def label(row: Any) -> Label:
    """From the columns of LABEL."""
    return Label(
        artefact=row[0],
        criterion=row[1],
        maker=Maker(row[2]),
        who=row[3],
        version=row[4],
        holds=None if row[5] is None else bool(row[5]),
        why=row[6],
        at=row[7],
    )


@whole
def calibration(row: Any) -> Calibration:
    """From the column `body`."""
    return decode(Calibration, from_json(row[0]))


@whole
def appointment(row: Any) -> JudgeAssignment:
    """From the columns of APPOINTMENT."""
    return JudgeAssignment(policy=row[0], judge=row[1], role=Role(row[2]), at=row[3])


@whole
def token(row: Any) -> Token:
    """From all columns of `tokens` in their order."""
    return Token(
        id=f"tok-{row[0]}",
        label=row[2],
        role=Access(row[3]),
        sha256=row[4],
        created_at=row[5],
        expires_at=row[6],
        revoked_at=row[7],
    )


@whole
def command(row: Any) -> Command:
    """From the column `body`."""
    return decode(Command, from_json(row[0]))


@whole
def alert(row: Any) -> Alert:
    """From all columns of `alerts` in their order."""
    return Alert(
        id=f"alert-{row[0]}",
        code=row[2],
        run=row[3] or None,
        severity=Severity(row[4]),
        message=row[5],
        at=row[6],
        acknowledged_at=row[7],
        acknowledged_by=row[8],
        cleared_at=row[9],
    )
