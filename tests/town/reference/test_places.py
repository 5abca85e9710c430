"""Steps, use and queues of the reference, by hand."""

from __future__ import annotations

from tests.town.reference.parts import at, morning, put
from tests.town.reference.places import abort, hand_over, hindrance, move, price, progress, use, walk


def test_one_resident_a_tile_until_they_pass_one_another() -> None:
    world = morning()
    put(world, 0, 5, 5)
    put(world, 1, 6, 5)
    east = world.people[1].tile
    assert [move(world, 0, east) for _ in range(3)] == [False, False, True]
    assert (world.people[0].tile, world.people[1].tile) == (east, east - 1)
    assert [event.kind for event in world.events] == ["ghost_step"]


def test_a_way_is_walked_step_by_step() -> None:
    world = morning()
    put(world, 0, 5, 5)
    stove = world.layout.of_type("stove")[0]
    steps = world.layout.far(stove, world.people[0].tile)
    for left in range(steps, 0, -1):
        assert world.layout.far(stove, world.people[0].tile) == left
        assert walk(world, 0, stove)
    assert world.layout.far(stove, world.people[0].tile) == 0


def test_to_cook_takes_the_makings_and_gives_a_meal_at_its_end() -> None:
    world = morning()
    put(world, 0, 9, 1)
    person = world.people[0]
    person.item = {"raw": 1, "meal": 0}
    assert use(world, 0, "cook")
    assert (person.item, person.left) == ({"raw": 0, "meal": 0}, 30)
    for _ in range(30):
        progress(world)
    assert (person.item, person.doing) == ({"raw": 0, "meal": 1}, None)
    assert person.need["energy"] == 880_000


def test_what_is_broken_off_is_given_back() -> None:
    world = morning()
    put(world, 0, 10, 2)
    person = world.people[0]
    assert use(world, 0, "shower")
    assert (person.money, world.town.treasury) == (29_500, 500)
    abort(world, 0)
    assert (person.money, world.town.treasury) == (30_000, 0)


def test_why_something_cannot_be_done() -> None:
    world = morning()
    person, seat = world.people[0], world.layout.of_type("seat")[0]
    assert hindrance(world, person, seat, "eat") == "condition"  # not hungry
    person.need["hunger"] = 500_000
    assert hindrance(world, person, seat, "eat") == ""
    person.item["meal"] = 0
    assert hindrance(world, person, seat, "eat") == "items"
    till = world.layout.of_type("till")[0]
    world.things[till].stock = 0
    assert hindrance(world, person, till, "buy") == "stock"
    person.money = 4999
    assert hindrance(world, person, till, "buy") == "money"
    world.town.until["price_spike"] = 10
    assert price(world, "buy") == 7500


def test_a_freed_thing_waits_for_who_has_waited_longest() -> None:
    world = morning()
    shower = world.layout.of_type("shower")[0]
    for i, since in ((2, 5), (1, 3)):
        world.people[i].queue, world.people[i].queue_since = shower, since
        world.things[shower].waiting += 1
    at(world, 9)
    hand_over(world, shower)
    assert (world.things[shower].held_for, world.things[shower].held_until) == (1, 17)
    assert world.events[-1].kind == "handover" and world.events[-1].value == 6
