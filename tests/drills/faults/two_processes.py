"""Two processes on one store, each as fast as it can: enqueue, claim, write, finish. Both get their share."""

from __future__ import annotations

import threading
import time
from collections import Counter

from holdfast.store.store import open_store
from tests.drills import journal, roles
from tests.drills.journal import Journal
from tests.drills.scene import Setting, Tally, scene, verdict
from tests.drills.witness import Witness

LEAST_SHARE = 0.2  # of the calls; below it one process starves the other
THREADS = 4


def drill(setting: Setting) -> Tally:
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
