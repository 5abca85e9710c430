"""Served conversations as rollouts: once somebody says what an answer was worth, it is kept and can be learnt from.

An answer that nobody comments on is forgotten after a while: without a reward there is nothing to learn from it.
"""

from __future__ import annotations

import hashlib
import json
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.contracts.reward import Sheet, Signal
from holdfast.contracts.rollout import AttemptState, Split, Task
from holdfast.contracts.trace import ModelCall, Span, SpanKind
from holdfast.store.store import Store

KIND = "serve"  # of the run
WORKER, LEASE_S = "service", 60.0
SOURCE = "feedback"


class Capture:
    def __init__(self, store: Store, run: str, *, clock: Callable[[], float], most: int = 10_000) -> None:
        self._store, self._run, self._clock, self._most = store, run, clock, most
        self._waiting: OrderedDict[str, tuple[str, ModelCall, float]] = OrderedDict()  # by request

    def heard(self, identity: str, release: str, messages: Sequence[Mapping[str, Any]], call: ModelCall) -> None:
        self._waiting[identity] = (release, call, self._clock())
        while len(self._waiting) > self._most:
            self._waiting.popitem(last=False)

    async def told(self, identity: str, said: Mapping[str, float]) -> bool:
        """Keep the conversation with what it was worth; False when it is not known, or said to be worth nothing."""
        if identity not in self._waiting or not said.keys() & {"reward", "success"}:
            return False
        release, call, at = self._waiting.pop(identity)
        store, now = self._store, self._clock()
        asked = hashlib.sha256(json.dumps(list(call.messages), sort_keys=True).encode()).hexdigest()[:16]
        task = Task(
            name=identity,
            input={"messages": list(call.messages)},
            split=Split.TRAIN,
            metadata={"group": asked, "release": release},
        )
        await store.queue.enqueue(self._run, [task], now=now)
        for claim in await store.queue.claim(self._run, WORKER, now=now, lease_s=LEASE_S):
            span = Span(seq=1, kind=SpanKind.MODEL, name="chat", started_at=at, ended_at=now, model=call)
            await store.traces.add(claim.attempt, [span], now=now)
            signals = _signals(said)
            await store.traces.score(claim.attempt, signals, now=now)
            await store.queue.finish(
                claim.attempt,
                AttemptState.SUCCEEDED,
                now=now,
                reward=Sheet(signals=signals).total,
                output=call.response.get("content"),
            )
        return True


def _signals(said: Mapping[str, float]) -> tuple[Signal, ...]:
    """A reward is what counts; where only success was told, that is. A cost is never paid."""
    paid = "reward" if "reward" in said else "success"
    return tuple(
        Signal(name=name, value=value, weight=1.0 if name == paid else 0.0, source=SOURCE)
        for name, value in said.items()
    )
