"""Conditions of affordances: what they mean is what Python says, and nothing else can be written."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.town.conditions import DEPTH, Bad, compile_condition, holds
from holdfast.town.rules import ASKED, NAMES

NUMBERS = [name for name, unit in ASKED.items() if unit]
FLAGS = [name for name, unit in ASKED.items() if not unit]
SHARES = st.sampled_from((0.0, 0.25, 0.5, 0.9, 1.0))
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@st.composite
def comparison(draw: st.DrawFn) -> str:
    name, sign = draw(st.sampled_from(NUMBERS)), draw(st.sampled_from(COMPARISONS))
    share = ASKED[name] > 1
    number = draw(SHARES) if share else draw(st.integers(0, 5))
    return f"{name} {sign} {number}" if draw(st.booleans()) else f"{number} {sign} {name}"


EXPRESSION = st.recursive(
    st.one_of(comparison(), st.sampled_from(FLAGS)),
    lambda inner: st.one_of(
        st.tuples(inner, inner).map(lambda two: f"({two[0]} and {two[1]})"),
        st.tuples(inner, inner).map(lambda two: f"({two[0]} or {two[1]})"),
        inner.map(lambda one: f"(not {one})"),
    ),
    max_leaves=8,
)
VALUES = st.fixed_dictionaries(
    {name: st.booleans() if not unit else SHARES if unit > 1 else st.integers(0, 5) for name, unit in ASKED.items()}
)


def run(text: str, values: dict[str, float]) -> bool:
    code = compile_condition(text, NAMES)
    whole = np.array([round(values[name] * (unit or 1)) for name, unit in ASKED.items()], np.int64)
    padded = np.array([(9, 9), *code, (9, 9)], np.int64)  # what stands before and after is not read
    return bool(holds(padded, 1, 1 + len(code), whole, np.zeros(DEPTH, np.int64)))


@settings(max_examples=100, deadline=None)
@given(text=EXPRESSION, values=VALUES)
def test_a_condition_means_what_python_says(text: str, values: dict[str, float]) -> None:
    assert run(text, values) == bool(eval(text, {"__builtins__": {}}, dict(values)))


def test_an_empty_condition_holds() -> None:
    assert holds(np.zeros((1, 2), np.int64), 0, 0, np.zeros(1, np.int64), np.zeros(DEPTH, np.int64))


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("hunger <", "is no expression: invalid syntax"),
        ("thirst < 1", "thirst is unknown; there are"),
        ("hunger", "hunger is a number: compare it with one"),
        ("not hunger", "hunger is a number: compare it with one"),
        ("hunger < (1 + 1)", "'1 + 1' cannot be compared: use a name or a number"),
        ("open('x')", "\"open('x')\" is not allowed; use names, numbers, < <= > >= == !=, and, or, not"),
        ("1 < 2", "compares no number that is known"),
        ("power == water", "compares no number that is known"),
        ("hunger < raw", "raw is measured otherwise than what it is compared with"),
        ("hunger < 'a'", "\"'a'\" cannot be compared: use a name or a number"),
        ("hunger < True", "'True' cannot be compared: use a name or a number"),
        ("0 < hunger < 1", "'0 < hunger < 1' is not allowed"),
        ("hunger + 1 < 2", "compares no number that is known"),
        ("hunger in (1, 2)", "'hunger in (1, 2)' is not allowed"),
        ("__import__('os').system('x')", "is not allowed"),
        ("hunger.real < 1", "compares no number that is known"),
        ("[x for x in (1,)]", "is not allowed"),
        ("(lambda: power)()", "is not allowed"),
        ("power if water else own", "is not allowed"),
        ("1", "'1' is not allowed"),
        ("power and (" * 16 + "power" + ")" * 16, "is nested too deeply"),
    ],
)
def test_what_is_not_a_condition_is_refused(text: str, why: str) -> None:
    with pytest.raises(Bad) as caught:
        compile_condition(text, NAMES)
    assert why in str(caught.value)
