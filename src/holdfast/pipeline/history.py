"""Earlier tries of a version, found in the store: by the policy's account, which names every test and its tasks.

Only what is the same counts: the version's source, the content of a task, and the agent and the scorer by their
source. A model behind an address may change without a sign, so its earlier tries are not used.
"""

from __future__ import annotations

import hashlib
import inspect
import json
from collections.abc import Collection, Mapping, Sequence
from dataclasses import fields, is_dataclass
from functools import partial
from pathlib import Path
from typing import Any

from holdfast.contracts.errors import Lost, NotFound, StoreCorrupt
from holdfast.contracts.evidence import Episode
from holdfast.contracts.policy import Policy
from holdfast.contracts.release import PolicyKind
from holdfast.contracts.task import canonical
from holdfast.pipeline.context import StepContext
from holdfast.pipeline.held_out import HeldOut
from holdfast.pipeline.prove import looks_in, tried_in
from holdfast.promote.alpha_account import Charge
from holdfast.prove.history import earlier_tries
from holdfast.store.store import Store

MOST = 10_000  # parts that an agent and a scorer are described by


def setup_of(ctx: StepContext) -> str:
    """Hashes what an outcome depends on besides task and policy: the agent and the scorer. What has too
    many parts to be described, or changes while it is looked at, is like no other."""
    parts = _Parts()
    try:
        content = json.dumps([parts.of(one) for one in ctx.setup], sort_keys=True, default=str)
    except Exception:  # it is anybody's object, and may do anything when it is read
        content = ctx.run
    return hashlib.sha256((ctx.run if parts.count > MOST else content).encode()).hexdigest()


class _Parts:
    """What things are made of, each described once."""

    def __init__(self) -> None:
        self.count, self._seen = 0, list[Any]()  # kept, so that nothing else gets its id meanwhile
        self._ids = set[int]()

    def of(self, value: Any) -> Any:
        self.count += 1
        if value is None or isinstance(value, str | int | float | bool) or self.count > MOST:
            return value if isinstance(value, str | int | float | bool) else None
        if id(value) in self._ids:
            return type(value).__qualname__
        self._ids.add(id(value))
        self._seen.append(value)
        if isinstance(value, Mapping):
            return {str(key): self.of(one) for key, one in list(value.items())}
        if isinstance(value, list | tuple):
            return [self.of(one) for one in value]
        if isinstance(value, set | frozenset):
            return sorted(map(str, value))
        return self._made_of(value)

    def _made_of(self, value: Any) -> Any:
        if isinstance(value, partial):
            return [self.of(one) for one in (value.func, value.args, value.keywords)]
        if inspect.ismethod(value):
            return [value.__qualname__, self.of(value.__self__)]
        if inspect.isroutine(value) or isinstance(value, type):
            cells = () if isinstance(value, type) else getattr(value, "__closure__", None) or ()
            return [_named(value), [self.of(_content(cell)) for cell in cells]]
        names = [field.name for field in fields(value)] if is_dataclass(value) else list(getattr(value, "__dict__", {}))
        return [_named(type(value)), {name: self.of(getattr(value, name, None)) for name in names}]


def _content(cell: Any) -> Any:
    try:
        return cell.cell_contents
    except ValueError:  # nothing was put into it yet
        return None


def _named(value: Any) -> list[str]:
    """Its name, and the hash of the file that it is written in."""
    name = f"{getattr(value, '__module__', '')}.{getattr(value, '__qualname__', '')}"
    try:
        return [name, hashlib.sha256(Path(inspect.getfile(value)).read_bytes()).hexdigest()]
    except (OSError, TypeError):
        return [name]


def history_of(
    store: Store, line: str, policy: Policy, tasks: Sequence[HeldOut], setup: str, selected: Collection[str] = ()
) -> dict[str, Any]:
    """The record of each task's earlier tries by the version, by the task's id, and why others were left out. Those of
    `selected` tests are: a gate opened because they came out as they did."""
    if PolicyKind(policy.kind) is PolicyKind.PROMPT:
        return {"tasks": {}, "why": "its model answers from an address, and may have changed"}
    wanted = {content(task.input): task.id for task in tasks}
    found: dict[str, dict[str | None, Episode]] = {}  # by rollout: a run that goes on has those of before among its own
    others = 0
    for charge in (Charge.from_record(entry.body) for entry in store.releases.charges(line)):
        if policy.source not in (charge.baseline, charge.candidate) or (charge.continues or charge.key) in selected:
            continue
        if charge.setup != setup:
            others += 1
            continue
        names = _names(store, charge)
        for episode in _tries(store, charge, policy.source):
            if names.get(episode.task) in wanted:
                found.setdefault(wanted[names[episode.task]], {})[episode.rollout] = episode
    known = {task: earlier_tries(list(some.values())) for task, some in found.items()}
    records = {task: tries.record() for task, tries in known.items() if tries is not None}
    why = f"{others} earlier tests of it had another agent or another scorer" if others else ""
    return {"tasks": records, "why": why}


def content(task: Any) -> str:
    """A task as its agent and its scorer get it."""
    return hashlib.sha256(canonical(task).encode()).hexdigest()[:16]


def _names(store: Store, charge: Charge) -> dict[str, str]:
    """The content of each task of a test, by its id there."""
    try:
        kept: Mapping[str, Sequence[str]] = json.loads(store.blobs.get(charge.tasks))
    except (NotFound, StoreCorrupt):
        return {}
    return {name: one[1] for name, one in kept.items()}


def _tries(store: Store, charge: Charge, source: str) -> list[Episode]:
    """Reads the episodes of the version as far as the test was looked at; lost ones are left out."""
    try:
        steps = [step for step in store.steps.of_run(charge.run) if isinstance(step.body.get("episodes"), str)]
        steps = [step for step in steps if charge.iteration in (None, step.body.get("iteration"))]
        looks = looks_in(steps)
        before, after = tried_in(store, looks[-1]) if looks else ([], [])
    except (NotFound, Lost):
        return []
    return before if source == charge.baseline else after
