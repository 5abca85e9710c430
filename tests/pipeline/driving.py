"""What the tests of the pipeline play in: programs of a few steps, agents that wait when told, and a run that is
watched."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

import pytest

from holdfast.collect.agent import Context
from holdfast.contracts.agent import Agent
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.flag import ALL_ON
from holdfast.contracts.policy import Checkpoint, Policy
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import DesiredState, RunState, Status
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.run import Control, DurableRun, FlagsAfter, RunSpec, drive
from holdfast.policies.prompt import Prompt
from holdfast.store.store import Store
from tests.collect.scene import PATIENCE_S, until
from tests.pipeline.scene import echo, spec_of, worth

Program = Callable[[DurableRun], Awaitable[Any]]
SPLITS = (Split.TRAIN, Split.TRAIN, Split.VAL)
EACH_ENGINE = pytest.mark.parametrize("places", ["files", "databases"], indirect=True, ids=["sqlite", "postgres"])
ASLEEP = {"heartbeat_s": PATIENCE_S, "lease_s": 10 * PATIENCE_S}  # of a driver that gives no sign of life meanwhile


async def failing(task: Any, context: Context) -> None:
    raise ValueError("no")


def work(count: int, policy: Policy | None = None) -> list[Work]:
    """Tasks t0, t1, …; every third is for validation."""
    acts = policy or Prompt()
    return [Work(name=f"t{n}", input=n, policy=acts, group=f"t{n}", split=SPLITS[n % 3]) for n in range(count)]


def all_of(todo: Sequence[Work], *, max_attempts: int = 3) -> Program:
    """One step: the work is run to its end."""

    async def program(run: DurableRun) -> None:
        run.planned = len(todo)
        await run.step("collect", collect, todo, max_attempts, None, title="rollouts")

    return program


class Gate:
    """An agent that lets the first so many pass and holds the others until it is opened."""

    def __init__(self, passes: int = 0) -> None:
        self.opened, self.held, self._passes = threading.Event(), 0, passes
        self._lock = threading.Lock()

    async def __call__(self, task: Any, context: Context) -> Any:
        with self._lock:
            self._passes -= 1
            is_held = self._passes < 0
            self.held += is_held
        while is_held and not self.opened.is_set():  # noqa: ASYNC110 - the test is on another event loop
            await asyncio.sleep(0.005)
        return task


@dataclass
class Watched:
    """One driver of a run, and every status it told."""

    store: Store
    spec: RunSpec
    control: Control = field(default_factory=Control)
    statuses: list[Status] = field(default_factory=list)
    resume: str | None = None
    features: FlagsAfter = lambda done: ALL_ON
    slow_s: float = 0.0  # how long an observer takes
    jumps_s: float = 0.0  # by which the clock is set while an observer has the second status
    seen: threading.Event | None = None  # what an observer waits for, from its second look on
    is_stuck: bool = False
    _ahead_s: float = 0.0

    def observe(self, status: Status) -> None:
        time.sleep(self.slow_s)
        self.statuses.append(status)
        if len(self.statuses) == 2:
            self._ahead_s = self.jumps_s
        if self.seen is not None and len(self.statuses) > 1:
            self.is_stuck = True
            assert self.seen.wait(PATIENCE_S)

    async def run(self) -> Status:
        driving = drive(
            self.store,
            self.spec,
            self.control,
            clock=lambda: time.time() + self._ahead_s,
            observe=self.observe,
            who="test",
            salt="abcd",
            resume=self.resume,
            features=self.features,
        )
        return await asyncio.wait_for(driving, PATIENCE_S)

    @asynccontextmanager
    async def going(self) -> AsyncIterator[asyncio.Task[Status]]:
        running = asyncio.create_task(self.run())
        await until(lambda: self.statuses or running.done())
        yield running
        await asyncio.wait([running])

    @property
    def run_id(self) -> str:
        return self.statuses[0].run_id

    def told(self) -> list[RunState]:
        """The states as told: the same one twice in a row is told once here."""
        states = [status.run_state for status in self.statuses]
        return [state for place, state in enumerate(states) if place == 0 or states[place - 1] is not state]

    def ended(self) -> tuple[RunState, str | None]:
        run = self.store.runs.get(self.run_id)
        assert run.state is RunState.RUNNING or run.ended_at is not None
        return run.state, run.error


def attempts(store: Store, run: str, count: int) -> list[list[str]]:
    return [[str(a.status) for a in store.views.attempts(f"{run}/t{n}")] for n in range(count)]


def names(store: Store, run: str) -> list[str]:
    """Of the steps on record."""
    return [one.name for one in store.steps.of_run(run)]


def order(operator: Store, run: str, wanted: DesiredState) -> None:
    operator.runs.want(run, wanted, who="operator", why="because", now=time.time()).result()


# A school: three lessons of two tasks each


class School:
    """Steps of two tasks each, and what is learnt from them: the sum of the rewards so far. Each leaves a checkpoint.

    In lesson `held`, learning waits until the school is opened."""

    def __init__(self, lessons: int = 3, held: int | None = None) -> None:
        self.lessons, self._held = lessons, held
        self.begun, self.opened, self.left = threading.Event(), threading.Event(), threading.Event()
        self.taught: list[list[str]] = []  # rollouts, by call

    async def program(self, run: DurableRun) -> None:
        before: dict[str, Any] = {}
        for number in range(1, self.lessons + 1):
            todo = [
                Work(name=f"l{number}-{n}", input=10 * number + n, policy=Prompt(), group=f"l{number}-{n}")
                for n in range(2)
            ]
            title = f"lesson {number}"
            batch = await run.step(f"{number}/collect", collect, todo, 1, None, title=title)
            before = await run.step(f"{number}/learn", self.learn, number, batch, before, title=title)

    def learn(self, number: int, batch: Batch, before: dict[str, Any], *, ctx: StepContext) -> dict[str, Any]:
        experiences = ctx.experiences(batch)
        self.taught.append([one.rollout.partition("/")[2] for one in experiences])
        if number == self._held:
            self.begun.set()
            assert self.opened.wait(PATIENCE_S)
        total = before.get("sum", 0.0) + sum(one.breakdown.total or 0.0 for one in experiences if one.breakdown)
        self.left.set()
        made = Checkpoint(
            id=f"{ctx.run}-{number}",
            algorithm="adding",
            policy_version=str(number),
            global_step=number,
            episode_count=0,
            parent=before.get("checkpoint"),
            created_at=ctx.now(),
        )
        ctx.add_checkpoint(made)
        return {"sum": total, "rl_optimizer": {"samples": 2 * number}, "checkpoint": made.id}


def at_school(school: School, agent: Agent = echo, **fields: Any) -> RunSpec:
    return spec_of(school.program, agent, worth, **fields)


SCHOOL = ["begin", "1/collect", "1/learn", "2/collect", "2/learn", "3/collect", "3/learn"]


def is_whole(store: Store, run: str) -> None:
    """All three lessons are on record, each once, and nothing succeeded twice."""
    steps = store.steps.of_run(run)
    assert [one.name for one in steps] == SCHOOL
    assert [one.step for one in steps] == [1, 2, 3, 4, 5, 6, 7]
    learnt = [one.body for one in steps if one.name.endswith("learn")]
    assert [body["sum"] for body in learnt] == [21.0, 62.0, 123.0]  # 10 + 11, + 20 + 21, + 30 + 31
    made = [body["checkpoint"] for body in learnt]
    assert [one.id for one in store.checkpoints.of_run(run)] == made
    assert [one.id for one in store.checkpoints.lineage(made[-1])] == made
    rollouts = store.views.rollouts(run, most=100)
    assert sorted(one.name for one in rollouts) == ["l1-0", "l1-1", "l2-0", "l2-1", "l3-0", "l3-1"]
    for one in rollouts:
        assert [str(a.status) for a in store.views.attempts(one.id)].count("succeeded") == 1
    store.ledger.verify()
    store.steps.verify(run)
