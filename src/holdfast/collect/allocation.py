"""Which tier a task gets, learnt from what came of earlier attempts: a contextual bandit over the three tiers.

The context of a task is what the table looks at (`thinking.assess`), in few steps. For each tier that a context has
had, the chance of success is a beta distribution; a tier is drawn by Thompson sampling (Thompson 1933), less a price
for the tokens it uses. Where a context has too few outcomes, the table decides.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from random import Random

from holdfast.collect.thinking import LIMITS, assess
from holdfast.contracts.budget import Assessment, ThinkingBudget, Tier, Traits

FROM_OUTCOMES = "learnt"  # of a run's `thinking_allocation`
ENOUGH = 20  # outcomes of a context before anything is learnt from them
PRICE = 0.1  # of all that a complex budget allows, in success


@dataclass(frozen=True, slots=True, kw_only=True)
class TierOutcomes:
    """What came of the attempts of one context that were given one tier."""

    attempts: int = 0
    succeeded: int = 0
    share: float = 0.0  # of a complex budget, spent by all of them together

    @property
    def cost(self) -> float:
        return PRICE * self.share / max(1, self.attempts)


@dataclass(frozen=True, slots=True)
class Allocation:
    """Gives a task its tier: `allocation(traits, attempt)`. The same attempt gets the same one again."""

    outcomes: Mapping[str, Mapping[Tier, TierOutcomes]] = field(default_factory=dict)  # by context and tier

    def __call__(self, traits: Traits, attempt: str) -> Assessment:
        by_table = assess(traits)
        seen = self.outcomes.get(context_of(traits), {})
        if sum(outcomes.attempts for outcomes in seen.values()) < ENOUGH:
            return by_table
        rng = Random(attempt)
        worth = {tier: _draw(seen.get(tier), tier, rng) for tier in Tier}
        chosen = max(worth, key=lambda tier: worth[tier])
        had = seen.get(chosen, TierOutcomes())
        why = f"learnt: {had.succeeded} of {had.attempts} succeeded as {chosen}; the table says {by_table.tier}"
        sure = (had.succeeded + 1) / (had.attempts + 2)
        return Assessment(tier=chosen, confidence=sure, reasons=(why,), traits=traits)

    def best(self, context: str) -> Tier | None:
        """The tier of the highest worth so far; None where too little is known."""
        seen = self.outcomes[context]
        if sum(outcomes.attempts for outcomes in seen.values()) < ENOUGH:
            return None
        return max(seen, key=lambda tier: (seen[tier].succeeded + 1) / (seen[tier].attempts + 2) - seen[tier].cost)


def fit(finished: Iterable[tuple[ThinkingBudget, bool]]) -> Allocation:
    """The allocation that these budgets teach; each comes with whether its attempt has failed."""
    found: dict[str, dict[Tier, TierOutcomes]] = {}
    for budget, has_failed in finished:
        tiers = found.setdefault(context_of(budget.assessment.traits), {})
        had = tiers.get(budget.tier, TierOutcomes())
        whole = budget.cap * LIMITS[Tier.COMPLEX].ceiling / LIMITS[budget.tier].cap  # a complex one of this model
        tiers[budget.tier] = TierOutcomes(
            attempts=had.attempts + 1,
            succeeded=had.succeeded + (not has_failed),
            share=had.share + min(1.0, budget.spent / whole),
        )
    return Allocation(found)


def context_of(traits: Traits) -> str:
    """The tier of the table, and how many tools and steps there are, as far as that matters."""
    return f"{assess(traits).tier}, {min(traits.tool_count, 3)} tools, {min(traits.step_count, 5)} steps"


def _draw(seen: TierOutcomes | None, tier: Tier, rng: Random) -> float:
    """A possible chance of success, less the price; of a tier that was never given, that of half its ceiling."""
    had = seen or TierOutcomes(share=0.0)
    untried = PRICE * LIMITS[tier].ceiling / (2 * LIMITS[Tier.COMPLEX].ceiling)
    return rng.betavariate(had.succeeded + 1, had.attempts - had.succeeded + 1) - (
        had.cost if had.attempts else untried
    )
