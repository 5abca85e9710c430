"""One version does every case of a suite once, with nothing left to chance: what goldens are recorded from.

What a golden holds, and what a change of it means, is `prove.golden`'s business.
"""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from holdfast.collect.agent import no_model
from holdfast.collect.plan import Learnt, Lesson, Plan, Standing
from holdfast.collect.pool import Pace
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.experience import Experience
from holdfast.contracts.records import encode
from holdfast.prove.golden import golden_of
from holdfast.prove.suite import Suite
from holdfast.workloads.duel import contestant, job, scorer
from holdfast.workloads.versions import Version, open_local, to_record

KIND = "golden"
GREEDY: Mapping[str, Any] = {"temperature": 0.0}
ARM = "replay"


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    name: str  # of the golden
    suite: Suite
    version: Version
    workers: int = 16  # rows of a fixed layout: more of them are slower, not faster, for the few cases of a suite


def plan_for(replay: Replay) -> Plan:
    model = open_local(replay.version, slots=replay.workers, seed=0, deterministic=True)
    home = Home(contestant({ARM: model}), scorer(replay.suite), no_model, time.time)

    def close() -> None:
        home.close()
        model.close()

    return Plan(
        kind=KIND,
        course=partial(_lesson, replay),
        resources={},
        model_ref=f"{replay.version.name} on {replay.suite.title}",
        settings={"name": replay.name, "suite": replay.suite.title, "version": to_record(replay.version)},
        seats=lambda: Seat(home.place()),
        close=close,
        workers=replay.workers,
        pace=Pace(heartbeat_s=1.0, lease_s=10.0),
        drain_s=10.0,
    )


def _lesson(replay: Replay, standing: Standing) -> Lesson | None:
    if standing.done:
        return None
    jobs = [
        job(case, ARM, 0, name=f"{ARM}-{place}", chance=case.seed, resources=replay.version.resources, **GREEDY)
        for place, case in enumerate(replay.suite.cases)
    ]
    return Lesson(name=f"{len(jobs)} cases", tasks=jobs, learn=partial(_record, replay))


def _record(replay: Replay, experiences: Sequence[Experience]) -> Learnt:
    version = replay.version
    golden = golden_of(
        replay.suite,
        experiences,
        name=replay.name,
        version=(version.name, version.sha256),
        sampling=GREEDY,
        now=time.time(),
    )
    return Learnt(body={"phase": KIND, "golden": encode(golden)})
