"""The statements that move rollouts and attempts through their lives, each by its name; `queue` puts them together."""

from __future__ import annotations

from typing import Any

from sqlalchemy import bindparam, case, exists, func, select, update
from sqlalchemy.dialects.postgresql import insert  # both engines compile its ON CONFLICT

from holdfast.contracts.rollout import Task
from holdfast.store import rows, schema
from holdfast.store.sql import among

_r, _a = schema.rollouts.c, schema.attempts.c
SWEEP_LIMIT = 500

CONTENT = ("input", "split", "priority", "max_attempts", "timeout_s", "resources", "metadata")


def _param(name: str) -> Any:
    return bindparam(name)


_is_queuing = _r.status == "queuing"
_is_waiting = _r.status == "requeuing"
_is_wanted = exists().where(schema.runs.c.key == _param("run"), schema.runs.c.wanted == "running")
_is_held = _a.status == "running"
# What belongs to a step that is recorded is over, should somebody requeue it: its policy may be another by now.
_is_of_open_step = ~exists().where(schema.steps.c.run == _r.run, schema.steps.c.name == _r.step)


# A fence: the attempt still runs and its lease has not run out.
FENCE = (_a.key == _param("token")) & _is_held & (_a.lease_until > _param("now"))

ENQUEUE = (
    insert(schema.rollouts)
    .values(
        {c.name: bindparam(c.name) for c in schema.rollouts.c if c.name in Task.__slots__}
        | {
            "run": _param("run"),
            "status": "queuing",
            "attempt_count": 0,
            "faults": 0,
            "enqueued_at": _param("now"),
            "ready_at": _param("now"),
        }
    )
    .on_conflict_do_nothing(index_elements=["run", "name"])
)
SAME_NAME = select(*(_r[name] for name in CONTENT)).where(_r.run == _param("run"), _r.name == _param("name"))
# Producers of a bounded run take turns, so that together they keep its limit.
TURN = select(schema.runs.c.key).where(schema.runs.c.key == _param("run")).with_for_update(key_share=True)
DEPTH = select(func.count()).select_from(
    select(_r.key).where(_r.run == _param("run"), _is_queuing).limit(_param("most")).subquery()
)
# Those whose backoff is over may be claimed again.
RIPEN = (
    update(schema.rollouts)
    .where(
        _r.key.in_(
            select(_r.key)
            .where(_r.run == _param("run"), _is_waiting, _r.ready_at <= _param("now"))
            .order_by(_r.ready_at)
            .limit(SWEEP_LIMIT)
            .with_for_update(skip_locked=True)
        )
    )
    .values(status="queuing")
)
# So may those whose backoff began in what is now the future; seen from the far end, the few first tell it all.
_furthest = (
    select(_r.key)
    .where(_r.run == _param("run"), _is_waiting, _r.ready_at > _param("trusted"))
    .order_by(_r.ready_at.desc())
    .limit(SWEEP_LIMIT)
    .with_for_update(skip_locked=True)
    .subquery()
)
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
NEXT_RIPE = select(func.min(_r.ready_at)).where(_r.run == _param("run"), _is_waiting)


def _take(*conditions: Any) -> Any:
    """The heads of the queue become running; locked ones are passed over, another worker has them."""
    return (
        update(schema.rollouts)
        .where(
            _r.key.in_(
                select(_r.key)
                .where(_r.run == _param("run"), _is_queuing, _is_wanted, _is_of_open_step, *conditions)
                .order_by(_r.priority.desc(), _r.key)
                .limit(_param("most"))
                .with_for_update(skip_locked=True)
            )
        )
        .values(
            status="running",
            attempt_count=_r.attempt_count + 1,
            started_at=func.coalesce(_r.started_at, _param("now")),
        )
        .returning(*rows.ROLLOUT)
    )


