"""What the trials of a model do: practise on tasks without a proof, and measure held-out tasks."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Any

from holdfast.contracts.algorithm import Algorithm, AlgorithmState, Batch, Work
from holdfast.contracts.experience import Experience
from holdfast.contracts.policy import Policy
from holdfast.contracts.rollout import Split
from holdfast.pipeline.collect import collect
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.run import DurableRun
from holdfast.workloads.tooluse.quickstart import TIMEOUT_S


async def practise(
    run: DurableRun, algorithm: Algorithm, base: Policy, tasks: Sequence[Any], *, at: str = "0"
) -> AlgorithmState:
    """Learns from the tasks, without a proof or a gate; `at` begins the names of its steps."""
    state = algorithm.start(base)
    while work := algorithm.ask(state, tasks):
        name, title = f"{at}/{state.step}", f"practice {state.step + 1}"
        batch = await run.step(f"{name}/collect", collect, work, 1, TIMEOUT_S, title=title)
        state = await run.step(f"{name}/learn", partial(tell, algorithm), state, batch, title=title)
    return state


def tell(algorithm: Algorithm, state: AlgorithmState, batch: Batch, *, ctx: StepContext) -> AlgorithmState:
    return algorithm.tell(state, batch, ctx)


Figures = Callable[[Sequence[Experience | None]], Mapping[str, Any]]  # None: it never finished


async def measure(
    run: DurableRun, phase: str, policy: Policy, inputs: Sequence[Any], figures: Figures, *, title: str
) -> Mapping[str, Any]:
    """Runs each held-out task once and keeps the figures."""
    names = [f"{phase}-{place}" for place in range(len(inputs))]
    work = [
        Work(name=name, input=one, policy=policy, group=name, split=Split.TEST)
        for name, one in zip(names, inputs, strict=True)
    ]
    batch = await run.step(f"{phase}/collect", collect, work, 1, TIMEOUT_S, title=title)
    told: Mapping[str, Any] = await run.step(phase, partial(figured, phase, figures, names), batch, title=title)
    return told


def figured(phase: str, figures: Figures, names: Sequence[str], batch: Batch, *, ctx: StepContext) -> dict[str, Any]:
    known = {one.rollout.partition("/")[2]: one for one in ctx.experiences(batch)}
    return {"phase": phase, **figures([known.get(name) for name in names])}
