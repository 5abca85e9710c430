"""Decoding of many rows on a CPU: which slot holds which tokens, the weights, the cache, and compiled loops over it.

A slot depends on at most one other, its base, which holds its first `shared` places. Keys and values lie in tiles of
TILE places, [heads, tiles, head, TILE], so that both sums of attention run straight through memory.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeVar, cast

import numpy as np
import torch
from numba import njit
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.policies.lm import EPSILON, Block, ModelShape, Transformer, norm, rotate

Ints = NDArray[np.int64]
GRAIN = 64  # what is shared is a multiple of this, as the keys lie in tiles
WORTH = 8  # a shared beginning shorter than this is computed again: leaning on it costs as much


@dataclass(frozen=True, slots=True)
class SlotPlan:
    """Where a prompt goes, and what of it is there already."""

    slot: int
    start: int  # its first tokens, up to here, need not be computed
    base: int  # of these, the first `shared` lie in this slot …
    shared: int  # a multiple of GRAIN
    source: int  # … and the rest is to be copied from this one (-1: it is in its own slot already)


class Slots:
    """`count` slots of `context` tokens. Without `memory` every prompt begins from nothing, in the lowest free slot."""

    def __init__(self, count: int, context: int, *, memory: bool) -> None:
        self.active = np.zeros(count, bool)
        self.base, self.shared = np.arange(count), np.zeros(count, np.int64)
        self._memory = memory
        self._tokens = np.full((count, context), -1, np.int32)  # -1: nothing there
        self._dependents = np.zeros(count, np.int64)  # how many lean on it
        self._fresh = np.zeros(count, bool)  # taken, and not yet computed
        self._released = np.zeros(count, np.int64)  # when; 0: never used
        self._clock = 0

    def take(self, ids: Ints, *, wait: bool) -> SlotPlan | None:
        """A plan for the prompt; None where no slot is free, or (`wait`) a neighbour's prefix is worth waiting for."""
        known, like = self._longest(ids[:-1])
        if self._fresh[like]:
            older, than = self._longest(ids[:-1], but=self._fresh)
            if wait and known >= older + WORTH:
                return None
            known, like = older, than
        if known < WORTH:
            known, like = 0, -1
        plan = self._plan(known, like)
        if plan is not None:
            self._tokens[plan.slot, plan.start :] = -1
            self._tokens[plan.slot, plan.start : len(ids) - 1] = ids[plan.start : -1]
            self._tokens[plan.slot, : plan.start] = ids[: plan.start]
            self.active[plan.slot] = self._fresh[plan.slot] = True
            self.base[plan.slot], self.shared[plan.slot] = plan.base, plan.shared
        return plan

    def forget(self) -> None:
        """Drops all prefixes, after the weights have changed."""
        self._tokens[:] = -1
        self.base[:], self.shared[:], self._dependents[:] = np.arange(len(self.base)), 0, 0

    def computed(self) -> None:
        """Marks all taken slots as computed."""
        self._fresh[:] = False

    def fed(self, slots: Ints, places: Ints, tokens: Ints) -> None:
        self._tokens[slots, places] = tokens

    def leave(self, slot: int) -> None:
        """Releases a slot; its prefix stays until the slot is needed."""
        self._clock += 1
        self.active[slot], self._released[slot] = False, self._clock

    def _longest(self, ids: Ints, but: NDArray[np.bool_] | None = None) -> tuple[int, int]:
        """The length of the longest known prefix, and its slot."""
        if not self._memory or not len(ids):
            return 0, 0
        same = self._tokens[:, : len(ids)] == ids
        length = np.where(same.all(axis=1), len(ids), same.argmin(axis=1))
        if but is not None:
            length[but] = 0
        like = int(length.argmax())
        return int(length[like]), like

    def _plan(self, known: int, like: int) -> SlotPlan | None:
        if like < 0:
            slot = self._clear(-1)
            return None if slot < 0 else SlotPlan(slot, 0, slot, 0, -1)
        root, reach = int(self.base[like]), int(self.shared[like])
        if root == like:
            reach, source = known // GRAIN * GRAIN, like
        elif known < reach:
            reach, source = known // GRAIN * GRAIN, root
        else:
            source = like
        if self._is_free(like) and 2 * known >= (self._tokens[like] >= 0).sum():
            return self._stay(like, root, known, reach)
        self._dependents[root] += reach > 0
        slot = self._clear(keep=like)
        if slot < 0:
            self._dependents[root] -= reach > 0
            # With few slots the like one may be all there is: to wait for another would be to wait for ever.
            return self._stay(like, root, known, reach) if self._is_free(like) else None
        return SlotPlan(slot, known, root if reach else slot, reach, source if reach < known else -1)

    def _is_free(self, slot: int) -> bool:
        return not self.active[slot] and not self._dependents[slot]

    def _stay(self, slot: int, root: int, known: int, reach: int) -> SlotPlan:
        """Continues in the slot that holds the prefix."""
        if root == slot:
            return SlotPlan(slot, known, slot, 0, -1)
        if reach == 0:
            self._dependents[root] -= 1
        source = root if reach < known and known < self.shared[slot] else -1
        return SlotPlan(slot, known, root if reach else slot, reach, source)

    def _clear(self, keep: int) -> int:
        """Empties the slot that has been idle longest and that no other depends on; -1 where there is none."""
        idle = ~self.active & (self._dependents == 0)
        if keep >= 0:
            idle[keep] = False
        if not idle.any():
            return -1
        if not self._memory:
            return int(idle.argmax())
        slot = int(np.where(idle, self._released, np.iinfo(np.int64).max).argmin())
        if self.base[slot] != slot:
            self._dependents[self.base[slot]] -= 1
            self.base[slot], self.shared[slot] = slot, 0
        return slot


