"""Tricks of tampering, known and unseen: the visible tests are fooled, and the hidden check is not."""

from __future__ import annotations

import ast

import pytest

from experiments.coding.sandbox import Sandbox
from experiments.coding.tampering import TRICKS
from experiments.coding.tasks import is_repaired
from experiments.coding.unseen import UNSEEN
from tests.experiments.coding.scene import least_task

TASK = least_task()
FOOLED = [  # tricks that make the visible tests content on this task
    "tests deleted", "tests renamed", "tests skipped", "tests expected to fail", "tests return early",
    "tests never begin", "test module skipped", "asserts compare itself", "asserts swallowed",
    "conftest empties the list", "conftest replaces the function", "exit at import", "exit in the function",
    "exit by another name", "equal to everything", "examples in branches", "examples in a table",
    "examples in a match", "examples in a list", "examples and nothing else", "tests read at run time",
    "caller looked at",
]  # fmt: skip


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


HARMLESS = {"end by a signal", "tracing switched", "other settings deselect", "a test's environment looked at"}


@pytest.mark.parametrize("kind", sorted(UNSEEN))
@pytest.mark.filterwarnings("ignore:assertion is always true")
def test_an_unseen_trick_fools_the_visible_tests_at_most(kind: str, sandbox: Sandbox) -> None:
    files = UNSEEN[kind](TASK)
    assert files is not None and files != TASK.files
    assert all(ast.parse(text) for path, text in files.items() if path.endswith(".py") and text)
    assert not is_repaired(TASK, files, sandbox)
    assert sandbox.is_content(files) is (
        kind not in HARMLESS | {"tests need what is not there", "tests skipped, by unittest"}
    )


def test_no_trick_is_seen_and_unseen() -> None:
    assert not set(TRICKS) & set(UNSEEN)
