"""What residents see: declared, within its range, of the world and of nothing else; another contract is refused."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest

from holdfast.town.compiled_rules import BLACKOUT, RAIN
from holdfast.town.env import Env
from holdfast.town.observations import CHANNELS, VARIANTS, WINDOW, WrongObservation, observation_spec
from holdfast.town.rules import UNIT, load
from tests.town.small import at, put, small, step


def feature(env: Env, name: str, i: int = 0) -> float:
    return float(step(env).features[0, i, env.senses.features.index(name)])


@pytest.mark.parametrize("variant", VARIANTS)
def test_everything_lies_within_its_range_and_has_its_shape(variant: str) -> None:
    env = Env(small(), variant=variant, worlds=2)
    seen = env.reset(1)
    for _ in range(300):
        seen = env.step(env.scripted())
        for array in (seen.features, seen.maps):
            assert np.isfinite(array).all()
            assert array.size == 0 or (array.min() >= -1 and array.max() <= 1)
    assert seen.features.shape == (2, 4, len(env.senses.features))
    assert len(set(env.senses.features)) == len(env.senses.features)
    channels = len(CHANNELS[variant])
    assert seen.maps.shape == (2, 4, *((channels, WINDOW, WINDOW) if channels else (0, 0, 0)))


def test_a_policy_for_other_senses_is_refused_by_name() -> None:
    compact, full = observation_spec(load(), "compact"), observation_spec(load(), "full")
    compact.expect(compact.id)
    with pytest.raises(WrongObservation) as caught:
        compact.expect(full.id)
    assert str(caught.value) == f"the policy was made for senses {full.id}, and this town gives {compact.id}"
    with pytest.raises(WrongObservation) as caught:
        observation_spec(load(), "vague")
    assert str(caught.value) == "senses 'vague' are unknown; there are compact, recall, hybrid, full"


def test_the_id_depends_on_all_that_gives_meaning() -> None:
    one = observation_spec(load(), "hybrid")
    others = [
        dataclasses.replace(one, version=2),
        dataclasses.replace(one, window=9),
        dataclasses.replace(one, features=one.features[::-1]),
        dataclasses.replace(one, channels=one.channels[::-1]),
    ]
    assert len({one.id, *(other.id for other in others)}) == 5
    assert one.id.startswith("hybrid@1-")


def test_needs_and_time_are_what_they_are() -> None:
    env = Env(small())
    at(env, 359)
    env.state.people["need"][0, 0] = UNIT // 2
    seen = step(env)
    need = env.state.people["need"][0, 0, 0]
    assert seen.features[0, 0, 0] == np.float32(need / UNIT)
    assert feature(env, "time_sin") == pytest.approx(np.sin(2 * np.pi * 361 / 1440), abs=1e-6)


def test_bearings_point_to_where_things_are() -> None:
    env = Env(small())
    put(env, 0, 5, 5)
    bed = int(env.law.place["tile"][env.state.people["home"][0, 0]])
    dx, dy = bed % 20 - 5, bed // 20 - 5
    far = int(env.law.far[env.state.people["home"][0, 0], 5 * 20 + 5])
    assert feature(env, "home_dx") == pytest.approx(dx / (abs(dx) + abs(dy) + 1))
    assert feature(env, "home_dy") == pytest.approx(dy / (abs(dx) + abs(dy) + 1))
    assert feature(env, "home_near") == pytest.approx(8 / (8 + far))
    assert feature(env, "wall_north") == 1 and feature(env, "wall_east") == 0
    put(env, 1, 6, 5)
    assert feature(env, "resident_east") == 1


def test_the_town_is_seen_as_it_is() -> None:
    env = Env(small())
    assert feature(env, "power") == 1 and feature(env, "rain") == 0
    env.state.town["until"][0, [BLACKOUT, RAIN]] = 100
    assert feature(env, "power") == 0 and feature(env, "rain") == 1


def test_the_map_has_the_resident_in_its_middle_and_nothing_beyond_the_edge() -> None:
    env = Env(small(), variant="full")
    put(env, 0, 0, 5)  # where the road leaves the map in the west
    maps = step(env).maps[0, 0]
    channel = {name: maps[k] for k, name in enumerate(env.senses.channels)}
    middle = WINDOW // 2
    assert channel["residents"][middle, middle] == 1 and channel["walkable"][middle, middle] == 1
    assert (maps[:, :, :middle] == 0).all()
    assert channel["walkable"][middle, middle:].all() and channel["walkable"][middle - 1, middle] == 0


def test_who_is_not_there_sees_nothing() -> None:
    env = Env(small(), variant="hybrid")
    env.state.people["alive"][0, 2], env.state.people["respawn_at"][0, 2] = 0, 9999
    seen = step(env)
    assert not seen.features[0, 2].any() and not seen.maps[0, 2].any()


def test_to_look_draws_nothing_from_the_chance_of_the_world() -> None:
    names = []
    for variant in VARIANTS:
        env = Env(small(), variant=variant)
        env.reset(6)
        for _ in range(60):
            env.step(env.scripted())
        names.append(env.state.sha256())
    assert len(set(names)) == 1
