"""What the processes of a drill do. Each opens the store by itself and tells its journal of every call."""

from __future__ import annotations

import asyncio
import os
import random
import signal
import sqlite3
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from holdfast.collect.pool import Pace, Pool
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import Refused, StaleLease, StoreError, StoreFull
from holdfast.contracts.reward import Signal
from holdfast.contracts.rollout import Attempt, AttemptState, Backoff, Claim, Task
from holdfast.contracts.run import Wanted
from holdfast.contracts.trace import Span, SpanKind
from holdfast.store.changes import QUEUE, ROOM
from holdfast.store.store import Store, open_store
from tests.drills import agents, picture
from tests.drills.journal import Journal
from tests.drills.witness import Witness

TRIES = 10_000  # a kill counts as a fault: nothing here may be given up
PADDING = "x" * 2000
SOON = Backoff(initial_s=0.01, cap_s=0.1)


@dataclass(frozen=True, slots=True, kw_only=True)
class Work:
    """How a pool is to work."""

    size: int = 4
    seed: int = 0
    lease_s: float = 0.8
    agent: Callable[..., Any] = agents.busy
    clock: Callable[[], float] = time.time

    @property
    def pace(self) -> Pace:
        return Pace(heartbeat_s=self.lease_s / 5, lease_s=self.lease_s, idle_s=0.5, backoff=SOON)


def pool_worker(journal: Journal, url: str, run: str, work: Work) -> None:
    """A pool as any user has it, until the run is drained; its own notes keep the ledger's chain growing."""
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        asyncio.run(_pool(store, run, work))


async def _pool(store: Witness, run: str, work: Work) -> None:
    home = Home(work.agent, agents.score, None, work.clock)
    pool = Pool(store, run, lambda: Seat(home.place()), work.size, clock=work.clock, seed=work.seed, pace=work.pace)
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


def producer(journal: Journal, url: str, run: str, prefix: str, most: int = 1_000_000) -> None:
    """Keeps the bounded queue full until it is told to stop."""
    told = told_to_stop()
    with open_store(url, poll_s=0.02) as opened:
        store, place = Witness(opened, journal), 0
        while place < most and not told.is_set():
            seen = opened.changes.seen(ROOM)
            tasks = [task(f"{prefix}-{number}") for number in range(place, min(place + 7, most))]
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
    return Task(name=name, input={"prompt": name}, max_attempts=TRIES)


def span(seq: int) -> Span:
    now = time.time()
    made = {"made_ns": time.monotonic_ns()}
    return Span(seq=seq, kind=SpanKind.TELEMETRY, name="step", started_at=now, ended_at=now, attributes=made)


def stubborn(journal: Journal, url: str, run: str, lease_s: float, seed: int) -> None:
    """A worker that, when told that its work is not wanted any more, insists."""
    chance, me = random.Random(seed), f"stubborn-{os.getpid()}-{seed}"
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        while True:
            seen = opened.changes.seen(QUEUE)
            most = chance.randint(1, 3)
            claims = store.queue.claim(run, me, now=time.time(), lease_s=lease_s, most=most).result()
            for place, claim in enumerate(claims):
                try:
                    work_through(store, run, claim, claims[place:], lease_s, chance)
                except StaleLease:
                    insist(store, run, claim, lease_s)
            if not claims:
                if wanted(opened, run) is not Wanted.RUNNING:
                    return
                opened.changes.wait(QUEUE, seen, 0.1)


def wanted(store: Store, run: str) -> Wanted:
    return store.runs.get(run).wanted


def work_through(
    store: Witness, run: str, claim: Claim, held: tuple[Claim, ...], lease_s: float, chance: random.Random
) -> None:
    """Spans with beats between them, a reward, the end."""
    tokens = [other.attempt.token for other in held]
    for seq in range(1, chance.randint(2, 5)):
        store.traces.add(claim.attempt, [span(seq)], now=time.time()).result()
        time.sleep(chance.uniform(0.0, 0.03))
        store.queue.beat(run, tokens, now=time.time(), lease_s=lease_s).result()
    reward = Signal(name="done", value=1.0, source="rule:drill")
    store.traces.score(claim.attempt, [reward], now=time.time()).result()
    store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=time.time(), reward=1.0, backoff=SOON).result()


def insist(store: Witness, run: str, claim: Claim, lease_s: float) -> None:
    """Every kind of write once more: at the true time, and as if no time had passed since the claim."""
    attempt, reward = claim.attempt, Signal(name="late", value=1.0, source="rule:drill")
    for place, now in enumerate((time.time(), attempt.started_at)):
        store.queue.beat(run, [attempt.token], now=now, lease_s=lease_s).result()
        with suppress(StaleLease):
            store.traces.add(attempt, [span(1000 + place)], now=now).result()
        with suppress(StaleLease):
            store.traces.score(attempt, [reward], now=now, first=1000 + place).result()
        for state in (AttemptState.SUCCEEDED, AttemptState.RELEASED):
            with suppress(StaleLease):
                store.queue.finish(attempt, state, now=now, reward=1.0).result()


