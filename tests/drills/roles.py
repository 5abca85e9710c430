"""What processes of several drills do. Each opens the store by itself and tells its journal of every call.

A role that only one fault needs stands in the file of that fault.
"""

from __future__ import annotations

import asyncio
import signal
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.collect.agent import no_model
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.collect.pool import Pool, PoolTiming
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Task
from holdfast.contracts.trace import Span, SpanKind
from holdfast.store.notifications import ROOM
from holdfast.store.store import open_store
from tests.drills import agents
from tests.drills.journal import Journal, Witness

TRIES = 10_000  # a kill counts as a fault: nothing here may be given up
PADDING = "x" * 2000
SOON = Backoff(initial_s=0.01, cap_s=0.1)
REWARD = RewardTerm(name="done", value=1.0, source="rule:drill")


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How a pool is to work."""

    size: int = 4
    seed: int = 0
    lease_s: float = 0.8
    agent: Callable[..., Any] = agents.busy
    clock: Callable[[], float] = time.time

    @property
    def pace(self) -> PoolTiming:
        return PoolTiming(heartbeat_s=self.lease_s / 5, lease_s=self.lease_s, idle_s=0.5, backoff=SOON)


def pool_worker(journal: Journal, url: str, run: str, work: Work) -> None:
    """A pool as any user has it, until the run is drained; its own notes keep the ledger's chain growing."""
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        asyncio.run(_pool(store, run, work))


async def _pool(store: Witness, run: str, work: Work) -> None:
    home = AgentRuntime(work.agent, agents.score, no_model, work.clock)
    pool = Pool(store, run, lambda: Slot(home.executor()), work.size, clock=work.clock, seed=work.seed, pace=work.pace)
    writing = asyncio.create_task(_keep_notes(store, run, pool.worker))
    try:
        await pool.work()
    finally:
        writing.cancel()
        home.close()


async def _keep_notes(store: Witness, run: str, worker: str) -> None:
    number = 0
    while True:
        await store.ledger.append("note", {"note": f"{worker} {number}"}, who=worker, now=time.time(), run=run)
        number += 1
        await asyncio.sleep(0.1)


def producer(journal: Journal, url: str, run: str, prefix: str) -> None:
    """Keeps the bounded queue full until it is told to stop."""
    told = told_to_stop()
    with open_store(url, poll_s=0.02) as opened:
        store, place = Witness(opened, journal), 0
        while not told.is_set():
            seen = opened.changes.seen(ROOM)
            tasks = [task(f"{prefix}-{number}") for number in range(place, place + 7)]
            taken = store.queue.enqueue(run, tasks, now=time.time(), up_to=True).result()
            place += taken
            if taken < len(tasks):
                opened.changes.wait(ROOM, seen, 0.2)


def told_to_stop() -> threading.Event:
    """Set by SIGTERM."""
    told = threading.Event()
    signal.signal(signal.SIGTERM, lambda *_: told.set())
    return told


def task(name: str) -> Task:
    return Task(name=name, input={"prompt": name}, max_attempts=TRIES, max_faults=TRIES)


def span(seq: int) -> Span:
    now = time.time()
    made = {"made_ns": time.monotonic_ns()}
    return Span(seq=seq, kind=SpanKind.TELEMETRY, name="step", started_at=now, ended_at=now, attributes=made)


def succeed(store: Witness, attempt: Attempt) -> Any:
    return store.queue.finish(attempt, AttemptState.SUCCEEDED, now=time.time(), reward=1.0, output=PADDING)
