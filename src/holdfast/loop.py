"""The loop on one page: collect (run the tasks of a lesson), reward (score each answer), learn, prove, promote, and the
next lesson.

Settings, signals and pages belong to the callers: what is to run and to be learnt comes as a `Plan`, who wants it
stopped says so to a `Control`, and whoever wants to watch gets every `Status`.
"""

from __future__ import annotations

import asyncio
import threading
from asyncio import FIRST_COMPLETED
from collections.abc import Callable, Coroutine, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.collect.plan import Learnt, Lesson, Lost, Plan, Proposal, Standing
from holdfast.collect.pool import Pool, Tally
from holdfast.contracts.errors import BadInput, HoldfastError, Interrupted, NotFound, StaleLease, StoreError
from holdfast.contracts.evidence import Decision, Evidence
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.rollout import RolloutState, Task
from holdfast.contracts.run import ResourceVersion, Run, RunState, Status, StepRecord, Wanted
from holdfast.store.changes import FINISHED, ORDERS, ROOM
from holdfast.store.orders import HELD, Orders
from holdfast.store.runs import taken_up
from holdfast.store.store import Store
from holdfast.workloads.following import followed
from holdfast.workloads.promotion import promote

Observe = Callable[[Status], None]
Clock = Callable[[], float]
FeaturesAfter = Callable[[Sequence[StepRecord]], Features]
T = TypeVar("T")
CHUNK = 500
HEED_S = 0.1  # a learner that waits looks so often whether it is waited for any more


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
    resources: ResourceVersion | None
    clock: Clock
    observe: Observe
    who: str
    began: float
    features: FeaturesAfter
    orders: Orders
    standing: Standing | None = None  # as the lesson that goes on has it
    lesson: str | None = None  # what is going on
    total: int = 0  # rollouts, as far as they are known
    rl_optimizer: Mapping[str, Any] | None = None  # what it did, where the plan has one
    fed: bool = False  # every task is in the queue
    over: bool = False  # the last status has been told
    last: Status | None = None  # what was told before
    left: threading.Event = field(default_factory=threading.Event)  # nobody waits for what is learnt any more
    lock: threading.Lock = field(default_factory=threading.Lock)

    def tell(self, state: RunState, error: str | None = None) -> Status:
        with self.lock:
            try:
                status = self._status(state, error)
            except StoreError as failure:
                if self.last is None or state is not RunState.FAILED or isinstance(failure, StaleLease):
                    raise
                status = replace(self.last, run_state=state, error=error)  # the store is what failed
            if not self.over:  # the last word is the last: a slower look at the running state must not follow it
                self.observe(status)
            self.over, self.last = self.over or state is not RunState.RUNNING, status
            return status

    def between(self) -> None:
        """For a learner in its thread: waits while the run is paused or frozen, Interrupted once it is to end."""
        while not self.left.is_set():
            wanted = self.orders.of(self.run.id)
            if wanted is Wanted.CANCELLED:
                break
            if wanted not in HELD:
                return
            self.orders.wait(HEED_S)
        raise Interrupted("the run was stopped")

    def tell_of(self, body: Mapping[str, Any]) -> None:
        self.rl_optimizer = body.get("rl_optimizer", self.rl_optimizer)

    def _status(self, state: RunState, error: str | None) -> Status:
        now, counts = self.clock(), self.store.views.counts(self.run.id)
        if self.store.runs.get(self.run.id).driver != self.run.driver:
            raise taken_up(self.run.id)  # what is told of the run is the other's business now
        return Status(
            updated_unix_ms=int(now * 1000),
            run_state=state,
            run_id=self.run.id,
            project=self.store.project,
            model_ref=self.plan.model_ref,
            store_path=self.store.url,
            resources_id=None if self.resources is None else self.resources.id,
            total_rollouts=max(self.total, sum(counts.values())),
            succeeded=counts[RolloutState.SUCCEEDED],
            failed=counts[RolloutState.FAILED] + counts[RolloutState.DEAD],
            cancelled=counts[RolloutState.CANCELLED],
            dead=counts[RolloutState.DEAD],
            running=counts[RolloutState.RUNNING],
            waiting=counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING],
            rewards=self.store.views.rewards(self.run.id),
            elapsed_s=round(now - self.began, 3),
            error=error,
            lesson=self.lesson,
            rl_optimizer=self.rl_optimizer,
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
    features: FeaturesAfter = lambda done: ALL_ON,
) -> Status:
    """Run the plan to its end and say how it ended. Whatever stops it, what was collected stays and can be resumed.

    Which features are on is asked before each lesson, of somebody who sees what the earlier ones left.
    """
    resources = None
    if plan.resources:  # the version is there before anything runs on it
        resources = await store.versions.publish(plan.resources, now=clock())
    if resume is None:
        run = await store.runs.begin(
            kind=plan.kind,
            model_ref=plan.model_ref,
            settings=plan.settings,
            salt=salt,
            who=who,
            now=clock(),
            queue_limit=plan.queue_limit,
        )
    else:
        run = await store.runs.resume(resume, who=who, now=clock(), silent_s=plan.pace.lease_s)
    orders = Orders(store.runs, store.changes)
    drive = _Drive(store, run, plan, resources, clock, observe, who, clock(), features, orders)
    try:
        state, error = await _teach(drive, control)
        await store.runs.end(run.id, state, who=who, now=clock(), error=error, driver=run.driver)
        return drive.tell(state, error)
    except StaleLease:  # the run is another's by now, and so is the last word
        raise
    except BaseException as failure:
        error = str(failure) if isinstance(failure, HoldfastError) else f"{type(failure).__name__}: {failure}"
        error = " ".join(error.splitlines())
        # The store may be what failed: what can still be said is said, and the first error is the one to raise.
        with suppress(StoreError):
            await store.runs.end(run.id, RunState.FAILED, who=who, now=clock(), error=error, driver=run.driver)
        with suppress(StoreError):
            drive.tell(RunState.FAILED, error)
        raise


