"""The cost side of PPO in environments: a critic of its own for what is still to be paid, and the multiplier.

Cost and reward are estimated apart, each with its own critic, because a value that mixes them is wrong as soon as λ
moves. The critic reads what the policy's own network makes of an observation and does not change it. `ppo` asks for
the advantages that it follows and for one fit an update; the law of the multiplier is `constrain`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from holdfast.contracts.errors import BadInput
from holdfast.learn.constrain import Constraint, Multiplier
from holdfast.learn.play import Played
from holdfast.policies.nets import ActorCritic

RATE, FITS = 3e-3, 8  # steps of Adam on all that was played: a critic that lags is a biased one
PREFIX = "costs."


class Costs:
    """What costs are expected, what they weigh, and all it takes to go on."""

    def __init__(self, net: ActorCritic, constraint: Constraint, *, seed: int) -> None:
        self.constraint, self.multiplier = constraint, Multiplier()
        self.spent: float | None = None  # by an episode of the last batch; None: none ended in it
        body = net.body
        with torch.random.fork_rng(devices=[]):
            torch.manual_seed(seed)
            seen = body.width if body.memory else body.observation
            self._critic = nn.Sequential(nn.Linear(seen, body.width), nn.Tanh(), nn.Linear(body.width, 1))
        self._critic.to(net.value_head.weight.device)
        self._adam = torch.optim.Adam(self._critic.parameters(), lr=RATE)

    def worth(self, features: Tensor) -> NDArray[np.float32]:
        """What will still be paid from here, from features [..., F]."""
        with torch.no_grad():
            said: NDArray[np.float32] = self._critic(features).squeeze(-1).cpu().numpy()
        return said

    def follow(self, played: Played) -> None:
        """See what was played, and set the price that it is learnt from with.

        The cost of an episode is all that was paid by the episodes that ended: with many side by side, those that are
        still open at the end make up for those that were open before."""
        assert played.costs is not None
        ended = int((played.terminated | played.truncated).sum())
        self.spent = float(played.costs.sum(dtype=np.float64)) / ended if ended else None
        if self.spent is not None:
            self.multiplier = self.multiplier.follow(self.spent, self.constraint)

    def fit(self, features: Tensor, returns: NDArray[Any]) -> None:
        """Move the critic towards what was paid."""
        seen, wanted = features.detach().flatten(0, 1), torch.from_numpy(np.ascontiguousarray(returns)).flatten()
        for _ in range(FITS):
            self._adam.zero_grad()
            loss = (self._critic(seen).squeeze(-1) - wanted.to(seen)).square().mean()
            loss.backward()
            self._adam.step()

    def state(self) -> dict[str, Tensor]:
        kept = {
            f"{PREFIX}critic.{name}": tensor.detach().cpu().clone()
            for name, tensor in self._critic.state_dict().items()
        }
        for place, moments in self._adam.state_dict()["state"].items():
            kept |= {f"{PREFIX}adam.{place}.{name}": tensor.detach().cpu().clone() for name, tensor in moments.items()}
        held = self.multiplier
        numbers = [held.value, held.integral, held.violation, held.cost, held.seen]
        return kept | {f"{PREFIX}multiplier": torch.tensor(numbers, dtype=torch.float64)}

    def restore(self, state: Mapping[str, Tensor]) -> None:
        mine = {name.removeprefix(PREFIX): tensor for name, tensor in state.items() if name.startswith(PREFIX)}
        critic = {name.removeprefix("critic."): one for name, one in mine.items() if name.startswith("critic.")}
        if "multiplier" not in mine or set(critic) != set(self._critic.state_dict()):
            raise BadInput("the state to go on from", why="holds no constraint", remedy="give one of the same settings")
        self._critic.load_state_dict(critic)
        told = self._adam.state_dict()
        moments: dict[int, dict[str, Tensor]] = {}
        for name, tensor in mine.items():
            if name.startswith("adam."):
                _, place, what = name.split(".")
                moments.setdefault(int(place), {})[what] = tensor.clone()
        self._adam.load_state_dict({**told, "state": moments})
        value, integral, violation, cost, seen = mine["multiplier"].tolist()
        self.multiplier = Multiplier(value=value, integral=integral, violation=violation, cost=cost, seen=int(seen))
