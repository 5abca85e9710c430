"""What a patch earns: the hidden check decides, smallness shapes what is right, and tampering leaves nothing.

The hidden check runs in the sandbox, which is handed in; smallness and tampering are `reward`'s business, and the law
that puts them together is `reward.breakdown`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, is_repaired
from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.reward.breakdown import OutcomeGate, total
from holdfast.reward.diff import minimality, tamper
from holdfast.reward.diff.edits import Change, EditFinding

GUARD = OutcomeGate(name="coding@1", outcome="success", cap=0.5, vetoes=("tampering",))
MINIMALITY_WEIGHT = 0.4
SOURCE = "rule:hidden_calls@1"


def score(task: RepairTask, files: Mapping[str, str], sandbox: Sandbox) -> RewardBreakdown:
    """The breakdown of a tree that was handed in for a task."""
    return breakdown(task, files, is_right=is_repaired(task, dict(checked(files)), sandbox))


def breakdown(
    task: RepairTask, files: Mapping[str, str], *, is_right: bool, found: tuple[EditFinding, ...] | None = None
) -> RewardBreakdown:
    """The same, when the outcome, and perhaps what was found, is known already."""
    success = RewardTerm(name="success", value=float(is_right), source=SOURCE)
    found = findings(task, files) if found is None else found
    return total((success, *smallness(task, files), *tamper.signals(found)), GUARD)


def smallness(task: RepairTask, files: Mapping[str, str]) -> tuple[RewardTerm, ...]:
    """How close the code comes to the least repair. Tests that were added cost nothing, and earn nothing."""
    code = {path: texts for path, texts in change_of(task, files).items() if not tamper.is_check(path)}
    return minimality.signals(
        code, references={task.path: task.gold}, files=(task.path,), uses=(task.tests,), weight=MINIMALITY_WEIGHT
    )


def findings(task: RepairTask, files: Mapping[str, str]) -> tuple[EditFinding, ...]:
    """What of it works on the check instead of on the task."""
    return tamper.inspect(change_of(task, files), tests={task.tests_path: task.tests})


def change_of(task: RepairTask, files: Mapping[str, str]) -> Change:
    """Path → text before and after, of the files that differ."""
    paths = sorted({*task.files, *files})
    pairs = {path: (task.files.get(path), files.get(path)) for path in paths}
    return {path: (before, after) for path, (before, after) in pairs.items() if before != after}


def checked(files: Any) -> Mapping[str, str]:
    """What was handed in, if it is a tree of texts."""
    if not isinstance(files, Mapping) or not all(isinstance(one, str) for pair in files.items() for one in pair):
        raise BadInput("patch", why="is not an object of paths and texts", remedy='give {"path": "text", …}')
    return files
