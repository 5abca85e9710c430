"""A reward model from preferences: the chosen answer is to have the higher reward.

L = −log σ(r(y_w) − r(y_l)), Bradley & Terry 1952, Stiennon et al. 2020, arXiv:2009.01325. The reward is what a head
says of the last state. Each update measures the rewards and gives the trainer value targets whose gradient is that of
the loss, so that pairs are cut into pieces, clipped and resumed as everything else. Pairs are those of `dpo`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray
from torch import nn

from holdfast.contracts.algorithm import LearnContext
from holdfast.contracts.errors import BadInput
from holdfast.learn.batch import Samples
from holdfast.learn.distributed import refuse
from holdfast.learn.dpo import Floats, preference_loss
from holdfast.learn.objective import Objective
from holdfast.learn.sft import SFT, Dataset, Private
from holdfast.learn.train import Settings, Trainer, Update
from holdfast.policies.reward_model import MIDDLE, new_head

VALUES_ONLY = Objective(value=1.0)
SLOW = 0.9  # share of the middle that an update leaves as it was


@dataclass(frozen=True, kw_only=True)
class RewardModelling(SFT):
    """How a model learns what is preferred. A batch counts pairs; what is held out is measured by the same loss."""

    phase: ClassVar[str] = "reward_model"
    is_pairs: ClassVar[bool] = True

    epochs: int = 1

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.privacy is not None:
            raise BadInput("privacy", why="is not for reward models", remedy="leave it out, or use sft or dpo")

    def _settings(self, total: int) -> Settings:
        return replace(super()._settings(total), objective=VALUES_ONLY)

    def _trainer(self, model: nn.Module, *, total: int, private: Private | None = None) -> Trainer:
        refuse("a reward model")
        return Trainer(model, self._settings(total), seed=self.seed, critic=new_head(model, seed=self.seed))

    def _reader(self, model: nn.Module) -> Trainer:
        return self._trainer(model, total=1)

    def _notes(self, reader: Trainer, data: Dataset, ctx: LearnContext) -> Any:
        return None

    def _step(
        self, trainer: Trainer, batch: Samples, notes: Any, places: NDArray[np.int64]
    ) -> tuple[Update, float | None]:
        said = rewards(trainer, batch)
        margin = said[0::2] - said[1::2]
        update = trainer.step(with_targets(batch, said))
        before = float(trainer.beside.get(MIDDLE, said.mean()))
        trainer.beside[MIDDLE] = SLOW * before + (1.0 - SLOW) * float(said.mean())
        return replace(update, tokens=batch.tokens), float(preference_loss(1.0, margin).mean())

    def _held_out(self, trainer: Trainer, data: Dataset, notes: Any) -> float | None:
        if data.held_out is None:
            return None
        said = rewards(trainer, data.held_out)
        return float(preference_loss(1.0, said[0::2] - said[1::2]).mean())


def rewards(trainer: Trainer, batch: Samples) -> Floats:
    """Of each sequence, read after its last token."""
    ends = batch.bounds[1:] - 1
    return trainer.values(_at_ends(batch, np.zeros(len(ends))))[ends].astype(np.float64)


def with_targets(batch: Samples, said: Floats) -> Samples:
    """The pairs with the value targets whose gradient is that of the loss; chosen and rejected take turns.

    The trainer's value loss is the mean of ½(r − target)² over both sequences of a pair, its gradient half of what
    one of a mean over pairs would be: hence the 2."""
    margin = said[0::2] - said[1::2]
    force = 2.0 / (1.0 + np.exp(np.clip(margin, -500.0, 500.0)))
    return _at_ends(batch, said + np.stack((force, -force), axis=1).ravel())


def _at_ends(batch: Samples, targets: Floats) -> Samples:
    """No token is learnt from, and each sequence has one target: the language model's own head is never read."""
    returns = np.full(len(batch.ids), np.nan, dtype=np.float32)
    returns[batch.bounds[1:] - 1] = targets
    nothing = np.zeros(len(batch.ids), dtype=np.float32)
    return replace(
        batch, action_mask=np.zeros_like(batch.action_mask), weights=None, advantages=nothing, returns=returns
    )
