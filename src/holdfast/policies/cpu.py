"""The model on one CPU core, for decoding: matrix products by torch, all between them in a few compiled loops.

A row looks only as far back as it is long, rows need not lie side by side, and a beginning that several rows have in
common is read once for all of them. Keys and values are kept with the places innermost, where both sums of attention
run straight through memory. Weights are copied when this is built, so that training may go on while it samples.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn
from torch.nn import functional as F

from holdfast.policies import kernels
from holdfast.policies.lm import Block, ModelShape, Transformer, norm, rotate
from holdfast.policies.slots import GRAIN, SlotPlan

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]

CHUNK = 4096  # tokens read at once: enough for full speed, and the buffers stay small
TILE = GRAIN  # places whose keys lie together, dimension by dimension
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
        self._scratch = self._scores, self._powers, self._powers.view(np.int32)
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
        kernels.norm(x, self._norms[0], y)
        for layer, block in enumerate(self._blocks):
            torch.mm(rows.y, block.qkv, out=rows.qkv)
            where = slots, places, bases, shared
            kernels.attend(qkv, self._turns, self._keys[layer], self._values[layer], where, self._scratch, heard)
            torch.mm(rows.heard, block.out, out=rows.y)
            kernels.add_norm(x, y, block.norm2_array)
            torch.mm(rows.y, block.up, out=rows.up)
            kernels.gate(up, mid)
            torch.mm(rows.mid, block.down, out=rows.y)
            kernels.add_norm(x, y, self._norms[layer + 1])
        return torch.mm(rows.y, self._read, out=rows.logits)

    def prefill(self, prompts: Sequence[Ints], seats: Sequence[SlotPlan]) -> None:
        """Give each seat the keys and values of its prompt from its start on; what is before lies there already."""
        for seat in seats:
            if seat.source >= 0:
                self._copy(seat)
        if self.fixed:
            for ids, seat in zip(prompts, seats, strict=True):
                padded = np.zeros(min(-(-len(ids) // BUCKET) * BUCKET, self.shape.context), np.int64)
                padded[: len(ids)] = ids
                self._compute([padded], [seat])
            return
        first = 0
        while first < len(prompts):
            last, tokens = first, 0
            while last < len(prompts) and (last == first or tokens + len(prompts[last]) - seats[last].start <= CHUNK):
                tokens += len(prompts[last]) - seats[last].start
                last += 1
            if tokens:
                self._compute(prompts[first:last], seats[first:last])
            first = last

    def _copy(self, seat: SlotPlan) -> None:
        tiles = slice(
            seat.shared // TILE, -(-seat.start // TILE)
        )  # the edges may hold more; it is overwritten or not seen
        self._keys[:, seat.slot, :, tiles] = self._keys[:, seat.source, :, tiles]
        self._values[:, seat.slot, :, tiles] = self._values[:, seat.source, :, tiles]

    def _compute(self, prompts: Sequence[Ints], seats: Sequence[SlotPlan]) -> None:
        """All prompts end to end in one matrix, so that nothing is padded; only attention goes row by row."""
        pairs = list(zip(prompts, seats, strict=True))
        ids = torch.from_numpy(np.concatenate([p[seat.start :] for p, seat in pairs]))
        places = torch.from_numpy(np.concatenate([np.arange(seat.start, len(p)) for p, seat in pairs]))
        turn = self._cos[places][:, None, None], self._sin[places][:, None, None]
        edges = np.cumsum([0, *(len(p) - seat.start for p, seat in pairs)]).tolist()
        masks = [_mask(seat.start, len(p)) for p, seat in pairs]
        x = self._embed[ids]
        for layer, block in enumerate(self._blocks):
            qkv = torch.mm(norm(x, block.norm1), block.qkv).view(len(ids), 3, self.shape.heads, self.shape.head)
            qkv[:, :2] = rotate(qkv[:, :2], *turn)
            last = layer + 1 == len(self._blocks)  # only its keys and values are wanted
            heard = torch.empty(len(ids), self.shape.heads, self.shape.head)
            for n, seat in enumerate(seats):
                row = slice(edges[n], edges[n + 1])
                kernels.keep(_array(qkv[row]), self._keys[layer, seat.slot], self._values[layer, seat.slot], seat.start)
                if not last:
                    heard[row] = self._hear(layer, qkv[row].permute(1, 2, 0, 3), seat, masks[n])
            if last:
                return
            x.addmm_(heard.flatten(1), block.out)
            gate, passed = torch.mm(norm(x, block.norm2), block.up).chunk(2, dim=-1)
            x.addmm_(F.silu(gate).mul_(passed), block.down)

    def _hear(self, layer: int, qkv: Tensor, seat: SlotPlan, mask: Tensor | None) -> Tensor:
        """What each place of one prompt hears: qkv [3, H, T, D] -> [T, H, D]."""
        q, k, v = qkv
        if mask is not None:
            k, v = (torch.empty(self.shape.heads, mask.shape[1], self.shape.head) for _ in range(2))
            kernels.recall(
                self._keys[layer], self._values[layer], (seat.slot, seat.base, seat.shared), _array(k), _array(v)
            )
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