Floats = NDArray[np.float32]
Scratch = tuple[Floats, Floats, NDArray[np.int32], Floats, Floats]  # scores, powers, their bits, one query, one key
Loop = TypeVar("Loop", bound=Callable[..., object])

TILE = GRAIN  # places whose keys lie together, dimension by dimension
f32 = np.float32


def compiled(loop: Loop) -> Loop:
    """Compiles a loop for vectors.

    A loop that both sums and stores gives other bits where its arrays happen to lie close together: the compiler takes
    them for overlapping then and goes one by one. So sums have loops of their own, and what is divided by is inverted
    before."""
    return cast(Loop, njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(loop))


@compiled
def norm_rows(x: Floats, weight: Floats, y: Floats) -> None:
    """y = x / rms(x) × weight"""
    for row in range(x.shape[0]):
        total = f32(0)
        for d in range(x.shape[1]):
            total += x[row, d] * x[row, d]
        scale = f32(1) / np.sqrt(total / f32(x.shape[1]) + f32(EPSILON))
        for d in range(x.shape[1]):
            y[row, d] = x[row, d] * scale * weight[d]


@compiled
def add_norm(x: Floats, y: Floats, weight: Floats) -> None:
    """x += y, then y = norm(x)"""
    for row in range(x.shape[0]):
        total = f32(0)
        for d in range(x.shape[1]):
            x[row, d] += y[row, d]
            total += x[row, d] * x[row, d]
        scale = f32(1) / np.sqrt(total / f32(x.shape[1]) + f32(EPSILON))
        for d in range(x.shape[1]):
            y[row, d] = x[row, d] * scale * weight[d]


@compiled
def exponents(x: Floats, n: int, shift: np.float32, bits: NDArray[np.int32]) -> None:
    """e^(x − shift) in two factors: x becomes a number near 1, and `bits` those of a power of two (as a float32).

    Two factors, since only arrays can be seen as bits here. The compiler makes vectors of this, and not of `np.exp`."""
    for t in range(n):
        y = max((x[t] - shift) * f32(1.4426950408889634), f32(-126))
        whole = np.floor(y + f32(0.5))
        f = y - whole
        p = f32(1.5403530e-4) * f + f32(1.3333558e-3)
        p = p * f + f32(9.6181291e-3)
        p = p * f + f32(5.5504109e-2)
        p = p * f + f32(0.24022651)
        p = p * f + f32(0.69314718)
        x[t] = p * f + f32(1)
        bits[t] = np.int32((whole + f32(127)) * f32(8388608))


