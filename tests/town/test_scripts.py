"""Residents who plan: they choose what the mask allows, and what a sensible person would do."""

from __future__ import annotations

import pytest

from holdfast.town.env import Env
from holdfast.town.rules import UNIT
from tests.town.small import at, put, small, step

QUIET = {"trouble": [{"id": "rain", "per_day": 0.0, "duration": [1, 1], "cooldown": 0}]}


@pytest.fixture
def env() -> Env:
    """In the middle of a free morning: nobody has work, everybody is well."""
    env = Env(small(QUIET))
    at(env, 600)
    people = env.state.people
    people["job"], people["job_slot"], people["jobless_since"], people["hire_at"] = -1, -1, -1, 1 << 30
    people["need"] = 950_000
    people["trait"] = 0
    return env


def choice(env: Env, i: int = 0) -> str:
    return env.actions[int(env.scripted()[0, i])]


def test_who_is_starving_and_has_a_meal_goes_to_eat_it(env: Env) -> None:
    env.state.people["need"][0, 0, 0] = 100_000
    assert choice(env) == "go:seat"
    put(env, 0, 13, 2)  # below a seat
    assert choice(env) == "use:eat"


def test_who_has_only_the_makings_cooks(env: Env) -> None:
    env.state.people["need"][0, 0, 0] = 100_000
    env.state.people["item"][0, 0], env.state.people["money"][0, 0] = [1, 0], 100
    assert choice(env) == "go:stove"


def test_who_has_nothing_to_eat_buys(env: Env) -> None:
    env.state.people["need"][0, 0, 0] = 100_000
    env.state.people["item"][0, 0] = 0
    assert choice(env) in ("go:till", "go:counter")


def test_who_is_tired_goes_to_bed(env: Env) -> None:
    env.state.people["need"][0, 0, 2] = 100_000
    put(env, 0, 5, 5)
    assert choice(env) == "go:home"


def test_who_has_a_shift_sets_out_in_time_and_works(env: Env) -> None:
    env.state.people["job"][0, 0], env.state.people["job_slot"][0, 0] = 0, 0
    at(env, 419)
    put(env, 0, 5, 5)
    assert choice(env) == "go:work"
    put(env, 0, 2, 8)
    at(env, 421)
    env.state.people["shift"][0, 0] = 3
    assert choice(env) in ("work", "go:work")


def test_who_is_invited_goes_there(env: Env) -> None:
    town = env.state.town
    town["meeting_a"], town["meeting_b"], town["meeting_until"] = 0, 1, 900
    town["meeting_place"] = int(env.law.n["first_meeting"])
    assert (choice(env, 0), choice(env, 1)) == ("go:meeting", "go:meeting")


def test_who_can_spare_a_meal_gives_it_to_the_hungry(env: Env) -> None:
    put(env, 0, 5, 5)
    put(env, 1, 6, 5)
    env.state.people["item"][0, :2] = [[0, 2], [0, 0]]
    env.state.people["need"][0, 1, 0] = 100_000
    assert choice(env) == "help"


def test_who_has_a_rival_in_front_leaves_the_line(env: Env) -> None:
    put(env, 1, 10, 2)
    env.state.people["need"][0, :, 1] = 300_000
    step(env, r1="use:shower")
    shower = int(env.state.people["using"][0, 1])
    put(env, 0, 10, 3)
    env.state.people["goal"][0, 0], env.state.people["goal_kind"][0, 0] = shower, 3 + 2
    step(env, r0="use:shower")
    assert env.state.people["queue"][0, 0] == shower
    assert choice(env) != "leave"
    env.state.people["tie_to"][0, 0, 0], env.state.people["tie_rivalry"][0, 0, 0] = 1, 900_000
    assert choice(env) == "leave"


def test_who_has_left_waits(env: Env) -> None:
    env.state.people["alive"][0, 0] = 0
    assert choice(env) == "wait"


def test_plans_are_possible_by_the_mask() -> None:
    """Nearly always: of what is planned, the mask refuses next to nothing, in a town that is lived in."""
    env = Env(small(QUIET))
    seen, refused, planned = env.reset(2), 0, 0
    for _ in range(1000):
        actions = env.scripted()
        for i in range(env.residents):
            planned += 1
            refused += not seen.mask[0, i, actions[0, i]]
        seen = env.step(actions)
    assert refused < 0.02 * planned


def test_a_small_town_lives_a_day_and_nobody_has_to_leave() -> None:
    env = Env(small(QUIET))
    env.reset(1)
    for _ in range(1440):
        env.step(env.scripted())
    town = env.state.town[0]
    assert town["exits"] == 0
    assert (env.state.people["need"][0, :, :3].mean(axis=0) > 0.3 * UNIT).all()
    assert town["worked"] > 800 and town["finished"] > 15
