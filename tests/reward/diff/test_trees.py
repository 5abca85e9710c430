"""Trees: layout is not in them, errors are told, and what is unchanged is not walked."""

from __future__ import annotations

import sys
import time

import pytest

from holdfast.reward.diff import edits, tamper, trees
from holdfast.reward.diff.trees import Tree, both, kinds, language_of, parse

PYTHON = "def f(a, b):\n    total = 0\n    for x in a:\n        if x > b:\n            total += x\n    return total\n"


def same(one: str, other: str, language: str) -> bool:
    return parse(one, language).hash[0] == parse(other, language).hash[0]


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("python", "f(a,b)", "f(\n    a,\n    b,\n)"),  # line breaks and a trailing comma
        ("python", "x = 'a'", 'x = "a"'),  # quotes
        ("python", "return (a + b)", "return a + b"),  # brackets that change nothing
        ("python", "x = 1; y = 2", "x = 1\n\n\ny = 2"),  # blank lines
        ("javascript", "const a = 'x'", 'const a = "x";'),
        ("typescript", "if (a) { return 1 }", "if (a) {\n  return 1;\n}"),
        ("tsx", "<A b={c}/>", "<A\n  b={c}\n/>"),
    ],
)
def test_layout_is_not_in_the_tree(language: str, one: str, other: str) -> None:
    assert same(one, other, language)


@pytest.mark.parametrize(
    ("language", "one", "other"),
    [
        ("python", "a > b", "a >= b"),
        ("python", "(a + b) * c", "a + b * c"),  # brackets that change something
        ("python", "x is None", "x is not None"),
        ("python", "yield x", "yield from x"),
        ("python", "def f(): pass", "async def f(): pass"),
        ("python", "x = 'a'", "x = b'a'"),
        ("python", "x = 'a b'", "x = 'a  b'"),  # a space in a string is no layout
        ("python", "(a,)", "(a)"),
        ("javascript", "a == b", "a === b"),
        ("javascript", "for (x of y) {}", "for (x in y) {}"),
        ("javascript", "let a = 1", "const a = 1"),
        ("typescript", "let a: number", "let a: string"),
        ("typescript", "a | b", "a & b"),
    ],
)
def test_what_a_program_says_is_in_the_tree(language: str, one: str, other: str) -> None:
    assert not same(one, other, language)


def test_a_node_and_all_below_it_are_one_range() -> None:
    tree = parse(PYTHON, "python")
    assert tree.size[0] == len(tree)
    for node in range(len(tree)):
        children = tree.children(node)
        assert tree.size[node] == 1 + sum(tree.size[child] for child in children)
        assert tree.height[node] == 1 + max((tree.height[child] for child in children), default=-1)
        assert all(tree.parent[child] == node for child in children)


def test_lines_are_counted_from_one() -> None:
    tree = parse(PYTHON, "python")
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


def test_what_is_no_program_is_lines_of_words() -> None:
    tree = parse("one two\n\nthree", language_of("notes.txt"))
    assert list(tree.kind) == ["text", "line", "word", "word", "line", "word"]


def test_unchanged_lines_are_folded_and_what_changed_is_not() -> None:
    before = "".join(f"def f{at}(a):\n    return a + {at}\n\n\n" for at in range(500))
    found = both(before, before.replace("a + 250", "a - 250"), "python")
    assert len(found.before) < 20
    assert found.before.kind.count(trees.FOLDED) == found.after.kind.count(trees.FOLDED) >= 2
    assert "-" in found.after.text


def test_unchanged_methods_of_a_long_class_are_folded_too() -> None:
    body = "".join(f"    def f{at}(self):\n        return {at}\n\n" for at in range(500))
    found = both(f"class A:\n{body}", f"class A:\n{body.replace('return 77', 'return 78')}", "python")
    assert len(found.before) < 30


def test_a_quote_that_opens_over_unchanged_lines_is_seen() -> None:
    before = "x = 1\ny = 2\nz = 3\n"
    found = both(before, f'"""\n{before}"""\n', "python")
    assert "docstring" in found.after.kind and "docstring" not in found.before.kind


def whole(tree: Tree) -> list[tuple[str, str]]:
    return list(zip(tree.kind, tree.text, strict=True))


