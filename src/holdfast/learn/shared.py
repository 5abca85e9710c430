"""Samples that begin alike are read together: what they share once, and each of them from there on.

The attempts of a group answer the same prompt, which is often longer than the answers. The numbers are those of reading
each by itself up to rounding; only the work is less. What lies between the matrix products is compiled into one pass
forward and one backward, because torch takes a dozen. For our own transformer in float32 on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, TypeGuard, TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional as F

from holdfast.learn.batch import Padded, Samples, ragged, trained_mask
from holdfast.policies.cpu import exponents
from holdfast.policies.lm import EPSILON, Block, Transformer

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


WORTH_IT = 0.85  # of the tokens left to read, at most: two kinds of rows cost something, too
Ints = NDArray[np.int64]
Listen = Callable[[Tensor, Tensor, Tensor], Tensor]


class PrefixGroups:
    """Which samples begin alike: each has a beginning, all before its first decision, and a family by its content."""

    def __init__(self, samples: Samples, lengths: Ints) -> None:
        first = _first_decided(samples)
        self.own = np.minimum(first, lengths)  # tokens of the beginning
        known: dict[bytes, int] = {}
        self.of = np.asarray(
            [
                known.setdefault(samples.ids[start : start + count].tobytes(), len(known))
                for start, count in zip(samples.bounds[:-1].tolist(), self.own.tolist(), strict=True)
            ]
        )
        self.lengths = lengths

    @property
    def left(self) -> float:
        """The share of tokens that is left to read."""
        _, first = np.unique(self.of, return_index=True)
        left = int((self.lengths - self.own).sum()) + int(self.own[first].sum())
        return left / max(int(self.lengths.sum()), 1)


def _first_decided(samples: Samples) -> Ints:
    marks = np.flatnonzero(trained_mask(samples))
    owner = np.searchsorted(samples.bounds, marks, side="right") - 1
    first = np.diff(samples.bounds)
    found, place = np.unique(owner, return_index=True)
    first[found] = marks[place] - samples.bounds[found]
    return first


def cut_families(family: PrefixGroups, limit: int) -> Iterator[Ints]:
    """Samples by family, families of like length together, so many that what is read stays within the limit."""
    rows = np.flatnonzero(family.lengths > 0)
    rest = family.lengths - family.own
    longest = np.zeros(int(family.of.max()) + 1, dtype=np.int64)
    np.maximum.at(longest, family.of[rows], rest[rows])
    order = rows[np.lexsort((-rest[rows], family.of[rows], -longest[family.of[rows]]))]
    start = 0
    while start < len(order):
        end, kin, width, tail = start, 0, 0, 0
        last = -1
        while end < len(order):
            row = int(order[end])
            kin += int(family.of[row]) != last
            last = int(family.of[row])
            width, tail = max(width, int(family.own[row])), max(tail, int(rest[row]))
            if end > start and kin * width + (end + 1 - start) * tail > limit:
                break
            end += 1
        yield order[start:end]
        start = end


def pad_families(samples: Samples, family: PrefixGroups, rows: Ints) -> Padded:
    """The beginnings as one rectangle, what follows them as another; `places` count through both."""
    _, first, group = np.unique(family.of[rows], return_index=True, return_inverse=True)
    order = np.argsort(first)  # families as they come, so that equal numbers of rows lie one after the other
    first, group = first[order], np.argsort(order)[group]
    own, rest = family.own[rows], (family.lengths - family.own)[rows]
    width, tail = int(own.max()), int(rest.max())
    starts = samples.bounds[rows]
    beginnings = _rectangle(samples, starts[first], own[first], width)
    flat, row = ragged(starts, samples.bounds[rows + 1] - starts)
    place = flat - starts[row]

    def at(place: Ints, row: Ints) -> Ints:
        """Where the state after reading this token lies."""
        later: Ints = len(first) * width + row * tail + place - own[row]
        return np.where(place < own[row], group[row] * width + place, later)

    is_learnt = samples.action_mask[flat] & (place > 0)
    is_valued = np.zeros(len(flat), np.bool_) if samples.returns is None else ~np.isnan(samples.returns[flat])
    return Padded(
        ids=_rectangle(samples, starts + own, rest, tail),
        places=at(place[is_learnt] - 1, row[is_learnt]),
        targets=samples.ids[flat[is_learnt]].astype(np.int64),
        flat=flat[is_learnt],
        value_places=at(place[is_valued], row[is_valued]),
        value_flat=flat[is_valued],
        beginnings=beginnings,
        group=group.astype(np.int64),
        own=own[first].astype(np.int64),
    )


def _rectangle(samples: Samples, starts: Ints, counts: Ints, width: int) -> Ints:
    columns = np.arange(width)
    is_read = columns < counts[:, None]
    ids = np.zeros((len(starts), width), dtype=np.int64)
    ids[is_read] = samples.ids[(starts[:, None] + columns)[is_read]]
    return ids


def is_readable(model: object, device: torch.device) -> TypeGuard[Transformer]:
    """Whether the loops here know this model."""
    return isinstance(model, Transformer) and device.type == "cpu" and model.norm.dtype == torch.float32


def read_alone(model: Transformer, ids: Tensor) -> Tensor:
    """States after every token, [rows × width, W], as `model.hidden` gives them."""
    places = torch.arange(ids.shape[1]).repeat(len(ids))

    def listen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        q, k, v = (_rows(part, len(ids)) for part in (q, k, v))
        return _flat(F.scaled_dot_product_attention(q, k, v, is_causal=True))

    return _through(model, ids.flatten(), places, listen)


def read_together(model: Transformer, beginnings: Tensor, own: Tensor, ids: Tensor, group: Tensor) -> Tensor:
    """States after every token, [families × width + rows × tail, W]: of the beginnings, then of what follows them.

    What follows sees its own family's beginning, and itself up to where it is."""
    (kin, width), (rows, tail) = beginnings.shape, ids.shape
    if not tail:
        return read_alone(model, beginnings)
    steps = torch.arange(max(width, tail))
    places = torch.cat((steps[:width].repeat(kin), (own[group][:, None] + steps[:tail]).flatten()))
    places = places.clamp(max=model.shape.context - 1)  # of padding only
    before = (steps[:width] < own[group][:, None])[:, None, None].expand(rows, 1, tail, width)
    among = (steps[:tail] <= steps[:tail, None]).expand(rows, 1, tail, tail)
    seen = torch.cat((before, among), dim=-1)
    is_even = rows % kin == 0 and bool((group == torch.arange(kin).repeat_interleave(rows // kin)).all())

    def handed(x: Tensor) -> Tensor:
        """What the beginnings have, for each row of their family."""
        if not is_even:
            return x.index_select(0, group)
        return x[:, None].expand(-1, rows // kin, -1, -1, -1).flatten(0, 1)  # whose gradient is a plain sum

    def listen(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        (qb, qa), (kb, ka), (vb, va) = (torch.split(part, [kin * width, rows * tail]) for part in (q, k, v))
        qb, kb, vb = (_rows(part, kin) for part in (qb, kb, vb))
        first = F.scaled_dot_product_attention(qb, kb, vb, is_causal=True)
        keys = torch.cat((handed(kb), _rows(ka, rows)), dim=2)
        values = torch.cat((handed(vb), _rows(va, rows)), dim=2)
        after = F.scaled_dot_product_attention(_rows(qa, rows), keys, values, attn_mask=seen)
        return torch.cat((_flat(first), _flat(after)))

    return _through(model, torch.cat((beginnings.flatten(), ids.flatten())), places, listen)


def _through(model: Transformer, ids: Tensor, places: Tensor, listen: Listen) -> Tensor:
    """All tokens at once through every layer, [N] -> [N, W]; only `listen` knows whose they are."""
    cos, sin = model.cos[places], model.sin[places]
    blocks = [block for block in model.blocks if isinstance(block, Block)]
    x: Tensor = model.embed(ids)
    y = norm(x, blocks[0].norm1)
    for block, following in zip(blocks, [*(block.norm1 for block in blocks[1:]), model.norm], strict=True):
        heard = listen(*turn(block.qkv(y), cos, sin, block.heads))
        x, y = add_norm(x, block.out(heard), block.norm2)
        x, y = add_norm(x, block.down(gate(block.up(y))), following)
    return y


def _rows(x: Tensor, count: int) -> Tensor:
    """[count × T, H, D] -> [count, H, T, D]"""
    tokens, heads, size = x.shape
    return x.view(count, tokens // count, heads, size).transpose(1, 2)


def _flat(heard: Tensor) -> Tensor:
    """[B, H, T, D] -> [B × T, H × D]"""
    return heard.transpose(1, 2).flatten(0, 1).flatten(1)
