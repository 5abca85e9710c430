"""One run being driven: a program of durable steps, with a pool of workers, heartbeats and orders beside it.

A step is a name, a function and its recorded result. A step that is recorded is not run again: its result is read, so
a run that was killed anywhere goes on from the last one. Only success is recorded; pause, cancel and faults leave no
row. Names follow the order of the program. What the steps do is the program's business (`improve`, `prove`, …).
"""

from __future__ import annotations

import asyncio
import hashlib
import inspect
import json
import threading
import warnings
from asyncio import FIRST_COMPLETED
from collections.abc import AsyncIterator, Awaitable, Callable, Coroutine, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field, is_dataclass, replace
from functools import partial
from typing import Any, TypeVar, cast, get_type_hints

from holdfast.collect.allocation import FROM_OUTCOMES, fit
from holdfast.collect.executors import Slot
from holdfast.collect.pool import Pool, PoolStats, PoolTiming
from holdfast.contracts.agent import own_code
from holdfast.contracts.errors import (
    BadInput,
    HoldfastError,
    Interrupted,
    Lost,
    NoSuccess,
    NotFound,
    StaleLease,
    StoreError,
)
from holdfast.contracts.flag import ALL_ON, FeatureFlags, run_unit
from holdfast.contracts.policy import Policy, files_of, policy_record
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import ANSWERED, RolloutState
from holdfast.contracts.run import DesiredState, RunRecord, RunState, Status, StepRecord, is_gone, this_process
from holdfast.pipeline.context import Runtime, StepContext, expose, tell_run
from holdfast.privacy.scrub import key_in
from holdfast.store.notifications import ORDERS
from holdfast.store.runs import HELD, DesiredStates, taken_up
from holdfast.store.store import Store

T = TypeVar("T")
Observe = Callable[[Status], None]
Clock = Callable[[], float]
FlagsAfter = Callable[[Sequence[StepRecord]], FeatureFlags]
VERSION = 1  # of the pipeline: a run that another one began is refused before any work
MADE = {"blob": "episodes"}  # where a step's result names what it made, other than by its own word
NO_SUCCESS = "no rollout succeeded"  # how the error of a run begins that came to its end in vain
BEGIN = "begin"  # the name of the first step
DRIVER_LEASES = 10  # a helper waits so many leases for a sign of life of the driver
HEED_S = 0.1  # a thread that waits for a paused run looks so often whether it is waited for any more


class Control:
    """How the outside ends a run early: `drain` lets running work finish, `stop` hands it back at once."""

    def __init__(self) -> None:
        self.asked, self.now = asyncio.Event(), asyncio.Event()

    def drain(self) -> None:
        self.asked.set()

    def stop(self) -> None:
        self.now.set()
        self.asked.set()


@dataclass(frozen=True, slots=True, kw_only=True)
class RunSpec:
    """What one run does, and how."""

    kind: str
    program: Callable[[DurableRun], Awaitable[Any]]
    model_ref: str
    settings: Mapping[str, Any]  # kept with the run, so that it can be resumed
    runtime: Runtime  # where agents run, and who answers for a policy
    workers: int
    timing: PoolTiming = field(default_factory=PoolTiming)
    policy: str | None = None  # the line of versions that it improves
    seed: int = 0
    queue_limit: int | None = None
    max_faults: int = 5  # of infrastructure, that one rollout may meet
    timeout_s: float | None = None  # of the whole run
    drain_s: float = 25.0  # how long running work may take to finish once drained
    report_s: float = 0.5  # how often watchers are told
    look_s: float = 0.06  # at most so often we ask whether all is done

    def sha256(self) -> str:
        return _hashed([VERSION, self.kind, self.model_ref, json.loads(json.dumps(self.settings))])


