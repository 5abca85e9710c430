"""One version does every case of a suite once, with nothing left to chance: what goldens are recorded from.

What a golden holds, and what a change of it means, is `prove.golden`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from typing import Any

from holdfast.collect.pool import PoolTiming
from holdfast.contracts.algorithm import Batch, Work
from holdfast.contracts.policy import Policy
from holdfast.contracts.records import decode, encode
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import StepRecord
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import Runtime, StepContext
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.pipeline.versions import Version
from holdfast.prove.golden import Golden, golden_of
from holdfast.prove.suite import Suite
from holdfast.store.store import Store

KIND = "golden"
GREEDY: Mapping[str, Any] = {"temperature": 0.0}
TIMEOUT_S = 120.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Replay:
    name: str  # of the golden
    suite: Suite
    tasks: Sequence[HeldOut]  # its cases, under sampling that leaves nothing to chance
    version: Version
    workers: int = 16  # rows of a fixed layout: more of them are slower, not faster, for the few cases of a suite


def golden_spec(replay: Replay, policy: Policy, runtime: Runtime) -> RunSpec:
    """The engine of the runtime has to be deterministic."""
    runtime.open(policy)  # what cannot be opened is found here, not by a worker
    return RunSpec(
        kind=KIND,
        program=partial(replayed, replay, policy),
        model_ref=f"{replay.version.name} on {replay.suite.title}",
        settings={"name": replay.name, "suite": replay.suite.title, "version": asdict(replay.version)},
        runtime=runtime,
        workers=replay.workers,
        timing=PoolTiming(heartbeat_s=1.0, lease_s=10.0),
        drain_s=10.0,
    )


async def replayed(replay: Replay, policy: Policy, run: DurableRun) -> None:
    work = [
        Work(
            name=f"replay-{place}",
            input=task.input,
            policy=policy,
            group=task.id,
            split=Split.TEST,
            seed=task.rng_key or task.id,
        )
        for place, task in enumerate(replay.tasks)
    ]
    run.planned = len(work)
    batch = await run.step("collect", collect, work, 1, TIMEOUT_S, title=f"{len(work)} cases")
    await run.step("golden", partial(record, replay), batch)


def record(replay: Replay, batch: Batch, *, ctx: StepContext) -> dict[str, Any]:
    """The golden as a blob: that of a large suite is more than a step may hold."""
    version = replay.version
    golden = golden_of(
        replay.suite,
        ctx.experiences(batch),
        name=replay.name,
        version=(version.name, version.sha256),
        sampling=GREEDY,
        now=ctx.now(),
    )
    return {"phase": KIND, "golden": ctx.save(encode(golden))}


def golden_in(store: Store, steps: Sequence[StepRecord]) -> Golden | None:
    """Reads the golden of a replay; None while it is not done."""
    for step in steps:
        kept = step.body.get("golden")
        if kept is not None:
            return decode(Golden, json.loads(store.blobs.get(kept)) if isinstance(kept, str) else kept)
    return None
