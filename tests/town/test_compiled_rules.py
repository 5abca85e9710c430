"""Rules as numbers: units, places and ways, and every number equal to what the rules say."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town.compiled_rules import NUMBER, NUMBERS, Law, law
from holdfast.town.rules import FAR, Rules, distances, load
from tests.town.reference.world import Layout
from tests.town.small import small


@pytest.fixture(scope="module", params=["default", "small"])
def rules(request: pytest.FixtureRequest) -> Rules:
    return load() if request.param == "default" else small()


@pytest.fixture(scope="module")
def numbers(rules: Rules) -> Law:
    return law(rules)


def test_money_and_needs_are_whole_numbers_of_their_units() -> None:
    n = law(load(override={"economy": {"rent": 0.8}, "queues": {"hold": 8}, "lifecycle": {"neglect_share": 0.25}})).n
    assert [int(n[name]) for name in ("rent", "hold", "neglect_ticks", "day", "hour")] == [8000, 8, 360, 1440, 60]
    assert all(NUMBER[name] == np.int64 for name in NUMBERS)


def test_one_record_fits_all_rules(rules: Rules, numbers: Law) -> None:
    assert numbers.n.dtype == NUMBER
    assert numbers.n["residents"] == rules["residents"]


def test_things_stand_where_the_map_draws_them(rules: Rules, numbers: Law) -> None:
    types = list(dict.fromkeys(rules["map"]["objects"].values()))
    for place, (kind, tile) in enumerate(rules.grid.objects):
        assert (numbers.place["tile"][place], types[numbers.place["kind"][place]]) == (tile, kind)
        assert numbers.tile["thing_at"][tile] == place
    for number, kind in enumerate(types):
        first, count = numbers.n["type_first"][number], numbers.n["type_count"][number]
        assert all(numbers.place["kind"][first : first + count] == number), kind


def test_work_spots_and_meeting_places_are_where_the_reference_finds_them(rules: Rules, numbers: Law) -> None:
    layout = Layout(rules)
    assert numbers.place["tile"].tolist() == layout.tile_of
    assert numbers.n["first_meeting"] == layout.first_meeting
    for job, entry in enumerate(rules["job"]):
        first = int(numbers.n["job_spot"][job])
        assert first == layout.first_spot[job]
        for slot in range(entry["slots"]):
            tile = layout.tile_of[first + slot]
            assert layout.walkable[tile] and layout.venue[tile]["id"] == entry["venue"]


def test_ways_lead_beside_a_thing_and_onto_a_spot(rules: Rules, numbers: Law) -> None:
    for place in (0, int(numbers.n["things"]) - 1, int(numbers.n["things"]), int(numbers.n["places"]) - 1):
        tile = int(numbers.place["tile"][place])
        ends = rules.grid.beside(tile) if place < numbers.n["things"] else [tile]
        floor = rules.grid.walkable == 1
        assert np.array_equal(numbers.far[place][floor], distances(rules.grid, ends)[floor])
        assert (numbers.far[place][ends] == 0).all()
    walls = [tile for tile, glyph in enumerate(rules.grid.glyphs) if glyph in rules["map"]["walls"]]
    assert (numbers.far[:, walls] == FAR).all()


def test_who_is_on_a_thing_is_at_it_and_a_step_further_from_all_else(rules: Rules, numbers: Law) -> None:
    for place in (0, int(numbers.n["things"]) - 1):
        tile = int(numbers.place["tile"][place])
        others = np.arange(int(numbers.n["places"])) != place
        nearest = numbers.far[:, rules.grid.beside(tile)].min(axis=1)
        assert numbers.far[place, tile] == 0
        assert np.array_equal(numbers.far[others, tile], nearest[others] + 1)


def test_the_nearest_of_a_type_is_the_nearest(rules: Rules, numbers: Law) -> None:
    first, count = int(numbers.n["type_first"][0]), int(numbers.n["type_count"][0])
    for tile in np.flatnonzero(rules.grid.walkable)[::37]:
        nearest = int(numbers.tile["nearest"][tile, 0])
        assert numbers.far[nearest, tile] == numbers.far[first : first + count, tile].min()


def test_what_happens_bit_by_bit_is_divided_by_its_ticks() -> None:
    entry = {"id": "nap", "object": "bed", "duration": 100, "per_tick": True, "effects": {"energy": 0.5}}
    n = law(load(override={"affordance": [entry, *load()["affordance"][1:]]})).n
    assert n["aff_effect"][0].tolist() == [0, 0, 5000, 0]


def test_the_shares_of_natures_add_up(numbers: Law, rules: Rules) -> None:
    upto = numbers.n["profile_upto"][: len(rules["profile"])]
    assert abs(int(upto[-1]) - 2**32) <= 2 and all(np.diff(upto) > 0)


def test_the_clock_goes_round(numbers: Law) -> None:
    assert np.allclose((numbers.clock**2).sum(axis=1), 1, atol=1e-6)
    assert numbers.clock[0].tolist() == [0, 1]