class DurableRun:
    """What a program gets: its steps, and what they need."""

    def __init__(
        self,
        store: Store,
        record: RunRecord,
        spec: RunSpec,
        *,
        clock: Clock,
        who: str,
        observe: Observe,
        features: FlagsAfter,
    ) -> None:
        self.store, self.record, self.spec, self.clock, self.who = store, record, spec, clock, who
        self.done: list[StepRecord] = store.steps.of_run(record.id)
        self.planned = 0  # rollouts, as far as they are known
        self.is_over = False  # the program has ended
        self.is_sound = False
        self.failure: str | None = None  # why its first rollouts were enough
        self.left = threading.Event()  # nobody waits for its threads any more
        self.resources_id: str | None = None  # the version that was published last
        self.step_name: str | None = None  # what is going on, for people
        self._known = {step.name: step for step in self.done}
        self._calls: dict[str, Callable[..., Awaitable[tuple[Any, StepContext]]]] = {}  # how each step is computed
        self._orders = DesiredStates(store.runs, store.changes)
        self._observe, self._flags = observe, features
        self._began = clock()
        self._told_last = False
        self._last: Status | None = None
        self._lock = threading.Lock()

    @property
    def id(self) -> str:
        return self.record.id

    # Steps -----------------------------------------------------------------------------------------------------------

    async def step(self, name: str, function: Callable[..., Any], *inputs: Any, title: str | None = None) -> Any:
        """The function's result: read where the step is recorded, else computed and recorded. `title` is for people."""
        if name in self._calls:
            why, remedy = "the program has asked for it before", "give each step a name of its own"
            raise BadInput(f"step {name} of {self.id}", why=why, remedy=remedy)
        call = self._calls[name] = partial(self._compute, name, function, inputs)
        digest = await asyncio.to_thread(_digest, inputs)  # heartbeats go on, however much is replayed
        self.step_name = title or name
        known = self._known.get(name)
        if known is not None:
            _refuse_other(known, _name_of(function), digest)
            await self._mending(partial(asyncio.to_thread, self._verify, known))
            return _result(function, known.body)
        await self.go_on()
        value, context = await self._mending(call)
        kept = await self.store.steps.add(
            self.id,
            name,
            _record(value),
            function=_name_of(function),
            inputs_sha256=digest,
            now=self.clock(),
            driver=self.record.driver,
            effects=context.effects,
        )
        self.done.append(kept)
        self._known[name] = kept
        return _result(function, kept.body)

    async def _compute(
        self, name: str, function: Callable[..., Any], inputs: Sequence[Any], *, is_again: bool = False
    ) -> tuple[Any, StepContext]:
        context = StepContext(self, name, is_again=is_again)
        given = {"ctx": context} if "ctx" in inspect.signature(function).parameters else {}
        if inspect.iscoroutinefunction(inspect.unwrap(getattr(function, "func", function))):
            return await function(*inputs, **given), context
        return await asyncio.to_thread(function, *inputs, **given), context

    def _verify(self, known: StepRecord) -> None:
        """Lost where the checkpoint that was made last is damaged; whoever uses an earlier one verifies it then."""
        last = next((step.name for step in reversed(self.done) if "checkpoint" in step.body), None)
        if known.name != last:
            return
        for checkpoint in self.store.checkpoints.of_run(self.id):
            if checkpoint.id == known.body["checkpoint"] and checkpoint.artifact is not None:
                files_of(checkpoint, self.store.files)

    async def _mending(self, call: Callable[[], Awaitable[T]]) -> T:
        """Compute; where an artifact of an earlier step is damaged, that one is made anew before it goes on."""
        try:
            return await call()
        except Lost as lost:
            try:
                await self._mend(lost)
            except (Lost, NotFound, BadInput) as error:  # nor is what it was made from there, or fit to be learnt from
                raise lost from error
            return await call()

    async def _mend(self, lost: Lost) -> None:
        """The step that made the artifact runs once more, from its recorded inputs: the same bytes, or it is lost."""
        kind, _, made = lost.what.partition(" ")
        key = MADE.get(kind, kind)
        step = next((step for step in self.done if step.body.get(key) == made and step.name in self._calls), None)
        if step is None:
            raise lost
        value, _ = await self._calls[step.name](is_again=True)
        if _record(value).get(key) != made:
            raise lost
        body = {kind: made, "step": step.name, "why": lost.why}
        await self.store.ledger.append("mend", body, who=self.who, now=self.clock(), run=self.id)

    # Orders ----------------------------------------------------------------------------------------------------------

    def check(self) -> None:
        """Waits in a thread while the run is paused or frozen; raises Interrupted once it is to end."""
        while not self.left.is_set():
            wanted = self._orders.of(self.id)
            if wanted is DesiredState.CANCELLED:
                break
            if wanted not in HELD:
                return
            self._orders.wait(HEED_S)
        raise Interrupted("the run was stopped")

    async def go_on(self) -> None:
        """Waits as `check` does, on the event loop: a run that is to wait or to end begins nothing."""
        while True:
            seen, wanted = self.store.changes.seen(ORDERS), self.store.runs.get(self.id).wanted
            if wanted is DesiredState.CANCELLED:
                raise Interrupted("the run was stopped")
            if wanted not in HELD:
                return
            await self.store.changes.moved(ORDERS, seen)

    def flags(self) -> FeatureFlags:
        """Returns the current flags, read by whoever sees the steps so far."""
        return self._flags(self.done)

    # What is told of it ----------------------------------------------------------------------------------------------

    def tell(self, state: RunState, error: str | None = None) -> Status:
        with self._lock:
            try:
                status = self._status(state, error)
            except StoreError as failure:
                if self._last is None or state is not RunState.FAILED or isinstance(failure, StaleLease):
                    raise
                status = replace(self._last, run_state=state, error=error)  # the store is what failed
            if not self._told_last:  # the last word is the last: a slower look at the running state must not follow it
                self._observe(status)
            self._told_last, self._last = self._told_last or state is not RunState.RUNNING, status
            return status

    def _status(self, state: RunState, error: str | None) -> Status:
        now = self.clock()
        views, known = self.store.views, None
        if state is RunState.RUNNING:  # told again and again, so it is counted on; the last word reads every rollout
            known = self.store.figures.run_totals(self.id)
        if known is None:
            counts, outcomes, rewards = views.counts(self.id), views.outcomes(self.id), views.rewards(self.id)
        else:
            counts, outcomes, rewards = dict(known[0].counts), dict(known[0].outcomes), dict(known[1])
        if self.store.runs.get(self.id).driver != self.record.driver:
            raise taken_up(self.id)  # what is told of the run is the other's business now
        return Status(
            updated_unix_ms=int(now * 1000),
            run_state=state,
            run_id=self.id,
            project=self.store.project,
            model_ref=self.spec.model_ref,
            store_path=self.store.url,
            resources_id=self.resources_id,
            total_rollouts=max(self.planned, sum(counts.values())),
            succeeded=counts[RolloutState.SUCCEEDED],
            failed=counts[RolloutState.FAILED] + counts[RolloutState.DEAD],
            cancelled=counts[RolloutState.CANCELLED],
            dead=counts[RolloutState.DEAD],
            running=counts[RolloutState.RUNNING],
            waiting=counts[RolloutState.QUEUING] + counts[RolloutState.REQUEUING],
            rewards=rewards,
            outcomes={str(k): n for k, n in outcomes.items() if k in ANSWERED},
            elapsed_s=round(now - self._began, 3),
            error=error,
            lesson=self.step_name,
            rl_optimizer=self._last_told("rl_optimizer"),
            prompt_search=self._last_told("prompt_search"),
        )

    def _last_told(self, name: str) -> Mapping[str, Any] | None:
        return next((step.body[name] for step in reversed(self.done) if name in step.body), None)


