"""One resident for Gymnasium: the same world as the native one, masks, and ends that are told apart."""

from __future__ import annotations

import numpy as np
import pytest
from gymnasium.utils.env_checker import check_env

from holdfast.collect.gym import Gym
from holdfast.contracts.errors import BadInput
from holdfast.workloads.townenv import Resident
from holdfast.workloads.townlife import Env, Rules
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
        ({"variant": "x"}, "there are compact, hybrid, full"),
    ],
    ids=["seat", "days", "variant"],
)
def test_what_cannot_be_is_refused(how: dict[str, object], message: str, rules: Rules) -> None:
    with pytest.raises(BadInput, match=message):
        Resident(rules, **how)  # type: ignore[arg-type]
