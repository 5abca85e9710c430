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
from typing import Any

from holdfast.collect.plan import Follow, Learnt, Lesson, Plan, Standing
from holdfast.collect.pool import Pool, Tally
from holdfast.contracts.errors import HoldfastError, StaleLease, StoreError
from holdfast.contracts.experience import Experience
from holdfast.contracts.features import ALL_ON, Features
from holdfast.contracts.rollout import RolloutState, Split, Task
from holdfast.contracts.run import LearnUpdate, ResourceVersion, Run, RunState, Status, Wanted
from holdfast.store.changes import FINISHED, ORDERS, ROOM
from holdfast.store.runs import taken_up
from holdfast.store.store import Store
from holdfast.workloads.promotion import promote

Observe = Callable[[Status], None]
Clock = Callable[[], float]
FeaturesAfter = Callable[[Sequence[LearnUpdate]], Features]
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
    resources: ResourceVersion | None
    clock: Clock
    observe: Observe
    who: str
    began: float
    features: FeaturesAfter
    lesson: str | None = None  # what is going on
    total: int = 0  # rollouts, as far as they are known
    rl_optimizer: Mapping[str, Any] | None = None  # what it did, where the plan has one
    fed: bool = False  # every task is in the queue
    over: bool = False  # the last status has been told
    last: Status | None = None  # what was told before
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
    drive = _Drive(store, run, plan, resources, clock, observe, who, clock(), features)
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
    done = store.updates.of_run(run)
    first = await _next(drive, done)  # before anybody works: what was handed back must be run by the right policy
    drive.tell(RunState.RUNNING)
    beside = [_lessons(drive, done, first), _keep_telling(drive), _keep_beating(drive)]
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


async def _next(drive: _Drive, done: Sequence[LearnUpdate]) -> Lesson | None:
    """The lesson that follows from what is on record; the policy is then the one that it is for."""
    for update in done[-1:]:
        drive.lesson = update.body.get("lesson")
        drive.tell_of(update.body)
    policy = drive.plan.policy
    live = None if policy is None else drive.store.releases.live(policy)
    store, features = drive.store, await asyncio.to_thread(drive.features, done)
    standing = Standing(
        run=drive.run.id, folder=store.folder, done=done, live=live, reports=store.reports, features=features
    )
    lesson = await asyncio.to_thread(drive.plan.course, standing)  # it may load weights
    if lesson is not None:
        drive.lesson = lesson.name
        ran = sum(update.body.get("rollouts", 0) for update in done)
        drive.total = ran + len(lesson.tasks) + lesson.left
    return lesson


async def _lessons(drive: _Drive, done: Sequence[LearnUpdate], lesson: Lesson | None) -> None:
    """Collect → reward → learn → prove → promote, and again, until the course is over and nothing is open any more."""
    store, run = drive.store, drive.run.id
    while lesson is not None:
        await _feed(drive, lesson.tasks)
        await _until_idle(drive)
        if store.runs.get(run).wanted is Wanted.CANCELLED:  # idle because the rest was cancelled: nothing to learn from
            return
        learnt = Learnt(body={})
        if lesson.learn is not None:
            learnt = await asyncio.to_thread(lesson.learn, await _experiences(drive, lesson))
        done = [*done, await _keep(drive, len(done) + 1, lesson, learnt)]
        lesson = await _next(drive, done)
    drive.fed = True
    await _until_idle(drive)


async def _experiences(drive: _Drive, lesson: Lesson) -> list[Experience]:
    """What the lesson's rollouts did, in the order of its tasks, and what is followed besides."""
    ids = [f"{drive.run.id}/{task.name}" for task in lesson.tasks]
    if lesson.follow is not None:
        ids += await _followed(drive.store, lesson.follow, drive.plan.look_s)
    return await asyncio.to_thread(drive.store.experiences.of, ids)


async def _followed(store: Store, follow: Follow, look_s: float) -> list[str]:
    """Wait until enough of the other run's rollouts have succeeded with a reward; what there is, once it is over."""
    while True:
        seen = {topic: store.changes.seen(topic) for topic in (FINISHED, ORDERS)}
        is_over = store.runs.get(follow.run).state is not RunState.RUNNING
        arrived = await asyncio.to_thread(_arrived, store, follow)
        if is_over or len(arrived) >= follow.least:
            return arrived
        pending = [asyncio.ensure_future(store.changes.after(topic, at)) for topic, at in seen.items()]
        try:
            await asyncio.wait(pending, return_when=FIRST_COMPLETED)
        finally:
            for one in pending:
                one.cancel()
        await asyncio.sleep(look_s)


def _arrived(store: Store, follow: Follow) -> list[str]:
    """Which ones there are to learn from and were not yet, oldest first, for a few steps at most."""
    if store.views.counts(follow.run)[RolloutState.SUCCEEDED] <= len(follow.taken):
        return []
    found: list[str] = []
    after, most = None, follow.least * 4
    while len(found) < most:
        page = store.views.rollouts(
            follow.run, after=after, status=RolloutState.SUCCEEDED, split=Split.TRAIN, most=CHUNK
        )
        found += [one.id for one in page if one.reward is not None and one.name not in follow.taken]
        if len(page) < CHUNK:
            break
        after = page[-1].name
    return found[:most]


async def _keep(drive: _Drive, step: int, lesson: Lesson, learnt: Learnt) -> LearnUpdate:
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
        body |= await promote(store, learnt.proposal, clock=drive.clock, who=drive.who)
    await store.updates.add(run, step, body, now=now, driver=mine)
    return LearnUpdate(run=run, step=step, at=now, body=body)


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
