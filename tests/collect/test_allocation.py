"""Tiers learnt from outcomes: the table where little is known, more where it helped, less where it did not."""

from __future__ import annotations

import time
from collections import Counter

import pytest

from holdfast.collect.allocation import ENOUGH, Allocation, context_of, fit
from holdfast.collect.thinking import allocate, assess, spend
from holdfast.contracts.budget import Assessment, ThinkingBudget, Tier, Traits

EASY, CHAIN = Traits(tool_count=0, step_count=1), Traits(tool_count=0, step_count=3)


def used(traits: Traits, tier: Tier, tokens: int, scale: float = 1.0) -> ThinkingBudget:
    given = Assessment(tier=tier, confidence=0.9, reasons=("r",), traits=traits)
    return spend(allocate("a", given, now=0.0, scale=scale).budget, tokens, now=0.0).budget


def outcomes(traits: Traits, tier: Tier, failed: int, right: int, tokens: int) -> list[tuple[ThinkingBudget, bool]]:
    return [(used(traits, tier, tokens), place < failed) for place in range(failed + right)]


def chosen(allocation: Allocation, traits: Traits) -> Counter[Tier]:
    return Counter(allocation(traits, f"r/{n}").tier for n in range(300))


@pytest.mark.parametrize("traits", [EASY, CHAIN, Traits(tool_count=4)])
def test_without_outcomes_the_table_decides(traits: Traits) -> None:
    assert Allocation()(traits, "r/1") == assess(traits)
    few = fit(outcomes(traits, Tier.COMPLEX, 0, ENOUGH - 1, 10))
    assert few(traits, "r/1") == assess(traits) and few.best(context_of(traits)) is None


def test_what_failed_with_little_and_succeeded_with_more_gets_more() -> None:
    allocation = fit([*outcomes(CHAIN, Tier.STANDARD, 30, 10, 2000), *outcomes(CHAIN, Tier.COMPLEX, 1, 39, 3000)])
    assert chosen(allocation, CHAIN)[Tier.COMPLEX] > 270
    assert allocation.best(context_of(CHAIN)) is Tier.COMPLEX
    found = next(one for n in range(9) if (one := allocation(CHAIN, f"r/{n}")).tier is Tier.COMPLEX)
    assert found.reasons == ("learnt: 39 of 40 succeeded as complex; the table says standard",)
    assert allocation(EASY, "r/1") == assess(EASY)  # nothing is known of those


def test_what_succeeds_either_way_gets_the_cheaper_one() -> None:
    allocation = fit([*outcomes(CHAIN, Tier.STANDARD, 0, 400, 2000), *outcomes(CHAIN, Tier.COMPLEX, 0, 400, 8000)])
    assert chosen(allocation, CHAIN)[Tier.STANDARD] > 270 and allocation.best(context_of(CHAIN)) is Tier.STANDARD


def test_the_price_of_a_token_is_that_of_the_models_own_scale() -> None:
    whole, small = (fit([(used(CHAIN, Tier.COMPLEX, n, scale), False)]) for n, scale in ((4000, 1.0), (40, 0.01)))
    costs = [one.outcomes[context_of(CHAIN)][Tier.COMPLEX].cost for one in (whole, small)]
    assert costs == pytest.approx([0.05, 0.05])


def test_the_same_attempt_gets_the_same_tier_and_others_are_tried() -> None:
    allocation = fit(outcomes(CHAIN, Tier.STANDARD, 20, 20, 100))
    assert allocation(CHAIN, "r/7") == allocation(CHAIN, "r/7")
    assert set(chosen(allocation, CHAIN)) == set(Tier)


def test_an_allocation_takes_far_less_than_fifty_milliseconds() -> None:
    allocation, took = fit(outcomes(CHAIN, Tier.STANDARD, 100, 100, 100)), []
    for n in range(200):
        began = time.perf_counter()
        allocation(CHAIN, f"r/{n}")
        took.append(time.perf_counter() - began)
    assert sorted(took)[190] < 0.05
