"""What generalised advantage estimation costs an element, against the same recursion as a numpy loop over time.

The cost is that of the whole call, checks included, in CPU time of this process: the least over many batches of calls,
because a busy neighbour can only add. Both are given the same arrays, with ends of both kinds in them, and agree.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import numpy as np

from holdfast.learn.returns import gae

SIZES = ((128, 8), (128, 64), (1024, 64))  # steps × environments; the second is the one the others are judged by
GAMMA, LAM = 0.99, 0.95

MEANINGS = {
    "gae_ns_per_element": "gae of 128 × 64 in float32, ns an element (CPU)",
    "gae_vs_numpy": "how many times a numpy loop over time takes as long, 128 × 64",
    "gae_ns_128x8": "128 × 8, where the call itself weighs most",
    "gae_ns_1024x64": "1024 × 64",
    "gae_ns_float64": "128 × 64 in float64",
}


def measure(quick: bool) -> dict[str, float]:
    """The figures of MEANINGS; quick ones rest on fewer repeats."""
    repeats = 40 if quick else 400
    ns = {(steps, columns): _ns(gae, batch(steps, columns), repeats) for steps, columns in SIZES}
    small, middle, large = (ns[size] for size in SIZES)
    loop = _ns(numpy_gae, batch(*SIZES[1]), repeats)
    wide = _ns(gae, batch(*SIZES[1], dtype=np.float64), repeats)
    return {
        "gae_ns_per_element": round(middle, 3),
        "gae_vs_numpy": round(loop / middle, 1),
        "gae_ns_128x8": round(small, 3),
        "gae_ns_1024x64": round(large, 3),
        "gae_ns_float64": round(wide, 3),
    }


def batch(steps: int, columns: int, dtype: Any = np.float32) -> dict[str, Any]:
    rng = np.random.default_rng(0)
    rewards, values, cut_values = rng.normal(size=(3, steps, columns)).astype(dtype)
    terminated, truncated = rng.random((2, steps, columns)) < 0.01
    return {
        "rewards": rewards,
        "values": values,
        "terminated": terminated,
        "truncated": truncated,
        "cut_values": cut_values,
        "end_values": rng.normal(size=columns).astype(dtype),
    }


def numpy_gae(
    rewards: Any,
    values: Any,
    *,
    terminated: Any,
    truncated: Any,
    cut_values: Any,
    end_values: Any,
    gamma: float,
    lam: float,
) -> tuple[Any, Any]:
    """What is written without a compiler: one row of all trajectories at a time."""
    advantages = np.empty_like(rewards)
    a_next, v_next = np.zeros_like(end_values), end_values
    for t in range(len(rewards) - 1, -1, -1):
        v_next = np.where(truncated[t], cut_values[t], v_next)
        v_next = np.where(terminated[t], 0.0, v_next)
        a_next = np.where(terminated[t] | truncated[t], 0.0, a_next)
        a_next = rewards[t] + gamma * v_next - values[t] + gamma * lam * a_next
        advantages[t], v_next = a_next, values[t]
    return advantages, advantages + values


def _ns(way: Callable[..., tuple[Any, Any]], arrays: dict[str, Any], repeats: int) -> float:
    """Least CPU nanoseconds an element, of calls in batches long enough for the clock."""
    expected = numpy_gae(**arrays, gamma=GAMMA, lam=LAM)[0]
    assert np.allclose(way(**arrays, gamma=GAMMA, lam=LAM)[0], expected, atol=1e-4), "the two ways differ"
    elements = arrays["rewards"].size
    calls = max(1, 40_000 // elements)
    least = float("inf")
    for _ in range(repeats):
        cpu = time.process_time_ns()
        for _ in range(calls):
            way(**arrays, gamma=GAMMA, lam=LAM)
        least = min(least, (time.process_time_ns() - cpu) / (calls * elements))
    return least
