from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode
from holdfast.prove.comparison import METRICS, missing, paired_cells, pairs, scores


def episode(task: str, seed: int, reward: float = 0.0, **more: Any) -> Episode:
    return Episode(task=task, seed=seed, reward=reward, **more)


def test_every_metric_is_turned_so_that_higher_is_better() -> None:
    one = episode("a", 1, 0.5, success=1.0, safety_cost=0.25, latency_s=2.0, tokens=30)
    found = {metric: of(one) for metric, of in METRICS.items()}
    assert found == {"success": 1.0, "reward": 0.5, "safety": -0.25, "latency": -2.0, "cost": -30.0}
    bare = episode("a", 1, 0.5)
    assert {metric for metric, of in METRICS.items() if of(bare) is None} == {"success", "latency", "cost"}


def test_scores_have_a_row_for_each_task_in_order_of_arrival_and_a_column_for_each_seed() -> None:
    episodes = [episode("b", 2, 0.2), episode("a", 2, 0.4), episode("b", 1, 0.1), episode("a", 1, 0.3)]
    found = scores(episodes, "reward", "v1")
    assert (found.tasks, found.seeds, found.version) == (("b", "a"), (1, 2), "v1")
    assert found.values == ((0.1, 0.2), (0.3, 0.4))


def test_a_task_without_every_seed_is_left_out_of_scores() -> None:
    episodes = [episode("a", 1), episode("a", 2), episode("b", 1)]
    assert scores(episodes, "reward", "v1").tasks == ("a",)


def test_pairs_keep_what_both_have_and_the_rest_is_named() -> None:
    baseline = [episode(task, seed, 0.1 * seed) for task in ("c", "a", "b", "x") for seed in (1, 2, 3)]
    candidate = [episode(task, seed, 0.2 * seed) for task in ("a", "c", "y") for seed in (1, 2)]
    candidate.append(episode("b", 1))
    tasks, before, after = pairs(baseline, candidate, "reward")
    assert tasks == ("c", "a")  # as the baseline's arrived
    assert before == pytest.approx(np.array([[0.1, 0.2], [0.1, 0.2]]))  # seed 3 is the baseline's alone
    assert after == pytest.approx(np.array([[0.2, 0.4], [0.2, 0.4]]))
    assert paired_cells(baseline, candidate, "reward")[1] == (1, 2)
    assert missing(baseline, candidate, "reward") == {
        "b": "the candidate has no reward with seed 2",
        "x": "the candidate has no reward there",
        "y": "the baseline has no reward there",
    }


def test_an_episode_without_the_metric_is_missing_and_not_zero() -> None:
    whole = [episode("a", 1, success=1.0), episode("b", 1, success=0.0)]
    holed = [episode("a", 1), episode("b", 1, success=1.0)]
    tasks, before, after = pairs(whole, holed, "success")
    assert tasks == ("b",) and before.tolist() == [[0.0]] and after.tolist() == [[1.0]]
    assert missing(whole, holed, "success") == {"a": "the candidate has no success there"}
    assert missing(whole, holed, "reward") == {}


def test_versions_with_nothing_in_common_make_no_pairs() -> None:
    tasks, before, after = pairs([episode("a", 1)], [episode("a", 2)], "reward")
    assert tasks == () and before.size == after.size == 0
    assert pairs([], [], "reward")[0] == ()


REFUSED: dict[str, Callable[[], Any]] = {
    "an unknown metric": lambda: pairs([], [], "charm"),
    "an episode twice": lambda: scores([episode("a", 1, 0.0), episode("a", 1, 1.0)], "reward", "v1"),
    "no whole task": lambda: scores([episode("a", 1), episode("b", 2)], "reward", "v1"),
    "no episode": lambda: scores([], "reward", "v1"),
}


@pytest.mark.parametrize("case", REFUSED)
def test_what_makes_no_matrix_is_refused(case: str) -> None:
    with pytest.raises(BadInput):
        REFUSED[case]()
