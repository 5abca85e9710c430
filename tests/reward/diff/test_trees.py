"""Trees: layout is not in them, errors are told, and what is unchanged is not walked."""

from __future__ import annotations

import sys
import time
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.reward.diff import edits, tamper, trees
from holdfast.reward.diff.trees import (
    Tree,
    both,
    kinds,
    language_of,
    line_changes,
    longest_increasing,
    normalise_newlines,
    parse,
    parsed,
    unparsed,
    without_stars,
)

PYTHON = "def f(a, b):\n    total = 0\n    for x in a:\n        if x > b:\n            total += x\n    return total\n"


@pytest.mark.parametrize(
    ("language", "one", "other", "is_same"),
    [
        ("python", "f(a,b)", "f(\n    a,\n    b,\n)", True),  # line breaks and a trailing comma
        ("python", "x = 'a'", 'x = "a"', True),  # quotes
        ("python", "return (a + b)", "return a + b", True),  # brackets that change nothing
        ("python", "x = 1; y = 2", "x = 1\n\n\ny = 2", True),  # blank lines
        ("javascript", "const a = 'x'", 'const a = "x";', True),
        ("typescript", "if (a) { return 1 }", "if (a) {\n  return 1;\n}", True),
        ("tsx", "<A b={c}/>", "<A\n  b={c}\n/>", True),
        ("python", "a > b", "a >= b", False),
        ("python", "(a + b) * c", "a + b * c", False),  # brackets that change something
        ("python", "x is None", "x is not None", False),
        ("python", "yield x", "yield from x", False),
        ("python", "def f(): pass", "async def f(): pass", False),
        ("python", "x = 'a'", "x = b'a'", False),
        ("python", "x = 'a b'", "x = 'a  b'", False),  # a space in a string is no layout
        ("python", "(a,)", "(a)", False),
        ("javascript", "a == b", "a === b", False),
        ("javascript", "for (x of y) {}", "for (x in y) {}", False),
        ("javascript", "let a = 1", "const a = 1", False),
        ("typescript", "let a: number", "let a: string", False),
        ("typescript", "a | b", "a & b", False),
    ],
)
def test_what_a_program_says_is_in_the_tree_and_its_layout_is_not(
    language: str, one: str, other: str, is_same: bool
) -> None:
    assert (parse(one, language).hash[0] == parse(other, language).hash[0]) is is_same


def test_a_node_and_all_below_it_are_one_range_and_lines_are_counted_from_one() -> None:
    tree = parse(PYTHON, "python")
    assert tree.size[0] == len(tree)
    for node in range(len(tree)):
        children = tree.children(node)
        assert tree.size[node] == 1 + sum(tree.size[child] for child in children)
        assert tree.height[node] == 1 + max((tree.height[child] for child in children), default=-1)
        assert all(tree.parent[child] == node for child in children)
    assert [tree.line[at] for at in range(len(tree)) if tree.kind[at] == "if_statement"] == [4]


@pytest.mark.parametrize(
    ("language", "text", "line"),
    [
        ("python", "x = 1\ndef f(:\n    pass\n", 2),
        ("javascript", "let a = 1;\nlet = = 2;\n", 2),
        ("tsx", "<A><B></A>", 1),
    ],
)
def test_an_error_is_told_with_its_line(language: str, text: str, line: int) -> None:
    tree = parse(text, language)
    assert tree.errors[0] == line
    assert tree.language == "text"  # words, not a tree that only looks like one


def test_unchanged_lines_and_methods_are_folded_and_what_changed_is_not() -> None:
    before = "".join(f"def f{at}(a):\n    return a + {at}\n\n\n" for at in range(500))
    found = both(before, before.replace("a + 250", "a - 250"), "python")
    assert len(found.before) < 20
    assert found.before.kind.count(trees.FOLDED) == found.after.kind.count(trees.FOLDED) >= 2
    assert "-" in found.after.text
    body = "".join(f"    def f{at}(self):\n        return {at}\n\n" for at in range(500))
    found = both(f"class A:\n{body}", f"class A:\n{body.replace('return 77', 'return 78')}", "python")
    assert len(found.before) < 30
    quoted = both("x = 1\ny = 2\nz = 3\n", '"""\nx = 1\ny = 2\nz = 3\n"""\n', "python")
    assert "docstring" in quoted.after.kind and "docstring" not in quoted.before.kind  # it opens over unchanged lines


