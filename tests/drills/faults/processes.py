"""Processes that are killed, stopped, set against one another, or told the wrong time; all gets done, and only once."""

from __future__ import annotations

import os
import random
import signal
import threading
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

from holdfast.contracts.errors import StaleLease
from holdfast.contracts.rollout import AttemptState, Claim
from holdfast.contracts.run import DesiredState
from holdfast.store.notifications import QUEUE
from holdfast.store.store import open_store
from tests.drills import journal, picture, roles
from tests.drills.crew import wait_until
from tests.drills.journal import Journal, Witness
from tests.drills.scene import Scene, Setting, Tally, scene, verdict

CREW = 4


def _replaced(crew: list[Any], chance: random.Random, worker: Callable[[], Any]) -> None:
    place = chance.randrange(len(crew))
    crew[place].kill()
    crew[place].join()
    crew[place] = worker()


def _stopped(source: Any) -> None:
    os.kill(source.pid, signal.SIGTERM)
    source.join(10)


# Workers, and the producer, killed -9 at random instants under load; each is replaced


def killed_workers(setting: Setting) -> Tally:
    tally = Tally(fault="workers killed")
    rounds, kills = (1, 15) if setting.quick else (4, 100)
    for number in range(rounds):
        with scene(setting) as here:
            _kill(setting, here, kills, f"round {number + 1} of {rounds}")
            problems = here.work_off()
        tally.events += kills
        tally.kills += kills
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _kill(setting: Setting, here: Scene, kills: int, where: str) -> None:
    lives = 0

    def worker() -> object:
        nonlocal lives
        lives += 1
        return here.crew.start(roles.pool_worker, here.url, here.run, roles.Work(seed=lives))

    def producer() -> Any:
        return here.crew.start(roles.producer, here.url, here.run, f"task-{lives}")

    crew, source = [worker() for _ in range(CREW)], producer()
    for kill in range(kills):
        source.join(setting.rng.expovariate(1 / 0.12))
        if kill % 10 == 9:
            source.kill()
            source.join()
            lives += 1
            source = producer()
        else:
            _replaced(crew, setting.rng, worker)
        if kill % 25 == 24:
            setting.say(f"{where}: {kill + 1} kills")
    _stopped(source)


# Clocks that jump by minutes to hours, each worker's for itself. While they jump, leases run out early and work is done
# again, but nothing breaks. Once they tell the true time, no lease or retry that was set in the future keeps anybody.

EVERY_S = 0.35


@dataclass(frozen=True, slots=True)
class JumpyClock:
    """The true time, but for a jump every so often; true for good once it is calm."""

    seed: int
    calm_ns: int  # of the monotonic clock

    def __call__(self) -> float:
        now_ns = time.monotonic_ns()
        if now_ns > self.calm_ns:
            return time.time()
        return time.time() + jump(self.seed, int(now_ns / EVERY_S / 1e9))


@lru_cache(maxsize=8)
def jump(seed: int, slot: int) -> float:
    """Seconds off, for the time of one slot; every other slot is right."""
    chance = random.Random(f"{seed}/{slot}")
    return chance.choice((0.0, 1.0)) * chance.choice((-1.0, 1.0)) * chance.uniform(90.0, 3 * 3600.0)


def jumping_clock(setting: Setting) -> Tally:
    tally = Tally(fault="clocks that jump")
    rounds, seconds = (1, 3.0) if setting.quick else (2, 12.0)
    for number in range(rounds):
        with scene(setting) as here:
            kills = _jump(setting, here, seconds)
            setting.say(f"round {number + 1} of {rounds}: calm again")
            problems = here.work_off()
        tally.events += int(seconds / EVERY_S) * CREW // 2 + kills
        tally.kills += kills
        tally.notes.append(f"{kills} workers were killed while the clocks jumped")
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _jump(setting: Setting, here: Scene, seconds: float) -> int:
    calm_ns, kills = time.monotonic_ns() + int(seconds * 1e9), 0

    def worker() -> object:
        clock = JumpyClock(setting.rng.randrange(1 << 30), calm_ns)
        return here.crew.start(roles.pool_worker, here.url, here.run, roles.Work(clock=clock, lease_s=0.6))

    crew = [worker() for _ in range(CREW)]
    source = here.crew.start(roles.producer, here.url, here.run, "task")
    while time.monotonic_ns() < calm_ns:
        time.sleep(setting.rng.uniform(0.3, 0.9))
        _replaced(crew, setting.rng, worker)
        kills += 1
    _stopped(source)
    return kills


