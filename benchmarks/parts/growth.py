"""Whether claim and finish cost more in a store with a long history: two stores, one a thousand times the other.

Both are filled by plain SQL, because a million rollouts one by one would take ten minutes. The rows take the steps the
database insists on: born queuing, claimed by an attempt, ended. The first half is finished, with an attempt and a span
each, and the second half waits in the queue.
"""

from __future__ import annotations

import sqlite3
import statistics
import time
from pathlib import Path

from holdfast.contracts.rollout import AttemptState, Task
from holdfast.store.store import Store, open_store
from parts.life import IN_FLIGHT, begin_run

SMALL = 1_000
# Few enough that the small store stays small: it ends with 1,000 + 32 × 24 rollouts.
ROUNDS = 24

FILL = (
    """WITH RECURSIVE n(i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < :n)
    INSERT INTO rollouts
    (run, name, input, split, status, priority, max_attempts, attempt_count, faults, enqueued_at, ready_at)
    SELECT :run, 'old-' || i, '{"prompt":"What is 2 + 2?"}', 'train', 'queuing', 0, 3, 0, 0, :now, :now FROM n""",
    "UPDATE rollouts SET status = 'running', attempt_count = 1, started_at = :now WHERE key <= :n / 2",
    """INSERT INTO attempts (rollout, number, worker, status, started_at, beat_at, lease_until)
    SELECT key, 1, 'worker-1', 'running', :now, :now, :now + 60 FROM rollouts WHERE status = 'running' ORDER BY key""",
    """INSERT INTO spans (attempt, seq, kind, name, started_at, ended_at, body)
    SELECT key, 1, 'telemetry', 'agent.step', :now, :now, '{"attributes":{"tool":"search"}}' FROM attempts
    ORDER BY key""",
    "UPDATE attempts SET status = 'succeeded', ended_at = :now",
    """UPDATE rollouts SET status = 'succeeded', ended_at = :now, reward = 1.0,
    final = (SELECT a.key FROM attempts a WHERE a.rollout = rollouts.key) WHERE status = 'running'""",
)


def growth(folder: Path, n: int) -> float:
    """CPU cost of claim + finish with n rollouts in the store, over that with 1,000: the median of paired rounds."""
    with filled(folder / "small.sqlite", SMALL) as small, filled(folder / "large.sqlite", n) as large:
        stores = [(store, store.runs.newest()[0].id) for store in (small, large)]
        ratios = []
        for number in range(-4, ROUNDS):  # the first few only warm the caches
            costs = [claim_and_finish(store, run, f"new-{number}") for store, run in stores]
            if number >= 0:
                ratios.append(costs[1] / costs[0])
        return statistics.median(ratios)


def filled(path: Path, n: int) -> Store:
    with open_store(path) as store:
        begin_run(store)
    connection = sqlite3.connect(path, isolation_level=None)
    connection.execute("PRAGMA synchronous = OFF")  # only while filling: the store sets its own again
    connection.execute("PRAGMA cache_size = -262144")
    connection.execute("BEGIN")
    for statement in FILL:
        connection.execute(statement, {"n": n, "run": 1, "now": time.time()})
    connection.execute("COMMIT")
    connection.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    connection.close()
    return open_store(path)


def claim_and_finish(store: Store, run: str, prefix: str) -> float:
    """CPU-seconds of 32 claims and 32 finishes; as many rollouts come in before, so that the queue keeps its length."""
    now = time.time()
    store.queue.enqueue(run, [Task(name=f"{prefix}-{i}", input={}) for i in range(IN_FLIGHT)], now=now).result()
    cpu = time.process_time()
    asked = [store.queue.claim(run, "worker-1", now=now, lease_s=60.0) for _ in range(IN_FLIGHT)]
    claims = [claim for pending in asked for claim in pending.result()]
    ended = [store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=now, reward=1.0) for claim in claims]
    for pending in ended:
        pending.result()
    cpu_s = time.process_time() - cpu
    assert len(claims) == IN_FLIGHT
    return cpu_s
