"""The parts of a transformer between its matrix products, each one pass forward and one backward, for a CPU.

Torch takes a dozen passes over memory for the same, which then cost as much as the products. Attention stays torch's.
All arrays are float32; the numbers are those of `policies.lm` up to rounding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable

from holdfast.policies.kernels import exponents
from holdfast.policies.lm import EPSILON

Floats = NDArray[np.float32]
Loop = TypeVar("Loop", bound=Callable[..., object])
f32 = np.float32


def _compiled(loop: Loop) -> Loop:
    return cast(Loop, njit(cache=True, fastmath=True, error_model="numpy")(loop))


def _once(backward: Callable[..., Any]) -> Any:
    return staticmethod(once_differentiable(backward))


def norm(x: Tensor, weight: Tensor) -> Tensor:
    """x / rms(x) · weight, x [N, W]"""
    return cast(Tensor, _Norm.apply(x, weight))  # type: ignore[no-untyped-call]


def add_norm(x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
    """x + more, and its norm."""
    return cast(tuple[Tensor, Tensor], _AddNorm.apply(x, more, weight))  # type: ignore[no-untyped-call]


def turn(qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
    """[N, 3W] -> queries and keys, turned by their places (cos and sin are [N, D / 2]), and values, [N, H, D] each."""
    return cast(tuple[Tensor, Tensor, Tensor], _Turn.apply(qkv, cos, sin, heads))  # type: ignore[no-untyped-call]


def gate(up: Tensor) -> Tensor:
    """silu(first half) × second half, [N, 2I] -> [N, I]"""
    return cast(Tensor, _Gate.apply(up))  # type: ignore[no-untyped-call]


class _Norm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor) -> Tensor:
        y, scale = torch.empty_like(x), x.new_empty(len(x))
        _norm(x.numpy(), weight.detach().numpy(), y.numpy(), scale.numpy())
        ctx.save_for_backward(x, weight, scale)
        return y

    @_once
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor]:
        x, weight, scale = ctx.saved_tensors
        dx, dw = torch.zeros_like(x), torch.zeros_like(weight)
        _norm_back(x.numpy(), weight.detach().numpy(), scale.numpy(), dy.contiguous().numpy(), dx.numpy(), dw.numpy())
        return dx, dw


class _AddNorm(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor, more: Tensor, weight: Tensor) -> tuple[Tensor, Tensor]:
        total, y, scale = torch.add(x, more), torch.empty_like(x), x.new_empty(len(x))
        _norm(total.numpy(), weight.detach().numpy(), y.numpy(), scale.numpy())
        ctx.save_for_backward(total, weight, scale)
        return total, y

    @_once
    def backward(ctx: Any, dtotal: Tensor, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        total, weight, scale = ctx.saved_tensors
        dx, dw = dtotal.clone(), torch.zeros_like(weight)
        _norm_back(
            total.numpy(), weight.detach().numpy(), scale.numpy(), dy.contiguous().numpy(), dx.numpy(), dw.numpy()
        )
        return dx, dx, dw


class _Turn(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, qkv: Tensor, cos: Tensor, sin: Tensor, heads: int) -> tuple[Tensor, Tensor, Tensor]:
        count, size = len(qkv), qkv.shape[1] // 3
        q, k, v = (qkv.new_empty((count, heads, size // heads)) for _ in range(3))
        _turn(qkv.numpy(), cos.numpy(), sin.numpy(), q.numpy(), k.numpy(), v.numpy())
        ctx.save_for_backward(cos, sin)
        return q, k, v

    @_once
    def backward(ctx: Any, dq: Tensor, dk: Tensor, dv: Tensor) -> tuple[Tensor, None, None, None]:
        cos, sin = ctx.saved_tensors
        dqkv = dq.new_empty((len(dq), 3 * dq.shape[1] * dq.shape[2]))
        dq, dk, dv = (part.contiguous() for part in (dq, dk, dv))
        _turn_back(dq.numpy(), dk.numpy(), dv.numpy(), cos.numpy(), sin.numpy(), dqkv.numpy())
        return dqkv, None, None, None


class _Gate(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, up: Tensor) -> Tensor:
        mid = up.new_empty((len(up), up.shape[1] // 2))
        share = torch.empty_like(mid)
        _gate(up.numpy(), mid.numpy(), share.numpy())
        ctx.save_for_backward(up, share)
        return mid

    @_once
    def backward(ctx: Any, dmid: Tensor) -> Tensor:
        up, share = ctx.saved_tensors
        dup = torch.empty_like(up)
        _gate_back(up.numpy(), share.numpy(), dmid.contiguous().numpy(), dup.numpy())
        return dup


@_compiled
def _norm(x: Floats, weight: Floats, y: Floats, scale: Floats) -> None:
    for row in range(x.shape[0]):
        total = f32(0)
        for d in range(x.shape[1]):
            total += x[row, d] * x[row, d]
        s = f32(1) / np.sqrt(total / f32(x.shape[1]) + f32(EPSILON))
        scale[row] = s
        for d in range(x.shape[1]):
            y[row, d] = x[row, d] * s * weight[d]


@_compiled
def _norm_back(x: Floats, weight: Floats, scale: Floats, dy: Floats, dx: Floats, dw: Floats) -> None:
    """dx += s·(w·dy) − x·s³/W · Σ w·dy·x;  dw += Σ dy·x·s"""
    for row in range(x.shape[0]):
        s = scale[row]
        along = f32(0)
        for d in range(x.shape[1]):
            along += weight[d] * dy[row, d] * x[row, d]
        along *= s * s * s / f32(x.shape[1])
        for d in range(x.shape[1]):
            dx[row, d] += s * weight[d] * dy[row, d] - x[row, d] * along
            dw[d] += dy[row, d] * x[row, d] * s


@_compiled
def _turn(qkv: Floats, cos: Floats, sin: Floats, q: Floats, k: Floats, v: Floats) -> None:
    heads, size = q.shape[1], q.shape[2]
    half, width = size // 2, heads * size
    for row in range(qkv.shape[0]):
        for h in range(heads):
            at = h * size
            for d in range(half):
                c, s = cos[row, d], sin[row, d]
                a, b = qkv[row, at + d], qkv[row, at + half + d]
                q[row, h, d], q[row, h, half + d] = a * c - b * s, a * s + b * c
                a, b = qkv[row, width + at + d], qkv[row, width + at + half + d]
                k[row, h, d], k[row, h, half + d] = a * c - b * s, a * s + b * c
            for d in range(size):
                v[row, h, d] = qkv[row, 2 * width + at + d]


@_compiled
def _turn_back(dq: Floats, dk: Floats, dv: Floats, cos: Floats, sin: Floats, dqkv: Floats) -> None:
    heads, size = dq.shape[1], dq.shape[2]
    half, width = size // 2, heads * size
    for row in range(dq.shape[0]):
        for h in range(heads):
            at = h * size
            for d in range(half):
                c, s = cos[row, d], sin[row, d]
                a, b = dq[row, h, d], dq[row, h, half + d]
                dqkv[row, at + d], dqkv[row, at + half + d] = a * c + b * s, b * c - a * s
                a, b = dk[row, h, d], dk[row, h, half + d]
                dqkv[row, width + at + d], dqkv[row, width + at + half + d] = a * c + b * s, b * c - a * s
            for d in range(size):
                dqkv[row, 2 * width + at + d] = dv[row, h, d]


@_compiled
def _gate(up: Floats, mid: Floats, share: Floats) -> None:
    """share = 1 / (1 + e^−g)"""
    inner = mid.shape[1]
    powers = np.empty(inner, np.float32)
    bits = powers.view(np.int32)
    for row in range(up.shape[0]):
        to = share[row]
        for d in range(inner):
            to[d] = min(max(-up[row, d], f32(-80)), f32(80))
        exponents(to, inner, f32(0), bits)
        for d in range(inner):
            to[d] = f32(1) / (f32(1) + to[d] * powers[d])
            mid[row, d] = up[row, d] * to[d] * up[row, inner + d]


@_compiled
def _gate_back(up: Floats, share: Floats, dmid: Floats, dup: Floats) -> None:
    inner = share.shape[1]
    for row in range(up.shape[0]):
        for d in range(inner):
            g, s, dm = up[row, d], share[row, d], dmid[row, d]
            dup[row, d] = dm * up[row, inner + d] * s * (f32(1) + g * (f32(1) - s))
            dup[row, inner + d] = dm * g * s