@compiled
def gate(up: Floats, mid: Floats) -> None:
    """silu(gate) × passed, gate and passed being the two halves of up."""
    inner = mid.shape[1]
    powers = np.empty(inner, np.float32)
    bits = powers.view(np.int32)
    for row in range(up.shape[0]):
        to = mid[row]
        for d in range(inner):
            to[d] = min(-up[row, d], f32(80))
        exponents(to, inner, f32(0), bits)
        for d in range(inner):
            to[d] = up[row, d] * up[row, inner + d] / (f32(1) + to[d] * powers[d])


@compiled
def attend(
    qkv: Floats,
    turns: tuple[Floats, Floats],
    keys: Floats,
    values: Floats,
    where: tuple[Ints, Ints, Ints, Ints],
    scratch: Scratch,
    heard: Floats,
) -> None:
    """Turn queries and keys by their places, keep keys and values, and let each head hear its row from the beginning.

    Head by head, so that rows that lean on one beginning find it in the nearest memory."""
    slots, places, bases, shared = where
    cos, sin = turns
    heads, head = keys.shape[1], keys.shape[3]
    half, width = head // 2, heads * head
    scores, _, _, q, k = scratch
    scale = f32(1) / np.sqrt(f32(head))
    for h in range(heads):
        at = h * head
        for row in range(qkv.shape[0]):
            slot, place, base, border = slots[row], places[row], bases[row], shared[row] // TILE
            for d in range(half):
                c, s = cos[place, d] * scale, sin[place, d] * scale
                a, b = qkv[row, at + d], qkv[row, at + half + d]
                q[d], q[half + d] = a * c - b * s, a * s + b * c
                c, s = cos[place, d], sin[place, d]
                a, b = qkv[row, width + at + d], qkv[row, width + at + half + d]
                k[d], k[half + d] = a * c - b * s, a * s + b * c
            tiles = place // TILE + 1
            for part in range(2):  # first what lies in the base, then its own
                first, last = (0, border) if part == 0 else (border, tiles)
                _score(q, keys[base if part == 0 else slot, h], first, last, scores)
            scores[place] = _dot(q, k)
            inverse = f32(1) / _soften(place + 1, scratch)
            weight = scores[place]
            scores[place : tiles * TILE] = f32(0)
            to = heard[row, at : at + head]
            to[:] = f32(0)
            for part in range(2):
                first, last = (0, border) if part == 0 else (border, tiles)
                _mix(scores, values[base if part == 0 else slot, h], first, last, to)
            kt, vt, lane = keys[slot, h, tiles - 1], values[slot, h, tiles - 1], place % TILE
            for d in range(head):  # last, when the tile is near: a store to far memory would wait for it
                value = qkv[row, 2 * width + at + d]
                to[d] = (to[d] + weight * value) * inverse
                kt[d, lane], vt[d, lane] = k[d], value


@compiled
def _dot(q: Floats, k: Floats) -> np.float32:
    total = f32(0)
    for d in range(q.shape[0]):
        total += q[d] * k[d]
    return total


