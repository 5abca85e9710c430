"""The map: which tiles can be walked on, what stands where, and how far everything is from everywhere."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from holdfast.town.jit import jit

FAR = 65_535  # cannot be reached
STEPS = ((0, -1), (1, 0), (0, 1), (-1, 0))  # north, east, south, west


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    width: int
    height: int
    walkable: NDArray[np.uint8]  # by tile; a tile is y × width + x
    glyphs: str  # the map itself, row after row, for pictures
    objects: tuple[tuple[str, int], ...]  # type and tile: by type in the order of the rules, then in reading order
    entries: tuple[int, ...]

    def beside(self, tile: int) -> list[int]:
        """The tiles around one that can be walked on: north, east, south, west."""
        x, y = tile % self.width, tile // self.width
        around = [(x + dx, y + dy) for dx, dy in STEPS]
        inside = [b * self.width + a for a, b in around if 0 <= a < self.width and 0 <= b < self.height]
        return [one for one in inside if self.walkable[one]]


def read(rows: list[str], *, walls: str, doors: str, ground: str, entry: str, objects: Mapping[str, str]) -> Grid:
    """The map that the rows draw; what is odd about it has been refused before (rules)."""
    width, height = len(rows[0]), len(rows)
    glyphs = "".join(rows)
    walkable = np.array([glyph in ground or glyph in doors for glyph in glyphs], np.uint8)
    types = list(dict.fromkeys(objects.values()))
    placed = [(objects[glyph], tile) for tile, glyph in enumerate(glyphs) if glyph in objects]
    edge = [t for t in range(width * height) if t % width in (0, width - 1) or t // width in (0, height - 1)]
    return Grid(
        width=width,
        height=height,
        walkable=walkable,
        glyphs=glyphs,
        objects=tuple(sorted(placed, key=lambda one: (types.index(one[0]), one[1]))),
        entries=tuple(t for t in edge if glyphs[t] == entry and walkable[t]),
    )


def distances(grid: Grid, targets: Iterable[int]) -> NDArray[np.uint16]:
    """Steps from every tile to the nearest of the targets, all of which can be walked on."""
    far = np.full(grid.walkable.size, FAR, np.uint16)
    _flood(grid.walkable, grid.width, np.array(sorted(targets), np.int64), far, np.empty(far.size, np.int64))
    return far


@jit
def _flood(
    walkable: NDArray[np.uint8],
    width: int,
    targets: NDArray[np.int64],
    far: NDArray[np.uint16],
    waiting: NDArray[np.int64],
) -> None:
    last = 0
    for tile in targets:
        far[tile] = 0
        waiting[last] = tile
        last += 1
    first = 0
    while first < last:
        tile = waiting[first]
        first += 1
        for step in range(4):
            x = tile % width + (1 if step == 1 else -1 if step == 3 else 0)
            near = tile + (-width if step == 0 else 1 if step == 1 else width if step == 2 else -1)
            if 0 <= x < width and 0 <= near < walkable.size and walkable[near] and far[near] == FAR:
                far[near] = far[tile] + 1
                waiting[last] = near
                last += 1
