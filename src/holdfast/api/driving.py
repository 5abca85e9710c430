"""A run that this process drives: on a thread with an event loop of its own, so that a notebook's loop is left alone.

What is stopped or interrupted is not lost: the same call again takes the run up where it stood. What a run does is its
program's business.
"""

from __future__ import annotations

import asyncio
import json
import os
import secrets
import sys
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, Generic, TypeVar

from holdfast.api.inputs import Options, Waived, agent_from, described, engine_for, score_from, task_set, unscored
from holdfast.api.stored import Run, StoreAddress, who
from holdfast.collect.pool import PoolTiming
from holdfast.collect.tasks import TaskSet
from holdfast.contracts.agent import Agent
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput, HoldfastError, NotFound
from holdfast.contracts.flag import FeatureFlags
from holdfast.contracts.policy import Policy
from holdfast.contracts.run import DesiredState, RunRecord, RunState, Status
from holdfast.pipeline.context import Runtime
from holdfast.pipeline.improve import note_waiver
from holdfast.pipeline.run import NO_SUCCESS, Control, RunSpec, drive
from holdfast.pipeline.run import DurableRun as Driven
from holdfast.promote.flags import snapshot
from holdfast.reward.turns import TurnRewards
from holdfast.store.store import Store

T = TypeVar("T")
QUIET_S = 2.0  # what takes no longer shows no progress
LINE_S = 10.0  # between two lines where there is no terminal
PAGE = 100


def join_others() -> None:
    """Joins the processes that torchrun started: the first one continues here, the others only train with it."""
    if "TORCHELASTIC_RUN_ID" in os.environ:
        from holdfast.pipeline.spec import needs_torch

        needs_torch()
        from holdfast.learn.distributed import join

        join()


class Stopped(HoldfastError):
    """The run was stopped before its end."""


class Started(Run, Generic[T]):
    """A run under way. `wait` gives its result, `events` tells how far it is, `stop` ends it early."""

    def __init__(
        self,
        place: StoreAddress,
        store: Store,
        spec: RunSpec,
        read: Callable[[Store, Run], T],
        *,
        begun: Callable[[Store, str], None] = lambda store, run: None,
    ) -> None:
        super().__init__(place, "")
        self._store, self._spec, self._read, self._begun = store, spec, read, begun
        self._news = threading.Condition()
        self._statuses: list[Status] = []
        self._value: T | None = None
        self._error: BaseException | None = None
        self._is_over = False
        self._loop: asyncio.AbstractEventLoop | None = None
        self._control: Control | None = None
        self.resumed = interrupted(store, spec)
        self._thread = threading.Thread(target=self._work, name="holdfast-run", daemon=True)
        self._thread.start()

    @property
    def id(self) -> str:
        """Known as soon as the run is in the store."""
        with self._news:
            self._news.wait_for(lambda: self._id or self._is_over)
        if not self._id and self._error is not None:
            raise self._error
        return self._id

    @property
    def is_over(self) -> bool:
        return self._is_over

    def events(self) -> Iterator[Status]:
        """Yields each status from the beginning, until the run has ended."""
        seen = 0
        while True:
            with self._news:
                while len(self._statuses) <= seen and not self._is_over:
                    self._news.wait()
                new, is_over = self._statuses[seen:], self._is_over
            yield from new
            seen += len(new)
            if is_over and not new:
                return

    def stop(self) -> None:
        """End it soon: what runs is handed back, and the same call goes on from there."""
        with self._news:
            self._news.wait_for(lambda: self._loop is not None or self._is_over)
            if self._loop is not None and self._control is not None and not self._is_over:
                self._loop.call_soon_threadsafe(self._control.stop)

    def wait(self, timeout: float | None = None) -> T:
        """The result, once the run has ended. Ctrl-C stops the run; the same call again goes on with it."""
        try:
            with ProgressLine() as progress:
                self._watch(progress, timeout)
        except KeyboardInterrupt:
            self.stop()
            self._thread.join(self._spec.drain_s)
            print(f"\n{self._id} is stopped; the same call goes on from there", file=sys.stderr)
            raise
        self._thread.join()
        if self._error is not None:
            raise self._error
        assert self._value is not None
        return self._value

    def _watch(self, progress: ProgressLine, timeout: float | None) -> None:
        until = None if timeout is None else time.monotonic() + timeout
        while True:
            with self._news:
                is_over = self._news.wait_for(lambda: self._is_over, timeout=0.2)
                last = self._statuses[-1] if self._statuses else None
            if is_over:
                return
            if last is not None:
                progress.show(last)
            if until is not None and time.monotonic() > until:
                raise TimeoutError(f"{self._id} is not done after {timeout} s; it goes on")

    # On the thread -----------------------------------------------------------------------------------------------

    def _work(self) -> None:
        try:
            status = asyncio.run(self._main())
            self._end(status)
        except BaseException as error:  # told to whoever waits
            self._error = error
            if not self._id:  # refused before it began: nobody else lets go of it
                self._spec.runtime.close()
        finally:
            self._store.close()
            with self._news:
                self._is_over = True
                self._news.notify_all()

    async def _main(self) -> Status:
        salt = secrets.token_hex(2)
        control = Control()
        with self._news:
            self._loop, self._control = asyncio.get_running_loop(), control
            self._news.notify_all()
        return await drive(
            self._store,
            self._spec,
            control,
            clock=self._store.clock,
            observe=self._observe,
            who=who(),
            salt=salt,
            resume=self.resumed,
            features=lambda done: self._flags(),
        )

    def _flags(self) -> FeatureFlags:
        flags, trials = self._store.flags.all(), self._store.trials.all()
        return snapshot(flags, now=time.time(), environment=os.environ, trials=trials)

    def _observe(self, status: Status) -> None:
        is_first = not self._id
        with self._news:
            self._id = status.run_id
            self._statuses.append(status)
            self._news.notify_all()
        if is_first:
            self._begun(self._store, status.run_id)

    def _end(self, status: Status) -> None:
        if status.run_state is RunState.COMPLETED or (status.error or "").startswith(NO_SUCCESS):
            self._value = self._read(self._store, self)
            if status.run_state is RunState.COMPLETED:
                return
        kind = Stopped if status.run_state is RunState.CANCELLED else HoldfastError
        remedy = "" if (status.error or "").startswith(NO_SUCCESS) else "the same call goes on from there"
        raise kind(f"run {status.run_id}", why=status.error or str(status.run_state), remedy=remedy)


