"""Cloning and DAgger: what is asked of the script, what is learnt from it, and what is refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.learn.imitate import KIND, Samples, agreement, check_samples, coverage, demonstrate, fit
from holdfast.learn.ppo import Adam
from holdfast.policies.nets import ActorCritic, Body
from holdfast.policies.weights import Manifest
from tests.learn.guided import Guided, Recalled, Unguided

SEED = 7


def shown(steps: int = 300, **how: float) -> Samples:
    given = {"share": 0.0, "label_rate": 1.0, **how}
    return demonstrate(Guided(4), None, steps=steps, seed=SEED, rng=np.random.default_rng(0), **given)


def fresh() -> ActorCritic:
    return ActorCritic(Body(observation=2, actions=3, width=16), seed=1)


def test_a_clone_does_what_the_script_does_where_it_never_was() -> None:
    net, samples = fresh(), shown()
    adam = Adam(net.actor.parameters())
    loss = fit(net, adam, [samples], epochs=12, minibatch=64, lr=(1e-2, 1e-3), rng=np.random.default_rng(1))
    unseen = demonstrate(Guided(4), None, steps=50, share=0, label_rate=1, seed=999, rng=np.random.default_rng(2))
    found = agreement(net, unseen, Guided.action_names, np.bincount(samples.actions, minlength=3))
    assert loss < 0.1 and found.accuracy > 0.95 and found.macro_recall > 0.95
    assert set(found.recall) == {"left", "right"}  # of what the script does; the third is never possible


@pytest.mark.parametrize("memory", [False, True])
def test_what_was_seen_earlier_is_cloned_only_by_a_network_that_remembers(memory: bool, tmp_path: Path) -> None:
    """A sign is shown once in four steps; who forgets it is right there, and half of the time elsewhere."""
    net = ActorCritic(Body(observation=2, actions=3, width=16, memory=memory), seed=1)
    how: dict[str, Any] = {"steps": 200, "share": 0, "memory": memory, "rng": np.random.default_rng(0)}
    samples = demonstrate(Recalled(8), None, seed=SEED, label_rate=0.5, **how)
    unseen = demonstrate(Recalled(4), None, seed=999, label_rate=1, **how)
    if memory:
        assert samples.first is not None and samples.first.shape == (200, 8)  # half of the seats, all of their steps
        samples.save(tmp_path / "data", Manifest(kind=KIND, shape={}, step=1, created_at=1.0))
        again = Samples.load(tmp_path / "data")
        assert np.array_equal(again.first, samples.first) and len(again) == len(samples) == 200 * 8
        samples = again
    adam = Adam([*([] if net.gru is None else net.gru.parameters()), *net.actor.parameters()])
    fit(net, adam, [samples], epochs=12, minibatch=128, lr=(2e-2, 1e-3), rng=np.random.default_rng(1))
    found = agreement(net, unseen, Recalled.action_names, np.bincount(samples.rows().actions, minlength=3))
    assert found.rows == len(unseen) and (found.accuracy > 0.95 if memory else found.accuracy < 0.75)


def test_the_rare_action_is_told_apart_though_it_is_never_the_likeliest() -> None:
    """A tenth of the rows say yes with a chance of 40 %: the likeliest there is no, the adjusted choice is yes."""
    rng = np.random.default_rng(3)
    is_special = rng.random(4000) < 0.1
    actions = (is_special & (rng.random(4000) < 0.4)).astype(np.int64)
    rows = np.stack([is_special, ~is_special], axis=1).astype(np.float16)
    samples = Samples(observations=rows, masks=np.tile([True, True, False], (4000, 1)), actions=actions)
    net = fresh()
    fit(net, Adam(net.actor.parameters()), [samples], epochs=6, minibatch=128, lr=(1e-2, 1e-3), rng=rng)
    found = agreement(net, samples, Guided.action_names, np.bincount(actions, minlength=3))
    assert found.recall["right"] == 1.0 and found.likeliest[1] == pytest.approx(0.5, abs=0.01)
    assert found.accuracy > 0.9


def test_the_script_is_asked_where_the_network_goes_and_only_at_a_share_of_the_steps() -> None:
    """Nothing depends on who acts here, so the same seeds show the same signs, however control is shared."""
    whole, part = shown(), shown(label_rate=0.25)
    assert len(whole) == 300 * 8 and 0.2 < len(part) / len(whole) < 0.3
    mixed = demonstrate(
        Guided(4), fresh(), steps=300, share=0.5, label_rate=1.0, seed=SEED, rng=np.random.default_rng(0)
    )
    assert np.array_equal(mixed.actions, whole.actions) and np.array_equal(mixed.observations, whole.observations)


def test_what_was_shown_is_kept_as_it_was_with_what_it_covers(tmp_path: Path) -> None:
    samples = shown(40)
    samples.save(tmp_path / "data", Manifest(kind=KIND, shape={}, step=1, created_at=1.0))
    again = Samples.load(tmp_path / "data")
    for name in ("observations", "masks", "actions"):
        assert np.array_equal(getattr(again, name), getattr(samples, name))
    covered = coverage(samples, Guided.action_names, Guided(4).labels(samples.observations))
    assert covered["rows"] == 320 == sum(covered["action"].values()) == sum(covered["sign"].values())
    assert covered["action"]["never"] == 0


def test_a_script_that_does_one_thing_teaches_nothing_and_is_refused() -> None:
    samples = shown(40)
    same = Samples(observations=samples.observations, masks=samples.masks, actions=np.zeros_like(samples.actions))
    check_samples(samples)
    with pytest.raises(BadInput, match=r"entropy of 0\.00 nats"):
        check_samples(same)


def test_an_environment_without_a_script_says_so() -> None:
    with pytest.raises(BadInput, match="has no script to learn from"):
        demonstrate(Unguided(2), None, steps=3, share=0, label_rate=1, seed=1, rng=np.random.default_rng(0))
