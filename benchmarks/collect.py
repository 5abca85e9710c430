"""What a pool of workers costs: rollouts per second at several sizes, and how a bounded queue holds a fast producer.

The agent does nothing but record one event, so that what is measured is ours. Every rollout is durable when it counts.
"""

from __future__ import annotations

import asyncio
import tempfile
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from statistics import median
from typing import Any

from holdfast.collect.agent import Context, no_model
from holdfast.collect.executors import AgentRuntime, Slot
from holdfast.collect.pool import Pool, PoolTiming
from holdfast.contracts.rollout import RolloutState, Task
from holdfast.store.notifications import FINISHED, ROOM
from holdfast.store.store import Store, open_store
from parts import report
from parts.life import begin_run
from parts.report import Figures, progress, rounded

WORKERS = (1, 8, 32)
LIMIT = 64  # of the bounded queue
SLOW_S = 0.005  # what the slow consumer takes for a rollout
MEANINGS = {
    "rollouts_per_s": "a do-nothing agent, by number of workers",
    "overhead_ms_per_rollout": f"CPU per rollout with {WORKERS[-1]} workers: all of it is ours",
    "overhead_ms_by_workers": "the same by number of workers",
    "producer_wait_s": f"how long a producer waited for room behind a slow consumer ({LIMIT} may wait)",
    "max_queue_depth": "the most that ever waited; never above the limit",
    "queue_limit": "the limit",
}


async def idle(task: Any, context: Context) -> str:
    context.trace.event("step", tool="search")
    return "done"


async def slow(task: Any, context: Context) -> str:
    await asyncio.sleep(SLOW_S)
    return "done"


def measure(quick: bool) -> Figures:
    rounds, rollouts = (3, 1_000) if quick else (5, 4_000)
    per_s: dict[str, float] = {}
    cpu_ms: dict[str, float] = {}
    with tempfile.TemporaryDirectory(prefix="holdfast-bench-") as name:
        for workers in WORKERS:
            progress(f"{workers} workers")
            laps = [lap(Path(name) / f"{workers}-{number}.sqlite", workers, rollouts) for number in range(rounds)]
            per_s[str(workers)] = rounded(median(rollouts / wall for wall, _ in laps))
            cpu_ms[str(workers)] = rounded(median(1000 * cpu / rollouts for _, cpu in laps))
        progress("bounded queue")
        waited, deepest = bounded(Path(name) / "bounded.sqlite", rollouts // 2)
    return {
        "rollouts_per_s": per_s,
        "overhead_ms_per_rollout": cpu_ms[str(WORKERS[-1])],
        "overhead_ms_by_workers": cpu_ms,
        "producer_wait_s": rounded(waited),
        "max_queue_depth": deepest,
        "queue_limit": LIMIT,
    }


def lap(path: Path, workers: int, rollouts: int) -> tuple[float, float]:
    """Wall and CPU seconds to work off a full queue."""
    with open_store(path) as store:
        run = begin_run(store)
        enqueued = store.queue.enqueue(
            run, [Task(name=f"t{n}", input={"n": n}) for n in range(rollouts)], now=time.time()
        )
        enqueued.result()
        wall, cpu = time.perf_counter(), time.process_time()
        asyncio.run(work_off(store, run, idle, workers))
        spent = time.perf_counter() - wall, time.process_time() - cpu
        assert store.views.counts(run)[RolloutState.SUCCEEDED] == rollouts
        return spent


async def work_off(store: Store, run: str, agent: Any, workers: int, total: int | None = None) -> None:
    home = AgentRuntime(agent, lambda task, output, spans: (), no_model, time.time)
    pool = Pool(store, run, lambda: Slot(home.executor()), workers, clock=time.time, pace=PoolTiming())
    working = asyncio.create_task(pool.work())
    while not (store.views.is_done(run) and (total is None or sum(store.views.counts(run).values()) == total)):
        seen = store.changes.seen(FINISHED)
        await store.changes.after(FINISHED, seen)
        await asyncio.sleep(0.02)
    pool.drain()
    await working
    home.close()


def bounded(path: Path, rollouts: int) -> tuple[float, int]:
    """How long a producer as fast as it can be waited for room, and the deepest queue another reader ever saw."""
    with open_store(path) as store:
        run = store.runs.begin(
            kind="benchmark",
            model_ref="none",
            settings={},
            salt="slow",
            who="benchmark",
            now=time.time(),
            queue_limit=LIMIT,
        )
        waits: list[float] = []
        producer = threading.Thread(target=produce, args=(store, run.result().id, rollouts, waits))
        with deepest_queue(store, run.result().id) as depths:
            producer.start()
            asyncio.run(work_off(store, run.result().id, slow, 4, rollouts))
            producer.join()
        return sum(waits), max(depths)


def produce(store: Store, run: str, rollouts: int, waits: list[float]) -> None:
    tasks = [Task(name=f"t{n}", input={"n": n}) for n in range(rollouts)]
    while tasks:
        seen = store.changes.seen(ROOM)
        taken = store.queue.enqueue(run, tasks[:LIMIT], now=time.time(), up_to=True).result()
        del tasks[:taken]
        if tasks and taken < LIMIT:
            began = time.perf_counter()
            store.changes.wait(ROOM, seen, timeout=1.0)
            waits.append(time.perf_counter() - began)


@contextmanager
def deepest_queue(store: Store, run: str) -> Iterator[list[int]]:
    depths, over = [0], threading.Event()

    def look() -> None:
        while not over.wait(0.002):
            depths.append(store.views.counts(run)[RolloutState.QUEUING])

    watcher = threading.Thread(target=look)
    watcher.start()
    try:
        yield depths
    finally:
        over.set()
        watcher.join()


if __name__ == "__main__":
    report.main("Speed of collection.", measure, MEANINGS)
