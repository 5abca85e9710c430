"""The model on a GPU, for decoding: a step with its sampling is one CUDA graph, and several run before anyone looks.

Matrices and cache are bfloat16, norms, the residual stream and logits float32, as they are in training under autocast.
A row that ends within a stride goes on to its end unheard. Graphs are captured when a number of rows or a length is
first met; new weights are copied into place and keep them. Where there is no GPU the same steps run one by one in 32
bits, which is slow and only good for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.policies.choice import Rules, follow
from holdfast.policies.lm import Block, Transformer
from holdfast.policies.slots import Seat

Ints = NDArray[np.int64]

STRIDE = 8  # steps between two looks at what was drawn
REACH = 128  # how far back attention looks, in multiples of this
LEAST = 8  # rows of the smallest graph; the next ones double
CHUNK = 1 << 16  # tokens of prompts read at once


@dataclass(frozen=True, slots=True)
class Drawn:
    """What a stride drew, [steps, rows]."""

    ids: Ints
    logps: NDArray[np.float32]
    forced: NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
    """Where every row stands, as the host knows it."""

    token: Ints
    place: Ints
    count: Ints
    inside: NDArray[np.bool_]
    left: Ints
    uniform: NDArray[np.float32]  # [rows, context]
    columns: NDArray[np.float32]  # Sampling.column of each row


class Cuda:
    """As many rows as slots, row n in slot n."""

    def __init__(self, model: Transformer, slots: int, device: torch.device, *, fixed: bool) -> None:
        shape = model.shape
        self.slots, self.shape, self.fixed, self._device = slots, shape, fixed, device
        self._model = Transformer(shape, seed=0).to(device).requires_grad_(False)
        self._dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
        for block in self._model.blocks:
            assert isinstance(block, Block)
            for layer in (block.qkv, block.out, block.up, block.down):
                layer.to(self._dtype)
        self.load(model)
        size = (shape.layers, 2, slots, shape.heads, shape.context, shape.head)
        self._cache = torch.zeros(size, dtype=self._dtype, device=device)
        self._whole = torch.zeros(4, slots, dtype=torch.int64, device=device)  # token, place, count, left
        self._inside = torch.zeros(slots, dtype=torch.bool, device=device)
        self._uniform = torch.zeros(slots, shape.context, device=device)
        self._rules = Rules.of(np.ones((4, slots), np.float32), shape.vocabulary, device, every=True)
        self._tick = torch.zeros(1, dtype=torch.int64, device=device)
        self._drawn = torch.zeros(3, STRIDE, slots, dtype=torch.float64, device=device)  # id, log-prob, forced
        self._graphs: dict[tuple[int, int, bool], Callable[[], None]] = {}

    def load(self, model: Transformer) -> None:
        """Other weights of the same shape, in the same place."""
        with torch.no_grad():
            for mine, new in zip(self._model.parameters(), model.parameters(), strict=True):
                mine.copy_(new)

    def prefill(self, prompts: Sequence[Ints], seats: Sequence[Seat]) -> None:
        """Give each seat the keys and values of its prompt."""
        pairs = sorted(
            ((p, s.slot) for p, s in zip(prompts, seats, strict=True) if len(p)), key=lambda pair: len(pair[0])
        )
        while pairs:
            length = self.shape.context if self.fixed else min(-(-len(pairs[-1][0]) // 64) * 64, self.shape.context)
            size = 1 if self.fixed else max(CHUNK // length, 1)
            pairs, now = pairs[:-size], pairs[-size:]
            ids = np.zeros((len(now), length), np.int64)
            for row, (prompt, _) in enumerate(now):
                ids[row, : len(prompt)] = prompt
            self._read(ids, [slot for _, slot in now])

    def _read(self, ids: Ints, slots: Sequence[int]) -> None:
        where = torch.tensor(slots, device=self._device)

        def keep(layer: int, k: Tensor, v: Tensor) -> None:
            self._cache[layer, 0, where, :, : ids.shape[1]] = k.to(self._dtype)
            self._cache[layer, 1, where, :, : ids.shape[1]] = v.to(self._dtype)

        with self._autocast():
            self._model.hidden(torch.from_numpy(ids).to(self._device), keep)

    def _autocast(self) -> torch.autocast:
        enabled = self._device.type == "cuda"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def seat(self, now: Standing) -> None:
        """Rows have come: everything the steps work with is set to what the host knows."""
        self._whole.copy_(torch.from_numpy(np.stack([now.token, now.place, now.count, now.left])))
        self._inside.copy_(torch.from_numpy(now.inside))
        self._uniform.copy_(torch.from_numpy(now.uniform))
        self._rules.copy(Rules.of(now.columns, self.shape.vocabulary, self._device, every=True))

    def run(self, rows: int, place: int, steps: int, *, filtered: bool) -> Drawn:
        """Some steps for the first rows, none of which is beyond `place` now."""
        size, reach = self.slots, self.shape.context
        if not self.fixed:
            size = min(max(1 << (rows - 1).bit_length(), LEAST), self.slots)
            reach = min(-(-(place + steps + 1) // REACH) * REACH, self.shape.context)
        which = size, reach, filtered
        replay = self._graphs.get(which) or self._graphs.setdefault(which, self._capture(*which))
        self._tick.zero_()
        for _ in range(steps):
            replay()
        ids, logps, forced = self._drawn[:, :steps].cpu().numpy()
        return Drawn(ids.astype(np.int64), logps.astype(np.float32), forced.astype(bool))

    def _capture(self, size: int, reach: int, filtered: bool) -> Callable[[], None]:
        """The state is put back afterwards, since trying a step out moves it. The cache is only written ahead."""
        if self._device.type != "cuda":
            return partial(self._step, size, reach, filtered)
        state = (self._whole, self._inside, self._tick, self._drawn)
        before = [tensor.clone() for tensor in state]
        side = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream(self._device))
        with torch.cuda.stream(side):
            for _ in range(2):
                self._step(size, reach, filtered)
                for tensor, old in zip(state, before, strict=True):
                    tensor.copy_(old)
        torch.cuda.current_stream(self._device).wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
            self._step(size, reach, filtered)
        return graph.replay

    def _step(self, size: int, reach: int, filtered: bool) -> None:
        token, place, count, left = (column[:size] for column in self._whole)
        inside = self._inside[:size]
        with self._autocast():
            hidden = self._model.step(token, place, self._cache, reach=reach)
            logits = self._model.logits(hidden)
        forced = inside & (left <= 0)
        uniform = self._uniform[:size].gather(1, count[:, None])[:, 0]
        ids, logps = self._rules.first(size, filtered=filtered).decide(logits, uniform, forced)
        drawn = torch.stack([ids.double(), logps.double(), forced.double()])[:, None]
        self._drawn[:, :, :size].index_copy_(1, self._tick, drawn)
        still, less = follow(ids, inside, left)
        inside.copy_(still)
        left.copy_(less)
        token.copy_(ids)
        place.copy_((place + 1).clamp_(max=self.shape.context - 1))
        count.copy_((count + 1).clamp_(max=self.shape.context - 1))
        self._tick.add_(1)
