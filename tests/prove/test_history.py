"""Earlier tries of the live version: means worked by hand, what counts as a try, and when it does as it did no more."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest

from holdfast.contracts.evidence import Episode
from holdfast.prove.history import EarlierTries, earlier_tries, has_drifted, is_spared, pooled, pooled_mean


def episode(task: str, seed: int, success: float | None, rollout: str | None = "r", cost: float = 0.0) -> Episode:
    return Episode(task=task, seed=seed, reward=success or 0.0, success=success, safety_cost=cost, rollout=rollout)


def known(count: int, success: float) -> EarlierTries:
    return EarlierTries(count=count, means={"success": success, "reward": success, "safety_cost": 0.0})


def test_a_task_is_compared_with_the_mean_of_fresh_and_earlier_tries() -> None:
    fresh = [episode("a", 0, 1.0), episode("a", 1, 0.0), episode("b", 0, 1.0), episode("b", 1, 1.0)]
    found = pooled(fresh, {"a": known(8, 0.25), "c": known(20, 0.9)}, {"a": [0, 1], "b": [0, 1], "c": [0, 1]})
    by_task = {task: [one.success for one in found if one.task == task] for task in "abc"}
    assert by_task == {"a": pytest.approx([0.3, 0.3]), "b": [1.0, 1.0], "c": pytest.approx([0.9, 0.9])}  # (1 + 2)/10
    assert [one.seed for one in found] == [0, 1] * 3
    assert pooled_mean(0.5, 2, 0.25, 8) == pytest.approx(0.3)


def test_a_fresh_try_that_does_not_tell_is_not_one_that_failed() -> None:
    """A live version that was right whenever it was told was pooled as right in half of its tries."""
    earlier = {"a": known(2, 1.0), "b": known(2, 0.5)}
    fresh = [episode("a", 0, None), episode("a", 1, 1.0), episode("b", 0, None), episode("b", 1, None)]
    found = pooled(fresh, earlier, {"a": [0, 1], "b": [0, 1]})
    assert [one.success for one in found] == pytest.approx([1.0, 1.0, 0.75, 0.75])  # none told: the best for it


def test_a_mean_that_rests_on_an_assumed_try_is_assumed() -> None:
    fresh = [episode("a", 0, 1.0), replace(episode("a", 1, 1.0), is_missing=True), episode("b", 0, 1.0)]
    found = pooled(fresh, {"a": known(2, 0.5), "b": known(2, 0.5)}, {"a": [0, 1], "b": [0]})
    assert [one.is_missing for one in found] == [True, True, False]


def test_only_what_was_measured_is_a_try() -> None:
    tries = [episode("a", 0, 1.0), episode("a", 1, 0.0, cost=0.5), episode("a", 2, 1.0, rollout=None)]
    assert earlier_tries(tries) == EarlierTries(count=2, means={"success": 0.5, "reward": 0.5, "safety_cost": 0.25})
    assert earlier_tries(tries[2:]) is None
    untold = earlier_tries([episode("a", 0, None)])
    assert untold is not None and "success" not in untold.means
    assert EarlierTries.from_record(known(3, 0.5).record()) == known(3, 0.5)


def test_the_live_version_is_spared_where_enough_is_known_but_for_every_fifth_task() -> None:
    assert [place for place in range(11) if not is_spared(place, known(20, 0.5), seeds=2)] == [0, 5, 10]
    assert not any(is_spared(1, some, seeds=2) for some in (None, known(19, 0.5)))


def test_a_version_that_does_otherwise_than_it_did_is_seen_and_one_that_does_not_is_left_alone() -> None:
    rng = np.random.default_rng(3)
    earlier = {f"t{n}": known(20, 0.5) for n in range(80)}
    for rate, wanted in ((1.0, True), (0.0, True), (0.5, False)):
        fresh = [episode(task, seed, float(rng.random() < rate)) for task in earlier for seed in (0, 1)]
        assert has_drifted(fresh, earlier, "success", 1.0) is wanted
    assert not has_drifted([], earlier, "success", 1.0)
    alarms = 0
    for _ in range(200):
        fresh = [episode(task, 0, float(rng.random() < 0.5)) for task in earlier]
        alarms += has_drifted(fresh, earlier, "success", 1.0)
    assert alarms <= 20  # at most one of twenty, by twice as many
