"""PPO learns, stops when it should, and goes on bit by bit."""

from __future__ import annotations

import hashlib
import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray
from safetensors.torch import load_file

from holdfast.collect.gym import CartPoles, Gym
from holdfast.contracts.envs import VectorEnv
from holdfast.contracts.errors import BadInput
from holdfast.learn.ppo import PPO, Adam, Player, ReturnScale, Settings, Update
from holdfast.policies.nets import ActorCritic, Body, action_distribution
from tests.learn.probes import CONTINUOUS, DELAYED, ENDLESS, MASKED, MEMORY, Probes, ProbeWorld

CARTPOLE = Settings(lr=5e-3)
SMALL = Settings(steps=16, epochs=2, minibatch=64, updates=20)


def net_for(worlds: VectorEnv, *, seed: int = 0, width: int = 32, memory: bool = False) -> ActorCritic:
    s = worlds.spaces
    body = Body(observation=s.observation, actions=s.actions, continuous=s.continuous, width=width, memory=memory)
    return ActorCritic(body, seed=seed)


def small(seed: int = 3, *, probe: ProbeWorld | None = None, **changed: Any) -> PPO:
    worlds: VectorEnv = CartPoles(8) if probe is None else Probes(probe, 8)
    net = net_for(worlds, seed=seed, width=16, memory=probe is not None)
    return PPO(worlds, net, replace(SMALL, **changed), seed=seed)


def fingerprint(net: ActorCritic) -> str:
    parameters = b"".join(parameter.detach().numpy().tobytes() for parameter in net.parameters())
    return hashlib.sha256(parameters).hexdigest()


def go_on(ppo: PPO, updates: int) -> Update:
    return [ppo.step() for _ in range(updates)][-1]


def evaluate(worlds: VectorEnv, net: ActorCritic, *, seed: int) -> NDArray[np.float64]:
    """The return of one greedy episode in each environment."""
    view, hidden = worlds.reset(seed), net.begin(worlds.count)
    first, goes_on, returns = np.ones(worlds.count, np.bool_), np.ones(worlds.count, np.bool_), np.zeros(worlds.count)
    with torch.no_grad():
        while goes_on.any():
            policy, hidden = action_distribution(net, view, hidden, first)
            result = worlds.step(policy.best())
            view, first = result.observation, result.terminated | result.truncated
            returns += np.where(goes_on, result.reward, 0.0)
            goes_on &= ~first
    return returns


@pytest.mark.usefixtures("untraced")
def test_cartpole_is_solved() -> None:
    worlds = CartPoles(64)
    net = net_for(worlds, width=64)
    ppo = PPO(worlds, net, CARTPOLE, seed=0)
    for update in (ppo.step() for _ in range(100)):
        if update.episodes >= 100 and (update.mean_return or 0.0) >= 475.0:
            break
    assert (update.mean_return or 0.0) >= 475.0
    assert evaluate(CartPoles(100), net, seed=10).mean() >= 475.0


def solve(probe: ProbeWorld, settings: Settings, *, memory: bool = False, updates: int = 40) -> float:
    """The mean return of training when it reached what the probe asks for, or after so many updates."""
    worlds = Probes(probe, 32)
    recent = None
    ppo = PPO(worlds, net_for(worlds, memory=memory), settings, seed=1)
    for update in (ppo.step() for _ in range(updates)):
        recent = update.mean_return
        if recent is not None and recent >= probe.solved:
            break
    assert recent is not None
    return recent


PROBES = {
    "memory": (MEMORY, True, Settings(steps=20, minibatch=320, lr=5e-3)),
    "delayed reward": (DELAYED, False, Settings(steps=24, minibatch=256, lr=5e-3)),
    "masking": (MASKED, False, Settings(steps=8, minibatch=64, lr=5e-3)),  # a forbidden action would be an error
    "continuous": (CONTINUOUS, False, Settings(steps=16, minibatch=128, lr=5e-3)),
}


@pytest.mark.parametrize("name", PROBES)
def test_every_probe_is_solved(name: str) -> None:
    probe, memory, settings = PROBES[name]
    assert solve(probe, settings, memory=memory) >= probe.solved


def test_without_a_memory_the_memory_probe_stays_unsolved() -> None:
    probe, _, settings = PROBES["memory"]
    assert abs(solve(probe, settings, updates=12)) < 0.5


