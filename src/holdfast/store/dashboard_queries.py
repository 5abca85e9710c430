"""Looks that stay quick in a large store: each reads a bounded number of rows by an index, or counts on from the last.

What is counted on (kept in this process, never written): the totals of a run, the decisions about releases and the
steps of learning, both of which are only ever added. Everything else reads the newest rows, so many at most, and says
so. What the numbers mean is the business of those who show them.

A run's totals cost the same at any size: each rollout that is over is counted once, and kept. Every look reads what is
open now (the open ones with the lowest keys), counts on from where it stopped, a bounded part at a time, and takes in
what was open at the last look and is over by now. When something that was counted is open again, or was between two
looks, it counts anew. What is requeued and cancelled between two looks, without an attempt, stays as it was counted.
Rewards that come after the end are read from the ledger. On Postgres keys may appear out of order, so there the engine
counts all of them, every time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, literal_column, select

from holdfast.contracts.budget import Tier
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.rollout import (
    DONE,
    OPEN,
    Attempt,
    OutcomeKind,
    Rollout,
    RolloutState,
    Split,
    outcome_kind,
    statuses_of,
)
from holdfast.contracts.run import LEGACY_STEP, LedgerEntry, SplitRewards, StepRecord
from holdfast.store import rows, schema
from holdfast.store.budgets import BudgetTotals
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import AT_MOST, Transaction, from_json, given, to_json
from holdfast.store.views import ROLLOUTS

SCANNED = 10_000  # rows that a page looks through for what fits
RECENT = 2_048  # newest attempts that the pace is read from
ENTRIES = 20_000  # of the ledger, read on at one look
STEPS = 100  # of learning, read on at one look
LONG = 2_000  # letters of JSON: what is longer is left out of a step
TALLIES, LEARNING = 1_000, 50  # runs whose totals, and whose steps, are kept in this process
BUDGETED = 1_000  # newest rollouts in each state whose budgets are added up
NEWEST = 2**62
_u, _r, _a, _b = schema.runs.c, schema.rollouts.c, schema.attempts.c, schema.budgets.c
_l, _p, _k, _s = schema.ledger.c, schema.steps.c, schema.checkpoints.c, schema.served.c
_g = schema.signals.c
_mine = given(_r, "run")
_before = _r.key < bindparam("before")
LAST_ENTRY = select(func.coalesce(func.max(_l.seq), 0))
ROWS = 10_000  # counted at one look
INDEXED = 100_000  # of which only the key is read, at one look
HOLES = 4_096  # open rollouts that are told apart; behind the last of them nothing is counted yet
BEHIND = 20_000  # of each status that are over behind the last of those, read anew at every look
LATE = 2_000  # rewards told after the end, taken in at one look
_sums = (func.count(), func.count(_r.reward), func.sum(_r.reward), func.sum(_r.reward * _r.reward))
_behind = (_mine, _r.key > bindparam("after"))
OPENED = select(_r.key).where(_mine, given(_r, "status"), _r.key > bindparam("after")).order_by(_r.key).limit(AT_MOST)
OPEN_COUNT = select(func.count()).select_from(OPENED.subquery())
NTH = select(_r.key).where(*_behind).order_by(_r.key).limit(1).offset(bindparam("most"))
LAST_ROLLOUT = select(func.max(_r.key)).where(_mine)
_parts = (_r.status, _r.split, _r.outcome)  # what is counted apart
OVER_BETWEEN = select(*_parts, *_sums).where(*_behind, _r.key <= bindparam("to")).group_by(*_parts)
ALL_PARTS = select(*_parts, *_sums).where(_mine).group_by(*_parts)
COUNTED = select(func.count()).select_from(schema.rollouts).where(*_behind, _r.key <= bindparam("to"))
BY_SPLIT = select(_r.split, func.count(), func.max(_r.key)).where(*_behind).group_by(_r.split)
_beyond_all = select(_r.split, _r.outcome, _r.reward).where(_mine, given(_r, "status"), _r.key > bindparam("after"))
_beyond = _beyond_all.order_by(_r.key).limit(AT_MOST).subquery()
_beyond_paid = _beyond.c.reward
BEYOND = select(
    _beyond.c.split,
    _beyond.c.outcome,
    func.count(),
    func.count(_beyond_paid),
    func.sum(_beyond_paid),
    func.sum(_beyond_paid * _beyond_paid),
).group_by(_beyond.c.split, _beyond.c.outcome)
COUNTED_AS = select(*_parts, _r.reward).where(_r.key == bindparam("rollout"))
NAMED_ROLLOUT = select(_r.key, _r.split).where(_mine, given(_r, "name"))
# The sum and the order keep SQLite from walking an index of all attempts instead of the newest ones.
_claimed = select(_a.rollout).where(_a.key > bindparam("after"), (_a.rollout + literal_column("0")) <= bindparam("to"))
CLAIMED = _claimed.order_by(_a.key)
RUN_OF = select(_r.run).where(_r.key == bindparam("rollout"))
LAST_CLAIM = select(func.coalesce(func.max(_a.key), 0))
_late_rewards = select(_l.body).where(_l.run == bindparam("id"), _l.kind == "reward", _l.seq > bindparam("after"))
LATE_REWARDS = _late_rewards.order_by(_l.seq).limit(AT_MOST)


@dataclass(frozen=True, slots=True, kw_only=True)
class Moments:
    """Of rewards: how many there are, their sum and the sum of their squares."""

    n: int = 0
    total: float = 0.0
    squares: float = 0.0

    def __add__(self, other: Moments) -> Moments:
        return Moments(n=self.n + other.n, total=self.total + other.total, squares=self.squares + other.squares)


@dataclass(frozen=True, slots=True, kw_only=True)
class Totals:
    """A run in numbers, as far as it was counted."""

    counts: Mapping[RolloutState, int]  # those that wait include what is not counted yet
    rewards: Mapping[str, Moments]  # by split; "none": those without one
    sizes: Mapping[str, int]  # rollouts by split that are over, with a reward or without
    outcomes: Mapping[OutcomeKind, int]  # of those that are over
    is_whole: bool  # False: there is more, and the next look counts on


Part = tuple[str, str, str | None]  # a status, a split and an outcome
Sums = dict[Part, tuple[int, Moments]]


@dataclass(slots=True)
class RunTally:
    """What was counted of one run. A look holds the lock."""

    run: int
    id: str
    lock: threading.Lock = field(default_factory=threading.Lock)
    counted_to: int = 0  # every rollout up to this key is in the sums, or a hole
    holes: frozenset[int] = frozenset()  # up to there: those that are open
    sums: Sums = field(default_factory=dict)  # of what is over
    rows: int = 0
    rows_to: int = 0
    claims_to: int = 0
    told_to: int = 0
    splits: dict[str, int] = field(default_factory=dict)  # rollouts, open or over; a split never changes
    splits_to: int = 0

    def by_split(self, view: Transaction) -> Mapping[str, int]:
        """How many there are of each split, whatever became of them; on SQLite each row is read once."""
        if not view.is_sqlite or (view.one(LAST_ROLLOUT, {"run": self.run})[0] or 0) < self.splits_to:
            self.splits, self.splits_to = {}, 0
        for split, n, last in view.all(BY_SPLIT, {"run": self.run, "after": self.splits_to}):
            self.splits[split or "none"] = self.splits.get(split or "none", 0) + n
            self.splits_to = max(self.splits_to, last)
        return dict(self.splits)

    def count(self, view: Transaction, most: int = ROWS) -> Totals:
        """Count on and say what there is. Everything in `view` must be of one moment."""
        if not view.is_sqlite:
            sums: Sums = {}
            for row in view.all(ALL_PARTS, {"run": self.run}):
                _put(sums, row)
            return _summed(sums)
        opened, low = self._opened(view)
        if self._is_broken(view, opened):
            self._forget()
        self._retell(view)  # before anything more is counted: that has its rewards already
        still = self._close(view, opened)
        self._count_on(view, low, most)
        self.holes = still.union(key for key in opened if key <= self.counted_to)
        self.claims_to = view.one(LAST_CLAIM, {})[0]
        return self._totals(view, opened, is_whole=self.counted_to >= low)

    def _opened(self, view: Transaction) -> tuple[dict[int, str], int]:
        """The open ones with the lowest keys, and how far they are all there."""
        found: dict[int, str] = {}
        low = view.one(LAST_ROLLOUT, {"run": self.run})[0] or 0
        for status in OPEN:
            last, is_more = 0, True
            while is_more and (not last or last < self.counted_to):  # all that is open of what was counted
                keys = view.all(OPENED, {"run": self.run, "status": str(status), "after": last, "most": HOLES})
                found |= {row[0]: str(status) for row in keys}
                is_more = len(keys) == HOLES
                last = keys[-1][0] if is_more else last
            if is_more:
                low = min(low, last)
        return {key: found[key] for key in found if key <= low}, low

    def _is_broken(self, view: Transaction, opened: Mapping[int, str]) -> bool:
        """Whether something that was counted as over is open again, was meanwhile, or is gone."""
        if (view.one(LAST_ROLLOUT, {"run": self.run})[0] or 0) < self.counted_to or any(
            key <= self.counted_to and key not in self.holes for key in opened
        ):
            return True
        if not self.counted_to:
            return False
        claimed = (row[0] for row in view.all(CLAIMED, {"after": self.claims_to, "to": self.counted_to}))
        others = (view.one(RUN_OF, {"rollout": key}) for key in claimed if key not in self.holes)
        return any(row is not None and row[0] == self.run for row in others)

    def _forget(self) -> None:
        self.counted_to, self.holes, self.sums, self.told_to = 0, frozenset(), {}, 0
        self.rows = self.rows_to = 0

    def _close(self, view: Transaction, opened: Mapping[int, str]) -> frozenset[int]:
        """Take in what is over by now; those that are still open, and too far up to be among the lowest."""
        still = set()
        for key in self.holes - opened.keys():
            row = view.one(COUNTED_AS, {"rollout": key})
            if row is not None and row[0] in DONE:
                _put(self.sums, (*row[:3], 1, *_reward_sums(row[3])))
            elif row is not None:
                still.add(key)
        self.holes = (self.holes & opened.keys()) | still
        return frozenset(still)

    def _retell(self, view: Transaction) -> None:
        """Rewards that came after what they belong to was counted."""
        if self.counted_to:
            told = view.all(LATE_REWARDS, {"id": self.id, "after": self.told_to, "most": LATE})
            if len(told) == LATE:
                self._forget()
            for body in (from_json(row[0]) for row in told):
                name = str(body["rollout"]).partition("/")[2]
                row = view.one(NAMED_ROLLOUT, {"run": self.run, "name": name})
                if row is not None and row[0] <= self.counted_to and row[0] not in self.holes:
                    self._correct(view, row[0], body)
        self.told_to = view.one(LAST_ENTRY, {})[0]

    def _correct(self, view: Transaction, key: int, told: Mapping[str, Any]) -> None:
        """Take out what it was counted as, and count it as it was told since."""
        status, split, outcome, _ = view.one(COUNTED_AS, {"rollout": key})
        was = told.get("outcome_before", outcome)
        _put(self.sums, (status, split, was, -1, *_reward_sums(told["before"], -1)))
        _put(self.sums, (status, split, told.get("outcome", outcome), 1, *_reward_sums(told["reward"])))

    def _count_on(self, view: Transaction, low: int, most: int) -> None:
        if self.counted_to >= low:
            return
        row = view.one(NTH, {"run": self.run, "after": self.counted_to, "most": most})
        to = low if row is None else min(low, row[0])
        counted = view.all(OVER_BETWEEN, {"run": self.run, "after": self.counted_to, "to": to})
        for row in counted:
            if row[0] in DONE:
                _put(self.sums, row)
        self.counted_to = to

    def _out_of_turn(self, view: Transaction, sums: Sums) -> bool:
        """Add what is over behind the open ones, as rollouts of a high priority are; whether that is all of it."""
        is_whole = True
        for status in map(str, DONE):
            params = {"run": self.run, "status": status, "after": self.counted_to, "most": BEHIND}
            found = view.all(BEYOND, params)
            is_whole &= sum(row[2] for row in found) < BEHIND
            for row in found:
                _put(sums, (status, *row))
        return is_whole

    def _count_rows(self, view: Transaction) -> bool:
        """Count on how many rollouts there are, open or over; whether that is all of them."""
        params = {"run": self.run, "after": self.rows_to, "most": INDEXED - 1}
        row = view.one(NTH, params)
        if row is not None:
            self.rows, self.rows_to = self.rows + INDEXED, row[0]
            return False
        last = view.one(LAST_ROLLOUT, params)[0] or 0
        if last > self.rows_to:
            self.rows += view.one(COUNTED, {**params, "to": last})[0]
            self.rows_to = last
        return True

    def _totals(self, view: Transaction, opened: Mapping[int, str], *, is_whole: bool) -> Totals:
        sums = dict(self.sums)
        if is_whole and len(opened) >= HOLES:
            is_whole = self._out_of_turn(view, sums)
        made = _summed(sums)
        counts = dict(made.counts)
        is_whole &= self._count_rows(view)
        for status in (RolloutState.RUNNING, RolloutState.REQUEUING):
            params = {"run": self.run, "status": str(status), "after": 0, "most": BEHIND}
            counts[status] = view.one(OPEN_COUNT, params)[0]
        counts[RolloutState.QUEUING] = max(0, self.rows - sum(counts.values()))
        return replace(made, counts=counts, is_whole=is_whole)


def _put(sums: Sums, row: Sequence[Any]) -> None:
    status, split, outcome, n, rewarded, total, squares = row
    part = status, split or "none", outcome
    before, kept = sums.get(part, (0, Moments()))
    sums[part] = before + int(n), kept + Moments(n=int(rewarded), total=total or 0.0, squares=squares or 0.0)


def _reward_sums(reward: float | None, sign: int = 1) -> tuple[int, float, float]:
    """One reward, counted in or taken out again: how many, their sum, the sum of their squares."""
    return (0, 0.0, 0.0) if reward is None else (sign, sign * reward, sign * reward * reward)


def _summed(sums: Sums) -> Totals:
    counts, rewards, sizes = dict.fromkeys(RolloutState, 0), dict[str, Moments](), dict[str, int]()
    outcomes = dict.fromkeys(OutcomeKind, 0)
    for (status, split, outcome), (n, paid) in sums.items():
        counts[RolloutState(status)] += n
        rewards[split] = rewards.get(split, Moments()) + paid
        kind = outcome_kind(RolloutState(status), outcome)
        if kind is not None:
            sizes[split] = sizes.get(split, 0) + n
            outcomes[kind] += n
    return Totals(counts=counts, rewards=rewards, sizes=sizes, outcomes=outcomes, is_whole=True)


# Whose an attempt is gets looked up one by one: a join would begin with all rollouts of the project.
_owner_all = select(_u.project).select_from(schema.rollouts.join(schema.runs, _u.key == _r.run))
_owner = _owner_all.where(_r.key == _a.rollout).scalar_subquery()
RECENT_ATTEMPTS = select(_a.started_at, _a.ended_at, _a.status, _owner).order_by(_a.key.desc()).limit(AT_MOST)


def _has(column: Any, part: str) -> Any:
    """Whether the text is in the column, letter by letter: LIKE has wildcards, and in SQLite no capitals."""
    return func.replace(column, bindparam(part), literal_column("''")) != column


@cache
def _fitting(names: frozenset[str]) -> Select[Any]:
    """Among the next rows before a key those that fit, newest first."""
    window = select(_r.key).where(_mine, _before).order_by(_r.key.desc()).limit(bindparam("scanned")).subquery()
    found = ROLLOUTS.join(window, window.c.key == _r.key)
    conditions = {
        "split": given(_r, "split"),
        "text": _has(func.lower(_r.name), "text"),
        "least": _r.reward >= bindparam("least"),
        "most_reward": _r.reward <= bindparam("most_reward"),
        "group": _has(_r.metadata, "group"),
    }
    for name in sorted(names):
        found = found.where(conditions[name])
    return found.order_by(_r.key.desc()).limit(AT_MOST)


PAGE = ROLLOUTS.where(_before).order_by(_r.key.desc()).limit(AT_MOST)
BY_STATUS = PAGE.where(given(_r, "status"))  # there is an index by status, which is walked then
SCORED = BY_STATUS.add_columns(_r.final)
LAST_SCANNED = select(_r.key).where(_mine, _before).order_by(_r.key.desc()).limit(1).offset(bindparam("scanned") - 1)
HELD = (
    select(_r.name, *rows.ATTEMPT)
    .select_from(schema.rollouts.join(schema.attempts, and_(_a.rollout == _r.key, _a.status == "running")))
    .where(_mine, _r.status == "running")
    .order_by(_r.key)
    .limit(AT_MOST)
)
LEDGER = select(schema.ledger).where(_l.seq < bindparam("before")).order_by(_l.seq.desc()).limit(AT_MOST)
LEDGER_OF = LEDGER.where(_l.run == bindparam("id"))
_released = select(schema.ledger).where(_l.seq > bindparam("after"), _l.seq <= bindparam("to"), _l.kind == "release")
RELEASED = _released.order_by(_l.seq)
_kinds = select(_l.kind, func.count())
KINDS = _kinds.where(_l.seq > bindparam("after"), _l.seq <= bindparam("to"), given(_l, "project")).group_by(_l.kind)
STEPS_AFTER = select(*rows.STEP).where(given(_p, "run"), _p.step > bindparam("after")).order_by(_p.step).limit(AT_MOST)
CHECKPOINTS = select(_k.body).where(given(_k, "run")).order_by(_k.key.desc()).limit(AT_MOST)
_window_all = select(_r.key, _r.reward, _r.final).where(_mine, given(_r, "status")).order_by(_r.key.desc())
_window = _window_all.limit(AT_MOST).subquery()
BUDGETS = (
    select(_b.tier, _b.mode, _a.status, _b.calls, _b.escalations, _b.allowed, _b.spent, _b.overspent, _window.c.reward)
    .add_columns(_window.c.final, _a.key)
    .select_from(_window.join(schema.attempts, _a.rollout == _window.c.key).join(schema.budgets, _b.attempt == _a.key))
)
_paid = (
    select(_r.final).where(_mine, _r.status == "succeeded", _before).order_by(_r.key.desc()).limit(AT_MOST).subquery()
)
PAID = select(_paid.c.final)
_signalled = select(func.count(_g.attempt.distinct()))
SIGNALLED = _signalled.select_from(_paid.join(schema.signals, _g.attempt == _paid.c.final)).where(given(_g, "name"))
_asked = (
    select(_s.arm, _s.error, _s.latency_s, _s.success, _s.reward, _s.safety_cost)
    .where(
        _s.trial
        == select(schema.trials.c.key)
        .where(schema.trials.c.project == bindparam("project"), schema.trials.c.name == bindparam("trial"))
        .scalar_subquery(),
        _s.id.not_like(bindparam("unsettled")),  # written while it was under way; it has an outcome of its own
    )
    .order_by(_s.key.desc())
    .limit(AT_MOST)
    .subquery()
)
ASKED = select(
    _asked.c.arm,
    func.count(),
    func.sum(_asked.c.error),
    func.avg(_asked.c.latency_s),
    func.count(_asked.c.success),
    func.coalesce(func.sum(_asked.c.success), 0.0),
    func.avg(_asked.c.reward),
    func.avg(_asked.c.safety_cost),
).group_by(_asked.c.arm)


@dataclass(frozen=True, slots=True, kw_only=True)
class Page:
    rollouts: tuple[tuple[int, Rollout], ...]  # each with its key
    next: int | None  # goes on before this key; None: there is no more


@dataclass(frozen=True, slots=True)
class ArmOutcomes:
    """What came of an arm's newest requests."""

    arm: str
    requests: int
    errors: int
    latency_s: float | None  # mean
    told: int  # of those, with a success or a failure
    succeeded: float
    reward: float | None  # mean
    safety_cost: float | None  # mean