def whole(tree: Tree) -> list[tuple[str, str]]:
    return list(zip(tree.kind, tree.text, strict=True))


@pytest.mark.parametrize(
    ("one", "other"), [("a + 3", "a * 3"), ("return a + 7", "if a:\n        return 1\n    return 2")]
)
def test_a_tree_made_from_the_one_before_is_the_tree_of_the_text(one: str, other: str) -> None:
    before = "".join(f"def f{at}(a):\n    return a + {at}\n\n\n" for at in range(60))
    after = before.replace(one, other).replace("a + 41", "a + 41 + 1")
    assert whole(both(before, after, "python", fold=False).after) == whole(parse(after, "python"))


def test_too_much_or_too_deep_to_walk_is_compared_by_lines_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    deep = "x = " + "[" * 300 + "]" * 300 + "\n"
    assert trees.both("x = 1\n", deep, "python").is_coarse
    assert not trees.both("x = 1\n", deep.replace("[" * 200, "").replace("]" * 200, ""), "python").is_coarse
    monkeypatch.setattr(trees, "MOST_NODES", 10)
    found = both(PYTHON, PYTHON.replace("total", "result").replace("x", "y"), "python")
    assert found.is_coarse
    assert set(found.after.kind) == {"text", "line"}


def test_kinds_are_those_of_the_grammar_with_its_tokens_or_lines_of_words() -> None:
    assert {">", "comparison_operator"} <= set(kinds("a > b", "python"))
    assert kinds("a\nb", "text") == ["line", "line"]
    tree = parse("one two\n\nthree", language_of("notes.txt"))
    assert list(tree.kind) == ["text", "line", "word", "word", "line", "word"]


def test_without_the_grammars_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_python", None)
    trees._grammar.cache_clear()
    trees._parsed.cache_clear()
    with pytest.raises(trees.NoParser, match=r"holdfast\[reward\]"):
        parse("x = 1", "python")
    trees._grammar.cache_clear()


def test_the_language_is_that_of_the_name() -> None:
    names = {"a/b.py": "python", "b.TSX": "tsx", "c.mjs": "javascript", "d.ts": "typescript", "README": "text"}
    assert {path: language_of(path) for path in names} == names


LINES = "".join(f"line {n}\n" for n in range(40_000))
LARGE = [  # before, after, path: what once took a minute
    ("a b\n", " ".join(f"w{n % 977}" for n in range(80_000)), "m.txt"),  # one line
    ("", LINES, "m.txt"),
    ("x=1\n", "x=a" + ".b()" * 3_200 + "\n", "m.py"),
    ("x=1\n", "x=[" + "1," * 40_000 + "]\n", "m.py"),
    ("x=1\n", "(" * 20_000, "m.py"),
    ("x=1\n", "x=" + "[" * 16_000 + "]" * 16_000 + "\n", "m.py"),
    ("x=1\n", "a.b=1\n" * 9_000, "m.py"),
    ("y=1;\n", "if(x==37){" * 2_000 + "return 4211" + "}" * 2_000, "m.js"),
    ("def test_a():\n" + "    assert f(1)\n" * 2_000, "def test_a():\n" + "    assert f(1)\n" * 2_001, "test_n.py"),
    ("x=1\n", "x = f(1, 2)\n" * 80_000, "m.py"),
]


@pytest.mark.parametrize(("before", "after", "path"), LARGE, ids=range(len(LARGE)))
def test_no_text_takes_long(before: str, after: str, path: str) -> None:
    known = {"test_m.py": "from m import f\n\n\ndef test_f():\n    assert f(37) == 4211\n"}
    started = time.process_time()
    edits.compare.__wrapped__(before, after, trees.language_of(path))
    tamper.inspect({path: (before, after)}, tests=known)
    assert time.process_time() - started < 10.0  # a minute is meant: the machine is shared, and tests are traced