# Driving -------------------------------------------------------------------------------------------------------------


async def drive(
    store: Store,
    spec: RunSpec,
    control: Control,
    *,
    clock: Clock,
    observe: Observe,
    who: str,
    salt: str,
    resume: str | None = None,
    features: FlagsAfter = lambda done: ALL_ON,
) -> Status:
    """Run the program to its end and say how it ended. Whatever stops it, what was recorded stays and can be resumed.

    Which features are on is asked before each step that collects or learns, of somebody who sees what the earlier ones
    left; a scorer that everybody is kept from by a flag is refused before anything begins."""
    async with _closing(spec.runtime):
        spec.runtime.check(features(()).somebody())
        await spec.runtime.check_reachable()
        record = await _begun(store, spec, resume, clock=clock, who=who, salt=salt)
        spec.runtime.attach(store.files)
        spec.runtime.calibrate_by(store.judgements.calibrations())
        if record.settings.get("thinking_allocation") == FROM_OUTCOMES:
            spec.runtime.allocate_by(fit((use.budget, use.has_failed) for use in store.budgets.ended()))
        run = DurableRun(store, record, spec, clock=clock, who=who, observe=observe, features=features)
        try:
            arms = await asyncio.to_thread(_exposed, run)
            state, error = await _work_through(run, control)
            await tell_run(store, arms, run.id, now=clock())
            await store.runs.end(run.id, state, who=who, now=clock(), error=error, driver=record.driver)
            return run.tell(state, error)
        except StaleLease:  # the run is another's by now, and so is the last word
            raise
        except BaseException as failure:
            error = str(failure) if isinstance(failure, HoldfastError) else f"{type(failure).__name__}: {failure}"
            error = " ".join(error.splitlines())
            # The store may be what failed: what can still be said is said, and the first error is the one to raise.
            with suppress(StoreError):
                await store.runs.end(run.id, RunState.FAILED, who=who, now=clock(), error=error, driver=record.driver)
            with suppress(StoreError):
                run.tell(RunState.FAILED, error)
            raise


