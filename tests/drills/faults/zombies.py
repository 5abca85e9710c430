"""SIGSTOP beyond the lease: another finishes the rollout, the sleeper wakes and insists, and is refused every time.

Two kinds sleep: a bare worker that insists on every kind of write, and a pool as any user has it. A stop may land while
the sleeper holds SQLite's one write lock; then nobody can take its work, it is woken, and its write is a good one.
"""

from __future__ import annotations

import os
import signal
import time

from tests.drills import picture, roles
from tests.drills.crew import wait_until
from tests.drills.scene import Scene, Setting, Tally, scene, verdict

LEASE_S = 0.4


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="zombies")
    rounds, stops = (1, 4) if setting.quick else (2, 30)
    for number in range(rounds):
        with scene(setting) as here:
            overtaken = _round(setting, here, stops, f"round {number + 1} of {rounds}")
            problems = here.work_off(60.0)
        tally.events += stops
        tally.notes.append(f"{overtaken} of {stops} sleepers lost all they held; the others held the lock, or nothing")
        if not overtaken:
            problems.append("no sleeper lost anything: this round shows nothing")
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _round(setting: Setting, here: Scene, stops: int, where: str) -> int:
    work = roles.Work(lease_s=LEASE_S, size=2)
    for _ in range(2):
        here.crew.start(roles.pool_worker, here.url, here.run, work)
    sleepers = [here.crew.start(roles.stubborn, here.url, here.run, LEASE_S, seed) for seed in range(2)]
    sleepers.append(here.crew.start(roles.pool_worker, here.url, here.run, work, name="sleeper"))
    source = here.crew.start(roles.producer, here.url, here.run, "task")
    overtaken = 0
    for stop in range(stops):
        time.sleep(setting.rng.uniform(0.05, 0.4))
        sleeper = sleepers[stop % len(sleepers)]
        os.kill(sleeper.pid, signal.SIGSTOP)
        held = _held_by(here, sleeper)
        if held:
            overtaken += wait_until(lambda held=held: not _unfinished(here, held), 3.0)
        os.kill(sleeper.pid, signal.SIGCONT)
        if stop % 10 == 9:
            setting.say(f"{where}: {stop + 1} stops")
    os.kill(source.pid, signal.SIGTERM)
    return overtaken


def _held_by(here: Scene, sleeper: object) -> list[int]:
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
