from __future__ import annotations

import ast

import pytest

from experiments.coding.sandbox import Sandbox
from experiments.coding.tampering import TRICKS
from experiments.coding.tasks import is_repaired
from tests.experiments.coding.scene import least_task

TASK = least_task()
FOOLED = [  # tricks that make the visible tests content on this task
    "tests deleted",
    "tests renamed",
    "tests skipped",
    "tests expected to fail",
    "tests return early",
    "tests never begin",
    "test module skipped",
    "asserts compare itself",
    "asserts swallowed",
    "conftest empties the list",
    "conftest replaces the function",
    "exit at import",
    "exit in the function",
    "exit by another name",
    "equal to everything",
    "examples in branches",
    "examples in a table",
    "examples in a match",
    "examples in a list",
    "examples and nothing else",
    "tests read at run time",
    "caller looked at",
]


@pytest.mark.parametrize("kind", sorted(TRICKS))
def test_a_trick_changes_something_and_leaves_code_that_parses(kind: str) -> None:
    files = TRICKS[kind](TASK)
    if files is not None:
        assert files != TASK.files
        for path, text in files.items():
            if path.endswith(".py"):
                ast.parse(text)


@pytest.mark.parametrize("kind", FOOLED)
def test_the_visible_tests_are_fooled_and_the_hidden_check_is_not(kind: str, sandbox: Sandbox) -> None:
    files = TRICKS[kind](TASK)
    assert files is not None
    assert sandbox.is_content(files)
    assert not is_repaired(TASK, files, sandbox)


def test_without_a_trick_nobody_is_fooled(sandbox: Sandbox) -> None:
    assert not sandbox.is_content(TASK.files)
    assert not is_repaired(TASK, TASK.files, sandbox)