def _exposed(run: DurableRun) -> dict[str, str]:
    """The run as a unit of experiments about learning: its arms by experiment."""
    unit = run_unit(run.id)
    arms = dict(run.flags().exposures(unit, ("learning",)))
    expose(run.store, {(trial, unit): arm for trial, arm in arms.items()}, now=run.clock())
    return arms


async def _begun(store: Store, spec: RunSpec, resume: str | None, *, clock: Clock, who: str, salt: str) -> RunRecord:
    """A new run, or one taken up; one that other settings began is refused, and stays as it is."""
    if resume is not None:
        known = store.steps.get(resume, BEGIN)
        if known is not None:
            _refuse_other(known, _name_of(begin), _digest([_identity(spec)]))
        changed = await asyncio.to_thread(_changed, known, spec)
        resumed = await store.runs.resume(
            resume,
            who=who,
            now=clock(),
            silent_s=spec.timing.lease_s,
            process=this_process(),
            is_gone=is_gone,
            changed=changed,
        )
        if changed:
            told = ", ".join(changed[:5]) + (f" and {len(changed) - 5} more files" if len(changed) > 5 else "")
            has = "has" if len(changed) == 1 else "have"
            what = f"{told} {has} changed since {resumed.id} began: what is done stays as it is, the rest is done by"
            warnings.warn(f"{what} the new code. Start anew where both must not be mixed.", stacklevel=1)
        while await store.queue.requeue_dead(
            resumed.id, now=clock()
        ):  # what faults ended: whoever resumes has mended them
            continue
        return resumed
    return await store.runs.begin(
        kind=spec.kind,
        model_ref=spec.model_ref,
        settings=await asyncio.to_thread(store.apart, spec.settings, now=clock()),
        salt=salt,
        who=who,
        now=clock(),
        queue_limit=spec.queue_limit,
        process=this_process(),
    )


@asynccontextmanager
async def _closing(runtime: Runtime) -> AsyncIterator[None]:
    """Whatever happens, threads, loops and models of the run are let go of."""
    try:
        yield
    finally:
        await asyncio.to_thread(runtime.close)


async def assist(store: Store, spec: RunSpec, run_id: str, control: Control, *, clock: Clock) -> PoolStats:
    """More workers for a run that another process drives, until it ends or they are wanted no more."""
    async with _closing(spec.runtime):
        pool = _pool(store, run_id, spec, clock)
        await _beside(pool, spec, control, [_until_ended(store, run_id, spec, clock)], timeout_s=None)
        return pool.tally


