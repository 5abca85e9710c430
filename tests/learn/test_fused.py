from __future__ import annotations

from collections.abc import Callable, Sequence

import pytest
import torch
from torch import Tensor
from torch.nn import functional as F

from holdfast.learn import shared
from holdfast.policies import lm

HEADS, HALF, ROWS = 2, 3, 7


def numbers(*shape: int, seed: int = 0, scale: float = 1.0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)) * scale


def plain_turn(qkv: Tensor, cos: Tensor, sin: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    q, k, v = qkv.view(ROWS, 3, HEADS, 2 * HALF).unbind(1)
    return lm.rotate(q, cos[:, None], sin[:, None]), lm.rotate(k, cos[:, None], sin[:, None]), v


def plain_gate(up: Tensor) -> Tensor:
    first, second = up.chunk(2, dim=-1)
    return F.silu(first) * second


def plain_add_norm(x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    return x + more, lm.norm(x + more, weight)


ANGLE = numbers(ROWS, HALF, seed=9)
Many = Tensor | Sequence[Tensor]


@pytest.mark.parametrize(
    ("ours", "theirs", "inputs"),
    [
        (shared.norm, lm.norm, [numbers(ROWS, 12), numbers(12, seed=1)]),
        (shared.add_norm, plain_add_norm, [numbers(ROWS, 12), numbers(ROWS, 12, seed=2), numbers(12, seed=1)]),
        (
            lambda x: shared.turn(x, ANGLE.cos(), ANGLE.sin(), HEADS),
            lambda x: plain_turn(x, ANGLE.cos(), ANGLE.sin()),
            [numbers(ROWS, 3 * HEADS * 2 * HALF)],
        ),
        (shared.gate, plain_gate, [numbers(ROWS, 20, scale=3.0)]),
        (shared.gate, plain_gate, [numbers(ROWS, 20, scale=60.0)]),  # where the exponential is cut
    ],
)
def test_numbers_and_gradients_are_those_of_the_plain_formula(
    ours: Callable[..., Many], theirs: Callable[..., Many], inputs: list[Tensor]
) -> None:
    results = []
    for function in (ours, theirs):
        given = [x.clone().requires_grad_() for x in inputs]
        out = function(*given)
        outs = [out] if isinstance(out, Tensor) else list(out)
        loss = sum((y * numbers(*y.shape, seed=20 + i)).sum() for i, y in enumerate(outs))
        assert isinstance(loss, Tensor)
        loss.backward()  # type: ignore[no-untyped-call]
        results.append([*outs, *(x.grad for x in given)])
    for mine, other in zip(*results, strict=True):
        assert mine is not None and other is not None
        assert torch.allclose(mine, other, atol=2e-5, rtol=2e-5)


def test_gradients_that_come_in_another_layout_are_read_right() -> None:
    x = numbers(4, 6).requires_grad_()
    shared.gate(x).t().contiguous().square().sum().backward()  # type: ignore[no-untyped-call]
    y = x.detach().clone().requires_grad_()
    plain_gate(y).square().sum().backward()  # type: ignore[no-untyped-call]
    assert x.grad is not None and y.grad is not None and torch.allclose(x.grad, y.grad, atol=1e-5)
