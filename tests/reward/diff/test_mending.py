"""Stars that the grammar does not read become pluses; everything else, and every place, stays."""

from __future__ import annotations

import pytest

from holdfast.reward.diff.trees import parsed, unparsed, without_stars


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


def test_what_python_refuses_has_no_other_spelling() -> None:
    assert parsed("def f(:") is None
    assert (unparsed("def f(:"), unparsed("x=(1)")) == ("", "x = 1")
