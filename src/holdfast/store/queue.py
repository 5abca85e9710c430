"""The queue: rollouts go in, are claimed under a lease, and end exactly once.

First in, first out, higher priority first; a retried rollout keeps its place. Every claim starts a new attempt whose
key is the fencing token: a beat, a span, a reward or a finish finds its row only while that attempt still runs, so a
worker that was written off cannot write. A lease that ran out lets others write the attempt off; until somebody has,
its holder may renew it, late as it is. Who waits, and for how long, is the caller's business.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from math import isfinite
from typing import Any

from sqlalchemy import bindparam, case, exists, func, insert, select, update

from holdfast.contracts.errors import BadRecord, Conflict, IllegalMove, NotFound, QueueFull, StaleLease
from holdfast.contracts.rollout import OPEN, Attempt, AttemptState, Backoff, Claim, Rollout, RolloutState, Task, move
from holdfast.contracts.run import DesiredState
from holdfast.store import notifications, rows, schema
from holdfast.store.db import Db
from holdfast.store.runs import Runs
from holdfast.store.sql import AT_MOST, Transaction, among, canonical, changing, given, into, plain_text, to_json
from holdfast.store.writer import WriteFuture

_r, _a = schema.rollouts.c, schema.attempts.c
SWEEP_LIMIT = 500

CONTENT = ("input", "split", "priority", "max_attempts", "timeout_s", "resources", "metadata")


_param: Callable[[str], Any] = bindparam
_is_queuing = _r.status == "queuing"
_is_waiting = _r.status == "requeuing"
_is_wanted = exists().where(schema.runs.c.key == _param("run"), schema.runs.c.wanted == "running")
_is_held = _a.status == "running"
# What belongs to a step that is recorded is over, should somebody requeue it: its policy may be another by now.
_is_of_open_step = ~exists().where(schema.steps.c.run == _r.run, schema.steps.c.name == _r.step)


_becomes = partial(changing, schema.rollouts, "rollout")

# A fence: the attempt still runs, and its time is not up. Whether its lease ran out is for the sweep to say: a driver
# that was paused loses nothing that nobody else has taken.
_is_in_time = _a.deadline.is_(None) | (_a.deadline > _param("now"))
FENCE = (_a.key == _param("token")) & _is_held & _is_in_time
# Whoever numbers spans or counts tokens of an attempt waits for the others who do: its worker and a proxy may both.
ATTEMPT_TURN = select(_a.key).where(FENCE).with_for_update(key_share=True)


def into_attempt(table: Any, **computed: Any) -> Any:
    """INSERT of a row that belongs to an attempt, for whoever has its turn."""
    return into(table, but=("attempt",), attempt=bindparam("token"), **computed)


def fenced_insert(table: Any) -> Any:
    """INSERT … SELECT from the attempt's own row, if the fence lets it through: one statement, which locks nothing."""
    names = [column.name for column in table.c if column.name not in ("attempt", schema.CHECKSUM)]
    values = [bindparam(name, type_=table.c[name].type).label(name) for name in names]
    return insert(table).from_select(["attempt", *names], select(_a.key, *values).where(FENCE))


_queued = {"run": _param("run"), "status": "queuing", "attempt_count": 0, "faults": 0}
_queued |= {"enqueued_at": _param("now"), "ready_at": _param("now")}
_unlike_tasks = [column.name for column in _r if column.name not in Task.__slots__]
ENQUEUE = into(schema.rollouts, "run", "name", but=_unlike_tasks, **_queued)
SAME_NAME = select(*(_r[name] for name in CONTENT)).where(given(_r, "run", "name"))
# Producers of a bounded run take turns, so that together they keep its limit.
TURN = select(schema.runs.c.key).where(schema.runs.c.key == _param("run")).with_for_update(key_share=True)
DEPTH = select(func.count()).select_from(select(_r.key).where(given(_r, "run"), _is_queuing).limit(AT_MOST).subquery())
# Those whose backoff is over may be claimed again.
RIPEN = (
    update(schema.rollouts)
    .where(
        _r.key.in_(
            select(_r.key)
            .where(given(_r, "run"), _is_waiting, _r.ready_at <= _param("now"))
            .order_by(_r.ready_at)
            .limit(SWEEP_LIMIT)
            .with_for_update(skip_locked=True)
        )
    )
    .values(status="queuing")
)
# So may those whose backoff began in what is now the future; seen from the far end, the few first tell it all.
_furthest_all = select(_r.key).where(given(_r, "run"), _is_waiting, _r.ready_at > _param("trusted"))
_furthest = _furthest_all.order_by(_r.ready_at.desc()).limit(SWEEP_LIMIT).with_for_update(skip_locked=True).subquery()
RIPEN_AHEAD = (
    update(schema.rollouts)
    .where(
        _r.key.in_(
            select(_furthest.c.key).where(
                select(func.max(_a.ended_at)).where(_a.rollout == _furthest.c.key).scalar_subquery() > _param("trusted")
            )
        )
    )
    .values(status="queuing")
)
NEXT_RIPE = select(func.min(_r.ready_at)).where(given(_r, "run"), _is_waiting)


