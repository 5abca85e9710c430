"""A network at play: steps in many environments at once, written down for a learner, and how well it did.

What is learnt from them is left to `ppo`. Nothing here changes a parameter.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.contracts.envs import Bools, Floats, VectorEnv, packed, unpacked
from holdfast.contracts.errors import BadInput
from holdfast.policies.nets import ActorCritic, look

RECENT = 100  # episodes that the mean return is taken over


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """T steps in B environments. Where an episode ended, the next row is the first of another."""

    observations: Floats  # [T, B, O]
    masks: Bools | None  # [T, B, A]
    first: Bools  # [T, B]; an episode begins with this observation
    actions: NDArray[Any]  # [T, B] of int64, or [T, B, D] of float32
    rewards: Floats  # [T, B]
    terminated: Bools  # [T, B]
    truncated: Bools  # [T, B]
    finals: Floats  # [T, B, O]; what was last seen, where truncated
    last: Floats  # [B, O]; what is seen after the last row
    hidden: Tensor  # [B, H]; what was remembered before the first row
    costs: Floats | None = None  # [T, B]; None: the environments have none


class Player:
    """Plays on and on: each call goes on where the one before stopped, in the middle of episodes."""

    def __init__(self, worlds: VectorEnv, net: ActorCritic, *, seed: int, env_seed: int | None = None) -> None:
        check_fit(worlds, net)
        self.worlds, self.net = worlds, net
        world_seed, chance = np.random.SeedSequence(seed).spawn(2)
        self._rng = np.random.default_rng(chance)
        self._view = worlds.reset(int(world_seed.generate_state(1)[0]) if env_seed is None else env_seed)
        self._first = np.ones(worlds.count, np.bool_)
        self._hidden = net.begin(worlds.count)
        self._so_far = np.zeros(worlds.count)  # return of each running episode
        self._recent: deque[float] = deque(maxlen=RECENT)
        self.episodes = 0  # ended so far

    @property
    def mean_return(self) -> float | None:
        """Of the last 100 episodes; None before the first has ended."""
        return float(np.mean(self._recent)) if self._recent else None

    def play(self, steps: int) -> Played:
        count, spaces = self.worlds.count, self.worlds.spaces
        shape = (steps, count)
        observations, finals = np.empty((2, *shape, spaces.observation), np.float32)
        masks = None if self._view.mask is None else np.empty((*shape, spaces.actions), np.bool_)
        actions = np.empty((*shape, spaces.actions), np.float32) if spaces.continuous else np.empty(shape, np.int64)
        rewards = np.empty(shape, np.float32)
        first, terminated, truncated = np.empty((3, *shape), np.bool_)
        hidden, costs = self._hidden, None
        with torch.no_grad():
            for t in range(steps):
                observations[t], first[t] = self._view.values, self._first
                if masks is not None:
                    masks[t] = self._view.mask
                actions[t] = self._act()
                result = self.worlds.step(actions[t])
                rewards[t], terminated[t], truncated[t] = result.reward, result.terminated, result.truncated
                finals[t] = result.final
                if result.cost is not None:
                    costs = np.zeros(shape, np.float32) if costs is None else costs
                    costs[t] = result.cost
                self._view, self._first = result.observation, terminated[t] | truncated[t]
                self._count(result.reward)
        return Played(
            observations=observations,
            masks=masks,
            first=first,
            actions=actions,
            rewards=rewards,
            terminated=terminated,
            truncated=truncated,
            finals=finals,
            last=self._view.values.copy(),
            hidden=hidden,
            costs=costs,
        )

    def state(self) -> dict[str, Tensor]:
        """All it takes to go on from here, the environments included; the network is not."""
        kept = {
            "first": self._first,
            "so_far": self._so_far,
            "recent": np.array(self._recent),
            "episodes": np.array(self.episodes),
            "rng": packed(self._rng),
            **{f"worlds.{name}": array for name, array in self.worlds.state().items()},
        }
        tensors = {name: torch.from_numpy(np.array(array)) for name, array in kept.items()}
        return tensors | {"hidden": self._hidden.cpu().clone()}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        self._view = self.worlds.restore(
            {name.removeprefix("worlds."): kept.numpy() for name, kept in state.items() if name.startswith("worlds.")}
        )
        self._first = state["first"].numpy().copy()
        self._so_far = state["so_far"].numpy().copy()
        self._recent = deque(state["recent"].tolist(), maxlen=RECENT)
        self.episodes = int(state["episodes"])
        self._hidden = state["hidden"].to(self._hidden)
        self._rng.bit_generator.state = unpacked(state["rng"].numpy())

    def _act(self) -> NDArray[Any]:
        policy, self._hidden = look(self.net, self._view, self._hidden, self._first)
        return policy.draw(self._rng)

    def _count(self, reward: NDArray[np.float64]) -> None:
        self._so_far += reward
        if self._first.any():
            ended = self._so_far[self._first]
            self._recent.extend(ended.tolist())
            self.episodes += ended.size
            self._so_far[self._first] = 0.0


def check_fit(worlds: VectorEnv, net: ActorCritic) -> None:
    body, spaces = net.body, worlds.spaces
    if (body.observation, body.actions, body.continuous) != (spaces.observation, spaces.actions, spaces.continuous):
        raise BadInput(f"a network with {body}", why=f"the environment has {spaces}", remedy="make one for its spaces")