# Two processes on one store, each as fast as it can: enqueue, claim, write, finish. Both get their share

LEAST_SHARE = 0.2  # of the calls; below it one process starves the other
THREADS = 4


def two_processes(setting: Setting) -> Tally:
    tally = Tally(fault="two processes")
    seconds = 1.0 if setting.quick else 10.0
    with scene(setting, queue_limit=None) as here:
        for who in ("ann", "bob"):
            here.crew.start(hammer, here.url, here.run, who, seconds, name=who)
        setting.say(f"{seconds:g} s of both")
        problems = here.crew.finish(seconds + 60.0) + here.work_off(10.0)
    calls = journal.read(here.folder).calls
    done = Counter(call.who.partition("-")[0] for call in calls if call.ok)
    share = min(done["ann"], done["bob"]) / done.total()
    slowest_s = max((call.ended_ns or 0) - call.begun_ns for call in calls) / 1e9
    tally.events = done.total()
    tally.notes.append(f"{done['ann']} and {done['bob']} calls, the smaller share {share:.0%}")
    tally.notes.append(f"the slowest call took {slowest_s:.2f} s")
    if share < LEAST_SHARE:
        problems.append(f"one process got {share:.0%} of the calls, at least {LEAST_SHARE:.0%} is fair")
    tally.add(verdict(here.url, here.folder, problems))
    return tally


def hammer(journal: Journal, url: str, run: str, who: str, seconds: float) -> None:
    """Threads that do everything as fast as the store lets them; when time is up they work off what is left."""
    with open_store(url, poll_s=0.02) as opened:
        store, end = Witness(opened, journal), time.monotonic() + seconds
        hands = [threading.Thread(target=_hand, args=(store, run, f"{who}-{n}", end)) for n in range(THREADS)]
        for hand in hands:
            hand.start()
        for hand in hands:
            hand.join()


def _hand(store: Witness, run: str, who: str, end: float) -> None:
    number, is_busy = 0, True
    while is_busy or time.monotonic() < end:
        if time.monotonic() < end:
            tasks = [roles.task(f"{who}-{number}-{place}") for place in range(3)]
            number += store.queue.enqueue(run, tasks, now=time.time()).result()
        claims = store.queue.claim(run, who, now=time.time(), lease_s=30.0, most=3).result()
        for claim in claims:
            store.traces.add(claim.attempt, [roles.span(1), roles.span(2)], now=time.time()).result()
            roles.succeed(store, claim.attempt).result()
        note = {"note": f"{who} {time.monotonic_ns()}"}
        store.ledger.append("note", note, who=who, now=time.time()).result()
        is_busy = bool(claims)


# SIGSTOP beyond the lease: another finishes the rollout, the sleeper wakes and insists, and is refused every time. Two
# kinds sleep: a bare worker that insists on every kind of write, and a pool as any user has it. A stop is aimed at a
# sleeper that holds work, but may land when it has just finished it, or while it holds SQLite's one write lock; then
# nobody can take its work, it is woken, and its write is a good one. A round in which every stop landed so goes on.

LEASE_S = 0.4
TRIES = 10  # times as many stops as were asked for, until one of them shows anything


def zombies(setting: Setting) -> Tally:
    tally = Tally(fault="zombies")
    rounds, stops = (1, 4) if setting.quick else (2, 30)
    for number in range(rounds):
        with scene(setting) as here:
            made, overtaken = _stop(setting, here, stops, f"round {number + 1} of {rounds}")
            problems = here.work_off()
        tally.events += made
        tally.notes.append(f"{overtaken} of {made} sleepers lost all they held; the others held the lock, or nothing")
        if not overtaken:
            problems.append("no sleeper lost anything: this round shows nothing")
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _stop(setting: Setting, here: Scene, stops: int, where: str) -> tuple[int, int]:
    """How many were stopped, and how many of them woke to find that another had finished all they held."""
    work = roles.Work(lease_s=LEASE_S, size=2)
    for _ in range(2):
        here.crew.start(roles.pool_worker, here.url, here.run, work)
    sleepers = [here.crew.start(stubborn, here.url, here.run, seed) for seed in range(2)]
    sleepers.append(here.crew.start(roles.pool_worker, here.url, here.run, work, name="sleeper"))
    source = here.crew.start(roles.producer, here.url, here.run, "task")
    made = overtaken = 0
    while made < stops or (not overtaken and made < stops * TRIES):
        time.sleep(setting.rng.uniform(0.05, 0.4))
        overtaken += _overtaken(here, sleepers[made % len(sleepers)])
        made += 1
        if made % 10 == 0:
            setting.say(f"{where}: {made} stops")
    os.kill(source.pid, signal.SIGTERM)
    return made, overtaken


