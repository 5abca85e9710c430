"""The map, the conditions and the rules as numbers: each equal to what is drawn, written and said."""

from __future__ import annotations

from collections import deque

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.town.compiled_rules import NUMBER, NUMBERS, CompiledRules, compile_rules
from holdfast.town.rules import (
    ASKED,
    DEPTH,
    FAR,
    NAMES,
    Bad,
    Grid,
    Rules,
    compile_condition,
    distances,
    holds,
    load,
    read,
)
from tests.town.reference.world import Layout
from tests.town.small import small


@pytest.fixture(scope="module", params=["default", "small"])
def rules(request: pytest.FixtureRequest) -> Rules:
    return load() if request.param == "default" else small()


@pytest.fixture(scope="module")
def numbers(rules: Rules) -> CompiledRules:
    return compile_rules(rules)


def test_money_and_needs_are_whole_numbers_of_their_units() -> None:
    n = compile_rules(
        load(override={"economy": {"rent": 0.8}, "queues": {"hold": 8}, "lifecycle": {"neglect_share": 0.25}})
    ).n
    assert [int(n[name]) for name in ("rent", "hold", "neglect_ticks", "day", "hour")] == [8000, 8, 360, 1440, 60]
    assert all(NUMBER[name] == np.int64 for name in NUMBERS)


def test_one_record_fits_all_rules(rules: Rules, numbers: CompiledRules) -> None:
    assert numbers.n.dtype == NUMBER
    assert numbers.n["residents"] == rules["residents"]


def test_things_stand_where_the_map_draws_them(rules: Rules, numbers: CompiledRules) -> None:
    types = list(dict.fromkeys(rules["map"]["objects"].values()))
    for place, (kind, tile) in enumerate(rules.grid.objects):
        assert (numbers.place["tile"][place], types[numbers.place["kind"][place]]) == (tile, kind)
        assert numbers.tile["thing_at"][tile] == place
    for number, kind in enumerate(types):
        first, count = numbers.n["type_first"][number], numbers.n["type_count"][number]
        assert all(numbers.place["kind"][first : first + count] == number), kind


def test_work_spots_and_meeting_places_are_where_the_reference_finds_them(rules: Rules, numbers: CompiledRules) -> None:
    layout = Layout(rules)
    assert numbers.place["tile"].tolist() == layout.tile_of
    assert numbers.n["first_meeting"] == layout.first_meeting
    for job, entry in enumerate(rules["job"]):
        first = int(numbers.n["job_spot"][job])
        assert first == layout.first_spot[job]
        for slot in range(entry["slots"]):
            tile = layout.tile_of[first + slot]
            assert layout.walkable[tile] and layout.venue[tile]["id"] == entry["venue"]


def test_ways_lead_beside_a_thing_and_onto_a_spot(rules: Rules, numbers: CompiledRules) -> None:
    for place in (0, int(numbers.n["things"]) - 1, int(numbers.n["things"]), int(numbers.n["places"]) - 1):
        tile = int(numbers.place["tile"][place])
        ends = rules.grid.beside(tile) if place < numbers.n["things"] else [tile]
        floor = rules.grid.walkable == 1
        assert np.array_equal(numbers.far[place][floor], distances(rules.grid, ends)[floor])
        assert (numbers.far[place][ends] == 0).all()
    walls = [tile for tile, glyph in enumerate(rules.grid.glyphs) if glyph in rules["map"]["walls"]]
    assert (numbers.far[:, walls] == FAR).all()


def test_who_is_on_a_thing_is_at_it_and_a_step_further_from_all_else(rules: Rules, numbers: CompiledRules) -> None:
    for place in (0, int(numbers.n["things"]) - 1):
        tile = int(numbers.place["tile"][place])
        others = np.arange(int(numbers.n["places"])) != place
        nearest = numbers.far[:, rules.grid.beside(tile)].min(axis=1)
        assert numbers.far[place, tile] == 0
        assert np.array_equal(numbers.far[others, tile], nearest[others] + 1)


def test_the_nearest_of_a_type_is_the_nearest(rules: Rules, numbers: CompiledRules) -> None:
    first, count = int(numbers.n["type_first"][0]), int(numbers.n["type_count"][0])
    for tile in np.flatnonzero(rules.grid.walkable)[::37]:
        nearest = int(numbers.tile["nearest"][tile, 0])
        assert numbers.far[nearest, tile] == numbers.far[first : first + count, tile].min()


def test_what_happens_bit_by_bit_is_divided_by_its_ticks() -> None:
    entry = {"id": "nap", "object": "bed", "duration": 100, "per_tick": True, "effects": {"energy": 0.5}}
    n = compile_rules(load(override={"affordance": [entry, *load()["affordance"][1:]]})).n
    assert n["aff_effect"][0].tolist() == [0, 0, 5000, 0]


