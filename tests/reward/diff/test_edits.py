"""Edits: the script makes the text after, costs what was said, and does not mind names or layout."""

from __future__ import annotations

import re
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.reward.diff.edits import Edit, NodeRef, compare, cost, outline
from holdfast.reward.diff.trees import Tree

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


def test_two_functions_that_change_places_are_one_move() -> None:
    at = BASE.index("def g")
    assert cost(BASE, f"{BASE[at:]}\n\n{BASE[:at]}") == pytest.approx(0.3)


def test_a_file_that_is_new_costs_all_its_nodes_and_the_same_when_it_goes() -> None:
    assert cost("", "x = 1\n") == cost("x = 1\n", "") == 4.0  # statement, assignment, name, number


def test_typescript_is_compared_as_a_tree_too() -> None:
    script = compare(TYPESCRIPT, TYPESCRIPT.replace("a > 1", "a >= 1"), "typescript")
    assert [(edit.verb, edit.was, edit.text) for edit in script.edits] == [("update", ">", ">=")]


def renamed(text: str) -> str:
    return re.sub(r"\b(total|x|a|b|c)\b", lambda name: f"{name.group()}_q", text)


@pytest.mark.parametrize("new", ["x >= b", "x > b and x", "not x", "x > f(b, 1)"])
def test_what_things_are_called_does_not_change_what_an_edit_costs(new: str) -> None:
    after = BASE.replace("x > b", new)
    assert cost(renamed(BASE), renamed(after)) == pytest.approx(cost(BASE, after))


@pytest.mark.parametrize("new", ["x >= b", "x > b and x", "not x"])
def test_how_it_is_laid_out_does_not_change_what_an_edit_costs(new: str) -> None:
    after = BASE.replace("x > b", new)
    spread = after.replace("(a, b)", "(\n    a,\n    b,\n)").replace("return total", "return (\n        total\n    )")
    assert cost(BASE, spread) == pytest.approx(cost(BASE, after))


def test_a_rename_is_an_update_at_each_place() -> None:
    assert {edit.verb for edit in compare(BASE, renamed(BASE)).edits} == {"update"}


def test_a_broken_text_is_flagged_and_never_cheap() -> None:
    script = compare(BASE, BASE.replace("def g(c):", "def g(c:"))
    assert script.is_broken
    assert script.cost > 0.5


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


@settings(max_examples=100, deadline=None)
@given(before=programs, after=programs, fold=st.booleans())
def test_the_script_applied_to_the_tree_before_is_the_tree_after(before: str, after: str, fold: bool) -> None:
    script = compare(before, after, "python", fold=fold)
    assert apply(script.both.before, script.edits) == nested(script.both.after)
    assert script.cost == pytest.approx(sum(edit.cost for edit in script.edits))


@settings(max_examples=60, deadline=None)
@given(text=programs)
def test_nothing_changed_costs_nothing(text: str) -> None:
    assert compare(text, text).edits == ()


@settings(max_examples=60, deadline=None)
@given(before=programs, after=programs)
def test_no_script_costs_more_than_to_write_all_anew(before: str, after: str) -> None:
    script = compare(before, after, fold=False)
    assert script.cost <= len(script.both.before) + len(script.both.after)


def test_the_script_survives_a_real_rewrite_of_typescript() -> None:
    after = "interface I { x: number }\nexport const f = (a: I) => {\n  while (a.x > 1) { a.x--; }\n  return a.x;\n};\n"
    script = compare(TYPESCRIPT, after, "typescript")
    assert apply(script.both.before, script.edits) == nested(script.both.after)


def test_for_people_a_subtree_that_came_is_one_line_with_all_its_cost() -> None:
    after = BASE.replace("    return total", "    if total is None:\n        return None\n    return total")
    (part,) = outline(compare(BASE, after), BASE, after)
    assert (part.verb, part.line, part.text, part.cost) == ("insert", 6, "if total is None:", 8.0)


def test_for_people_an_update_says_what_was() -> None:
    after = BASE.replace("x > b", "x >= b")
    (part,) = outline(compare(BASE, after), BASE, after)
    assert (part.verb, part.was, part.text, part.line) == ("update", ">", ">=", 4)
