"""Whether a finding stays the same with other seeds, and with more of the same tasks.

The limits and the arithmetic are those of the M24 protocol: ranges over seeds, drift between neighbouring sizes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import pairwise
from math import isfinite
from typing import ClassVar

import numpy as np

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Band

SEED_P_VALUE_SPREAD, SEED_DELTA_SPREAD = 0.05, 0.05
SAMPLE_P_VALUE_SPREAD, SAMPLE_DELTA_SPREAD = 0.04, 0.08


@dataclass(frozen=True, slots=True, kw_only=True)
class SeedFinding:
    """What one comparison found, with which seed and on how many tasks."""

    SCHEMA: ClassVar[int] = 1

    seed: int
    sample_size: int = field(metadata={"minimum": 1})
    p_value: float = field(metadata={"minimum": 0, "maximum": 1})
    reward_delta: float

    def __post_init__(self) -> None:
        where = f"observation of seed {self.seed} with {self.sample_size} tasks"
        if self.sample_size < 1:
            raise BadInput(where, why="must be of at least one task")
        if not 0.0 <= self.p_value <= 1.0:
            raise BadInput(f"{where}: p_value = {self.p_value}", why="must be between 0 and 1")
        if not isfinite(self.reward_delta):
            raise BadInput(f"{where}: reward_delta = {self.reward_delta}", why="must be finite")


def seed_reproducibility(
    observations: Sequence[SeedFinding],
    sample_size: int,
    *,
    most_p_value_spread: float = SEED_P_VALUE_SPREAD,
    most_delta_spread: float = SEED_DELTA_SPREAD,
) -> Band:
    """Highest minus lowest p-value and gain of the runs of one size, which differ by their seeds."""
    runs = [seen for seen in observations if seen.sample_size == sample_size]
    if len(runs) < 2:
        raise BadInput(
            f"seed band at {sample_size} tasks",
            why=f"rests on {len(runs)} runs",
            remedy="measure with two seeds or more",
        )
    spreads = [float(np.ptp([getattr(run, name) for run in runs])) for name in ("p_value", "reward_delta")]
    return _band("seed", spreads, (most_p_value_spread, most_delta_spread), len(runs))


def sample_size_sensitivity(
    observations: Sequence[SeedFinding],
    seed: int,
    *,
    most_p_value_spread: float = SAMPLE_P_VALUE_SPREAD,
    most_delta_spread: float = SAMPLE_DELTA_SPREAD,
) -> Band:
    """The largest step of the mean p-value and of the mean gain from one size to the next larger one, of one seed."""
    by_size: dict[int, list[SeedFinding]] = defaultdict(list)
    for seen in observations:
        if seen.seed == seed:
            by_size[seen.sample_size].append(seen)
    if len(by_size) < 2:
        raise BadInput(
            f"sample band of seed {seed}", why=f"rests on {len(by_size)} sizes", remedy="measure with two sizes or more"
        )
    spreads = []
    for name in ("p_value", "reward_delta"):
        means = [float(np.mean([getattr(seen, name) for seen in by_size[size]])) for size in sorted(by_size)]
        spreads.append(max(abs(after - before) for before, after in pairwise(means)))
    return _band("sample", spreads, (most_p_value_spread, most_delta_spread), len(by_size))


def _band(kind: str, spreads: Sequence[float], most: tuple[float, float], of: int) -> Band:
    for limit in most:
        if not (isfinite(limit) and limit >= 0.0):
            raise BadInput(f"{kind} band: limit {limit}", why="must be finite and not negative")
    p_value_spread, delta_spread = spreads
    return Band(
        kind=kind,
        within=p_value_spread <= most[0] and delta_spread <= most[1],
        p_value_spread=p_value_spread,
        delta_spread=delta_spread,
        most_p_value_spread=most[0],
        most_delta_spread=most[1],
        of=of,
    )