def hammer(journal: Journal, url: str, run: str, who: str, seconds: float) -> None:
    """Threads that enqueue, claim, write and finish as fast as the store lets them; then what is left is worked off."""
    with open_store(url, poll_s=0.02) as opened:
        store, end = Witness(opened, journal), time.monotonic() + seconds
        hands = [threading.Thread(target=_hammer, args=(store, run, f"{who}-{n}", end)) for n in range(4)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()


def _hammer(store: Witness, run: str, who: str, end: float) -> None:
    number, busy = 0, True
    while busy or time.monotonic() < end:
        if time.monotonic() < end:
            tasks = [task(f"{who}-{number}-{place}") for place in range(3)]
            number += store.queue.enqueue(run, tasks, now=time.time()).result()
        claims = store.queue.claim(run, who, now=time.time(), lease_s=30.0, most=3).result()
        for claim in claims:
            store.traces.add(claim.attempt, [span(1), span(2)], now=time.time()).result()
            store.queue.finish(claim.attempt, AttemptState.SUCCEEDED, now=time.time(), reward=1.0).result()
        note = {"note": f"{who} {number} {time.monotonic_ns()}"}
        store.ledger.append("note", note, who=who, now=time.time()).result()
        busy = bool(claims)


def writer(journal: Journal, url: str, run: str, who: str) -> None:
    """Enqueues, claims, writes and finishes; when the disk is full it tries again. Told to stop, it works off the rest."""
    told = told_to_stop()
    with open_store(url, poll_s=0.02) as opened:
        store, number, claims = Witness(opened, journal), 0, ()
        while claims or not told.is_set():
            if not told.is_set():
                new = Task(name=f"{who}-{number}", input={"prompt": PADDING}, max_attempts=TRIES)
                _until_there_is_room(lambda new=new: store.queue.enqueue(run, [new], now=time.time()))
                number += 1
            claims = _until_there_is_room(lambda: store.queue.claim(run, who, now=time.time(), lease_s=600.0, most=2))
            for claim in claims:
                _until_there_is_room(lambda a=claim.attempt: store.traces.add(a, [span(1), span(2)], now=time.time()))
                _until_there_is_room(lambda a=claim.attempt: _succeed(store, a))


def _succeed(store: Witness, attempt: Attempt) -> Any:
    return store.queue.finish(attempt, AttemptState.SUCCEEDED, now=time.time(), reward=1.0, output=PADDING)


def _until_there_is_room(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call().result()
        except StoreFull:
            time.sleep(0.02)


def taper(journal: Journal, url: str, calls: int) -> None:
    """Fills a store's log, one call at a time; after each, how long the log is and what the store holds. Never closes it."""
    opened = open_store(url)
    store, chance = Witness(opened, journal), random.Random(calls)
    begun = opened.runs.begin(kind="drill", model_ref="none", settings={}, salt="d", who="drill", now=1.0).result()
    holding = sqlite3.connect(url, isolation_level=None)
    holding.execute("PRAGMA wal_checkpoint(TRUNCATE)").fetchone()
    holding.execute("BEGIN")
    holding.execute("SELECT count(*) FROM runs").fetchone()  # from here on nothing of the log may reach the file
    log, held = Path(f"{url}-wal"), list[Claim]()
    for number in range(calls + 1):
        journal.notes(log=log.stat().st_size, digest=picture.take(url).digest())
        _any_call(store, begun.id, number, held, chance)
    os._exit(0)


def _any_call(store: Witness, run: str, number: int, held: list[Claim], chance: random.Random) -> None:
    """Enqueue, claim, write, finish, cancel, sweep, order or note: each of them is one transaction."""
    now, kind = 10.0 + number, chance.choice("eecaassffwlv") if number > 3 else "ec"[number % 2]
    if kind == "c":
        held += store.queue.claim(run, "taper", now=now, lease_s=1000.0, most=3).result()
    elif kind in "asf" and held:
        attempt = held[0].attempt
        if kind == "a":
            spans = [span(number * 10 + place) for place in range(3)]
            store.traces.add(attempt, spans, now=now).result()
        elif kind == "s":
            store.traces.score(
                attempt, [Signal(name="n", value=1.0, source="rule:drill")], now=now, first=number
            ).result()
        else:
            state = chance.choice((AttemptState.SUCCEEDED, AttemptState.FAULT, AttemptState.RELEASED))
            store.queue.finish(held.pop(0).attempt, state, now=now, reward=0.5, output={"n": number}).result()
    elif kind == "w":
        store.queue.sweep(now=now + 2000.0).result()
        held.clear()
    elif kind == "l":
        store.ledger.append("note", {"note": f"call {number}"}, who="taper", now=now).result()
    elif kind == "v":
        store.versions.publish({"prompt": f"version {number}"}, now=now).result()
    else:
        tasks = [Task(name=f"task-{number}-{place}", input={"prompt": PADDING[:300]}) for place in range(4)]
        store.queue.enqueue(run, tasks, now=now).result()


def persistent(journal: Journal, url: str, run: str, who: str) -> None:
    """Keeps its store whatever becomes of the server, and repeats what it got no answer to, until it is told to stop."""
    told, number = told_to_stop(), 0
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        while not told.is_set():
            tasks = [task(f"{who}-{number}-{place}") for place in range(2)]
            _until_answered(lambda tasks=tasks: store.queue.enqueue(run, tasks, now=time.time()))
            number += 1
            _until_answered(lambda: store.queue.sweep(now=time.time(), backoff=SOON))
            claims = _until_answered(lambda: store.queue.claim(run, who, now=time.time(), lease_s=2.0, most=2))
            for claim in claims:
                with suppress(StaleLease):
                    _until_answered(lambda a=claim.attempt: store.traces.add(a, [span(1)], now=time.time()))
                    _until_answered(lambda a=claim.attempt: _succeed(store, a))


def _until_answered(call: Callable[[], Any]) -> Any:
    while True:
        try:
            return call().result()
        except StoreError as error:
            if isinstance(error, Refused):
                raise
            if "duplicate key" in error.why:
                return None  # the first try was kept after all
            time.sleep(0.05)


def supervised(journal: Journal, url: str, run: str, work: Work) -> None:
    """A pool that is started again whenever the store failed it."""
    while True:
        try:
            pool_worker(journal, url, run, work)
            return
        except StoreError as error:
            journal.notes(restarted=str(error))
            time.sleep(0.1)
