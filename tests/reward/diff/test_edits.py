"""Edits: the script makes the text after, costs what was said, and does not mind names or layout."""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import combinations, product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.reward.diff.edits import Edit, NodeRef, compare, cost, mapping, match, outline
from holdfast.reward.diff.trees import Tree, both, parse

BASE = """def f(a, b):
    total = 0
    for x in a:
        if x > b:
            total += x
    return total


def g(c):
    return c * 2
"""
TYPESCRIPT = "export function f(a: number) {\n  if (a > 1) {\n    return a;\n  }\n  return 0;\n}\n"


@pytest.mark.parametrize(
    ("old", "new", "spent"),
    [
        ("x > b", "x >= b", 0.5),  # one update
        ("return c * 2", "return c * 3", 0.5),
        ("c * 2", "2 * c", 0.6),  # two moves, of three children
        ("total", "result", 1.5),  # three updates
        ("x > b", "x > b and x", 3.3),  # and, its operator, x; the comparison moves below it
        ("    total = 0\n", "    # from nothing\n    total = 0\n", 0.1),  # a line of comment
        ("    total = 0\n", '    """One.\n\n    Two."""\n    total = 0\n', 0.3),  # three lines of docstring
        ("    return total", "    print(total)\n    return total", 5.0),  # statement, call, name, arguments, name
        ("            total += x\n", "            pass\n", 6.0),  # five nodes go, one comes
        ("def f(a, b):", "def f(\n    a,\n    b,\n):", 0.0),
        ("return total", "return (total)", 0.0),
    ],
)
def test_what_an_edit_costs(old: str, new: str, spent: float) -> None:
    assert cost(BASE, BASE.replace(old, new)) == pytest.approx(spent)


def test_a_move_a_new_file_and_a_rename_cost_what_they_are() -> None:
    at = BASE.index("def g")
    assert cost(BASE, f"{BASE[at:]}\n\n{BASE[:at]}") == pytest.approx(0.3)  # two functions changed places
    assert cost("", "x = 1\n") == cost("x = 1\n", "") == 4.0  # statement, assignment, name, number
    assert {edit.verb for edit in compare(BASE, renamed(BASE)).edits} == {"update"}
    script = compare(BASE, BASE.replace("def g(c):", "def g(c:"))
    assert script.is_broken and script.cost > 0.5  # never cheap


def test_typescript_is_compared_as_a_tree_too() -> None:
    script = compare(TYPESCRIPT, TYPESCRIPT.replace("a > 1", "a >= 1"), "typescript")
    assert [(edit.verb, edit.was, edit.text) for edit in script.edits] == [("update", ">", ">=")]
    after = "interface I { x: number }\nexport const f = (a: I) => {\n  while (a.x > 1) { a.x--; }\n  return a.x;\n};\n"
    script = compare(TYPESCRIPT, after, "typescript")
    assert apply(script.both.before, script.edits) == nested(script.both.after)


def renamed(text: str) -> str:
    return re.sub(r"\b(total|x|a|b|c)\b", lambda name: f"{name.group()}_q", text)


@pytest.mark.parametrize("new", ["x >= b", "x > b and x", "not x", "x > f(b, 1)"])
def test_neither_names_nor_layout_change_what_an_edit_costs(new: str) -> None:
    after = BASE.replace("x > b", new)
    assert cost(renamed(BASE), renamed(after)) == pytest.approx(cost(BASE, after))
    spread = after.replace("(a, b)", "(\n    a,\n    b,\n)").replace("return total", "return (\n        total\n    )")
    assert cost(BASE, spread) == pytest.approx(cost(BASE, after))


Nested = tuple[str, str, tuple["Nested", ...]]  # kind, text, children


