"""Ties of the reference, by hand."""

from __future__ import annotations

from tests.town.reference.parts import at, morning
from tests.town.reference.ties import affinity, bump, clash, fade, tie
from tests.town.reference.world import Tie


def test_the_weakest_tie_gives_way_to_a_stronger_one() -> None:
    world = morning({"ties": {"most": 2}})
    person = world.people[0]
    for other, trust in ((1, 50_000), (2, 300_000), (3, 40_000)):
        bump(world, person, other, (trust, 0, 0))
    assert person.ties[:2] == [Tie(1, 50_000), Tie(2, 300_000)]
    bump(world, person, 3, (0, 60_000, 0))
    assert person.ties[:2] == [Tie(3, 0, 60_000), Tie(2, 300_000)]


def test_a_conflict_counts_half_for_who_was_in_the_way() -> None:
    world = morning()
    clash(world, 0, 1, 1000)
    assert tie(world.people[0], 1) == Tie(1, -20_000, 0, 150_000)
    assert tie(world.people[1], 0) == Tie(0, -10_000, 0, 75_000)
    assert affinity(world.people[0], 1) == -170_000


def test_ties_fade_to_nothing_and_are_dropped() -> None:
    world = morning()
    bump(world, world.people[0], 1, (-1500, 3000, 0))
    at(world, 60)
    fade(world)
    assert world.people[0].ties[0] == Tie(1, -500, 1000)
    fade(world)
    assert world.people[0].ties[0] is None
