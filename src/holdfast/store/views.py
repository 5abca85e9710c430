"""Looking at rollouts: pages, filters, counts and reward means, always within one run. Looking changes nothing."""

from __future__ import annotations

from collections.abc import Iterator
from functools import cache
from typing import Any

from sqlalchemy import Select, bindparam, func, select

from holdfast.contracts.errors import NotFound
from holdfast.contracts.rollout import Attempt, OutcomeKind, Rollout, RolloutState, Split, outcome_kind, statuses_of
from holdfast.contracts.run import SplitRewards
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import AT_MOST, among, given

PAGE_SIZE = 1_000
UNFINISHED = ("running", "queuing", "requeuing")
COLUMN = 2**31  # what a column of numbers cannot hold any more
_r, _a = schema.rollouts.c, schema.attempts.c
_mine = given(_r, "run")
_final = schema.attempts.alias("final")
# Rollouts of a run, each with the number of the attempt that decided it at the end.
_rollouts = select(*rows.ROLLOUT, _final.c.number)
ROLLOUTS = _rollouts.select_from(schema.rollouts.outerjoin(_final, _final.c.key == _r.final)).where(_mine)
PAGE = ROLLOUTS.where(_r.key > bindparam("after")).order_by(_r.key).limit(AT_MOST)
OF_STEP = PAGE.where(given(_r, "step"))
BY_NAME = ROLLOUTS.where(given(_r, "name"))
KEY = select(_r.key).where(_mine, given(_r, "name"))
ATTEMPTS = select(*rows.ATTEMPT).where(given(_a, "rollout")).order_by(_a.number)
_attempt = select(*rows.ATTEMPT).select_from(schema.attempts.join(schema.rollouts, _r.key == _a.rollout))
ATTEMPT = _attempt.where(_mine, given(_r, "name"), given(_a, "number"))
OUTPUT = select(_a.output).where(_a.key == bindparam("token"))
COUNTS = select(_r.status, func.count()).where(_mine).group_by(_r.status)
OUTCOMES = select(_r.status, _r.outcome, func.count()).where(_mine).group_by(_r.status, _r.outcome)
REWARDS = select(_r.split, func.count(), func.count(_r.reward), func.avg(_r.reward)).where(_mine).group_by(_r.split)
ANY_OPEN = select(_r.key).where(_mine, given(_r, "status")).limit(1)
ANY_OPEN_IN = ANY_OPEN.where(given(_r, "step"))