@pytest.mark.parametrize("memory", [False, True], ids=["feed-forward", "memory"])
def test_a_truncation_is_bootstrapped_from_what_was_last_seen(memory: bool) -> None:
    """A step pays 1 for ever: V = 1 / (1 − 0.8) = 5. Were the cut after 8 steps an end, V would average 3.0."""
    worlds = Probes(ENDLESS, 16)
    settings = Settings(steps=16, minibatch=128, gamma=0.8, lr=5e-3, kl_limit=1.0)
    ppo = PPO(worlds, net_for(worlds, memory=memory, width=16), settings, seed=0)
    go_on(ppo, 20)
    features, _ = ppo.net.remember(torch.ones(4, 1, 1), ppo.net.begin(1), torch.zeros(4, 1, dtype=torch.bool))
    values = ppo.net.value(features).detach().numpy() * ppo.scale.std + ppo.scale.mean
    assert values == pytest.approx(5.0, abs=0.25)


def test_the_same_seed_gives_the_same_parameters_and_another_seed_others() -> None:
    prints = []
    for seed in (3, 3, 4):
        ppo = small(seed)
        go_on(ppo, 4)
        prints.append(fingerprint(ppo.net))
    assert prints[0] == prints[1] != prints[2]


CHILD = """
import os, signal, sys
from safetensors.torch import save_file
from tests.learn.test_ppo import go_on, small
ppo = small()
go_on(ppo, 7)
save_file(ppo.state(), sys.argv[1])
ppo.step()  # lost
os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.usefixtures("untraced")
def test_twenty_updates_equal_seven_a_kill_and_thirteen_in_another_process(tmp_path: Path) -> None:
    path, root = tmp_path / "state.safetensors", Path(__file__).resolve().parents[2]
    env = {**os.environ, "PYTHONPATH": ".:src"}
    child = subprocess.run([sys.executable, "-c", CHILD, str(path)], cwd=root, env=env)
    assert child.returncode == -signal.SIGKILL
    resumed, whole = small(), small()
    resumed.restore(load_file(path))
    assert go_on(resumed, 13) == go_on(whole, 20)
    assert fingerprint(resumed.net) == fingerprint(whole.net)


@pytest.mark.parametrize("probe", [MEMORY, MASKED], ids=["memory", "masked"])
def test_a_memory_and_masks_are_resumed_too(probe: ProbeWorld) -> None:
    whole, begun, resumed = small(probe=probe), small(probe=probe), small(probe=probe)
    go_on(begun, 2)
    resumed.restore(begun.state())
    assert go_on(resumed, 3) == go_on(whole, 5)
    assert fingerprint(resumed.net) == fingerprint(whole.net)


def test_a_state_of_another_network_or_other_worlds_is_refused_and_nothing_of_it_taken() -> None:
    ppo, before = small(), fingerprint(small().net)
    fewer = PPO(CartPoles(4), net_for(CartPoles(4), width=16), SMALL, seed=0)
    for state, words in ((small(probe=MEMORY).state(), "net.actor.0.weight has shape"), (fewer.state(), "so_far")):
        with pytest.raises(BadInput, match=f"the state to go on from: .*{words}"):
            ppo.restore(state)
    with pytest.raises(BadInput, match="is missing"):
        ppo.restore({})
    assert fingerprint(ppo.net) == before


@pytest.mark.parametrize("name", ["Pendulum-v1", "Acrobot-v1"])
def test_training_in_any_gymnasium_environment_is_resumed_too(name: str) -> None:
    def fresh() -> PPO:
        worlds = Gym(name, 2)
        return PPO(worlds, net_for(worlds, width=8), SMALL, seed=0)

    whole, begun, resumed = fresh(), fresh(), fresh()
    begun.step()
    resumed.restore(begun.state())
    assert go_on(resumed, 1) == go_on(whole, 2)
    assert fingerprint(resumed.net) == fingerprint(whole.net)


def test_the_epochs_end_inside_one_of_them_when_the_policy_has_moved_far_enough() -> None:
    ppo = small(epochs=50, minibatch=32, lr=0.02, kl_limit=0.01)
    updates = [ppo.step() for _ in range(4)]
    assert all(update.stopped_early for update in updates)
    minibatches = 16 * 8 // 32
    assert any(update.gradient_steps % minibatches for update in updates)
    assert max(update.kl for update in updates) < 0.2


def test_without_a_reason_to_stop_every_minibatch_of_every_epoch_is_used() -> None:
    update = small(epochs=3, minibatch=50, kl_limit=1.0).step()
    assert (update.gradient_steps, update.stopped_early, update.restored) == (3 * 3, False, None)  # 50 + 50 + 28 rows


@pytest.mark.parametrize("parts", [3, 8])
@pytest.mark.parametrize("probe", [None, MASKED], ids=["feed-forward", "memory"])
def test_a_gradient_gathered_in_parts_is_the_same_gradient(parts: int, probe: ProbeWorld | None) -> None:
    whole, gathered = small(probe=probe), small(probe=probe, accumulate=parts)
    one, other = whole.step(), gathered.step()
    assert other.grad_norm == pytest.approx(one.grad_norm, rel=1e-3)
    for ours, theirs in zip(whole.net.parameters(), gathered.net.parameters(), strict=True):
        assert torch.allclose(ours, theirs, atol=2e-5)


def test_the_gradient_is_limited() -> None:
    ppo = small(epochs=1, minibatch=128, grad_limit=0.01)
    update = ppo.step()
    assert update.grad_norm > 0.01
    assert ppo.state()["adam.mean"].norm().item() == pytest.approx(0.1 * 0.01, rel=1e-3)  # (1 − β₁) · limit


@pytest.mark.parametrize(("lr", "why"), [(30.0, "the policy moved by"), (1e30, "not finite")])
def test_an_update_that_runs_away_is_undone_and_says_so(lr: float, why: str) -> None:
    ppo = small(lr=lr, lr_end=1e-3, updates=1)
    before = fingerprint_of_policy(ppo)
    update = ppo.step()
    assert update.restored is not None
    assert why in update.restored
    assert fingerprint_of_policy(ppo) == before
    assert ppo.state()["adam.steps"].item() == 0
    after = ppo.step()  # the rate is sane from here on
    assert after.restored is None
    assert fingerprint_of_policy(ppo) != before


def fingerprint_of_policy(ppo: PPO) -> bytes:
    return b"".join(parameter.detach().numpy().tobytes() for parameter in ppo.net.actor.parameters())


def test_the_learning_rate_goes_down_in_a_straight_line_and_stays() -> None:
    ppo = small(lr=4e-3, lr_end=1e-3, updates=3)
    assert [ppo.step().lr for _ in range(5)] == pytest.approx([4e-3, 3e-3, 2e-3, 1e-3, 1e-3])


def test_adam_takes_the_steps_worked_by_hand() -> None:
    """Gradients 4, then 2: m̂ = 4, v̂ = 16; then m̂ = (0.36 + 0.2) / 0.19, v̂ = (0.015984 + 0.004) / 0.001999."""
    parameter = torch.nn.Parameter(torch.tensor([[1.0]], dtype=torch.float64))
    adam = Adam([parameter])
    adam.descend(adam.gradient(4.0 * parameter.sum()), 0.1)
    once = 1.0 - 0.1 * 4.0 / (4.0 + 1e-5)
    assert parameter.item() == pytest.approx(once, abs=1e-12)
    adam.descend(adam.gradient(2.0 * parameter.sum()), 0.1)
    assert parameter.item() == pytest.approx(
        once - 0.1 * (0.56 / 0.19) / ((0.019984 / 0.001999) ** 0.5 + 1e-5), abs=1e-12
    )


def test_a_new_scale_leaves_what_the_value_head_says() -> None:
    head, scale, rng = torch.nn.Linear(4, 1).double(), ReturnScale(), np.random.default_rng(0)
    x = torch.randn(5, 4, dtype=torch.float64)
    said = (head(x) * scale.std + scale.mean).detach().numpy()
    for size in (1.0, 1000.0, 30.0):
        scale.update(rng.normal(5.0 * size, size, 500), head)
        assert (head(x) * scale.std + scale.mean).detach().numpy() == pytest.approx(said, abs=1e-9)


def test_large_rewards_are_learnt_as_small_ones_are() -> None:
    large = replace(DELAYED, pay=lambda *seen: 1000.0 * DELAYED.pay(*seen), solved=900.0)
    assert solve(large, PROBES["delayed reward"][2]) >= 900.0


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        ({"epochs": 0}, "ppo.epochs = 0: must be at least 1"),
        ({"gamma": 1.5}, "ppo.gamma = 1.5: must be between 0 and 1"),
        ({"lr": 0.0}, "ppo.lr = 0.0: must be above 0"),
        ({"entropy_cost": -1.0}, "ppo.entropy_cost = -1.0: must not be negative"),
        ({"minibatch": 2, "accumulate": 3}, "ppo.minibatch = 2: has fewer samples than parts"),
        ({"normalise": ("rewards",)}, "ppo.normalise"),
    ],
)
def test_an_impossible_setting_is_refused(wrong: dict[str, Any], words: str) -> None:
    with pytest.raises(BadInput, match=words):
        Settings(**wrong)


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
