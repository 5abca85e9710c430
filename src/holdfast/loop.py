"""The loop on one page. So far its first two parts: collect (run every task of a plan) and reward (score each answer).

Settings, signals and pages belong to the callers: what is to run comes as a `Plan`, who wants it stopped says so to a
`Control`, and whoever wants to watch gets every `Status`.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine
from contextlib import suppress
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.collect.plan import Plan
from holdfast.collect.pool import Pool, Tally
from holdfast.contracts.errors import HoldfastError, StoreError
from holdfast.contracts.rollout import RolloutState, Task
from holdfast.contracts.run import Run, RunState, Status, Wanted
from holdfast.store.changes import FINISHED, ORDERS, ROOM
from holdfast.store.store import Store

Observe = Callable[[Status], None]
Clock = Callable[[], float]
CHUNK = 500


class Control:
    """How the outside ends a run early: `drain` lets running work finish, `stop` hands it back at once."""

    def __init__(self) -> None:
        self.asked, self.now = asyncio.Event(), asyncio.Event()

    def drain(self) -> None:
        self.asked.set()

    def stop(self) -> None:
        self.now.set()
        self.asked.set()


@dataclass(slots=True)
class _Drive:
    """One run being driven, and what is told of it."""

    store: Store
    run: Run
    plan: Plan
    resources_id: str | None
    clock: Clock
    observe: Observe
    began: float
    fed: bool = False  # every task is in the queue
    over: bool = False  # the last status has been told
    last: Status | None = None  # what was told before
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, state: RunState, error: str | None = None) -> Status:
        with self.lock:
            try:
                status = self._status(state, error)
            except StoreError:
                if self.last is None or state is not RunState.FAILED:
                    raise
                status = replace(self.last, run_state=state, error=error)  # the store is what failed
            if not self.over:  # the last word is the last: a slower look at the running state must not follow it
                self.observe(status)
            self.over, self.last = self.over or state is not RunState.RUNNING, status
            return status

    def _status(self, state: RunState, error: str | None) -> Status:
        now, counts = self.clock(), self.store.views.counts(self.run.id)
        return Status(
            updated_unix_ms=int(now * 1000),
            run_state=state,
            run_id=self.run.id,
            project=self.store.project,
            model_ref=self.plan.model_ref,
            store_path=self.store.url,
            resources_id=self.resources_id,
            total_rollouts=max(len(self.plan.tasks), sum(counts.values())),
            succeeded=counts[RolloutState.SUCCEEDED],
            failed=counts[RolloutState.FAILED] + counts[RolloutState.DEAD],
            cancelled=counts[RolloutState.CANCELLED],
            dead=counts[RolloutState.DEAD],
            running=counts[RolloutState.RUNNING],
            waiting=counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING],
            rewards=self.store.views.rewards(self.run.id),
            elapsed_s=round(now - self.began, 3),
            error=error,
        )


async def optimize(
    store: Store,
    plan: Plan,
    control: Control,
    *,
    clock: Clock,
    observe: Observe,
    who: str,
    salt: str,
    resume: str | None = None,
) -> Status:
    """Run the plan to its end and say how it ended. Whatever stops it, what was collected stays and can be resumed."""
    resources_id, tasks = None, list(plan.tasks)
    if plan.resources:  # the version is there before anything runs on it
        version = await store.versions.publish(plan.resources, now=clock())
        resources_id, tasks = version.id, [replace(task, resources=version.version) for task in tasks]
    if resume is None:
        run = await store.runs.begin(
            kind="optimize",
            model_ref=plan.model_ref,
            settings=plan.settings,
            salt=salt,
            who=who,
            now=clock(),
            queue_limit=plan.queue_limit,
        )
    else:
        run = await store.runs.resume(resume, who=who, now=clock(), silent_s=plan.pace.lease_s)
    drive = _Drive(store, run, plan, resources_id, clock, observe, clock())
    try:
        drive.tell(RunState.RUNNING)
        state, error = await _collect(drive, tasks, control)
        await store.runs.end(run.id, state, who=who, now=clock(), error=error)
        return drive.tell(state, error)
    except BaseException as failure:
        error = str(failure) if isinstance(failure, HoldfastError) else f"{type(failure).__name__}: {failure}"
        # The store may be what failed: what can still be said is said, and the first error is the one to raise.
        with suppress(StoreError):
            await store.runs.end(run.id, RunState.FAILED, who=who, now=clock(), error=error)
        with suppress(StoreError):
            drive.tell(RunState.FAILED, error)
        raise


async def assist(store: Store, plan: Plan, run_id: str, control: Control, *, clock: Clock) -> Tally:
    """More hands for a run that another process drives, until it ends or they are wanted no more."""
    pool = Pool(store, run_id, plan.seats, plan.workers, clock=clock, seed=plan.seed, pace=plan.pace)
    await _work(pool, plan, control, [_until_ended(store, run_id)], timeout_s=None)
    return pool.tally


async def _collect(drive: _Drive, tasks: list[Task], control: Control) -> tuple[RunState, str | None]:
    """Feed the queue and work it off; how that ended."""
    store, plan, run = drive.store, drive.plan, drive.run.id
    pool = Pool(store, run, plan.seats, plan.workers, clock=drive.clock, seed=plan.seed, pace=plan.pace)
    beside = [_until_done(drive, tasks), _keep_telling(drive), _keep_beating(drive)]
    is_late = await _work(pool, plan, control, beside, timeout_s=plan.timeout_s)
    # Asked of the store: all may be cancelled, and so done, before the pool's next beat brings it the order.
    if store.runs.get(run).wanted is Wanted.CANCELLED:
        while await store.queue.cancel_open(run, now=drive.clock(), why="the run was cancelled"):
            continue
        return RunState.CANCELLED, "cancelled by an order"
    if drive.fed and store.views.is_done(run):
        return _verdict(store, run)
    if control.asked.is_set():
        return RunState.CANCELLED, "interrupted"
    if is_late:
        return RunState.TIMED_OUT, f"not done after {plan.timeout_s:g} s"
    return RunState.CANCELLED, "drained by an order"


async def _work(
    pool: Pool, plan: Plan, control: Control, beside: list[Coroutine[Any, Any, None]], *, timeout_s: float | None
) -> bool:
    """Let the pool work until something beside it ends, time is up, or someone wants it ended; whether time was up."""
    working = asyncio.create_task(pool.work())
    others = [asyncio.create_task(step) for step in beside]
    asked, now = asyncio.create_task(control.asked.wait()), asyncio.create_task(control.now.wait())
    try:
        ended, _ = await asyncio.wait([working, asked, *others], timeout=timeout_s, return_when=FIRST_COMPLETED)
        for task in others:
            if task.done():
                task.result()
        if asked.done():
            pool.drain()
            await asyncio.wait([working, now], timeout=plan.drain_s, return_when=FIRST_COMPLETED)
        pool.stop()
        await working
        return not ended
    finally:
        pool.stop()
        for step in (*others, asked, now):
            step.cancel()
        await asyncio.gather(working, *others, asked, now, return_exceptions=True)
        await asyncio.to_thread(plan.close)


def _verdict(store: Store, run: str) -> tuple[RunState, str | None]:
    counts = store.views.counts(run)
    if counts[RolloutState.SUCCEEDED]:
        return RunState.COMPLETED, None
    for state in (RolloutState.DEAD, RolloutState.FAILED):
        for first in store.views.rollouts(run, status=state, most=1):
            return RunState.FAILED, f"no rollout succeeded; {first.name}: {first.reason}"
    return RunState.COMPLETED, None


async def _until_done(drive: _Drive, tasks: list[Task]) -> None:
    await _feed(drive, tasks)
    while True:
        seen = drive.store.changes.seen(FINISHED)
        if drive.store.views.is_done(drive.run.id):
            return
        await drive.store.changes.after(FINISHED, seen)
        await asyncio.sleep(drive.plan.look_s)


async def _feed(drive: _Drive, tasks: list[Task]) -> None:
    """Put every task in, waiting for room where the queue is bounded. Those a resumed run has are not doubled."""
    place = 0
    while place < len(tasks):
        seen = drive.store.changes.seen(ROOM)
        chunk = tasks[place : place + CHUNK]
        taken = await drive.store.queue.enqueue(drive.run.id, chunk, now=drive.clock(), up_to=True)
        place += taken
        if taken < len(chunk):
            await drive.store.changes.after(ROOM, seen)
    drive.fed = True


async def _until_ended(store: Store, run_id: str) -> None:
    while True:
        seen = store.changes.seen(ORDERS)
        if store.runs.get(run_id).state is not RunState.RUNNING:
            return
        await store.changes.after(ORDERS, seen)


async def _keep_beating(drive: _Drive) -> None:
    """While we show signs of life nobody else may take the run up."""
    while True:
        await asyncio.sleep(drive.plan.pace.heartbeat_s)
        await drive.store.runs.beat(drive.run.id, now=drive.clock())


async def _keep_telling(drive: _Drive) -> None:
    """Seldom enough that looking at a large run stays a small part of the work."""
    pause = drive.plan.report_s
    while True:
        await asyncio.sleep(pause)
        began = drive.clock()
        await asyncio.to_thread(drive.tell, RunState.RUNNING)
        pause = max(drive.plan.report_s, 20 * (drive.clock() - began))
