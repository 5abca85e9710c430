"""Reward models: the gradient of the pairwise loss, and what they say of answers that nobody compared."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.nn import functional as F

from holdfast.contracts.errors import BadInput
from holdfast.learn.dp import Privacy
from holdfast.learn.reward_model import RewardModelling, rewards, with_targets
from holdfast.learn.sft import sequences
from holdfast.learn.train import OptimizerConfig, Trainer
from holdfast.policies.lm import ModelShape, Transformer
from holdfast.policies.reward_model import new_head

SHAPE = ModelShape(width=16, layers=1, heads=2, context=64)


def test_the_gradient_is_that_of_the_pairwise_loss() -> None:
    rng = np.random.default_rng(0)
    lengths = (5, 9, 7, 6, 12, 4)
    batch = sequences([(rng.integers(0, 256, n).tolist(), [False] * 2 + [True] * (n - 2)) for n in lengths])
    net, head = Transformer(SHAPE, seed=0), new_head(Transformer(SHAPE, seed=0), seed=3)
    rows = [torch.tensor(part).long() for part in np.split(batch.ids, batch.bounds[1:-1])]
    said = torch.cat([head(net.hidden(row[None])[0, -1]) for row in rows])
    loss = -F.logsigmoid(said[0::2] - said[1::2]).mean()
    loss.backward()  # type: ignore[no-untyped-call]

    settings = replace(RewardModelling()._settings(1), optimizer=OptimizerConfig(max_grad_norm=1e9))
    own = new_head(Transformer(SHAPE, seed=0), seed=3)
    trainer = Trainer(Transformer(SHAPE, seed=0), settings, seed=0, critic=own)
    measured = rewards(trainer, batch)
    np.testing.assert_allclose(measured, said.detach().numpy(), atol=1e-5)
    trainer.step(with_targets(batch, measured))
    pairs = [*zip(net.named_parameters(), trainer.model.parameters(), strict=True)]
    pairs += zip(head.named_parameters(), own.parameters(), strict=True)
    for (name, wanted), found in pairs:
        assert wanted.grad is not None and found.grad is not None, name
        np.testing.assert_allclose(found.grad.numpy(), wanted.grad.numpy(), atol=5e-6, rtol=1e-4)


def test_privacy_is_refused() -> None:
    with pytest.raises(BadInput, match="is not for reward models"):
        RewardModelling(privacy=Privacy(epsilon=8.0))
