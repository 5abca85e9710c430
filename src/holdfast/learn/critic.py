"""The critic of a language model: what a state is worth, read off the model's own hidden state and trained by itself.

A linear head over states that carry no gradient: the value loss cannot move the model, and costs no second one in
memory. It is fitted to each batch after the policy has learnt from it, with a learning rate and an optimiser of its
own, since a rate that suits billions of weights would never move it. It is kept with the checkpoint, so that the next
batch, the next iteration and a run that goes on from there begin with what it knows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, get_args

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.learn.ppo import Adam, ReturnScale

Mode = Literal["separate", "shared"]
FOLDS, ENOUGH = 4, 16  # parts of a first batch, and how many attempts it needs at least
SHORTEST = 1e-12  # variance of the returns below which there is nothing to explain


@dataclass(frozen=True, slots=True, kw_only=True)
class CriticConfig:
    """How the critic is fitted. The learning rate is divided by the root of the width: a step then moves what it says
    as far for a model of any size."""

    mode: Mode = "separate"  # shared: its loss is a part of the model's, and moves the model
    learning_rate: float = 0.1  # where it is separate
    epochs: int = 32  # passes over a batch, all of it at once

    def __post_init__(self) -> None:
        if self.mode not in get_args(Mode):
            raise BadInput(
                f"critic.mode = {self.mode!r}", why="is unknown", remedy=f"use {' or '.join(get_args(Mode))}"
            )
        if not (self.learning_rate > 0.0 and self.epochs >= 1):
            what = f"critic: learning_rate = {self.learning_rate}, epochs = {self.epochs}"
            raise BadInput(what, why="the rate must be above 0, and the epochs at least 1")


class Critic(nn.Module):
    """V(s) = mean + std · (w · s/‖s‖ + b), with the running mean and spread of the returns; it says 0 at first."""

    def __init__(self, width: int, config: CriticConfig | None = None, *, device: torch.device | None = None) -> None:
        super().__init__()
        self.config = config or CriticConfig()
        self.head = nn.Linear(width, 1, device=device)
        for parameter in self.head.parameters():
            nn.init.zeros_(parameter)
        self.scale, self._adam = ReturnScale(), Adam(self.head.parameters())

    def forward(self, states: Tensor) -> Tensor:
        """[N, W] -> [N, 1]"""
        values: Tensor = self.head(_direction(states)) * self.scale.std + self.scale.mean
        return values

    def fit(self, states: Tensor, returns: NDArray[np.float32]) -> None:
        """Moves what it says of states [N, W] towards the returns [N]."""
        is_first = not self.scale.seen
        self.scale.update(returns, self.head)
        if is_first:  # it knew nothing: the mean is a better guess than 0
            self._adam.vector.zero_()
        seen = _direction(states.detach())
        wanted = torch.from_numpy((returns - self.scale.mean) / self.scale.std).to(seen)
        rate = self.config.learning_rate / states.shape[-1] ** 0.5
        for _ in range(self.config.epochs):
            loss = 0.5 * (self.head(seen).squeeze(-1) - wanted).square().mean()
            self._adam.descend(self._adam.gradient(loss), rate)

    def state(self) -> tuple[dict[str, Tensor], dict[str, Any]]:
        """All it takes to go on bit by bit: tensors, and numbers that JSON can hold."""
        adam, scale = self._adam, self.scale
        tensors = {"vector": adam.vector, "mean": adam.mean, "square": adam.square}
        notes = {"steps": adam.steps, "scale": [scale.mean, scale.square, scale.seen]}
        return {name: tensor.detach().clone() for name, tensor in tensors.items()}, notes

    def restore(self, tensors: Mapping[str, Tensor], notes: Mapping[str, Any]) -> None:
        adam, scale = self._adam, self.scale
        if tensors["vector"].shape != adam.vector.shape:
            why = f"has {len(tensors['vector'])} weights, and this model's critic {len(adam.vector)}"
            raise BadInput("critic", why=why, remedy="it is the critic of another model")
        for name in ("vector", "mean", "square"):
            getattr(adam, name).copy_(tensors[name])
        adam.steps, (scale.mean, scale.square, scale.seen) = int(notes["steps"]), notes["scale"]


def cross_fitted(
    like: Critic, states: Tensor, returns: NDArray[np.float32], owner: NDArray[np.int64]
) -> NDArray[np.float32]:
    """What is said of each state [N, W] by a critic that was fitted to the others' returns (nan: there is none), where
    all that has one owner is left out together; 0 where there are too few owners."""
    said = np.zeros(len(returns), np.float32)
    if len(np.unique(owner)) < ENOUGH:
        return said
    for fold in range(FOLDS):
        out = owner % FOLDS == fold
        seen = ~out & ~np.isnan(returns)
        critic = Critic(states.shape[-1], like.config, device=states.device)
        critic.fit(states[torch.from_numpy(seen).to(states.device)], returns[seen])
        with torch.no_grad():
            said[out] = critic(states[torch.from_numpy(out).to(states.device)]).squeeze(-1).cpu().numpy()
    return said


def _direction(states: Tensor) -> Tensor:
    return F.normalize(states.float(), dim=-1)


def explained_variance(values: NDArray[Any], returns: NDArray[Any]) -> float | None:
    """1 − Var(R − V) / Var(R): 1 is a perfect critic, 0 one that knows no more than the mean, below 0 a harmful one.

    None where the returns do not vary: then there is nothing to explain."""
    wide = returns.astype(np.float64)
    spread = float(wide.var())
    return 1.0 - float((wide - values).var()) / spread if spread > SHORTEST else None