class Views:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def rollouts(
        self,
        run: str,
        *,
        most: int = 50,
        after: str | None = None,
        status: RolloutState | None = None,
        split: Split | None = None,
        outcome: OutcomeKind | None = None,
    ) -> list[Rollout]:
        """In the order they were enqueued; `after` is the name of the last one already seen."""
        key = self._runs.key(run)
        params: dict[str, Any] = {"run": key, "most": most, "after": 0, "outcome": outcome, "split": split}
        if outcome is not None:
            fitting = statuses_of(outcome)
            if status is not None and status not in fitting:
                return []
            status = fitting[0] if len(fitting) == 1 else status
        if after is not None:
            params["after"] = self.key(run, after)
        filters = [name for name, value in (("status", status), ("split", split)) if value is not None]
        if outcome is not None and outcome is not OutcomeKind.FAILED:
            filters.append(outcome if outcome in _fits else "outcome")
        found = self._db.all(page_of(*filters), {**params, "status": status})
        return [rows.rollout(row, run, row[-1]) for row in found]

    def every(self, run: str, *, status: RolloutState | None = None, split: Split | None = None) -> Iterator[Rollout]:
        """All of them, read page by page."""
        last = None
        while page := self.rollouts(run, most=PAGE_SIZE, after=last, status=status, split=split):
            yield from page
            last = page[-1].name

    def rollout(self, rollout_id: str) -> Rollout:
        run, _, name = rollout_id.partition("/")
        row = self._db.one(BY_NAME, {"run": self._runs.key(run), "name": name})
        if row is None:
            raise _none(rollout_id)
        return rows.rollout(row, run, row[-1])

    def attempts(self, rollout_id: str) -> list[Attempt]:
        run, _, name = rollout_id.partition("/")
        return [rows.attempt(row, rollout_id) for row in self._db.all(ATTEMPTS, {"rollout": self.key(run, name)})]

    def attempt(self, rollout_id: str, number: int) -> Attempt:
        run, _, name = rollout_id.partition("/")
        row = None
        if number < COLUMN and "\0" not in rollout_id:  # neither can be asked for: Postgres has no such text or number
            row = self._db.one(ATTEMPT, {"run": self._runs.key(run), "name": name, "number": number})
        if row is None:
            raise NotFound(f"attempt {number} at {rollout_id}", why="there is none", remedy="was it ever claimed?")
        return rows.attempt(row, rollout_id)

    def output(self, attempt: Attempt) -> Any:
        """What the agent returned."""
        row = self._db.one(OUTPUT, {"token": attempt.token})
        return None if row is None else rows.output(row)

    def counts(self, run: str) -> dict[RolloutState, int]:
        found = dict(self._db.all(COUNTS, {"run": self._runs.key(run)}))
        return {state: found.get(str(state), 0) for state in RolloutState}

    def outcomes(self, run: str) -> dict[OutcomeKind, int]:
        """Of those that are over: how many were right, wrong and so on."""
        found = dict.fromkeys(OutcomeKind, 0)
        for status, outcome, n in self._db.all(OUTCOMES, {"run": self._runs.key(run)}):
            kind = outcome_kind(RolloutState(status), outcome)
            if kind is not None:
                found[kind] += int(n)
        return found

    def rewards(self, run: str) -> dict[str, SplitRewards]:
        """By split; rollouts without a split stand under "none"."""
        found = self._db.all(REWARDS, {"run": self._runs.key(run)})
        return {
            split or "none": SplitRewards(total=total, rewarded=n, mean_reward=mean)
            for split, total, n, mean in sorted(found, key=str)
        }

    def of_step(self, run: str, step: str) -> list[Rollout]:
        """All rollouts of one durable step, in the order they were enqueued."""
        rollouts: list[Rollout] = []
        params: dict[str, Any] = {"run": self._runs.key(run), "step": step, "most": PAGE_SIZE, "after": 0}
        while page := self._db.all(OF_STEP, params):
            rollouts += [rows.rollout(row, run, row[-1]) for row in page]
            params["after"] = page[-1][0]
        return rollouts

    def is_done(self, run: str, *, step: str | None = None) -> bool:
        """Whether nothing of the run, or of one of its steps, is open any more; it does not count them."""
        params = {"run": self._runs.key(run), "step": step}
        statement = ANY_OPEN if step is None else ANY_OPEN_IN
        # One moment for all three looks: a rollout on its way from one state to another must not slip through.
        return self._db.reading(
            lambda view: all(view.one(statement, {**params, "status": state}) is None for state in UNFINISHED),
            snapshot=True,
        )

    def key(self, run: str, name: str) -> int:
        """The store's number of a rollout: later ones have higher ones."""
        row = self._db.one(KEY, {"run": self._runs.key(run), "name": name})
        if row is None:
            raise _none(f"{run}/{name}")
        key: int = row[0]
        return key


_fits = {
    "status": given(_r, "status"),
    "split": given(_r, "split"),
    "outcome": given(_r, "outcome"),
    OutcomeKind.NOT_CHECKED: _r.outcome.is_(None),
    OutcomeKind.NO_ANSWER: among(_r.status, *statuses_of(OutcomeKind.NO_ANSWER)),
}


@cache
def page_of(*filters: str) -> Select[Any]:
    return PAGE.where(*(_fits[name] for name in filters))


def _none(rollout_id: str) -> NotFound:
    return NotFound(f"rollout {rollout_id}", why="there is none", remedy="'holdfast run rollouts RUN' lists them")
