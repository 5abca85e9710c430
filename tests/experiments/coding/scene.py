"""What tests of the coding workload share."""

from __future__ import annotations

import random
from collections.abc import Callable, Iterable
from copy import deepcopy
from typing import Any

from experiments.coding.functions import Calls, Function, answer
from experiments.coding.tasks import RepairTask

SOURCE = "def least(a: int, b: int) -> int:\n    if a < b:\n        return a\n    return b\n"
TESTS = "from least import least\n\n\ndef test_example_1():\n    assert least(1, 2) == 1\n"


def function(functions: Iterable[Function], name: str) -> Function:
    return next(one for one in functions if one.name == name)


def agrees(one: Function, oracle: Callable[..., Any], draws: int = 200) -> None:
    """The function and another way to compute it say the same, type and all, and the examples are true."""
    rng = random.Random(7)
    for arguments, gives in one.examples:
        found = answer(one.call, arguments)
        assert found.what == (gives.__name__ if isinstance(gives, type) else answer(lambda: gives, ()).what)  # noqa: B023
    for _ in range(draws):
        arguments = one.draw(rng)
        assert answer(one.call, arguments) == answer(oracle, deepcopy(arguments)), arguments


def least_task(broken: str = SOURCE.replace("<", ">")) -> RepairTask:
    """A task that needs no sandbox to be made: the smaller of two numbers."""
    pairs = ((1, 2), (5, 3), (4, 4), (-1, 0))
    return RepairTask(
        id="least",
        function="least",
        kind="operator",
        path="least.py",
        tests_path="test_least.py",
        files={"least.py": broken, "test_least.py": TESTS},
        gold=SOURCE,
        hidden=Calls(
            module="least", function="least", arguments=pairs, expected=tuple(answer(min, pair) for pair in pairs)
        ),
    )