@pytest.mark.parametrize(
    ("one", "other"), [("a + 3", "a * 3"), ("return a + 7", "if a:\n        return 1\n    return 2")]
)
def test_a_tree_made_from_the_one_before_is_the_tree_of_the_text(one: str, other: str) -> None:
    before = "".join(f"def f{at}(a):\n    return a + {at}\n\n\n" for at in range(60))
    after = before.replace(one, other).replace("a + 41", "a + 41 + 1")
    assert whole(both(before, after, "python", fold=False).after) == whole(parse(after, "python"))


def test_too_much_to_walk_is_compared_by_lines_and_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(trees, "MOST_NODES", 10)
    found = both(PYTHON, PYTHON.replace("total", "result").replace("x", "y"), "python")
    assert found.is_coarse
    assert set(found.after.kind) == {"text", "line"}


def test_kinds_are_those_of_the_grammar_with_its_tokens() -> None:
    assert ">" in kinds("a > b", "python") and "comparison_operator" in kinds("a > b", "python")
    assert kinds("a\nb", "text") == ["line", "line"]


def test_without_the_grammars_the_remedy_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "tree_sitter_python", None)
    trees._grammar.cache_clear()
    trees._parsed.cache_clear()
    with pytest.raises(trees.NoParser, match=r"holdfast\[reward\]"):
        parse("x = 1", "python")
    trees._grammar.cache_clear()


@pytest.mark.parametrize(
    ("path", "language"),
    [("a/b.py", "python"), ("b.TSX", "tsx"), ("c.mjs", "javascript"), ("d.ts", "typescript"), ("README", "text")],
)
def test_the_language_is_that_of_the_name(path: str, language: str) -> None:
    assert language_of(path) == language


LINES = "".join(f"line {n}\n" for n in range(100_000))
LARGE = [  # before, after, path: what once took minutes
    ("a b\n", " ".join(f"w{n % 977}" for n in range(200_000)), "m.txt"),  # one line
    ("", LINES, "m.txt"),
    ("x=1\n", "x=a" + ".b()" * 8_000 + "\n", "m.py"),
    ("x=1\n", "x=[" + "1," * 100_000 + "]\n", "m.py"),
    ("x=1\n", "(" * 50_000, "m.py"),
    ("x=1\n", "x=" + "[" * 40_000 + "]" * 40_000 + "\n", "m.py"),
    ("x=1\n", "a.b=1\n" * 15_000, "m.py"),
    ("y=1;\n", "if(x==37){" * 5_000 + "return 4211" + "}" * 5_000, "m.js"),
    ("def test_a():\n" + "    assert f(1)\n" * 5_000, "def test_a():\n" + "    assert f(1)\n" * 5_001, "test_n.py"),
    ("x=1\n", "x = f(1, 2)\n" * 200_000, "m.py"),
]


@pytest.mark.parametrize(("before", "after", "path"), LARGE, ids=range(len(LARGE)))
def test_no_text_takes_long(before: str, after: str, path: str) -> None:
    known = {"test_m.py": "from m import f\n\n\ndef test_f():\n    assert f(37) == 4211\n"}
    started = time.process_time()
    edits.compare.__wrapped__(before, after, trees.language_of(path))
    tamper.inspect({path: (before, after)}, tests=known)
    assert time.process_time() - started < 60.0  # minutes are meant: the machine is shared, and tests are traced


def test_what_is_too_large_to_be_parsed_is_compared_by_lines_and_searched_by_words() -> None:
    before = "x = f(1, 2)\n" * 30_000
    found = trees.both(before, before.replace("x", "y", 1), "python")
    assert found.is_coarse and len(found.after) == 2
    assert edits.cost(before, before.replace("x", "y", 1)) == 0.5
    assert tamper.inspect({"m.py": (before, f"{before}y = 1\n")}) == ()
    assert [one.rule for one in tamper.inspect({"m.py": (before, f"{before}os._exit(0)\n")})] == ["exit"]
    tests = "def test_f():\n" + "    assert f(1)\n" * 30_000
    assert [one.rule for one in tamper.inspect({"test_m.py": (tests, tests[:-20])})] == ["test_weakened"]
    assert tamper.inspect({"test_m.py": (tests, f"{tests}    assert f(2)\n")}) == ()


def test_what_is_too_deep_is_compared_by_lines() -> None:
    deep = "x = " + "[" * 300 + "]" * 300 + "\n"
    assert trees.both("x = 1\n", deep, "python").is_coarse
    assert not trees.both("x = 1\n", deep.replace("[" * 200, "").replace("]" * 200, ""), "python").is_coarse