MARK = "\n"  # around each of the versions that a worker can answer for, and in none of them
_marked = _param("mark") + _r.version + _param("mark")
TAKE = _take()
TAKE_OF_VERSIONS = _take(func.replace(_param("versions"), _marked, _param("mark")) != _param("versions"))
START = (
    insert(schema.attempts)
    .values(
        rollout=_param("rollout"),
        number=_param("number"),
        worker=_param("worker"),
        status="running",
        started_at=_param("now"),
        beat_at=_param("now"),
        lease_until=_param("lease_until"),
        deadline=_param("deadline"),
    )
    .returning(_a.key)
)
# A lease never reaches past the attempt's deadline: one index finds both the silent and the overdue.
BEAT = (
    update(schema.attempts)
    .where(FENCE)
    .values(
        beat_at=_param("now"),
        lease_until=case((_a.deadline < _param("until"), _a.deadline), else_=_param("until")),
    )
    .returning(_a.key)
)
END_ATTEMPT = (
    update(schema.attempts)
    .where(FENCE)
    .values(status=_param("status"), ended_at=_param("now"), error=_param("error"), output=_param("output"))
    .returning(_a.rollout)
)
SUCCEED = (
    update(schema.rollouts)
    .where(_r.key == _param("rollout"))
    .values(
        status="succeeded",
        ended_at=_param("now"),
        final=_param("token"),
        reward=_param("reward"),
        outcome=_param("outcome"),
        reason=None,
    )
)
TRIES = select(_r.faults, _r.max_attempts, _r.interruptions, _r.max_faults).where(_r.key == _param("rollout"))
# Of the attempts that count since the rollout was last put into the queue, those that took their worker down.
_counting = (
    select(_a.status)
    .where(_a.rollout == _param("rollout"), among(_a.status, "failed", "timeout", "fault", "unresponsive"))
    .order_by(_a.number.desc())
    .limit(_param("counting"))
    .subquery()
)
LOST = select(func.count()).select_from(_counting).where(_counting.c.status == "unresponsive")
RETRY = (
    update(schema.rollouts)
    .where(_r.key == _param("rollout"))
    .values(
        status="requeuing",
        faults=_param("tries"),
        interruptions=_param("interrupted"),
        ready_at=_param("ready_at"),
        reason=_param("reason"),
    )
)
GIVE_UP = (
    update(schema.rollouts)
    .where(_r.key == _param("rollout"))
    .values(
        status=_param("status"),
        faults=_param("tries"),
        interruptions=_param("interrupted"),
        ended_at=_param("now"),
        reason=_param("reason"),
        final=_param("final"),
        outcome=_param("outcome"),
    )
)
# A rollout from before there were steps, or of none, is taken in by the step that asks for it.
TAKE_IN = (
    update(schema.rollouts)
    .where(_r.run == _param("run"), _r.name == _param("name"), _r.step.is_(None))
    .values(step=_param("step"), version=_param("version"))
)
HAND_BACK = update(schema.rollouts).where(_r.key == _param("rollout")).values(status="queuing")
EXPIRED = (
    select(_a.key, _a.rollout, _a.deadline, _a.worker, _a.beat_at)
    .where(_is_held, _a.lease_until <= _param("now"))
    .order_by(_a.lease_until)
    .limit(SWEEP_LIMIT)
    .with_for_update(skip_locked=True)
)
# A lease from what is now the future lasts its ordinary length from now on: whoever lives beats in that time.
RECALL = (
    update(schema.attempts)
    .where(_is_held, _a.lease_until > _param("trusted"), _a.beat_at > _param("trusted"))
    .values(beat_at=_param("now"), lease_until=_param("now") + (_a.lease_until - _a.beat_at))
)
EXPIRE = (
    update(schema.attempts)
    .where(_a.key == _param("token"), _is_held)
    .values(status=_param("status"), ended_at=_param("now"), error=_param("error"))
)
HOLDER = select(_a.key).where(_a.rollout == _param("rollout"), _is_held).with_for_update()
STATE = select(_r.status).where(_r.key == _param("rollout")).with_for_update()
KEY = select(_r.key).where(_r.run == _param("run"), _r.name == _param("name"))
CANCEL = (
    update(schema.rollouts)
    .where(_r.key == _param("rollout"))
    .values(status="cancelled", ended_at=_param("now"), reason=_param("reason"))
)
REQUEUE = (
    update(schema.rollouts)
    .where(_r.key == _param("rollout"))
    .values(
        status="queuing",
        faults=0,
        interruptions=0,
        ended_at=None,
        reason=None,
        final=None,
        reward=None,
        outcome=None,
        ready_at=_param("now"),
    )
)
OPEN_IN = select(_r.key).where(_r.run == _param("run"), _r.status == _param("status")).limit(SWEEP_LIMIT)
WHERE_IS = select(_a.status, _a.lease_until, _a.worker, _a.error).where(_a.key == _param("token"))
BY_KEY = select(*rows.ROLLOUT).where(_r.key == _param("rollout"))
