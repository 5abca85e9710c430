"""The queue: rollouts go in, are claimed under a lease, and end exactly once.

First in, first out, higher priority first; a retried rollout keeps its place. Every claim starts a new attempt whose
key is the fencing token: a beat, a span, a reward or a finish finds its row only while that attempt still runs and its
lease lasts, so a worker that was written off cannot write. Who waits, and for how long, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import Any

from holdfast.contracts.errors import BadRecord, Conflict, IllegalMove, NotFound, QueueFull, StaleLease
from holdfast.contracts.rollout import (
    OPEN,
    Attempt,
    AttemptState,
    Backoff,
    Claim,
    Rollout,
    RolloutState,
    Task,
    move,
)
from holdfast.contracts.run import DesiredState
from holdfast.store import moves, notifications, rows
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import Transaction, canonical, plain_text, to_json
from holdfast.store.writer import WriteFuture

CLOCKS_S = 60.0  # clocks may disagree by so much; a time further ahead comes from a clock that has been set back since


@dataclass(frozen=True, slots=True)
class Beats:
    """What a worker learns from a beat."""

    alive: frozenset[int]  # tokens that still hold their rollouts; the others must stop
    wanted: DesiredState


class Queue:
    def __init__(self, db: Db, runs: Runs) -> None:
        self._db, self._runs = db, runs

    def enqueue(self, run: str, tasks: Iterable[Task], *, now: float, up_to: bool = False) -> WriteFuture[int]:
        """Put tasks in; the number taken, all of them or QueueFull, or with `up_to` as many as there is room for.

        A task whose name is there already with the same content counts as taken: calling again is safe.
        """
        key, limit = self._runs.key(run), self._runs.queue_limit(run)
        params = [_task_params(task, key, now) for task in tasks]

        def operation(tx: Transaction) -> int:
            room = len(params) if limit is None else _room(tx, key, limit)
            taken = 0
            for values in params:
                if not room and tx.one(moves.SAME_NAME, values) is None:
                    if up_to:
                        break
                    why = f"{len(params)} more would pass its queue limit of {limit}"
                    raise QueueFull(f"run {run}", why=why, remedy="wait until some are claimed")
                if tx.run(moves.ENQUEUE, values).rowcount == 1:
                    room -= 1
                else:
                    _refuse_other_content(tx, run, values)
                    if values["step"] is not None:
                        tx.run(moves.TAKE_IN, values)
                taken += 1
            if taken:
                tx.touch(notifications.QUEUE)
            return taken

        return self._db.write(operation)

    def claim(
        self,
        run: str,
        worker: str,
        *,
        now: float,
        lease_s: float,
        most: int = 1,
        versions: Collection[str] | None = None,
    ) -> WriteFuture[tuple[Claim, ...]]:
        """Take up to `most` rollouts, each as a new attempt; none while the run is not wanted running.

        With `versions`, only those that carry one of them: others are left to whoever can answer for them.
        """
        key = self._runs.key(run)
        given: dict[str, Any] = {"run": key, "most": most, "now": now}
        if versions is not None:
            given |= {"versions": f"{moves.MARK}{moves.MARK.join(versions)}{moves.MARK}", "mark": moves.MARK}

        def operation(tx: Transaction) -> tuple[Claim, ...]:
            take = moves.TAKE if versions is None else moves.TAKE_OF_VERSIONS
            tx.run(moves.RIPEN, {"run": key, "now": now})
            taken = tx.all(take, given)
            if not taken and tx.run(moves.RIPEN_AHEAD, {"run": key, "trusted": now + CLOCKS_S}).rowcount:
                taken = tx.all(take, given)
            if not taken:
                return ()
            taken.sort(key=lambda row: (-row[5], row[0]))
            tx.touch(notifications.ROOM)
            return tuple(_start(tx, rows.rollout(row, run), row[0], worker, now, lease_s) for row in taken)

        return self._db.write(operation)

    def beat(self, run: str, tokens: Sequence[int], *, now: float, lease_s: float) -> WriteFuture[Beats]:
        """Renew leases; learn which attempts are lost and what the operator wants."""
        key, held = self._runs.key(run), tuple(tokens)

        def operation(tx: Transaction) -> Beats:
            until = now + lease_s
            alive = frozenset(
                token for token in held if tx.one(moves.BEAT, {"token": token, "now": now, "until": until}) is not None
            )
            return Beats(alive, self._runs.wanted_in(tx, key))

        return self._db.write(operation)

    def finish(
        self,
        attempt: Attempt,
        state: AttemptState,
        *,
        now: float,
        reward: float | None = None,
        outcome: str | None = None,
        output: Any = None,
        error: str | None = None,
        backoff: Backoff = Backoff(),
        chance: float = 0.5,
        after: Sequence[WriteFuture[None]] = (),
    ) -> WriteFuture[RolloutState]:
        """End the attempt and move its rollout on: done, waiting for a retry, given up, or back in the queue.

        `chance` in [0, 1) spreads retries; the answer is where the rollout went. `after` are writes handed over before:
        should one of them fail, so does this, and nobody takes what is left of the attempt for the whole of it.
        """
        text = None if output is None else to_json(output)
        error = plain_text(error)
        if reward is not None and not isfinite(reward):
            raise BadRecord(f"attempt {attempt.id}: reward {reward}", why="must be finite; None is a missing one")

        def operation(tx: Transaction) -> RolloutState:
            for write in after:
                if write.failure is not None:
                    raise write.failure
            ended = {"token": attempt.token, "now": now, "status": str(state), "error": error, "output": text}
            row = tx.one(moves.END_ATTEMPT, ended)
            if row is None:
                raise stale(tx, attempt, now)
            if state is AttemptState.SUCCEEDED:
                paid = {"reward": reward, "outcome": outcome}
                tx.run(moves.SUCCEED, {"rollout": row[0], "now": now, "token": attempt.token, **paid})
                tx.touch(notifications.FINISHED)
                return RolloutState.SUCCEEDED
            if state is AttemptState.RELEASED:
                tx.run(moves.HAND_BACK, {"rollout": row[0]})
                tx.touch(notifications.QUEUE)
                return RolloutState.QUEUING
            return _failed(tx, row[0], attempt.token, state, error, now, backoff.delay_s, chance)

        if state not in ENDS:
            raise IllegalMove(
                f"attempt {attempt.id}",
                why=f"cannot be finished as {state}",
                remedy=f"use one of {', '.join(sorted(ENDS))}",
            )
        return self._db.write(operation)

    def sweep(self, *, now: float, backoff: Backoff = Backoff(), chance: float = 0.5) -> WriteFuture[int]:
        """Write off up to a few hundred attempts whose lease has run out, in any run; call until it answers 0."""

        def operation(tx: Transaction) -> int:
            tx.run(moves.RECALL, {"now": now, "trusted": now + CLOCKS_S})
            expired = tx.all(moves.EXPIRED, {"now": now})
            for token, rollout, deadline, worker, beat_at in expired:
                if deadline is not None and deadline <= now:
                    state, error = AttemptState.TIMEOUT, "reached its wall-clock limit"
                else:
                    state, error = AttemptState.UNRESPONSIVE, f"worker {worker} was silent for {now - beat_at:.1f} s"
                tx.run(moves.EXPIRE, {"token": token, "now": now, "status": str(state), "error": error})
                # Golden-ratio steps spread a whole crowd that one dead worker left behind.
                _failed(tx, rollout, token, state, error, now, backoff.delay_s, (chance + token * 0.6180339887) % 1.0)
            return len(expired)

        return self._db.write(operation)

    def cancel(self, rollout_id: str, *, now: float, why: str) -> WriteFuture[Rollout]:
        """End a rollout that is not done; its attempt, if one runs, is refused from now on and told at its beat."""
        self._runs.key(rollout_id.partition("/")[0])  # one that is not there is refused before it is handed over
        return self._db.write(lambda tx: self.cancel_in(tx, rollout_id, now=now, why=why))

    def cancel_in(self, tx: Transaction, rollout_id: str, *, now: float, why: str) -> Rollout:
        key, holder = self._moving(tx, rollout_id, RolloutState.CANCELLED)
        _cancel(tx, key, holder, now, why)
        return self._moved(tx, rollout_id, key)

    def requeue(self, rollout_id: str, *, now: float) -> WriteFuture[Rollout]:
        """Give a failed, dead or cancelled rollout a fresh set of attempts."""
        self._runs.key(rollout_id.partition("/")[0])
        return self._db.write(lambda tx: self.requeue_in(tx, rollout_id, now=now))

    def requeue_in(self, tx: Transaction, rollout_id: str, *, now: float) -> Rollout:
        key, _ = self._moving(tx, rollout_id, RolloutState.QUEUING)
        tx.run(moves.REQUEUE, {"rollout": key, "now": now})
        tx.touch(notifications.QUEUE)
        return self._moved(tx, rollout_id, key)

    def cancel_open(self, run: str, *, now: float, why: str) -> WriteFuture[int]:
        """Cancel up to a few hundred open rollouts of a run; call until it answers 0."""
        key = self._runs.key(run)

        def operation(tx: Transaction) -> int:
            found = [
                row[0]
                for state in ("running", "queuing", "requeuing")
                for row in tx.all(moves.OPEN_IN, {"run": key, "status": state})
            ]
            for rollout in found[: moves.SWEEP_LIMIT]:
                state, holder = _hold(tx, rollout)
                if state in OPEN:  # it may have ended since it was found
                    _cancel(tx, rollout, holder, now, why)
            return len(found[: moves.SWEEP_LIMIT])

        return self._db.write(operation)

    def next_ripe(self, run: str) -> float | None:
        """When the earliest waiting retry may be claimed."""
        at: float | None = self._db.one(moves.NEXT_RIPE, {"run": self._runs.key(run)})[0]
        return at

    def _moving(self, tx: Transaction, rollout_id: str, to: RolloutState) -> tuple[int, int | None]:
        """The key of a rollout that may go there, and the token that holds it; both stay so in this transaction."""
        run, _, name = rollout_id.partition("/")
        row = tx.one(moves.KEY, {"run": self._runs.key(run), "name": name})
        if row is None:
            remedy = "'holdfast rollouts RUN' lists them"
            raise NotFound(f"rollout {rollout_id}", why="there is none", remedy=remedy)
        state, holder = _hold(tx, row[0])
        ordered(rollout_id, state, to)
        return row[0], holder

    def _moved(self, tx: Transaction, rollout_id: str, key: int) -> Rollout:
        return rows.rollout(tx.one(moves.BY_KEY, {"rollout": key}), rollout_id.partition("/")[0])


def ordered(rollout_id: str, state: RolloutState, to: RolloutState) -> None:
    """Refuse what a person may not order of a rollout."""
    if to is RolloutState.QUEUING and state in OPEN:  # the table's way there is for retries and releases
        raise IllegalMove(f"rollout {rollout_id}", why=f"is {state}, not done", remedy="cancel it first")
    move(rollout_id, state, to)


ENDS = frozenset(AttemptState) - {AttemptState.RUNNING, AttemptState.CANCELLED}
BY_AGENT = frozenset({AttemptState.FAILED, AttemptState.TIMEOUT})
KILLS = 3  # workers that a task may take down before it is the agent's own failure


def _task_params(task: Task, run: int, now: float) -> dict[str, Any]:
    return {
        "run": run,
        "name": task.name,
        "input": to_json(task.input),
        "split": None if task.split is None else task.split.value,
        "priority": task.priority,
        "max_attempts": task.max_attempts,
        "timeout_s": task.timeout_s,
        "resources": task.resources,
        "metadata": to_json(task.metadata) if task.metadata else None,
        "step": task.step,
        "version": task.version,
        "max_faults": task.max_faults,
        "now": now,
    }


def _room(tx: Transaction, run: int, limit: int) -> int:
    tx.run(moves.TURN, {"run": run})
    depth: int = tx.one(moves.DEPTH, {"run": run, "most": limit})[0]
    return limit - depth


def _refuse_other_content(tx: Transaction, run: str, values: dict[str, Any]) -> None:
    found, given = tx.one(moves.SAME_NAME, values), tuple(values[name] for name in moves.CONTENT)
    if tuple(found) != given and _sorted(found) != _sorted(given):
        raise Conflict(
            f"rollout {run}/{values['name']}",
            why="is there already with other content",
            remedy="use another name or another run",
        )


def _sorted(content: Sequence[Any]) -> tuple[Any, ...]:
    """The keys of its two objects in order: {"a": 1, "b": 2} and {"b": 2, "a": 1} are the same."""
    return (canonical(content[0]), *content[1:-1], canonical(content[-1] or "null"))


def _start(tx: Transaction, rollout: Rollout, key: int, worker: str, now: float, lease_s: float) -> Claim:
    deadline = None if rollout.timeout_s is None else now + rollout.timeout_s
    lease_until = now + lease_s if deadline is None else min(now + lease_s, deadline)
    number = rollout.attempt_count
    started = {
        "rollout": key,
        "number": number,
        "worker": worker,
        "now": now,
        "lease_until": lease_until,
        "deadline": deadline,
    }
    token = tx.one(moves.START, started)[0]
    row = (token, number, worker, "running", now, now, lease_until, deadline, None, None)
    return Claim(rollout=rollout, attempt=rows.attempt(row, rollout.id))


def _failed(
    tx: Transaction,
    rollout: int,
    token: int,
    state: AttemptState,
    error: str | None,
    now: float,
    delay_s: Any,
    chance: float,
) -> RolloutState:
    """One more try while there are any left; then it has failed (the agent did) or is dead (infrastructure did).

    What infrastructure ended uses up none of the agent's tries; a task that keeps killing its workers is the agent's.
    """
    tries, max_attempts, interrupted, max_faults = tx.one(moves.TRIES, {"rollout": rollout})
    counting = {"rollout": rollout, "counting": tries + interrupted + 1}
    is_killer = state is AttemptState.UNRESPONSIVE and tx.one(moves.LOST, counting)[0] >= KILLS
    by_agent = state in BY_AGENT or is_killer
    tries, interrupted = tries + by_agent, interrupted + (not by_agent)
    counted = {"rollout": rollout, "tries": tries, "interrupted": interrupted}
    reason = f"{state}: {error}" if error else str(state)
    if not is_killer and (tries < max_attempts if by_agent else interrupted <= max_faults):
        ready_at = now + delay_s(tries if by_agent else interrupted, chance)
        tx.run(moves.RETRY, {**counted, "ready_at": ready_at, "reason": reason})
        tx.touch(notifications.QUEUE)
        return RolloutState.REQUEUING
    if is_killer:
        reason += f" (it took {KILLS} workers down)"
    else:
        reason += f" (attempt {tries} of {max_attempts})" if by_agent else f" (interrupted {interrupted} times)"
    end = RolloutState.FAILED if by_agent else RolloutState.DEAD
    final, outcome = (token, "wrong") if by_agent else (None, None)
    ended = {"status": str(end), "now": now, "reason": reason, "final": final, "outcome": outcome}
    tx.run(moves.GIVE_UP, {**counted, **ended})
    tx.touch(notifications.FINISHED)
    return end


def _hold(tx: Transaction, rollout: int) -> tuple[RolloutState, int | None]:
    """Where a rollout is and the token that holds it, with both kept as they are until the transaction ends."""
    holder = tx.one(moves.HOLDER, {"rollout": rollout})  # attempts before rollouts, as everywhere: no deadlocks
    state = RolloutState(tx.one(moves.STATE, {"rollout": rollout})[0])
    if holder is None and state is RolloutState.RUNNING:  # claimed between the two looks
        holder = tx.one(moves.HOLDER, {"rollout": rollout})
    return state, None if holder is None else holder[0]


def _cancel(tx: Transaction, rollout: int, holder: int | None, now: float, why: str) -> None:
    why = plain_text(why)
    if holder is not None:
        tx.run(moves.EXPIRE, {"token": holder, "now": now, "status": "cancelled", "error": why})
    tx.run(moves.CANCEL, {"rollout": rollout, "now": now, "reason": why})
    for topic in (notifications.FINISHED, notifications.ROOM, notifications.ORDERS):
        tx.touch(topic)


def stale(tx: Transaction, attempt: Attempt, now: float) -> StaleLease:
    """The refusal that says what became of the attempt."""
    row = tx.one(moves.WHERE_IS, {"token": attempt.token})
    if row is None:
        why = "the store has no such attempt"
    elif row[0] != "running":
        why = f"it is {row[0]}" + (f" ({row[3]})" if row[3] else "")
    else:
        why = f"its lease ran out {now - row[1]:.1f} s ago"
    return StaleLease(
        f"attempt {attempt.id}", why=why, remedy="drop this work: the rollout is, or will be, someone else's"
    )
