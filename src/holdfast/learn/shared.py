"""Samples that begin alike are read together: what they share once, and each of them from there on.

The attempts of a group answer the same prompt, which is often longer than the answers. The numbers are those of reading
each by itself; only the work is less. For our own transformer on a CPU; others are read whole, by themselves.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TypeGuard

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from torch.nn import functional as F

from holdfast.learn import fused
from holdfast.learn.batch import Padded, Samples, learnt, ragged
from holdfast.policies.lm import Block, Transformer

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
    marks = np.flatnonzero(learnt(samples))
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

    is_learnt = samples.decided[flat] & (place > 0)
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
    y = fused.norm(x, blocks[0].norm1)
    for block, following in zip(blocks, [*(block.norm1 for block in blocks[1:]), model.norm], strict=True):
        heard = listen(*fused.turn(block.qkv(y), cos, sin, block.heads))
        x, y = fused.add_norm(x, block.out(heard), block.norm2)
        x, y = fused.add_norm(x, block.down(fused.gate(block.up(y))), following)
    return y


def _rows(x: Tensor, count: int) -> Tensor:
    """[count × T, H, D] -> [count, H, T, D]"""
    tokens, heads, size = x.shape
    return x.view(count, tokens // count, heads, size).transpose(1, 2)


def _flat(heard: Tensor) -> Tensor:
    """[B, H, T, D] -> [B × T, H × D]"""
    return heard.transpose(1, 2).flatten(0, 1).flatten(1)
