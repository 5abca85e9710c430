"""Looking into a network: true probabilities under the mask, and shares that add up to the choice."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.contracts.envs import Observation
from holdfast.contracts.errors import BadInput
from holdfast.policies.inspect import explain
from holdfast.policies.nets import ActorCritic, Body, action_distribution


def test_it_tells_what_the_network_would_do_and_what_made_it() -> None:
    net = ActorCritic(Body(observation=3, actions=4, width=8), seed=1)
    with torch.no_grad():
        net.actor[4].weight.mul_(200)  # as sure as one that has learnt
        net.actor[0].weight[:, 2] = 0.0  # it does not see the third number
    seen, mask = np.array([0.8, -0.5, 0.9], np.float32), np.array([True, False, True, True])
    before = [parameter.clone() for parameter in net.parameters()]
    found = explain(net, seen, mask)
    policy, _ = action_distribution(net, Observation(seen[None], mask[None]), net.begin(1), np.ones(1, np.bool_))
    assert found.action == policy.best()[0] and found.probabilities[1] == 0.0
    assert found.probabilities.sum() == pytest.approx(1.0)
    assert found.saliency[2] == 0.0 and np.abs(found.saliency[:2]).min() > 0.0
    nothing = explain(net, np.zeros(3, np.float32), mask, action=found.action)
    gain = np.log(found.probabilities[found.action]) - np.log(nothing.probabilities[found.action])
    assert found.saliency.sum() == pytest.approx(gain, abs=0.02) and abs(found.gap) < 0.02
    assert all(torch.equal(a, b) for a, b in zip(before, net.parameters(), strict=True))


@pytest.mark.parametrize("action", [1, 9])
def test_an_action_that_is_not_allowed_cannot_be_explained(action: int) -> None:
    net = ActorCritic(Body(observation=3, actions=4, width=8), seed=1)
    with pytest.raises(BadInput, match=f"action {action}"):
        explain(net, np.zeros(3, np.float32), np.array([True, False, True, True]), action=action)


def test_what_a_network_remembers_is_part_of_its_choice_and_not_of_the_shares() -> None:
    net = ActorCritic(Body(observation=3, actions=4, width=8, memory=True), seed=1)
    with torch.no_grad():
        net.actor[4].weight.mul_(200)
    seen, first = np.array([0.8, -0.5, 0.9], np.float32), np.zeros(1, np.bool_)
    hidden = torch.linspace(-1.0, 1.0, 8)
    found = explain(net, seen, hidden=hidden)
    policy, _ = action_distribution(net, Observation(seen[None]), hidden[None], first)
    assert found.probabilities == pytest.approx(policy.log_p.exp()[0].detach().numpy(), abs=1e-6)  # type: ignore[union-attr]
    assert abs(found.gap) < 0.05 and np.abs(found.saliency).min() > 0.0
    assert explain(net, seen).probabilities != pytest.approx(found.probabilities, abs=1e-3)  # it forgot
