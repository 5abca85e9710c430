"""The model on a GPU, for decoding: some steps with their sampling are one CUDA graph, and then somebody looks.

Matrices and cache are bfloat16, norms, the residual stream and logits float32, as they are in training under autocast.
A row that ends within a stride goes on to its end unheard. A layer and the choice of a token are compiled once, for any
number of rows, which takes some seconds; graphs of them are captured when a number of rows or a length is first met;
new weights are copied into place and keep them. Where there is no GPU the same steps run one by one in 32 bits, which
is slow and only good for tests.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from typing import ParamSpec, TypeVar

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from holdfast.policies.lm import Block, Transformer, norm
from holdfast.policies.sampling import SamplingRules, follow
from holdfast.policies.slots import SlotPlan

Ints = NDArray[np.int64]
P = ParamSpec("P")
T = TypeVar("T")

STRIDE = 8  # steps between two looks at what was drawn
REACH = 128  # how far back attention looks, in multiples of this
LEAST = 8  # rows of the smallest graph; the next ones double
CHUNK = 1 << 16  # tokens of prompts read at once
BRIEF = 1 << 13  # up to so many tokens, reading them is mostly asking for it


@dataclass(frozen=True, slots=True)
class DrawnTokens:
    """What a stride drew, [steps, rows], and where those rows stand that took all of it."""

    ids: Ints
    logps: NDArray[np.float32]
    forced: NDArray[np.bool_]
    inside: NDArray[np.bool_]  # [rows]
    left: Ints


@dataclass(frozen=True, slots=True, kw_only=True)
class RowPositions:
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
        size = (slots, shape.heads, shape.context, shape.head)
        self._cache = [  # keys and values of each layer; apart, since one large tensor would be copied for each write
            (torch.zeros(size, dtype=self._dtype, device=device), torch.zeros(size, dtype=self._dtype, device=device))
            for _ in range(shape.layers)
        ]
        self._whole = torch.zeros(4, slots, dtype=torch.int64, device=device)  # token, place, count, left
        self._inside = torch.zeros(slots, dtype=torch.bool, device=device)
        self._uniform = torch.zeros(slots, shape.context, device=device)
        self._rules = SamplingRules.of(np.ones((4, slots), np.float32), shape.vocabulary, device, every=True)
        # Id, log-prob and forced of each step, then inside and left; 64 bits hold them all, and one copy brings them.
        self._drawn = torch.zeros(3 * STRIDE + 2, slots, dtype=torch.float64, device=device)
        self._graphs: dict[tuple[int, int, bool], Callable[[], None]] = {}
        self._reads: dict[torch.Size, tuple[Tensor, Callable[[], None]]] = {}  # by rows and length, with what is given

    def load(self, model: Transformer) -> None:
        """Other weights of the same shape, in the same place."""
        with torch.no_grad():
            for mine, new in zip(self._model.parameters(), model.parameters(), strict=True):
                mine.copy_(new)

    def prefill(self, prompts: Sequence[Ints], plans: Sequence[SlotPlan]) -> None:
        """Computes the keys and values of each prompt."""
        pairs = sorted(
            ((p, s.slot) for p, s in zip(prompts, plans, strict=True) if len(p)), key=lambda pair: len(pair[0])
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
        """Short prompts run as a captured graph, because launching the kernels one by one takes longer."""
        if self._device.type != "cuda" or ids.size > BRIEF:
            self._remember(torch.from_numpy(ids).to(self._device), torch.tensor(slots, device=self._device))
            return
        rows = 1 << (len(ids) - 1).bit_length()
        fill = np.minimum(np.arange(rows), len(ids) - 1)  # the last one several times, into the same slot
        given = torch.from_numpy(np.column_stack([ids, slots])[fill])
        if given.shape not in self._reads:
            place = given.to(self._device)
            self._reads[given.shape] = place, captured(lambda: self._remember(place[:, :-1], place[:, -1]), ())
        place, replay = self._reads[given.shape]
        place.copy_(given)
        replay()

    def _remember(self, ids: Tensor, slots: Tensor) -> None:
        def keep(layer: int, k: Tensor, v: Tensor) -> None:
            keys, values = self._cache[layer]
            keys[slots, :, : ids.shape[1]] = k.to(self._dtype)
            values[slots, :, : ids.shape[1]] = v.to(self._dtype)

        with self._autocast():
            self._model.hidden(ids, keep)

    def _autocast(self) -> torch.autocast:
        enabled = self._device.type == "cuda"
        return torch.autocast(self._device.type, torch.bfloat16, enabled=enabled, cache_enabled=False)

    def plan(self, now: RowPositions) -> None:
        """Copies the host's row positions to the device after rows have changed."""
        self._whole.copy_(torch.from_numpy(np.stack([now.token, now.place, now.count, now.left])))
        self._inside.copy_(torch.from_numpy(now.inside))
        self._uniform.copy_(torch.from_numpy(now.uniform))
        self._rules.copy(SamplingRules.of(now.columns, self.shape.vocabulary, self._device, every=True))

    def run(self, rows: int, place: int, steps: int, *, filtered: bool) -> DrawnTokens:
        """Some steps for the first rows, none of which is beyond `place` now."""
        size, reach = self.slots, self.shape.context
        if not self.fixed:
            size = min(max(1 << (rows - 1).bit_length(), LEAST), self.slots)
            reach = min(-(-(place + steps + 1) // REACH) * REACH, self.shape.context)
        which = size, reach, filtered
        if which not in self._graphs:
            stride = partial(self._stride, *which)
            state = (self._whole, self._inside, self._drawn)
            self._graphs[which] = captured(stride, state) if self._device.type == "cuda" else stride
        self._graphs[which]()
        *drawn, inside, left = self._drawn.cpu().numpy()
        ids, logps, forced = np.stack(drawn).reshape(STRIDE, 3, -1)[:steps].transpose(1, 0, 2)
        return DrawnTokens(
            ids.astype(np.int64), logps.astype(np.float32), forced.astype(bool), inside.astype(bool), left.astype(int)
        )

    def _stride(self, size: int, reach: int, filtered: bool) -> None:
        """The last steps may be more than were asked for; they are ignored."""
        whole, inside, uniform = self._whole[:, :size], self._inside[:size], self._uniform[:size]
        cached = [(keys[:size], values[:size]) for keys, values in self._cache]
        rules = self._rules.first(size, filtered=filtered)
        is_cuda = self._device.type == "cuda"
        layer = compiled(layered) if is_cuda else layered
        choice = compiled(chosen) if is_cuda and not filtered else chosen  # a sort would be compiled for very long
        for step in range(STRIDE):
            token, place, _, _ = whole
            with self._autocast():
                x: Tensor = self._model.embed(token)
                for block, (keys, values) in zip(self._model.blocks, cached, strict=True):
                    assert isinstance(block, Block)
                    x = layer(block, x, place, self._model.cos, self._model.sin, (keys, values), reach)
            self._drawn[3 * step : 3 * step + 3, :size] = choice(self._model, x, uniform, rules, whole, inside)
        self._drawn[-2, :size] = inside
        self._drawn[-1, :size] = whole[3]


def captured(work: Callable[[], None], state: Sequence[Tensor]) -> Callable[[], None]:
    """The work as a graph. It is tried out first: state that this moves is put back, and caches get the same again."""
    before = [tensor.clone() for tensor in state]
    side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
    side.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(side):
        work()
        for tensor, old in zip(state, before, strict=True):
            tensor.copy_(old)
    torch.cuda.current_stream().wait_stream(side)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph, capture_error_mode="thread_local"):  # other threads may use the GPU meanwhile
        work()
    return graph.replay


@cache
def compiled(work: Callable[P, T]) -> Callable[P, T]:
    """For any number of rows and any reach: another one would compile for seconds again."""
    return torch.compile(work, dynamic=True)


def layered(
    block: Block, x: Tensor, place: Tensor, cos: Tensor, sin: Tensor, cached: tuple[Tensor, Tensor], reach: int
) -> Tensor:
    """One layer for one more token of each row: x [N, W] at places [N], row n in slot n of keys and values -> [N, W].

    Attention of a single query is written out: that can be fused, but for the last product, which would otherwise work
    out the shares anew for every number of a head.
    """
    keys, values = cached
    rows = torch.arange(len(x), device=x.device)
    q, k, v = block.project(x[:, None], cos[place][:, None, None, None], sin[place][:, None, None, None])
    keys[rows, :, place] = k[:, :, 0].to(keys.dtype)
    values[rows, :, place] = v[:, :, 0].to(values.dtype)
    seen = torch.arange(reach, device=x.device) <= place[:, None]
    scores = (q.float() * keys[:, :, :reach].float()).sum(dim=-1) * block.head**-0.5  # [N, H, reach]
    share = scores.masked_fill(~seen[:, None], -torch.inf).softmax(dim=-1)
    heard = share[:, :, None].to(values.dtype) @ values[:, :, :reach]  # [N, H, 1, D]
    return block.close(x, heard.flatten(1))


def chosen(
    model: Transformer, x: Tensor, uniform: Tensor, rules: SamplingRules, whole: Tensor, inside: Tensor
) -> Tensor:
    """The next token of each row, and every row moves on by it; ids, log-probs and which were forced, [3, N]."""
    _, place, count, left = whole
    forced = inside & (left <= 0)
    logits = model.logits(norm(x, model.norm))
    ids, logps = rules.decide(logits, uniform.gather(1, count[:, None])[:, 0], forced)
    still, less = follow(ids, inside, left)
    last = uniform.shape[1] - 1
    inside.copy_(still)
    whole.copy_(torch.stack([ids, (place + 1).clamp(max=last), (count + 1).clamp(max=last), less]))
    return torch.stack([ids.double(), logps.double(), forced.double()])
