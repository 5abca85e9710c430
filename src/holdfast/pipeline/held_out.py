"""Held-out tasks, and the order in which they are measured: mixed by a seed, families side by side, copies as one.

A file is often sorted, by family or from easy to hard, and a test that may stop early would be about its beginning.
Copies of one task, and tasks that belong together (one document, one user), are one unit: they are measured one after
another, and what is proved counts them once. The order is kept with the run, so a resumed one has the same.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from hashlib import sha256
from typing import Any

import numpy as np

from holdfast.contracts.errors import BadInput
from holdfast.contracts.similar import near_duplicates, normalise, numbers, text_of
from holdfast.contracts.task import TaskItem, canonical, task_of

CLUSTERS = ("cluster", "user", "document")  # in a task's metadata: which tasks are not independent of one another
FAMILIES = ("family", "group")
FRAME = 0.5  # words around more than this share of the tasks do not make them alike


@dataclass(frozen=True, slots=True, kw_only=True)
class HeldOut:
    """One task that is measured: what it is called in evidence, and what the agent gets."""

    id: str
    input: Any
    rng_key: str | None = None  # names its chance; None: its id
    unit: str | None = None  # shared by tasks that count as one; None: it counts alone

    def record(self) -> dict[str, Any]:
        named = {"chance": self.rng_key, "unit": self.unit}
        return {
            "id": self.id,
            "input": self.input,
            **{name: value for name, value in named.items() if value is not None},
        }

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> HeldOut:
        return cls(id=record["id"], input=record["input"], rng_key=record.get("chance"), unit=record.get("unit"))


def mixed(tasks: Sequence[HeldOut], *, seed: str, cluster: str | None = None) -> list[HeldOut]:
    """The tasks in the order in which they are measured, each with its unit where it shares one.

    `cluster` is the key that says which tasks belong together, in the task or its metadata; without it the usual names
    in the metadata count."""
    return shuffled(tasks, united(tasks, cluster), seed=seed)


def check_cluster(tasks: Sequence[HeldOut], cluster: str | None) -> None:
    """Whether the key divides the tasks at all; to be asked before any work."""
    if cluster is None:
        return
    named = {_cluster(task, cluster) for task in tasks}
    remedy = "name a key of the tasks, or of their metadata, in which they differ"
    if named == {None}:
        raise BadInput(f"cluster = {cluster!r}", why=f"none of {len(tasks)} held-out tasks has it", remedy=remedy)
    if len(named) < 2:
        raise BadInput(f"cluster = {cluster!r}", why=f"all {len(tasks)} held-out tasks are of one", remedy=remedy)


def shuffled(tasks: Sequence[HeldOut], united: Sequence[str], *, seed: str) -> list[HeldOut]:
    """Shuffles the tasks by the seed and spreads families evenly; `united` names the unit of each task."""
    units: dict[str, list[HeldOut]] = defaultdict(list)
    for task, unit in zip(tasks, united, strict=True):
        units[unit].append(task)
    families: dict[str, list[str]] = defaultdict(list)
    for unit, some in units.items():
        families[_family(some[0])].append(unit)
    rng = np.random.default_rng(int.from_bytes(sha256(seed.encode()).digest()[:8]))
    places: dict[str, float] = {}
    for name in sorted(families):  # each family spread evenly over the whole: every part of it is like the whole
        shuffled = [families[name][at] for at in rng.permutation(len(families[name]))]
        places |= {unit: (at + rng.random()) / len(shuffled) for at, unit in enumerate(shuffled)}
    return [
        replace(task, unit=unit if len(units[unit]) > 1 else None)
        for unit in sorted(units, key=lambda one: places[one])
        for task in units[unit]
    ]


def batches(tasks: Sequence[HeldOut], size: int) -> list[list[HeldOut]]:
    """Parts of about so many tasks. No unit is in two of them: what was looked at does not change afterwards."""
    parts: list[list[HeldOut]] = []
    for task in tasks:
        is_same = bool(parts) and task.unit is not None and parts[-1][-1].unit == task.unit
        if not parts or (len(parts[-1]) >= size and not is_same):
            parts.append([])
        parts[-1].append(task)
    return parts


def copies(tasks: Sequence[HeldOut]) -> list[int | None]:
    """Finds for each task the first one that it copies, ignoring case, punctuation and a few words of many."""
    texts, keys = [], []
    for task in tasks:
        asked, expected = _asked(task)
        texts.append(text_of(asked))
        # A copy has the same numbers, too: tasks of one template may differ in nothing else.
        keys.append((expected, numbers(normalise(texts[-1]))))
    return near_duplicates(texts, keys=keys, frame=FRAME)


def united(tasks: Sequence[HeldOut], cluster: str | None = None) -> list[str]:
    """Finds for each task the first one of its unit: of the same cluster, a copy, or both."""
    head = list(range(len(tasks)))  # of each task an earlier one of its unit, or itself

    def first(place: int) -> int:
        while head[place] != place:
            place = head[place]
        return place

    clusters: dict[str, int] = {}
    for place, (task, copy) in enumerate(zip(tasks, copies(tasks), strict=True)):
        named = _cluster(task, cluster)
        for other in (copy, None if named is None else clusters.setdefault(named, place)):
            if other is not None:
                low, high = sorted((first(place), first(other)))
                head[high] = low
    return [tasks[first(place)].id for place in range(len(tasks))]


def _asked(task: HeldOut) -> tuple[Any, str]:
    """Splits a task into question and expected answer: the same question with another answer is no copy."""
    item = task_of(task.input)
    if isinstance(item, TaskItem):
        return item.input, canonical(item.expected) if item.has_expected else ""
    if not isinstance(item, Mapping):
        return item, ""
    question = {name: value for name, value in item.items() if name not in ("expected", "id", "metadata", "seed")}
    return question, canonical([item.get("expected"), item.get("seed")])


def _about(task: HeldOut) -> Mapping[str, Any]:
    item = task_of(task.input)
    if isinstance(item, TaskItem):
        return {**item.metadata, **({} if item.family is None else {"family": item.family})}
    found = item.get("metadata") if isinstance(item, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def _named(told: Mapping[str, Any], names: Sequence[str]) -> str | None:
    return next((canonical([name, told[name]]) for name in names if told.get(name) is not None), None)


def _cluster(task: HeldOut, cluster: str | None) -> str | None:
    if cluster is None:
        return _named(_about(task), CLUSTERS)
    given = task_of(task.input)
    asked = given.input if isinstance(given, TaskItem) else given
    return _named({**(asked if isinstance(asked, Mapping) else {}), **_about(task)}, (cluster,))


def _family(task: HeldOut) -> str:
    given = task_of(task.input)
    beside = given if isinstance(given, Mapping) else {}
    return _named({**{name: beside[name] for name in FAMILIES if name in beside}, **_about(task)}, FAMILIES) or ""
