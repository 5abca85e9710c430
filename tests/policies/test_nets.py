"""Networks for environments: what they decide, with which probability, and what they remember."""

from __future__ import annotations

import json
from dataclasses import replace
from math import log, nextafter
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch
from torch.distributions import Normal

from holdfast.collect.gym import Gym, describe
from holdfast.contracts.envs import Spaces
from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.policy import FOLDER, Act, policy_from, policy_record
from holdfast.contracts.release import PolicyKind
from holdfast.pipeline.context import Endpoints
from holdfast.policies import weights
from holdfast.policies.nets import ActionDistribution, ActorCritic, Body, Gaussian, _inverse_cdf
from holdfast.policies.network import KIND, Network
from holdfast.policies.weights import Manifest
from holdfast.store.artifacts import FolderArtifacts
from tests.collect.environments import Corridor, Fixed

RNG = np.random.default_rng


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


POLE = Network(width=8).fitted("CartPole-v1", Spaces(observation=4, actions=2))


def fitted(make: Any, **made: Any) -> Network:
    return Network(width=8, **made).fitted("here", describe(make).spaces)


def engine(folder: Path | None = None) -> Endpoints:
    made = Endpoints()
    made.files = None if folder is None else FolderArtifacts(folder)
    return made


def opened(policy: Network, folder: Path | None = None) -> Act:
    act = policy.open(engine(folder)).act
    assert act is not None
    return act


def saved(policy: Network, folder: Path, *, seed: int = 5) -> Network:
    """With the weights that another seed draws, as a checkpoint."""
    net = replace(policy, seed=seed).load(None)
    manifest = Manifest(kind=KIND, shape={}, created_at=0.0)
    weights.save(folder / FOLDER / "run-1-1-ab", net.state_dict(), manifest)
    return policy.at("run-1-1-ab")


def test_it_is_read_again_from_its_record() -> None:
    policy = fitted(Fixed, memory=True, seed=3).at("run-1-1-ab")
    assert policy_from(json.loads(json.dumps(policy_record(policy)))) == policy


def test_versions_differ_as_the_networks_do() -> None:
    others = [POLE, replace(POLE, width=9), replace(POLE, seed=1), replace(POLE, memory=True), POLE.at("run-1-1-ab")]
    assert len({one.version for one in others}) == len({one.source for one in others}) == 5
    assert POLE.version == Network.from_manifest(POLE.manifest).version
    assert (POLE.kind, POLE.source.partition(":")[0]) == (PolicyKind.NETWORK, "network")
    assert POLE.at("run-1-1-ab").source == "checkpoint:run-1-1-ab"


def test_a_checkpoint_has_the_weights_that_were_saved(tmp_path: Path) -> None:
    policy = saved(POLE, tmp_path)
    ours, theirs = policy.load(FolderArtifacts(tmp_path)).state_dict(), replace(POLE, seed=5).load(None).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_missing_or_damaged_checkpoint_is_lost_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Lost, match="checkpoint run-9-1-ab: .*run-9-1-ab: is missing"):
        POLE.at("run-9-1-ab").load(FolderArtifacts(tmp_path))
    policy = saved(POLE, tmp_path)
    [file] = (tmp_path / FOLDER / "run-1-1-ab").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Lost, match="checkpoint run-1-1-ab: .*is damaged"):
        policy.load(FolderArtifacts(tmp_path))
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        policy.open(engine())


def test_it_acts_as_many_at_once_and_one_by_one_alike() -> None:
    act, envs = opened(POLE), Gym("CartPole-v1", 3)
    seen, choose = envs.reset(4), act.many(3)
    for _ in range(10):
        chosen = choose(seen, np.zeros(3, np.bool_))
        assert [act(row) for row in seen.values] == chosen.tolist()
        seen = envs.step(chosen).observation


def test_actions_are_the_environments_own() -> None:
    """The first choice by its own number, never one that is forbidden; numbers within their bounds."""
    env = Corridor()
    seen, info = env.reset()
    act = opened(fitted(Corridor))
    chosen = act(gymnasium.spaces.flatten(env.observation_space, seen), info["action_mask"])
    assert chosen == 6 and chosen in env.action_space
    policy = fitted(Fixed)
    with torch.no_grad():
        net = policy.load(None)
        net.actor[4].bias.fill_(9.0)  # type: ignore[union-attr, operator]
    from holdfast.policies.nets import Acting

    assert policy.spaces is not None
    assert Acting(net, policy.spaces)(np.zeros((2, 1))).tolist() == [2.0]


