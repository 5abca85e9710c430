"""What holds at every tick of every world, whatever its residents do, alone, in a batch of any size, and restored."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.town import kernel
from holdfast.town.env import Env
from holdfast.town.kernel import EVENTS, KINDS, tell
from holdfast.town.rules import load
from holdfast.town.state import EVENT, PERSON, THING, TOWN, TownState, blank
from tests.town.small import put, small, step, told

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


def run(env: Env, ticks: int) -> str:
    for _ in range(ticks):
        env.step(env.scripted())
    return env.state.sha256()


# Always ---------------------------------------------------------------------------------------------------------------


def in_hands(env: Env, people: NDArray[Any]) -> int:
    """What has been taken for something that is not at its end."""
    n, doing = env.law.n, people["doing"]
    busy = doing[(doing >= 0) & (people["alive"] == 1)]
    return int((n["aff_takes"][busy].sum(axis=1) + n["aff_uses"][busy]).sum())


@pytest.mark.parametrize("rules", [RULES, HASTE, small()], ids=["calm", "haste", "small"])
def test_no_money_and_no_food_is_made_or_lost(rules: Any) -> None:
    """Money moves between residents, the treasury and outside; food comes by delivery and goes by eating or loss."""
    env = Env(rules, worlds=2)
    for state in lived(env, 3, 400):
        for world in range(2):
            town, people = state.town[world], state.people[world]
            assert people["money"].sum() + town["treasury"] + town["outside"] == 0
            assert (people["money"] >= 0).all()
            here = state.things["stock"][world].sum() + people["item"].sum() + in_hands(env, people)
            assert town["delivered"] == here + town["eaten"] + town["lost"]
    assert state.town["finished"].min() > 100 or env.residents == 4
    if rules is HASTE:
        assert state.town["exits"].min() > 0 and state.town["aborted"].min() > 0 and state.town["troubles"].min() > 5


@pytest.mark.parametrize("rules", [RULES, HASTE], ids=["calm", "haste"])
def test_everybody_is_in_one_place_in_at_most_one_line_and_holds_what_is_used(rules: Any) -> None:
    env = Env(rules, worlds=2)
    tiles, waited = env.law.tile, 0
    for state in lived(env, 4, 300):
        for world in range(2):
            people, things, who = state.people[world], state.things[world], state.who[world]
            alive = np.flatnonzero(people["alive"] == 1)
            standing = np.full(who.shape, -1, np.int16)
            standing[people["tile"][alive]] = alive
            assert (who == standing).all() and (who >= 0).sum() == len(alive)  # one resident a tile
            on_thing = tiles["thing_at"][people["tile"][alive]] >= 0
            assert (tiles["walk"][people["tile"][alive]] == (~on_thing)).all()
            line = people["queue"][alive]
            assert (np.bincount(line[line >= 0], minlength=len(things)) == things["waiting"]).all()
            waited += int((line >= 0).sum())
            held = np.flatnonzero(things["held_for"] >= 0)
            assert (people["queue"][things["held_for"][held]] == held).all() and (things["holder"][held] < 0).all()
            # what is held for one who has left, or went elsewhere, is free again
            assert (things["held_until"][held] - int(state.town["tick"][world]) <= int(env.law.n["hold"])).all()
            assert (people["alive"][things["held_for"][held]] == 1).all()
            busy = np.flatnonzero((people["alive"] == 1) & (people["doing"] >= 0))
            using = people["using"][busy]
            assert (things["holder"][using] == busy).all() and (things["holder"] >= 0).sum() == len(busy)
            assert (people["tile"][busy] == env.law.place["tile"][using]).all()
            assert (people["queue"][busy] == -1).all() and (people["left"][busy] > 0).all()
            idle = people["doing"] < 0
            assert (people["using"][idle] == -1).all() and (people["paid"][idle] == 0).all()
    assert waited > 0


def test_everything_stays_in_its_bounds() -> None:
    env = Env(HASTE, worlds=1)
    for state in lived(env, 6, 300):
        people = state.people[0]
        assert people["need"].min() >= 0 and people["need"].max() <= 1_000_000
        assert people["item"].min() >= 0 and state.things["stock"].min() >= 0
        for name in ("tie_trust", "tie_familiarity", "tie_rivalry"):
            assert np.abs(people[name]).max() <= 1_000_000
        assert np.abs(env._features).max() <= 1.0 and np.isfinite(env._features).all()


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


# The same world -------------------------------------------------------------------------------------------------------


def test_a_world_is_the_same_in_a_batch_of_any_size() -> None:
    """Bit by bit, by scripts and chance in turn; every array that comes out is the same as well."""
    rules, sample = small(), (0, 1, 511, 1023)
    many = Env(rules, worlds=1024)
    lone = {k: Env(rules) for k in sample}
    seen, seens = many.reset(4), {k: env.reset(4, first_world=k) for k, env in lone.items()}
    rng = np.random.default_rng(1)
    for tick in range(240):
        if tick % 4:
            actions = many.scripted().copy()
        else:
            actions = (rng.random(seen.mask.shape, np.float32) * seen.mask).argmax(axis=2)
        seen = many.step(actions)
        seens = {k: env.step(actions[k : k + 1]) for k, env in lone.items()}
    for k, one in seens.items():
        assert lone[k].state.sha256() == many.state.sha256(k), k
        for name in ("features", "mask", "reward", "terminated"):
            assert np.array_equal(getattr(one, name)[0], getattr(seen, name)[k]), (k, name)
    assert len({many.state.sha256(k) for k in sample}) == len(sample)


def test_the_same_seed_is_the_same_world_and_another_is_not() -> None:
    env, names = Env(HASTE), []
    for seed in (1, 1, 2):
        env.reset(seed)
        names.append(run(env, 50))
    assert names[0] == names[1] != names[2]


def test_worlds_of_a_batch_do_not_touch_one_another() -> None:
    env, other = Env(small(), worlds=3), Env(small(), worlds=3)
    env.reset(1)
    other.reset(1)
    other.state.people["need"][1] = 0
    for _ in range(30):
        wait = np.zeros((3, 4), np.int64)
        env.step(wait)
        other.step(wait)
    assert [env.state.sha256(k) == other.state.sha256(k) for k in range(3)] == [True, False, True]


def test_what_is_restored_goes_on_as_if_nothing_had_been() -> None:
    env = Env(HASTE, worlds=2)
    env.reset(8)
    run(env, 200)
    kept, name = env.state.copy(), env.state.sha256()
    end = run(env, 150)
    assert kept.sha256() == name != end  # a copy is a world of its own
    other = Env(HASTE, worlds=2)
    other.reset(99)
    run(other, 20)
    seen = other.restore(kept)
    assert (seen.alive == (kept.people["alive"] == 1)).all()
    assert run(other, 150) == end
    assert kept.sha256() == name


def test_looking_changes_nothing() -> None:
    env = Env(RULES, worlds=2, variant="full")
    env.reset(9)
    before = run(env, 30)
    env._seen()
    env.scripted()
    env.restore(env.state)
    assert env.state.sha256() == before


def test_what_does_not_fit_a_batch_is_refused() -> None:
    env = Env(small())
    for shape in ((4,), (1, 5), (2, 4)):
        with pytest.raises(ValueError, match=r"actions are \(.*\), and must be \(1, 4\)"):
            env.step(np.zeros(shape, np.int64))
    for action in (-1, 99):
        with pytest.raises(ValueError, match="actions go from 0 to"):
            env.step(np.full((1, 4), action))
    with pytest.raises(ValueError, match="the snapshot is of other worlds"):
        env.restore(Env(small(), worlds=2).state)


# A tick ---------------------------------------------------------------------------------------------------------------


def test_days_end_but_the_world_would_go_on() -> None:
    job = {"id": "a", "venue": "office", "start": 0, "end": 40, "wage": 1.0, "slots": 4}
    env = Env(small({"ticks_per_day": 48, "job": [job]}), days=1)
    seen = env.reset(0)
    for tick in range(48):
        assert not seen.truncated.any(), tick
        seen = env.step(env.scripted())
    assert seen.truncated.all() and not seen.terminated.any()
    for _ in range(2):
        step(env)
    assert (env.state.town["tick"][0], env.state.town["time"][0]) == (50, 2)  # and the clock goes round


def test_nobody_is_always_first() -> None:
    """Two want the same tile again and again: each gets it now and then."""
    env, first = Env(small()), []
    for seed in range(30):
        env.reset(seed)
        put(env, 0, 4, 5)
        put(env, 1, 6, 5)
        step(env, r0="east", r1="west")
        first.append(int(env.state.who[0, 5 * 20 + 5]))
    assert set(first) == {0, 1}
    assert 6 < first.count(0) < 24


def test_who_has_just_come_does_nothing_yet() -> None:
    env = Env(small())
    env.state.people["alive"][0, 3] = 0
    env.state.who[0][env.state.people["tile"][0, 3]] = -1
    seen = step(env, r3="east")
    assert seen.alive[0, 3] and len(told(env, "arrival")) == 1
    assert env.state.people["last_action"][0, 3] == 0
    assert env.state.people["tile"][0, 3] in env.rules.grid.entries
    assert seen.features[0, 3, env.senses.features.index("fresh")] == 1
    assert not step(env).features[0, 3, env.senses.features.index("fresh")]


# Its records ----------------------------------------------------------------------------------------------------------


def test_every_array_is_in_the_name_and_a_picked_world_shares_them() -> None:
    env = Env(small(), worlds=3)
    env.reset(1)
    for name in ("town", "people", "things", "who", "slots", "events"):
        other = env.state.copy()
        other.arrays[name].reshape(-1)[:1].view(np.uint8)[0] ^= 1
        assert other.sha256() != env.state.sha256(), name
    one = env.state.pick(2)
    assert one.sha256() == env.state.sha256(2) != env.state.sha256(1)
    env.state.people["money"][2, 0] = 77
    assert one.people["money"][0, 0] == 77


def test_a_blank_state_is_empty_and_records_hold_whole_numbers_only() -> None:
    state = blank(2, 3, 4, 5, 6)
    assert (state.who == -1).all() and (state.slots == -1).all()
    assert [array.shape for array in state.arrays.values()] == [(2,), (2, 3), (2, 4), (2, 5), (2, 6), (2, 256)]
    for record in (PERSON, THING, TOWN):
        assert all(np.issubdtype(record[name].base, np.integer) for name in record.names or ())


def test_the_ring_of_events_keeps_the_newest_and_every_kind_has_its_number() -> None:
    towns, ring = np.zeros(1, TOWN), np.zeros(EVENTS, EVENT)
    for k in range(EVENTS + 3):
        towns["tick"] = 100 + k
        tell(towns[0], ring, kernel.CHAT, k, k + 1, -k)
    assert towns["events"][0] == EVENTS + 3
    assert ring[2].tolist() == (100 + EVENTS + 2, kernel.CHAT, EVENTS + 2, EVENTS + 3, -EVENTS - 2)
    assert ring[3].tolist() == (103, kernel.CHAT, 3, 4, -3)
    assert [getattr(kernel, name.upper()) for name in KINDS] == list(range(len(KINDS)))
