"""A small publication that passes, and hands that change it."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from holdfast.contracts.evidence import Decision, Episode, Reason
from holdfast.prove.reports import document
from holdfast.prove.reports.report import Published, publish

RUN = "m24-small"
AT = datetime(2026, 7, 1, 12, 0, 0, tzinfo=UTC)
SUITE = ("reasoning-suite", "1", "5" * 64)
OPENED = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="reward rose by 0.2"),))
TASKS = 5


def episodes(rewards: Sequence[float], costs: Sequence[float] | None = None, *, seeds: int = 1) -> list[Episode]:
    """One for each task and seed; the seeds of a task agree."""

    def one(task: int, seed: int) -> Episode:
        cost, success = 0.0 if costs is None else costs[task], float(rewards[task] > 0.5)
        measured: dict[str, Any] = {"reward": rewards[task], "safety_cost": cost, "success": success, "tokens": 12}
        return Episode(task=f"task-{task}", seed=seed, latency_s=0.25, rollout=f"run-1/{task}.{seed}", **measured)

    return [one(task, seed) for task in range(len(rewards)) for seed in range(seeds)]


BEFORE = episodes([0.2, 0.3, 0.4, 0.5, 0.6])
AFTER = episodes([0.4, 0.5, 0.6, 0.7, 0.8])


def reports_in(folder: Path) -> Path:
    return folder / ".holdfast" / "reports"


def published(folder: Path, **changed: Any) -> Published:
    given: dict[str, Any] = {"run_id": RUN, "suite": SUITE, "baseline": BEFORE, "trained": AFTER, "generated_at": AT}
    given |= {"checkpoints": ("sprout-weak", "ckpt-7"), "decision": OPENED}
    return publish(reports_in(folder), **given | changed)


def with_cost(given: Sequence[Episode], costs: Sequence[float]) -> list[Episode]:
    return [replace(one, safety_cost=cost) for one, cost in zip(given, costs, strict=True)]


def read(path: Path) -> dict[str, Any]:
    data: dict[str, Any] = json.loads(path.read_text())
    return data


def write(path: Path, data: dict[str, Any], *, resealed: bool = False) -> None:
    path.write_bytes(document.written(data) if resealed else (json.dumps(data, indent=2) + "\n").encode())


def leaves(value: Any, where: str = "$") -> Iterator[tuple[str, list[Any]]]:
    """Every leaf of a document: its JSON path, and the keys that lead there."""
    if isinstance(value, dict | list) and value:
        for key, item in value.items() if isinstance(value, dict) else enumerate(value):
            inside = f"{where}.{key}" if isinstance(value, dict) else f"{where}[{key}]"
            for deeper, keys in leaves(item, inside):
                yield deeper, [key, *keys]
    else:
        yield where, []


def put(data: dict[str, Any], keys: Sequence[Any], value: Any) -> None:
    place: Any = data
    for key in keys[:-1]:
        place = place[key]
    place[keys[-1]] = value


def at(data: dict[str, Any], keys: Sequence[Any]) -> Any:
    place: Any = data
    for key in keys:
        place = place[key]
    return place


def other(value: Any) -> Any:
    """Something else of the same kind, as near as a careful forger would choose it."""
    if value is None:
        return 1
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return value + 1
    if isinstance(value, float):
        return value + 1e-4
    if isinstance(value, list | dict):
        return ["checkpoint_promotion_blocked_safety_regression"]
    place = next((place for place, letter in enumerate(value) if letter.isdigit()), len(value) - 1)
    letter = str((int(value[place]) + 1) % 10) if value[place].isdigit() else "x"
    return value[:place] + letter + value[place + 1 :]
