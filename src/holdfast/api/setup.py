"""What the calls that run an agent have in common: their arguments checked, their runtime, and how they are started."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, TypeVar

from holdfast.api.driving import Started
from holdfast.api.inputs import Options, Waived, agent_from, described, engine_for, score_from, task_set, unscored
from holdfast.api.stored import Run, StoreAddress, who
from holdfast.collect.pool import PoolTiming
from holdfast.collect.tasks import TaskSet
from holdfast.contracts.agent import Agent
from holdfast.contracts.artifacts import Artifacts
from holdfast.contracts.errors import BadInput, NotFound
from holdfast.contracts.policy import Policy
from holdfast.pipeline.context import Runtime
from holdfast.pipeline.run import DurableRun as Driven
from holdfast.pipeline.run import RunSpec
from holdfast.store.store import Store

T = TypeVar("T")
API = 1  # of the settings that are kept with a run
LEASE_S = 10.0
WAIVER = "waiver"  # the kind of the ledger's entry


@dataclass(frozen=True, kw_only=True)
class Setup:
    """What every call that runs an agent has in common, checked."""

    tasks: TaskSet
    agent: Agent
    score: Any  # a TaskScore, or nothing is measured
    policies: tuple[Policy, ...]
    runtime: Runtime
    options: Options
    waived: str | None
    base_url: str | None
    settings: Mapping[str, Any]

    @property
    def place(self) -> StoreAddress:
        return StoreAddress(str(self.options["store"]), self.options["project"])


def prepare(
    given: Mapping[str, Any],
    *,
    agent: Any,
    tasks: Any,
    scorers: Any,
    safety: Any,
    policies: Sequence[Policy],
    base_url: str | None,
    options: Options,
    made: Agent | None = None,
) -> Setup:
    """`given` is what else two calls must agree on; `made` an agent that was put together from several."""
    found = task_set(tasks)
    adapted = made or agent_from(agent)
    score: Any = unscored if scorers is None else score_from(scorers, safety, list(found))
    waived = safety.why if isinstance(safety, Waived) else None
    runtime = runtime_for(adapted, score, policies, base_url, options)
    settings = {
        "api": API,
        **given,
        "agent": described(agent),
        "scorers": described(getattr(score, "combined", None)),
        "waived": waived,
        "policies": described(policies),
        "base_url": base_url,
        "tasks": dict(found.sha256),
        **{name: described(value) for name, value in options.items() if name not in ("store", "project", "workers")},
    }
    return Setup(
        tasks=found,
        agent=adapted,
        score=score,
        policies=tuple(policies),
        runtime=runtime,
        options=options,
        waived=waived,
        base_url=base_url,
        settings=settings,
    )


def runtime_for(
    agent: Agent,
    score: Any,
    policies: Sequence[Policy],
    base_url: str | None,
    options: Options,
    files: Artifacts | None = None,
) -> Runtime:
    """With every policy opened: what cannot be is found here, not by a worker. `files` are the store's, if it is
    known: checkpoints lie there."""
    runtime = Runtime(agent, score, engine_for(policies, base_url, options))
    try:
        if files is not None:
            runtime.attach(files)
        for policy in policies:
            runtime.open(policy)
    except BaseException:
        runtime.close()
        raise
    return runtime


def launch(
    setup: Setup, kind: str, program: Callable[[Driven], Any], read: Callable[[Store, Run], T], model_ref: str
) -> Started[T]:
    report = replace(setup.tasks.report, is_proof=kind == "improve")
    if report.warnings:
        print(report, file=sys.stderr)
    return drive_spec(setup, run_spec(setup, kind, program, model_ref), read)


def run_spec(setup: Setup, kind: str, program: Callable[[Driven], Any], model_ref: str) -> RunSpec:
    options = setup.options
    return RunSpec(
        kind=kind,
        program=program,
        model_ref=model_ref,
        settings=setup.settings,
        runtime=setup.runtime,
        workers=options["workers"],
        timing=PoolTiming(heartbeat_s=1.0, lease_s=LEASE_S),
        seed=options["seed"],
    )


def drive_spec(setup: Setup, spec: RunSpec, read: Callable[[Store, Run], T]) -> Started[T]:
    store = None
    try:
        store = setup.place.open(create=True)
        for policy in setup.policies:
            check_there(policy, store)
        return Started(setup.place, store, spec, read, begun=partial(_note, setup))
    except BaseException:
        spec.runtime.close()
        if store is not None:
            store.close()
        raise


def _note(setup: Setup, store: Store, run: str) -> None:
    """That safety is waived is in the ledger before anything is decided."""
    if setup.waived is not None and not any(one.kind == WAIVER for one in store.ledger.entries(run=run)):
        body = {"safety": "waived", "why": setup.waived}
        store.ledger.append(WAIVER, body, who=who(), now=time.time(), run=run).result()


def check_there(policy: Policy, store: Store) -> None:
    """Weights that were trained lie in one store, and a run in another one could not be resumed."""
    checkpoint = getattr(policy, "checkpoint", None)
    if checkpoint is None:
        return
    try:
        store.checkpoints.get(checkpoint)
    except NotFound:
        remedy = "give the store that it was trained in, or export it and name the folder"
        raise BadInput(f"policy {policy.version}", why=f"is not in the store {store.url}", remedy=remedy) from None