async def assist(store: Store, plan: Plan, run_id: str, control: Control, *, clock: Clock) -> Tally:
    """More hands for a run that another process drives, until it ends or they are wanted no more."""
    pool = Pool(store, run_id, plan.seats, plan.workers, clock=clock, seed=plan.seed, pace=plan.pace)
    await _work(pool, plan, control, [_until_ended(store, run_id)], timeout_s=None)
    return pool.tally


async def _teach(drive: _Drive, control: Control) -> tuple[RunState, str | None]:
    """Lesson after lesson, with the pool at work all the while; how that ended."""
    store, plan, run = drive.store, drive.plan, drive.run.id
    pool = Pool(store, run, plan.seats, plan.workers, clock=drive.clock, seed=plan.seed, pace=plan.pace)
    done = store.steps.of_run(run)
    first = await _first(drive, done)  # before anybody works: what was handed back must be run by the right policy
    drive.tell(RunState.RUNNING)
    beside = [_lessons(drive, done, first), _keep_telling(drive), _keep_beating(drive)]
    try:
        is_late = await _work(pool, plan, control, beside, timeout_s=plan.timeout_s)
    finally:
        drive.left.set()
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


async def _first(drive: _Drive, done: Sequence[StepRecord]) -> Lesson | None:
    """Found under signs of life: it may take as long as a lesson, where a checkpoint has to be made anew."""
    beating = asyncio.create_task(_keep_beating(drive))
    try:
        return await _next(drive, done)
    except Interrupted:  # cancelled meanwhile: whoever works sees it at once
        return None
    finally:
        beating.cancel()
        await asyncio.gather(beating, return_exceptions=True)


async def _next(drive: _Drive, done: Sequence[StepRecord]) -> Lesson | None:
    """The lesson that follows from what is on record; the policy is then the one that it is for."""
    for update in done[-1:]:
        drive.lesson = update.body.get("lesson")
        drive.tell_of(update.body)
    policy = drive.plan.policy
    live = None if policy is None else drive.store.releases.live(policy)
    store, features = drive.store, await asyncio.to_thread(drive.features, done)
    standing = Standing(
        run=drive.run.id,
        folder=store.folder,
        done=done,
        live=live,
        reports=store.reports,
        features=features,
        between=drive.between,
    )
    drive.standing = standing
    lesson = await _mending(drive, lambda: drive.plan.course(standing))  # it may load weights
    if lesson is not None:
        drive.lesson = lesson.name
        ran = sum(update.body.get("rollouts", 0) for update in done)
        drive.total = ran + len(lesson.tasks) + lesson.left
    return lesson


async def _mending(drive: _Drive, work: Callable[[], T]) -> T:
    """Have it done in a thread; where it finds a checkpoint damaged, that one is made anew before it goes on."""
    try:
        return await asyncio.to_thread(work)
    except Lost as lost:
        try:
            await _mend(drive, lost)
        except (Lost, NotFound, BadInput) as error:  # nor is what it was made from there, or fit to be learnt from
            raise lost from error
        return await asyncio.to_thread(work)


async def _mend(drive: _Drive, lost: Lost) -> None:
    """The lesson that made it is learnt once more, from the one before and from what is on record.

    Learning is exact: either the very same weights come of it, and nothing on record changes, or they stay lost.
    """
    standing = drive.standing
    assert standing is not None
    made = [str(update.body.get("checkpoint")) for update in standing.done]
    place = next((place for place, name in enumerate(made) if lost.what == f"checkpoint {name}"), None)
    if place is None:
        raise lost
    lesson = await asyncio.to_thread(drive.plan.course, replace(standing, done=standing.done[:place]))
    if lesson is None or lesson.learn is None or lesson.follow is not None:  # what was followed has gone on since
        raise lost
    learnt = await asyncio.to_thread(lesson.learn, await _experiences(drive, lesson))
    if learnt.checkpoint is None or learnt.checkpoint.id != made[place]:
        raise lost
    body = {"checkpoint": made[place], "lesson": lesson.name, "why": lost.why}
    await drive.store.ledger.append("mend", body, who=drive.who, now=drive.clock(), run=drive.run.id)


