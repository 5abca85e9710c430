"""A small world of the reference on its first morning, with everybody well and of a plain nature."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.town.rules import NEEDS, TRAITS
from tests.town.reference.life import begin
from tests.town.reference.world import World
from tests.town.small import small


def morning(override: Mapping[str, Any] | None = None) -> World:
    world = begin(small(override), 1)
    for person in world.people:
        person.need = dict.fromkeys(NEEDS, 900_000)
        person.trait = dict.fromkeys(TRAITS, 0)
    world.events.clear()
    return world


def put(world: World, i: int, x: int, y: int) -> None:
    tile = y * world.layout.width + x
    assert world.layout.walkable[tile] and tile not in world.who
    del world.who[world.people[i].tile]
    world.people[i].tile, world.who[tile] = tile, i


def at(world: World, tick: int) -> None:
    world.town.tick, world.town.time = tick, tick % world.rules["ticks_per_day"]
