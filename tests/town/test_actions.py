"""Actions: one fixed list, a mask that is true, and nothing that is done against it."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.town.actions import names
from holdfast.town.env import Env
from holdfast.town.rules import load
from tests.town.small import put, small, step


@pytest.fixture
def env() -> Env:
    return Env(small())


def allowed(env: Env, i: int) -> set[str]:
    mask = step(env).mask[0, i]
    return {name for name, on in zip(env.actions, mask, strict=True) if on}


def test_the_list_is_fixed_by_the_rules(env: Env) -> None:
    assert names(load()) == names(small()) == env.actions
    assert len(env.actions) == len(set(env.actions))
    assert env.actions[:8] == ("wait", "north", "east", "south", "west", "go:home", "go:work", "go:meeting")
    assert env.actions[-4:] == ("work", "chat", "help", "leave")


def test_who_is_busy_can_only_go_on_or_leave(env: Env) -> None:
    put(env, 0, 9, 1)
    env.state.people["item"][0, 0] = [1, 0]
    step(env, r0="use:cook")
    assert allowed(env, 0) == {"wait", "leave"}
    tile = int(env.state.people["tile"][0, 0])
    step(env, r0="south")
    assert env.state.people["tile"][0, 0] == tile and not env.state.people["success"][0, 0]


def test_walls_are_not_offered(env: Env) -> None:
    put(env, 0, 1, 3)  # a corner of the house
    assert {"north", "east"} <= allowed(env, 0)
    assert not {"south", "west"} & allowed(env, 0)


def test_who_has_left_can_only_wait(env: Env) -> None:
    env.state.people["alive"][0, 1] = 0
    env.state.people["respawn_at"][0, 1] = 10_000
    assert allowed(env, 1) == {"wait"}


def test_chat_and_help_need_somebody_beside(env: Env) -> None:
    put(env, 0, 5, 5)
    assert not {"chat", "help"} & allowed(env, 0)
    put(env, 1, 6, 5)
    assert "chat" in allowed(env, 0)
    env.state.people["item"][0, :2] = [[0, 1], [0, 0]]
    env.state.people["need"][0, 1, 0] = 100_000
    assert "help" in allowed(env, 0)


def test_what_cannot_be_done_is_a_tick_of_waiting(env: Env) -> None:
    other = Env(small())
    put(env, 0, 5, 5)
    put(other, 0, 5, 5)
    for deed in ("work", "chat", "help", "leave", "go:meeting"):
        step(env, r0=deed)
        step(other)
        assert env.state.people["success"][0, 0] == 0, deed
    a, b = env.state.people[0, 0], other.state.people[0, 0]
    assert (a["tile"], a["money"], a["need"].tolist()) == (b["tile"], b["money"], b["need"].tolist())


def test_what_the_mask_offers_to_use_begins_or_waits_in_line() -> None:
    """In a town that is lived in, by one resident after another whose turn it is to try, nothing offered fails."""
    env = Env(small())
    seen, tried = env.reset(4), 0
    first = env.actions.index("use:sleep")
    uses = slice(first, first + len(env.rules["affordance"]))
    for tick in range(400):
        who = tick % env.residents
        offered = seen.mask[0, who, uses]
        actions = np.zeros((1, env.residents), np.int64)  # nobody else moves: what is offered stays true
        if offered.any():
            actions[0, who] = first + int(offered.argmax())
        elif tick % 5:
            actions = env.scripted().copy()
        seen = env.step(actions)
        if offered.any():
            tried += 1
            assert env.state.people["success"][0, who], f"tick {tick}: {env.actions[actions[0, who]]}"
    assert tried > 20
