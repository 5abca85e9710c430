"""A town for Gymnasium and PettingZoo: the same world as the native one, masks, and ends that are told apart."""

from __future__ import annotations

import importlib
import sys
import warnings

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env
from pettingzoo.test import parallel_api_test, parallel_seed_test

from holdfast.collect.gym import Gym
from holdfast.contracts.errors import BadInput
from holdfast.workloads.townenv import Resident
from holdfast.workloads.townlife import Env, Rules
from holdfast.workloads.townzoo import TownZoo
from tests.town.small import small


@pytest.fixture(scope="module")
def rules() -> Rules:
    job = {"id": "a", "venue": "office", "start": 0, "end": 40, "wage": 1.0, "slots": 4}
    return small({"ticks_per_day": 48, "job": [job]})


@pytest.mark.parametrize("variant", ["compact", "hybrid"])
def test_gymnasium_finds_nothing_wrong(variant: str, rules: Rules) -> None:
    check_env(Resident(rules, seat=2, variant=variant), skip_render_check=True)


def test_it_is_the_world_that_the_native_one_has_for_the_seed() -> None:
    rules = small()
    env, native = Resident(rules, seat=1), Env(rules)
    seen, info = env.reset(seed=11)
    first = native.reset(11)
    for world in (env.town, native):
        world.state.town["mortal"] = 0  # one who acts by chance would have to leave within the day
    rng, is_over = np.random.default_rng(0), False
    assert np.array_equal(seen, first.features[0, 1])
    while not is_over:
        action = rng.choice(np.flatnonzero(info["action_mask"]))
        seen, reward, terminated, truncated, info = env.step(action)
        actions = native.scripted().copy()
        actions[0, 1] = action
        other = native.step(actions)
        assert np.array_equal(seen, other.features[0, 1]) and reward == float(other.reward[0, 1])
        assert np.array_equal(info["action_mask"], other.mask[0, 1])
        is_over = terminated or truncated
    assert env.town.state.sha256() == native.state.sha256()
    assert truncated and not terminated  # the day is over, and the town would go on
    with pytest.raises(BadInput, match="reset first"):
        env.step(np.int64(0))


def test_who_has_to_leave_is_terminated_and_not_truncated(rules: Rules) -> None:
    env = Resident(rules, seat=1)
    env.reset(seed=0)
    env.town.state.people["unpaid"][0, 1] = 100
    _, reward, terminated, truncated, _ = env.step(np.int64(0))
    assert (terminated, truncated) == (True, False) and reward <= -2.0  # what an eviction costs


def test_worlds_without_a_seed_follow_from_the_last_one(rules: Rules) -> None:
    env, names = Resident(rules), []
    for seed in (3, None, None, 3, None):
        env.reset(seed=seed)
        names.append(env.town.state.sha256())
    assert names[3:] == names[:2] and len(set(names)) == 3


def test_a_learner_of_gymnasium_environments_sees_the_mask(rules: Rules) -> None:
    worlds = Gym(lambda: Resident(rules), 2)
    view = worlds.reset(5)
    assert view.mask is not None and view.mask.shape == (2, worlds.spaces.actions) and view.mask[:, 0].all()
    assert not view.mask.all() and worlds.step(np.zeros(2, np.int64)).observation.mask is not None


@pytest.mark.parametrize(
    ("how", "message"),
    [
        ({"seat": 4}, "seat 4: is not one of 4; count from 0"),
        ({"days": 0}, "days = 0: must be at least 1"),
        ({"variant": "x"}, "there are compact, recall, hybrid, full"),
    ],
    ids=["seat", "days", "variant"],
)
def test_what_cannot_be_is_refused(how: dict[str, object], message: str, rules: Rules) -> None:
    with pytest.raises(BadInput, match=message):
        Resident(rules, **how)  # type: ignore[arg-type]


@pytest.mark.parametrize("variant", ["compact", "full"])
def test_pettingzoo_finds_nothing_wrong(variant: str, rules: Rules) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        parallel_api_test(TownZoo(rules, variant=variant, days=2), num_cycles=200)
        parallel_seed_test(lambda: TownZoo(rules, variant=variant), num_cycles=30)


def test_the_town_of_all_is_the_world_that_the_native_one_has_for_the_seed() -> None:
    rules = small()
    town, native, rng = TownZoo(rules), Env(rules), np.random.default_rng(0)
    _, infos = town.reset(seed=11)
    native.reset(11)
    for world in (town.town, native):
        world.state.town["mortal"] = 0  # those who act by chance would have to leave within the day
    while town.agents:
        assert len(town.agents) == 4
        wanted = {agent: rng.choice(np.flatnonzero(infos[agent]["action_mask"])) for agent in town.agents}
        seen, rewards, ended, cut, infos = town.step(wanted)
        other = native.step(np.array([list(wanted.values())]))
        assert np.array_equal(list(seen.values()), other.features[0]) and list(rewards.values()) == list(
            other.reward[0]
        )
    assert all(cut.values()) and not any(ended.values()) and town.town.state.sha256() == native.state.sha256()


def test_who_has_to_leave_is_terminated_and_others_go_on_without_them(rules: Rules) -> None:
    town = TownZoo(rules)
    town.reset(seed=1)
    town.town.state.people["unpaid"][0, 2] = 100
    _, rewards, ended, cut, _ = town.step({})
    assert ended == {f"resident_{seat}": seat == 2 for seat in range(4)} and not any(cut.values())
    assert rewards["resident_2"] <= -2.0 and town.agents == ["resident_0", "resident_1", "resident_3"]
    with pytest.raises(BadInput, match="agent resident_2: is not in town"):
        town.step({"resident_2": np.int64(0)})
    assert set(town.step({})[0]) == set(town.agents)


def test_without_an_episode_or_with_a_strange_action_nothing_moves(rules: Rules) -> None:
    town = TownZoo(rules)
    with pytest.raises(BadInput, match="reset first"):
        town.step({})
    town.reset(seed=1)
    before = town.town.state.sha256()
    with pytest.raises(BadInput, match="actions go from 0 to"):
        town.step({"resident_0": np.int64(99)})
    assert town.town.state.sha256() == before


def test_without_pettingzoo_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pettingzoo", None)
    monkeypatch.delitem(sys.modules, "holdfast.workloads.townzoo")
    with pytest.raises(BadInput, match="needs PettingZoo; pip install pettingzoo"):
        importlib.import_module("holdfast.workloads.townzoo")
