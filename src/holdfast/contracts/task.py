"""One task as its author wrote it: an input for the agent, and what is kept from the agent.

`rollout.Task` is what the queue takes: how often and for how long one execution of it may be tried. Reading tasks from
files, splitting them and looking for leaks is the business of `collect.tasks`.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.rollout import TASK_NAME_RULE, Split, is_task_name
from holdfast.contracts.similar import leaks, normalise, text_of

_encode = json.JSONEncoder(sort_keys=True, separators=(",", ":"), allow_nan=False).encode


def canonical(value: Any) -> str:
    """The one text for all ways to write the same JSON value; ValueError or TypeError if it is not JSON."""
    return _encode(value)


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskItem:
    """A task with its expected answer. A scorer gets all of it, the agent gets `for_agent()`.

    Agents written for plain dicts can read it like one: `task["prompt"]`, `task.get("prompt")` and `"prompt" in task`
    look into `input` where that is an object."""

    SCHEMA: ClassVar[int] = 1

    id: str  # unique among the tasks of a run; the queue's rule for names
    input: Any  # a JSON object, text, or a list such as chat messages
    expected: Any = None  # any JSON
    has_expected: bool = False  # tells "the expected answer is null" from "there is none"; any other value sets it
    split: Split | None = None  # None until it is assigned, and in what an agent sees
    family: str | None = None  # tasks made from one template or document: they stay in one split
    metadata: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not is_task_name(self.id):
            raise BadRecord(f"task id {self.id!r}", why=TASK_NAME_RULE)
        if self.expected is not None and not self.has_expected:
            object.__setattr__(self, "has_expected", True)

    def for_agent(self) -> TaskItem:
        """The task without what could give its answer away: expected answer, split, family and metadata."""
        return TaskItem(id=self.id, input=self.input)

    def row(self) -> dict[str, Any]:
        """The task as a JSON object that `from_row` and `collect.tasks.load` read back as the same task."""
        row: dict[str, Any] = {"id": self.id, "input": self.input}
        if self.has_expected:
            row["expected"] = self.expected
        if self.split is not None:
            row["split"] = self.split.value
        if self.family is not None:
            row["family"] = self.family
        if self.metadata:
            row["metadata"] = dict(self.metadata)
        return row

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> TaskItem:
        split = row.get("split")
        return cls(
            id=row["id"],
            input=row["input"],
            expected=row.get("expected"),
            has_expected="expected" in row,
            split=None if split is None else Split(split),
            family=row.get("family"),
            metadata=row.get("metadata") or {},
        )

    def __getitem__(self, key: str) -> Any:
        if not isinstance(self.input, Mapping):
            raise KeyError(f"{key!r}: the input of task {self.id} is {type(self.input).__name__}, not an object")
        return self.input[key]

    def get(self, key: str, default: Any = None) -> Any:
        return self.input.get(key, default) if isinstance(self.input, Mapping) else default

    def __contains__(self, key: object) -> bool:
        return isinstance(self.input, Mapping) and key in self.input

    def keys(self) -> list[str]:
        """The input's keys, so that `dict(task)` and `{**task}` copy the input."""
        return list(self.input) if isinstance(self.input, Mapping) else []

    def __iter__(self) -> Iterator[str]:
        return iter(self.keys())


KEYS = frozenset({"id", "input", "expected", "split", "family", "metadata"})  # of a row


def task_of(stored: Any) -> Any:
    """What a rollout was given, as its author wrote it: a TaskItem where it is the row of one, else as it is."""
    is_row = isinstance(stored, Mapping) and {"id", "input"} <= stored.keys() <= KEYS and isinstance(stored["id"], str)
    return TaskItem.from_row(stored) if is_row else stored


ASKING = ("prompt", "question", "task", "instruction", "message")  # usual names of what is asked


def asked_of(stored: Any) -> Any:
    """What a rollout's agent was asked, for people to read: a text of a usual name, or else all of the input."""
    task = task_of(stored)
    asked = task.input if isinstance(task, TaskItem) else task
    if isinstance(asked, Mapping):
        return next((asked[name] for name in ASKING if isinstance(asked.get(name), str)), asked)
    return asked


def task_texts(stored: Any) -> tuple[str, str]:
    """What is asked, and all of the input, without what is hidden: texts by which two tasks can be compared."""
    task = task_of(stored)
    given = task.input if isinstance(task, TaskItem) else task
    if isinstance(given, Mapping):
        given = {key: value for key, value in given.items() if key not in ("expected", "id", "split", "family")}
    asked, whole = text_of(asked_of(given)), text_of(given)
    return asked if normalise(asked) else whole, whole


def leaked_tasks(taught: Sequence[Any], held_out: Sequence[Any]) -> dict[int, frozenset[int]]:
    """The held-out tasks that are taught, each with the places of the tasks that ask the same of the same."""
    if not taught or not held_out:
        return {}
    ours, theirs = list(zip(*map(task_texts, taught), strict=True)), list(zip(*map(task_texts, held_out), strict=True))
    asked = leaks(ours[0], theirs[0])
    if ours[0] == ours[1] and theirs[0] == theirs[1]:  # nothing but text
        return asked
    whole = leaks(ours[1], theirs[1])
    both = {place: asked[place] & whole.get(place, frozenset()) for place in asked}
    return {place: some for place, some in both.items() if some}
