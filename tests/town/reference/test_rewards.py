"""Rewards of the reference, by hand."""

from __future__ import annotations

import pytest

from tests.town.reference.parts import morning
from tests.town.reference.rewards import base, is_near_exit, pay, potential, squash


def test_the_potential_is_the_weighted_deficit() -> None:
    world = morning()
    assert potential(world, world.people[0]) == -round(100_000 * (1 + 0.6 + 0.8 + 0.3))


def test_the_squash_halves_at_its_scale() -> None:
    assert [squash(value, 200) for value in (0, 200, -200, 7)] == [0, 100, -100, 6]


def test_the_deficit_is_squared() -> None:
    world = morning({"rewards": {"alive": 0.0, "deficit": 0.02, "squash": 10.0}})
    assert base(world, world.people[0]) == pytest.approx(-0.02 * 2.7 * 0.01 * 1e6, abs=2)  # each part is rounded


def test_the_end_costs_its_price_once() -> None:
    world = morning()
    person = world.people[0]
    person.alive, person.cause, person.shaped = 0, "collapse", -500_000
    assert pay(world, person) == -5.0
    person.cause = None
    assert pay(world, person) == 0


def test_near_an_exit_nothing_good_is_paid() -> None:
    world = morning()
    person = world.people[0]
    person.fresh, person.earned, person.shaped = 0, 10_000, potential(world, person)
    assert pay(world, person) > 0
    person.low_ticks = 20
    assert is_near_exit(world, person)
    person.shaped = potential(world, person)
    assert pay(world, person) == 0
