"""Served conversations as rollouts: once somebody says what an answer was worth, it is kept and can be learnt from.

An answer that nobody comments on is forgotten after a while: without a reward there is nothing to learn from it.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.contracts.errors import Conflict, Fault
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, Split, Task
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.store import Store

KIND = "serve"  # of the run
WORKER, LEASE_S = "service", 60.0
MOST_LEFT = 16  # rollouts that are taken at once: the one that is told of, and any that were left behind
SOURCE = "feedback"


class Capture:
    def __init__(self, store: Store, run: str, *, clock: Callable[[], float], most: int = 10_000) -> None:
        self._store, self._run, self._clock, self._most = store, run, clock, most
        self._waiting: OrderedDict[str, tuple[str, ModelCall, float]] = OrderedDict()  # by request
        self._kept: OrderedDict[str, dict[str, float]] = OrderedDict()  # what was said of those that are kept
        self._alone = asyncio.Lock()  # what is claimed has to be what was put in

    def heard(self, identity: str, release: str, messages: Sequence[Mapping[str, Any]], call: ModelCall) -> None:
        self._waiting[identity] = (release, call, self._clock())
        _forget(self._waiting, self._most)

    async def told(self, identity: str, said: Mapping[str, float]) -> bool:
        """Keep the conversation with what it was worth; False when it is not known, or nothing is said of its worth.

        Once is enough: the same again is harmless, another value a Conflict."""
        async with self._alone:
            if identity in self._kept:
                return _is_same(identity, self._kept[identity], said)
            if identity not in self._waiting or not said.keys() & {"reward", "success"}:
                return False
            release, call, at = self._waiting[identity]
            claim = await self._claim(identity, release, call)
            await self._finish(claim, call, at, _signals(said))
            self._waiting.pop(identity, None)  # pushed out meanwhile
            self._kept[identity] = dict(said)
            _forget(self._kept, self._most)
            return True

    async def _claim(self, identity: str, release: str, call: ModelCall) -> Claim:
        now = self._clock()
        asked = hashlib.sha256(json.dumps(list(call.messages), sort_keys=True).encode()).hexdigest()[:16]
        task = Task(
            name=identity,
            input={"messages": list(call.messages)},
            split=Split.TRAIN,
            max_attempts=1,
            max_faults=0,  # nobody could ask the caller once more
            metadata={"group": asked, "release": release},
        )
        await self._store.queue.enqueue(self._run, [task], now=now)
        for claim in await self._store.queue.claim(self._run, WORKER, now=now, lease_s=LEASE_S, most=MOST_LEFT):
            if claim.rollout.name == identity:
                return claim
            # Left behind by a telling that failed: whoever told it knows, and what is missing here is missing.
            await self._store.queue.finish(claim.attempt, AttemptState.FAULT, now=now, error="was not told to the end")
        raise Fault(f"answer {identity}", why=f"{self._run} takes nothing at the moment", remedy="tell it again later")

    async def _finish(self, claim: Claim, call: ModelCall, at: float, signals: tuple[RewardTerm, ...]) -> None:
        traces, now = self._store.traces, self._clock()
        span = Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=at, ended_at=at, model=call)
        before = [traces.add(claim.attempt, [span], now=now), traces.score(claim.attempt, signals, now=now)]
        await self._store.queue.finish(
            claim.attempt,
            AttemptState.SUCCEEDED,
            now=now,
            reward=RewardBreakdown(signals=signals).total,
            output=call.response.get("content"),
            after=before,
        )


def _is_same(identity: str, before: Mapping[str, float], said: Mapping[str, float]) -> bool:
    for name in said.keys() & before.keys():
        if before[name] != said[name]:
            raise Conflict(f"answer {identity}", why=f"{name} was told before: {before[name]:g}, not {said[name]:g}")
    return said.keys() <= before.keys()


def _forget(kept: OrderedDict[str, Any], most: int) -> None:
    """The oldest, beyond so many."""
    while len(kept) > most:
        kept.popitem(last=False)


def _signals(said: Mapping[str, float]) -> tuple[RewardTerm, ...]:
    """A reward is what counts; where only success was told, that is. A cost is never paid."""
    paid = "reward" if "reward" in said else "success"
    return tuple(
        RewardTerm(name=name, value=value, weight=1.0 if name == paid else 0.0, source=SOURCE)
        for name, value in said.items()
    )
