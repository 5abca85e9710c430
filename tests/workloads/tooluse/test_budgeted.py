"""Thinking budgets on the embedded model: a tier binds, and a cut thought goes on where the budget grows."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from holdfast.collect.agent import Context, Tracer
from holdfast.collect.thinking import BudgetTracker
from holdfast.contracts.budget import Assessment, ThinkingBudget, Tier
from holdfast.contracts.executor import Assignment
from holdfast.policies.engine import Local
from holdfast.policies.model import load_transformer
from holdfast.workloads.tooluse.agent import agent
from holdfast.workloads.tooluse.score import is_right
from holdfast.workloads.tooluse.tasks import Dials, ToolTask, generate, to_input

CHAINS = generate("test", 10**6, 24, Dials(families=("steps",), think=1.0))
GREEDY = {"temperature": 0.0, "max_tokens": 160}
Done = tuple[ThinkingBudget, bool, int]  # the budget, whether the answer is wrong, and the calls that were made


def fixed(tier: Tier) -> Any:
    return lambda traits, attempt: Assessment(tier=tier, confidence=0.9, reasons=("r",), traits=traits)


def attempted(local: Local, tasks: Sequence[ToolTask], allocation: Any = None, **more: Any) -> list[Done]:
    async def attempt(place: int, task: ToolTask) -> Done:
        given = {**to_input(task), "sampling": {**GREEDY, **more}}
        budget = BudgetTracker(
            f"r/{place}", given, lambda change: None, lambda: 0.0, scale=local.thinking_scale, allocation=allocation
        )
        trace = Tracer(record=lambda span: None, clock=lambda: 0.0)
        names: dict[str, Any] = {"rollout": "r", "attempt": "a", "number": 1, "split": None, "resources": {}}
        assignment = Assignment(**names, input=given, seed=place)
        output = await agent(given, Context(assignment=assignment, trace=trace, complete=local, budget=budget))
        assert budget.budget is not None
        return budget.budget, not is_right({**given, "expected": task.expected}, output), len(trace.spans)

    async def every() -> list[Done]:
        return list(await asyncio.gather(*(attempt(place, task) for place, task in enumerate(tasks))))

    return asyncio.run(every())


def test_tiers_bind_and_more_is_given_where_a_thought_was_cut() -> None:
    model, _ = load_transformer("sprout")
    with Local(model, slots=24) as local:
        assert round(16_000 * local.thinking_scale) == 208  # a quarter of its context
        found = {tier: attempted(local, CHAINS, fixed(tier)) for tier in Tier}
    right = {tier: sum(not wrong for _, wrong, _ in done) for tier, done in found.items()}
    assert right[Tier.TRIVIAL] < right[Tier.STANDARD] < right[Tier.COMPLEX] >= 20
    for budget, _, _ in [one for done in found.values() for one in done]:
        assert budget.spent <= budget.allowed <= budget.cap and not budget.overspent
    grown = [(budget, wrong) for budget, wrong, _ in found[Tier.STANDARD] if budget.escalations]
    assert grown and all(budget.calls == 2 for budget, _ in grown)  # asked once more
    assert sum(not wrong for _, wrong in grown) > 0  # which helped
    assert not any(budget.escalations for budget, _, _ in found[Tier.COMPLEX])
