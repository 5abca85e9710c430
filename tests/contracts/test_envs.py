"""What learners and environments agree upon."""

from __future__ import annotations

import numpy as np
import pytest

from holdfast.collect.gym import CartPoles, Gym
from holdfast.contracts.envs import VectorEnv, packed, unpacked
from tests.learn.probes import CONTINUOUS, MASKED, Probes


def test_a_generator_goes_on_from_its_packed_state() -> None:
    rng, other = np.random.default_rng(1), np.random.default_rng(2)
    rng.random(7)
    other.bit_generator.state = unpacked(packed(rng))
    assert other.random(5).tolist() == rng.random(5).tolist()


WORLDS = [CartPoles(3), Gym("CartPole-v1", 3), Gym("Pendulum-v1", 3), Probes(MASKED, 3), Probes(CONTINUOUS, 3)]


@pytest.mark.parametrize("worlds", WORLDS, ids=lambda worlds: type(worlds).__name__)
def test_all_worlds_keep_the_protocol(worlds: VectorEnv) -> None:
    """Shapes and types as promised; the same seed gives the same moments; a restored state goes on with the same."""
    spaces, rng = worlds.spaces, np.random.default_rng(0)

    def play(steps: int) -> list[float]:
        seen: list[float] = []
        for _ in range(steps):
            if spaces.continuous:
                actions = rng.normal(size=(3, spaces.actions)).astype(np.float32)
            else:
                actions = views[-1].mask.argmax(1) if views[-1].mask is not None else rng.integers(0, spaces.actions, 3)
            result = worlds.step(actions)
            views.append(result.observation)
            assert result.observation.values.shape == result.final.shape == (3, spaces.observation)
            assert result.observation.values.dtype == result.final.dtype == np.float32
            assert result.reward.shape == result.terminated.shape == result.truncated.shape == (3,)
            assert not (result.terminated & result.truncated).any()
            seen += [*result.observation.values.ravel().tolist(), *result.reward.tolist()]
        return seen

    views = [worlds.reset(5)]
    first = play(40)
    state = {name: array.copy() for name, array in worlds.state().items()}
    drawn = rng.bit_generator.state
    second = play(30)

    rng, views = np.random.default_rng(0), [worlds.reset(5)]
    assert play(40) == first
    play(3)
    views = [worlds.restore(state)]
    rng.bit_generator.state = drawn
    assert play(30) == second
