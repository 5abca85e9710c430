"""Shifts of the reference, by hand."""

from __future__ import annotations

from tests.town.reference.parts import at, morning, put
from tests.town.reference.work import earn, fine, hire, quit_job, shifts


def test_a_tick_of_work_is_paid_by_the_treasury() -> None:
    world = morning()
    person = world.people[0]
    put(world, 0, 2, 8)
    assert not earn(world, person)  # it is night
    at(world, 420)
    assert earn(world, person)
    assert (person.money, world.town.treasury, person.worked) == (30_095, -95, 1)


def test_a_fine_takes_what_there_is() -> None:
    world = morning()
    world.people[0].money = 300
    fine(world, world.people[0], 0.1)
    assert (world.people[0].money, world.town.treasury) == (0, 300)


def test_who_is_not_there_in_time_is_late_then_absent() -> None:
    world = morning()
    states = []
    for tick in range(420, 452):
        at(world, tick)
        shifts(world)
        states.append((world.people[0].shift, world.people[0].was_late))
    assert states[5] == ("due", 0) and states[6] == ("due", 1)
    assert states[29][0] == "due" and states[30] == ("absent", 1)


def test_the_first_free_place_is_taken() -> None:
    world = morning()
    taken = {(person.job, person.job_slot) for person in world.people}
    assert taken == {(0, 0), (1, 0), (2, 0), (3, 0)}
    quit_job(world, world.people[1])
    assert hire(world, 0) and world.people[0].job_slot == 1  # of the first job, whose first place is still one's own
