"""Runs of the pipeline without a model: a policy is a text, the agent says it, and what it says is right or wrong."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from holdfast.collect.agent import Context
from holdfast.contracts.policy import policy_record
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span
from holdfast.pipeline.context import Endpoints, Runtime
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.paired import PairedEvaluation, paired_spec, policies_of
from holdfast.pipeline.run import RunSpec
from holdfast.pipeline.versions import Version
from holdfast.policies.prompt import Prompt
from holdfast.prove.comparison import ComparisonConfig
from holdfast.reward.scorers import with_safety
from holdfast.store.store import Store
from tests.pipeline.scene import drive

RIGHT, WRONG, UNSCORED, UNTOLD, RAISES = "right", "wrong", "unscored", "untold", "raises"
LAX = ComparisonConfig(max_safety_regression=0.9)  # so that a few tasks decide
EVIDENCE = ("letters", "1", "ab" * 32)


async def agent(task: Any, context: Context) -> str:
    said = task.get("always") or context.prompt("says")
    if said == RAISES:
        raise ValueError("it cannot")
    return str(said)


def score(task: Any, output: Any, spans: Sequence[Span]) -> tuple[RewardTerm, ...]:
    if output == UNSCORED:
        return ()
    if str(output).startswith(UNTOLD):
        return (RewardTerm(name="taste", value=1.0, source="rule"),)
    return (RewardTerm(name="success", value=float(output == RIGHT), source="rule"),)


def version(name: str, says: str) -> Version:
    record = policy_record(Prompt({"says": says}))
    return Version(name=name, weights="", sha256=name.ljust(64, "0"), policy=record)


def tasks(count: int, first: int = 0) -> tuple[HeldOut, ...]:
    return tuple(HeldOut(id=f"t{place}", input={"prompt": f"task {place}"}) for place in range(first, first + count))


def evaluation(before: str = WRONG, after: str = RIGHT, **given: Any) -> PairedEvaluation:
    made = PairedEvaluation(
        tasks=tasks(6),
        seeds=(1, 2),
        suite=EVIDENCE,
        baseline=version("old", before),
        candidate=version("new", after),
        how=LAX,
        batch=4,
        workers=4,
    )
    return replace(made, **given)


def spec(store: Store, made: PairedEvaluation) -> RunSpec:
    return paired_spec(made, policies_of(store, made), Runtime(agent, with_safety(score), Endpoints()))


def compared(store: Store, made: PairedEvaluation) -> str:
    """The run that it made."""
    return drive(store, spec(store, made)).run_id