def _take(*conditions: Any) -> Any:
    """The heads of the queue become running; locked ones are passed over, another worker has them."""
    return (
        update(schema.rollouts)
        .where(
            _r.key.in_(
                select(_r.key)
                .where(given(_r, "run"), _is_queuing, _is_wanted, _is_of_open_step, *conditions)
                .order_by(_r.priority.desc(), _r.key)
                .limit(AT_MOST)
                .with_for_update(skip_locked=True)
            )
        )
        .values(
            status="running", attempt_count=_r.attempt_count + 1, started_at=func.coalesce(_r.started_at, _param("now"))
        )
        .returning(*rows.ROLLOUT)
    )


MARK = "\n"  # around each of the versions that a worker can answer for, and in none of them
_marked = _param("mark") + _r.version + _param("mark")
TAKE = _take()
TAKE_OF_VERSIONS = _take(func.replace(_param("versions"), _marked, _param("mark")) != _param("versions"))
_started = {"status": "running", "started_at": _param("now"), "beat_at": _param("now")}
START = into(schema.attempts, but=("key", "ended_at", "error", "output"), **_started).returning(_a.key)
# A lease never reaches past the attempt's deadline: one index finds both the silent and the overdue.
BEAT = (
    update(schema.attempts)
    .where(FENCE)
    .values(
        beat_at=_param("now"), lease_until=case((_a.deadline < _param("until"), _a.deadline), else_=_param("until"))
    )
    .returning(_a.key)
)
END_ATTEMPT = (
    update(schema.attempts)
    .where(FENCE)
    .values(status=_param("status"), ended_at=_param("now"), error=_param("error"), output=_param("output"))
    .returning(_a.rollout)
)
SUCCEED = _becomes("reward", "outcome", status="succeeded", ended_at=_param("now"), final=_param("token"), reason=None)
TRIES = select(_r.faults, _r.max_attempts, _r.interruptions, _r.max_faults).where(_r.key == _param("rollout"))
# Of the attempts that count since the rollout was last put into the queue, those that took their worker down; one
# that has shown a sign of life since was only paused.
_w = schema.workers.c
_has_woken = exists().where(_w.id == _a.worker, _w.beat_at > _a.ended_at).correlate(schema.attempts)
# Several that a silent worker held at once cannot be told apart: which of them it died of nobody knows.
_other, NEAR = schema.attempts.alias("other"), 5000  # attempts apart: a window, so that no look reads the whole table
_of_silence = "worker"  # how the error of a swept attempt begins
_had_company = (
    exists()
    .where(_other.c.key > _a.key - NEAR, _other.c.key < _a.key + NEAR, _other.c.rollout != _a.rollout)
    .where(_other.c.worker == _a.worker, func.substr(_a.error, 1, len(_of_silence)) == _of_silence)
    .where(
        (_other.c.status == "running")
        | ((_other.c.status == "unresponsive") & (func.substr(_other.c.error, 1, len(_of_silence)) == _of_silence))
    )
    .correlate(schema.attempts)
)
_counting = (
    select(_a.status, _has_woken.label("has_woken"), _had_company.label("had_company"))
    .where(given(_a, "rollout"), among(_a.status, "failed", "timeout", "fault", "unresponsive"))
    .order_by(_a.number.desc())
    .limit(_param("counting"))
    .subquery()
)
_is_lost = (_counting.c.status == "unresponsive") & ~_counting.c.has_woken & ~_counting.c.had_company
LOST = select(func.count()).select_from(_counting).where(_is_lost)
_counts = {"faults": _param("tries"), "interruptions": _param("interrupted")}
RETRY = _becomes("ready_at", "reason", status="requeuing", **_counts)
GIVE_UP = _becomes("status", "reason", "final", "outcome", ended_at=_param("now"), **_counts)
# A rollout from before there were steps, or of none, is taken in by the step that asks for it.
_take_in = update(schema.rollouts).where(given(_r, "run", "name"), _r.step.is_(None))
TAKE_IN = _take_in.values(step=_param("step"), version=_param("version"))
HAND_BACK = _becomes(status="queuing")
EXPIRED = (
    select(_a.key, _a.rollout, _a.deadline, _a.worker, _a.beat_at, _a.lease_until)
    .where(_is_held, _a.lease_until <= _param("now"))
    .order_by(_a.lease_until)
    .limit(SWEEP_LIMIT)
    .with_for_update(skip_locked=True)
)
# A lease from what is now the future lasts its ordinary length from now on: whoever lives beats in that time.
_recall = update(schema.attempts).where(_is_held, _a.lease_until > _param("trusted"), _a.beat_at > _param("trusted"))
RECALL = _recall.values(beat_at=_param("now"), lease_until=_param("now") + (_a.lease_until - _a.beat_at))
_expire = update(schema.attempts).where(_a.key == _param("token"), _is_held)
EXPIRE = _expire.values(status=_param("status"), ended_at=_param("now"), error=_param("error"))
HOLDER = select(_a.key).where(given(_a, "rollout"), _is_held).with_for_update()
STATE = select(_r.status).where(_r.key == _param("rollout")).with_for_update()
KEY = select(_r.key).where(given(_r, "run", "name"))
CANCEL = _becomes("reason", status="cancelled", ended_at=_param("now"))
_forgotten: dict[str, Any] = dict.fromkeys(("ended_at", "reason", "final", "reward", "outcome"))
REQUEUE = _becomes(status="queuing", faults=0, interruptions=0, ready_at=_param("now"), **_forgotten)
OPEN_IN = select(_r.key).where(given(_r, "run", "status")).limit(SWEEP_LIMIT)
_dead = select(_r.key).where(given(_r, "run"), _r.status == "dead", _is_of_open_step).order_by(_r.key)
DEAD_IN = _dead.limit(SWEEP_LIMIT).with_for_update(skip_locked=True)
WHERE_IS = select(_a.status, _a.deadline, _a.worker, _a.error).where(_a.key == _param("token"))
BY_KEY = select(*rows.ROLLOUT).where(_r.key == _param("rollout"))


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
                if not room and tx.one(SAME_NAME, values) is None:
                    if up_to:
                        break
                    why = f"{len(params)} more would pass its queue limit of {limit}"
                    raise QueueFull(f"run {run}", why=why, remedy="wait until some are claimed")
                if tx.run(ENQUEUE, values).rowcount == 1:
                    room -= 1
                else:
                    _refuse_other_content(tx, run, values)
                    if values["step"] is not None:
                        tx.run(TAKE_IN, values)
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
            given |= {"versions": f"{MARK}{MARK.join(versions)}{MARK}", "mark": MARK}

        def operation(tx: Transaction) -> tuple[Claim, ...]:
            take = TAKE if versions is None else TAKE_OF_VERSIONS
            tx.run(RIPEN, {"run": key, "now": now})
            taken = tx.all(take, given)
            if not taken and tx.run(RIPEN_AHEAD, {"run": key, "trusted": now + CLOCKS_S}).rowcount:
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
                token for token in held if tx.one(BEAT, {"token": token, "now": now, "until": until}) is not None
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
            row = tx.one(END_ATTEMPT, ended)
            if row is None:
                raise stale(tx, attempt, now)
            if state is AttemptState.SUCCEEDED:
                paid = {"reward": reward, "outcome": outcome}
                tx.run(SUCCEED, {"rollout": row[0], "now": now, "token": attempt.token, **paid})
                tx.touch(notifications.FINISHED)
                return RolloutState.SUCCEEDED
            if state is AttemptState.RELEASED:
                tx.run(HAND_BACK, {"rollout": row[0]})
                tx.touch(notifications.QUEUE)
                return RolloutState.QUEUING
            return _failed(tx, row[0], attempt.token, state, error, now, backoff.delay_s, chance)

        if state not in ENDS:
            why, remedy = f"cannot be finished as {state}", f"use one of {', '.join(sorted(ENDS))}"
            raise IllegalMove(f"attempt {attempt.id}", why=why, remedy=remedy)
        return self._db.write(operation)

    def sweep(self, *, now: float, backoff: Backoff = Backoff(), chance: float = 0.5) -> WriteFuture[int]:
        """Write off up to a few hundred attempts whose lease has run out, in any run; call until it answers 0."""

        def operation(tx: Transaction) -> int:
            tx.run(RECALL, {"now": now, "trusted": now + CLOCKS_S})
            expired = tx.all(EXPIRED, {"now": now})
            for token, rollout, deadline, worker, beat_at, lease_until in expired:
                if (
                    deadline is not None and deadline <= lease_until
                ):  # else its worker was silent before its time was up
                    state, error = AttemptState.TIMEOUT, "reached its wall-clock limit"
                else:
                    state, error = (
                        AttemptState.UNRESPONSIVE,
                        f"{_of_silence} {worker} was silent for {now - beat_at:.1f} s",
                    )
                tx.run(EXPIRE, {"token": token, "now": now, "status": str(state), "error": error})
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
        tx.run(REQUEUE, {"rollout": key, "now": now})
        tx.touch(notifications.QUEUE)
        return self._moved(tx, rollout_id, key)

    def requeue_dead(self, run: str, *, now: float) -> WriteFuture[int]:
        """Requeue up to a few hundred rollouts that faults ended, of steps that are open; call until it answers 0."""
        key = self._runs.key(run)

        def operation(tx: Transaction) -> int:
            dead = tx.all(DEAD_IN, {"run": key})
            for row in dead:
                tx.run(REQUEUE, {"rollout": row[0], "now": now})
            if dead:
                tx.touch(notifications.QUEUE)
            return len(dead)

        return self._db.write(operation)

    def cancel_open(self, run: str, *, now: float, why: str) -> WriteFuture[int]:
        """Cancel up to a few hundred open rollouts of a run; call until it answers 0."""
        key = self._runs.key(run)

        def operation(tx: Transaction) -> int:
            found = [
                row[0]
                for state in ("running", "queuing", "requeuing")
                for row in tx.all(OPEN_IN, {"run": key, "status": state})
            ]
            for rollout in found[:SWEEP_LIMIT]:
                state, holder = _hold(tx, rollout)
                if state in OPEN:  # it may have ended since it was found
                    _cancel(tx, rollout, holder, now, why)
            return len(found[:SWEEP_LIMIT])

        return self._db.write(operation)

    def next_ripe(self, run: str) -> float | None:
        """When the earliest waiting retry may be claimed."""
        at: float | None = self._db.one(NEXT_RIPE, {"run": self._runs.key(run)})[0]
        return at

    def _moving(self, tx: Transaction, rollout_id: str, to: RolloutState) -> tuple[int, int | None]:
        """The key of a rollout that may go there, and the token that holds it; both stay so in this transaction."""
        run, _, name = rollout_id.partition("/")
        row = tx.one(KEY, {"run": self._runs.key(run), "name": name})
        if row is None:
            remedy = "'holdfast run rollouts RUN' lists them"
            raise NotFound(f"rollout {rollout_id}", why="there is none", remedy=remedy)
        state, holder = _hold(tx, row[0])
        ordered(rollout_id, state, to)
        return row[0], holder

    def _moved(self, tx: Transaction, rollout_id: str, key: int) -> Rollout:
        return rows.rollout(tx.one(BY_KEY, {"rollout": key}), rollout_id.partition("/")[0])


