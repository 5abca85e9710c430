"""Matching: equal things find one another, moved things too, and the small is matched the best way there is."""

from __future__ import annotations

from itertools import combinations, product

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.reward.diff.edits import mapping, match
from holdfast.reward.diff.trees import Tree, both, parse


def partners(before: str, after: str, kind: str, language: str = "python") -> dict[int, int]:
    """Line before → line after of the nodes of one kind that were matched."""
    sides = both(before, after, language, fold=False)
    found = match(sides)
    nodes = [at for at in range(len(sides.before)) if sides.before.kind[at] == kind and found[at] >= 0]
    return {sides.before.line[at]: sides.after.line[int(found[at])] for at in nodes}


def test_functions_that_changed_places_are_found() -> None:
    one, two = "def f(a):\n    return a + 1\n", "def g(b):\n    return b * 2\n"
    assert partners(one + two, two + one, "function_definition") == {1: 3, 3: 1}


def test_a_renamed_function_is_the_same_function() -> None:
    before = "def f(a):\n    c = a + 1\n    return c\n"
    assert partners(before, before.replace("def f", "def other"), "function_definition") == {1: 1}


def test_statements_that_went_into_a_try_are_the_same_statements() -> None:
    before = "def f(a):\n    c = [a, 1, 2]\n    return g(c, 3)\n"
    after = "def f(a):\n    try:\n        c = [a, 1, 9]\n        return g(c, 3)\n    finally:\n        done()\n"
    assert partners(before, after, "return_statement") == {3: 4}
    assert partners(before, after, "assignment") == {2: 3}


def test_of_equal_statements_each_stays_in_its_function() -> None:
    before = "def f(a):\n    if a > 1:\n        return a\n\n\ndef g(a):\n    if a > 1:\n        return a\n"
    after = f"import os\n\n\n{before}"
    assert partners(before, after, "if_statement") == {2: 5, 7: 10}


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
        same_line = above(old, p[0], q[0]) == above(new, p[1], q[1]) and above(old, q[0], p[0]) == above(
            new, q[1], p[1]
        )
        return p[0] != q[0] and p[1] != q[1] and same_line and (p[0] < q[0]) == (p[1] < q[1])

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


@settings(max_examples=40, deadline=None)
@given(one=expressions, other=expressions)
def test_a_mapping_keeps_order_and_ancestors(one: str, other: str) -> None:
    old, new = parse(one, "python"), parse(other, "python")
    pairs = sorted(cheapest(old, new))
    for (a, b), (c, d) in combinations(pairs, 2):
        assert a < c and b < d
        assert (c < a + old.size[a]) == (d < b + new.size[b])
