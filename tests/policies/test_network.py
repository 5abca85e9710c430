"""A network as a policy: a record of references that acts in the environment it was made for."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import gymnasium
import numpy as np
import pytest
import torch

from holdfast.collect.gym import Gym, describe
from holdfast.contracts.envs import Spaces
from holdfast.contracts.errors import BadInput, Lost
from holdfast.contracts.policy import FOLDER, Act, policy_from, policy_record
from holdfast.contracts.release import PolicyKind
from holdfast.pipeline.runtime import Endpoints
from holdfast.policies import weights
from holdfast.policies.network import KIND, Network
from holdfast.policies.weights import Manifest
from holdfast.store.artifacts import FolderArtifacts
from tests.collect.environments import Corridor, Fixed

POLE = Network(width=8).fitted("CartPole-v1", Spaces(observation=4, actions=2))


def fitted(make: Any, **made: Any) -> Network:
    return Network(width=8, **made).fitted("here", describe(make).spaces)


def engine(folder: Path | None = None) -> Endpoints:
    made = Endpoints()
    made.files = None if folder is None else FolderArtifacts(folder)
    return made


def opened(policy: Network, folder: Path | None = None) -> Act:
    act = policy.open(engine(folder)).act
    assert act is not None
    return act


def saved(policy: Network, folder: Path, *, seed: int = 5) -> Network:
    """With the weights that another seed draws, as a checkpoint."""
    net = replace(policy, seed=seed).load(None)
    manifest = Manifest(kind=KIND, shape={}, created_at=0.0)
    weights.save(folder / FOLDER / "run-1-1-ab", net.state_dict(), manifest)
    return policy.at("run-1-1-ab")


def test_it_is_read_again_from_its_record() -> None:
    policy = fitted(Fixed, memory=True, seed=3).at("run-1-1-ab")
    assert policy_from(json.loads(json.dumps(policy_record(policy)))) == policy


def test_versions_differ_as_the_networks_do() -> None:
    others = [POLE, replace(POLE, width=9), replace(POLE, seed=1), replace(POLE, memory=True), POLE.at("run-1-1-ab")]
    assert len({one.version for one in others}) == len({one.source for one in others}) == 5
    assert POLE.version == Network.from_manifest(POLE.manifest).version
    assert (POLE.kind, POLE.source.partition(":")[0]) == (PolicyKind.NETWORK, "network")
    assert POLE.at("run-1-1-ab").source == "checkpoint:run-1-1-ab"


def test_a_checkpoint_has_the_weights_that_were_saved(tmp_path: Path) -> None:
    policy = saved(POLE, tmp_path)
    ours, theirs = policy.load(FolderArtifacts(tmp_path)).state_dict(), replace(POLE, seed=5).load(None).state_dict()
    assert all(torch.equal(tensor, theirs[name]) for name, tensor in ours.items())


def test_a_missing_or_damaged_checkpoint_is_lost_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(Lost, match="checkpoint run-9-1-ab: .*run-9-1-ab: is missing"):
        POLE.at("run-9-1-ab").load(FolderArtifacts(tmp_path))
    policy = saved(POLE, tmp_path)
    [file] = (tmp_path / FOLDER / "run-1-1-ab").glob("*.safetensors")
    file.write_bytes(file.read_bytes()[:-1])
    with pytest.raises(Lost, match="checkpoint run-1-1-ab: .*is damaged"):
        policy.load(FolderArtifacts(tmp_path))
    with pytest.raises(BadInput, match="lies in a store, and none is open"):
        policy.open(engine())


def test_it_acts_as_many_at_once_and_one_by_one_alike() -> None:
    act, envs = opened(POLE), Gym("CartPole-v1", 3)
    seen, choose = envs.reset(4), act.many(3)
    for _ in range(10):
        chosen = choose(seen, np.zeros(3, np.bool_))
        assert [act(row) for row in seen.values] == chosen.tolist()
        seen = envs.step(chosen).observation


def test_actions_are_the_environments_own() -> None:
    """The first choice by its own number, never one that is forbidden; numbers within their bounds."""
    env = Corridor()
    seen, info = env.reset()
    act = opened(fitted(Corridor))
    chosen = act(gymnasium.spaces.flatten(env.observation_space, seen), info["action_mask"])
    assert chosen == 6 and chosen in env.action_space
    policy = fitted(Fixed)
    with torch.no_grad():
        net = policy.load(None)
        net.actor[4].bias.fill_(9.0)  # type: ignore[union-attr, operator]
    from holdfast.policies.nets import Acting

    assert policy.spaces is not None
    assert Acting(net, policy.spaces)(np.zeros((2, 1))).tolist() == [2.0]


def test_one_of_several_things_is_seen_as_a_one_among_zeros() -> None:
    policy = Network(width=8, seed=2).fitted("lake", Spaces(observation=3, actions=4))
    act = opened(policy)
    assert [act(place) for place in range(3)] == [act(row) for row in np.eye(3)]
    for wrong in (np.zeros(2), "north", 3):
        with pytest.raises(BadInput, match="is not made of 3 numbers"):
            act(wrong)


def test_a_memory_lasts_until_the_episode_ends() -> None:
    policy = Network(width=8, memory=True).fitted("x", Spaces(observation=1, actions=1, continuous=True))
    act = opened(policy)
    first, second = act([1.0]), act([1.0])
    assert first.tolist() != second.tolist()
    act.reset()
    assert act([1.0]).tolist() == first.tolist()


def test_what_does_not_fit_is_refused() -> None:
    with pytest.raises(BadInput, match=r"network\.width = 0: must be at least 1"):
        Network(width=0)
    with pytest.raises(BadInput, match="is made for no environment yet"):
        Network().open(engine())
    with pytest.raises(BadInput, match="was made for CartPole-v1"):
        POLE.fitted("other", Spaces(observation=5, actions=2))
    assert POLE.fitted("CartPole-v1", Spaces(observation=4, actions=2)) == POLE
