"""The objects of the reference: all that a record holds is in them, and a difference is told by name."""

from __future__ import annotations

from dataclasses import fields

import pytest

from holdfast.town.env import Env
from holdfast.town.rules import FAR
from holdfast.town.state import COUNTS, PERSON, THING, TOWN
from tests.town.reference.world import Layout, Person, Thing, Tie, Town, World, difference, draw, read
from tests.town.small import small


@pytest.fixture(scope="module")
def env() -> Env:
    env = Env(small())
    for _ in range(120):
        env.step(env.scripted())
    return env


def names(record: type) -> set[str]:
    return {one.name for one in fields(record)}


def test_every_field_of_every_record_is_read() -> None:
    ties = {name for name in PERSON.names or () if name.startswith("tie_")}
    spare = {"spare"}  # bytes that fill up a record
    assert len(ties) == len(fields(Tie)) == 5
    assert names(Person) == set(PERSON.names or ()) - ties - spare | {"ties"}
    assert names(Thing) == set(THING.names or ()) - spare
    assert names(Town) == set(TOWN.names or ()) - set(COUNTS) - spare | {"count"}


def test_a_world_is_read_as_it_is(env: Env) -> None:
    world = read(env.state, env.rules)
    assert world.town.tick == 120
    assert [person.money for person in world.people] == env.state.people["money"][0].tolist()
    assert world.who == {person.tile: i for i, person in enumerate(world.people)}
    assert len(world.events) == world.town.events
    assert difference(world, read(env.state, env.rules)) is None


def other(env: Env) -> World:
    return read(env.state, env.rules)


def test_the_first_difference_is_told_by_name(env: Env) -> None:
    world, changed = other(env), other(env)
    changed.people[2].need["hunger"] += 1
    hunger = world.people[2].need
    assert difference(world, changed) == (
        f"tick 120: people[2].need: kernel {hunger!r}, reference {changed.people[2].need!r}"
    )
    changed = other(env)
    changed.town.count["moves"] = -1
    assert str(difference(world, changed)).startswith("tick 120: town.count: kernel")
    changed = other(env)
    changed.things[3].stock = 99
    assert str(difference(world, changed)).startswith("tick 120: things[3].stock: kernel")
    changed = other(env)
    changed.slots[5] = 4
    assert difference(world, changed) == "tick 120: slots: kernel -1, reference 4"
    changed = other(env)
    last = changed.events.pop()
    assert str(difference(world, changed)).startswith("tick 120: events: kernel")
    changed.events.append(last)
    changed.tell("chat", 1, 2, 3)
    assert str(difference(world, changed)).startswith("tick 120: town.events: kernel")


def test_ways_of_the_small_map() -> None:
    layout = Layout(small())
    bed = layout.of_type("bed")[0]
    assert layout.tile_of[bed] == 21
    assert [layout.far(bed, y * 20 + x) for x, y in ((1, 2), (1, 3), (2, 2), (5, 3))] == [0, 1, 1, 5]
    assert layout.far(bed, 0) == FAR
    assert layout.is_park(8 * 20 + 18) and not layout.is_indoors(8 * 20 + 18)
    assert layout.is_indoors(2 * 20 + 1) and not layout.is_indoors(5 * 20 + 3)
    assert layout.beside(0) == [None, 1, 20, None]


def test_chance_is_even_and_the_same_again() -> None:
    numbers = [draw(1, tick, "order", 0) * 10 >> 32 for tick in range(2000)]
    assert numbers == [draw(1, tick, "order", 0) * 10 >> 32 for tick in range(2000)]
    assert all(150 < numbers.count(k) < 250 for k in range(10))