def apply(tree: Tree, script: Sequence[Edit]) -> Nested:
    """What becomes of a tree under a script: the tree after, if the script is right."""
    below = {NodeRef(False, at): [NodeRef(False, child) for child in tree.children(at)] for at in range(len(tree))}
    above = {child: parent for parent, children in below.items() for child in children}
    kinds = {NodeRef(False, at): tree.kind[at] for at in range(len(tree))}
    texts = {NodeRef(False, at): tree.text[at] for at in range(len(tree))}
    for edit in script:
        if edit.verb == "update":
            texts[edit.node] = edit.text
        if edit.verb in ("delete", "move") and edit.node in above:
            below[above.pop(edit.node)].remove(edit.node)
        if edit.verb == "insert":
            below[edit.node], kinds[edit.node], texts[edit.node] = [], edit.kind, edit.text
        if edit.verb in ("insert", "move") and edit.parent is not None:
            row = below[edit.parent]
            row.insert(0 if edit.left is None else row.index(edit.left) + 1, edit.node)
            above[edit.node] = edit.parent

    def nested(node: NodeRef) -> Nested:
        return kinds[node], texts[node], tuple(nested(child) for child in below[node])

    return nested(NodeRef(False, 0))


def nested(tree: Tree, node: int = 0) -> Nested:
    return tree.kind[node], tree.text[node], tuple(nested(tree, child) for child in tree.children(node))


statements = st.recursive(
    st.sampled_from(["x = 1", "y = f(x)", "return x", "z = [1, 2]", "pass", "# remark", "x += y"]),
    lambda inner: st.lists(inner, min_size=1, max_size=3).map(
        lambda block: "if x > 1:\n" + "\n".join(f"    {line}" for one in block for line in [*one.split("\n"), "pass"])
    ),
    max_leaves=6,
)
programs = st.lists(statements, max_size=5).map(
    lambda found: "def f(x, y):\n" + "\n".join(f"    {line}" for one in [*found, "pass"] for line in one.split("\n"))
)


@given(before=programs, after=programs, fold=st.booleans())
def test_the_script_applied_to_the_tree_before_is_the_tree_after(before: str, after: str, fold: bool) -> None:
    script = compare(before, after, "python", fold=fold)
    assert apply(script.both.before, script.edits) == nested(script.both.after)
    assert script.cost == pytest.approx(sum(edit.cost for edit in script.edits))


@given(before=programs, after=programs)
def test_no_script_costs_more_than_to_write_all_anew_and_nothing_changed_costs_nothing(before: str, after: str) -> None:
    script = compare(before, after, fold=False)
    assert script.cost <= len(script.both.before) + len(script.both.after)
    assert compare(before, before).edits == ()


def test_for_people_a_subtree_that_came_is_one_line_and_an_update_says_what_was() -> None:
    after = BASE.replace("    return total", "    if total is None:\n        return None\n    return total")
    (part,) = outline(compare(BASE, after), BASE, after)
    assert (part.verb, part.line, part.text, part.cost) == ("insert", 6, "if total is None:", 8.0)
    after = BASE.replace("x > b", "x >= b")
    (part,) = outline(compare(BASE, after), BASE, after)
    assert (part.verb, part.was, part.text, part.line) == ("update", ">", ">=", 4)


def partners(before: str, after: str, kind: str, language: str = "python") -> dict[int, int]:
    """Line before → line after of the nodes of one kind that were matched."""
    sides = both(before, after, language, fold=False)
    found = match(sides)
    nodes = [at for at in range(len(sides.before)) if sides.before.kind[at] == kind and found[at] >= 0]
    return {sides.before.line[at]: sides.after.line[int(found[at])] for at in nodes}


F, G = "def f(a):\n    return a + 1\n", "def g(b):\n    return b * 2\n"
C = "def f(a):\n    c = a + 1\n    return c\n"
TRY = "def f(a):\n    try:\n        c = [a, 1, 9]\n        return g(c, 3)\n    finally:\n        done()\n"
TWICE = "def f(a):\n    if a > 1:\n        return a\n\n\ndef g(a):\n    if a > 1:\n        return a\n"


