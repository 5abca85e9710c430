"""What holds at every tick of every world, whatever its residents do."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.town.env import Env
from holdfast.town.rules import load
from holdfast.town.state import TownState

pytestmark = pytest.mark.timeout(600)  # whoever comes first waits for the compiler

RULES = load(override={"lifecycle": {"exits_per_day": 64, "cooldown": 0, "collapse_ticks": 5}})  # many come and go
HASTE = load(  # all that can happen, soon
    override={
        "needs": {
            "hunger": {"decay": 12.0, "weight": 1.0, "low": 0.45},
            "hygiene": {"decay": 6.0, "weight": 0.6, "low": 0.35},
            "energy": {"decay": 6.0, "weight": 0.8, "low": 0.3},
            "social": {"decay": 4.0, "weight": 0.3, "low": 0.4},
        },
        "lifecycle": {"exits_per_day": 64, "cooldown": 0, "grace": 0, "slot_cooldown": 10},
        "trouble": [
            {"id": "price_spike", "per_day": 10.0, "duration": [10, 20], "cooldown": 10, "factor": 1.5},
            {"id": "blackout", "per_day": 20.0, "duration": [5, 20], "cooldown": 10},
            {"id": "outage", "per_day": 20.0, "duration": [5, 20], "cooldown": 10},
            {"id": "meeting", "per_day": 20.0, "duration": [60, 90], "cooldown": 10},
        ],
        "scheduler": {"cooldown": 5},
    }
)


def by_chance(env: Env, rng: np.random.Generator) -> NDArray[np.int64]:
    """Any action that the mask allows."""
    weight = rng.random(env._mask.shape) * env._mask
    return weight.argmax(axis=2)


def lived(env: Env, seed: int, ticks: int) -> Iterator[TownState]:
    """Half of the residents plan, the others do anything that they can."""
    env.reset(seed)
    rng = np.random.default_rng(seed)
    for _ in range(ticks):
        planned = env.scripted().copy()
        planned[:, ::2] = by_chance(env, rng)[:, ::2]
        env.step(planned)
        yield env.state


def in_hands(env: Env, people: NDArray[Any]) -> int:
    """What has been taken for something that is not at its end."""
    n, doing = env.law.n, people["doing"]
    busy = doing[(doing >= 0) & (people["alive"] == 1)]
    return int((n["aff_takes"][busy].sum(axis=1) + n["aff_uses"][busy]).sum())


@pytest.mark.parametrize("rules", [RULES, HASTE], ids=["calm", "haste"])
def test_no_money_and_no_food_is_made_or_lost(rules: Any) -> None:
    env = Env(rules, worlds=2)
    for state in lived(env, 3, 400):
        for world in range(2):
            town, people = state.town[world], state.people[world]
            assert people["money"].sum() + town["treasury"] + town["outside"] == 0
            assert (people["money"] >= 0).all()
            here = state.things["stock"][world].sum() + people["item"].sum() + in_hands(env, people)
            assert town["delivered"] == here + town["eaten"] + town["lost"]
    assert state.town["finished"].min() > 100
    if rules is HASTE:
        assert state.town["exits"].min() > 0 and state.town["aborted"].min() > 0 and state.town["troubles"].min() > 5


@pytest.mark.parametrize("rules", [RULES, HASTE], ids=["calm", "haste"])
def test_everybody_is_in_one_place_and_in_at_most_one_line(rules: Any) -> None:
    env = Env(rules, worlds=2)
    tiles = env.law.tile
    waited = 0
    for state in lived(env, 4, 300):
        for world in range(2):
            people, things, who = state.people[world], state.things[world], state.who[world]
            alive = np.flatnonzero(people["alive"] == 1)
            standing = np.full(who.shape, -1, np.int16)
            standing[people["tile"][alive]] = alive
            assert (who == standing).all()
            assert (who >= 0).sum() == len(alive)  # one resident a tile
            on_thing = tiles["thing_at"][people["tile"][alive]] >= 0
            assert (tiles["walk"][people["tile"][alive]] == (~on_thing)).all()
            line = people["queue"][alive]
            assert (np.bincount(line[line >= 0], minlength=len(things)) == things["waiting"]).all()
            waited += int((line >= 0).sum())
            held = np.flatnonzero(things["held_for"] >= 0)
            assert (people["queue"][things["held_for"][held]] == held).all()
            assert (things["holder"][held] < 0).all()
    assert waited > 0


@pytest.mark.parametrize("rules", [RULES, HASTE], ids=["calm", "haste"])
def test_who_does_something_holds_the_thing_and_is_on_its_tile(rules: Any) -> None:
    env = Env(rules, worlds=1)
    for state in lived(env, 5, 300):
        people, things = state.people[0], state.things[0]
        busy = np.flatnonzero((people["alive"] == 1) & (people["doing"] >= 0))
        using = people["using"][busy]
        assert (things["holder"][using] == busy).all()
        assert (people["tile"][busy] == env.law.place["tile"][using]).all()
        assert (people["queue"][busy] == -1).all()
        assert (people["left"][busy] > 0).all()
        assert (things["holder"] >= 0).sum() == len(busy)
        idle = people["doing"] < 0
        assert (people["using"][idle] == -1).all() and (people["paid"][idle] == 0).all()


def test_everything_stays_in_its_bounds() -> None:
    env = Env(HASTE, worlds=1)
    for state in lived(env, 6, 300):
        people = state.people[0]
        assert people["need"].min() >= 0 and people["need"].max() <= 1_000_000
        assert people["item"].min() >= 0
        for name in ("tie_trust", "tie_familiarity", "tie_rivalry"):
            assert np.abs(people[name]).max() <= 1_000_000
        assert state.things["stock"].min() >= 0
        assert np.abs(env._features).max() <= 1.0 and np.isfinite(env._features).all()


def names_of(env: Env, seed: int, ticks: int, **reset: int) -> list[str]:
    env.reset(seed, **reset)
    for _ in range(ticks):
        env.step(env.scripted())
    return [env.state.sha256(world) for world in range(env.worlds)]


def test_a_world_is_the_same_alone_and_among_others() -> None:
    together = names_of(Env(HASTE, worlds=8), 7, 300)
    assert len(set(together)) == 8
    for world in (0, 5):
        assert names_of(Env(HASTE, worlds=1), 7, 300, first_world=world) == [together[world]]


def test_what_is_restored_goes_on_as_if_nothing_had_been() -> None:
    env = Env(HASTE, worlds=2)
    names_of(env, 8, 200)
    kept = env.state.copy()
    for _ in range(150):
        env.step(env.scripted())
    end = env.state.sha256()
    other = Env(HASTE, worlds=2)
    names_of(other, 99, 20)
    seen = other.restore(kept)
    assert (seen.alive == (kept.people["alive"] == 1)).all()
    for _ in range(150):
        other.step(other.scripted())
    assert other.state.sha256() == end
    assert kept.sha256() != end


def test_looking_changes_nothing() -> None:
    env = Env(RULES, worlds=2, variant="full")
    names_of(env, 9, 30)
    before = env.state.sha256()
    env._seen()
    env.scripted()
    assert env.state.sha256() == before


def test_a_door_is_never_shut_by_a_sleeper() -> None:
    """All who sleep, cook or wash are on things: every tile of the floor can be passed."""
    env = Env(load(), worlds=1)
    env.reset(2)
    for _ in range(200):
        env.step(env.scripted())
        people = env.state.people[0]
        busy = people[(people["alive"] == 1) & (people["doing"] >= 0)]
        assert (env.law.tile["walk"][busy["tile"]] == 0).all()
    assert len(busy) > 15  # asleep, at three in the night


def test_a_meal_that_is_left_half_eaten_is_not_shared() -> None:
    """To sit down and get up again beside somebody who eats gives nothing: no trust, no company."""
    env = Env(load(), worlds=1)
    env.reset(2)
    eat, leave = env.actions.index("use:eat"), env.actions.index("leave")
    left = 0
    for _ in range(900):
        planned = env.scripted().copy()
        begun = env.state.people["doing"] == eat - env.actions.index("use:sleep")
        planned[begun] = leave
        left += int(begun.sum())
        env.step(planned)
    assert left > 500 and env.state.town["shared_meals"][0] == 0


def test_a_thing_that_was_held_for_one_who_went_elsewhere_is_free_again() -> None:
    """One is called to a thing, and begins to use another: the first goes to the next in line, or to anybody."""
    env = Env(HASTE, worlds=1)
    for state in lived(env, 11, 300):
        things, people = state.things[0], state.people[0]
        held = np.flatnonzero(things["held_for"] >= 0)
        assert (things["held_until"][held] - int(state.town["tick"][0]) <= int(env.law.n["hold"])).all()
        assert (people["alive"][things["held_for"][held]] == 1).all()
