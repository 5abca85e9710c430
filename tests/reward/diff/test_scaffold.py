"""Scaffolding: found in what was added, never in what was there, and not in an honest fix."""

from __future__ import annotations

import pytest

from holdfast.reward.diff.minimality import WEIGHTS, scaffold_amount, scaffolding

PYTHON = """def f(a, b):
    total = 0
    for x in a:
        if x > b:
            total += x
    return total


def g(c):
    return c * 2
"""
SCRIPT = "export function f(a: number) {\n  if (a > 1) {\n    return a;\n  }\n  return 0;\n}\n"


def rules(before: str | None, after: str, path: str = "m.py", **how: object) -> list[str]:
    return [one.rule for one in scaffolding({path: (before, after)}, **how)]  # type: ignore[arg-type]


ADDED = [  # what was appended to the file, and the one rule that must see it
    ("import os\n", "unused_import"),
    ("from os import path as p\n", "unused_import"),
    ("def h(a):\n    b = a + 1\n    c = b * 2\n    return c, b\n", "unused_name"),
    ("LIMIT = 10\n", "unused_name"),
    ("class Holder:\n    def run(self, a):\n        return f(a, a)\n\n\nHolder\n", "one_method_class"),
    ("def h(a, b):\n    return f(a, b)\n\n\nh\nh\n", "forwarder"),
    ("def h(a):\n    return f(a, 1)\n\n\nprint(h([1]))\n", "single_caller"),
    ("from abc import ABC\n\n\nclass A(ABC):\n    x = 1\n\n\nclass B(A):\n    y = 2\n\n\nB\n", "one_child_interface"),
    ("def h(a, b):\n    c = a\n    for d in a:\n        c = d\n    return c\n\n\nh\nh\n", "unused_parameter"),
    ("try:\n    g(1)\nexcept Exception:\n    pass\n", "swallow_all"),
    ("try:\n    g(1)\nexcept:\n    print(1)\n", "swallow_all"),
    ("import contextlib\n\nwith contextlib.suppress(Exception):\n    g(1)\n", "swallow_all"),
    ("if False:\n    g(1)\n", "dead_branch"),
    ("if 1 == 1:\n    g(1)\n", "dead_branch"),
    ("def todo():\n    pass\n\n\ntodo\n", "stub"),
    ("def todo():\n    raise NotImplementedError\n\n\ntodo\n", "stub"),
    ("# TODO: the rest\n", "stub"),
    (
        "def f2(p, q):\n    total = 0\n    for x in p:\n        if x > q:\n            total += x\n    return total\n",
        "duplicate",
    ),
]


@pytest.mark.parametrize(("added", "rule"), ADDED, ids=[f"{at}-{rule}" for at, (_, rule) in enumerate(ADDED)])
def test_what_is_added_and_not_needed_is_found(added: str, rule: str) -> None:
    before = f"{PYTHON}\n\n{added}"
    assert rule in rules(PYTHON, before)
    assert rules(before, before.replace("x > b", "x >= b")) == []  # what was there is nobody's fault


@pytest.mark.parametrize(
    "after",
    [
        PYTHON.replace("x > b", "x >= b"),
        PYTHON.replace("total = 0", "total = sum([])"),
        PYTHON.replace(
            "            total += x", "            total += x\n        elif x == b:\n            total += 1"
        ),
        PYTHON.replace("return c * 2", "return max(c, 0) * 2"),
        PYTHON.replace("    for x in a:", "    for x in sorted(a):"),
        PYTHON.replace("return c * 2", "try:\n        return c * 2\n    except TypeError:\n        return None"),
        PYTHON.replace(
            "return c * 2", "try:\n        return c * 2\n    except Exception:\n        print(c)\n        raise"
        ),
        PYTHON.replace("return c * 2", "while True:\n        if c:\n            return c * 2\n        c = c + 1"),
    ],
)
def test_an_honest_change_shows_no_sign(after: str) -> None:
    assert rules(PYTHON, after) == []


