"""Ties: bounded, few, fading, changed by what residents do to one another; numbers worked by hand."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town.env import Env
from holdfast.town.relationships import bump, clash, fade, rivalry, tie
from holdfast.town.rules import UNIT
from tests.town.small import at, put, small, step, told


@pytest.fixture
def env() -> Env:
    """Residents 0 and 1 stand side by side on the road, rested, with plain natures."""
    env = Env(small({"ties": {"most": 2}}))
    env.state.people["trait"] = 0
    env.state.people["need"] = 900_000
    env.state.town["mortal"] = 0
    at(env, 1)
    put(env, 0, 5, 5)
    put(env, 1, 6, 5)
    return env


def bumped(env: Env, i: int, other: int, *change: int) -> None:
    bump(env.law, env.state.people[0, i], other, *change)


def ties(env: Env, i: int) -> dict[int, tuple[int, int, int]]:
    one = env.state.people[0, i]
    parts = zip(one["tie_to"], one["tie_trust"], one["tie_familiarity"], one["tie_rivalry"], strict=True)
    return {int(to): (int(a), int(b), int(c)) for to, a, b, c in parts if to >= 0}


def test_a_tie_is_bounded(env: Env) -> None:
    for _ in range(30):
        bumped(env, 0, 1, 100_000, 100_000, 100_000)
    assert ties(env, 0) == {1: (UNIT, UNIT, UNIT)}
    for _ in range(60):
        bumped(env, 0, 1, -100_000, -100_000, -100_000)
    assert ties(env, 0) == {1: (-UNIT, 0, 0)}


def test_a_tie_of_nothing_is_not_kept(env: Env) -> None:
    bumped(env, 0, 1, 0, 50_000, 0)
    bumped(env, 0, 1, 0, -50_000, 0)
    assert ties(env, 0) == {}


def test_only_the_strongest_ties_are_kept(env: Env) -> None:
    bumped(env, 0, 1, 0, 50_000, 0)
    bumped(env, 0, 2, 0, 300_000, 0)
    bumped(env, 0, 3, 0, 40_000, 0)  # weaker than both
    assert set(ties(env, 0)) == {1, 2}
    bumped(env, 0, 3, 60_000, 0, 0)  # stronger than the weakest
    assert ties(env, 0) == {3: (60_000, 0, 0), 2: (0, 300_000, 0)}


def test_who_forgives_takes_less_offence_and_who_is_ambitious_more(env: Env) -> None:
    env.state.people["trait"][0, 0] = [0, 500_000, 0]
    env.state.people["trait"][0, 1] = [0, 0, 500_000]
    bumped(env, 0, 2, -20_000, 0, 150_000)
    bumped(env, 1, 2, -20_000, 0, 150_000)
    assert ties(env, 0) == {2: (-15_000, 0, 112_500)}
    assert ties(env, 1) == {2: (-20_000, 0, 172_500)}


def test_who_was_in_the_way_takes_half_of_it_to_heart(env: Env) -> None:
    s = env.state
    clash(env.law, s.town[0], s.people[0], s.events[0], 0, 1, 1000)
    assert (ties(env, 0), ties(env, 1)) == ({1: (-20_000, 0, 150_000)}, {0: (-10_000, 0, 75_000)})
    assert told(env, "conflict") == [(0, 1, 150_000)]


def test_ties_fade_towards_nothing(env: Env) -> None:
    bumped(env, 0, 1, 1500, 3000, 15_000)
    bumped(env, 0, 2, -1500, 500_000, 0)
    at(env, 60)
    for _ in range(2):
        fade(env.law, env.state.town[0], env.state.people[0])
    assert ties(env, 0) == {2: (0, 496_000, 0)}
    at(env, 61)
    fade(env.law, env.state.town[0], env.state.people[0])
    assert ties(env, 0) == {2: (0, 496_000, 0)}


def chats(env: Env, ticks: int) -> list[int]:
    """The qualities of what comes of trying to talk at every tick."""
    for _ in range(ticks):
        env.state.people["need"][0, :, 3] = 500_000
        step(env, r0="chat")
    return [value for _, _, value in told(env, "chat")]


def test_talk_gives_both_something_and_has_to_rest(env: Env) -> None:
    qualities = chats(env, 41)
    attempts = len(qualities) + len(told(env, "rebuff"))
    assert attempts == 3  # at 1, 21 and 41: the cooldown
    trust, familiarity, _ = ties(env, 0)[1]
    assert trust > 0 or familiarity > 0
    if not told(env, "rebuff"):
        assert ties(env, 0)[1] == ties(env, 1)[0]


def test_the_more_often_two_talk_in_a_day_the_less_it_gives(env: Env) -> None:
    env.state.people["tie_to"][0, 0, 0], env.state.people["tie_to"][0, 1, 0] = 1, 0
    qualities = []
    for talks in (0, 4, 12):
        env.state.people["tie_chats"][0, :, 0] = talks
        env.state.people["tie_trust"][0, :, 0] = env.state.people["tie_familiarity"][0, :, 0] = 0
        env.state.people["tie_rivalry"][0, :, 0] = 0
        while len(told(env, "chat")) == len(qualities):
            env.state.people["chat_at"][0] = -1000
            env.state.people["tie_to"][0, 0, 0], env.state.people["tie_to"][0, 1, 0] = 1, 0
            env.state.people["tie_chats"][0, :, 0] = talks
            env.state.people["tie_trust"][0, :, 0] = env.state.people["tie_familiarity"][0, :, 0] = 0
            env.state.people["tie_rivalry"][0, :, 0] = 0
            step(env, r0="chat")
        qualities = [value for _, _, value in told(env, "chat")]
    assert qualities == [500_000, 250_000, 125_000]


def test_a_rival_rebuffs(env: Env) -> None:
    bumped(env, 1, 0, 0, 0, 700_000)
    step(env, r0="chat")
    assert told(env, "rebuff") == [(0, 1, 700_000)]
    assert env.state.people["chat_gain"][0, 0] == -25_000  # half of what talk is worth
    assert rivalry(env.law, env.state.people[0, 1], 0) == 750_000
    assert ties(env, 0) == {1: (0, 0, 50_000)}


def test_who_is_liked_better_is_talked_to(env: Env) -> None:
    put(env, 2, 4, 5)
    bumped(env, 0, 2, 500_000, 0, 0)
    step(env, r0="chat")
    assert [b for _, b, _ in (*told(env, "chat"), *told(env, "rebuff"))] == [2]


def test_help_gives_a_meal_to_the_hungry(env: Env) -> None:
    people = env.state.people[0]
    people["item"][:2] = [[0, 2], [0, 0]]
    people["need"][1, 0] = 300_000
    step(env, r0="help")
    assert people["item"][:2, 1].tolist() == [1, 1]
    assert ties(env, 1) == {0: (200_000, 100_000, 0)}
    step(env, r0="help")  # who has a meal needs no other
    assert people["item"][:2, 1].tolist() == [1, 1]


def test_a_tie_that_is_not_there_is_nothing(env: Env) -> None:
    assert tie(env.law, env.state.people[0, 0], 3) == -1
    assert rivalry(env.law, env.state.people[0, 0], 3) == 0
    assert np.all(env.state.people["tie_to"] == -1)
