"""The kernels against the reference, tick by tick: every field, every reward, every event, every mask."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from holdfast.town.env import Env, Seen
from holdfast.town.kernel import KINDS
from holdfast.town.rules import CAUSES, NEEDS, STAGES, TROUBLES, Rules, load, merged
from holdfast.town.state import TownState
from tests.town.reference.world import Layout, World, begin, difference, possible, read, tick
from tests.town.small import small

Choose = Callable[[Env, Seen, int], NDArray[np.int64]]


def scripted(env: Env, seen: Seen, at: int) -> NDArray[np.int64]:
    return env.scripted().copy()


def idle(env: Env, seen: Seen, at: int) -> NDArray[np.int64]:
    return np.zeros(seen.alive.shape, np.int64)


def masked(env: Env, seen: Seen, at: int) -> NDArray[np.int64]:
    """Any action that the mask allows, each as likely; now and then one that it does not."""
    rng = np.random.default_rng(at)
    is_wild = rng.random(seen.alive.shape) < 0.1
    return (rng.random(seen.mask.shape) * (seen.mask | is_wild[..., None])).argmax(axis=2)


def mixed(env: Env, seen: Seen, at: int) -> NDArray[np.int64]:
    """Most of them plan, so that there is a life to disturb; and who can help, does."""
    is_random = np.random.default_rng(at).random(seen.mask.shape[:2]) < 0.3
    actions = np.where(is_random, masked(env, seen, at), scripted(env, seen, at))
    give = env.actions.index("help")
    return np.where(seen.mask[..., give] == 1, give, actions)


def follow(env: Env, seen: Seen, ticks: int, choose: Choose, *, masks_every: int = 0) -> Counter[str]:
    """Both live from where the kernel is now; the events that they agree on."""
    rules, layout = env.rules, Layout(env.rules)
    world = read(env.state, rules, layout=layout)
    told: Counter[str] = Counter()
    for at in range(ticks):
        if masks_every and at % masks_every == 0:
            for i in range(env.residents):
                allowed = {name for name, on in zip(env.actions, seen.mask[0, i], strict=True) if on}
                assert allowed == possible(world, i), f"tick {world.town.tick}: mask of {i}"
        actions = choose(env, seen, at)
        rewards = np.array(tick(world, actions[0].tolist()), np.float32)
        seen = env.step(actions)
        found = difference(read(env.state, rules, layout=layout), world)
        assert found is None, found
        assert seen.reward[0].tolist() == rewards.tolist()
        now = [event for event in world.events if event.tick == world.town.tick - 1]
        told.update(CAUSES[event.b - 1] if event.kind == "exit" else event.kind for event in now)
    return told


@pytest.fixture(scope="module")
def rules() -> Rules:
    return load()


@pytest.fixture(scope="module")
def moments(rules: Rules) -> dict[int, TownState]:
    """A scripted day, kept at some of its hours."""
    env, kept = Env(rules), {}
    env.reset(7)
    for at in range(1440):
        if at in (0, 400, 900, 1300):
            kept[at] = env.state.copy()
        env.step(env.scripted())
    return kept


def test_the_first_morning_is_the_same(rules: Rules) -> None:
    env = Env(rules)
    env.reset(3)
    assert difference(read(env.state, rules), begin(rules, int(env.state.town["seed"][0]))) is None


@pytest.mark.parametrize("moment", [0, 400, 900, 1300])
def test_a_scripted_town_lives_as_the_reference_says(rules: Rules, moments: dict[int, TownState], moment: int) -> None:
    """And one of random actions, too."""
    env = Env(rules)
    assert follow(env, env.restore(moments[moment]), 80, scripted, masks_every=10).total() > 25
    assert follow(env, env.restore(moments[moment]), 40, masked, masks_every=5).total() > 60


ALWAYS = [{"id": kind, "per_day": 8.0, "duration": [20, 60], "cooldown": 60} for kind in TROUBLES]
ALWAYS[0]["factor"] = 1.5  # a price spike
JOBS = [
    {"id": "clerk", "venue": "office", "start": 120, "end": 320, "wage": 0.03, "slots": 2},
    {"id": "grocer", "venue": "grocer", "start": 200, "end": 400, "wage": 0.03, "slots": 1},
]
HARSH: dict[str, Any] = {
    "ticks_per_day": 480,
    "job": JOBS,
    "trouble": ALWAYS,
    "scheduler": {"most_at_once": 3, "cooldown": 15, "per_resident": 100, "bucket_refill": 100},
    "lifecycle": {
        "exits_per_day": 40, "cooldown": 20, "grace": 5, "jobless_days": 1, "slots": 6, "slot_cooldown": 100,
        "starter_money": 0.5,
    },
    "employment": {"most_absences": 1, "rehire_after": 300},
    "queues": {"conflict_after": 3},
    "ties": {"avoid_at": 0.3, "most": 2},
}  # fmt: skip
HUNGRY = merged(HARSH, {"needs": {"hunger": {"decay": 3.0}}, "lifecycle": {"neglect_share": 0.05}})
EASY = merged(HARSH, {"needs": {need: {"decay": 0.1} for need in NEEDS}, "trouble": ALWAYS[3:]})
NEVER_FIRED = merged(EASY, {"employment": {"most_absences": 7}})
LIVES: list[tuple[dict[str, Any], Choose, int]] = [
    (EASY, idle, 520),
    (NEVER_FIRED, idle, 980),
    ({}, scripted, 800),
    ({}, mixed, 500),
    (HARSH, scripted, 600),
    (HARSH, mixed, 800),
    (HUNGRY, masked, 500),
]


@pytest.mark.usefixtures("untraced")
def test_a_small_town_lives_for_long_as_the_reference_says_and_everything_happens() -> None:
    told: Counter[str] = Counter()
    for override, choose, ticks in LIVES:
        env = Env(small(override))
        told += follow(env, env.reset(1), ticks, choose, masks_every=13)
    assert set(KINDS) - set(told) == {"none", "exit"}
    assert set(CAUSES) < set(told)


@pytest.mark.parametrize("stages", range(1, len(STAGES)))
def test_what_a_stage_keeps_off_is_off_in_both(stages: int) -> None:
    env = Env(small({**HARSH, "stages": {"on": STAGES[:stages]}}))
    assert follow(env, env.reset(2), 200, mixed, masks_every=7).total() > 20


# That the comparison leaves nothing out


def test_a_difference_in_any_field_is_told_by_name() -> None:
    env = Env(small())
    for _ in range(120):
        env.step(env.scripted())
    changes: dict[str, Callable[[World], object]] = {
        "people[2].need": lambda world: world.people[2].need.update(hunger=1),
        "town.count": lambda world: world.town.count.update(moves=-1),
        "things[3].stock": lambda world: setattr(world.things[3], "stock", 99),
        "slots": lambda world: world.slots.__setitem__(5, 4),
        "events": lambda world: world.events.pop(),
        "town.events": lambda world: world.tell("chat", 1, 2, 3),
    }
    for where, change in changes.items():
        other = read(env.state, env.rules)
        assert difference(read(env.state, env.rules), other) is None
        change(other)
        assert str(difference(read(env.state, env.rules), other)).startswith(f"tick 120: {where}: kernel")