@dataclass(slots=True)
class _Tail:
    """What was read so far of something that is only ever added to."""

    after: int
    rows: list[Any] = field(default_factory=list)
    is_whole: bool = False


class DashboardQueries:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs, self._project = db, runs, runs.project
        self._lock = threading.Lock()
        self._tallies: dict[str, RunTally] = {}
        self._decisions = _Tail(after=0)
        self._kinds: dict[str, int] = {}
        self._steps: dict[str, _Tail] = {}

    def totals(self, run: str, *, most: int = ROWS) -> Totals:
        """By status and split, with rewards; at most so many rollouts are counted on now."""
        tally = self._tally(run)
        with tally.lock:
            return self._db.reading(lambda view: tally.count(view, most), snapshot=True)

    def run_totals(self, run: str) -> tuple[Totals, Mapping[str, SplitRewards]] | None:
        """All of a run and its rewards by split, counted on to the end; None where that cannot be counted on."""
        tally, to = self._tally(run), (-1, -1)

        def look(view: Transaction) -> tuple[Totals, Mapping[str, int]]:
            return tally.count(view), tally.by_split(view)

        with tally.lock:
            while True:
                totals, sizes = self._db.reading(look, snapshot=True)
                if totals.is_whole or to == (to := (tally.counted_to, tally.rows_to)):
                    break
        if not totals.is_whole:  # too much is over behind what is open
            return None
        paid = {split: totals.rewards.get(split, Moments()) for split in sorted(sizes)}
        return totals, {
            split: SplitRewards(total=sizes[split], rewarded=it.n, mean_reward=it.total / it.n if it.n else None)
            for split, it in paid.items()
        }

    def _tally(self, run: str) -> RunTally:
        key = self._runs.key(run)
        with self._lock:
            tally = self._tallies.setdefault(run, RunTally(run=key, id=run))
            _forget_oldest(self._tallies, TALLIES)
        return tally

    def recent_attempts(self, most: int = RECENT) -> list[tuple[float, float | None, str]]:
        """When the newest attempts of the project began, ended and how, the newest first: too many for records."""
        return [row[:3] for row in self._db.all(RECENT_ATTEMPTS, {"most": most}) if row[3] == self._project]

    def page(
        self,
        run: str,
        *,
        most: int = 50,
        before: int | None = None,
        status: RolloutState | None = None,
        outcome: OutcomeKind | None = None,
        split: Split | None = None,
        text: str | None = None,
        least: float | None = None,
        most_reward: float | None = None,
    ) -> Page:
        """Newest first. Of those with a filter, what fits among the next rows: a page may be short and still go on."""
        bound = NEWEST if before is None else before
        params: dict[str, Any] = {"run": self._runs.key(run), "before": bound, "most": most, "scanned": SCANNED}
        filters: dict[str, Any] = {
            "split": None if split is None else str(split),
            "text": text.lower() if text else None,
        }
        filters |= {"least": least, "most_reward": most_reward}
        filters = {name: value for name, value in filters.items() if value is not None}
        if outcome is not None:
            fitting = statuses_of(outcome)
            if len(fitting) > 1 and status is None:
                why = f"may be {' or '.join(fitting)}"
                raise BadInput(f"outcome {outcome}", why=why, remedy="ask for the status instead")
            if status is not None and status not in fitting:
                return Page(rollouts=(), next=None)
            status, filters["outcome"] = status or fitting[0], outcome
        if status is not None:
            return self._by_status(run, {**params, "status": str(status)}, filters)
        if not filters:
            found = self._db.all(PAGE, {**params, "most": most + 1})
            return _page(found[:most], run, found[most - 1][0] if len(found) > most else None)
        found = self._db.all(_fitting(frozenset(filters)), {**params, **filters})
        if len(found) == most:
            return _page(found, run, found[-1][0])
        last = self._db.one(LAST_SCANNED, params)
        return _page(found, run, None if last is None else last[0])

    def _by_status(self, run: str, params: Mapping[str, Any], told: Mapping[str, Any]) -> Page:
        most = params["most"]
        reach = max(most, SCANNED // 4) if told else most
        found = self._db.all(BY_STATUS, {**params, "most": reach + 1})
        window = found[:reach]
        fitting = [row for row in window if _fits(row, told)]
        if len(fitting) > most:
            return _page(fitting[:most], run, fitting[most - 1][0])
        return _page(fitting, run, window[-1][0] if len(found) > reach else None)

    def scored(self, run: str, most: int = 60) -> list[tuple[Rollout, int]]:
        """Those with the highest keys that an attempt decided, newest first, each with that attempt's token."""
        params: dict[str, Any] = {"run": self._runs.key(run), "before": NEWEST, "most": most}
        found = [
            row for status in ("succeeded", "failed") for row in self._db.all(SCORED, {**params, "status": status})
        ]
        found.sort(key=lambda row: -row[0])
        return [(rows.rollout(row, run, row[-2]), row[-1]) for row in found[:most]]

    def held(self, run: str, most: int = 50) -> list[Attempt]:
        """Attempts that run now, the oldest rollouts first."""
        found = self._db.all(HELD, {"run": self._runs.key(run), "most": most})
        return [rows.attempt(row[1:], f"{run}/{row[0]}") for row in found]

    def group(self, run: str, group: str, *, near: int | None = None, most: int = 64) -> Page:
        """The rollouts of a group: looked for before and around a key, else among the newest."""
        key, text = self._runs.key(run), f'"group":{to_json(group)}'
        bound = NEWEST if near is None else near + SCANNED // 2
        params = {"run": key, "before": bound, "group": text, "most": most, "scanned": SCANNED}
        found = self._db.all(_fitting(frozenset(("group",))), params)
        exact = [row for row in found if from_json(row[9]).get("group") == group]
        return _page(exact, run, None)

    def entries(
        self, *, most: int = 50, before: int | None = None, run: str | None = None, kind: str | None = None
    ) -> tuple[list[LedgerEntry], int | None]:
        """Newest first, and where to go on; of a kind, what is found among the next so many entries."""
        params: dict[str, Any] = {"before": NEWEST if before is None else before}
        params["most"] = (SCANNED if kind is not None else most) + 1
        if run is not None:
            params["id"] = run
        found = self._db.all(LEDGER if run is None else LEDGER_OF, params)
        is_more = len(found) == params["most"]
        fitting = [row for row in found[: params["most"] - 1] if row[2] == self._project and kind in (None, row[4])]
        page = fitting[:most]
        if len(fitting) > most:
            return [rows.ledger_entry(row) for row in page], page[-1][0]
        return [rows.ledger_entry(row) for row in page], found[-2][0] if is_more else None

    def decisions(self, policy: str | None = None) -> tuple[list[LedgerEntry], bool]:
        """What the ledger says about releases, oldest first, and whether that is all of it."""
        with self._lock:
            self._read_on()
            tail = self._decisions
            fitting = [row for row in tail.rows if policy is None or row.body.get("policy") == policy]
            return fitting, tail.is_whole

    def kinds(self) -> dict[str, int]:
        """How many entries of each kind the ledger has, as far as it was read."""
        with self._lock:
            self._read_on()
            return dict(self._kinds)

    def _read_on(self) -> None:
        tail = self._decisions
        last = self._db.one(LAST_ENTRY, {})[0]
        params: dict[str, Any] = {"after": tail.after, "to": min(last, tail.after + ENTRIES)}
        if params["to"] > tail.after:
            found = self._db.all(RELEASED, params)
            tail.rows += [rows.ledger_entry(row) for row in found if row[2] == self._project]
            for kind, n in self._db.all(KINDS, {**params, "project": self._project}):
                self._kinds[kind] = self._kinds.get(kind, 0) + int(n)
            tail.after = params["to"]
        tail.is_whole = tail.after >= last

    def steps(self, run: str) -> tuple[list[StepRecord], bool]:
        """Steps of learning without their longest parts, in their order, and whether that is all of them.

        A step of learning names its phase; what only collected or decided does not.
        """
        key = self._runs.key(run)
        with self._lock:
            tail = self._steps.setdefault(run, _Tail(after=-1))
            _forget_oldest(self._steps, LEARNING)
            found = self._db.all(STEPS_AFTER, {"run": key, "after": tail.after, "most": STEPS})
            for row in found:
                whole = rows.step(row, run)
                tail.after = whole.step
                if whole.function == LEGACY_STEP or "phase" in whole.body:
                    tail.rows.append(replace(whole, body=_slim(whole.body)))
            tail.is_whole = len(found) < STEPS
            return list(tail.rows), tail.is_whole

    def checkpoints(self, run: str, most: int = 200) -> list[Checkpoint]:
        """The newest of a run, newest first."""
        found = self._db.all(CHECKPOINTS, {"run": self._runs.key(run), "most": most})
        return [rows.checkpoint(row) for row in found]

    def budgets(self, run: str, most: int = BUDGETED) -> tuple[list[BudgetTotals], dict[str | None, int], list[int]]:
        """By tier and by mode, and their tokens newest first: of the newest rollouts of the run in each state."""
        found = []
        for status in ("succeeded", "failed", "dead", "running"):
            found += self._db.all(BUDGETS, {"run": self._runs.key(run), "status": status, "most": most})
        modes: dict[str | None, int] = {}
        tiers: dict[str, list[Any]] = {}
        for row in found:
            modes[row[1]] = modes.get(row[1], 0) + 1
            tiers.setdefault(row[0], []).append(row)
        tokens = sorted((row[-1] for row in found), reverse=True)
        return [_tier(str(tier), tiers[tier]) for tier in Tier if tier in tiers], modes, tokens

    def signalled(self, run: str, name: str, most: int = 500) -> tuple[int, int]:
        """How many of the newest that succeeded have a signal of this name, and of how many."""
        params = {"run": self._runs.key(run), "before": NEWEST, "most": most, "name": name}
        found: int = self._db.one(SIGNALLED, params)[0]
        return found, len(self._db.all(PAID, params))

    def asked(self, trial: str, most: int = 20_000) -> list[ArmOutcomes]:
        """By arm, of the trial's newest requests."""
        params = {"project": self._project, "trial": trial, "most": most, "unsettled": "%~waiting%"}
        return [ArmOutcomes(*row) for row in self._db.all(ASKED, params)]


def _forget_oldest(kept: dict[str, Any], most: int) -> None:
    """Who is asked for again is read again; what was asked for just now comes last."""
    while len(kept) > most:
        del kept[next(iter(kept))]


def _fits(row: Any, told: Mapping[str, Any]) -> bool:
    reward = row[17]
    return (
        told.get("outcome") in (None, outcome_kind(RolloutState(row[4]), row[20]))
        and told.get("split") in (None, row[3])
        and told.get("text", "") in row[1].lower()
        and ("least" not in told or (reward is not None and reward >= told["least"]))
        and ("most_reward" not in told or (reward is not None and reward <= told["most_reward"]))
    )


def _page(found: list[Any], run: str, after: int | None) -> Page:
    return Page(rollouts=tuple((row[0], rows.rollout(row, run, row[-1])) for row in found), next=after)


def _tier(name: str, some: list[Any]) -> BudgetTotals:
    """As `store.budgets` counts them."""
    sums = dict.fromkeys(BudgetTotals.__slots__[1:], 0)
    for _, _, status, calls, escalations, allowed, spent, overspent, reward, final, key in some:
        has_failed = status not in ("running", "succeeded") or (final == key and reward is not None and reward <= 0)
        sums["budgets"] += 1
        sums["running"] += status == "running"
        sums["failed"] += has_failed
        sums["exhausted"] += spent >= allowed
        sums["calls"] += calls
        sums["escalations"] += escalations
        sums["allowed"] += allowed
        sums["spent"] += spent
        sums["overspent"] += overspent
        sums["waste"] += spent if has_failed else overspent
    return BudgetTotals(name=name, **sums)


def _slim(value: Any, depth: int = 0) -> Any:
    """Without what is too long to be read: per-rollout lists, episodes."""
    if isinstance(value, Mapping):
        return {
            name: _slim(part, depth + 1)
            for name, part in value.items()
            if (depth == 0 and isinstance(part, Mapping)) or len(to_json(part)) <= LONG
        }
    return value
