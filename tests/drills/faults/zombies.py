"""SIGSTOP beyond the lease: another finishes the rollout, the sleeper wakes and insists, and is refused every time.

Two kinds sleep: a bare worker that insists on every kind of write, and a pool as any user has it. A stop is aimed at a
sleeper that holds work, but may land when it has just finished it, or while it holds SQLite's one write lock; then
nobody can take its work, it is woken, and its write is a good one. A round in which every stop landed so goes on.
"""

from __future__ import annotations

import os
import random
import signal
import time
from contextlib import suppress
from typing import Any

from holdfast.contracts.errors import StaleLease
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim
from holdfast.contracts.run import DesiredState
from holdfast.store.notifications import QUEUE
from holdfast.store.store import open_store
from tests.drills import picture, roles
from tests.drills.crew import wait_until
from tests.drills.journal import Journal
from tests.drills.scene import Scene, Setting, Tally, scene, verdict
from tests.drills.witness import Witness

LEASE_S = 0.4
TRIES = 10  # times as many stops as were asked for, until one of them shows anything


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="zombies")
    rounds, stops = (1, 4) if setting.quick else (2, 30)
    for number in range(rounds):
        with scene(setting) as here:
            made, overtaken = _round(setting, here, stops, f"round {number + 1} of {rounds}")
            problems = here.work_off(60.0)
        tally.events += made
        tally.notes.append(f"{overtaken} of {made} sleepers lost all they held; the others held the lock, or nothing")
        if not overtaken:
            problems.append("no sleeper lost anything: this round shows nothing")
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _round(setting: Setting, here: Scene, stops: int, where: str) -> tuple[int, int]:
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
    wait_until(lambda: bool(_held_by(here, sleeper)), 10.0)  # on a busy machine it may only just have started
    os.kill(sleeper.pid, signal.SIGSTOP)
    held = _held_by(here, sleeper)
    overtaken = bool(held) and wait_until(lambda: not _unfinished(here, held), 3.0)
    os.kill(sleeper.pid, signal.SIGCONT)
    return overtaken


def _held_by(here: Scene, sleeper: Any) -> list[int]:
    with picture.connected(here.url) as connection:
        found = connection.execute(
            f"SELECT rollout FROM attempts WHERE status = 'running' AND worker LIKE '%-{sleeper.pid}-%'"
        )
        return [row[0] for row in found.fetchall()]


def _unfinished(here: Scene, rollouts: list[int]) -> int:
    keys = ", ".join(map(str, rollouts))
    with picture.connected(here.url) as connection:
        found = connection.execute(f"SELECT count(*) FROM rollouts WHERE key IN ({keys}) AND status <> 'succeeded'")
        return int(found.fetchone()[0])


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
    store.traces.score(claim.attempt, [_reward()], now=time.time()).result()
    roles.succeed(store, claim.attempt).result()


def _insist(store: Witness, run: str, claim: Claim) -> None:
    """Every kind of write once more: at the true time, and as if no time had passed since the claim."""
    attempt = claim.attempt
    for place, now in enumerate((time.time(), attempt.started_at)):
        store.queue.beat(run, [attempt.token], now=now, lease_s=LEASE_S).result()
        with suppress(StaleLease):
            store.traces.add(attempt, [roles.span(1000 + place)], now=now).result()
        with suppress(StaleLease):
            store.traces.score(attempt, [_reward()], now=now, first=1000 + place).result()
        for state in (AttemptState.SUCCEEDED, AttemptState.RELEASED):
            with suppress(StaleLease):
                store.queue.finish(attempt, state, now=now, reward=1.0, error="insisted").result()


def _reward() -> RewardTerm:
    return RewardTerm(name="done", value=1.0, source="rule:drill")