@pytest.mark.parametrize(
    ("before", "after", "kind", "lines"),
    [
        (F + G, G + F, "function_definition", {1: 3, 3: 1}),  # they changed places
        (C, C.replace("def f", "def other"), "function_definition", {1: 1}),  # renamed
        ("def f(a):\n    c = [a, 1, 2]\n    return g(c, 3)\n", TRY, "return_statement", {3: 4}),  # into a try
        ("def f(a):\n    c = [a, 1, 2]\n    return g(c, 3)\n", TRY, "assignment", {2: 3}),
        (TWICE, f"import os\n\n\n{TWICE}", "if_statement", {2: 5, 7: 10}),  # equal ones stay in their functions
    ],
)
def test_what_belongs_together_is_found(before: str, after: str, kind: str, lines: dict[int, int]) -> None:
    assert partners(before, after, kind) == lines


def test_a_match_is_one_to_one_and_keeps_the_kind() -> None:
    before = "class A:\n    x = 1\n    def f(self): return self.x\n"
    after = "def f(x): return x\nclass B:\n    y = 1\n    z = 1\n"
    sides = both(before, after, "python", fold=False)
    found = [int(one) for one in match(sides)]
    hits = [one for one in found if one >= 0]
    assert len(set(hits)) == len(hits)
    assert all(sides.before.kind[at] == sides.after.kind[one] for at, one in enumerate(found) if one >= 0)


def brute(old: Tree, new: Tree) -> float:
    """The least cost of all mappings that keep order and ancestors, by trying every one."""

    def above(tree: Tree, a: int, b: int) -> bool:
        return a < b < a + tree.size[a]

    def agree(p: tuple[int, int], q: tuple[int, int]) -> bool:
        are_in_line = all(above(old, x[0], y[0]) == above(new, x[1], y[1]) for x, y in ((p, q), (q, p)))
        return p[0] != q[0] and p[1] != q[1] and are_in_line and (p[0] < q[0]) == (p[1] < q[1])

    pairs = [(a, b) for a, b in product(range(len(old)), range(len(new))) if old.kind[a] == new.kind[b]]
    best = float(len(old) + len(new))
    for many in range(1, min(len(old), len(new)) + 1):
        for chosen in combinations(pairs, many):
            if all(agree(p, q) for p, q in combinations(chosen, 2)):
                best = min(best, priced(old, new, list(chosen)))
    return best


def priced(old: Tree, new: Tree, pairs: list[tuple[int, int]]) -> float:
    return len(old) + len(new) - 2 * len(pairs) + sum(0.5 * (old.text[a] != new.text[b]) for a, b in pairs)


def cheapest(old: Tree, new: Tree) -> list[tuple[int, int]]:
    return mapping(old, 0, old.children(0), new, 0, new.children(0))


@pytest.mark.parametrize(
    ("one", "other"), [("f(a)", "f(b)"), ("a + 1", "a - b"), ("f(a)", "f(g(a))"), ("[a, b]", "[b, a]"), ("-a", "a")]
)
def test_a_small_mapping_is_as_cheap_as_any(one: str, other: str) -> None:
    old, new = parse(one, "python"), parse(other, "python")
    assert priced(old, new, cheapest(old, new)) == pytest.approx(brute(old, new))


expressions = st.recursive(
    st.sampled_from(["a", "b", "1"]),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]} + {two[1]})"), inner.map(lambda one: f"f({one})")
    ),
    max_leaves=4,
)


@given(one=expressions, other=expressions)
def test_a_mapping_keeps_order_and_ancestors(one: str, other: str) -> None:
    old, new = parse(one, "python"), parse(other, "python")
    pairs = sorted(cheapest(old, new))
    for (a, b), (c, d) in combinations(pairs, 2):
        assert a < c and b < d
        assert (c < a + old.size[a]) == (d < b + new.size[b])