@compiled
def _score(q: Floats, k: Floats, first: int, last: int, scores: Floats) -> None:
    """q·k for all places of some tiles. Eight dimensions at a time: a score is loaded and stored once for all eight."""
    for tile in range(first, last):
        kt, to = k[tile], scores[tile * TILE : (tile + 1) * TILE]
        to[:] = f32(0)
        for d in range(0, q.shape[0] - 7, 8):
            q0, q1, q2, q3, q4, q5, q6, q7 = q[d], q[d + 1], q[d + 2], q[d + 3], q[d + 4], q[d + 5], q[d + 6], q[d + 7]
            k0, k1, k2, k3 = kt[d], kt[d + 1], kt[d + 2], kt[d + 3]
            k4, k5, k6, k7 = kt[d + 4], kt[d + 5], kt[d + 6], kt[d + 7]
            for t in range(TILE):
                to[t] += (
                    q0 * k0[t]
                    + q1 * k1[t]
                    + q2 * k2[t]
                    + q3 * k3[t]
                    + (q4 * k4[t] + q5 * k5[t] + q6 * k6[t] + q7 * k7[t])
                )
        for d in range(q.shape[0] - q.shape[0] % 8, q.shape[0]):
            for t in range(TILE):
                to[t] += q[d] * kt[d, t]


@compiled
def _soften(n: int, scratch: Scratch) -> np.float32:
    """scores = exp(scores − max), and their sum."""
    scores, powers, bits, _, _ = scratch
    top0 = top1 = top2 = top3 = scores[0]
    for t in range(0, n - 3, 4):
        top0, top1 = max(top0, scores[t]), max(top1, scores[t + 1])
        top2, top3 = max(top2, scores[t + 2]), max(top3, scores[t + 3])
    for t in range(n - n % 4, n):
        top0 = max(top0, scores[t])
    exponents(scores, n, max(top0, top1, top2, top3), bits)
    for t in range(n):
        scores[t] *= powers[t]
    total = f32(0)
    for t in range(n):
        total += scores[t]
    return total


@compiled
def _mix(scores: Floats, v: Floats, first: int, last: int, heard: Floats) -> None:
    """heard += Σ scoreₜ vₜ over some tiles"""
    for tile in range(first, last):
        vt, st = v[tile], scores[tile * TILE : (tile + 1) * TILE]
        for d in range(0, heard.shape[0] - 3, 4):
            v0, v1, v2, v3 = vt[d], vt[d + 1], vt[d + 2], vt[d + 3]
            x0 = x1 = x2 = x3 = f32(0)
            for t in range(TILE):
                x0 += st[t] * v0[t]
                x1 += st[t] * v1[t]
                x2 += st[t] * v2[t]
                x3 += st[t] * v3[t]
            heard[d] += x0
            heard[d + 1] += x1
            heard[d + 2] += x2
            heard[d + 3] += x3
        for d in range(heard.shape[0] - heard.shape[0] % 4, heard.shape[0]):
            for t in range(TILE):
                heard[d] += st[t] * vt[d, t]


