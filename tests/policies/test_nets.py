"""Networks for environments: what they decide, with which probability, and what they remember."""

from __future__ import annotations

from math import log, nextafter

import numpy as np
import pytest
import torch
from torch.distributions import Normal

from holdfast.contracts.errors import BadInput
from holdfast.policies.nets import ActionDistribution, ActorCritic, Body, Gaussian, _inverse_cdf

RNG = np.random.default_rng


def test_a_choice_has_the_log_probs_and_the_entropy_worked_by_hand() -> None:
    choice = ActionDistribution(torch.tensor([[0.25, 0.75]], dtype=torch.float64).log())
    assert choice.log_prob(torch.tensor([1])).item() == pytest.approx(log(0.75), abs=1e-12)
    assert choice.entropy().item() == pytest.approx(-0.25 * log(0.25) - 0.75 * log(0.75), abs=1e-12)


def test_actions_are_drawn_as_often_as_they_are_likely() -> None:
    drawn = ActionDistribution(torch.tensor([0.2, 0.5, 0.3]).log().expand(20_000, 3)).draw(RNG(0))
    assert np.bincount(drawn) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.01)


@pytest.mark.parametrize("forbidden", [(0,), (2,), (0, 2), (1, 2)])
def test_a_forbidden_action_is_never_drawn_whatever_chance_says(forbidden: tuple[int, ...]) -> None:
    logits = torch.tensor([1.0, 2.0, 3.0])
    logits[list(forbidden)] = -torch.inf
    row = logits.log_softmax(-1).numpy()
    extremes = np.array([0.0, 5e-324, 0.5, nextafter(1.0, 0.0)])
    drawn = _inverse_cdf(np.tile(row, (4, 1)), extremes)
    assert not set(drawn.tolist()) & set(forbidden)


def test_masks_cut_probability_to_exactly_zero_and_leave_gradients_finite() -> None:
    net = ActorCritic(Body(observation=2, actions=3), seed=0)
    mask = torch.tensor([[True, False, True], [False, False, True]])
    choice = net.decide(torch.randn(2, 2, generator=torch.Generator().manual_seed(0)), mask)
    assert isinstance(choice, ActionDistribution)
    assert (choice.log_p.exp()[~mask] == 0.0).all()
    assert choice.entropy()[1].item() == 0.0  # one action left: no choice
    (choice.log_prob(torch.tensor([0, 2])).sum() + choice.entropy().sum()).backward()
    assert all(p.grad.isfinite().all() for p in net.actor.parameters() if p.grad is not None)
    assert choice.best()[1] == 2


def test_a_gaussian_agrees_with_torch() -> None:
    mean, log_std = torch.randn(5, 2, dtype=torch.float64), torch.tensor([-0.5, 0.3], dtype=torch.float64)
    actions, theirs = torch.randn(5, 2, dtype=torch.float64), Normal(mean, log_std.exp())
    ours = Gaussian(mean, log_std)
    assert ours.log_prob(actions).numpy() == pytest.approx(theirs.log_prob(actions).sum(-1).numpy(), abs=1e-12)
    assert ours.entropy().numpy() == pytest.approx(theirs.entropy().sum(-1).numpy(), abs=1e-12)


def test_a_gaussian_draws_with_its_mean_and_spread() -> None:
    drawn = Gaussian(torch.tensor([1.0, -2.0]).expand(20_000, 2), torch.tensor([0.0, -1.0])).draw(RNG(0))
    assert drawn.mean(0) == pytest.approx([1.0, -2.0], abs=0.03)
    assert drawn.std(0) == pytest.approx(np.exp([0.0, -1.0]), abs=0.03)


def test_the_same_seed_makes_the_same_network_and_another_seed_another() -> None:
    body = Body(observation=3, actions=2, memory=True)
    one, same, other = (ActorCritic(body, seed=seed).state_dict() for seed in (1, 1, 2))
    assert all(torch.equal(one[name], same[name]) for name in one)
    assert not torch.equal(one["actor.0.weight"], other["actor.0.weight"])


def test_weights_begin_orthogonal_and_decisions_about_even() -> None:
    net = ActorCritic(Body(observation=4, actions=3, width=16), seed=0)
    inner = net.actor[2].weight.detach()
    assert torch.allclose(inner @ inner.T, 2.0 * torch.eye(16), atol=1e-5)
    choice = net.decide(torch.randn(10, 4))
    assert isinstance(choice, ActionDistribution)
    assert torch.allclose(choice.log_p.exp(), torch.tensor(1 / 3), atol=0.02)


def test_a_memory_read_at_once_equals_one_read_step_by_step() -> None:
    net = ActorCritic(Body(observation=3, actions=2, width=8, memory=True), seed=0)
    seen, first = torch.randn(6, 4, 3), torch.zeros(6, 4, dtype=torch.bool)
    first[3, 1] = True
    at_once, _ = net.remember(seen, net.begin(4), first)
    hidden = net.begin(4)
    for t in range(6):
        features, states = net.remember(seen[t : t + 1], hidden, first[t : t + 1])
        hidden = states[0]
        assert torch.equal(features[0], at_once[t])


def test_a_memory_is_wiped_where_an_episode_begins_and_only_there() -> None:
    net = ActorCritic(Body(observation=3, actions=2, width=8, memory=True), seed=0)
    seen, first = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    first[3, 0] = True
    whole, _ = net.remember(seen, net.begin(2), first)
    fresh, _ = net.remember(seen[3:], net.begin(2), first[3:])
    assert torch.allclose(whole[3:, 0], fresh[:, 0])
    assert not torch.allclose(whole[3:, 1], fresh[:, 1])


def test_a_network_without_memory_remembers_nothing() -> None:
    net = ActorCritic(Body(observation=3, actions=2), seed=0)
    features, states = net.remember(torch.ones(5, 2, 3), net.begin(2), torch.zeros(5, 2, dtype=torch.bool))
    assert features.shape == (5, 2, 3)
    assert states.shape == (5, 2, 0)
    assert net.value(features).shape == (5, 2)


@pytest.mark.parametrize("field", ["observation", "actions", "width"])
def test_an_impossible_size_is_refused(field: str) -> None:
    with pytest.raises(BadInput, match=f"body.{field} = 0: must be at least 1"):
        Body(**({"observation": 1, "actions": 1} | {field: 0}))
