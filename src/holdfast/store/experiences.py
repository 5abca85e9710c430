"""What attempts did, read for those who learn from it or judge it: spans, rewards, and the version that acted."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from sqlalchemy import bindparam, select

from holdfast.contracts.errors import NotFound
from holdfast.contracts.experience import Experience, ScoredRollout
from holdfast.contracts.reward import CHECKED, RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Rollout, RolloutState
from holdfast.store import rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction
from holdfast.store.traces import Traces, signal, span
from holdfast.store.views import Views

_r, _a, _s, _g = schema.rollouts.c, schema.attempts.c, schema.spans.c, schema.signals.c
_page = (_r.run == bindparam("run"), _r.key >= bindparam("first"), _r.key <= bindparam("last"))
KEY = select(_r.key).where(_r.run == bindparam("run"), _r.name == bindparam("name"))
DECIDED = (
    select(_r.key, _r.final, *rows.DECIDED)
    .select_from(schema.rollouts.join(schema.attempts, _a.key == _r.final))
    .where(_r.run == bindparam("run"), _r.key > bindparam("after"))
    .order_by(_r.key)
    .limit(bindparam("most"))
)
SIGNALS_OF_PAGE = (
    select(schema.signals)
    .select_from(schema.rollouts.join(schema.signals, _g.attempt == _r.final))
    .where(*_page)
    .order_by(_r.key, _g.seq)
)
SPANS_OF_PAGE = (
    select(schema.spans)
    .select_from(schema.rollouts.join(schema.spans, _s.attempt == _r.final))
    .where(*_page)
    .order_by(_r.key, _s.seq)
)


class Experiences:
    def __init__(self, db: Db, runs: Runs, views: Views, traces: Traces) -> None:
        self._db, self._runs, self._views, self._traces = db, runs, views, traces

    def of(self, rollout_ids: Iterable[str]) -> list[Experience]:
        """From the attempts that decided them, in the given order; those that none decided are left out."""
        found = (self.one(rollout_id) for rollout_id in rollout_ids)
        return [experience for experience in found if experience is not None]

    def one(self, rollout_id: str) -> Experience | None:
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
                    is_final=True,
                    spans=spans,
                    sheet=_sheet(self._traces.sheet(attempt.token), rollout),
                    input=rollout.input,
                    version=models.pop() if len(models) == 1 else None,
                )
        return None

    def decided(
        self, run: str, *, after: str | None = None, most: int = 1000, spans: bool = False
    ) -> list[ScoredRollout]:
        """A page of the rollouts that an attempt decided, in the order they were enqueued, in three statements.

        `after` is the id of the last one that was read; the page after the last is empty.
        """
        params: dict[str, Any] = {"run": self._runs.key(run), "most": most, "after": 0}
        if after is not None:
            params["after"] = self._key(params["run"], run, after)

        def look(view: Transaction) -> list[ScoredRollout]:
            page = view.all(DECIDED, params)
            if not page:
                return []
            edges = {"run": params["run"], "first": page[0][0], "last": page[-1][0]}
            told = _by_attempt(view.all(SIGNALS_OF_PAGE, edges), signal)
            did = _by_attempt(view.all(SPANS_OF_PAGE, edges), span) if spans else {}
            return [
                rows.decided(row[2:], run, signals=tuple(told.get(row[1], ())), spans=tuple(did.get(row[1], ())))
                for row in page
            ]

        return self._db.reading(look, snapshot=True)

    def _key(self, key: int, run: str, rollout_id: str) -> int:
        row = self._db.one(KEY, {"run": key, "name": rollout_id.removeprefix(f"{run}/")})
        if row is None:
            raise NotFound(f"rollout {rollout_id}", why="there is none", remedy="'holdfast rollouts RUN' lists them")
        found: int = row[0]
        return found


def _by_attempt(found: list[Any], read: Any) -> dict[int, list[Any]]:
    made: dict[int, list[Any]] = {}
    for row in found:
        made.setdefault(row[0], []).append(read(row))
    return made


def _sheet(sheet: RewardBreakdown, rollout: Rollout) -> RewardBreakdown:
    """An agent that failed has an outcome: it was not right. Nobody had to score it for that."""
    if rollout.status is not RolloutState.FAILED or any(one.name in CHECKED for one in sheet.signals):
        return sheet
    return RewardBreakdown(signals=(*sheet.signals, RewardTerm(name=CHECKED[0], value=0.0, source="rule:failed")))
