"""One tick of every world: in order, for each its own, and alike in batches of any size."""

from __future__ import annotations

import numpy as np

from holdfast.town.env import Env
from tests.town.small import put, small, step, told


def test_a_batch_of_many_is_many_batches_of_one() -> None:
    many = Env(small(), worlds=64)
    many.reset(11)
    for _ in range(40):
        many.step(many.scripted())
    for world in (0, 31, 63):
        one = Env(small())
        one.reset(11, first_world=world)
        for _ in range(40):
            one.step(one.scripted())
        assert one.state.sha256() == many.state.sha256(world)


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


def test_the_clock_goes_on_by_one_and_round_by_days() -> None:
    env = Env(small())
    for _ in range(1442):
        step(env)
    assert (env.state.town["tick"][0], env.state.town["time"][0]) == (1442, 2)


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


def test_worlds_of_a_batch_do_not_touch_one_another() -> None:
    env = Env(small(), worlds=3)
    env.reset(1)
    other = Env(small(), worlds=3)
    other.reset(1)
    other.state.people["need"][1] = 0
    for _ in range(30):
        wait = np.zeros((3, 4), np.int64)
        env.step(wait)
        other.step(wait)
    assert [env.state.sha256(k) == other.state.sha256(k) for k in range(3)] == [True, False, True]
