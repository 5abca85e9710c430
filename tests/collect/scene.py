"""What the tests of collection play in: a run with its tasks, pools that work it off, seats that need no pool."""

from __future__ import annotations

import asyncio
import operator
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import partial
from queue import SimpleQueue
from typing import Any

from holdfast.collect.agent import Score
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.collect.pool import Pool, PoolStats, PoolTiming
from holdfast.contracts.agent import Agent
from holdfast.contracts.engine import Complete
from holdfast.contracts.executor import Assignment, Executor, Outcome
from holdfast.contracts.rollout import Attempt, Backoff, Rollout, RolloutState, Task
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import Span
from holdfast.store.store import Store
from tests.collect.agents import no_score

PATIENCE_S = 60.0  # far more than anything here takes: only a hang reaches it
# Beats are quick and leases are long: on a busy machine a beat may be seconds late, and nobody healthy is lost by it.
PACE = PoolTiming(heartbeat_s=0.05, lease_s=60.0, idle_s=1.0, backoff=Backoff(initial_s=0.01, cap_s=0.02))


def fall_silent(store: Store, run: str) -> None:
    """As if whoever drives the run and works on it had given no sign of life for an hour: no test waits for leases."""
    then = time.time() - 3600
    store.runs.beat(run, driver=store.runs.get(run).driver, now=then).result()
    rollouts = store.views.rollouts(run, status=RolloutState.RUNNING, most=1000)
    held = [store.views.attempts(rollout.id)[-1].token for rollout in rollouts]
    assert store.queue.beat(run, held, now=then, lease_s=1.0).result().alive == set(held)


def assignment(task: Any = None, **fields: Any) -> Assignment:
    given = {"rollout": "run-1/t", "attempt": "run-1/t:attempt-1", "number": 1, "split": None, "resources": {}}
    return Assignment(**{"input": task, "seed": 7, **given, **fields})


async def until(condition: Callable[[], object], within_s: float = PATIENCE_S) -> None:
    """Wait, without blocking anybody, until it holds."""
    patience = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < patience, "it never came true"
        await asyncio.sleep(0.01)


class Block:
    """Waiting inside C: from the moment it is on until it is released, the thread runs no line of Python."""

    def __init__(self) -> None:
        self._on: SimpleQueue[None] = SimpleQueue()
        self._off: SimpleQueue[None] = SimpleQueue()

    def wait(self) -> None:
        # All of it is C: nothing can break in between saying so and waiting.
        list(map(operator.call, (partial(self._on.put, None), partial(self._off.get, True, PATIENCE_S))))

    def is_on(self) -> bool:
        return not self._on.empty()

    def release(self) -> None:
        self._off.put(None)


@contextmanager
def home_of(agent: Agent, score: Score = no_score, model: Complete | None = None) -> Iterator[AgentRuntime]:
    home = AgentRuntime(agent, score, lambda version: model, time.time)
    try:
        yield home
    finally:
        home.close()


@dataclass
class Sitting:
    """One attempt on a seat, without a pool."""

    place: Executor
    spans: list[Span] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.seat = Slot(self.place)

    async def run(self, task: Any = None, **fields: Any) -> Outcome | None:
        given = assignment(task, **fields)
        return await asyncio.wait_for(self.seat.run(given, self.spans.append), PATIENCE_S)


@dataclass
class Bench:
    """One run on a store, and pools that work on it."""

    store: Store
    queue_limit: int | None = None
    homes: list[AgentRuntime] = field(default_factory=list)

    def __post_init__(self) -> None:
        begun = self.store.runs.begin(
            kind="optimize",
            model_ref="m",
            settings={},
            salt="t",
            who="test",
            now=time.time(),
            queue_limit=self.queue_limit,
        )
        self.run = begun.result().id

    def enqueue(self, *inputs: Any, **fields: Any) -> list[str]:
        """Tasks t1, t2, … with these inputs."""
        tasks = [Task(name=f"t{n}", input=item, **fields) for n, item in enumerate(inputs, 1)]
        self.store.queue.enqueue(self.run, tasks, now=time.time()).result()
        return [task.name for task in tasks]

    def pool(
        self,
        agent: Agent,
        size: int = 2,
        *,
        score: Score = no_score,
        model: Complete | None = None,
        pace: PoolTiming = PACE,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> Pool:
        home = AgentRuntime(agent, score, lambda version: model, time.time)
        self.homes.append(home)
        return self.pool_of(lambda: Slot(home.executor()), size, pace=pace, seed=seed, clock=clock)

    def pool_of(
        self,
        seats: Callable[[], Slot],
        size: int,
        *,
        pace: PoolTiming = PACE,
        seed: int = 0,
        clock: Callable[[], float] = time.time,
    ) -> Pool:
        return Pool(self.store, self.run, seats, size, clock=clock, seed=seed, pace=pace)

    async def work_off(self, pool: Pool) -> PoolStats:
        """Work until nothing of the run is open; a pool that fails fails here."""
        working = asyncio.create_task(pool.work())
        await until(lambda: working.done() or self.store.views.is_done(self.run))
        pool.drain()
        return await asyncio.wait_for(working, PATIENCE_S)

    def order(self, wanted: DesiredState) -> None:
        self.store.runs.want(self.run, wanted, who="test", why="because", now=time.time()).result()

    def rollout(self, name: str = "t1") -> Rollout:
        return self.store.views.rollout(f"{self.run}/{name}")

    def attempts(self, name: str = "t1") -> list[Attempt]:
        return self.store.views.attempts(f"{self.run}/{name}")

    def states(self, name: str = "t1") -> list[str]:
        return [str(attempt.status) for attempt in self.attempts(name)]

    def output(self, name: str = "t1") -> Any:
        return self.store.views.output(self.attempts(name)[-1])

    def close(self) -> None:
        for home in self.homes:
            home.close()
