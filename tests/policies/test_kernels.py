"""The compiled loops give what torch gives."""

from __future__ import annotations

import numpy as np
import torch
from torch.nn import functional as F

from holdfast.policies import cpu
from holdfast.policies.lm import norm, rotate

rng = np.random.default_rng(0)


def floats(*shape: int) -> np.ndarray:
    return rng.normal(size=shape).astype(np.float32)


def test_norms() -> None:
    x, y, weight = floats(5, 24), floats(5, 24), floats(24)
    found = np.empty_like(x)
    cpu.norm_rows(x, weight, found)
    np.testing.assert_allclose(found, norm(torch.from_numpy(x), torch.from_numpy(weight)), atol=1e-5)
    expected = norm(torch.from_numpy(x + y), torch.from_numpy(weight)).numpy()
    cpu.add_norm(x, y, weight)
    np.testing.assert_allclose(y, expected, atol=1e-5)


def test_the_gate_is_silu_for_numbers_of_any_size() -> None:
    up = floats(4, 38) * np.array([[1], [10], [100], [1e4]], np.float32)
    mid = np.empty((4, 19), np.float32)
    cpu.gate(up, mid)
    gate, passed = torch.from_numpy(up).chunk(2, dim=-1)
    np.testing.assert_allclose(mid, (F.silu(gate) * passed).numpy(), rtol=1e-5, atol=1e-5)


def test_attention_of_rows_of_different_length_that_lean_on_one_beginning() -> None:
    heads, head, tiles = 2, 12, 3
    keys, values = (np.zeros((3, heads, tiles, head, cpu.TILE), np.float32) for _ in range(2))
    history = floats(3, 150, 3, heads, head)  # rows, places, qkv
    history[1, :64] = history[0, :64]
    for slot in range(3):
        cpu.keep(history[slot], keys[slot], values[slot], 0)
    keys[1, :, 0] = np.nan  # lies in slot 0
    slots, bases, shared = np.array([1, 0, 2]), np.array([0, 0, 2]), np.array([64, 0, 0])
    places = np.array([140, 64, 3])
    now = floats(3, 3, heads, head)
    angle = np.arange(150)[:, None] * floats(head // 2)
    turns = np.cos(angle).astype(np.float32), np.sin(angle).astype(np.float32)
    heard, powers = np.empty((3, heads * head), np.float32), np.empty(192, np.float32)
    cpu.attend(
        now.reshape(3, -1).copy(), turns, keys, values, (slots, places, bases, shared),
        (np.empty(192, np.float32), powers, powers.view(np.int32)), heard,
    )  # fmt: skip
    for row, (slot, place) in enumerate(zip(slots, places, strict=True)):
        turn = (torch.from_numpy(t[place]) for t in turns)
        qk = rotate(torch.from_numpy(now[row, :2]), *turn)
        k = torch.cat([torch.from_numpy(history[slot, :place, 1]), qk[None, 1]]).transpose(0, 1)
        v = torch.from_numpy(np.concatenate([history[slot, :place, 2], now[row, None, 2]])).transpose(0, 1)
        expected = F.scaled_dot_product_attention(qk[0][:, None], k, v)
        np.testing.assert_allclose(heard[row], expected.reshape(-1), atol=1e-5)
        kept = np.empty((2, heads, place + 1, head), np.float32)
        cpu.recall(keys, values, (slot, bases[row], shared[row]), kept[0], kept[1])
        np.testing.assert_allclose(kept[0], k, atol=1e-6)
        np.testing.assert_array_equal(kept[1], v)
