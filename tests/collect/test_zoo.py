"""PettingZoo's parallel environments: rows of agents, those that are done wait, and the whole loop learns in them."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from gymnasium.spaces import Box, Discrete
from pettingzoo import ParallelEnv  # type: ignore[import-untyped]

from holdfast.collect.zoo import ZooMaker
from holdfast.contracts.errors import BadInput
from holdfast.contracts.release import Stage
from holdfast.learn.control import EnvPPO
from holdfast.learn.ppo import Settings
from holdfast.pipeline.control import EnvProof, improve_env
from holdfast.policies.network import Network
from holdfast.store.store import open_store
from holdfast.town.env import Env
from holdfast.workloads.townzoo import TownZoo
from tests.pipeline.scene import ran
from tests.town.small import small


class Signposts(ParallelEnv):  # type: ignore[misc]
    """Two walkers, each with a sign of its own; going where it points pays 1. The first stops after two steps."""

    metadata = {"name": "signposts"}  # noqa: RUF012 (PettingZoo asks for it)
    possible_agents = ["a", "b"]  # noqa: RUF012

    def observation_space(self, agent: str) -> Any:
        return Box(-1.0, 1.0, (1,), np.float32)

    def action_space(self, agent: str) -> Any:
        return Discrete(2, start=3)

    def reset(self, seed: int | None = None, options: Any = None) -> Any:
        if seed is not None:
            self.rng = np.random.default_rng(seed)
        self.agents, self.age = list(self.possible_agents), 0
        return self._signs(), {agent: {} for agent in self.agents}

    def step(self, actions: dict[str, int]) -> Any:
        assert set(actions) == set(self.agents) and set(actions.values()) <= {3, 4}
        paid = {agent: float((action == 4) == (self.signs[agent] > 0)) for agent, action in actions.items()}
        self.age += 1
        over = {agent: self.age == (2 if agent == "a" else 3) for agent in actions}
        seen = self._signs()
        self.agents = [agent for agent in self.agents if not over[agent]]
        return seen, paid, over, dict.fromkeys(actions, False), {agent: {} for agent in actions}

    def _signs(self) -> dict[str, Any]:
        self.signs = {agent: float(self.rng.choice([-1.0, 1.0])) for agent in self.agents}
        return {agent: np.array([sign], np.float32) for agent, sign in self.signs.items()}


class Unlike(Signposts):
    def action_space(self, agent: str) -> Any:
        return Discrete(2 if agent == "a" else 3)


MAKER = ZooMaker("signposts", Signposts)


def test_who_is_done_waits_and_all_begin_anew_together() -> None:
    envs = MAKER.training_env(2)
    view = envs.reset(5)
    assert (envs.count, MAKER.describe().seats, MAKER.describe().spaces.start) == (4, 2, 3)
    ends, rewards = [], []
    for _ in range(4):
        result = envs.step((view.values[:, 0] > 0).astype(np.int64))
        view = result.observation
        ends.append(result.terminated.tolist())
        rewards.append(result.reward.tolist())
    a, b = [True, False, True, False], [False, True, False, True]
    assert ends == [[False] * 4, a, b, [False] * 4] and rewards == [[1.0] * 4, [1.0] * 4, [0, 1, 0, 1], [1.0] * 4]
    assert not envs.is_over()


def test_environments_of_a_proof_end_and_stay_ended() -> None:
    envs = MAKER.vector_env(2)
    envs.reset(5)
    for _ in range(3):
        result = envs.step(np.zeros(4, np.int64))
    assert envs.is_over() and not envs.step(np.zeros(4, np.int64)).reward.any() and result.terminated.any()


def test_they_go_on_from_where_they_were() -> None:
    one, other = MAKER.training_env(3), MAKER.training_env(3)
    one.reset(9)
    one.step(np.ones(6, np.int64))
    assert np.array_equal(other.restore(one.state()).values, one.restore(one.state()).values)
    for _ in range(7):
        before, after = one.step(np.ones(6, np.int64)), other.step(np.ones(6, np.int64))
        assert np.array_equal(before.observation.values, after.observation.values)
        assert np.array_equal(before.reward, after.reward)


def test_a_town_of_many_agents_is_the_native_one() -> None:
    rules = small()
    zoo, native = ZooMaker("town", lambda: TownZoo(rules)).training_env(1), Env(rules)
    view, seen = zoo.reset(7), native.reset(7)
    for _ in range(30):
        actions = native.scripted().copy()
        assert np.array_equal(view.values, seen.features[0]) and np.array_equal(view.mask, seen.mask[0].view(np.bool_))
        result, seen = zoo.step(actions.ravel()), native.step(actions)
        view = result.observation
        assert np.allclose(result.reward, seen.reward[0])


def test_agents_that_differ_or_take_turns_are_refused_before_any_work() -> None:
    with pytest.raises(BadInput, match="b sees or does other things than a, and one network acts for all"):
        improve_env(Unlike, proof=EnvProof(reward_range=(0.0, 3.0)))

    class Turns(Signposts):
        def agent_iter(self) -> Any:
            return iter(self.agents)

    with pytest.raises(BadInput, match="its agents act in turns; wrap it"):
        improve_env(Turns, proof=EnvProof(reward_range=(0.0, 3.0)))


def test_one_network_for_all_agents_learns_is_proved_and_goes_live(tmp_path: Path) -> None:
    learns = EnvPPO(updates=8, step_updates=4, envs=8, settings=Settings(steps=16, minibatch=32, lr=2e-2, lr_end=1e-2))
    spec = improve_env(
        Signposts,
        Network(width=16),
        name="signs",
        algorithm=learns,
        proof=EnvProof(episodes=120, batch=60, reward_range=(0.0, 3.0)),
        stage=Stage.LIVE,
    )
    with open_store(tmp_path / "store.db", create=True) as store:
        run = asyncio.run(ran(store, spec)).run_id
        live = store.releases.live("signs")
        best = [one.reward for one in store.views.rollouts(run, most=1000) if "-candidate-" in one.name]
    assert live is not None and live.id == "signs@2" and set(best) == {2.5}  # two steps of one and three of the other
