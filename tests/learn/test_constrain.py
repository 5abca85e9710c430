"""A budget of cost: a multiplier that follows its law, and advantages that weigh cost apart from reward."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState
from holdfast.learn.batch import SampleFilter
from holdfast.learn.constrain import (
    Constraint,
    CostPrice,
    Multiplier,
    combine,
    cost_credit,
    cost_of,
    from_dict,
    mean_cost,
    turn_costs,
)
from holdfast.learn.grpo import Grpo, compare
from holdfast.learn.turns import RlSettings, optimize_turns
from holdfast.policies.lm import ModelShape, Transformer
from tests.learn.attempts import attempt, call, signal

torch.set_num_threads(1)
PLAIN = {"scale": True, "mix": 0.0}


def member(name: str, reward: float, cost: float | None, *, completion: int = 5) -> Experience:
    signals = [signal(reward)] + ([] if cost is None else [signal(cost, "safety_cost", weight=0.0)])
    return attempt(name, call([1, 2], [completion]), signals=signals, task="t")


def test_the_multiplier_follows_by_hand() -> None:
    how = Constraint(budget=0.1, proportional=2.0, integral=0.5, derivative=3.0, smoothing=0.5, most=10.0)
    first = Multiplier().updated(0.5, how)  # over by 0.4: 2·0.4 + 0.5·0.4, and nothing rose yet
    assert first.value == pytest.approx(0.8 + 0.2)
    second = first.updated(0.9, how)  # over by 0.8: mean 0.6; integral 0.2 + 0.4; mean cost rose from 0.5 to 0.7
    assert second.value == pytest.approx(2 * 0.6 + 0.6 + 3 * 0.2)
    third = second.updated(0.0, how)  # under by 0.1: mean 0.25; integral 0.55; a fall is not held back
    assert third.value == pytest.approx(2 * 0.25 + 0.55)
    assert (third.seen, third.cost) == (3, pytest.approx(0.35))


@given(st.lists(st.floats(0.0, 5.0), max_size=40), st.floats(0.0, 1.0))
def test_the_multiplier_is_never_negative_and_never_beyond_its_most(costs: list[float], budget: float) -> None:
    how, held = Constraint(budget=budget, most=4.0), Multiplier()
    for cost in costs:
        held = held.updated(cost, how)
        assert 0.0 <= held.value <= 4.0 and 0.0 <= held.integral <= 4.0


def test_a_policy_that_stays_within_its_budget_is_left_alone() -> None:
    held = Multiplier()
    for _ in range(50):
        held = held.updated(0.02, Constraint(budget=0.05))
    assert held.value == 0.0


def test_the_controller_damps_what_dual_ascent_lets_swing() -> None:
    """A learner moves its cost by how far the price is off: with the integral alone it is a spring without friction."""

    def swing(how: Constraint) -> float:
        held, cost, late = Multiplier(), 0.6, []
        for step in range(300):
            held = held.updated(cost, how)
            cost = max(0.0, cost - 0.2 * (held.value - 0.5))
            late += [abs(cost - how.budget)] if step >= 200 else []
        return max(late)

    assert swing(Constraint(budget=0.2, proportional=0.0, integral=0.1, derivative=0.0, smoothing=0.0)) > 0.1
    assert swing(Constraint(budget=0.2, proportional=1.0, integral=0.1, derivative=0.5)) < 0.01


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        ({"cost": " "}, "constraint.cost: is blank; name the signal that is the cost"),
        ({"budget": -0.1}, "constraint.budget = -0.1: must be finite and at least 0"),
        ({"integral": float("nan")}, "constraint.integral = nan: must be finite and at least 0"),
        ({"smoothing": 1.0}, "constraint.smoothing = 1.0: must be at least 0 and below 1"),
        (
            {"proportional": 0.0, "integral": 0.0},
            (
                "constraint.proportional and integral = 0: nothing ever moves the multiplier; "
                "give one of proportional and integral"
            ),
        ),
    ],
)
def test_an_impossible_constraint_is_refused_by_name(wrong: dict[str, float], said: str) -> None:
    with pytest.raises(BadInput) as caught:
        Constraint(**wrong)  # type: ignore[arg-type]
    assert str(caught.value) == said


def test_a_cost_that_is_no_number_is_refused() -> None:
    with pytest.raises(BadInput, match="is not finite"):
        Multiplier().updated(float("nan"), Constraint())


def test_combining_keeps_the_size_and_at_no_price_changes_nothing() -> None:
    reward, cost = np.array([1.0, -1.0]), np.array([1.0, -1.0])
    assert combine(reward, cost, 0.0).tolist() == [1.0, -1.0]  # exactly
    assert combine(reward, cost, 3.0).tolist() == [-0.5, 0.5]
    assert np.abs(combine(reward, -cost, 1e6)).max() == pytest.approx(1.0)


def test_cost_is_the_signals_value_whatever_it_weighs_and_missing_is_not_zero() -> None:
    assert cost_of(member("a", 1.0, 2.0), "safety_cost") == 2.0
    assert cost_of(member("a", 1.0, None), "safety_cost") is None
    given = [member("a", 1.0, 2.0), member("b", 0.0, None), member("c", 0.0, 0.0)]
    assert mean_cost(given, SampleFilter(), "safety_cost") == 1.0
    failed = attempt("d", call([1], [2]), signals=[signal(4.0, "safety_cost")], state=RolloutState.FAILED)
    assert mean_cost([*given, failed], SampleFilter(), "safety_cost") == 2.0  # blocked ones are data
    with pytest.raises(BadInput) as caught:
        mean_cost(given, SampleFilter(), "harm")
    assert str(caught.value).endswith("score it, or name one of right, safety_cost")


def test_a_cost_below_0_is_refused_by_whoever_reads_it() -> None:
    bad = attempt(
        "a",
        call([1, 2], [5]),
        signals=[signal(1.0), signal(1.0, "safety_cost", weight=0.0), signal(-50.0, "safety_cost")],
    )
    with pytest.raises(BadInput, match="cost -50 of a: is below 0"):
        mean_cost([bad], SampleFilter(), "safety_cost")
    with pytest.raises(BadInput, match="is below 0"):
        turn_costs([bad], "safety_cost", gamma=1.0)


def test_what_costs_more_than_the_others_is_dear() -> None:
    team = [member("a", 1.0, 1.0), member("b", 1.0, 0.0), member("c", 1.0, 0.0), member("d", 1.0, None)]
    credit = [part.tolist() for part in cost_credit(team, "safety_cost", **PLAIN)]  # type: ignore[arg-type]
    # mean 1/3, population std √2/3
    assert credit == [[pytest.approx(2**0.5)], [pytest.approx(-(2**-0.5))], [pytest.approx(-(2**-0.5))], [0.0]]


def test_the_turn_that_was_unsafe_is_the_one_that_is_lowered() -> None:
    def two(name: str, costs: tuple[float, float]) -> Experience:
        signals = [signal(1.0), *(signal(cost, "safety_cost", turn=turn) for turn, cost in enumerate(costs))]
        return attempt(name, call([1], [2]), call([1, 2, 3], [4]), signals=signals, task="t")

    team = [two("a", (1.0, 0.0)), two("b", (0.0, 0.0))]
    dear = cost_credit(team, "safety_cost", scale=True, mix=1.0)
    assert [part.tolist() for part in dear] == [[1.0, 0.0], [-1.0, 0.0]]


def test_grpo_weighs_cost_beside_reward() -> None:
    team = [member("a", 1.0, 1.0), member("b", 0.0, 0.0)]  # the one that won is the one that cost

    def credit(price: CostPrice | None) -> dict[str, float]:
        found = compare(team, SampleFilter(), Grpo(), price)
        if found.samples is None or found.samples.advantages is None:
            return {}
        decided = found.samples.advantages[found.samples.action_mask]
        return dict(zip(found.samples.rollouts, decided.tolist(), strict=True))

    assert credit(None) == credit(CostPrice(cost="safety_cost", multiplier=0.0)) == {"a": 1.0, "b": -1.0}
    assert credit(CostPrice(cost="safety_cost", multiplier=3.0)) == {"a": -0.5, "b": 0.5}
    assert credit(CostPrice(cost="safety_cost", multiplier=1.0)) == {}  # they cancel: nothing to learn, and it is said


def test_equally_good_attempts_are_told_apart_by_cost_alone() -> None:
    team = [member("a", 1.0, 1.0), member("b", 1.0, 0.0)]
    assert compare(team, SampleFilter(), Grpo()).samples is None
    found = compare(team, SampleFilter(), Grpo(), CostPrice(cost="safety_cost", multiplier=0.5))
    assert found.samples is not None and found.samples.advantages is not None
    assert found.samples.advantages[found.samples.action_mask].tolist() == pytest.approx([-1 / 3, 1 / 3])


def test_turn_costs_are_those_still_to_come_less_the_others() -> None:
    def two(name: str, costs: list[float] | None) -> Experience:
        signals = [signal(1.0)] + [signal(cost, "safety_cost", turn=turn) for turn, cost in enumerate(costs or [])]
        return attempt(name, call([1], [2]), call([1, 2, 3], [4]), signals=signals, task=name)

    flat = turn_costs([two("a", [0.0, 1.0]), two("b", [1.0, 0.0]), two("c", None)], "safety_cost", gamma=0.5)
    # to come: a 0.5, 1; b 1, 0; means of turns 0.75 and 0.5; c was not measured
    assert flat.tolist() == [-0.25, 0.5, 0.25, -0.5, 0.0, 0.0]


def model() -> Transformer:
    return Transformer(ModelShape(vocabulary=8, layers=1, width=16, heads=2, context=16), seed=0)


def test_ppo_over_turns_lowers_what_costs() -> None:
    def answers(dear: float) -> list[Experience]:
        """Token 5 costs, token 6 does not; both are right."""
        made = []
        for number in range(8):
            token, cost = (5, dear) if number % 2 else (6, 0.0)
            signals = [signal(1.0), signal(cost, "safety_cost", weight=0.0)]
            made.append(attempt(f"r{number}", call([1, 2], [token], logprobs=[-2.0]), signals=signals))
        return made

    def odds(policy: Transformer) -> float:
        with torch.no_grad():
            logits = policy.logits(policy.hidden(torch.tensor([[1, 2]]))[:, -1])
        return float(logits[0, 6] - logits[0, 5])

    held = (Constraint(budget=0.0, proportional=4.0), Multiplier())
    free, bound = model(), model()
    plain = optimize_turns(answers(1.0), free, RlSettings(), seed=0)
    summary = optimize_turns(answers(1.0), bound, RlSettings(), seed=0, held=held)
    assert plain.constraint is None and "constraint" not in plain.to_dict()
    assert summary.constraint is not None and summary.constraint["mean_cost"] == 0.5
    assert from_dict(summary.constraint["multiplier"]) == Multiplier().updated(0.5, held[0])
    assert odds(bound) > odds(free) + 1e-4
