"""A batch of worlds: the same world in a batch of any size, shapes that are checked, snapshots that go on."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from holdfast.town.env import Env
from tests.town.small import small


def run(env: Env, ticks: int) -> None:
    for _ in range(ticks):
        env.step(env.scripted())


def test_a_world_is_the_same_in_a_batch_of_any_size() -> None:
    many, one = Env(small(), worlds=5), Env(small())
    many.reset(9)
    one.reset(9, first_world=3)
    run(many, 100)
    run(one, 100)
    assert many.state.sha256(3) == one.state.sha256()
    assert many.state.sha256(2) != one.state.sha256()


def test_a_world_alone_is_bit_by_bit_the_one_among_a_thousand() -> None:
    """Scripts and chance in turn; every array that comes out is the same as well."""
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
    env, names = Env(small()), []
    for seed in (1, 1, 2):
        env.reset(seed)
        run(env, 50)
        names.append(env.state.sha256())
    assert names[0] == names[1] != names[2]


def test_to_look_changes_nothing() -> None:
    env = Env(small(), variant="full")
    env.reset(1)
    before = env.state.sha256()
    for _ in range(3):
        env.scripted()
        env.restore(env.state)
    assert env.state.sha256() == before


@pytest.mark.parametrize("shape", [(4,), (1, 5), (2, 4)])
def test_actions_of_another_shape_are_refused(shape: tuple[int, ...]) -> None:
    with pytest.raises(ValueError, match=r"actions are \(.*\), and must be \(1, 4\)"):
        Env(small()).step(np.zeros(shape, np.int64))


@pytest.mark.parametrize("action", [-1, 99])
def test_actions_that_do_not_exist_are_refused(action: int) -> None:
    with pytest.raises(ValueError, match="actions go from 0 to"):
        Env(small()).step(np.full((1, 4), action))


def test_a_snapshot_of_other_worlds_is_refused() -> None:
    with pytest.raises(ValueError, match="the snapshot is of other worlds"):
        Env(small()).restore(Env(small(), worlds=2).state)


def test_days_end_but_the_world_would_go_on() -> None:
    job = {"id": "a", "venue": "office", "start": 0, "end": 40, "wage": 1.0, "slots": 4}
    env = Env(small({"ticks_per_day": 48, "job": [job]}), days=1)
    seen = env.reset(0)
    for tick in range(48):
        assert not seen.truncated.any(), tick
        seen = env.step(env.scripted())
    assert seen.truncated.all() and not seen.terminated.any()


@settings(max_examples=4, deadline=None)
@given(seed=st.integers(0, 2**31))
def test_money_and_food_are_neither_made_nor_lost(seed: int) -> None:
    """Money moves between residents, the treasury and outside; food comes by delivery and goes by eating or loss."""
    env = Env(small(), worlds=2)
    rng, seen = np.random.default_rng(seed), env.reset(seed)
    for tick in range(600):
        actions = env.scripted().copy()
        if tick % 3 == 0:
            actions = (rng.random(seen.mask.shape) * seen.mask).argmax(axis=2)
        seen = env.step(actions)
        s = env.state
        money = s.people["money"].sum(axis=1) + s.town["treasury"] + s.town["outside"]
        assert money.tolist() == [0, 0], tick
        uses = np.array(
            [entry.get("uses", 0) + sum(entry.get("takes", {}).values()) for entry in env.rules["affordance"]]
        )
        in_hand = np.where(s.people["doing"] >= 0, uses[s.people["doing"]], 0).sum(axis=1)
        food = s.things["stock"].sum(axis=1) + s.people["item"].sum(axis=(1, 2)) + in_hand
        assert (food + s.town["eaten"] + s.town["lost"] == s.town["delivered"]).all(), tick


def test_everybody_stands_somewhere_of_their_own_and_in_one_line_at_most() -> None:
    env = Env(small())
    env.reset(3)
    for _ in range(500):
        env.step(env.scripted())
        s = env.state
        alive = s.people["alive"][0] == 1
        tiles = s.people["tile"][0][alive]
        assert len(set(tiles.tolist())) == alive.sum() == (s.who[0] >= 0).sum()
        assert (s.who[0][tiles] == np.flatnonzero(alive)).all()
        lines = s.people["queue"][0][alive]
        waiting = np.bincount(lines[lines >= 0], minlength=s.things.shape[1])
        assert (waiting == s.things["waiting"][0]).all()
        users = s.people["using"][0][alive]
        assert len(set(users[users >= 0].tolist())) == (users >= 0).sum()
