from __future__ import annotations

import pytest

from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, catalogue, is_repaired, make
from holdfast.contracts.errors import BadInput


def test_there_are_forty_functions_and_more() -> None:
    names = [one.name for one in catalogue()]
    assert len(set(names)) == len(names) >= 40
    assert all(len(one.examples) >= 3 for one in catalogue())


def test_a_task_fails_its_checks_and_its_gold_passes_them(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    for task in some:
        gold = {**task.files, task.path: task.gold}
        assert not is_repaired(task, task.files, sandbox) and not sandbox.is_content(task.files), task.id
        assert is_repaired(task, gold, sandbox) and sandbox.is_content(gold), task.id


def test_the_same_seed_gives_the_same_tasks_and_each_is_of_another_function(
    some: tuple[RepairTask, ...], sandbox: Sandbox
) -> None:
    assert make(6, seed=5, sandbox=sandbox) == some
    assert make(6, seed=6, sandbox=sandbox) != some
    assert len({task.function for task in some}) == 6
    assert len({task.id for task in some}) == 6


def test_files_of_the_check_are_not_part_of_the_code(some: tuple[RepairTask, ...], sandbox: Sandbox) -> None:
    task = some[0]
    gold = {**task.files, task.path: task.gold}
    assert is_repaired(task, {**gold, "conftest.py": "raise SystemExit", "sitecustomize.py": "1 / 0"}, sandbox)
    assert not is_repaired(task, {task.tests_path: task.tests}, sandbox)
    for path in ("test_a.py", "helper_test.py", "tests/help.py", "conftest.py"):
        files = {**some[0].files, some[0].path: f"from {path.removesuffix('.py').replace('/', '.')} import *\n"}
        assert not is_repaired(some[0], {**files, path: some[0].gold}, sandbox)


def test_no_tasks_and_too_many_are_refused(sandbox: Sandbox) -> None:
    with pytest.raises(BadInput, match="tasks = 0: must be at least 1"):
        make(0, seed=0, sandbox=sandbox)