def _overtaken(here: Scene, sleeper: Any) -> bool:
    """Stop it at work, until others have finished what it held or it is clear that they cannot; then wake it."""
    held_by = f"SELECT rollout FROM attempts WHERE status = 'running' AND worker LIKE '%-{sleeper.pid}-%'"
    wait_until(lambda: bool(_rows(here, held_by)), 10.0)  # on a busy machine it may only just have started
    if not sleeper.is_alive():  # its journal says why, and the verdict counts what it had written
        return False
    os.kill(sleeper.pid, signal.SIGSTOP)
    held = ", ".join(str(row[0]) for row in _rows(here, held_by))
    left = f"SELECT 1 FROM rollouts WHERE key IN ({held}) AND status <> 'succeeded'"
    overtaken = bool(held) and wait_until(lambda: not _rows(here, left), 3.0)
    os.kill(sleeper.pid, signal.SIGCONT)
    return overtaken


def _rows(here: Scene, statement: str) -> list[Any]:
    with picture.connected(here.url) as connection:
        return list(connection.execute(statement).fetchall())


def stubborn(journal: Journal, url: str, run: str, seed: int) -> None:
    """A worker that, when told that its work is not wanted any more, insists."""
    chance, me = random.Random(seed), f"stubborn-{os.getpid()}-{seed}"
    with open_store(url, poll_s=0.02) as opened:
        store = Witness(opened, journal)
        while True:
            seen, most = opened.changes.seen(QUEUE), chance.randint(1, 3)
            claims = store.queue.claim(run, me, now=time.time(), lease_s=LEASE_S, most=most).result()
            for place, claim in enumerate(claims):
                try:
                    _work(store, run, claim, claims[place:], chance)
                except StaleLease:
                    _insist(store, run, claim)
            if not claims:
                if opened.runs.get(run).wanted is not DesiredState.RUNNING:
                    return
                opened.changes.wait(QUEUE, seen, 0.1)


def _work(store: Witness, run: str, claim: Claim, held: tuple[Claim, ...], chance: random.Random) -> None:
    """Spans with beats for all that is held between them, a reward, the end."""
    tokens = [other.attempt.token for other in held]
    for seq in range(1, chance.randint(2, 5)):
        store.traces.add(claim.attempt, [roles.span(seq)], now=time.time()).result()
        time.sleep(chance.uniform(0.0, 0.03))
        store.queue.beat(run, tokens, now=time.time(), lease_s=LEASE_S).result()
    if chance.random() < 0.1:
        time.sleep(LEASE_S + 0.01)  # late, and perhaps nobody has written it off yet: the lease alone must refuse it
    store.traces.score(claim.attempt, [roles.REWARD], now=time.time()).result()
    roles.succeed(store, claim.attempt).result()


def _insist(store: Witness, run: str, claim: Claim) -> None:
    """Every kind of write once more: at the true time, and as if no time had passed since the claim."""
    attempt = claim.attempt
    for place, now in enumerate((time.time(), attempt.started_at)):
        store.queue.beat(run, [attempt.token], now=now, lease_s=LEASE_S).result()
        with suppress(StaleLease):
            store.traces.add(attempt, [roles.span(1000 + place)], now=now).result()
        with suppress(StaleLease):
            store.traces.score(attempt, [roles.REWARD], now=now, first=1000 + place).result()
        for state in (AttemptState.SUCCEEDED, AttemptState.RELEASED):
            with suppress(StaleLease):
                store.queue.finish(attempt, state, now=now, reward=1.0, error="insisted").result()