def test_what_is_too_large_to_be_parsed_is_compared_by_lines_and_searched_by_words(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(trees, "MOST_BYTES", 3_000)
    before = "x = f(1, 2)\n" * 300
    found = trees.both(before, before.replace("x", "y", 1), "python")
    assert found.is_coarse and len(found.after) == 2
    assert edits.cost(before, before.replace("x", "y", 1)) == 0.5
    assert tamper.inspect({"m.py": (before, f"{before}y = 1\n")}) == ()
    assert [one.rule for one in tamper.inspect({"m.py": (before, f"{before}os._exit(0)\n")})] == ["exit"]
    tests = "def test_f():\n" + "    assert f(1)\n" * 300
    assert [one.rule for one in tamper.inspect({"test_m.py": (tests, tests[:-20])})] == ["test_weakened"]
    assert tamper.inspect({"test_m.py": (tests, f"{tests}    assert f(2)\n")}) == ()


texts = st.lists(st.sampled_from(["a", "b", "c", "d e", ""]), max_size=12)


@given(before=texts, after=texts)
def test_the_gaps_and_what_is_between_them_make_the_text_after(before: list[str], after: list[str]) -> None:
    made: list[str] = []
    at = there = 0
    for b0, b1, a0, a1 in line_changes(before, after):
        assert before[at:b0] == after[there:a0]
        made += [*before[at:b0], *after[a0:a1]]
        at, there = b1, a1
    assert before[at:] == after[there:]
    assert [*made, *before[at:]] == after


@pytest.mark.parametrize(
    ("before", "after", "gaps"),
    [
        ("a b", "a b", [[]]),
        ("a b c", "a x y c", [[(1, 2, 1, 3)]]),
        ("} one } two }", "} one } new } two }", [[(2, 2, 2, 4)], [(3, 3, 3, 5)]]),  # unique lines hold their place
    ],
)
def test_gaps_worked_by_hand(before: str, after: str, gaps: list[Any]) -> None:
    assert line_changes(before.split(), after.split()) in gaps


def test_many_equal_lines_do_not_take_quadratic_time() -> None:
    before = ["x = 1", "y = 2"] * 5_000
    after = [*before[:4_000], "z = 3", *before[4_001:]]
    began = time.process_time()
    assert line_changes(before, after) == [(4_000, 4_001, 4_000, 4_001)]
    before, after = [f"a{at % 7}" for at in range(9_000)], [f"b{at % 7}" for at in range(9_000)]
    assert line_changes(before, after) == [(0, 9_000, 0, 9_000)]  # nothing in common
    assert time.process_time() - began < 2.0


@given(st.lists(st.integers(0, 9), max_size=9))
def test_a_rising_subsequence_is_strict_and_as_long_as_any(values: list[int]) -> None:
    found = [values[at] for at in longest_increasing(values)]
    assert all(a < b for a, b in pairwise(found))
    longest = [0] * len(values)
    for at, value in enumerate(values):
        longest[at] = 1 + max((longest[b] for b in range(at) if values[b] < value), default=0)
    assert len(found) == max(longest, default=0)


@pytest.mark.parametrize(
    ("text", "wanted"),
    [
        ("z[*a] = 1", "z[+a] = 1"),
        ("é = b[*c, d]", "é = b[+c, d]"),  # places are counted in bytes
        ("def f():\n    return *a, b", "def f():\n    return +a, b"),
        ("for x in *a, b:\n    pass", "for x in +a, b:\n    pass"),
        ("def f(*a: *b): pass", "def f(*a: +b): pass"),
    ],
)
def test_such_stars_become_pluses(text: str, wanted: str) -> None:
    assert without_stars(text) == wanted


@pytest.mark.parametrize("text", ["a, *b = c", "f(*a)", "x = [*a]", "x = 1", "def f(:", "\0", "(" * 10_000])
def test_nothing_else_is_changed(text: str) -> None:
    assert without_stars(text) is None


def test_spellings_of_one_text() -> None:
    assert normalise_newlines("a\r\nb\rc\n") == "a\nb\nc\n"
    assert parsed("def f(:") is None  # what Python refuses has no other spelling
    assert (unparsed("def f(:"), unparsed("x=(1)")) == ("", "x = 1")
