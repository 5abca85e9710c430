"""A pool of slots that works off one run: claims, beats, obeys orders, sweeps up after dead workers, drains.

It runs on its caller's event loop, where no agent runs, so no agent can keep it from renewing leases or obeying.
"""

from __future__ import annotations

import asyncio
import copy
import hashlib
import os
import random
import socket
from collections.abc import Callable, Collection, Coroutine, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from holdfast.collect.agent import TurnTerms, scored_without
from holdfast.collect.executors import Clock, Slot
from holdfast.contracts.budget import BudgetChange
from holdfast.contracts.errors import Fault, Killed, StaleLease
from holdfast.contracts.executor import Assignment, Outcome, capability
from holdfast.contracts.flag import WITHOUT, features_without
from holdfast.contracts.reward import outcome_of
from holdfast.contracts.rollout import AttemptState, Backoff, Claim
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import Span
from holdfast.store.notifications import ORDERS, QUEUE
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolTiming:
    """Times in seconds."""

    heartbeat_s: float = 1.0
    lease_s: float = 5.0
    idle_s: float = 5.0  # look at the queue at least this often, should a hint have been missed
    backoff: Backoff = field(default_factory=Backoff)


STARTS = 5  # of an agent's process, one after the other, that somebody may kill before it is ready
LAST_LOOK_S = 0.3  # before a deadline: checks whether another agent blocks this one


@dataclass(slots=True)
class PoolStats:
    claimed: int = 0
    succeeded: int = 0
    failed: int = 0
    interrupted: int = 0  # timed out, cancelled, lost or handed back


@dataclass(slots=True)
class _Held:
    claim: Claim
    slot: Slot
    why: AttemptState | None = None  # set when interrupted


