"""Steps, use and queues: one resident a tile, one user a thing, a fair line, and nothing lost when it is broken off."""

from __future__ import annotations

import pytest

from holdfast.town.env import Env
from tests.town.small import at, put, small, step, told

QUIET = {"trouble": [{"id": "rain", "per_day": 0.0, "duration": [1, 1], "cooldown": 0}]}
TO_SHOWER = 3 + 2  # after home, work and meeting: the third type of things


@pytest.fixture
def env() -> Env:
    env = Env(small(QUIET))
    env.state.town["mortal"] = 0
    env.state.people["need"] = 500_000
    return at(env, 1)


def tile(env: Env, i: int) -> tuple[int, int]:
    here = int(env.state.people["tile"][0, i])
    return here % 20, here // 20


def test_a_step_leads_where_it_says_and_not_through_walls(env: Env) -> None:
    put(env, 0, 4, 5)
    for deed, there in (("east", (5, 5)), ("north", (5, 5)), ("west", (4, 5)), ("south", (4, 5))):
        step(env, r0=deed)
        assert tile(env, 0) == there
    put(env, 0, 0, 5)
    step(env, r0="west")  # beyond the edge
    assert tile(env, 0) == (0, 5)


def test_who_stands_in_the_way_is_passed_after_a_while(env: Env) -> None:
    put(env, 0, 5, 5)
    put(env, 1, 6, 5)
    for _ in range(2):
        step(env, r0="east")
        assert (tile(env, 0), tile(env, 1)) == ((5, 5), (6, 5))
    step(env, r0="east")
    assert (tile(env, 0), tile(env, 1)) == ((6, 5), (5, 5))
    assert told(env, "ghost_step") == [(0, 1, 5 * 20 + 6)]


def test_two_who_meet_in_a_door_both_get_through(env: Env) -> None:
    put(env, 0, 2, 3)
    put(env, 1, 2, 5)
    for _ in range(12):
        step(env, r0="south" if tile(env, 0)[1] < 5 else "wait", r1="north" if tile(env, 1)[1] > 3 else "wait")
    assert (tile(env, 0), tile(env, 1)) == ((2, 5), (2, 3))


def test_who_uses_a_thing_is_on_its_tile_and_in_nobodys_way(env: Env) -> None:
    put(env, 0, 10, 2)
    step(env, r0="use:shower")
    assert tile(env, 0) == (10, 1)
    put(env, 1, 10, 2)
    assert env.state.people["doing"][0, 0] >= 0


def wait_in_line(env: Env) -> int:
    """Resident 0 showers; 1 and then 2 wait."""
    put(env, 0, 10, 2)
    step(env, r0="use:shower")
    shower = int(env.state.people["using"][0, 0])
    put(env, 1, 10, 2)
    put(env, 2, 9, 2)
    env.state.people["goal"][0, 1:3], env.state.people["goal_kind"][0, 1:3] = shower, TO_SHOWER
    step(env, r1="use:shower")
    step(env, r2="use:shower")
    assert env.state.people["queue"][0].tolist() == [-1, shower, shower, -1]
    return shower


def test_nobody_is_put_out_and_the_first_in_line_is_next(env: Env) -> None:
    shower = wait_in_line(env)
    while env.state.people["doing"][0, 0] >= 0:
        assert env.state.things["holder"][0, shower] == 0
        step(env, r1="use:shower", r2="use:shower")
    assert [(a, b) for a, b, _ in told(env, "handover")] == [(1, shower)]
    step(env, r2="use:shower")  # not their turn
    assert env.state.people["doing"][0, 2] < 0
    step(env, r1="use:shower")
    assert env.state.things["holder"][0, shower] == 1


def test_who_does_not_come_when_called_is_called_last(env: Env) -> None:
    shower = wait_in_line(env)
    step(env, r0="leave")
    called = []
    for _ in range(20):
        step(env)
        called.append(int(env.state.things["held_for"][0, shower]))
    assert called.index(2) == 8 - 1 and set(called) == {1, 2}


def test_who_walks_away_is_no_longer_in_line(env: Env) -> None:
    shower = wait_in_line(env)
    who = env.state.people["tile"][0, 1]
    put(env, 1, 5, 5)
    step(env)
    assert who != env.state.people["tile"][0, 1] and env.state.people["queue"][0, 1] == -1
    assert env.state.things["waiting"][0, shower] == 1


def test_what_is_broken_off_gives_back_what_it_took(env: Env) -> None:
    put(env, 0, 10, 2)
    money = int(env.state.people["money"][0, 0])
    step(env, r0="use:shower")
    assert int(env.state.people["money"][0, 0]) == money - 500
    step(env, r0="leave")
    assert int(env.state.people["money"][0, 0]) == money
    assert int(env.state.town["treasury"][0]) == 0
    assert env.state.people["need"][0, 0, 1] < 500_000  # and nothing was got for it


def test_who_eats_up_near_another_who_eats_has_shared_the_meal(env: Env) -> None:
    put(env, 0, 13, 2)
    put(env, 1, 15, 2)
    step(env, r0="use:eat", r1="use:eat")
    assert not told(env, "shared_meal")
    for _ in range(15):
        step(env)
    assert len(told(env, "shared_meal")) == 1
    assert len(told(env, "finished")) == 2


@pytest.mark.parametrize(
    ("change", "why"),
    [({"need": 950_000}, 1), ({"item": 0}, 3)],  # the condition: hunger < 0.9; no meal
)
def test_why_something_fails_is_told(env: Env, change: dict[str, int], why: int) -> None:
    put(env, 0, 13, 2)
    for name, value in change.items():
        env.state.people[name][0, 0] = value
    step(env, r0="use:eat")
    eat = [entry["id"] for entry in env.rules["affordance"]].index("eat")
    assert told(env, "failed") == [(0, eat, why)]