def ordered(rollout_id: str, state: RolloutState, to: RolloutState) -> None:
    """Refuse what a person may not order of a rollout."""
    if to is RolloutState.QUEUING and state in OPEN:  # the table's way there is for retries and releases
        raise IllegalMove(f"rollout {rollout_id}", why=f"is {state}, not done", remedy="cancel it first")
    move(rollout_id, state, to)


ENDS = frozenset(AttemptState) - {AttemptState.RUNNING, AttemptState.CANCELLED}
BY_AGENT = frozenset({AttemptState.FAILED, AttemptState.TIMEOUT})
KILLS = 3  # workers that a task may take down before it is the agent's own failure


def _task_params(task: Task, run: int, now: float) -> dict[str, Any]:
    plain = ("name", "priority", "max_attempts", "timeout_s", "resources", "step", "version", "max_faults")
    return {
        **{name: getattr(task, name) for name in plain},
        "run": run,
        "input": to_json(task.input),
        "split": None if task.split is None else task.split.value,
        "metadata": to_json(task.metadata) if task.metadata else None,
        "now": now,
    }


def _room(tx: Transaction, run: int, limit: int) -> int:
    tx.run(TURN, {"run": run})
    depth: int = tx.one(DEPTH, {"run": run, "most": limit})[0]
    return limit - depth


