"""Rewards that come after the end: a signal more on the sheet of the attempt that decided a rollout.

While an attempt runs, its own worker scores it (`traces.score`). Afterwards a signal may be added, never changed: the
same once more is harmless, another value for the same thing is refused. Each is noted in the ledger with who told it,
and the rollout's reward is the sheet's total again, all in one transaction.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sqlalchemy import bindparam, func, insert, select, update

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Refused
from holdfast.contracts.reward import RewardBreakdown, RewardTerm, outcome_of
from holdfast.contracts.rollout import OPEN, Rollout, RolloutState
from holdfast.store import ledger, moves, notifications, schema
from holdfast.store.db import Db
from holdfast.store.experiences import Experiences
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, plain_text
from holdfast.store.traces import SIGNALS, signal
from holdfast.store.views import Views
from holdfast.store.writer import WriteFuture

KIND = "reward"  # of the ledger's entry
_r, _a, _g = schema.rollouts.c, schema.attempts.c, schema.signals.c
ADD = insert(schema.signals).values({column.name: bindparam(column.name) for column in _g})
LAST = select(func.coalesce(func.max(_g.seq), 0)).where(_g.attempt == bindparam("token"))
FINAL = (
    select(_a.key, _a.number, _r.reward, _r.outcome)
    .select_from(schema.rollouts.join(schema.attempts, _a.key == _r.final))
    .where(_r.key == bindparam("rollout"))
)
PAY = (
    update(schema.rollouts)
    .where(_r.key == bindparam("rollout"))
    .values(reward=bindparam("paid"), outcome=bindparam("judged"))
)


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
        told = _plain(told)
        self._check_turn(rollout, told)
        names = {"run": self._runs.key(rollout.run), "name": rollout.name}
        values = {name: getattr(told, name) for name in ("name", "value", "weight", "source", "turn", "feedback")}

        def operation(tx: Transaction) -> Rewarded:
            key: int = tx.one(moves.KEY, names)[0]
            tx.one(moves.STATE, {"rollout": key})  # nobody else changes it until this is done
            found = tx.one(FINAL, {"rollout": key})
            if found is None:
                raise _undecided(rollout)
            token, number, paid, outcome = found
            before = tuple(signal(row) for row in tx.all(SIGNALS, {"token": token}))
            is_new = not _is_there(rollout, before, told)
            signals = (*before, told) if is_new else before
            total = RewardBreakdown(signals=signals).total
            if total is None or not isfinite(total):
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
        found = self._experiences.one(rollout.id)
        turns = 0 if found is None else len(found.calls)
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
    return Refused(f"rollout {rollout.id}", why=why, remedy="'holdfast requeue' gives it another chance")


def _is_there(rollout: Rollout, before: tuple[RewardTerm, ...], told: RewardTerm) -> bool:
    """Whether it was told already; Conflict where it was told otherwise."""
    for one in before:
        if (one.name, one.source, one.turn) == (told.name, told.source, told.turn):
            if (one.value, one.weight) == (told.value, told.weight):
                return True
            where = "" if told.turn is None else f" at turn {told.turn}"
            why = f"{told.source} told {told.name}{where} before: {one.value:g} × {one.weight:g}"
            raise Conflict(
                f"rollout {rollout.id}", why=why, remedy="what was told stands; give it another name or source"
            )
    return False


def _plain(told: RewardTerm) -> RewardTerm:
    """As a column can hold it."""
    return RewardTerm(
        name=plain_text(told.name),
        value=told.value,
        weight=told.weight,
        source=plain_text(told.source),
        turn=told.turn,
        feedback=plain_text(told.feedback),
    )
