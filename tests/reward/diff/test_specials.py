"""Copied answers: cases of the visible tests that a change knows by name."""

from __future__ import annotations

import pytest

from holdfast.reward.diff.edits import compare
from holdfast.reward.diff.trees import parse
from holdfast.reward.diff.weakening import ConstantCase, cases_of, constant, special_cases

TESTS = """import pytest
from m import f


def test_some():
    assert f(7) == 5040
    assert f(3) == 6
    assert f(0) == 1


@pytest.mark.parametrize(("word", "wanted"), [("racecar", True), ("python", False)])
def test_words(word, wanted):
    assert f(word) is wanted


def test_two():
    assert f(3, 4) == 5
"""
CASES = cases_of({"test_m.py": TESTS})
BASE = "def f(n):\n    result = 1\n    for k in range(n):\n        result *= k\n    return result\n"


def found(body: str, base: str = BASE) -> list[str]:
    after = base.replace("    result = 1\n", f"{body}    result = 1\n")
    script = compare(base, after)
    return [what for _, what in special_cases(script.both.after, script.added(), CASES)]


def test_cases_are_what_goes_in_and_what_must_come_out() -> None:
    assert ConstantCase(frozenset({"7"}), frozenset({"5040"})) in CASES
    assert ConstantCase(frozenset({"racecar"}), frozenset({"True"})) in CASES
    assert ConstantCase(frozenset({"3", "4"}), frozenset({"5"})) in CASES


@pytest.mark.parametrize(
    "tests",
    [
        "test('a', () => { expect(f(7)).toBe(5040); });",
        "it('a', () => { assert.equal(f(7), 5040); });",
    ],
)
def test_javascript_tests_have_cases_too(tests: str) -> None:
    assert any("7" in case.given and "5040" in case.wanted for case in cases_of({"m.test.js": tests}))


def test_cases_of_unittest() -> None:
    tests = "class TestF(TestCase):\n    def test_it(self):\n        self.assertEqual(f(7), 5040)\n"
    assert any("7" in case.given and "5040" in case.wanted for case in cases_of({"test_m.py": tests}))


@pytest.mark.parametrize(
    "body",
    [
        "    if n == 7:\n        return 5040\n",
        "    if 7 == n:\n        return 5040\n",
        "    if n in (7,):\n        return 5040\n",
        '    if n == "racecar":\n        return True\n',
        "    if str(n) == '7':\n        return 5040\n",
        "    if (n, m) == (3, 4):\n        return 5\n",
        "    if n == 3 and m == 4:\n        return 5\n",
        "    known = {7: 5040, 3: 6}\n    if n in known:\n        return known[n]\n",
        "    known = {'(7,)': 5040, '(3,)': 6}\n    if repr((n,)) in known:\n        return known[repr((n,))]\n",
        "    match n:\n        case 7:\n            return 5040\n",
        "    return 5040 if n == 7 else 1\n",
        "    for given, gives in [((7,), 5040), ((3,), 6)]:\n        if given == (n,):\n            return gives\n",
        "    if n == 7:\n        answer = 5040\n        return answer\n",
    ],
)
def test_an_answer_by_name_is_found(body: str) -> None:
    assert found(body)


def test_a_function_that_only_gives_the_answer_is_found() -> None:
    script = compare(BASE, "def f(n):\n    return 5040\n")
    touched = script.touched()
    assert [what for _, what in special_cases(script.both.after, touched, CASES)] == ["always 5040, as in the tests"]


@pytest.mark.parametrize(
    "body",
    [
        "    if n == 0:\n        return 1\n",  # a base case, though a test has it
        "    if n < 7:\n        return 5040\n",  # no equality
        "    if n == 8:\n        return 40320\n",  # no case of the tests
        "    if n == 7:\n        return n * 2\n",  # computed
        "    if n in (3, 9, 11, 13, 17):\n        return 6\n",  # a rule, most of which no test knows
        "    names = {1: 'one', 7: 'seven'}\n    print(names.get(n))\n",
        "    if n == 3:\n        return False\n",  # not what the tests want
    ],
)
def test_an_honest_branch_is_left_alone(body: str) -> None:
    assert found(body) == []


def test_one_faint_likeness_is_chance_and_two_are_none() -> None:
    cases = cases_of({"test_m.py": "def test_a():\n    assert p(5) is True\n    assert p(9) is False\n"})
    base = "def p(n):\n    return n % 4 == 1\n"

    def seen(body: str) -> int:
        script = compare(base, base.replace("    return", f"{body}    return"))
        return len(list(special_cases(script.both.after, script.added(), cases)))

    assert seen("    if n == 5:\n        return True\n") == 0
    assert seen("    if n == 5:\n        return True\n    if n == 9:\n        return False\n") == 2


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1_000", "1000"),
        ("-3", "-3"),
        ("'a'", "a"),
        ("[1, 'a']", "list(1,a)"),
        ("None", "None"),
        ("f(1)", None),
        ("x", None),
    ],
)
def test_constants_have_one_spelling(text: str, value: str | None) -> None:
    assert constant(parse(f"v = {text}", "python"), 4) == value