def interrupted(store: Store, spec: RunSpec) -> str | None:
    """The last run of the same call that did not come to its end, to go on with; None: there is none."""
    settings = json.loads(json.dumps(spec.settings))
    for run in store.runs.newest(most=PAGE):
        if run.kind == spec.kind and store.whole(run.settings) == settings:
            return run.id if _is_open(run) else None
    return None


def _is_open(run: RunRecord) -> bool:
    if run.state is RunState.COMPLETED or run.wanted is DesiredState.CANCELLED:
        return False
    return not (run.state is RunState.FAILED and (run.error or "").startswith(NO_SUCCESS))


class ProgressLine:
    """Nothing for two seconds, then a bar on a terminal or in a notebook, elsewhere a line now and then. On stderr."""

    def __init__(self) -> None:
        self._since = self._said = time.monotonic()
        self._bar: Any = None

    def __enter__(self) -> ProgressLine:
        return self

    def __exit__(self, *error: object) -> None:
        if self._bar is not None:
            self._bar.stop()

    def show(self, status: Status) -> None:
        now = time.monotonic()
        if now - self._since < QUIET_S:
            return
        done = status.succeeded + status.failed + status.cancelled
        note = status.lesson or ""
        if self._bar is None and not self._begin():
            if now - self._said > LINE_S or self._said == self._since:
                self._said = now
                of = f" of {status.total_rollouts}" if status.total_rollouts > done else ""
                counted = f"{done}{of} rollouts" if status.total_rollouts else ""  # in an environment there are none
                message = ", ".join(filter(None, (counted, note))) or "starting"
                print(f"{status.run_id}: {message}", file=sys.stderr)
            return
        total = status.total_rollouts if status.total_rollouts >= done else None
        self._bar.update(self._task, description=status.run_id, completed=done, total=total, note=note)

    def _begin(self) -> bool:
        """Whether there is a terminal, or a notebook, to show a bar in."""
        from rich.console import Console
        from rich.progress import BarColumn, MofNCompleteColumn, TextColumn
        from rich.progress import Progress as Bar

        console = Console(stderr=True)
        if not (console.is_terminal or console.is_jupyter):
            return False
        columns = (
            TextColumn("{task.description}"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[note]}"),
        )
        self._bar = Bar(*columns, console=console, transient=True)
        self._task = self._bar.add_task("", total=None, note="")
        self._bar.start()
        return True


# What the calls that run an agent have in common ---------------------------------------------------------------------

