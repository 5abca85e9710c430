"""Looks that stay quick in a large store: each reads a bounded number of rows by an index, or counts on from the last.

What is counted on (kept in this process, never written): the totals of a run (`tally`), the decisions about releases
and the steps of learning, both of which are only ever added. Everything else reads the newest rows, so many at most,
and says so. What the numbers mean is the business of those who show them.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any

from sqlalchemy import Select, and_, bindparam, func, literal_column, select

from holdfast.contracts.budget import Tier
from holdfast.contracts.errors import BadInput
from holdfast.contracts.policy import Checkpoint
from holdfast.contracts.rollout import Attempt, OutcomeKind, Rollout, RolloutState, Split, outcome_kind, statuses_of
from holdfast.contracts.run import LEGACY_STEP, LedgerEntry, StepRecord
from holdfast.store import rows, schema
from holdfast.store.budgets import BudgetTotals
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import from_json, to_json
from holdfast.store.tally import ROWS, RunTally, Totals
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
_mine = _r.run == bindparam("run")
_before = _r.key < bindparam("before")

# Whose an attempt is gets looked up one by one: a join would begin with all rollouts of the project.
_owner = (
    select(_u.project)
    .select_from(schema.rollouts.join(schema.runs, _u.key == _r.run))
    .where(_r.key == _a.rollout)
    .scalar_subquery()
)
PACE = select(_a.started_at, _a.ended_at, _a.status, _owner).order_by(_a.key.desc()).limit(bindparam("most"))


def _has(column: Any, part: str) -> Any:
    """Whether the text is in the column, letter by letter: LIKE has wildcards, and in SQLite no capitals."""
    return func.replace(column, bindparam(part), literal_column("''")) != column


@cache
def _fitting(names: frozenset[str]) -> Select[Any]:
    """Among the next rows before a key those that fit, newest first."""
    window = select(_r.key).where(_mine, _before).order_by(_r.key.desc()).limit(bindparam("scanned")).subquery()
    found = ROLLOUTS.join(window, window.c.key == _r.key)
    conditions = {
        "split": _r.split == bindparam("split"),
        "text": _has(func.lower(_r.name), "text"),
        "least": _r.reward >= bindparam("least"),
        "most_reward": _r.reward <= bindparam("most_reward"),
        "group": _has(_r.metadata, "group"),
    }
    for name in sorted(names):
        found = found.where(conditions[name])
    return found.order_by(_r.key.desc()).limit(bindparam("most"))


PAGE = ROLLOUTS.where(_before).order_by(_r.key.desc()).limit(bindparam("most"))
BY_STATUS = PAGE.where(_r.status == bindparam("status"))  # there is an index by status, which is walked then
DECIDED = BY_STATUS.add_columns(_r.final)
LAST_SCANNED = select(_r.key).where(_mine, _before).order_by(_r.key.desc()).limit(1).offset(bindparam("scanned") - 1)
HELD = (
    select(_r.name, *rows.ATTEMPT)
    .select_from(schema.rollouts.join(schema.attempts, and_(_a.rollout == _r.key, _a.status == "running")))
    .where(_mine, _r.status == "running")
    .order_by(_r.key)
    .limit(bindparam("most"))
)
LEDGER = select(schema.ledger).where(_l.seq < bindparam("before")).order_by(_l.seq.desc()).limit(bindparam("most"))
LEDGER_OF = LEDGER.where(_l.run == bindparam("id"))
RELEASED = (
    select(schema.ledger)
    .where(_l.seq > bindparam("after"), _l.seq <= bindparam("to"), _l.kind == "release")
    .order_by(_l.seq)
)
KINDS = (
    select(_l.kind, func.count())
    .where(_l.seq > bindparam("after"), _l.seq <= bindparam("to"), _l.project == bindparam("project"))
    .group_by(_l.kind)
)
LAST_ENTRY = select(func.coalesce(func.max(_l.seq), 0))
STEPS_AFTER = (
    select(*rows.STEP)
    .where(_p.run == bindparam("run"), _p.step > bindparam("after"))
    .order_by(_p.step)
    .limit(bindparam("most"))
)
CHECKPOINTS = select(_k.body).where(_k.run == bindparam("run")).order_by(_k.key.desc()).limit(bindparam("most"))
_window = (
    select(_r.key, _r.reward, _r.final)
    .where(_mine, _r.status == bindparam("status"))
    .order_by(_r.key.desc())
    .limit(bindparam("most"))
    .subquery()
)
BUDGETS = (
    select(_b.tier, _b.mode, _a.status, _b.calls, _b.escalations, _b.allowed, _b.spent, _b.overspent, _window.c.reward)
    .add_columns(_window.c.final, _a.key)
    .select_from(_window.join(schema.attempts, _a.rollout == _window.c.key).join(schema.budgets, _b.attempt == _a.key))
)
_paid = (
    select(_r.final)
    .where(_mine, _r.status == "succeeded", _before)
    .order_by(_r.key.desc())
    .limit(bindparam("most"))
    .subquery()
)
PAID = select(_paid.c.final)
SIGNALLED = (
    select(func.count(_g.attempt.distinct()))
    .select_from(_paid.join(schema.signals, _g.attempt == _paid.c.final))
    .where(_g.name == bindparam("name"))
)
_asked = (
    select(_s.arm, _s.error, _s.latency_s, _s.success, _s.reward, _s.safety_cost)
    .where(
        _s.trial
        == select(schema.trials.c.key)
        .where(schema.trials.c.project == bindparam("project"), schema.trials.c.name == bindparam("trial"))
        .scalar_subquery()
    )
    .order_by(_s.key.desc())
    .limit(bindparam("most"))
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
    found: list[Any] = field(default_factory=list)
    is_whole: bool = False


class Figures:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs, self._project = db, runs, runs.project
        self._lock = threading.Lock()
        self._tallies: dict[str, RunTally] = {}
        self._decisions = _Tail(after=0)
        self._kinds: dict[str, int] = {}
        self._steps: dict[str, _Tail] = {}

    def totals(self, run: str, *, most: int = ROWS) -> Totals:
        """By status and split, with rewards; at most so many rollouts are counted on now."""
        key = self._runs.key(run)
        with self._lock:
            tally = self._tallies.setdefault(run, RunTally(run=key, id=run))
            _forget_oldest(self._tallies, TALLIES)
        with tally.lock:
            return self._db.reading(lambda view: tally.look(view, most), snapshot=True)

    def pace(self, most: int = RECENT) -> list[tuple[float, float | None, str]]:
        """When the newest attempts of the project began, ended and how, the newest first: too many for records."""
        return [row[:3] for row in self._db.all(PACE, {"most": most}) if row[3] == self._project]

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
        told: dict[str, Any] = {"split": None if split is None else str(split), "text": text.lower() if text else None}
        told |= {"least": least, "most_reward": most_reward}
        told = {name: value for name, value in told.items() if value is not None}
        if outcome is not None:
            fitting = statuses_of(outcome)
            if len(fitting) > 1 and status is None:
                why = f"may be {' or '.join(fitting)}"
                raise BadInput(f"outcome {outcome}", why=why, remedy="ask for the status instead")
            if status is not None and status not in fitting:
                return Page(rollouts=(), next=None)
            status, told["outcome"] = status or fitting[0], outcome
        if status is not None:
            return self._by_status(run, {**params, "status": str(status)}, told)
        if not told:
            found = self._db.all(PAGE, {**params, "most": most + 1})
            return _page(found[:most], run, found[most - 1][0] if len(found) > most else None)
        found = self._db.all(_fitting(frozenset(told)), {**params, **told})
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

    def decided(self, run: str, most: int = 60) -> list[tuple[Rollout, int]]:
        """Those with the highest keys that an attempt decided, newest first, each with that attempt's token."""
        params: dict[str, Any] = {"run": self._runs.key(run), "before": NEWEST, "most": most}
        found = [
            row for status in ("succeeded", "failed") for row in self._db.all(DECIDED, {**params, "status": status})
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
            fitting = [one for one in tail.found if policy is None or one.body.get("policy") == policy]
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
            tail.found += [rows.ledger_entry(row) for row in found if row[2] == self._project]
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
                    tail.found.append(replace(whole, body=_slim(whole.body)))
            tail.is_whole = len(found) < STEPS
            return list(tail.found), tail.is_whole

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
        params = {"project": self._project, "trial": trial, "most": most}
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