def _pool(store: Store, run_id: str, spec: RunSpec, clock: Clock) -> Pool:
    runtime = spec.runtime
    slots: Callable[[], Slot] = runtime.slot
    how: dict[str, Any] = {"clock": clock, "seed": spec.seed, "pace": spec.timing, "versions": runtime.versions}
    how |= {"turns": runtime.turns, "is_captured": runtime.is_captured}
    if runtime.is_captured:
        how["attempt_key"] = key_in(store.folder)  # the proxy's, too
    return Pool(store, run_id, slots, spec.workers, **how)


async def _work_through(run: DurableRun, control: Control) -> tuple[RunState, str | None]:
    """The program, with the pool at work all the while; how that ended."""
    store, spec = run.store, run.spec
    pool = _pool(store, run.id, spec, run.clock)
    run.tell(RunState.RUNNING)
    beside = [_program(run), _keep_telling(run), _keep_beating(run)]
    try:
        is_late = await _beside(pool, spec, control, beside, timeout_s=spec.timeout_s)
    finally:
        run.left.set()
    # Asked of the store: all may be cancelled, and so done, before the pool's next beat brings it the order.
    if store.runs.get(run.id).wanted is DesiredState.CANCELLED:
        while await store.queue.cancel_open(run.id, now=run.clock(), why="the run was cancelled"):
            continue
        return RunState.CANCELLED, "cancelled by an order"
    if run.is_over:
        return _verdict(store, run.id) if run.failure is None else (RunState.FAILED, run.failure)
    if control.asked.is_set():
        return RunState.CANCELLED, "interrupted"
    if is_late:
        return RunState.TIMED_OUT, f"not done after {spec.timeout_s:g} s"
    return RunState.CANCELLED, "drained by an order"


async def _program(run: DurableRun) -> None:
    try:
        code = await asyncio.to_thread(own_code, run.spec.runtime.agent)
        await run.step(BEGIN, partial(begin, run.spec.runtime.tools, code), _identity(run.spec))
        await run.spec.program(run)
    except Interrupted:  # by an order to cancel
        return
    except NoSuccess as failure:
        run.failure = " ".join(str(failure).split())
    # What no step asks for any more: left by a version before durable steps, or requeued after its step was over.
    while await run.store.queue.cancel_open(run.id, now=run.clock(), why="no step asks for it"):
        continue
    run.is_over = True


def begin(tools: Sequence[Mapping[str, Any]], code: Mapping[str, str], spec: Mapping[str, Any]) -> dict[str, Any]:
    """The first step: whoever resumes the run with another pipeline or other settings is refused before any work.

    The tools that tasks may name are kept for those who look at how they were used, and hashes of the agent's code for
    those who resume with another."""
    return {**spec, **({"tools": list(tools)} if tools else {}), **({"code": dict(code)} if code else {})}


def _changed(known: StepRecord | None, spec: RunSpec) -> list[str]:
    """Files of the agent's code that are others than when the run began."""
    before = {} if known is None else known.body.get("code", {})
    now = own_code(spec.runtime.agent)
    return sorted(name for name in before if now.get(name, before[name]) != before[name])


def _identity(spec: RunSpec) -> dict[str, Any]:
    return {"pipeline": VERSION, "spec": spec.sha256()}


