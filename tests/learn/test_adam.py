from __future__ import annotations

import numpy as np
import pytest
import torch
from torch import nn

from holdfast.contracts.errors import BadInput
from holdfast.learn.train import AdamW


def test_one_step_by_hand() -> None:
    """g = 2: m̂ = 2 and v̂ = 4 after the first step, so θ moves by lr, once a matrix has decayed by lr · decay."""
    matrix, vector = nn.Parameter(torch.ones(1, 1)), nn.Parameter(torch.ones(1))
    adam = AdamW({"m": matrix, "v": vector}, betas=(0.9, 0.95), decay=0.5)
    matrix.grad, vector.grad = torch.full((1, 1), 2.0), torch.full((1,), 2.0)
    adam.descend(0.1)
    assert matrix.item() == pytest.approx(1.0 * (1 - 0.05) - 0.1, abs=1e-6)
    assert vector.item() == pytest.approx(1.0 - 0.1, abs=1e-6)


def test_many_steps_follow_the_formula() -> None:
    rng = np.random.default_rng(0)
    p = nn.Parameter(torch.ones(2, 2))
    adam = AdamW({"p": p}, betas=(0.9, 0.95), decay=0.1)
    theta, m, v = np.ones((2, 2)), np.zeros((2, 2)), np.zeros((2, 2))
    for step in range(1, 6):
        g = rng.normal(size=(2, 2))
        p.grad = torch.from_numpy(g).float()
        adam.descend(0.01)
        m, v = 0.9 * m + 0.1 * g, 0.95 * v + 0.05 * g**2
        theta = theta * (1 - 0.01 * 0.1) - 0.01 * (m / (1 - 0.9**step)) / (np.sqrt(v / (1 - 0.95**step)) + 1e-8)
    assert p.detach().numpy() == pytest.approx(theta, abs=1e-6)


def test_long_gradients_are_scaled_and_short_ones_left_alone() -> None:
    p = nn.Parameter(torch.zeros(2))
    adam = AdamW({"p": p}, betas=(0.9, 0.95), decay=0.0)
    p.grad = torch.tensor([3.0, 4.0])
    assert adam.clip(10.0).item() == pytest.approx(5.0) and p.grad.tolist() == [3.0, 4.0]
    assert adam.clip(1.0).item() == pytest.approx(5.0)
    assert p.grad.tolist() == pytest.approx([0.6, 0.8], abs=1e-5)


def test_a_parameter_without_gradient_stays() -> None:
    a, b = nn.Parameter(torch.ones(2, 2)), nn.Parameter(torch.ones(2, 2))
    adam = AdamW({"a": a, "b": b}, betas=(0.9, 0.95), decay=0.5)
    before = adam.tensors()
    a.grad = torch.ones(2, 2)
    adam.descend(0.1)
    assert torch.equal(b, torch.ones(2, 2)) and adam.moved(before) > 0.0


def test_nothing_to_train_and_foreign_states_are_refused() -> None:
    with pytest.raises(BadInput, match="no parameter"):
        AdamW({}, betas=(0.9, 0.95), decay=0.0)
    adam = AdamW({"p": nn.Parameter(torch.zeros(2))}, betas=(0.9, 0.95), decay=0.0)
    with pytest.raises(BadInput, match="p: is missing"):
        adam.put({}, 1)
    with pytest.raises(BadInput, match="shape"):
        adam.put({"p": torch.zeros(3)}, 1)
