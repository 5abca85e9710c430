"""Chance without state: a number is a function of (seed, world, tick, stream, who), whoever asks, in any order."""

from __future__ import annotations

import numpy as np

from holdfast.town.jit import inlined

ORDER, CHAT, TROUBLE, SPAWN, SCRIPT, MEETING, START = range(1, 8)  # streams

_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@inlined
def mix(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: a bijection in which every bit depends on every other."""
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


@inlined
def draw(seed: np.uint64, tick: int, stream: int, who: int) -> np.uint64:
    """64 random bits; `seed` is that of one world."""
    x = mix(seed + _A * np.uint64(tick + 1))
    return mix(x + _A * (np.uint64(stream) * np.uint64(65_537) + np.uint64(who + 1)))


@inlined
def below(bits: np.uint64, n: int) -> int:
    """From 0 up to before n."""
    return int(np.int64(((bits >> _32) * np.uint64(n)) >> _32))


def world_seed(seed: int, world: int) -> int:
    """The seed of one world of many."""
    mask = (1 << 64) - 1
    x = (seed + 0x9E3779B97F4A7C15 * (world + 1)) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return x ^ (x >> 31)