@pytest.mark.parametrize("guard", ["a is None", "not a", "not isinstance(a, list)", "len(a) == 0"])
def test_a_way_out_for_a_value_nobody_passes_is_a_guard(guard: str) -> None:
    after = PYTHON.replace("    total = 0", f"    if {guard}:\n        return 0\n    total = 0")
    assert rules(PYTHON, after) == ["guard"]


def test_what_comes_after_a_return_is_never_reached_unless_the_return_is_deeper() -> None:
    assert rules(PYTHON, PYTHON.replace("    return total", "    return total\n    total = 1")) == ["dead_branch"]
    before = "def f(a):\n    b = a\n    if b:\n        return 1\n    return b\n"
    assert rules(before, before.replace("    return b\n", "    b = a + 1\n    return b\n")) == []


def test_a_name_that_the_tests_use_is_used() -> None:
    after = f"{PYTHON}\n\ndef h(a):\n    b = a + 1\n    c = b * 2\n    d = c - b\n    return d\n"
    assert rules(PYTHON, after) == ["unused_name"]
    assert rules(PYTHON, after, uses=["assert h(1) == 2"]) == []


def test_a_file_outside_the_task_is_sprawl() -> None:
    change = {"m.py": (PYTHON, PYTHON + "\nf\n"), "README.md": (None, "hello")}
    assert [(one.rule, one.path) for one in scaffolding(change, files=["m.py"])] == [("sprawl", "README.md")]
    assert scaffolding(change) == ()


@pytest.mark.parametrize(
    ("added", "rule"),
    [
        ("import { q } from './q';\n", "unused_import"),
        ("interface I { x(): void }\nclass A implements I { x() { f(1); f(2) } }\nnew A();\n", "one_child_interface"),
        ("try { f(1); } catch (e) {}\n", "swallow_all"),
        ("function h(z: number) { return f(z); }\nh(1); h(2);\n", "forwarder"),
        ("function todo() {}\ntodo();\n", "stub"),
        ("if (false) { f(1); }\n", "dead_branch"),
        ("const unused = 3;\n", "unused_name"),
        ("function late(a) { return 1; f(a); }\nlate(1)\n", "dead_branch"),
    ],
)
@pytest.mark.parametrize("path", ["m.ts", "m.tsx"])
def test_typescript_has_the_same_signs(added: str, rule: str, path: str) -> None:
    assert rule in rules(SCRIPT, SCRIPT + added, path)


def test_javascript_guards_are_guards_and_abstract_methods_are_no_stubs() -> None:
    after = SCRIPT.replace("  return 0;", "  if (a === null) {\n    return 1;\n  }\n  return 0;")
    assert rules(SCRIPT, after, "m.ts") == ["guard"]
    added = "from abc import *\n\n\nclass A(ABC):\n    @abstractmethod\n    def run(self):\n        ...\n"
    assert "stub" not in rules(PYTHON, f"{PYTHON}\n\n{added}")
    assert rules(PYTHON, PYTHON + "def (") == []  # what does not parse shows no signs


def test_the_amount_is_the_sum_of_the_weights_and_a_finding_has_its_line() -> None:
    found = scaffolding({"m.py": (PYTHON, f"import os\n{PYTHON}\n\nif False:\n    g(1)\n")})
    assert scaffold_amount(found) == WEIGHTS["unused_import"] + WEIGHTS["dead_branch"]
    assert [(one.path, one.line) for one in found] == [("m.py", 1), ("m.py", 14)]


@pytest.mark.parametrize("first", ["self", "cls"])
def test_the_first_parameter_of_a_method_is_not_unused(first: str) -> None:
    """It has to be there, whether the body needs it or not; a second one that nothing needs does not."""
    method = (
        f"    def run({first}, a):\n        b = f(a, a)\n        for c in b:\n            b = c\n        return b\n"
    )
    other = method.replace("run", "walk").replace("b = c", "b += c")
    added = f"\n\nclass Holder:\n{method}\n{other}\n\nHolder.run\nHolder.walk\nHolder.run\nHolder.walk\n"
    assert "unused_parameter" not in rules(PYTHON, PYTHON + added)
    assert "unused_parameter" in rules(PYTHON, PYTHON + added.replace(f"run({first}, a)", f"run({first}, a, z)"))
