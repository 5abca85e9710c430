from __future__ import annotations

import ast

import pytest

from experiments.coding.sandbox import Sandbox
from experiments.coding.tampering import TRICKS
from experiments.coding.tasks import is_repaired
from experiments.coding.unseen import UNSEEN
from tests.experiments.coding.scene import least_task

TASK = least_task()
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
