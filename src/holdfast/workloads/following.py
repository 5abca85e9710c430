"""What other runs do, as it arrives: rewarded rollouts to learn from, each once. What is learnt is the lesson's.

How many are waited for and taken, and whether anything is learnt at all, people may override while it waits.
"""

from __future__ import annotations

import asyncio
from asyncio import FIRST_COMPLETED

from holdfast.collect.plan import Follow
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.run import RunState
from holdfast.store.changes import FINISHED, ORDERS
from holdfast.store.store import Store

CHUNK = 500  # rollouts that are looked at in one go
STEPS = 4  # worth of rollouts that one lesson takes at most
HEED_S = 1.0  # so often whoever waits looks whether something was overridden meanwhile


async def followed(store: Store, follow: Follow, look_s: float) -> list[str]:
    """Wait until enough of the other run's rollouts have succeeded with a reward; what there is, once it is over."""
    while True:
        seen = {topic: store.changes.seen(topic) for topic in (FINISHED, ORDERS)}
        is_over = store.runs.get(follow.run).state is not RunState.RUNNING
        asked = await asyncio.to_thread(store.overrides.get)
        least = asked.update_interval_rollouts or follow.least
        most = asked.max_rollouts_per_update or least * STEPS
        if asked.enabled is not False:
            arrived = await asyncio.to_thread(_arrived, store, follow, max(least, most))
            if is_over or len(arrived) >= least:
                return arrived[:most]
        pending = [asyncio.ensure_future(store.changes.after(topic, at)) for topic, at in seen.items()]
        try:
            await asyncio.wait(pending, timeout=HEED_S, return_when=FIRST_COMPLETED)
        finally:
            for one in pending:
                one.cancel()
        await asyncio.sleep(look_s)


def _arrived(store: Store, follow: Follow, most: int) -> list[str]:
    """Which ones there are to learn from and were not yet, oldest first, so many at most."""
    if store.views.counts(follow.run)[RolloutState.SUCCEEDED] <= len(follow.taken):
        return []
    found: list[str] = []
    after = None
    while len(found) < most:
        page = store.views.rollouts(
            follow.run, after=after, status=RolloutState.SUCCEEDED, split=Split.TRAIN, most=CHUNK
        )
        found += [one.id for one in page if one.reward is not None and one.name not in follow.taken]
        if len(page) < CHUNK:
            break
        after = page[-1].name
    return found[:most]
