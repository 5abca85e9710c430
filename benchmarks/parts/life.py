"""The life of a rollout, many at a time: enqueue, claim, four spans (each its own call), finish, read the spans back.

The same life is led by each peer in `benchmarks/peers`. Every write is awaited: it is on disk before the next begins.
"""

from __future__ import annotations

import asyncio
import time
from dataclasses import dataclass

from holdfast.contracts.rollout import AttemptState, Split, Task
from holdfast.contracts.trace import Span, SpanKind
from holdfast.store.store import Store

IN_FLIGHT = 32
SPANS = 4
WRITES = SPANS + 3  # enqueue, claim and finish are writes too


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    rollouts: int
    wall_s: float
    cpu_s: float  # user and system, all threads of this process
    claims_s: tuple[float, ...]  # how long each claim took, sorted

    @property
    def per_s(self) -> float:
        return self.rollouts / self.wall_s

    @property
    def per_cpu_s(self) -> float:
        return self.rollouts / self.cpu_s

    def claim_ms(self, share: float) -> float:
        """The claim time that `share` of the claims stayed below."""
        return 1000.0 * self.claims_s[min(int(share * len(self.claims_s)), len(self.claims_s) - 1)]


def begin_run(store: Store) -> str:
    run = store.runs.begin(
        kind="benchmark", model_ref="none", settings={}, salt="life", who="benchmark", now=time.time()
    )
    return run.result().id


def live(store: Store, run: str, n: int, *, prefix: str = "task") -> Lap:
    """Let n rollouts live, 32 at a time."""
    return asyncio.run(_live(store, run, n, prefix))


async def _live(store: Store, run: str, n: int, prefix: str) -> Lap:
    claims_s: list[float] = []
    numbers = iter(range(n))

    async def worker() -> None:
        for number in numbers:
            await _one(store, run, f"{prefix}-{number}", claims_s)

    wall, cpu = time.perf_counter(), time.process_time()
    await asyncio.gather(*(worker() for _ in range(IN_FLIGHT)))
    wall_s, cpu_s = time.perf_counter() - wall, time.process_time() - cpu
    return Lap(rollouts=n, wall_s=wall_s, cpu_s=cpu_s, claims_s=tuple(sorted(claims_s)))


async def _one(store: Store, run: str, name: str, claims_s: list[float]) -> None:
    task = Task(name=name, input={"prompt": "What is 2 + 2?"}, split=Split.TRAIN)
    await store.queue.enqueue(run, [task], now=time.time())
    asked = time.perf_counter()
    (claim,) = await store.queue.claim(run, "worker-1", now=time.time(), lease_s=60.0)
    claims_s.append(time.perf_counter() - asked)
    for seq in range(1, SPANS + 1):
        await store.traces.add(claim.attempt, [_span(seq)], now=time.time())
    await store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=time.time(), reward=1.0)
    spans = store.traces.spans(claim.attempt.token)
    assert len(spans) == SPANS, f"{name}: {len(spans)} spans came back"


def _span(seq: int) -> Span:
    now = time.time()
    return Span(
        seq=seq, kind=SpanKind.TELEMETRY, name="agent.step", started_at=now, ended_at=now, attributes={"tool": "search"}
    )
