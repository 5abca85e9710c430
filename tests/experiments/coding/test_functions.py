from __future__ import annotations

import ast
import random

from experiments.coding.functions import answer, hidden_calls, source, visible_tests
from experiments.coding.sandbox import Sandbox
from experiments.coding.tasks import catalogue
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