def _refuse_other_content(tx: Transaction, run: str, values: dict[str, Any]) -> None:
    found, given = tx.one(SAME_NAME, values), tuple(values[name] for name in CONTENT)
    if tuple(found) != given and _sorted(found) != _sorted(given):
        why, remedy = "is there already with other content", "use another name or another run"
        raise Conflict(f"rollout {run}/{values['name']}", why=why, remedy=remedy)


def _sorted(content: Sequence[Any]) -> tuple[Any, ...]:
    """The keys of its two objects in order: {"a": 1, "b": 2} and {"b": 2, "a": 1} are the same."""
    return (canonical(content[0]), *content[1:-1], canonical(content[-1] or "null"))


def _start(tx: Transaction, rollout: Rollout, key: int, worker: str, now: float, lease_s: float) -> Claim:
    deadline = None if rollout.timeout_s is None else now + rollout.timeout_s
    lease_until = now + lease_s if deadline is None else min(now + lease_s, deadline)
    number = rollout.attempt_count
    started = {"rollout": key, "number": number, "worker": worker, "now": now}
    started |= {"lease_until": lease_until, "deadline": deadline}
    token = tx.one(START, started)[0]
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
    tries, max_attempts, interrupted, max_faults = tx.one(TRIES, {"rollout": rollout})
    counting = {"rollout": rollout, "counting": tries + interrupted + 1}
    is_killer = state is AttemptState.UNRESPONSIVE and tx.one(LOST, counting)[0] >= KILLS
    by_agent = state in BY_AGENT or is_killer
    tries, interrupted = tries + by_agent, interrupted + (not by_agent)
    counted = {"rollout": rollout, "tries": tries, "interrupted": interrupted}
    reason = f"{state}: {error}" if error else str(state)
    if not is_killer and (tries < max_attempts if by_agent else interrupted <= max_faults):
        ready_at = now + delay_s(tries if by_agent else interrupted, chance)
        tx.run(RETRY, {**counted, "ready_at": ready_at, "reason": reason})
        tx.touch(notifications.QUEUE)
        return RolloutState.REQUEUING
    if is_killer:
        reason += f" (it took {KILLS} workers down)"
    else:
        reason += f" (attempt {tries} of {max_attempts})" if by_agent else f" (interrupted {interrupted} times)"
    end = RolloutState.FAILED if by_agent else RolloutState.DEAD
    final, outcome = (token, "wrong") if by_agent else (None, None)
    ended = {"status": str(end), "now": now, "reason": reason, "final": final, "outcome": outcome}
    tx.run(GIVE_UP, {**counted, **ended})
    tx.touch(notifications.FINISHED)
    return end