def test_the_shares_of_natures_add_up(numbers: CompiledRules, rules: Rules) -> None:
    upto = numbers.n["profile_upto"][: len(rules["profile"])]
    assert abs(int(upto[-1]) - 2**32) <= 2 and all(np.diff(upto) > 0)


def test_the_clock_goes_round(numbers: CompiledRules) -> None:
    assert np.allclose((numbers.clock**2).sum(axis=1), 1, atol=1e-6)
    assert numbers.clock[0].tolist() == [0, 1]


KEY = {"walls": "#", "doors": "+", "ground": ".=", "entry": "=", "objects": {"b": "bed", "s": "stove", "B": "bed"}}


def drawn(*rows: str) -> Grid:
    return read(list(rows), **KEY)  # type: ignore[arg-type]


def test_a_map_is_read_as_it_is_drawn() -> None:
    grid = drawn("##=#", "#s.b", "#.+B", "=###")
    assert (grid.width, grid.height) == (4, 4)
    assert np.flatnonzero(grid.walkable).tolist() == [2, 6, 9, 10, 12]
    assert grid.objects == (("bed", 7), ("bed", 11), ("stove", 5))  # by type in the order of the rules
    assert grid.entries == (2, 12)


def test_beside_is_north_east_south_west_within_the_edge() -> None:
    grid = drawn("...", "...", "...")
    assert grid.beside(4) == [1, 5, 7, 3]
    assert grid.beside(0) == [1, 3]
    assert grid.beside(8) == [5, 7]


def test_the_east_edge_does_not_lead_to_the_west_edge() -> None:
    far = distances(drawn("...", "##.", "..."), [6])  # from the end of the last row, round the wall
    assert far.tolist() == [6, 5, 4, FAR, FAR, 3, 0, 1, 2]


def test_what_cannot_be_reached_is_far() -> None:
    assert distances(drawn(".#."), [0]).tolist() == [0, FAR, FAR]
    assert distances(drawn("..."), []).tolist() == [FAR] * 3


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 7), st.lists(st.booleans(), min_size=7, max_size=49), st.integers(0, 48))
def test_distances_are_those_of_a_plain_search(width: int, open_tiles: list[bool], start: int) -> None:
    height = len(open_tiles) // width
    glyphs = ["." if one else "#" for one in open_tiles[: width * height]]
    grid = drawn(*("".join(glyphs[y * width : (y + 1) * width]) for y in range(height)))
    start %= width * height
    if glyphs[start] == "#":
        return
    found, waiting = {start: 0}, deque([start])
    while waiting:
        here = waiting.popleft()
        for near in grid.beside(here):
            if near not in found:
                found[near] = found[here] + 1
                waiting.append(near)
    assert distances(grid, [start]).tolist() == [found.get(tile, FAR) for tile in range(width * height)]


COMPARED = [name for name, unit in ASKED.items() if unit]
FLAGS = [name for name, unit in ASKED.items() if not unit]
SHARES = st.sampled_from((0.0, 0.25, 0.5, 0.9, 1.0))
COMPARISONS = ("<", "<=", ">", ">=", "==", "!=")


@st.composite
def comparison(draw: st.DrawFn) -> str:
    name, sign = draw(st.sampled_from(COMPARED)), draw(st.sampled_from(COMPARISONS))
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
        ("hunger <", "is no expression: invalid syntax"), ("thirst < 1", "thirst is unknown; there are"),
        ("hunger", "hunger is a number: compare it with one"),
        ("not hunger", "hunger is a number: compare it with one"),
        ("hunger < (1 + 1)", "'1 + 1' cannot be compared: use a name or a number"),
        ("open('x')", "\"open('x')\" is not allowed; use names, numbers, < <= > >= == !=, and, or, not"),
        ("1 < 2", "compares no number that is known"), ("power == water", "compares no number that is known"),
        ("hunger < raw", "raw is measured otherwise than what it is compared with"),
        ("hunger < 'a'", "\"'a'\" cannot be compared: use a name or a number"),
        ("hunger < True", "'True' cannot be compared: use a name or a number"),
        ("0 < hunger < 1", "'0 < hunger < 1' is not allowed"), ("hunger + 1 < 2", "compares no number that is known"),
        ("hunger in (1, 2)", "'hunger in (1, 2)' is not allowed"), ("__import__('os').system('x')", "is not allowed"),
        ("hunger.real < 1", "compares no number that is known"), ("[x for x in (1,)]", "is not allowed"),
        ("(lambda: power)()", "is not allowed"), ("power if water else own", "is not allowed"),
        ("1", "'1' is not allowed"), ("power and (" * 16 + "power" + ")" * 16, "is nested too deeply"),
    ],
)  # fmt: skip
def test_what_is_not_a_condition_is_refused(text: str, why: str) -> None:
    with pytest.raises(Bad) as caught:
        compile_condition(text, NAMES)
    assert why in str(caught.value)
