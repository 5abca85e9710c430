"""The map: what can be walked on, what stands where, how far it is."""

from __future__ import annotations

from collections import deque

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.town.rules import FAR, Grid, distances, read

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