@compiled
def store_kv(qkv: Floats, keys: Floats, values: Floats, start: int) -> None:
    """Put the keys and values of a prompt, from place `start` on, into its slot: qkv [T, 3, H, D]."""
    for h in range(qkv.shape[2]):
        for t in range(qkv.shape[0]):
            k, v, lane = keys[h, (start + t) // TILE], values[h, (start + t) // TILE], (start + t) % TILE
            for d in range(qkv.shape[3]):
                k[d, lane], v[d, lane] = qkv[t, 1, h, d], qkv[t, 2, h, d]


@compiled
def recall(keys: Floats, values: Floats, where: tuple[int, int, int], k: Floats, v: Floats) -> None:
    """The first keys and values of a slot [H, n, D], those that lie in its base included."""
    slot, base, shared = where
    for h in range(k.shape[0]):
        for place in range(k.shape[1]):
            source, tile, lane = base if place < shared else slot, place // TILE, place % TILE
            for d in range(k.shape[2]):
                k[h, place, d] = keys[source, h, tile, d, lane]
                v[h, place, d] = values[source, h, tile, d, lane]


CHUNK = 4096  # tokens read at once: enough for full speed, and the buffers stay small
BUCKET = 32  # with a fixed layout, prompts are padded to a multiple of this


@dataclass(frozen=True, slots=True)
class BlockWeights:
    """One block, turned so that a row times the matrix runs along memory."""

    norm1: Tensor
    qkv: Tensor
    out: Tensor
    norm2: Tensor
    norm2_array: Floats
    up: Tensor
    down: Tensor


class Rows:
    """Work space for n rows."""

    def __init__(self, shape: ModelShape, n: int) -> None:
        self.x, self.y, self.heard = (torch.empty(n, shape.width) for _ in range(3))
        self.qkv = torch.empty(n, 3 * shape.width)
        self.up, self.mid = torch.empty(n, 2 * shape.inner), torch.empty(n, shape.inner)
        self.logits = torch.empty(n, shape.vocabulary)
        self.arrays = tuple(t.numpy() for t in (self.x, self.y, self.heard, self.qkv, self.up, self.mid))


class Cpu:
    """Slots of keys and values, and the two ways to fill them: whole prompts, and one token for many rows."""

    def __init__(self, model: Transformer, slots: int, *, fixed: bool) -> None:
        self.shape = shape = model.shape
        self.fixed = fixed
        self._cos, self._sin = _copy(model.cos), _copy(model.sin)
        tiles = -(-shape.context // TILE)
        # zeros of numpy take no memory until they are written to
        self._keys, self._values = (
            np.zeros((shape.layers, slots, shape.heads, tiles, shape.head, TILE), np.float32) for _ in range(2)
        )
        self._turns = _array(self._cos), _array(self._sin)
        self._rows: dict[int, Rows] = {}
        self._scores = np.empty(tiles * TILE, np.float32)
        self._powers = np.empty(tiles * TILE, np.float32)
        query, key = np.empty(shape.head, np.float32), np.empty(shape.head, np.float32)
        self._scratch = self._scores, self._powers, self._powers.view(np.int32), query, key
        self.load(model)

    def load(self, model: Transformer) -> None:
        """Copy the weights; what the slots hold is worth nothing then."""
        self._embed = _copy(model.embed.weight)
        self._read = self._embed.t().contiguous()
        self._blocks = [_turned(block) for block in model.blocks if isinstance(block, Block)]
        self._norms = [_array(block.norm1) for block in self._blocks] + [_array(_copy(model.norm))]

    def step(self, ids: Ints, places: Ints, slots: Ints, bases: Ints, shared: Ints) -> Tensor:
        """Logits [N, V] after one more token for each row. They are overwritten by the next call."""
        rows = self._rows.get(len(ids)) or self._rows.setdefault(len(ids), Rows(self.shape, len(ids)))
        x, y, heard, qkv, up, mid = rows.arrays
        torch.index_select(self._embed, 0, torch.from_numpy(ids), out=rows.x)
        norm_rows(x, self._norms[0], y)
        for layer, block in enumerate(self._blocks):
            torch.mm(rows.y, block.qkv, out=rows.qkv)
            where = slots, places, bases, shared
            attend(qkv, self._turns, self._keys[layer], self._values[layer], where, self._scratch, heard)
            torch.mm(rows.heard, block.out, out=rows.y)
            add_norm(x, y, block.norm2_array)
            torch.mm(rows.y, block.up, out=rows.up)
            gate(up, mid)
            torch.mm(rows.mid, block.down, out=rows.y)
            add_norm(x, y, self._norms[layer + 1])
        return torch.mm(rows.y, self._read, out=rows.logits)

    def prefill(self, prompts: Sequence[Ints], plans: Sequence[SlotPlan]) -> None:
        """Give each seat the keys and values of its prompt from its start on; what is before lies there already."""
        for plan in plans:
            if plan.source >= 0:
                self._copy(plan)
        if self.fixed:
            for ids, plan in zip(prompts, plans, strict=True):
                padded = np.zeros(min(-(-len(ids) // BUCKET) * BUCKET, self.shape.context), np.int64)
                padded[: len(ids)] = ids
                self._compute([padded], [plan])
            return
        first = 0
        while first < len(prompts):
            last, tokens = first, 0
            while last < len(prompts) and (last == first or tokens + len(prompts[last]) - plans[last].start <= CHUNK):
                tokens += len(prompts[last]) - plans[last].start
                last += 1
            if tokens:
                self._compute(prompts[first:last], plans[first:last])
            first = last

    def _copy(self, plan: SlotPlan) -> None:
        tiles = slice(
            plan.shared // TILE, -(-plan.start // TILE)
        )  # the edges may hold more; it is overwritten or not seen
        self._keys[:, plan.slot, :, tiles] = self._keys[:, plan.source, :, tiles]
        self._values[:, plan.slot, :, tiles] = self._values[:, plan.source, :, tiles]

    def _compute(self, prompts: Sequence[Ints], plans: Sequence[SlotPlan]) -> None:
        """All prompts end to end in one matrix, so that nothing is padded; only attention goes row by row."""
        pairs = list(zip(prompts, plans, strict=True))
        ids = torch.from_numpy(np.concatenate([p[plan.start :] for p, plan in pairs]))
        places = torch.from_numpy(np.concatenate([np.arange(plan.start, len(p)) for p, plan in pairs]))
        turn = self._cos[places][:, None, None], self._sin[places][:, None, None]
        edges = np.cumsum([0, *(len(p) - plan.start for p, plan in pairs)]).tolist()
        masks = [_mask(plan.start, len(p)) for p, plan in pairs]
        x = self._embed[ids]
        for layer, block in enumerate(self._blocks):
            qkv = torch.mm(norm(x, block.norm1), block.qkv).view(len(ids), 3, self.shape.heads, self.shape.head)
            qkv[:, :2] = rotate(qkv[:, :2], *turn)
            last = layer + 1 == len(self._blocks)  # only its keys and values are wanted
            heard = torch.empty(len(ids), self.shape.heads, self.shape.head)
            for n, plan in enumerate(plans):
                row = slice(edges[n], edges[n + 1])
                store_kv(_array(qkv[row]), self._keys[layer, plan.slot], self._values[layer, plan.slot], plan.start)
                if not last:
                    heard[row] = self._hear(layer, qkv[row].permute(1, 2, 0, 3), plan, masks[n])
            if last:
                return
            x.addmm_(heard.flatten(1), block.out)
            gate, passed = torch.mm(norm(x, block.norm2), block.up).chunk(2, dim=-1)
            x.addmm_(F.silu(gate).mul_(passed), block.down)

    def _hear(self, layer: int, qkv: Tensor, plan: SlotPlan, mask: Tensor | None) -> Tensor:
        """What each place of one prompt hears: qkv [3, H, T, D] -> [T, H, D]."""
        q, k, v = qkv
        if mask is not None:
            k, v = (torch.empty(self.shape.heads, mask.shape[1], self.shape.head) for _ in range(2))
            recall(self._keys[layer], self._values[layer], (plan.slot, plan.base, plan.shared), _array(k), _array(v))
        return F.scaled_dot_product_attention(q[None], k[None], v[None], attn_mask=mask, is_causal=mask is None)[
            0
        ].transpose(0, 1)


def _mask(start: int, end: int) -> Tensor | None:
    """Which of `end` places each one from `start` on can see; None: plainly causal."""
    return torch.arange(end) <= torch.arange(start, end)[:, None] if start else None


def _copy(parameter: Tensor) -> Tensor:
    return parameter.detach().to("cpu", torch.float32, copy=True)


def _array(tensor: Tensor) -> Floats:
    return np.asarray(tensor.numpy())


def _turned(block: Block) -> BlockWeights:
    def turned(layer: nn.Linear) -> Tensor:
        return _copy(layer.weight).t().contiguous()

    norm2 = _copy(block.norm2)
    return BlockWeights(
        norm1=_copy(block.norm1),
        qkv=turned(block.qkv),
        out=turned(block.out),
        norm2=norm2,
        norm2_array=_array(norm2),
        up=turned(block.up),
        down=turned(block.down),
    )
