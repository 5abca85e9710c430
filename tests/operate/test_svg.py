"""Plots as shapes: values land where they should, ticks are round, long lines are thinned, nothing leaves the frame."""

from __future__ import annotations

import re
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput
from holdfast.operate.proof import AxisScale, around, band, box, dot, level, line, thin, ticks, upright

UNIT = AxisScale(low=0.0, high=1.0)
VALUES = st.floats(-1e6, 1e6)


def numbers(path: str) -> list[float]:
    return [float(word) for word in re.findall(r"-?\d+(?:\.\d+)?", path)]


def test_shapes_are_drawn_from_the_lower_left() -> None:
    x = AxisScale(low=0.0, high=4.0)
    assert line([0, 2, 4], [0.0, 0.5, 1.0], x, UNIT) == "M0 1000L500 500L1000 0"
    assert band([0, 4], [0.0, 0.25], [1.0, 0.75], x, UNIT) == "M0 0L1000 250L1000 750L0 1000Z"
    assert box(1, 2, 0.0, 0.5, x=x, y=UNIT) == "M250 1000H500V500H250Z"
    assert (level(0.25, UNIT), upright(1, x), dot(1, 0.5, x, UNIT)) == ("M0 750H1000", "M250 0V1000", "M250 500h0")


def test_of_nothing_nothing_is_drawn() -> None:
    assert line([], [], UNIT, UNIT) == "" == band([], [], [], UNIT, UNIT)


@given(st.lists(st.tuples(VALUES, VALUES), min_size=1, max_size=30))
def test_nothing_leaves_the_frame(points: list[tuple[float, float]]) -> None:
    across, up = zip(*points, strict=True)
    assert all(0.0 <= number <= 1000.0 for number in numbers(line(across, up, UNIT, UNIT)))


@pytest.mark.parametrize(
    ("low", "high", "expected"),
    [
        (-1.0, 1.0, [-1.0, -0.5, 0.0, 0.5, 1.0]),
        (-0.13, 0.29, [-0.1, 0.0, 0.1, 0.2]),
        (1.0, 200.0, [50.0, 100.0, 150.0, 200.0]),
        (0.0, 0.3, [0.0, 0.1, 0.2, 0.3]),  # and not 0.30000000000000004
    ],
)
def test_ticks_are_round(low: float, high: float, expected: list[float]) -> None:
    assert ticks(AxisScale(low=low, high=high)) == expected


@given(VALUES, st.floats(1e-3, 1e6))
def test_there_are_some_ticks_and_not_too_many_and_all_lie_on_the_scale(low: float, reach: float) -> None:
    scale = AxisScale(low=low, high=low + reach)
    found = ticks(scale)
    assert 1 <= len(found) <= 6
    slack = 1e-9 * max(1.0, abs(low), reach)
    assert all(scale.low - slack <= value <= scale.high + slack for value in found)


@given(st.lists(VALUES, min_size=1))
def test_a_scale_has_room_for_all_values_even_if_they_are_one(values: list[float]) -> None:
    scale = around(values)
    assert all(scale.low < value < scale.high for value in values)


@pytest.mark.parametrize(("low", "high"), [(1.0, 1.0), (2.0, 1.0), (nan, 1.0), (0.0, inf)])
def test_a_scale_without_a_length_is_refused(low: float, high: float) -> None:
    with pytest.raises(BadInput, match="must be finite, and apart"):
        AxisScale(low=low, high=high)


def test_a_short_line_keeps_every_point_and_a_long_one_its_ends_and_what_matters() -> None:
    assert thin(400) == list(range(400))
    places = thin(10_000, keep=[4321, 20_000])
    assert len(places) in (400, 401) and places == sorted(set(places))
    assert {0, 4321, 9_999} <= set(places) and 20_000 not in places