async def _lessons(drive: _Drive, done: Sequence[StepRecord], lesson: Lesson | None) -> None:
    """Collect → reward → learn → prove → promote, and again, until the course is over and nothing is open any more."""
    try:
        while lesson is not None:
            await _feed(drive, lesson.tasks)
            await _until_idle(drive)
            await _go_on(drive)  # idle because the rest was cancelled: nothing to learn from
            learnt = Learnt(body={})
            if lesson.learn is not None:
                learnt = await _mending(drive, partial(lesson.learn, await _experiences(drive, lesson)))
            done = [*done, await _keep(drive, len(done) + 1, lesson, learnt)]
            lesson = await _next(drive, done)
    except Interrupted:  # by an order to cancel
        return
    drive.fed = True
    await _until_idle(drive)


async def _go_on(drive: _Drive) -> None:
    """As `between`, on the event loop: nothing is begun by a run that is to wait, or to end."""
    store, run = drive.store, drive.run.id
    while True:
        seen, wanted = store.changes.seen(ORDERS), store.runs.get(run).wanted
        if wanted is Wanted.CANCELLED:
            raise Interrupted("the run was stopped")
        if wanted not in HELD:
            return
        await store.changes.after(ORDERS, seen)


async def _experiences(drive: _Drive, lesson: Lesson) -> list[Experience]:
    """What the lesson's rollouts did, in the order of its tasks, and what is followed besides."""
    ids = [f"{drive.run.id}/{task.name}" for task in lesson.tasks]
    if lesson.follow is not None:
        ids += await followed(drive.store, lesson.follow, drive.plan.look_s)
    return await asyncio.to_thread(drive.store.experiences.of, ids)


async def _keep(drive: _Drive, step: int, lesson: Lesson, learnt: Learnt) -> StepRecord:
    """Put on record that a lesson is over: the checkpoint, whose files are on disk, the gate's decision, and then
    what refers to both."""
    store, run, mine, now = drive.store, drive.run.id, drive.run.driver, drive.clock()
    body = {"lesson": lesson.name, "rollouts": len(lesson.tasks), **learnt.body}
    if (checkpoint := learnt.checkpoint) is not None:
        body["checkpoint"] = checkpoint.id
        if checkpoint.id not in {known.id for known in store.checkpoints.of_run(run)}:
            await store.checkpoints.add(checkpoint, run, now=now, driver=mine)
    if learnt.proposal is not None:
        if store.runs.get(run).driver != mine:  # whoever drives it now decides
            raise taken_up(run)
        await _go_on(drive)
        body |= await promote(store, _obeying(drive, learnt.proposal), clock=drive.clock, who=drive.who)
    await store.updates.add(run, step, body, now=now, driver=mine)
    return StepRecord(run=run, step=step, at=now, body=body)


def _obeying(drive: _Drive, proposal: Proposal) -> Proposal:
    """Weighing takes its time: what was ordered meanwhile holds before anything is published, or moves."""

    def publish(evidence: Evidence, decision: Decision) -> Mapping[str, Any]:
        drive.between()
        return proposal.publish(evidence, decision)

    return replace(proposal, publish=publish)


async def _until_idle(drive: _Drive) -> None:
    while True:
        seen = drive.store.changes.seen(FINISHED)
        if drive.store.views.is_done(drive.run.id):
            return
        await drive.store.changes.after(FINISHED, seen)
        await asyncio.sleep(drive.plan.look_s)


async def _feed(drive: _Drive, tasks: Sequence[Task]) -> None:
    """Put every task in, waiting for room where the queue is bounded. Those a resumed run has are not doubled."""
    place = 0
    if drive.resources is not None:
        tasks = [replace(task, resources=drive.resources.version) for task in tasks]
    while place < len(tasks):
        seen = drive.store.changes.seen(ROOM)
        chunk = tasks[place : place + CHUNK]
        taken = await drive.store.queue.enqueue(drive.run.id, chunk, now=drive.clock(), up_to=True)
        place += taken
        if taken < len(chunk):
            await drive.store.changes.after(ROOM, seen)


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
        await drive.store.runs.beat(drive.run.id, driver=drive.run.driver, now=drive.clock())


async def _keep_telling(drive: _Drive) -> None:
    """Seldom enough that looking at a large run stays a small part of the work."""
    pause = drive.plan.report_s
    while True:
        await asyncio.sleep(pause)
        began = drive.clock()
        await asyncio.to_thread(drive.tell, RunState.RUNNING)
        pause = max(drive.plan.report_s, 20 * (drive.clock() - began))
