"""Published proofs: episodes made of chance, put on disk by the code that publishes."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np

from holdfast.contracts.evidence import Episode
from holdfast.prove.reports.report import publish

RUN = "m24-run-7-c0ffee-2"
FAMILIES = ("lookup", "chain", "missing", "trivial")


def episodes(
    rate: float, *, tasks: int, seeds: int = 2, cost: float = 0.0, salt: int = 0, names: Sequence[str] = ()
) -> list[Episode]:
    """Each task succeeds with this chance, some more and some less; `cost` of them are unsafe."""
    hard, rng = np.random.default_rng(5).uniform(-0.2, 0.2, tasks), np.random.default_rng([8, salt])
    found = []
    for task in range(tasks):
        for seed in range(1, seeds + 1):
            success = float(rng.random() < np.clip(rate + hard[task], 0.0, 1.0))
            found.append(
                Episode(
                    task=names[task] if names else f"{FAMILIES[task % 4]}-{task:05d}",
                    seed=seed,
                    reward=0.8 * success + 0.1,
                    success=success,
                    safety_cost=float(rng.random() < cost),
                    latency_s=float(rng.gamma(4.0, 0.3)),
                    tokens=int(rng.integers(200, 900)),
                )
            )
    return found


def published(
    state: Path, *, rates: tuple[float, float] = (0.4, 0.6), tasks: int = 60, run: str = RUN, **given: Any
) -> Path:
    """The proof of a candidate with the second rate against a baseline with the first."""
    costs, names, seeds = (given.pop(key, other) for key, other in (("costs", (0.0, 0.0)), ("names", ()), ("seeds", 2)))
    before, after = (
        episodes(rate, tasks=tasks, seeds=seeds, cost=cost, salt=salt, names=names)
        for salt, (rate, cost) in enumerate(zip(rates, costs, strict=True))
    )
    asked: dict[str, Any] = {
        "suite": ("tooluse-3", "1", "3f2a9c00" * 8),
        "checkpoints": ("sprout@1", "sprout@2"),
        "generated_at": datetime(2026, 3, 4, 5, 6, 7, tzinfo=UTC),
    }
    found = publish(state / "reports", run_id=run, baseline=before, trained=after, **asked | given)
    return found.paths["proof"]
