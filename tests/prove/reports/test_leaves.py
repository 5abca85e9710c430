from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.prove.reports.document import MISSING, Problem, differences, inside, not_finite, parse, short

JSON: Any = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=10,
)


@given(JSON)
def test_nothing_differs_from_itself(value: Any) -> None:
    assert list(differences(value, json.loads(json.dumps(value)), "$")) == []


@pytest.mark.parametrize(
    ("wanted", "found", "said"),
    [
        (0.5, 0.5 + 1e-12, []),  # another machine's last digit
        (0.5, 0.5001, [("$", "is 0.5001, must be 0.5")]),
        (1.0, 1, []),
        (1, 1.0, [("$", "is 1.0, must be 1")]),  # a count is whole
        (1, True, [("$", "is true, must be 1")]),
        (1.0, True, [("$", "is true, must be 1.0")]),
        (True, 1, [("$", "is 1, must be true")]),
        (1.0, "1.0", [("$", 'is "1.0", must be 1.0')]),
        (1.0, 10**400, [("$", f"is 1{'0' * 96}…, must be 1.0")]),
        (None, 0, [("$", "is 0, must be null")]),
        ({"a": 1}, {}, [("$.a", "is missing")]),
        ({}, {"a": 1, "b c": 2}, [("$.a", "is unknown"), ('$["b c"]', "is unknown")]),
        ([1, 2], [1, 3], [("$[1]", "is 3, must be 2")]),
        ([1, 2], [1], [("$", "has 1 items, must be 2")]),
        ({"a": [{"b": 1}]}, {"a": [{"b": 2}]}, [("$.a[0].b", "is 2, must be 1")]),
        ({"a": 1}, [1], [("$", 'is [1], must be {"a": 1}')]),
    ],
)
def test_differences_are_named_leaf_by_leaf(wanted: Any, found: Any, said: list[tuple[str, str]]) -> None:
    assert list(differences(wanted, found, "$")) == [Problem(where=where, why=why) for where, why in said]


def test_a_key_that_is_there_twice_is_refused_at_any_depth() -> None:
    assert parse(b'{"a": {"b": 1, "b": 1}}') == Problem(where="$..b", why="is there twice in one object")


@pytest.mark.parametrize("raw", [b"", b"{", b"\xff", b"{'a': 1}", b"[" * 100_000])
def test_what_is_not_json_is_a_problem_and_no_crash(raw: bytes) -> None:
    assert isinstance(parse(raw), Problem)


def test_numbers_that_are_none_are_found_where_they_are() -> None:
    data = parse(b'{"a": [1, NaN, {"b c": -Infinity}], "d": 1e999, "e": 1}')
    assert isinstance(data, dict)
    assert list(not_finite(data, "$")) == ["$.a[1]", '$.a[2]["b c"]', "$.d"]


def test_long_values_are_cut_and_missing_ones_named() -> None:
    assert len(short("x" * 1000)) == 98
    assert short(MISSING) == "missing"
    assert inside("$", "a") == "$.a"
