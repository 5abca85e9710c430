"""The loops of decoding on a CPU, compiled: attention of one token for many rows, norms, gates.

Keys and values lie in tiles of TILE places, [heads, tiles, head, TILE], so that both sums of attention run straight
through memory. A row's first `shared` places, whole tiles, may lie in another slot, its base. What the arrays mean to a
model is in `cpu`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TypeVar, cast

import numpy as np
from numba import njit
from numpy.typing import NDArray

from holdfast.policies.lm import EPSILON
from holdfast.policies.slots import GRAIN

Floats = NDArray[np.float32]
Ints = NDArray[np.int64]
Scratch = tuple[Floats, Floats, NDArray[np.int32]]  # scores, powers, and the powers' bits
Loop = TypeVar("Loop", bound=Callable[..., object])

TILE = GRAIN
f32 = np.float32


def compiled(loop: Loop) -> Loop:
    return cast(Loop, njit(cache=True, nogil=True, fastmath=True, error_model="numpy")(loop))


@compiled
def norm(x: Floats, weight: Floats, y: Floats) -> None:
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

    Two factors, since only arrays can be seen as bits here. The compiler makes vectors of this, and not of `np.exp`.
    """
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

    Head by head, so that rows that lean on one beginning find it in the nearest memory.
    """
    slots, places, bases, shared = where
    cos, sin = turns
    heads, head = keys.shape[1], keys.shape[3]
    half, width = head // 2, heads * head
    q, k = np.empty(head, np.float32), np.empty(head, np.float32)
    scores = scratch[0]
    scale = f32(1) / np.sqrt(f32(head))
    for h in range(heads):
        at = h * head
        for row in range(qkv.shape[0]):
            slot, place, base, border = slots[row], places[row], bases[row], shared[row] // TILE
            self_score = f32(0)
            for d in range(half):
                c, s = cos[place, d] * scale, sin[place, d] * scale
                a, b = qkv[row, at + d], qkv[row, at + half + d]
                q[d], q[half + d] = a * c - b * s, a * s + b * c
                c, s = cos[place, d], sin[place, d]
                a, b = qkv[row, width + at + d], qkv[row, width + at + half + d]
                k[d], k[half + d] = a * c - b * s, a * s + b * c
                self_score += q[d] * k[d] + q[half + d] * k[half + d]
            tiles = place // TILE + 1
            for part in range(2):  # first what lies in the base, then its own
                first, last = (0, border) if part == 0 else (border, tiles)
                _score(q, keys[base if part == 0 else slot, h], first, last, scores)
            scores[place] = self_score
            total = _soften(place + 1, scratch)
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
                to[d] = (to[d] + weight * value) / total
                kt[d, lane], vt[d, lane] = k[d], value


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
    scores, powers, bits = scratch
    top0 = top1 = top2 = top3 = scores[0]
    for t in range(0, n - 3, 4):
        top0, top1 = max(top0, scores[t]), max(top1, scores[t + 1])
        top2, top3 = max(top2, scores[t + 2]), max(top3, scores[t + 3])
    for t in range(n - n % 4, n):
        top0 = max(top0, scores[t])
    exponents(scores, n, max(top0, top1, top2, top3), bits)
    total = f32(0)
    for t in range(n):
        scores[t] *= powers[t]
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
def keep(qkv: Floats, keys: Floats, values: Floats, start: int) -> None:
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
