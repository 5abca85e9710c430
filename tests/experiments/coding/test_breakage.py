from __future__ import annotations

import ast

import pytest

from experiments.coding.breakage import breakages
from experiments.coding.functions import source
from experiments.coding.tasks import catalogue

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
    for function in catalogue():
        good = source(function)
        found = breakages(good)
        assert len(found) >= 5, function.name
        assert len({one.text for one in found} | {good}) == len(found) + 1
        for one in found:
            ast.parse(one.text)
            before, after = good.splitlines(), one.text.splitlines()
            if one.kind.startswith("dropped"):
                gone = len(before) - len(after)
                assert before[: one.line - 1] + before[one.line - 1 + gone :] == after, (function.name, one)
            else:
                changed = [place for place, pair in enumerate(zip(before, after, strict=True)) if pair[0] != pair[1]]
                assert changed == [one.line - 1], (function.name, one)


def test_the_line_is_where_the_edit_is() -> None:
    (one,) = [one for one in breakages("def f(a):\n    b = a\n    return b < 5\n") if one.kind == "boundary"]
    assert one.line == 3


def test_an_elif_is_not_torn_off_its_if() -> None:
    found = breakages("def f(a):\n    if a:\n        return 1\n    elif a is None:\n        return 2\n    return 3\n")
    assert not [one for one in found if one.kind == "dropped guard"]
