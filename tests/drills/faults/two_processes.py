"""Two processes on one store, each as fast as it can: enqueue, claim, write, finish. Both get their share."""

from __future__ import annotations

from collections import Counter

from tests.drills import journal, roles
from tests.drills.scene import Setting, Tally, scene, verdict

LEAST_SHARE = 0.2  # of the calls; below it one process starves the other


def drill(setting: Setting) -> Tally:
    tally = Tally(fault="two processes")
    seconds = 1.0 if setting.quick else 10.0
    with scene(setting, queue_limit=None) as here:
        for who in ("ann", "bob"):
            here.crew.start(roles.hammer, here.url, here.run, who, seconds, name=who)
        setting.say(f"{seconds:g} s of both")
        problems = here.crew.finish(seconds + 60.0) + here.work_off(10.0)
    calls = journal.read(here.folder).calls
    done = Counter(call.who.partition("-")[0] for call in calls if call.ok)
    share = min(done["ann"], done["bob"]) / done.total()
    slowest = max((call.ended_ns or 0) - call.begun_ns for call in calls) / 1e9
    tally.events = done.total()
    tally.notes.append(
        f"{done['ann']} and {done['bob']} calls, the smaller share {share:.0%}; slowest call {slowest:.2f} s"
    )
    if share < LEAST_SHARE:
        problems.append(f"one process got {share:.0%} of the calls, at least {LEAST_SHARE:.0%} is fair")
    tally.add(verdict(here.url, here.folder, problems))
    return tally
