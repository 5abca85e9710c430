"""kill -9 of workers, and of the producer, at random instants under load; each is replaced, and all gets done."""

from __future__ import annotations

import os
import signal

from tests.drills import roles
from tests.drills.scene import Scene, Setting, Tally, scene, verdict

CREW = 4


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="workers killed")
    rounds, kills = (1, 15) if setting.quick else (3, 100)
    for number in range(rounds):
        with scene(setting) as here:
            tally.events += _round(setting, here, kills, f"round {number + 1} of {rounds}")
            problems = here.work_off(60.0)
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _round(setting: Setting, here: Scene, kills: int, where: str) -> int:
    chance, lives = setting.rng, 0

    def worker() -> object:
        nonlocal lives
        lives += 1
        return here.crew.start(roles.pool_worker, here.url, here.run, roles.Work(seed=lives))

    def producer() -> object:
        return here.crew.start(roles.producer, here.url, here.run, f"task-{lives}")

    crew = [worker() for _ in range(CREW)]
    source = producer()
    for kill in range(kills):
        source.join(chance.expovariate(1 / 0.12))
        if kill % 10 == 9:
            source.kill()
            source.join()
            lives += 1
            source = producer()
        else:
            place = chance.randrange(CREW)
            crew[place].kill()
            crew[place].join()
            crew[place] = worker()
        if kill % 25 == 24:
            setting.say(f"{where}: {kill + 1} kills")
    os.kill(source.pid, signal.SIGTERM)
    source.join(10)
    return kills
