"""Spans and reward signals of attempts: written under the fence, read back in their own order."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson
from sqlalchemy import bindparam, exists, func, insert, select, update

from holdfast.contracts.errors import BadRecord, Conflict
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Attempt
from holdfast.contracts.shapes import Unfit, shape
from holdfast.contracts.trace import ModelCall, Span, SpanEvent, SpanKind, ToolCall
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.moves import FENCE
from holdfast.store.queue import stale
from holdfast.store.sql import Transaction, from_json, plain_text, to_json
from holdfast.store.writer import WriteFuture


def _fenced_insert(table: Any, **reckoned: Any) -> Any:
    """INSERT … SELECT from the attempt's own row, if the fence lets it through: one statement, no gap."""
    names = [column.name for column in table.c if column.name != "attempt"]
    values = [reckoned.get(name, bindparam(name, type_=table.c[name].type)).label(name) for name in names]
    source = select(schema.attempts.c.key, *values).where(FENCE)
    return insert(table).from_select(["attempt", *names], source)


_s = schema.spans.c
_seq: Any = bindparam("seq")
ADD_SPAN = _fenced_insert(schema.spans)
ADD_SIGNAL = _fenced_insert(schema.signals)
_free = select(func.coalesce(func.max(_s.seq) + 1, _seq)).where(_s.attempt == bindparam("token"), _s.seq >= _seq)
OPEN_SPAN = _fenced_insert(schema.spans, seq=_free.scalar_subquery()).returning(_s.seq)
# Whoever numbers spans of an attempt waits for the others who do: two processes must not give one number twice.
TURN = select(schema.attempts.c.key).where(FENCE).with_for_update(key_share=True)
AMEND_SPAN = (
    update(schema.spans)
    .where(
        _s.attempt == bindparam("token"),
        _s.seq == bindparam("span_seq"),
        _s.ended_at.is_(None),
        exists().where(FENCE),
    )
    .values(name=bindparam("span_name"), ended_at=bindparam("span_end"), body=bindparam("span_body"))
)
SPAN = select(_s.ended_at).where(_s.attempt == bindparam("token"), _s.seq == bindparam("span_seq"))
SPANS = select(schema.spans).where(schema.spans.c.attempt == bindparam("token")).order_by(schema.spans.c.seq)
SIGNALS = select(schema.signals).where(schema.signals.c.attempt == bindparam("token")).order_by(schema.signals.c.seq)
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
            if not tx.is_sqlite:  # which has one writer at a time
                tx.one(TURN, params)
            row = tx.one(OPEN_SPAN, params)
            if row is None:
                raise stale(tx, attempt, now)
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
            {
                "token": attempt.token,
                "now": now,
                "seq": first + place,
                "name": plain_text(signal.name),
                "value": signal.value,
                "weight": signal.weight,
                "source": plain_text(signal.source),
                "turn": signal.turn,
                "feedback": plain_text(signal.feedback),
            }
            for place, signal in enumerate(signals)
        ]
        return self._insert(ADD_SIGNAL, attempt, params, now)

    def spans(self, token: int) -> list[Span]:
        return [span(row) for row in self._db.all(SPANS, {"token": token})]

    def sheet(self, token: int) -> RewardBreakdown:
        return RewardBreakdown(signals=tuple(signal(row) for row in self._db.all(SIGNALS, {"token": token})))

    def _insert(self, statement: Any, attempt: Attempt, params: list[dict[str, Any]], now: float) -> WriteFuture[None]:
        def operation(tx: Transaction) -> None:
            for values in params:
                if tx.run(statement, values).rowcount != 1:
                    raise stale(tx, attempt, now)

        return self._db.write(operation)


_MODEL, _TOOL, _EVENTS = shape(ModelCall), shape(ToolCall), shape(tuple[SpanEvent, ...])
_NOTES = shape(Mapping[str, Any])


@rows.whole
def signal(row: Any) -> RewardTerm:
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
