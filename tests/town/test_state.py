"""All that a world is: nothing is kept elsewhere, a copy is a snapshot, a hash its name."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town.env import Env
from holdfast.town.state import PERSON, THING, TOWN, TownState, blank
from tests.town.small import small


@pytest.fixture(scope="module")
def env() -> Env:
    return Env(small(), worlds=3)


def test_a_copy_is_a_world_of_its_own(env: Env) -> None:
    env.reset(1)
    kept, name = env.state.copy(), env.state.sha256()
    env.step(env.scripted())
    assert kept.sha256() == name != env.state.sha256()


@pytest.mark.parametrize("array", ["town", "people", "things", "who", "slots", "events"])
def test_every_array_is_in_the_name(env: Env, array: str) -> None:
    env.reset(1)
    other = env.state.copy()
    bytes_of = other.arrays[array].reshape(-1)[:1].view(np.uint8)
    bytes_of[0] ^= 1
    assert other.sha256() != env.state.sha256()


def test_a_picked_world_shares_its_arrays_and_has_its_own_name(env: Env) -> None:
    env.reset(1)
    one = env.state.pick(2)
    assert one.sha256() == env.state.sha256(2) != env.state.sha256(1)
    env.state.people["money"][2, 0] = 77
    assert one.people["money"][0, 0] == 77


def test_a_world_that_is_restored_lives_on_as_if_nothing_had_been(env: Env) -> None:
    env.reset(5)
    for _ in range(120):
        env.step(env.scripted())
    kept = env.state.copy()
    for _ in range(80):
        env.step(env.scripted())
    name = env.state.sha256()
    other = Env(small(), worlds=3)
    other.restore(kept)
    for _ in range(80):
        other.step(other.scripted())
    assert other.state.sha256() == name


def test_nobody_stands_anywhere_in_a_blank_state() -> None:
    state: TownState = blank(2, 3, 4, 5, 6)
    assert (state.who == -1).all() and (state.slots == -1).all()
    assert [array.shape for array in state.arrays.values()] == [(2,), (2, 3), (2, 4), (2, 5), (2, 6), (2, 256)]


def test_records_hold_whole_numbers_only() -> None:
    for record in (PERSON, THING, TOWN):
        for name in record.names or ():
            assert np.issubdtype(record[name].base, np.integer), name
