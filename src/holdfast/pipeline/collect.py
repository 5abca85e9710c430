"""The step that collects: run the work that an algorithm asked for, or take what another run has collected."""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED
from collections.abc import Iterator, Sequence
from itertools import islice

from holdfast.contracts.algorithm import Batch, RolloutTail, Segment, Work
from holdfast.contracts.rollout import Rollout, RolloutState, Split
from holdfast.contracts.run import RunState
from holdfast.pipeline.context import StepContext
from holdfast.store.notifications import FINISHED, ORDERS
from holdfast.store.store import Store

STEPS = 4  # worth of rollouts that one batch takes at most
HEED_S = 1.0  # so often whoever waits looks whether something was overridden meanwhile


async def collect(
    work: Sequence[Work | RolloutTail | Segment],
    max_attempts: int = 1,
    timeout_s: float | None = 300.0,
    *,
    ctx: StepContext,
) -> Batch:
    """Run the work to its end, and refer to what came of it. A tail waits for rollouts of the run that it follows.

    A segment is only referred to: who learns from it plays it, since all that it plays would be too much to keep."""
    segments = [segment for segment in work if isinstance(segment, Segment)]
    if segments:
        return Batch(run=ctx.run, step=ctx.name, count=0, segment=segments[0])
    tails = [tail for tail in work if isinstance(tail, RolloutTail)]
    if tails:
        return await _follow(tails[0], ctx)
    tasks = [one for one in work if isinstance(one, Work)]
    return await ctx.collect(tasks, max_attempts=max_attempts, timeout_s=timeout_s)


async def _follow(tail: RolloutTail, ctx: StepContext) -> Batch:
    """Wait until enough of the other run's rollouts have a reward or have failed; what there is, once it is over.

    Which ones are taken is kept before anything is learnt from them. How many are waited for and taken, and whether
    anything is taken at all, people may override while it waits."""
    store = ctx.store
    taken = frozenset(name for blob in tail.taken for name in ctx.read(blob))
    while True:
        seen = {topic: store.changes.seen(topic) for topic in (FINISHED, ORDERS)}
        is_over = store.runs.get(tail.run).state is not RunState.RUNNING
        asked = await asyncio.to_thread(store.overrides.get)
        least = asked.update_interval_rollouts or tail.least
        most = asked.max_rollouts_per_update or least * STEPS
        if asked.enabled is not False:
            arrived = await asyncio.to_thread(_arrived, store, tail.run, taken, max(least, most))
            if is_over or len(arrived) >= least:
                arrived = arrived[:most]
                blob = await asyncio.to_thread(ctx.save, arrived)
                return Batch(run=tail.run, step=ctx.name, count=len(arrived), ids=blob)
        pending = [asyncio.ensure_future(store.changes.after(topic, at)) for topic, at in seen.items()]
        try:
            await asyncio.wait(pending, timeout=HEED_S, return_when=FIRST_COMPLETED)
        finally:
            for task in pending:
                task.cancel()
        await ctx.go_on()


def _arrived(store: Store, run: str, taken: frozenset[str], most: int) -> list[str]:
    """Lists rollouts that can be learnt from and were not yet, oldest first, so many at most. A failed agent is one:
    its reward is 0, whether anybody scored it or not."""
    counts = store.views.counts(run)
    if counts[RolloutState.SUCCEEDED] + counts[RolloutState.FAILED] <= len(taken):
        return []
    ends = (RolloutState.SUCCEEDED, RolloutState.FAILED)
    ended = [rollout for state in ends for rollout in islice(_ended(store, run, state, taken), most)]
    return [one.id for one in sorted(ended, key=lambda rollout: rollout.enqueued_at)][:most]


def _ended(store: Store, run: str, state: RolloutState, taken: frozenset[str]) -> Iterator[Rollout]:
    for rollout in store.views.every(run, status=state, split=Split.TRAIN):
        if rollout.id not in taken and (rollout.reward is not None or state is RolloutState.FAILED):
            yield rollout
