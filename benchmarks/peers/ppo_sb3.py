"""Stable-Baselines3's PPO on CartPole-v1, with the hyper-parameters of its zoo; run by the peers' interpreter.

Says `{"version": …}` once it is imported. Then each line on stdin is a seed, answered by one JSON line with the CPU
seconds and steps until the mean return of the last 100 training episodes reached 475. It uses one thread, as ours does.
"""

from __future__ import annotations

import json
import os
import sys
import time
from importlib.metadata import version

os.environ["OMP_NUM_THREADS"] = "1"
answers, sys.stdout = sys.stdout, sys.stderr  # whatever the imports print is not an answer

import numpy as np  # noqa: E402
import torch  # noqa: E402
from stable_baselines3 import PPO  # noqa: E402
from stable_baselines3.common.callbacks import BaseCallback  # noqa: E402
from stable_baselines3.common.env_util import make_vec_env  # noqa: E402

TARGET, EPISODES = 475.0, 100
BUDGET = 100_000  # steps that the zoo trains for; both schedules end there
LIMIT = 400_000  # steps after which it is given up


def linear(start: float):
    """From start to 0 at BUDGET, as in the zoo; what is trained beyond keeps the last tenth of it."""

    def at(left: float) -> float:
        return start * max(1.0 - (1.0 - left) * LIMIT / BUDGET, 0.1)

    return at


class Until(BaseCallback):
    """Stops when the last 100 training episodes were good enough."""

    def _on_step(self) -> bool:
        recent = [episode["r"] for episode in self.model.ep_info_buffer]
        self.mean = float(np.mean(recent)) if recent else 0.0
        return len(recent) < EPISODES or self.mean < TARGET


def train(seed: int) -> dict[str, float]:
    torch.set_num_threads(1)
    worlds = make_vec_env("CartPole-v1", n_envs=8, seed=seed)
    model = PPO(
        "MlpPolicy",
        worlds,
        n_steps=32,
        batch_size=256,
        n_epochs=20,
        gamma=0.98,
        gae_lambda=0.8,
        ent_coef=0.0,
        learning_rate=linear(0.001),
        clip_range=linear(0.2),
        seed=seed,
        device="cpu",
    )
    until = Until()
    wall, cpu = time.perf_counter(), time.process_time()
    model.learn(LIMIT, callback=until)
    return {
        "seed": seed,
        "steps": model.num_timesteps,
        "wall_s": time.perf_counter() - wall,
        "cpu_s": time.process_time() - cpu,
        "mean_return": until.mean,
    }


def say(answer: dict[str, object]) -> None:
    print(json.dumps(answer), file=answers, flush=True)


say({"version": version("stable-baselines3")})
for line in sys.stdin:
    say(train(int(line)))
