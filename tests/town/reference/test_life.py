"""Needs, trouble, coming and going of the reference, by hand."""

from __future__ import annotations

from tests.town.reference.life import begin, dawn, deliver, depart, exits, free_slot, invite, nature, wear
from tests.town.reference.parts import at, morning
from tests.town.reference.world import NEVER, Tie
from tests.town.small import small


def test_the_first_morning_has_everybody_at_home_with_a_kit() -> None:
    world = begin(small(), 5)
    assert all(person.item == {"raw": 1, "meal": 1} and person.money == 30_000 for person in world.people)
    assert [person.home for person in world.people] == [0, 1, 2, 3]
    assert world.town.outside == -120_000
    assert all(600_000 <= value < 950_000 for person in world.people for value in person.need.values())


def test_rent_is_paid_or_noted_at_dawn() -> None:
    world = morning()
    world.people[1].money = 7999
    dawn(world)
    assert [person.money for person in world.people] == [22_000, 7999, 22_000, 22_000]
    assert [person.unpaid for person in world.people] == [0, 1, 0, 0]


def test_the_truck_fills_up_what_is_missing() -> None:
    world = morning()
    at(world, 300)
    deliver(world)
    tills = world.layout.of_type("till")
    assert [world.things[o].stock for o in tills] == [60] * len(tills)
    assert world.events[0].value == 20 * len(tills)


def test_a_collapse_takes_half_an_hour_of_hunger() -> None:
    world = morning()
    for tick in range(31):
        at(world, 100 + tick)
        world.people[0].need["hunger"] = 30_000
        exits(world)
        if not world.people[0].alive:
            break
    assert tick == 29
    assert (world.people[0].cause, world.town.outside) == ("collapse", -90_000)


def test_who_leaves_takes_everything_along() -> None:
    world = morning()
    world.people[1].ties[0] = Tie(0, 1000)
    slot = world.people[0].slot
    depart(world, 0, "eviction")
    assert world.people[1].ties[0] is None
    assert 0 not in world.who.values() and world.slots[slot] == 0
    assert world.town.count["lost"] == 2


def test_an_identity_rests_before_it_is_given_again() -> None:
    world = morning()
    world.slots = [10, 5, -2]
    at(world, 2004)
    assert free_slot(world) is None
    at(world, 2005)
    assert free_slot(world) == 1
    world.slots.append(NEVER)
    assert free_slot(world) == 3


def test_needs_run_down_by_their_share_of_a_day() -> None:
    world = morning({"needs": {"hunger": {"decay": 1.44}}})
    wear(world)
    assert world.people[0].need["hunger"] == 899_000


def test_the_worst_rivals_are_invited() -> None:
    world = morning()
    world.people[2].ties[0] = Tie(3, 0, 0, 500)
    world.people[0].ties[0] = Tie(1, 0, 0, 400)
    assert invite(world, 60)
    assert (world.town.meeting_a, world.town.meeting_b, world.people[2].tokens) == (2, 3, 0)
    assert not invite(world, 60)


def test_natures_come_in_their_shares() -> None:
    world = morning()
    found = []
    for world.town.births in range(1, 1001):
        nature(world, world.people[0])
        found.append(world.people[0].profile)
    for profile, entry in enumerate(world.rules["profile"]):
        assert abs(found.count(profile) - 1000 * entry["share"]) <= 5
