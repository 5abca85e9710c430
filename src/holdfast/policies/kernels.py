"""Triton kernels for a GPU, and the step of `paged` that is made of them: one CUDA graph for a number of rows.

Sampling: norms with the residual added, rotary positions written straight into the cache, attention of one token over
paged keys and values (split along the text where rows are few), attention of prompts, and the draw by the inverse of
the distribution function with the exact log-prob of what was drawn. Training: log-probs and entropies of a head whose
scores exist only for some thousand tokens at a time, forwards and backwards.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import torch
import triton
import triton.language as tl
from torch import Tensor

from holdfast.policies.causal_lm import CausalLM, Layer
from holdfast.policies.chat_template import ChatTemplate
from holdfast.policies.decoder import captured
from holdfast.policies.kv_cache import BLOCK, Cache, PagedRow, TokenSpan
from holdfast.policies.lora import ALPHA, LoraLinear
from holdfast.policies.sampling import draw, log_probs

STRIDE, SOONEST = 32, 8  # steps between two looks at what was drawn, at most and at least
MANY, SPLIT = (64, 2, 2), (128, 4, 3)  # tile, warps, stages of attention over whole texts and over parts of them
PART = 4096  # tokens of the vocabulary that one program looks at
FEWEST = 8  # rows of the smallest graph; the next ones double
LOGITS = 1 << 29  # scores that exist at once in training
EXACT = tl.constexpr("tf32x3")  # of numbers of 32 bits: one product of TF32's has 10 of their 23 bits, three have all


@triton.jit
def _add_norm(x, y, weight, out, width, epsilon, HAS_Y: tl.constexpr, SIZE: tl.constexpr):
    """x ← x + y, out ← norm(x) · weight; one row a program."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, SIZE)
    mask = at < width
    value = tl.load(x + row * width + at, mask=mask, other=0.0).to(tl.float32)
    if HAS_Y:
        value += tl.load(y + row * width + at, mask=mask, other=0.0).to(tl.float32)
        value = value.to(x.dtype.element_ty).to(tl.float32)  # as the trainer rounds it
        tl.store(x + row * width + at, value.to(x.dtype.element_ty), mask=mask)
    scale = tl.rsqrt(tl.sum(value * value, 0) / width + epsilon)
    factor = tl.load(weight + at, mask=mask, other=0.0).to(tl.float32)
    tl.store(out + row * width + at, (value * scale * factor).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _turn_and_keep(
    qkv, keys, values, cos, sin, places, rows, table, q_norm, k_norm, table_width, epsilon,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, HAS_NORM: tl.constexpr,
    HEADS: tl.constexpr,
):  # fmt: skip
    """The heads of one token: queries are turned in place, keys turned into the cache, values copied there."""
    token = tl.program_id(0).to(tl.int64)
    place = tl.load(places + token)
    block = tl.load(table + tl.load(rows + token) * table_width + place // BLOCK).to(tl.int64)
    slot = (block * BLOCK + place % BLOCK) * K
    head, half = tl.arange(0, HEADS)[:, None], tl.arange(0, D // 2)[None, :]
    source = qkv + token * (H + 2 * K) * D + head * D + half
    x1 = tl.load(source, mask=head < H + 2 * K, other=0.0).to(tl.float32)
    x2 = tl.load(source + D // 2, mask=head < H + 2 * K, other=0.0).to(tl.float32)
    y1, y2 = x1, x2
    if HAS_NORM:
        scale = tl.rsqrt((tl.sum(x1 * x1, 1) + tl.sum(x2 * x2, 1)) / D + epsilon)[:, None]
        w1 = tl.where(head < H, tl.load(q_norm + half), tl.load(k_norm + half)).to(tl.float32)
        w2 = tl.where(head < H, tl.load(q_norm + D // 2 + half), tl.load(k_norm + D // 2 + half)).to(tl.float32)
        y1 = (y1 * scale * w1).to(qkv.dtype.element_ty).to(tl.float32)
        y2 = (y2 * scale * w2).to(qkv.dtype.element_ty).to(tl.float32)
    c = tl.load(cos + place * (D // 2) + half)
    s = tl.load(sin + place * (D // 2) + half)
    z1, z2 = (y1 * c - y2 * s).to(qkv.dtype.element_ty), (y1 * s + y2 * c).to(qkv.dtype.element_ty)
    tl.store(source, z1, mask=head < H)
    tl.store(source + D // 2, z2, mask=head < H)
    is_key = (head >= H) & (head < H + K)
    target = keys + (slot + head - H) * D + half
    tl.store(target, z1, mask=is_key)
    tl.store(target + D // 2, z2, mask=is_key)
    is_value = (head >= H + K) & (head < H + 2 * K)
    target = values + (slot + head - H - K) * D + half
    tl.store(target, x1.to(values.dtype.element_ty), mask=is_value)
    tl.store(target + D // 2, x2.to(values.dtype.element_ty), mask=is_value)


@triton.jit
def _decode(
    qkv, keys, values, table, places, out, part_out, part_max, part_sum, table_width, scale, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, TILE: tl.constexpr,
    SPLITS: tl.constexpr,
):  # fmt: skip
    """The heads of one group for one token of one row, over one part of its text."""
    row, kv, split = tl.program_id(0).to(tl.int64), tl.program_id(1), tl.program_id(2)
    G: tl.constexpr = H // K
    M: tl.constexpr = 16
    length = tl.load(places + row) + 1
    first = tl.maximum(length - window, 0) // TILE
    tiles = tl.cdiv(length, TILE)
    each = tl.cdiv(tiles - first, SPLITS)
    begin = first + split * each
    end = tl.minimum(begin + each, tiles)
    g, d, n = tl.arange(0, M), tl.arange(0, D), tl.arange(0, TILE)
    heads = kv * G + g
    q = tl.load(qkv + row * (H + 2 * K) * D + heads[:, None] * D + d[None, :], mask=g[:, None] < G, other=0.0)
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    heard = tl.zeros([M, D], tl.float32)
    for tile in range(begin, end):
        at = tile * TILE + n
        inside = (at < length) & (at >= length - window)
        block = tl.load(table + row * table_width + at // BLOCK, mask=inside, other=0).to(tl.int64)
        offset = ((block * BLOCK + at % BLOCK) * K + kv) * D
        k = tl.load(keys + offset[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        v = tl.load(values + offset[:, None] + d[None, :], mask=inside[:, None], other=0.0)
        score = tl.where(inside[None, :], tl.dot(q, tl.trans(k), input_precision=EXACT) * scale, -1e30)
        peak = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - peak[:, None])
        fade = tl.exp(top - peak)
        total = total * fade + tl.sum(p, 1)
        heard = heard * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=EXACT)
        top = peak
    if SPLITS == 1:
        target = out + row * H * D + heads[:, None] * D + d[None, :]
        tl.store(target, (heard / total[:, None]).to(out.dtype.element_ty), mask=g[:, None] < G)
    else:
        place = (row * H + heads) * SPLITS + split
        tl.store(part_out + place[:, None] * D + d[None, :], heard, mask=g[:, None] < G)
        tl.store(part_max + place, top, mask=g < G)
        tl.store(part_sum + place, total, mask=g < G)


@triton.jit
def _join(part_out, part_max, part_sum, out, D: tl.constexpr, SPLITS: tl.constexpr):
    """The parts of one head's text become one."""
    place = tl.program_id(0).to(tl.int64)
    s, d = tl.arange(0, SPLITS), tl.arange(0, D)
    top = tl.load(part_max + place * SPLITS + s)
    share = tl.exp(top - tl.max(top, 0))
    total = tl.sum(share * tl.load(part_sum + place * SPLITS + s), 0)
    heard = tl.load(part_out + (place * SPLITS + s[:, None]) * D + d[None, :])
    tl.store(out + place * D + d, (tl.sum(heard * share[:, None], 0) / total).to(out.dtype.element_ty))


@triton.jit
def _prefill(
    qkv, keys, values, table, tiles, out, table_width, scale, window,
    H: tl.constexpr, K: tl.constexpr, D: tl.constexpr, BLOCK: tl.constexpr, M: tl.constexpr, TILE: tl.constexpr,
):  # fmt: skip
    """One head for up to M tokens of one row; `tiles` says which: first token, how many, their first place, the row."""
    tile, head = tl.program_id(0), tl.program_id(1)
    token = tl.load(tiles + tile * 4).to(tl.int64)
    count = tl.load(tiles + tile * 4 + 1)
    place = tl.load(tiles + tile * 4 + 2)
    row = tl.load(tiles + tile * 4 + 3).to(tl.int64)
    kv = head // (H // K)
    m, d, n = tl.arange(0, M), tl.arange(0, D), tl.arange(0, TILE)
    source = qkv + (token + m[:, None]) * (H + 2 * K) * D + head * D + d[None, :]
    q = tl.load(source, mask=m[:, None] < count, other=0.0)
    top = tl.full([M], -1e30, tl.float32)
    total = tl.zeros([M], tl.float32)
    heard = tl.zeros([M, D], tl.float32)
    length = place + count
    for begin in range(tl.maximum(place - window + 1, 0) // TILE * TILE, length, TILE):
        at = begin + n
        block = tl.load(table + row * table_width + at // BLOCK, mask=at < length, other=0).to(tl.int64)
        offset = ((block * BLOCK + at % BLOCK) * K + kv) * D
        k = tl.load(keys + offset[:, None] + d[None, :], mask=at[:, None] < length, other=0.0)
        v = tl.load(values + offset[:, None] + d[None, :], mask=at[:, None] < length, other=0.0)
        back = place + m[:, None] - at[None, :]
        score = tl.where((back >= 0) & (back < window), tl.dot(q, tl.trans(k), input_precision=EXACT) * scale, -1e30)
        peak = tl.maximum(top, tl.max(score, 1))
        p = tl.exp(score - peak[:, None])
        p = tl.where((back >= 0) & (back < window), p, 0.0)
        fade = tl.exp(top - peak)
        total = total * fade + tl.sum(p, 1)
        heard = heard * fade[:, None] + tl.dot(p.to(v.dtype), v, input_precision=EXACT)
        top = peak
    target = out + (token + m[:, None]) * H * D + head * D + d[None, :]
    tl.store(target, (heard / total[:, None]).to(out.dtype.element_ty), mask=m[:, None] < count)


@triton.jit
def _silu_times(both, out, inner, SIZE: tl.constexpr):
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * SIZE + tl.arange(0, SIZE)
    mask = at < inner
    gate = tl.load(both + row * 2 * inner + at, mask=mask, other=0.0).to(tl.float32)
    up = tl.load(both + row * 2 * inner + inner + at, mask=mask, other=0.0).to(tl.float32)
    gate = (gate * tl.sigmoid(gate)).to(out.dtype.element_ty).to(tl.float32)
    tl.store(out + row * inner + at, (gate * up).to(out.dtype.element_ty), mask=mask)


@triton.jit
def _scan(logits, heat, banned, tops, sums, best, size, parts, PART: tl.constexpr):
    """Largest score and sum of exponentials of one part of the vocabulary, for one row."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * PART + tl.arange(0, PART)
    x = tl.load(logits + row * size + at, mask=at < size, other=-1e30) / tl.load(heat + row)
    x = tl.where(at == tl.load(banned + row), -1e30, x)
    top = tl.max(x, 0)
    tl.store(tops + row * parts + part, top)
    tl.store(sums + row * parts + part, tl.sum(tl.exp(x - top), 0))
    tl.store(best + row * parts + part, part * PART + tl.argmax(x, 0))


@triton.jit
def _choose(
    logits, heat, greedy, banned, tops, sums, best, uniform, ids, logps, size, parts, SIZE: tl.constexpr,
    PART: tl.constexpr,
):  # fmt: skip
    """The token of one row: the part that the uniform falls into, then the token within that part."""
    row = tl.program_id(0).to(tl.int64)
    p = tl.arange(0, SIZE)
    top = tl.load(tops + row * parts + p, mask=p < parts, other=-1e30)
    peak = tl.max(top, 0)
    weight = tl.load(sums + row * parts + p, mask=p < parts, other=0.0) * tl.exp(top - peak)
    total = tl.sum(weight, 0)
    goal = tl.load(uniform + row) * total
    up_to = tl.cumsum(weight, 0)
    part = tl.minimum(tl.sum((up_to <= goal).to(tl.int32), 0), parts - 1)
    before = tl.sum(tl.where(p < part, weight, 0.0), 0)
    at = part * PART + tl.arange(0, PART)
    x = tl.load(logits + row * size + at, mask=at < size, other=-1e30) / tl.load(heat + row)
    x = tl.where((at == tl.load(banned + row)) | (at >= size), -1e30, x)
    chance = tl.exp(x - peak)
    reached = before + tl.cumsum(chance, 0)
    last = tl.max(tl.where(chance > 0, at, 0), 0)  # where rounding leaves nothing beyond the uniform
    token = tl.min(tl.where((reached > goal) & (chance > 0), at, size), 0)
    token = tl.where(token >= size, last, token)
    if tl.load(greedy + row) != 0:
        token = tl.load(best + row * parts + tl.argmax(top, 0))
    score = tl.load(logits + row * size + token) / tl.load(heat + row)
    tl.store(ids + row, token)
    tl.store(logps + row, score - peak - tl.log(total))


@triton.jit
def _move_on(drawn, logps, token, place, last, count, inside, left, out_ids, out_logps, opens, closes, slots):
    """Rows take what was drawn: a thought whose budget is used up ends, and the next place is written."""
    row = tl.program_id(0)
    chosen, logp = tl.load(drawn + row), tl.load(logps + row)
    within, rest = tl.load(inside + row), tl.load(left + row)
    forced = (within != 0) & (rest == 0)
    chosen = tl.where(forced, closes, chosen)
    logp = tl.where(forced, 0.0, logp)
    is_mark = (chosen == opens) | (chosen == closes)
    now = tl.where(is_mark, (chosen == opens).to(tl.int32), within)
    tl.store(inside + row, now)
    tl.store(left + row, tl.where((is_mark == 0) & (now != 0) & (rest > 0), rest - 1, rest))
    step = tl.load(count + row)
    tl.store(out_ids + step * slots + row, chosen)
    tl.store(out_logps + step * slots + row, logp)
    tl.store(count + row, step + 1)
    tl.store(token + row, chosen)
    tl.store(place + row, tl.minimum(tl.load(place + row) + 1, tl.load(last + row)))


def _power(number: int) -> int:
    return 1 << (number - 1).bit_length()


class Product:
    """One or several linear layers that read the same, as one product; their parameters become views of its weight.

    So the trainer's updates are seen here at once, and nothing is kept twice. Adapters are a second, small product."""

    def __init__(self, layers: Sequence[Any]) -> None:
        self.layers = list(layers)
        self.weight = self._joined("weight")
        self.bias = None if layers[0].bias is None else self._joined("bias")
        self.down: Tensor | None = None
        if isinstance(layers[0], LoraLinear):
            dtype = self.weight.dtype
            self.down = torch.cat([layer.lora_A for layer in layers]).detach().to(dtype).t().contiguous()
            stack: Any = torch.block_diag
            self.up: Tensor = stack(*(layer.lora_B.detach() for layer in layers)).to(dtype).t().contiguous()

    def _joined(self, name: str) -> Tensor:
        parts = [getattr(layer, name) for layer in self.layers]
        if len(parts) == 1:
            alone: Tensor = parts[0].detach()
            return alone
        if getattr(self.layers[0], f"_joined_{name}", None) is not None:
            whole: Tensor = getattr(self.layers[0], f"_joined_{name}")
            step = 0
            for part in parts:
                if part.data_ptr() != whole[step:].data_ptr():
                    break
                step += len(part)
            else:
                return whole
        with torch.no_grad():
            whole = torch.cat([part.detach() for part in parts])
            step = 0
            for part in parts:
                part.data = whole[step : step + len(part)]
                step += len(part)
        self.layers[0].__dict__[f"_joined_{name}"] = whole
        return whole

    def __call__(self, x: Tensor) -> Tensor:
        y = torch.mm(x, self.weight.t()) if self.bias is None else torch.addmm(self.bias, x, self.weight.t())
        if self.down is not None:
            y.addmm_(torch.mm(x, self.down), self.up, alpha=ALPHA)
        return y


class _Parts:
    """The products of one layer."""

    def __init__(self, layer: Layer) -> None:
        a, m = layer.self_attn, layer.mlp
        self.norm1, self.norm2 = layer.input_layernorm.weight.detach(), layer.post_attention_layernorm.weight.detach()
        self.qkv, self.out = Product([a.q_proj, a.k_proj, a.v_proj]), Product([a.o_proj])
        self.both, self.down = Product([m.gate_proj, m.up_proj]), Product([m.down_proj])
        self.q_norm = None if a.q_norm is None else a.q_norm.weight.detach()
        self.k_norm = None if a.k_norm is None else a.k_norm.weight.detach()
        self.window = layer.window or 1 << 30


@dataclass(slots=True, eq=False)
class _State:
    """Where every row stands, on the device."""

    token: Tensor
    place: Tensor
    last: Tensor
    count: Tensor
    inside: Tensor
    left: Tensor
    heat: Tensor
    greedy: Tensor
    banned: Tensor
    uniform: Tensor  # [steps, slots]
    top_k: Tensor
    top_p: Tensor

    @staticmethod
    def of(slots: int, device: torch.device) -> _State:
        def whole() -> Tensor:
            return torch.zeros(slots, dtype=torch.int32, device=device)

        def real() -> Tensor:
            return torch.ones(slots, device=device)

        uniform = torch.zeros(STRIDE, slots, device=device)
        return _State(
            whole(), whole(), whole(), whole(), whole(), whole(), real(), whole(), whole(), uniform, whole(), real()
        )  # fmt: skip


def _seated(entries: Sequence[PagedRow | None]) -> list[PagedRow | None]:
    """Without those that have ended: a step of theirs would write over their first block, which others may share."""
    return [None if entry is None or entry.row.finish is not None else entry for entry in entries]


def _unfinished(entries: Sequence[PagedRow | None]) -> list[tuple[int, PagedRow]]:
    return [(slot, entry) for slot, entry in enumerate(entries) if entry is not None and entry.row.finish is None]


class CudaSteps:
    """The arithmetic of `paged.PagedGenerator` on a GPU, row n in slot n."""

    def __init__(self, net: CausalLM, cache: Cache, slots: int, template: ChatTemplate) -> None:
        self.net, self.cache, self.slots, self.c = net, cache, slots, net.config
        self.device = net.device
        self.parts = [_Parts(layer) for layer in net.layers]
        self.norm = net.model.norm.weight.detach()
        self.marks = template.think or (-1, -1)
        self.ends = np.array(sorted(template.ends), np.int64)
        self.width = -(-self.c.context // BLOCK)
        self.table = torch.zeros(slots, self.width, dtype=torch.int32, device=self.device)
        self.state = _State.of(slots, self.device)
        self.rows = torch.arange(slots, dtype=torch.int32, device=self.device)
        self.out_ids = torch.zeros(STRIDE, slots, dtype=torch.int32, device=self.device)
        self.out_logps = torch.zeros(STRIDE, slots, device=self.device)
        self.cos, self.sin = net.angles()
        self.graphs: dict[tuple[int, bool], torch.cuda.CUDAGraph] = {}
        self._sitting: list[PagedRow | None] = [None] * slots  # whose blocks the table holds
        self._uniform = np.zeros((slots, STRIDE), np.float32)
        self._pool: Any = None
        self._ahead = 0  # steps that were begun for those who sit here, and whose tokens nobody has looked at

    # Layers --------------------------------------------------------------------------------------------------------

    def _through(self, ids: Tensor, places: Tensor, rows: Tensor, table: Tensor, attend: Any) -> Tensor:
        """[N] -> [N, W], after the last norm."""
        c = self.c
        x: Tensor = self.net.model.embed_tokens.weight[ids]
        y, h = x, torch.empty_like(x)
        size, warps = _power(c.width), 4 if c.width <= 2048 else 8
        for number, part in enumerate(self.parts):
            _add_norm[(len(x),)](x, y, part.norm1, h, c.width, c.epsilon, HAS_Y=number > 0, SIZE=size, num_warps=warps)
            qkv = part.qkv(h)
            keys, values = self.cache.layers[number]
            _turn_and_keep[(len(x),)](
                qkv, keys, values, self.cos, self.sin, places, rows, table, part.q_norm, part.k_norm, table.shape[1],
                c.epsilon, H=c.heads, K=c.kv_heads, D=c.head, BLOCK=BLOCK, HAS_NORM=part.q_norm is not None,
                HEADS=_power(c.heads + 2 * c.kv_heads), num_warps=4,
            )  # fmt: skip
            y = part.out(attend(qkv, keys, values, part.window))
            _add_norm[(len(x),)](x, y, part.norm2, h, c.width, c.epsilon, HAS_Y=True, SIZE=size, num_warps=warps)
            both = part.both(h)
            mixed = torch.empty(len(x), c.inner, dtype=x.dtype, device=x.device)
            _silu_times[(len(x), triton.cdiv(c.inner, 1024))](both, mixed, c.inner, SIZE=1024)
            y = part.down(mixed)
        _add_norm[(len(x),)](x, y, self.norm, h, c.width, c.epsilon, HAS_Y=True, SIZE=size, num_warps=warps)
        return h

    def read(self, spans: Sequence[TokenSpan], ids: Any, places: Any, last: Any) -> Tensor:
        """Reads prompts, whose tokens lie side by side; the scores after the last token of each."""
        device, c = self.device, self.c
        table = np.zeros((len(spans), max(len(span.blocks) for span in spans)), np.int32)
        tiles, token, size = list[tuple[int, int, int, int]](), 0, 64
        for row, span in enumerate(spans):
            table[row, : len(span.blocks)] = span.blocks
            tiles += [
                (token + at, min(size, span.count - at), span.start + at, row) for at in range(0, span.count, size)
            ]
            token += span.count

        def put(numbers: Any) -> Tensor:
            return torch.from_numpy(np.asarray(numbers, np.int32)).to(device, non_blocking=True)

        blocks, pieces = put(table), put(tiles)

        def attend(qkv: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
            out = torch.empty(len(qkv), c.heads * c.head, dtype=qkv.dtype, device=device)
            _prefill[(len(tiles), c.heads)](
                qkv, keys, values, blocks, pieces, out, blocks.shape[1], c.head**-0.5, window,
                H=c.heads, K=c.kv_heads, D=c.head, BLOCK=BLOCK, M=size, TILE=64, num_warps=4,
            )  # fmt: skip
            return out

        rows = np.repeat(np.arange(len(spans)), [span.count for span in spans])
        hidden = self._through(put(ids), put(places), put(rows), blocks, attend)
        return self._logits(hidden[put(last)])

    def _logits(self, hidden: Tensor) -> Tensor:
        return _scores(hidden, self.net.lm_head.weight.detach())

    def _step(self, size: int, filtered: bool) -> None:
        """One more token for the first rows."""
        c, s = self.c, self.state
        table, places = self.table[:size], s.place[:size]
        splits = min(_power(max(1, 528 // (size * c.kv_heads))), 16)
        tile, warps, stages = MANY if splits == 1 else SPLIT
        parts = None
        if splits > 1:
            shape = (size * c.heads * splits,)
            parts = (
                torch.empty(*shape, c.head, device=self.device),
                torch.empty(shape, device=self.device),
                torch.empty(shape, device=self.device),
            )

        def attend(qkv: Tensor, keys: Tensor, values: Tensor, window: int) -> Tensor:
            out = torch.empty(size, c.heads * c.head, dtype=qkv.dtype, device=self.device)
            given = parts or (out, out, out)
            _decode[(size, c.kv_heads, splits)](
                qkv, keys, values, table, places, out, *given, table.shape[1], c.head**-0.5, window,
                H=c.heads, K=c.kv_heads, D=c.head, BLOCK=BLOCK, TILE=tile, SPLITS=splits, num_warps=warps,
                num_stages=stages,
            )  # fmt: skip
            if parts:
                _join[(size * c.heads,)](*parts, out, D=c.head, SPLITS=splits, num_warps=1)
            return out

        logits = self._logits(self._through(s.token[:size], places, self.rows[:size], table, attend))
        uniform = s.uniform.gather(0, s.count[None, :size].long())[0]
        ids, logps = self._filtered(logits, uniform, size) if filtered else self._drawn(logits, uniform, size)
        _move_on[(size,)](
            ids, logps, s.token, s.place, s.last, s.count, s.inside, s.left, self.out_ids, self.out_logps,
            self.marks[0], self.marks[1], self.slots, num_warps=1,
        )  # fmt: skip

    def _drawn(self, logits: Tensor, uniform: Tensor, size: int) -> tuple[Tensor, Tensor]:
        s, vocabulary = self.state, logits.shape[1]
        parts = triton.cdiv(vocabulary, PART)
        tops, sums = (torch.empty(size, parts, device=self.device) for _ in range(2))
        best = torch.empty(size, parts, dtype=torch.int32, device=self.device)
        ids, logps = torch.empty_like(self.rows[:size]), torch.empty(size, device=self.device)
        _scan[(size, parts)](logits, s.heat, s.banned, tops, sums, best, vocabulary, parts, PART=PART, num_warps=8)
        _choose[(size,)](
            logits, s.heat, s.greedy, s.banned, tops, sums, best, uniform, ids, logps, vocabulary, parts,
            SIZE=_power(parts), PART=PART, num_warps=8,
        )  # fmt: skip
        return ids, logps

    def _filtered(self, logits: Tensor, uniform: Tensor, size: int) -> tuple[Tensor, Tensor]:
        """By the sort that top-k and top-p take."""
        s, vocabulary = self.state, logits.shape[1]
        banned = torch.arange(vocabulary, device=self.device) == s.banned[:size, None]
        heat = torch.where(s.greedy[:size] != 0, 0.0, s.heat[:size])
        logps = log_probs(logits, heat, s.top_k[:size].long(), s.top_p[:size], banned=banned)
        ids = torch.where(heat == 0, logps.argmax(-1), draw(logps, uniform).clamp_max(vocabulary - 1))
        return ids.int(), logps.gather(-1, ids[:, None])[:, 0]

    # Rows ----------------------------------------------------------------------------------------------------------

    def advance(self, entries: Sequence[PagedRow | None]) -> None:
        """Some steps for all rows; each takes what it was given until it ends.

        Where nobody has ended, the next steps are begun before the rows take what they were given: the GPU does not
        wait for them."""
        entries = _seated(entries)
        is_same = entries == self._sitting
        if self._ahead and not is_same:  # rows have come or gone since: those who stayed take what they were given
            self._look(entries, is_same=False)
            entries = _seated(entries)
        if not self._ahead:
            there = _unfinished(entries)
            if not there:
                return
            if not is_same:
                self._put(entries, there)
            self._begin(there, 0)
        self._look(entries, is_same=True)

    def pause(self, entries: Sequence[PagedRow | None]) -> None:
        """Rows take what they were given, and go on by other means: where they stand must be written anew."""
        if self._ahead:
            self._look(_seated(entries), is_same=False)
        self._sit([(slot, None) for slot, entry in enumerate(self._sitting) if entry is not None])

    def _look(self, entries: Sequence[PagedRow | None], *, is_same: bool) -> None:
        """Rows that still sit where they sat take their tokens."""
        steps, self._ahead = self._ahead, 0
        ids, logps = self.out_ids[:steps].cpu().numpy(), self.out_logps[:steps].cpu().numpy()
        there = [(slot, entry) for slot, entry in _unfinished(entries) if self._sitting[slot] is entry]
        is_end = np.isin(ids, self.ends)
        slots = [slot for slot, _ in there]
        least = min((entry.row.limit - len(entry.row.ids) for _, entry in there), default=0)
        if is_same and least > steps and not is_end[:, slots].any():
            self._begin(there, steps)
        self._take(there, ids, logps, is_end)

    def _begin(self, there: Sequence[tuple[int, PagedRow]], more: int) -> None:
        """Begins the next steps of these rows, which have written `more` than they know."""
        size = min(max(_power(there[-1][0] + 1), FEWEST), self.slots)
        # Who has written so much may write as much again; until then a row that ends early is seen early.
        usual = max(int(np.median([len(entry.row.ids) for _, entry in there])) + more, SOONEST)
        steps = min(STRIDE, usual, max(entry.row.limit - len(entry.row.ids) for _, entry in there) - more)
        filtered = any(entry.row.sampling.top_k > 0 or entry.row.sampling.top_p < 1.0 for _, entry in there)
        self._feed(there, size, more)
        graph = self._graph(size, filtered)
        for _ in range(steps):
            graph.replay()
        self._ahead = steps

    def _feed(self, there: Sequence[tuple[int, PagedRow]], size: int, more: int) -> None:
        """The uniforms of the next steps: rows go on by themselves from where they stand."""
        slots = np.array([slot for slot, _ in there])
        done = np.array([len(entry.row.ids) for _, entry in there]) + more
        columns = np.minimum(done + np.arange(STRIDE)[:, None], self._uniform.shape[1] - 1)
        uniform = np.zeros((STRIDE, size), np.float32)
        uniform[:, slots] = self._uniform[slots, columns]
        self.state.uniform[:, :size] = torch.from_numpy(uniform).to(self.device, non_blocking=True)
        self.state.count.zero_()

    def _put(self, entries: Sequence[PagedRow | None], there: Sequence[tuple[int, PagedRow]]) -> None:
        """Writes where every row stands, after some have come or gone."""
        whole, real = np.zeros((8, self.slots), np.int32), np.ones((2, self.slots), np.float32)
        whole[6] = -1
        width = max(entry.row.limit for _, entry in there)
        if width > self._uniform.shape[1]:
            self._uniform = np.pad(self._uniform, ((0, 0), (0, width - self._uniform.shape[1])))
        for slot, entry in there:
            row, how = entry.row, entry.row.sampling
            place, last = len(entry.prompt) + len(row.ids) - 1, len(entry.prompt) + row.limit - 1
            budget, banned = -1 if row.left is None else row.left, row.banned[0] if row.banned else -1
            whole[:, slot] = row.ids[-1], place, last, row.is_inside, budget, how.temperature == 0, banned, how.top_k
            real[:, slot] = how.temperature or 1.0, how.top_p
            if self._sitting[slot] is not entry:
                self._uniform[slot, : row.limit] = row.uniform[: row.limit]
        self._sit([(slot, entry) for slot, entry in enumerate(entries) if self._sitting[slot] is not entry])
        s, given = self.state, torch.from_numpy(whole).to(self.device)
        named = (s.token, s.place, s.last, s.inside, s.left, s.greedy, s.banned, s.top_k)
        for target, source in zip(named, given, strict=True):
            target.copy_(source)
        heat = torch.from_numpy(real).to(self.device)
        s.heat.copy_(heat[0])
        s.top_p.copy_(heat[1])

    def _sit(self, changed: Sequence[tuple[int, Any]]) -> None:
        """The blocks of rows that are new; those of rows that left become the idle one."""
        if not changed:
            return
        width = max((len(entry.blocks) for _, entry in changed if entry is not None), default=1)
        table = np.zeros((len(changed), width), np.int32)
        for number, (slot, entry) in enumerate(changed):
            self._sitting[slot] = entry
            if entry is not None:
                table[number, : len(entry.blocks)] = entry.blocks
        slots = torch.tensor([slot for slot, _ in changed], device=self.device)
        self.table[slots, :width] = torch.from_numpy(table).to(self.device)

    def _graph(self, size: int, filtered: bool) -> torch.cuda.CUDAGraph:
        which, s = (size, filtered), self.state
        if which not in self.graphs:
            state = (s.token, s.place, s.count, s.inside, s.left)
            graph = captured(partial(self._step, *which), state, self._pool)
            self.graphs[which], self._pool = graph, graph.pool()
        return self.graphs[which]

    def _take(self, there: Sequence[tuple[int, PagedRow]], ids: Any, logps: Any, is_end: Any) -> None:
        first = np.where(is_end.any(0), is_end.argmax(0) + 1, len(ids))
        tokens, chances = ids.T.tolist(), np.minimum(logps, 0.0).T.tolist()
        for slot, entry in there:
            row = entry.row
            if row.is_plain:
                count = min(int(first[slot]), row.limit - len(row.ids))
                row.extend(tokens[slot][:count], chances[slot][:count])
                continue
            for token, chance in zip(tokens[slot], chances[slot], strict=True):
                row.take(token, chance)
                if row.finish is not None:
                    break


# Training ------------------------------------------------------------------------------------------------------------


@triton.jit
def _head_forward(logits, targets, logp, entropy, lse, size, heat, TILE: tl.constexpr):
    """Of one row of scores: log-prob of its target, entropy, and the logarithm of the sum of exponentials."""
    row = tl.program_id(0).to(tl.int64)
    at = tl.arange(0, TILE)
    top = tl.full([TILE], -1e30, tl.float32)
    total = tl.zeros([TILE], tl.float32)
    mean = tl.zeros([TILE], tl.float32)
    for begin in range(0, size, TILE):
        x = tl.load(logits + row * size + begin + at, mask=begin + at < size, other=-1e30) * heat
        peak = tl.maximum(top, x)
        fade, new = tl.exp(top - peak), tl.exp(x - peak)
        new = tl.where(begin + at < size, new, 0.0)
        total = total * fade + new
        mean = mean * fade + tl.where(new > 0, new * x, 0.0)
        top = peak
    peak = tl.max(top, 0)
    fade = tl.exp(top - peak)
    whole = tl.sum(total * fade, 0)
    base = peak + tl.log(whole)
    tl.store(lse + row, base)
    tl.store(entropy + row, base - tl.sum(mean * fade, 0) / whole)
    tl.store(logp + row, tl.load(logits + row * size + tl.load(targets + row)) * heat - base)


@triton.jit
def _head_backward(logits, targets, lse, entropy, by_logp, by_entropy, out, size, heat, TILE: tl.constexpr):
    """d/dx of g·log p(target) + h·H, x the scores: heat · (g (1[target] − p) − h p (log p + H))."""
    row, part = tl.program_id(0).to(tl.int64), tl.program_id(1)
    at = part * TILE + tl.arange(0, TILE)
    x = tl.load(logits + row * size + at, mask=at < size, other=-1e30) * heat
    q = x - tl.load(lse + row)
    p = tl.exp(q)
    g, h = tl.load(by_logp + row), tl.load(by_entropy + row)
    found = g * (tl.where(at == tl.load(targets + row), 1.0, 0.0) - p)
    found -= h * tl.where(p > 0, p * (q + tl.load(entropy + row)), 0.0)
    tl.store(out + row * size + at, (heat * found).to(out.dtype.element_ty), mask=at < size)


class _HeadLogprobs(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> Any:
        count, size = len(hidden), len(weight)
        logp, entropy, lse = (torch.empty(count, device=hidden.device) for _ in range(3))
        for part in _spans(count, size):
            logits = _scores(hidden[part], weight)
            _head_forward[(len(logits),)](
                logits, targets[part], logp[part], entropy[part], lse[part], size, 1.0 / temperature, TILE=4096,
                num_warps=8,
            )  # fmt: skip
        ctx.save_for_backward(hidden, weight, targets, lse, entropy)
        ctx.temperature = temperature
        return logp, entropy

    @staticmethod
    def backward(ctx: Any, *grads: Any) -> Any:
        hidden, weight, targets, lse, entropy = ctx.saved_tensors
        size = len(weight)
        by_logp, by_entropy = (torch.zeros_like(lse) if g is None else g.float().contiguous() for g in grads)
        by_hidden = torch.empty_like(hidden)
        spans = _spans(len(hidden), size)
        by_weight: Tensor | None = None
        for part in spans:
            logits = _scores(hidden[part], weight)
            by_logits = torch.empty_like(logits, dtype=weight.dtype)
            _head_backward[(len(logits), triton.cdiv(size, 4096))](
                logits, targets[part], lse[part], entropy[part], by_logp[part], by_entropy[part], by_logits, size,
                1.0 / ctx.temperature, TILE=4096, num_warps=8,
            )  # fmt: skip
            del logits
            torch.mm(by_logits, weight, out=by_hidden[part])
            if ctx.needs_input_grad[1]:
                if len(spans) == 1:
                    by_weight = by_logits.t() @ hidden
                else:  # summed in 32 bits
                    more = _scores(by_logits.t(), hidden[part].t())
                    by_weight = more if by_weight is None else by_weight.add_(more)
        return by_hidden, None if by_weight is None else by_weight.to(weight.dtype), None, None


def _spans(count: int, size: int) -> list[slice]:
    each = max(LOGITS // size // 64 * 64, 64)
    return [slice(start, min(start + each, count)) for start in range(0, count, each)]


def _scores(hidden: Tensor, weight: Tensor) -> Tensor:
    if weight.dtype == torch.float32:
        return torch.mm(hidden, weight.t())
    return torch.mm(hidden, weight.t(), out_dtype=torch.float32)


def head_logprobs(hidden: Tensor, weight: Tensor, targets: Tensor, temperature: float) -> tuple[Tensor, Tensor]:
    """Log-prob of each target and entropy of each choice, [N], in 32 bits; the scores of all never exist at once."""
    head: Any = _HeadLogprobs
    with torch.autocast("cuda", enabled=False):  # weights of 32 bits are multiplied in 32
        found: tuple[Tensor, Tensor] = head.apply(hidden.to(weight.dtype).contiguous(), weight, targets, temperature)
    return found