def test_one_of_several_things_is_seen_as_a_one_among_zeros() -> None:
    policy = Network(width=8, seed=2).fitted("lake", Spaces(observation=3, actions=4))
    act = opened(policy)
    assert [act(place) for place in range(3)] == [act(row) for row in np.eye(3)]
    for wrong in (np.zeros(2), "north", 3):
        with pytest.raises(BadInput, match="is not made of 3 numbers"):
            act(wrong)


def test_a_memory_lasts_until_the_episode_ends() -> None:
    policy = Network(width=8, memory=True).fitted("x", Spaces(observation=1, actions=1, continuous=True))
    act = opened(policy)
    first, second = act([1.0]), act([1.0])
    assert first.tolist() != second.tolist()
    act.reset()
    assert act([1.0]).tolist() == first.tolist()


def test_choices_have_the_log_probs_and_the_entropy_worked_by_hand_and_are_drawn_as_often() -> None:
    choice = ActionDistribution(torch.tensor([[0.25, 0.75]], dtype=torch.float64).log())
    assert choice.log_prob(torch.tensor([1])).item() == pytest.approx(log(0.75), abs=1e-12)
    assert choice.entropy().item() == pytest.approx(-0.25 * log(0.25) - 0.75 * log(0.75), abs=1e-12)
    drawn = ActionDistribution(torch.tensor([0.2, 0.5, 0.3]).log().expand(20_000, 3)).draw(RNG(0))
    assert np.bincount(drawn) / 20_000 == pytest.approx([0.2, 0.5, 0.3], abs=0.01)


def test_a_gaussian_agrees_with_torch_and_draws_with_its_mean_and_spread() -> None:
    mean, log_std = torch.randn(5, 2, dtype=torch.float64), torch.tensor([-0.5, 0.3], dtype=torch.float64)
    actions, theirs = torch.randn(5, 2, dtype=torch.float64), Normal(mean, log_std.exp())
    ours = Gaussian(mean, log_std)
    assert ours.log_prob(actions).numpy() == pytest.approx(theirs.log_prob(actions).sum(-1).numpy(), abs=1e-12)
    assert ours.entropy().numpy() == pytest.approx(theirs.entropy().sum(-1).numpy(), abs=1e-12)
    drawn = Gaussian(torch.tensor([1.0, -2.0]).expand(20_000, 2), torch.tensor([0.0, -1.0])).draw(RNG(0))
    assert drawn.mean(0) == pytest.approx([1.0, -2.0], abs=0.03)
    assert drawn.std(0) == pytest.approx(np.exp([0.0, -1.0]), abs=0.03)


def test_a_memory_is_the_same_read_at_once_or_step_by_step_and_wiped_only_where_an_episode_begins() -> None:
    net = ActorCritic(Body(observation=3, actions=2, width=8, memory=True), seed=0)
    seen, first = torch.randn(6, 2, 3), torch.zeros(6, 2, dtype=torch.bool)
    first[3, 0] = True
    whole, _ = net.remember(seen, net.begin(2), first)
    hidden = net.begin(2)
    for t in range(6):
        features, states = net.remember(seen[t : t + 1], hidden, first[t : t + 1])
        hidden = states[0]
        assert torch.equal(features[0], whole[t])
    fresh, _ = net.remember(seen[3:], net.begin(2), first[3:])
    assert torch.allclose(whole[3:, 0], fresh[:, 0]) and not torch.allclose(whole[3:, 1], fresh[:, 1])
    plain = ActorCritic(Body(observation=3, actions=2), seed=0)
    features, states = plain.remember(torch.ones(5, 2, 3), plain.begin(2), torch.zeros(5, 2, dtype=torch.bool))
    assert (features.shape, states.shape, plain.value(features).shape) == ((5, 2, 3), (5, 2, 0), (5, 2))


def test_what_does_not_fit_is_refused() -> None:
    for name in ("observation", "actions", "width"):
        with pytest.raises(BadInput, match=f"body.{name} = 0: must be at least 1"):
            Body(**({"observation": 1, "actions": 1} | {name: 0}))
    with pytest.raises(BadInput, match=r"network\.width = 0: must be at least 1"):
        Network(width=0)
    with pytest.raises(BadInput, match="is made for no environment yet"):
        Network().open(engine())
    with pytest.raises(BadInput, match="was made for CartPole-v1"):
        POLE.fitted("other", Spaces(observation=5, actions=2))
    assert POLE.fitted("CartPole-v1", Spaces(observation=4, actions=2)) == POLE
