"""Clocks that jump by minutes to hours, forward and back, each worker's for itself; some die in the middle of it.

While they jump, leases run out early and work is done again, but nothing breaks. Once they tell the true time, the run
is worked off at once: no lease and no retry that was set in the future keeps anybody waiting until then.
"""

from __future__ import annotations

import os
import random
import signal
import time
from dataclasses import dataclass
from functools import lru_cache

from tests.drills import roles
from tests.drills.scene import Scene, Setting, Tally, scene, verdict

CREW, EVERY_S = 4, 0.35


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


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="clocks that jump")
    rounds, seconds = (1, 3.0) if setting.quick else (2, 12.0)
    for number in range(rounds):
        with scene(setting) as here:
            kills = _round(setting, here, seconds)
            setting.say(f"round {number + 1} of {rounds}: calm again")
            problems = here.work_off(20.0)
        tally.events += int(seconds / EVERY_S) * CREW // 2 + kills
        tally.notes.append(f"{kills} workers were killed while the clocks jumped")
        tally.add(verdict(here.url, here.folder, problems))
    return tally


def _round(setting: Setting, here: Scene, seconds: float) -> int:
    calm_ns, kills = time.monotonic_ns() + int(seconds * 1e9), 0

    def worker() -> object:
        clock = JumpyClock(setting.rng.randrange(1 << 30), calm_ns)
        return here.crew.start(roles.pool_worker, here.url, here.run, roles.Work(clock=clock, lease_s=0.6))

    crew = [worker() for _ in range(CREW)]
    source = here.crew.start(roles.producer, here.url, here.run, "task")
    while time.monotonic_ns() < calm_ns:
        time.sleep(setting.rng.uniform(0.3, 0.9))
        place = setting.rng.randrange(CREW)
        crew[place].kill()
        crew[place].join()
        crew[place] = worker()
        kills += 1
    os.kill(source.pid, signal.SIGTERM)
    source.join(10)
    return kills
