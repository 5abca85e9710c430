"""A network at play: what is written down, and how it is counted."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from holdfast.collect.gym import CartPoles
from holdfast.contracts.errors import BadInput
from holdfast.learn.ppo import Player
from holdfast.policies.nets import ActorCritic, Body
from tests.learn.probes import CONTINUOUS, ENDLESS, MASKED, MEMORY, Probes


def net_for(worlds: Probes | CartPoles, *, memory: bool = False) -> ActorCritic:
    s = worlds.spaces
    body = Body(observation=s.observation, actions=s.actions, continuous=s.continuous, width=8, memory=memory)
    return ActorCritic(body, seed=0)


def test_what_was_played_is_what_happened() -> None:
    """The actions written down, played again in fresh worlds, give the rows written down."""
    worlds = CartPoles(3)
    player = Player(worlds, net_for(worlds), seed=1)
    played = player.play(50)
    again = CartPoles(3)
    view = again.reset(int(np.random.SeedSequence(1).spawn(2)[0].generate_state(1)[0]))
    first = np.ones(3, np.bool_)
    for t in range(50):
        assert np.array_equal(played.observations[t], view.values)
        assert np.array_equal(played.first[t], first)
        result = again.step(played.actions[t])
        assert np.array_equal(played.terminated[t], result.terminated)
        assert np.array_equal(played.finals[t], result.final)
        view, first = result.observation, result.terminated | result.truncated
    assert np.array_equal(played.last, view.values)
    assert player.episodes == played.terminated.sum() > 0


def test_episodes_are_counted_across_calls() -> None:
    worlds = Probes(ENDLESS, 2)  # 8 steps an episode, 1 a step
    player = Player(worlds, net_for(worlds), seed=0)
    player.play(5)
    assert (player.episodes, player.mean_return) == (0, None)
    player.play(5)
    assert (player.episodes, player.mean_return) == (2, 8.0)


@pytest.mark.parametrize("probe", [MEMORY, MASKED, CONTINUOUS], ids=["memory", "masked", "continuous"])
def test_a_restored_player_goes_on_with_the_same_steps(probe: object) -> None:
    def player(seed: int) -> Player:
        worlds = Probes(probe, 4)  # type: ignore[arg-type]
        return Player(worlds, net_for(worlds, memory=True), seed=seed)

    one, other = player(1), player(2)
    one.play(7)
    other.restore(one.state())
    ours, theirs = one.play(9), other.play(9)
    assert np.array_equal(ours.actions, theirs.actions)
    assert np.array_equal(ours.rewards, theirs.rewards)
    assert torch.equal(ours.hidden, theirs.hidden)


def test_what_is_remembered_while_playing_is_what_a_learner_would_remember() -> None:
    """Read again with its beginnings of episodes, a play leads to the memory that the next one starts with."""
    worlds = Probes(MEMORY, 3)
    player = Player(worlds, net_for(worlds, memory=True), seed=0)
    played, after = player.play(13), player.play(1).hidden
    assert played.first.sum() == 3 * 3  # steps 0, 5 and 10
    seen, first = torch.from_numpy(played.observations), torch.from_numpy(played.first)
    _, states = player.net.remember(seen, played.hidden, first)
    assert torch.allclose(states[-1], after, atol=1e-6)
    _, unwiped = player.net.remember(seen, played.hidden, torch.zeros_like(first))
    assert not torch.allclose(unwiped[-1], after, atol=1e-3)


def test_a_network_for_other_spaces_is_refused() -> None:
    with pytest.raises(BadInput, match="make one for its spaces"):
        Player(CartPoles(2), net_for(Probes(MEMORY, 2)), seed=0)
