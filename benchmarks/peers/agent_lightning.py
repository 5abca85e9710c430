"""Agent Lightning's in-memory store on the life cycle of `benchmarks/parts/life.py`; run by the peers' interpreter.

Says `{"version": …}` once it is imported. Then each line on stdin is a number of rollouts, answered by one JSON line
with the wall and CPU seconds they took on a fresh store. Nothing of this store is ever on disk.
"""

from __future__ import annotations

import asyncio
import json
import os
import sys
import time
from importlib.metadata import version

os.environ["LITELLM_LOCAL_MODEL_COST_MAP"] = "True"  # it comes along, and would ask the network for its price list
answers, sys.stdout = sys.stdout, sys.stderr  # whatever the imports print is not an answer

from agentlightning.store.memory import InMemoryLightningStore  # noqa: E402
from agentlightning.types import Span  # noqa: E402

IN_FLIGHT = 32
SPANS = 4


async def live(n: int) -> dict[str, float]:
    store = InMemoryLightningStore()
    numbers = iter(range(n))

    async def worker() -> None:
        for _ in numbers:
            await one(store)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    return {"rollouts": n, "wall_s": time.perf_counter() - wall, "cpu_s": time.process_time() - cpu}


async def one(store: InMemoryLightningStore) -> None:
    await store.enqueue_rollout(input={"prompt": "What is 2 + 2?"}, mode="train")
    claimed = await store.dequeue_rollout(worker_id="worker-1")
    rollout, attempt = claimed.rollout_id, claimed.attempt.attempt_id
    for seq in range(1, SPANS + 1):
        await store.add_span(span(rollout, attempt, seq))
    await store.update_attempt(rollout, attempt, status="succeeded")
    spans = await store.query_spans(rollout, attempt)
    assert len(spans) == SPANS, f"{rollout}: {len(spans)} spans came back"


def span(rollout: str, attempt: str, seq: int) -> Span:
    now = time.time()
    return Span.from_attributes(
        rollout_id=rollout,
        attempt_id=attempt,
        sequence_id=seq,
        name="agent.step",
        start_time=now,
        end_time=now,
        attributes={"tool": "search"},
    )


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


say({"version": version("agentlightning")})
for line in sys.stdin:
    say(asyncio.run(live(int(line))))
