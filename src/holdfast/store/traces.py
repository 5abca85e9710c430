"""Spans and rewards of attempts: written under the fence, added to after the end, read for learning and judging.

While an attempt runs, its own worker scores it. Afterwards a signal may be added, never changed: the same once more is
harmless, another value for the same thing is refused. Each is noted in the ledger with who sent it, and the rollout's
reward is the total again, all in one transaction.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from math import isfinite
from typing import Any, ClassVar

import orjson
from sqlalchemy import bindparam, exists, func, select, update

from holdfast.contracts.checks import GATED
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Refused
from holdfast.contracts.experience import Experience, ScoredRollout
from holdfast.contracts.reward import CHECKED, RewardBreakdown, RewardTerm, outcome_of
from holdfast.contracts.rollout import OPEN, Attempt, Rollout, RolloutState
from holdfast.contracts.shapes import Unfit, shape
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.store import ledger, notifications, queue, rows, schema
from holdfast.store.db import Db
from holdfast.store.queue import ATTEMPT_TURN, FENCE, fenced_insert, into_attempt, stale
from holdfast.store.runs import Runs
from holdfast.store.sql import AT_MOST, Transaction, changing, from_json, given, into, plain_text, to_json
from holdfast.store.views import Views
from holdfast.store.writer import WriteFuture

KIND = "reward"  # of the ledger's entry
_r, _a, _s, _g = schema.rollouts.c, schema.attempts.c, schema.spans.c, schema.signals.c
_seq: Any = bindparam("seq")
# Plain, and with the fence in it.
ADD_SPAN, ADD_SIGNAL = ((into_attempt(table), fenced_insert(table)) for table in (schema.spans, schema.signals))
_free = select(func.coalesce(func.max(_s.seq) + 1, _seq)).where(_s.attempt == bindparam("token"), _s.seq >= _seq)
OPEN_SPAN = into_attempt(schema.spans, seq=_free.scalar_subquery()).returning(_s.seq)
AMEND_SPAN = (
    update(schema.spans)
    .where(
        _s.attempt == bindparam("token"), _s.seq == bindparam("span_seq"), _s.ended_at.is_(None), exists().where(FENCE)
    )
    .values(name=bindparam("span_name"), ended_at=bindparam("span_end"), body=bindparam("span_body"))
)
SPAN = select(_s.ended_at).where(_s.attempt == bindparam("token"), _s.seq == bindparam("span_seq"))
SPANS = select(schema.spans).where(_s.attempt == bindparam("token")).order_by(_s.seq)
SIGNALS = select(schema.signals).where(_g.attempt == bindparam("token")).order_by(_g.seq)
SCORED = (
    select(_r.key, _r.final, *rows.SCORED_ROLLOUT)
    .select_from(schema.rollouts.join(schema.attempts, _a.key == _r.final))
    .where(given(_r, "run"), _r.key > bindparam("after"))
    .order_by(_r.key)
    .limit(AT_MOST)
)
SIGNALS_OF_PAGE, SPANS_OF_PAGE = (
    select(table)
    .select_from(schema.rollouts.join(table, table.c.attempt == _r.final))
    .where(given(_r, "run"), _r.key >= bindparam("first"), _r.key <= bindparam("last"))
    .order_by(_r.key, table.c.seq)
    for table in (schema.signals, schema.spans)
)
ADD = into(schema.signals)
LAST = select(func.coalesce(func.max(_g.seq), 0)).where(_g.attempt == bindparam("token"))
FINAL = (
    select(_a.key, _a.number, _r.reward, _r.outcome)
    .select_from(schema.rollouts.join(schema.attempts, _a.key == _r.final))
    .where(_r.key == bindparam("rollout"))
)
PAY = changing(schema.rollouts, "rollout", reward=bindparam("paid"), outcome=bindparam("judged"))
_KINDS = {str(kind): kind for kind in SpanKind}


class Traces:
    def __init__(self, db: Db) -> None:
        self._db = db

    def add(self, attempt: Attempt, spans: Iterable[Span], *, now: float) -> WriteFuture[None]:
        """Record spans of a running attempt; all of them, or StaleLease."""
        return self._insert(ADD_SPAN, attempt, [_span_params(span, attempt, now) for span in spans], now)

    def open(self, attempt: Attempt, span: Span, *, now: float, is_json: bool = False) -> WriteFuture[int]:
        """Record a span that has begun; it gets the first free number from its own on, which is the answer.

        With `is_json` all that it says was read from JSON, and is not looked through for what JSON cannot hold.
        """
        params = _span_params(span, attempt, now, is_json=is_json)

        def operation(tx: Transaction) -> int:
            if tx.one(ATTEMPT_TURN, params) is None:
                raise stale(tx, attempt, now)
            row = tx.one(OPEN_SPAN, params)
            assert row is not None
            seq: int = row[0]
            return seq

        return self._db.write(operation)

    def amend(self, attempt: Attempt, span: Span, *, now: float, is_json: bool = False) -> WriteFuture[None]:
        """Put this in place of an open span with its number; with `ended_at` it is closed, and stays as it is."""
        params = {
            "token": attempt.token,
            "now": now,
            "span_seq": span.seq,
            "span_name": plain_text(span.name),
            "span_end": span.ended_at,
            "span_body": _body(span, is_json=is_json),
        }

        def operation(tx: Transaction) -> None:
            if tx.run(AMEND_SPAN, params).rowcount == 1:
                return
            row = tx.one(SPAN, params)
            if row is None or row[0] is not None:
                why = "there is none such" if row is None else "it has ended"
                raise Conflict(f"span {span.seq} of {attempt.id}", why=f"cannot be amended: {why}")
            raise stale(tx, attempt, now)

        return self._db.write(operation)

    def score(
        self, attempt: Attempt, signals: Iterable[RewardTerm], *, now: float, first: int = 1
    ) -> WriteFuture[None]:
        """Record reward signals, numbered from `first`."""
        params = [
            {"token": attempt.token, "now": now, "seq": seq, **signal_values(signal)}
            for seq, signal in enumerate(signals, first)
        ]
        return self._insert(ADD_SIGNAL, attempt, params, now)

    def spans(self, token: int) -> list[Span]:
        return [span(row) for row in self._db.all(SPANS, {"token": token})]

    def breakdown(self, token: int) -> RewardBreakdown:
        return RewardBreakdown(signals=tuple(reward_term(row) for row in self._db.all(SIGNALS, {"token": token})))

    def _insert(
        self, statements: tuple[Any, Any], attempt: Attempt, params: list[dict[str, Any]], now: float
    ) -> WriteFuture[None]:
        """SQLite has one writer at a time, and would copy what it selects three times, for a trigger counts the rows;
        with several writers, one that looked first would have to lock the attempt, and two of them each other."""
        plain, fenced = statements

        def operation(tx: Transaction) -> None:
            if params and tx.is_sqlite and tx.one(ATTEMPT_TURN, params[0]) is None:
                raise stale(tx, attempt, now)
            if params and tx.many(plain if tx.is_sqlite else fenced, params) != len(params):
                raise stale(tx, attempt, now)

        return self._db.write(operation)


_MODEL, _TOOL, _EVENTS = shape(ModelCall), shape(ToolCall), shape(tuple[SpanEvent, ...])
_NOTES = shape(Mapping[str, Any])


def signal_values(signal: RewardTerm) -> dict[str, Any]:
    """A signal as the columns hold it."""
    return {
        "name": plain_text(signal.name),
        "value": float(signal.value),
        "weight": float(signal.weight),
        "source": plain_text(signal.source),
        "turn": signal.turn,
        "feedback": plain_text(signal.feedback),
    }


@rows.whole
def reward_term(row: Any) -> RewardTerm:
    """From all columns of `signals` in their order."""
    return RewardTerm(name=row[2], value=row[3], weight=row[4], source=row[5], turn=row[6], feedback=row[7])


@rows.whole
def span(row: Any) -> Span:
    """From all columns of `spans` in their order."""
    rest = from_json(row[6]) if row[6] else {}
    for name, nested in (("model", _MODEL), ("tool", _TOOL), ("events", _EVENTS)):
        if name in rest:
            rest[name] = nested.decode(rest[name])
    return Span(seq=row[1], kind=_KINDS[row[2]], name=row[3], started_at=row[4], ended_at=row[5], **rest)


def _span_params(span: Span, attempt: Attempt, now: float, *, is_json: bool = False) -> dict[str, Any]:
    return {
        "token": attempt.token,
        "now": now,
        "seq": span.seq,
        "kind": span.kind.value,
        "name": plain_text(span.name),
        "started_at": span.started_at,
        "ended_at": span.ended_at,
        "body": _body(span, is_json=is_json),
    }


def _body(span: Span, *, is_json: bool = False) -> str | None:
    """What has no column, as JSON; the fields at their defaults are left out. BadRecord where it is none."""
    try:
        rest = _rest(span, is_json=is_json)
    except (Unfit, RecursionError) as error:
        why = f"{error.path} {error.why}" if isinstance(error, Unfit) else str(error)
        raise BadRecord(f"span {span.name}", why=why, remedy="use what JSON can hold") from None
    if not rest:
        return None
    try:
        return orjson.dumps(rest).decode()
    except orjson.JSONEncodeError:  # half a character, or a number that is too large for it
        return _body(span) if is_json else to_json(rest)


def _rest(span: Span, *, is_json: bool) -> dict[str, Any]:
    rest: dict[str, Any] = {}
    for name in ("parent", "trace_id", "span_id"):
        if (value := getattr(span, name)) is not None:
            rest[name] = value
    if span.attributes:
        rest["attributes"] = span.attributes if is_json else _NOTES.encode(span.attributes)
    if span.events:
        rest["events"] = _EVENTS.encode(span.events)
    if span.model is not None:
        rest["model"] = span.model if is_json else _MODEL.encode(span.model)  # orjson writes a record as the shape does
    if span.tool is not None:
        rest["tool"] = _TOOL.encode(span.tool)
    return rest


class Experiences:
    def __init__(self, db: Db, runs: Runs, views: Views, traces: Traces) -> None:
        self._db, self._runs, self._views, self._traces = db, runs, views, traces

    def of(self, rollout_ids: Iterable[str]) -> list[Experience]:
        """From the attempts that decided them, in the given order; those that none decided are left out."""
        found = (self.get(rollout_id) for rollout_id in rollout_ids)
        return [experience for experience in found if experience is not None]

    def get(self, rollout_id: str) -> Experience | None:
        """None when no attempt decided it: it is open, was cancelled, or given up."""
        rollout = self._views.rollout(rollout_id)
        for attempt in self._views.attempts(rollout.id):
            if attempt.id == rollout.final_attempt:
                spans = tuple(self._traces.spans(attempt.token))
                models = {span.model.model for span in spans if span.model is not None}
                return Experience(
                    rollout=rollout.id,
                    run=rollout.run,
                    task=str(rollout.metadata.get("group", rollout.name)),
                    split=rollout.split,
                    state=rollout.status,
                    attempt=attempt.id,
                    is_final=True,
                    spans=spans,
                    breakdown=_breakdown(self._traces.breakdown(attempt.token), rollout),
                    input=rollout.input,
                    version=models.pop() if len(models) == 1 else None,
                )
        return None

    def scored(
        self, run: str, *, after: str | None = None, most: int = 1000, spans: bool = False
    ) -> list[ScoredRollout]:
        """A page of the rollouts that an attempt decided, in the order they were enqueued, in three statements.

        `after` is the id of the last one that was read; the page after the last is empty.
        """
        params: dict[str, Any] = {"run": self._runs.key(run), "most": most, "after": 0}
        if after is not None:
            params["after"] = self._views.key(run, after.removeprefix(f"{run}/"))

        def look(view: Transaction) -> list[ScoredRollout]:
            page = view.all(SCORED, params)
            if not page:
                return []
            edges = {"run": params["run"], "first": page[0][0], "last": page[-1][0]}
            signals = _by_attempt(view.all(SIGNALS_OF_PAGE, edges), reward_term)
            did = _by_attempt(view.all(SPANS_OF_PAGE, edges), span) if spans else {}
            return [
                rows.scored_rollout(
                    row[2:], run, signals=tuple(signals.get(row[1], ())), spans=tuple(did.get(row[1], ()))
                )
                for row in page
            ]

        return self._db.reading(look, snapshot=True)


def _by_attempt(found: list[Any], read: Any) -> dict[int, list[Any]]:
    made: dict[int, list[Any]] = {}
    for row in found:
        made.setdefault(row[0], []).append(read(row))
    return made


def _breakdown(breakdown: RewardBreakdown, rollout: Rollout) -> RewardBreakdown:
    """An agent that failed was not right, and its gate is closed. Nobody had to score it for that."""
    if rollout.status is not RolloutState.FAILED or any(signal.name in CHECKED for signal in breakdown.signals):
        return breakdown
    wrong = RewardTerm(name=CHECKED[0], value=0.0, source="rule:failed")
    closed = RewardTerm(name=GATED, value=1.0, weight=0.0, source="guard:failed")
    return RewardBreakdown(signals=(*breakdown.signals, wrong, closed))


@dataclass(frozen=True, slots=True, kw_only=True)
class Rewarded:
    """What became of a signal that was told after the end."""

    SCHEMA: ClassVar[int] = 1

    rollout: str
    attempt: str  # the one that decided it
    signal: RewardTerm
    reward: float  # of the rollout, with it
    is_new: bool  # False: it was told before, and is there once


class Rewards:
    def __init__(self, db: Db, runs: Runs, views: Views, experiences: Experiences) -> None:
        self._db, self._runs, self._views, self._experiences = db, runs, views, experiences

    def attach(self, rollout_id: str, told: RewardTerm, *, who: str, now: float) -> WriteFuture[Rewarded]:
        """Add the signal to the attempt that decided the rollout; Refused where none did, or another value is there."""
        rollout = self._views.rollout(rollout_id)
        _ended(rollout)
        words = {name: plain_text(getattr(told, name)) for name in ("name", "source", "feedback")}
        told = replace(told, **words)  # as a column can hold it
        self._check_turn(rollout, told)
        names = {"run": self._runs.key(rollout.run), "name": rollout.name}
        values = {name: getattr(told, name) for name in ("name", "value", "weight", "source", "turn", "feedback")}

        def operation(tx: Transaction) -> Rewarded:
            key: int = tx.one(queue.KEY, names)[0]
            tx.one(queue.STATE, {"rollout": key})  # nobody else changes it until this is done
            found = tx.one(FINAL, {"rollout": key})
            if found is None:
                raise _undecided(rollout)
            token, number, paid, outcome = found
            before = tuple(reward_term(row) for row in tx.all(SIGNALS, {"token": token}))
            is_new = not _is_there(rollout, before, told)
            signals = (*before, told) if is_new else before
            total = RewardBreakdown(signals=signals).total or 0.0
            if not isfinite(total):
                raise BadRecord(f"rollout {rollout.id}", why=f"its rewards would add up to {total}")
            attempt = f"{rollout.id}:attempt-{number}"
            if is_new:
                tx.run(ADD, {"attempt": token, "seq": tx.one(LAST, {"token": token})[0] + 1, **values})
                judged = "wrong" if rollout.status is RolloutState.FAILED else outcome_of(signals) or outcome
                tx.run(PAY, {"rollout": key, "paid": total, "judged": judged})
                body = {"rollout": rollout.id, "attempt": attempt, **values, "before": paid, "reward": total}
                body |= {"outcome_before": outcome, "outcome": judged}
                ledger.append(tx, self._runs.project, rollout.run, KIND, who, body, now)
                tx.touch(notifications.FINISHED)
            return Rewarded(rollout=rollout.id, attempt=attempt, signal=told, reward=total, is_new=is_new)

        return self._db.write(operation)

    def _check_turn(self, rollout: Rollout, told: RewardTerm) -> None:
        if told.turn is None:
            return
        experience = self._experiences.get(rollout.id)
        turns = 0 if experience is None else len(experience.calls)
        if told.turn >= turns:
            has = "no turns" if turns == 0 else f"{turns} turns, the last is {turns - 1}"
            raise BadInput(f"turn {told.turn}", why=f"rollout {rollout.id} has {has}", remedy="leave the turn out")


def _ended(rollout: Rollout) -> None:
    if rollout.status in OPEN:
        why = f"is {rollout.status}: its own worker scores it when it ends"
        raise Refused(f"rollout {rollout.id}", why=why, remedy="wait for its end")
    if rollout.final_attempt is None:
        raise _undecided(rollout)


def _undecided(rollout: Rollout) -> Refused:
    why = f"is {rollout.status}: no attempt decided it, so there is nothing to reward"
    return Refused(f"rollout {rollout.id}", why=why, remedy="'holdfast control requeue' gives it another chance")


def _is_there(rollout: Rollout, before: tuple[RewardTerm, ...], told: RewardTerm) -> bool:
    """Whether it was told already; Conflict where it was told otherwise."""
    for term in before:
        if (term.name, term.source, term.turn) == (told.name, told.source, told.turn):
            if (term.value, term.weight) == (told.value, told.weight):
                return True
            where = "" if told.turn is None else f" at turn {told.turn}"
            why = f"{told.source} told {told.name}{where} before: {term.value:g} × {term.weight:g}"
            raise Conflict(
                f"rollout {rollout.id}", why=why, remedy="what was told stands; give it another name or source"
            )
    return False
