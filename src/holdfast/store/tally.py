"""Counts and rewards of a run that cost the same at any size: each rollout that is over is counted once, and kept.

Every look reads what is open now (the open ones with the lowest keys), counts on from where it stopped, a bounded part
at a time, and takes in what was open at the last look and is over by now. When something that was counted is open
again, or was between two looks, it counts anew. What is requeued and cancelled between two looks, without an attempt,
stays as it was counted. Rewards that come after the end are read from the ledger. Nothing is written.

On Postgres keys may appear out of order, so there the engine counts all of them, every time.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from sqlalchemy import bindparam, func, literal_column, select

from holdfast.contracts.rollout import DONE, OPEN, OutcomeKind, RolloutState, outcome_kind
from holdfast.store import schema
from holdfast.store.sql import Transaction, from_json

ROWS = 10_000  # counted at one look
INDEXED = 100_000  # of which only the key is read, at one look
HOLES = 4_096  # open rollouts that are told apart; behind the last of them nothing is counted yet
BEHIND = 20_000  # of each status that are over behind the last of those, read anew at every look
LATE = 2_000  # rewards told after the end, taken in at one look
_r, _a, _l = schema.rollouts.c, schema.attempts.c, schema.ledger.c
_mine = _r.run == bindparam("run")
_sums = (func.count(), func.count(_r.reward), func.sum(_r.reward), func.sum(_r.reward * _r.reward))
_behind = (_mine, _r.key > bindparam("after"))
OPENED = (
    select(_r.key)
    .where(_mine, _r.status == bindparam("status"), _r.key > bindparam("after"))
    .order_by(_r.key)
    .limit(bindparam("most"))
)
HELD = select(func.count()).select_from(OPENED.subquery())
NTH = select(_r.key).where(*_behind).order_by(_r.key).limit(1).offset(bindparam("most"))
LAST = select(func.max(_r.key)).where(_mine)
_parts = (_r.status, _r.split, _r.outcome)  # what is counted apart
BETWEEN = select(*_parts, *_sums).where(*_behind, _r.key <= bindparam("to")).group_by(*_parts)
ALL = select(*_parts, *_sums).where(_mine).group_by(*_parts)
COUNTED = select(func.count()).select_from(schema.rollouts).where(*_behind, _r.key <= bindparam("to"))
_beyond = (
    select(_r.split, _r.outcome, _r.reward)
    .where(_mine, _r.status == bindparam("status"), _r.key > bindparam("after"))
    .order_by(_r.key)
    .limit(bindparam("most"))
    .subquery()
)
_paid = _beyond.c.reward
BEYOND = select(
    _beyond.c.split, _beyond.c.outcome, func.count(), func.count(_paid), func.sum(_paid), func.sum(_paid * _paid)
).group_by(_beyond.c.split, _beyond.c.outcome)
ONE = select(*_parts, _r.reward).where(_r.key == bindparam("rollout"))
NAMED = select(_r.key, _r.split).where(_mine, _r.name == bindparam("name"))
# The sum and the order keep SQLite from walking an index of all attempts instead of the newest ones.
CLAIMED = (
    select(_a.rollout)
    .where(_a.key > bindparam("after"), (_a.rollout + literal_column("0")) <= bindparam("to"))
    .order_by(_a.key)
)
RUN = select(_r.run).where(_r.key == bindparam("rollout"))
LAST_CLAIM = select(func.coalesce(func.max(_a.key), 0))
LAST_ENTRY = select(func.coalesce(func.max(_l.seq), 0))
TOLD = (
    select(_l.body)
    .where(_l.run == bindparam("id"), _l.kind == "reward", _l.seq > bindparam("after"))
    .order_by(_l.seq)
    .limit(bindparam("most"))
)


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

    def look(self, view: Transaction, most: int = ROWS) -> Totals:
        """Count on and say what there is. Everything in `view` must be of one moment."""
        if not view.is_sqlite:
            sums: Sums = {}
            for row in view.all(ALL, {"run": self.run}):
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
        low = view.one(LAST, {"run": self.run})[0] or 0
        for status in OPEN:
            last, is_more = 0, True
            while is_more and last <= self.counted_to:  # of what was counted, all that is open is told apart
                keys = view.all(OPENED, {"run": self.run, "status": str(status), "after": last, "most": HOLES})
                found |= {row[0]: str(status) for row in keys}
                is_more = len(keys) == HOLES
                last = keys[-1][0] if is_more else last
            if is_more:
                low = min(low, last)
        return {key: found[key] for key in found if key <= low}, low

    def _is_broken(self, view: Transaction, opened: Mapping[int, str]) -> bool:
        """Whether something that was counted as over is open again, was meanwhile, or is gone."""
        if (view.one(LAST, {"run": self.run})[0] or 0) < self.counted_to or any(
            key <= self.counted_to and key not in self.holes for key in opened
        ):
            return True
        if not self.counted_to:
            return False
        claimed = (row[0] for row in view.all(CLAIMED, {"after": self.claims_to, "to": self.counted_to}))
        others = (view.one(RUN, {"rollout": key}) for key in claimed if key not in self.holes)
        return any(row is not None and row[0] == self.run for row in others)

    def _forget(self) -> None:
        self.counted_to, self.holes, self.sums, self.told_to = 0, frozenset(), {}, 0
        self.rows = self.rows_to = 0

    def _close(self, view: Transaction, opened: Mapping[int, str]) -> frozenset[int]:
        """Take in what is over by now; those that are still open, and too far up to be among the lowest."""
        still = set()
        for key in self.holes - opened.keys():
            row = view.one(ONE, {"rollout": key})
            if row is not None and row[0] in DONE:
                _put(self.sums, (*row[:3], 1, *_reward_sums(row[3])))
            elif row is not None:
                still.add(key)
        self.holes = (self.holes & opened.keys()) | still
        return frozenset(still)

    def _retell(self, view: Transaction) -> None:
        """Rewards that came after what they belong to was counted."""
        if self.counted_to:
            told = view.all(TOLD, {"id": self.id, "after": self.told_to, "most": LATE})
            if len(told) == LATE:
                self._forget()
            for body in (from_json(row[0]) for row in told):
                name = str(body["rollout"]).partition("/")[2]
                row = view.one(NAMED, {"run": self.run, "name": name})
                if row is not None and row[0] <= self.counted_to and row[0] not in self.holes:
                    self._correct(view, row[0], body)
        self.told_to = view.one(LAST_ENTRY, {})[0]

    def _correct(self, view: Transaction, key: int, told: Mapping[str, Any]) -> None:
        """Take out what it was counted as, and count it as it was told since."""
        status, split, outcome, _ = view.one(ONE, {"rollout": key})
        was = told.get("outcome_before", outcome)
        _put(self.sums, (status, split, was, -1, *_reward_sums(told["before"], -1)))
        _put(self.sums, (status, split, told.get("outcome", outcome), 1, *_reward_sums(told["reward"])))

    def _count_on(self, view: Transaction, low: int, most: int) -> None:
        if self.counted_to >= low:
            return
        row = view.one(NTH, {"run": self.run, "after": self.counted_to, "most": most})
        to = low if row is None else min(low, row[0])
        counted = view.all(BETWEEN, {"run": self.run, "after": self.counted_to, "to": to})
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
        last = view.one(LAST, params)[0] or 0
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
            counts[status] = view.one(HELD, params)[0]
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
