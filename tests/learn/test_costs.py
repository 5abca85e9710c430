"""PPO under a budget: the known optimum of a tiny world, its price, and going on bit by bit."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.contracts.errors import BadInput
from holdfast.learn.constrain import Constraint
from holdfast.learn.ppo import PPO, Costs, Settings
from holdfast.policies.nets import ActorCritic, Body
from tests.learn.probes import DELAYED, TEMPTING, Probes

torch.set_num_threads(1)
HOW = Constraint(cost="cost", budget=0.3, proportional=1.0, integral=0.1, derivative=0.5)


def learner(updates: int, constraint: Constraint | None, seed: int = 0) -> PPO:
    settings = Settings(steps=16, epochs=3, minibatch=256, updates=updates, lr=5e-3, lr_end=5e-4)
    net = ActorCritic(Body(observation=1, actions=2, width=32), seed=seed)
    return PPO(Probes(TEMPTING, 64), net, settings, seed=seed, constraint=constraint)


@pytest.mark.usefixtures("untraced")
def test_the_best_within_the_budget_is_found_and_so_is_its_price() -> None:
    """Take where x > 0.7: that pays 0.255 and costs 0.3, and one more unit of cost would be worth 0.7."""
    ppo = learner(110, HOW)
    told = [ppo.step() for _ in range(110)][-25:]
    cost, price, paid = (
        np.mean([getattr(one, name) for one in told]) for name in ("cost", "multiplier", "mean_return")
    )
    assert cost == pytest.approx(0.3, abs=0.05)
    assert price == pytest.approx(0.7, abs=0.12)
    assert paid == pytest.approx(0.255, abs=0.05)
    with torch.no_grad():  # where little is to be had nothing is taken, and where much is everything
        p_take = ppo.net.decide(torch.tensor([[-0.6], [0.9]])).log_p.exp()[:, 1]  # type: ignore[union-attr]
    assert p_take[0] < 0.1 and p_take[1] > 0.8


def test_without_a_budget_everything_is_taken() -> None:
    ppo = learner(30, None)
    told = [ppo.step() for _ in range(30)]
    assert told[-1].mean_return is not None and told[-1].mean_return > 0.42
    assert told[-1].cost is None and told[-1].multiplier is None


def test_it_goes_on_bit_by_bit_with_critic_and_multiplier() -> None:
    straight, stopped, resumed = learner(6, HOW), learner(6, HOW), learner(6, HOW)
    for _ in range(6):
        straight.step()
    for _ in range(3):
        stopped.step()
    resumed.restore(stopped.state())
    for _ in range(3):
        resumed.step()
    mine, other = straight.state(), resumed.state()
    assert set(mine) == set(other) and any(name.startswith("costs.adam.") for name in mine)
    assert all(torch.equal(mine[name], other[name]) for name in mine)


def test_a_state_without_a_constraint_is_refused() -> None:
    free, bound = learner(2, None), learner(2, HOW)
    free.step()
    with pytest.raises(BadInput, match="holds no constraint"):
        bound.restore(free.state())


def test_worlds_without_costs_cannot_be_held_to_any() -> None:
    net = ActorCritic(Body(observation=2, actions=2), seed=0)
    ppo = PPO(Probes(DELAYED, 4), net, Settings(steps=4), seed=0, constraint=HOW)
    with pytest.raises(BadInput, match="these environments tell no costs"):
        ppo.step()


def test_the_critic_learns_what_is_still_to_be_paid() -> None:
    net = ActorCritic(Body(observation=1, actions=2), seed=0)
    costs = Costs(net, HOW, seed=0)
    features = torch.linspace(-1, 1, 64).reshape(8, 8, 1)
    wanted = (features[..., 0] > 0).float().numpy()
    before = float(np.square(costs.worth(features) - wanted).mean())
    for _ in range(40):
        costs.fit(features, wanted)
    assert float(np.square(costs.worth(features) - wanted).mean()) < 0.2 * before
