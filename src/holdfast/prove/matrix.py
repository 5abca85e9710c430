"""From episodes to matrices: a row for each task, a column for each seed, and for every metric higher is better.

What was measured only in part is left out and named; what the numbers mean is the business of those who compare them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

import numpy as np
from numpy.typing import NDArray

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Scores

Matrix = NDArray[np.float64]  # [tasks, seeds]
Cells = Mapping[tuple[str, int], float | None]

METRICS: Mapping[str, Callable[[Episode], float | None]] = {
    "success": lambda episode: episode.success,
    "reward": lambda episode: episode.reward,
    "safety": lambda episode: -episode.safety_cost,
    "latency": lambda episode: None if episode.latency_s is None else -episode.latency_s,
    "cost": lambda episode: None if episode.tokens is None else -float(episode.tokens),
}


def scores(episodes: Sequence[Episode], metric: str, version: str) -> Scores:
    """The metric on every task that was measured with every seed, in order of arrival; `missing` names the others."""
    cells = _cells(episodes, metric)
    tasks, seeds = _axes(cells)
    whole = [task for task in tasks if all(cells.get((task, seed)) is not None for seed in seeds)]
    if not whole:
        raise BadInput(f"{metric} of {version}", why="no task was measured with every seed", remedy="measure more")
    values = _table(cells, whole, seeds)
    return Scores(
        version=version,
        metric=metric,
        tasks=tuple(whole),
        seeds=tuple(seeds),
        values=tuple(map(tuple, values.tolist())),
    )


def missing(baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str) -> dict[str, str]:
    """Which tasks cannot be compared, and why: what either has, but not both with every seed."""
    cells = {"baseline": _cells(baseline, metric), "candidate": _cells(candidate, metric)}
    seeds = _shared_seeds(*cells.values())
    found: dict[str, str] = {}
    for task in dict.fromkeys(task for side in cells.values() for task in _axes(side)[0]):
        for name, side in cells.items():
            lacking = [seed for seed in seeds if side.get((task, seed)) is None]
            if len(lacking) == len(seeds):
                found.setdefault(task, f"the {name} has no {metric} there")
            elif lacking:
                found.setdefault(task, f"the {name} has no {metric} with seed {', '.join(map(str, lacking))}")
    return found


def pairs(
    baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str
) -> tuple[tuple[str, ...], Matrix, Matrix]:
    """The tasks that both have with every seed that both use, in the baseline's order of arrival, and both matrices.

    There may be none of them: then both are empty.
    """
    tasks, _, before, after = paired_cells(baseline, candidate, metric)
    return tasks, before, after


def paired_cells(
    baseline: Sequence[Episode], candidate: Sequence[Episode], metric: str
) -> tuple[tuple[str, ...], tuple[int, ...], Matrix, Matrix]:
    """As `pairs`, with the seeds of the columns."""
    before, after = _cells(baseline, metric), _cells(candidate, metric)
    seeds = _shared_seeds(before, after)
    whole = tuple(
        task
        for task in _axes(before)[0]
        if seeds and all(side.get((task, seed)) is not None for side in (before, after) for seed in seeds)
    )
    return whole, seeds, _table(before, whole, seeds), _table(after, whole, seeds)


def _cells(episodes: Sequence[Episode], metric: str) -> dict[tuple[str, int], float | None]:
    if metric not in METRICS:
        raise BadInput(f"metric {metric!r}", why="is unknown", remedy=f"use one of {', '.join(METRICS)}")
    value = METRICS[metric]
    cells: dict[tuple[str, int], float | None] = {}
    for episode in episodes:
        if (episode.task, episode.seed) in cells:
            raise BadInput(
                f"episode of {episode.task} with seed {episode.seed}",
                why="is there twice, and only one can count",
                remedy="choose one without looking at its outcome",
            )
        cells[episode.task, episode.seed] = value(episode)
    return cells


def _axes(cells: Cells) -> tuple[list[str], list[int]]:
    return list(dict.fromkeys(task for task, _ in cells)), sorted({seed for _, seed in cells})


def _shared_seeds(before: Cells, after: Cells) -> tuple[int, ...]:
    return tuple(sorted({seed for _, seed in before} & {seed for _, seed in after}))


def _table(cells: Cells, tasks: Sequence[str], seeds: Sequence[int]) -> Matrix:
    rows = [[cells[task, seed] for seed in seeds] for task in tasks]
    return np.array(rows, np.float64).reshape(len(tasks), len(seeds))
