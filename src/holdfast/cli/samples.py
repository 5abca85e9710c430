"""Files of samples, as benchmarks leave them: a JSON list of numbers, or of objects that say more about each.

Numbers are paired by their place, objects by task and seed. What follows from them is `prove`'s business.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.contracts.evidence import Episode

REMEDY = 'give a list such as [0.4, 0.6] or [{"task": "t1", "seed": 1, "reward": 0.4}]'


def read_samples(path: Path, value: str) -> list[Episode]:
    """The episodes of a file, of which a bare number is the `value`: "reward" or "safety_penalty"."""
    from holdfast.contracts.evidence import Episode

    episodes = []
    for place, row in enumerate(_list(path)):
        if not isinstance(row, dict):
            row = {"task": f"sample-{place + 1}", "seed": 1, value: row}
        _check(row, f"samples {path}: $[{place}]", value)
        known = {name: row[name] for name in ("success", "latency_s", "tokens", "rollout") if name in row}
        episodes.append(
            Episode(
                task=row["task"],
                seed=row.get("seed", 1),
                reward=float(row.get("reward", 0.0)),
                safety_cost=float(row.get("safety_penalty", 0.0)),
                **known,
            )
        )
    if len({one.task for one in episodes}) < 2:
        raise BadInput(f"samples {path}", why="two tasks or more are needed", remedy=REMEDY)
    return episodes


def with_penalties(episodes: list[Episode], penalties: list[Episode], path: Path) -> list[Episode]:
    """The episodes with the safety penalties of another file."""
    from dataclasses import replace

    costs = {(one.task, one.seed): one.safety_cost for one in penalties}
    if costs.keys() != {(one.task, one.seed) for one in episodes} or len(costs) != len(penalties):
        why = f"{len(penalties)} penalties do not belong to the {len(episodes)} rewards one by one"
        raise BadInput(f"samples {path}", why=why, remedy="give one for each task and seed")
    return [replace(one, safety_cost=costs[one.task, one.seed]) for one in episodes]


def _list(path: Path) -> list[Any]:
    import json

    try:
        rows = json.loads(path.read_bytes())
    except OSError as error:
        raise BadInput(f"samples {path}", why=error.strerror or str(error), remedy="check the path") from None
    except (ValueError, RecursionError) as error:
        raise BadInput(f"samples {path}", why=f"is not JSON: {error}", remedy=REMEDY) from None
    if not isinstance(rows, list) or not rows:
        raise BadInput(f"samples {path}", why="is not a list, or an empty one", remedy=REMEDY)
    return rows


def _check(row: dict[str, Any], where: str, value: str) -> None:
    from holdfast.prove.reports.validate import SAMPLE

    for name in row:
        if name not in SAMPLE:
            raise BadInput(f"{where}.{name}", why="is unknown", remedy=f"use {', '.join(SAMPLE)}")
    for name, rule in SAMPLE.items():
        if name not in row and name not in ("task", value):
            continue
        why = rule(row[name]) if name in row else "is missing"
        if why is not None:
            raise BadInput(f"{where}.{name} = {row.get(name)!r}", why=why)