def _hold(tx: Transaction, rollout: int) -> tuple[RolloutState, int | None]:
    """Where a rollout is and the token that holds it, with both kept as they are until the transaction ends."""
    holder = tx.one(HOLDER, {"rollout": rollout})  # attempts before rollouts, as everywhere: no deadlocks
    state = RolloutState(tx.one(STATE, {"rollout": rollout})[0])
    if holder is None and state is RolloutState.RUNNING:  # claimed between the two looks
        holder = tx.one(HOLDER, {"rollout": rollout})
    return state, None if holder is None else holder[0]


def _cancel(tx: Transaction, rollout: int, holder: int | None, now: float, why: str) -> None:
    why = plain_text(why)
    if holder is not None:
        tx.run(EXPIRE, {"token": holder, "now": now, "status": "cancelled", "error": why})
    tx.run(CANCEL, {"rollout": rollout, "now": now, "reason": why})
    for topic in (notifications.FINISHED, notifications.ROOM, notifications.ORDERS):
        tx.touch(topic)


def stale(tx: Transaction, attempt: Attempt, now: float) -> StaleLease:
    """The refusal that says what became of the attempt."""
    row = tx.one(WHERE_IS, {"token": attempt.token})
    if row is None:
        why = "the store has no such attempt"
    elif row[0] != "running":
        why = f"it is {row[0]}" + (f" ({row[3]})" if row[3] else "")
    else:
        why = f"its time was up {now - (row[1] or now):.1f} s ago"
    return StaleLease(
        f"attempt {attempt.id}", why=why, remedy="drop this work: the rollout is, or will be, someone else's"
    )
