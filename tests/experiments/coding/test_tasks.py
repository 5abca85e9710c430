"""Functions become files, files are broken in one place, and tasks are made of them."""

from __future__ import annotations

import ast
import random

import pytest

from experiments.coding.breakage import breakages
from experiments.coding.functions import answer, hidden_calls, source, visible_tests
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import RepairTask, catalogue, is_repaired, make
from holdfast.contracts.errors import BadInput
from tests.experiments.coding.scene import function


def test_a_function_becomes_a_file_with_the_imports_it_uses() -> None:
    text = source(function(catalogue(), "workdays_between"))
    assert text.startswith("from datetime import date, timedelta\n\n\ndef workdays_between(")
    assert source(function(catalogue(), "rotate")).startswith("def rotate(")
    assert "deque" in source(function(catalogue(), "steps_between")).splitlines()[0]
    assert all(source(one).isascii() and ast.parse(source(one)) for one in catalogue())


def test_every_file_passes_its_own_tests_and_the_hidden_calls(sandbox: Sandbox) -> None:
    for one in catalogue():
        files = {f"{one.name}.py": source(one), f"test_{one.name}.py": visible_tests(one)}
        assert sandbox.is_content(files), one.name
        assert sandbox.judge(files, hidden_calls(one, rng=random.Random(3))).is_passed, one.name


def test_hidden_calls_begin_with_the_examples_and_are_the_same_for_the_same_seed() -> None:
    one = function(catalogue(), "chunks")
    calls = hidden_calls(one, rng=random.Random(1), calls=5)
    assert calls == hidden_calls(one, rng=random.Random(1), calls=5)
    assert calls != hidden_calls(one, rng=random.Random(2), calls=5)
    assert calls.arguments[:4] == tuple(arguments for arguments, _ in one.examples)
    assert len(calls.arguments) == len(calls.expected) == 9
    assert (calls.expected[0].kind, calls.expected[3].kind, calls.expected[3].what) == ("value", "error", "ValueError")


def test_an_answer_leaves_the_arguments_alone() -> None:
    given = ([3, 1, 2],)
    assert answer(list.sort, given).what is None
    assert given == ([3, 1, 2],)


def test_calls_are_drawn_widely_enough_to_tell_values_apart() -> None:
    for one in catalogue():
        calls = hidden_calls(one, rng=random.Random(0))
        assert len({repr(answer) for answer in calls.expected}) >= 2, one.name


CASES = [  # kind, a line, what it may become
    ("boundary", "    return a < b", "    return a <= b"),
    ("operator", "    return a < b", "    return a > b"),
    ("operator", "    return a + b", "    return a - b"),
    ("operator", "    return (a - b) % b", "    return (a - b) // b"),
    ("operator", "    return a not in b", "    return a in b"),
    ("operator", "    return a and b", "    return a or b"),
    ("constant", "    return a + 7", "    return a + 8"),
    ("constant", "    return True", "    return False"),
    ("off by one", "    return a[1]", "    return a[0]"),
    ("off by one", "    return len(a)", "    return len(a) - 1"),
    ("wrong variable", "    return a", "    return b"),
    ("argument order", "    return pow(a, b)", "    return pow(b, a)"),
    ("wrong call", "    return min(a, b)", "    return max(a, b)"),
    ("negated condition", "    return 1 if not a else 2", "    return 1 if a else 2"),
    ("negated condition", "    return 1 if a == b else 2", "    return 1 if not (a == b) else 2"),
    ("dropped guard", "    if a:\n        return b\n    return a", "    return a"),
    ("dropped step", "    a += 1\n    return a", "    return a"),
]


@pytest.mark.parametrize(("kind", "line", "broken"), CASES)
def test_a_line_is_broken_in_a_way_of_its_kind(kind: str, line: str, broken: str) -> None:
    found = breakages(f"def f(a, b):\n{line}\n")
    assert f"def f(a, b):\n{broken}\n" in [one.text for one in found if one.kind == kind]


def test_every_known_function_can_be_broken_in_one_place_and_stays_code() -> None:
    for one in catalogue():
        good = source(one)
        found = breakages(good)
        assert len(found) >= 5, one.name
        assert len({broken.text for broken in found} | {good}) == len(found) + 1
        for broken in found:
            ast.parse(broken.text)
            before, after = good.splitlines(), broken.text.splitlines()
            if broken.kind.startswith("dropped"):
                gone = len(before) - len(after)
                assert before[: broken.line - 1] + before[broken.line - 1 + gone :] == after, (one.name, broken)
            else:
                changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
                assert changed == [broken.line - 1], (one.name, broken)


def test_the_line_is_where_the_edit_is() -> None:
    (one,) = [one for one in breakages("def f(a):\n    b = a\n    return b < 5\n") if one.kind == "boundary"]
    assert one.line == 3


def test_an_elif_is_not_torn_off_its_if() -> None:
    found = breakages("def f(a):\n    if a:\n        return 1\n    elif a is None:\n        return 2\n    return 3\n")
    assert not [one for one in found if one.kind == "dropped guard"]


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