API = 1  # of the settings that are kept with a run
LEASE_S = 10.0


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every call that runs an agent has in common, checked."""

    tasks: TaskSet
    agent: Agent
    score: Any  # a TaskScore, or nothing is measured
    policies: tuple[Policy, ...]
    runtime: Runtime
    options: Options
    waived: str | None
    base_url: str | None
    settings: Mapping[str, Any]

    @property
    def place(self) -> StoreAddress:
        return StoreAddress(str(self.options["store"]), self.options["project"])


ELSEWHERE = ("store", "project", "workers", "vllm")  # where it runs, not what: another call may say otherwise


def prepare(
    given: Mapping[str, Any],
    *,
    agent: Any,
    tasks: Any,
    scorers: Any,
    safety: Any,
    policies: Sequence[Policy],
    base_url: str | None,
    options: Options,
    made: Agent | None = None,
) -> Setup:
    """`given` is what else two calls must agree on; `made` an agent that was put together from several."""
    found = task_set(tasks)
    adapted = made or agent_from(agent)
    score: Any = unscored if scorers is None else score_from(scorers, safety, list(found))
    waived = safety.why if isinstance(safety, Waived) else None
    runtime = runtime_for(adapted, score, policies, base_url, options)
    settings = {
        "api": API,
        **given,
        "agent": described(agent),
        "scorers": described(getattr(score, "score", None)),
        "waived": waived,
        "policies": described(policies),
        "base_url": base_url,
        "tasks": dict(found.sha256),
        **{name: described(value) for name, value in options.items() if name not in ELSEWHERE},
    }
    return Setup(
        tasks=found,
        agent=adapted,
        score=score,
        policies=tuple(policies),
        runtime=runtime,
        options=options,
        waived=waived,
        base_url=base_url,
        settings=settings,
    )


def runtime_for(
    agent: Agent,
    score: Any,
    policies: Sequence[Policy],
    base_url: str | None,
    options: Options,
    files: Artifacts | None = None,
) -> Runtime:
    """Makes the runtime and opens every policy, so that a bad one fails here and not in a worker. `files` are those of
    the store, if it is known: checkpoints lie there."""
    turns = TurnRewards(weights=options.get("tool_reward", {}))
    runtime = Runtime(agent, score, engine_for(policies, base_url, options), turns=turns)
    try:
        if files is not None:
            runtime.attach(files)
        for policy in policies:
            runtime.open(policy)
    except BaseException:
        runtime.close()
        raise
    return runtime


def launch(
    setup: Setup, kind: str, program: Callable[[Driven], Any], read: Callable[[Store, Run], T], model_ref: str
) -> Started[T]:
    report = replace(setup.tasks.report, is_proof=kind == "improve")
    if report.warnings:
        print(report, file=sys.stderr)
    return drive_spec(setup, run_spec(setup, kind, program, model_ref), read)


def run_spec(setup: Setup, kind: str, program: Callable[[Driven], Any], model_ref: str) -> RunSpec:
    options = setup.options
    return RunSpec(
        kind=kind,
        program=program,
        model_ref=model_ref,
        settings=setup.settings,
        runtime=setup.runtime,
        workers=options["workers"],
        timing=PoolTiming(heartbeat_s=1.0, lease_s=LEASE_S),
        seed=options["seed"],
    )


def drive_spec(setup: Setup, spec: RunSpec, read: Callable[[Store, Run], T]) -> Started[T]:
    return begin(setup.place, spec, read, policies=setup.policies, begun=partial(_note, setup))


def begin(
    place: StoreAddress,
    spec: RunSpec,
    read: Callable[[Store, Run], T],
    *,
    create: bool = True,
    policies: Sequence[Policy] = (),
    run: str | None = None,
    begun: Callable[[Store, str], None] = lambda store, run: None,
) -> Started[T]:
    """Open the store and drive the run, once its policies, and the run that it learns from, are there."""
    store = None
    try:
        store = place.open(create=create)
        if run is not None:
            store.runs.get(run)
        for policy in policies:
            check_there(policy, store)
        return Started(place, store, spec, read, begun=begun)
    except BaseException:
        spec.runtime.close()
        if store is not None:
            store.close()
        raise


def _note(setup: Setup, store: Store, run: str) -> None:
    """Notes in the ledger that safety is waived, before anything is decided."""
    if setup.waived is not None:
        noted = note_waiver(store, run, setup.waived, who=who(), now=time.time())
        if noted is not None:
            noted.result()


def check_there(policy: Policy, store: Store) -> None:
    """Weights that were trained lie in one store, and a run in another one could not be resumed."""
    checkpoint = getattr(policy, "checkpoint", None)
    if checkpoint is None:
        return
    try:
        store.checkpoints.get(checkpoint)
    except NotFound:
        remedy = "give the store that it was trained in, or export it and name the folder"
        raise BadInput(f"policy {policy.version}", why=f"is not in the store {store.url}", remedy=remedy) from None