class Pool:
    def __init__(
        self,
        store: Store,
        run: str,
        slots: Callable[[], Slot],
        size: int,
        *,
        clock: Clock,
        seed: int = 0,
        pace: PoolTiming,
        versions: Callable[[], Collection[str]] | None = None,  # of policies that can be answered for; None: all
        turns: TurnTerms | None = None,  # what is measured of every turn at an attempt's end
        is_captured: bool = False,  # a proxy stores the model calls
        attempt_key: bytes | None = None,  # gives attempts their capability at the proxy
    ) -> None:
        self.store, self.run_id, self.pace = store, run, pace
        self.worker = f"{socket.gethostname()}-{os.getpid()}-{os.urandom(3).hex()}"
        self.tally = PoolStats()
        self.wanted = DesiredState.RUNNING
        self._clock, self._seed, self._size, self._versions = clock, seed, size, versions
        self._turns, self._is_captured, self._attempt_key = turns, is_captured, attempt_key
        self._chance = random.Random(os.urandom(8))  # spreads retries; no result depends on it
        self._free: list[Slot] = []
        self._slots = [slots() for _ in range(size)]
        self._held: dict[int, _Held] = {}
        self._tasks: set[asyncio.Task[None]] = set()
        self._resources: dict[int, dict[str, object]] = {}
        self._failure: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self._draining = asyncio.Event()
        self._is_stopped = False
        self._slot_freed = asyncio.Event()

    async def work(self) -> PoolStats:
        """Works until drained or stopped. Every claimed attempt is then finished, handed back or written off."""
        now = self._clock()
        await self.store.workers.register(
            self.worker, host=socket.gethostname(), pid=os.getpid(), slots=self._size, now=now
        )
        watchers = [asyncio.create_task(step()) for step in (self._beat, self._obey, self._sweep)]
        dispatch = asyncio.create_task(self._dispatch())
        for slot in self._slots:
            self._spawn(self._free_up(slot))
        try:
            await self._until_failure(dispatch, watchers)
            while self._tasks:
                await self._until_failure(next(iter(self._tasks)), watchers)
        finally:
            self.stop()
            dispatch.cancel()  # first: while it lives, there may be one more claim to hand back
            await asyncio.gather(dispatch, return_exceptions=True)
            await asyncio.gather(*self._tasks, return_exceptions=True)
            for watcher in watchers:
                watcher.cancel()
            await asyncio.gather(*watchers, return_exceptions=True)
            for slot in self._slots:
                slot.close()
        await self.store.workers.stop(self.worker, now=self._clock())
        return self.tally

    async def _until_failure(self, wanted: asyncio.Task[None], watchers: list[asyncio.Task[None]]) -> None:
        """Waits for one task; raises its error, a watcher's, or that of any attempt's bookkeeping."""
        await asyncio.wait([wanted, self._failure, *watchers], return_when=asyncio.FIRST_COMPLETED)
        for task in (wanted, *watchers, self._failure):
            if task.done():
                task.result()

    def drain(self) -> None:
        """Claims nothing more; finishes what runs."""
        self._draining.set()
        self._slot_freed.set()

    def stop(self) -> None:
        """Claims nothing more; interrupts what runs and hands it back."""
        self.drain()
        self._is_stopped = True
        self._interrupt_all(AttemptState.RELEASED)

    async def _dispatch(self) -> None:
        while not self._draining.is_set():
            self._slot_freed.clear()
            seen, looked_at = self.store.changes.seen(QUEUE), self._clock()
            claims: tuple[Claim, ...] = ()
            if self._free:
                claims = await self._claim(len(self._free))
                for claim in claims:
                    self._start(claim)
            if not claims:
                await self._wait_for_work(seen, looked_at)

    async def _claim(self, most: int) -> tuple[Claim, ...]:
        """Claims up to `most`. A claim that is being written when we are cancelled is handed back, not lost."""
        claiming = self.store.queue.claim(
            self.run_id,
            self.worker,
            now=self._clock(),
            lease_s=self.pace.lease_s,
            most=most,
            versions=None if self._versions is None else self._versions(),
        )
        try:
            return await claiming
        except asyncio.CancelledError:
            for claim in await asyncio.to_thread(claiming.result):
                await self.store.queue.finish(claim.attempt, AttemptState.RELEASED, now=self._clock())
            raise

    async def _wait_for_work(self, seen: int, looked_at: float) -> None:
        """Until a slot is free and something may be claimed, or it is time to look anyway."""
        if not self._free:
            await self._slot_freed.wait()
            return
        timeout = self.pace.idle_s
        ripe = self.store.queue.next_ripe(self.run_id)
        if ripe is not None and ripe > looked_at:  # what was due before waits for a command, not for time
            timeout = min(timeout, max(0.0, ripe - self._clock()) + 0.001)
        moved = self.store.changes.moved(QUEUE, seen, timeout)
        waits: list[asyncio.Task[Any]] = [asyncio.create_task(self._slot_freed.wait()), asyncio.create_task(moved)]
        try:
            await asyncio.wait(waits, return_when=asyncio.FIRST_COMPLETED)
        finally:
            for wait in waits:
                wait.cancel()

    def _start(self, claim: Claim) -> None:
        self.tally.claimed += 1
        held = _Held(claim, self._free.pop(), AttemptState.RELEASED if self._is_stopped else None)
        self._held[claim.attempt.token] = held
        self._spawn(self._run(held))

    def _spawn(self, work: Coroutine[Any, Any, None]) -> None:
        task = asyncio.create_task(work)
        self._tasks.add(task)
        task.add_done_callback(self._ended)

    def _ended(self, task: asyncio.Task[None]) -> None:
        self._tasks.discard(task)
        error = None if task.cancelled() else task.exception()
        if error is not None and not self._failure.done():
            self._failure.set_exception(error)
            self._failure.exception()  # marks it as retrieved, in case work() already fails for another reason

    async def _run(self, held: _Held) -> None:
        claim = held.claim
        writes: list[WriteFuture[None]] = []
        spans: list[Span] = []

        def record(news: Span | BudgetChange) -> None:
            if isinstance(news, BudgetChange):
                writes.append(self.store.budgets.record(claim.attempt, news, now=self._clock()))
            else:
                spans.append(news)
                writes.append(self.store.traces.add(claim.attempt, [news], now=self._clock()))

        timer = asyncio.create_task(self._end_in_time(held))
        try:
            outcome = None if held.why else await held.slot.run(self._assignment(claim), record)
            await self._conclude(held, self._with_turns(claim, outcome, spans), writes)
        except StaleLease:
            self.tally.interrupted += 1  # the lease is another worker's now, and the store refused our writes
        finally:
            timer.cancel()
            del self._held[claim.attempt.token]
        await self._free_up(held.slot)

    async def _free_up(self, slot: Slot) -> None:
        tries = 0
        while not self._draining.is_set():
            try:
                await slot.prepare()
                break
            except Fault as fault:
                tries += 1
                if self._draining.is_set():  # Ctrl-C reaches children that are only just starting as well
                    break
                if not isinstance(fault, Killed) or tries >= STARTS:  # it would end the next time as well
                    raise
            delay_s = self.pace.backoff.delay_s(tries, self._chance.random())
            await asyncio.sleep(delay_s)
        self._free.append(slot)
        self._slot_freed.set()

    async def _end_in_time(self, held: _Held) -> None:
        """Interrupts an attempt at its deadline. One that another agent blocked is handed back just before."""
        attempt, loop = held.claim.attempt, asyncio.get_running_loop()
        if attempt.deadline is None:
            return
        left = attempt.deadline - self._clock()
        end = loop.time() + left  # however the wall clock is set meanwhile
        if left > 4 * LAST_LOOK_S:
            await asyncio.sleep(left - 2 * LAST_LOOK_S)
            if await held.slot.is_hindered(LAST_LOOK_S):
                return
        left = min(attempt.deadline - self._clock(), end - loop.time())
        await asyncio.sleep(max(0.0, left) + 0.01)  # past it, not upon it
        self._interrupt(held, AttemptState.TIMEOUT)

    def _with_turns(self, claim: Claim, outcome: Outcome | None, spans: Sequence[Span]) -> Outcome | None:
        """The outcome with the rewards of its turns; a fault of ours is missing, and has none."""
        if self._turns is None or outcome is None or outcome.state is AttemptState.FAULT:
            return outcome
        features = features_without(claim.rollout.metadata.get(WITHOUT, ()))
        if not features.turn_rewards:
            return outcome
        if self._is_captured:  # numbered apart from what the agent recorded: only their times say what came first
            stored = [span for span in self.store.traces.spans(claim.attempt.token) if span.model is not None]
            ordered = sorted((*spans, *stored), key=lambda span: span.started_at)
            spans = [replace(span, seq=place, parent=None) for place, span in enumerate(ordered, 1)]
        measure = scored_without(self._turns, features)
        signals = measure(claim.rollout.input, outcome.output, spans, outcome.signals)
        return replace(outcome, signals=tuple(signals))

    async def _conclude(self, held: _Held, outcome: Outcome | None, writes: list[WriteFuture[None]]) -> None:
        attempt, queue, now = held.claim.attempt, self.store.queue, self._clock()
        if outcome is None:
            self.tally.interrupted += 1
            if held.why is AttemptState.RELEASED:
                why = "handed back by a stopping worker" if self._is_stopped else "handed back: the run was frozen"
                await queue.finish(attempt, AttemptState.RELEASED, now=now, error=why)
            elif held.why is None:
                await queue.finish(attempt, AttemptState.RELEASED, now=now, error="kept from running by another agent")
            else:  # past its deadline: a beat may have found it lost before its timer did
                await self._sweep_once()
            return
        # Handed over at once, so the spans, the rewards and the end share one commit.
        if outcome.signals:
            writes.append(self.store.traces.score(attempt, outcome.signals, now=now))
        ended = queue.finish(
            attempt,
            outcome.state,
            now=now,
            reward=outcome.reward,
            outcome=outcome_of(outcome.signals),
            output=outcome.output,
            error=outcome.error,
            backoff=self.pace.backoff,
            chance=self._chance.random(),
            after=writes,
        )
        for write in writes:
            await write
        await ended
        if outcome.state is AttemptState.SUCCEEDED:
            self.tally.succeeded += 1
        else:
            self.tally.failed += 1

    def _assignment(self, claim: Claim) -> Assignment:
        rollout, attempt, secret = claim.rollout, claim.attempt, self._attempt_key
        # By the agent's own tries: after an infrastructure fault the seed is the same.
        key = f"{self._seed}/{rollout.metadata.get('seed', rollout.name)}/{rollout.faults + 1}"
        return Assignment(
            rollout=rollout.id,
            attempt=attempt.id,
            number=attempt.number,
            split=None if rollout.split is None else str(rollout.split),
            input=rollout.input,
            resources=self._resources_of(rollout.resources),
            seed=int.from_bytes(hashlib.sha256(key.encode()).digest()[:8]),
            version=rollout.version,
            features=features_without(rollout.metadata.get(WITHOUT, ())),
            capability=None if secret is None else capability(secret, rollout.id, attempt.number),
        )

    def _resources_of(self, version: int | None) -> dict[str, object]:
        if version is None:
            return {}
        if version not in self._resources:
            self._resources[version] = dict(self.store.versions.get(version).resources)
        return copy.deepcopy(self._resources[version])  # so that an agent's changes stay its own

    def _interrupt(self, held: _Held, why: AttemptState) -> None:
        if held.why is None:
            held.why = why
            held.slot.interrupt()

    def _interrupt_all(self, why: AttemptState) -> None:
        for held in list(self._held.values()):
            self._interrupt(held, why)

    async def _beat(self) -> None:
        while True:
            await self._beat_once()
            await asyncio.sleep(self.pace.heartbeat_s)

    async def _beat_once(self) -> None:
        now, tokens = self._clock(), tuple(self._held)
        sign = self.store.workers.beat(self.worker, now=now)
        beats = await self.store.queue.beat(self.run_id, tokens, now=now, lease_s=self.pace.lease_s)
        await sign
        self.wanted = beats.wanted
        for token in tokens:
            if token not in beats.alive and token in self._held:
                self._interrupt(self._held[token], AttemptState.CANCELLED)
        if beats.wanted is DesiredState.CANCELLED:
            self._interrupt_all(AttemptState.CANCELLED)
        if beats.wanted is DesiredState.FROZEN:  # a claim from before the order has come back by now: nothing is missed
            self._interrupt_all(AttemptState.RELEASED)
        if beats.wanted in (DesiredState.CANCELLED, DesiredState.DRAINING):
            self.drain()

    async def _obey(self) -> None:
        """Obeys a command when it comes, not at the next heartbeat."""
        seen = self.store.changes.seen(ORDERS)
        while True:
            await self.store.changes.moved(ORDERS, seen)
            seen = self.store.changes.seen(ORDERS)  # before the beat: an order that comes during it is not missed
            await self._beat_once()

    async def _sweep(self) -> None:
        while True:
            await self._sweep_once()
            await asyncio.sleep(self.pace.lease_s / 3)

    async def _sweep_once(self) -> None:
        """After our own leases were renewed: else a process that was paused would write its own attempts off."""
        await self._beat_once()
        await self.store.queue.sweep(now=self._clock(), backoff=self.pace.backoff, chance=self._chance.random())