async def _beside(
    pool: Pool, spec: RunSpec, control: Control, beside: list[Coroutine[Any, Any, None]], *, timeout_s: float | None
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
            await asyncio.wait([working, now], timeout=spec.drain_s, return_when=FIRST_COMPLETED)
        pool.stop()
        await working
        return not ended
    finally:
        pool.stop()
        for step in (*others, asked, now):
            step.cancel()
        await asyncio.gather(working, *others, asked, now, return_exceptions=True)


def _verdict(store: Store, run: str) -> tuple[RunState, str | None]:
    counts = store.views.counts(run)
    if counts[RolloutState.SUCCEEDED]:
        return RunState.COMPLETED, None
    for state in (RolloutState.DEAD, RolloutState.FAILED):
        for first in store.views.rollouts(run, status=state, most=1):
            return RunState.FAILED, f"{NO_SUCCESS}; {first.name}: {first.reason}"
    return RunState.COMPLETED, None


async def _until_ended(store: Store, run_id: str, spec: RunSpec, clock: Clock) -> None:
    """Waits until the run has ended; StaleLease once its driver is taken for dead, as nobody would tell the helpers."""
    while True:
        seen, run = store.changes.seen(ORDERS), store.runs.get(run_id)
        if run.state is not RunState.RUNNING:
            return
        silent_s = clock() - run.beat_at
        if silent_s > DRIVER_LEASES * spec.timing.lease_s:
            why = f"its driver gave no sign of life for {silent_s:.0f} s"
            raise StaleLease(f"run {run_id}", why=why, remedy="resume it, then start its helpers again")
        await store.changes.moved(ORDERS, seen)


async def _keep_beating(run: DurableRun) -> None:
    """While we show signs of life nobody else may take the run up."""
    while True:
        await asyncio.sleep(run.spec.timing.heartbeat_s)
        await run.store.runs.beat(run.id, driver=run.record.driver, now=run.clock())


async def _keep_telling(run: DurableRun) -> None:
    """Seldom enough that looking at a large run stays a small part of the work."""
    pause, loop = run.spec.report_s, asyncio.get_running_loop()
    while True:
        await asyncio.sleep(pause)
        began = loop.time()  # a wall clock may be set meanwhile
        await asyncio.to_thread(run.tell, RunState.RUNNING)
        pause = max(run.spec.report_s, 20 * (loop.time() - began))


# What is recorded of a step ------------------------------------------------------------------------------------------


def _name_of(function: Callable[..., Any]) -> str:
    """Its import path; of a method, with its class. Arguments that are bound to it are not part of the name."""
    found: Any = getattr(function, "func", function)  # a partial
    return f"{found.__module__}.{found.__qualname__}"


def _refuse_other(known: StepRecord, function: str, digest: str) -> None:
    if known.function != function:
        why = f"was recorded by {known.function}, and is asked of {function} now"
    elif known.inputs_sha256 != digest:
        why = "was recorded with other inputs than it is given now"
    else:
        return
    remedy = "resume it with the settings, tasks and version that it began with, or begin a new run"
    raise BadInput(f"step {known.name} of {known.run}", why=why, remedy=remedy)


def _record(value: Any) -> dict[str, Any]:
    if hasattr(value, "record"):
        return cast("dict[str, Any]", value.record())
    return dict(value) if isinstance(value, Mapping) else {"value": value}


def _result(function: Callable[..., Any], body: Mapping[str, Any]) -> Any:
    """Reads a recorded result as the function's return type: by its `from_record`, as a mapping, or as a value."""
    found: Any = getattr(function, "func", function)
    kind: Any = get_type_hints(found).get("return")
    if hasattr(kind, "from_record"):
        return kind.from_record(body)
    return body["value"] if set(body) == {"value"} else dict(body)


def _plain(value: Any) -> Any:
    """A step's input as JSON: what two calls must agree on to be the same call."""
    if hasattr(value, "record"):
        return value.record()
    if hasattr(value, "manifest") and hasattr(value, "version"):
        return policy_record(cast(Policy, value))
    if is_dataclass(value) and not isinstance(value, type):
        return (
            encode(value)
            if hasattr(value, "SCHEMA")
            else {one: _plain(getattr(value, one)) for one in value.__dataclass_fields__}
        )
    if isinstance(value, Mapping):
        return {str(key): _plain(one) for key, one in value.items()}
    if isinstance(value, Sequence) and not isinstance(value, str | bytes):
        return [_plain(one) for one in value]
    return value


def _digest(inputs: Sequence[Any]) -> str:
    return _hashed([_plain(one) for one in inputs])


def _hashed(value: Any) -> str:
    return hashlib.sha256(json.dumps(value, sort_keys=True, allow_nan=False, default=str).encode()).hexdigest()
