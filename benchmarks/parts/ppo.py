"""PPO on CartPole: steps per CPU-second, CPU-seconds until it is solved, what five seeds end with; and a peer's.

Ours plays 64 of our own CartPoles, each equal to Gymnasium's; Stable-Baselines3 plays 8 of Gymnasium's with the
hyper-parameters its zoo has for it. Both train towers of 2 × 64 tanh units for policy and value, on one thread, and
stop when the mean return of the last 100 training episodes reaches 475. CPU time, since the machine is shared.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from statistics import median

import numpy as np
import torch
from numpy.typing import NDArray

from holdfast.collect.gym import CartPoles
from holdfast.contracts.envs import VectorEnv
from holdfast.learn.ppo import PPO, Settings
from holdfast.policies.nets import ActorCritic, Body, action_distribution
from parts.peer import Peer, PeerAbsent
from parts.report import Figures, progress, rounded

SETTINGS = Settings(epochs=3, clip=0.3, kl_limit=0.05, lr=4e-3)
WORLDS, TARGET, EPISODES = 64, 475.0, 100
UPDATES = 120  # given up after so many
SEEDS = range(100, 105)  # none of them was looked at when the settings were chosen
MEANINGS = {
    "ppo_cartpole_sps": "CartPole: environment steps per CPU-second of training, played and learnt from",
    "ppo_cartpole_return": "mean return of 100 greedy episodes for each of five seeds, after training to 475",
    "ppo_cartpole_returns": "the same by seed",
    "ppo_cpu_s_to_475": "CPU-seconds until the mean of the last 100 training episodes was 475, median of three seeds",
    "ppo_steps_to_475": "environment steps until then",
    "ppo_sps_vs_sb3": "times the steps per CPU-second of Stable-Baselines3",
    "ppo_time_vs_sb3": "times fewer CPU-seconds to 475 than Stable-Baselines3",
    "sb3_sps": "its steps per CPU-second",
    "sb3_cpu_s_to_475": "its CPU-seconds to 475",
    "sb3": "its version, or why it was not measured",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Lap:
    cpu_s: float
    steps: int
    reached: bool
    net: ActorCritic


def measure(quick: bool) -> Figures:
    torch.set_num_threads(1)
    lap(99, updates=3)  # compiles the kernels
    progress("ppo: five seeds of CartPole")
    laps = [lap(seed) for seed in SEEDS]
    returns = [float(np.mean(evaluate(CartPoles(EPISODES), one.net, seed=1_000))) for one in laps]
    sps = median(one.steps / one.cpu_s for one in laps)
    cpu_s = median(one.cpu_s if one.reached else float("inf") for one in laps[:3])
    figures: Figures = {
        "ppo_cartpole_sps": rounded(sps),
        "ppo_cartpole_return": rounded(float(np.mean(returns)), 4),
        "ppo_cartpole_returns": [rounded(one, 4) for one in returns],
        "ppo_cpu_s_to_475": rounded(cpu_s) if np.isfinite(cpu_s) else None,
        "ppo_steps_to_475": int(median(one.steps for one in laps[:3])),
    }
    return figures | against_peer(sps, cpu_s, seeds=1 if quick else 3)


def lap(seed: int, updates: int = UPDATES) -> Lap:
    """Train until the last 100 episodes reach 475."""
    worlds = CartPoles(WORLDS)
    net = ActorCritic(Body(observation=4, actions=2, width=64), seed=seed)
    cpu, reached = time.process_time(), False
    ppo = PPO(worlds, net, SETTINGS, seed=seed)
    while True:
        update = ppo.step()
        reached = update.episodes >= EPISODES and (update.mean_return or 0.0) >= TARGET
        if reached or update.number == updates:
            return Lap(cpu_s=time.process_time() - cpu, steps=update.step, reached=reached, net=net)


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


def against_peer(sps: float, cpu_s: float, seeds: int) -> Figures:
    names = ("ppo_sps_vs_sb3", "ppo_time_vs_sb3", "sb3_sps", "sb3_cpu_s_to_475")
    progress("ppo: Stable-Baselines3")
    try:
        peer = Peer("ppo_sb3.py")
        theirs = [peer.lap(seed) for seed in range(seeds)]
        peer.close()
    except PeerAbsent as absent:
        return dict.fromkeys(names) | {"sb3": str(absent)}
    their_sps = median(one["steps"] / one["cpu_s"] for one in theirs)
    their_cpu_s = median(one["cpu_s"] for one in theirs)
    figures = (sps / their_sps, their_cpu_s / cpu_s, their_sps, their_cpu_s)
    return dict(zip(names, map(rounded, figures), strict=True)) | {"sb3": peer.about["version"]}
