"""Thinking budgets of attempts: kept under the fence with every change, and counted up for those who ask.

What a budget is worth, and when it grows, is decided elsewhere (`collect.thinking`); here nothing is ever taken back.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any, ClassVar

from sqlalchemy import Select, and_, bindparam, case, func, or_, select

from holdfast.contracts.budget import BudgetChange, BudgetEvent, BudgetEventKind, ThinkingBudget, Tier
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.queue import ATTEMPT_TURN, into_attempt, stale
from holdfast.store.runs import Runs
from holdfast.store.sql import AT_MOST, Transaction, given, plain_text, to_json
from holdfast.store.writer import WriteFuture

_b, _e = schema.budgets.c, schema.budget_events.c
_u, _r, _a = schema.runs.c, schema.rollouts.c, schema.attempts.c
_columns = [column for column in _b if column.name != schema.CHECKSUM]
FIXED = ("attempt", "tier", "assessment", "ceiling", "cap", "created_at", schema.CHECKSUM)


_kept = into_attempt(schema.budgets)
SAVE = _kept.on_conflict_do_update(
    index_elements=["attempt"],
    set_={column.name: _kept.excluded[column.name] for column in _b if column.name not in FIXED},
)
ADD = into_attempt(schema.budget_events)
KEPT = select(*_columns).where(_b.attempt == bindparam("token"))
_source_all = schema.budgets.join(schema.attempts, _a.key == _b.attempt).join(schema.rollouts, _r.key == _a.rollout)
_source = _source_all.join(schema.runs, _u.key == _r.run)
# An attempt that nothing was paid for has failed as much as one that broke off.
_earned_nothing = and_(_r.final == _a.key, _r.reward <= 0)
_failed = or_(and_(_a.status != "running", _a.status != "succeeded"), _earned_nothing)
_known = (_u.id, _r.name, _a.number, _a.status, case((_failed, 1), else_=0))
USES = select(*_columns, *_known).select_from(_source).where(given(_r, "run"))
USE = select(*_columns, *_known).select_from(_source).where(_b.attempt == bindparam("token"))
PAGE = USES.where(_b.attempt < bindparam("before")).order_by(_b.attempt.desc()).limit(AT_MOST)
_ended = select(*_columns, *_known).select_from(_source).where(given(_u, "project"), _a.status != "running")
ENDED: Select[Any] = _ended.order_by(_b.attempt.desc()).limit(AT_MOST)
EVENTS = select(schema.budget_events).where(_e.attempt == bindparam("token")).order_by(_e.seq)


def _sum(value: Any) -> Any:
    return func.coalesce(func.sum(value), 0)


def _where(condition: Any, value: Any = 1, otherwise: Any = 0) -> Any:
    return _sum(case((condition, value), else_=otherwise))


_totals = (
    func.count(),
    _where(_a.status == "running"),
    _where(_failed),
    _where(_b.spent >= _b.allowed),
    _sum(_b.calls),
    _sum(_b.escalations),
    _sum(_b.allowed),
    _sum(_b.spent),
    _sum(_b.overspent),
    _where(_failed, _b.spent, _b.overspent),
)
BY_TIER = select(_b.tier, *_totals).select_from(_source).where(given(_r, "run")).group_by(_b.tier)
BY_MODE = select(_b.mode, func.count()).select_from(_source).where(given(_r, "run")).group_by(_b.mode)
_by_run = select(_u.id, *_totals).select_from(_source).where(given(_u, "project")).group_by(_u.key, _u.id)
BY_RUN: Select[Any] = _by_run.order_by(_u.key.desc()).limit(AT_MOST)
MOST = 2**62


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetUse:
    """A budget, and what came of the attempt it was for."""

    budget: ThinkingBudget
    token: int  # of the attempt
    status: AttemptState
    has_failed: bool  # it broke off, or nothing was paid for it

    @property
    def waste(self) -> int:
        return self.budget.waste(has_failed=self.has_failed)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetTotals:
    """Many budgets, counted up. All but the counts are tokens."""

    SCHEMA: ClassVar[int] = 1

    name: str  # the tier, or the run
    budgets: int
    running: int
    failed: int
    exhausted: int
    calls: int
    escalations: int
    allowed: int
    spent: int
    overspent: int
    waste: int


class Budgets:
    def __init__(self, db: Db, runs: Runs, project: str) -> None:
        self._db, self._runs, self._project = db, runs, project

    def record(self, attempt: Attempt, change: BudgetChange, *, now: float) -> WriteFuture[None]:
        """Keep a running attempt's budget as it is now, and what led there; all of it, or StaleLease.

        Where another process has changed it since, what is new here is counted on top of that.
        """
        fence = {"token": attempt.token, "now": now}

        def operation(tx: Transaction) -> None:
            if tx.one(ATTEMPT_TURN, fence) is None:
                raise stale(tx, attempt, now)
            row, new = tx.one(KEPT, fence), change
            kept = None if row is None else rows.budget(row, attempt.id)
            if kept is not None and not _follows(kept, change):
                new = onto(kept, change)
            tx.run(SAVE, _params(new.budget) | fence)
            for event in new.events:
                tx.run(ADD, _event_params(event) | fence)

        return self._db.write(operation)

    def get(self, token: int) -> BudgetUse | None:
        """That of the attempt with this token."""
        row = self._db.one(USE, {"token": token})
        return None if row is None else _use(row)

    def events(self, use: BudgetUse) -> list[BudgetEvent]:
        found = self._db.all(EVENTS, {"token": use.token})
        return [rows.budget_event(row, use.budget.attempt) for row in found]

    def of_run(self, run: str, *, most: int = 50, before: int | None = None) -> list[BudgetUse]:
        """Newest first; `before` is the token of the last one already seen."""
        params = {"run": self._runs.key(run), "most": most, "before": MOST if before is None else before}
        return [_use(row) for row in self._db.all(PAGE, params)]

    def ended(self, *, most: int = 5000) -> list[BudgetUse]:
        """Of all runs, the newest first; those of running attempts are left out."""
        return [_use(row) for row in self._db.all(ENDED, {"project": self._project, "most": most})]

    def by_tier(self, run: str) -> list[BudgetTotals]:
        """Of the tiers that the run has had, the easiest first."""
        found = {row[0]: _counted(row) for row in self._db.all(BY_TIER, {"run": self._runs.key(run)})}
        return [found[tier] for tier in Tier if tier in found]

    def by_mode(self, run: str) -> Mapping[str | None, int]:
        """How many were held to by what; None: nobody said."""
        return {mode: int(n) for mode, n in self._db.all(BY_MODE, {"run": self._runs.key(run)})}

    def by_run(self, *, most: int = 50) -> list[BudgetTotals]:
        """Of the runs that have any, newest first."""
        return [_counted(row) for row in self._db.all(BY_RUN, {"project": self._project, "most": most})]


def _follows(kept: ThinkingBudget, change: BudgetChange) -> bool:
    """Whether the change was made from the budget as it is kept: who has missed an event has counted fewer of them."""
    after = change.budget
    return (kept.ceiling, kept.cap, kept.events) == (after.ceiling, after.cap, after.events - len(change.events))


def onto(budget: ThinkingBudget, change: BudgetChange) -> BudgetChange:
    """What happened, as it is for a budget on which something else has happened before. It has a tier already."""
    events = []
    for event in change.events:
        tokens = event.tokens
        if event.kind is BudgetEventKind.ALLOCATE:
            continue
        if event.kind is BudgetEventKind.SPEND:
            over = max(0, tokens - budget.left)
            budget = replace(
                budget,
                spent=budget.spent + tokens,
                overspent=budget.overspent + over,
                calls=budget.calls + 1,
                mode=event.mode or budget.mode,
            )
        elif event.kind is BudgetEventKind.ESCALATE:
            tokens = min(tokens, budget.cap - budget.allowed)
            times = {**budget.escalated_at, str(event.trigger): event.at}
            budget = replace(
                budget, allowed=budget.allowed + tokens, escalations=budget.escalations + 1, escalated_at=times
            )
        budget = replace(budget, events=budget.events + 1, changed_at=max(budget.changed_at, event.at))
        standing: dict[str, Any] = {"allowed": budget.allowed, "spent": budget.spent, "overspent": budget.overspent}
        events.append(replace(event, seq=budget.events, tokens=tokens, **standing))
    return BudgetChange(budget=budget, events=tuple(events))


def _counted(row: Any) -> BudgetTotals:
    names = [name for name in BudgetTotals.__slots__ if name != "name"]
    return BudgetTotals(name=row[0], **{name: int(n) for name, n in zip(names, row[1:], strict=True)})


def _use(row: Any) -> BudgetUse:
    *columns, run, name, number, status, has_failed = row
    return BudgetUse(
        budget=rows.budget(columns, f"{run}/{name}:attempt-{number}"),
        token=columns[0],
        status=AttemptState(status),
        has_failed=bool(has_failed),
    )


def _params(budget: ThinkingBudget) -> dict[str, Any]:
    return {
        "tier": budget.tier.value,
        "assessment": to_json(rows.ASSESSMENT.encode(budget.assessment)),
        "escalated_at": to_json(dict(budget.escalated_at)),
        "mode": None if budget.mode is None else budget.mode.value,
        **{name: getattr(budget, name) for name in ("ceiling", "cap", "allowed", "spent", "overspent")},
        **{name: getattr(budget, name) for name in ("calls", "escalations", "events", "created_at", "changed_at")},
    }


def _event_params(event: BudgetEvent) -> dict[str, Any]:
    rest = {name: getattr(event, name) for name in ("mode", "trigger", "confidence")}
    rest = {name: value for name, value in rest.items() if value is not None}
    if event.why:
        rest["why"] = plain_text(event.why)
    return {
        "kind": event.kind.value,
        "body": to_json(rest) if rest else None,
        **{name: getattr(event, name) for name in ("seq", "at", "tokens", "allowed", "spent", "overspent")},
    }
