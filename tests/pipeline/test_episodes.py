"""From attempts to episodes: what was not measured is missing, and an agent that failed got nothing."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import Episode
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Task
from holdfast.pipeline.episodes import episode, episodes, is_checked, missing
from holdfast.prove.comparison import ComparisonConfig
from tests.workloads.scene import attempt

TASK = Task(name="t-0", input=1)


def scored(**values: float) -> RewardBreakdown:
    weights = {"safety_cost": 0.0}
    return RewardBreakdown(
        signals=tuple(
            RewardTerm(name=name, value=value, weight=weights.get(name, 1.0), source="rule")
            for name, value in values.items()
        )
    )


def test_an_episode_has_reward_cost_success_time_and_tokens() -> None:
    given = attempt(TASK, 12, None, sheet=scored(success=1.0, format=0.5, safety_cost=0.25))
    assert episode(given, task="calc-0", seed=1) == Episode(
        task="calc-0",
        seed=1,
        reward=1.5,  # what it costs is not paid
        safety_cost=0.25,
        success=1.0,
        latency_s=2.5,
        tokens=3,  # two digits and the end
        rollout="run-1/t-0",
    )


@pytest.mark.parametrize(
    ("sheet", "success"),
    [
        (scored(success=0.0, exact_match=1.0), 0.0),  # the first name wins
        (scored(exact_match=1.0), 1.0),
        (scored(taste=1.0), None),
    ],
)
def test_success_is_told_by_its_signal_or_not_at_all(sheet: RewardBreakdown, success: float | None) -> None:
    given = attempt(TASK, 1, None, sheet=sheet)
    found = episode(given, task="t", seed=0)
    assert found is not None
    assert (found.success, is_checked(given)) == (success, success is not None)


@pytest.mark.parametrize("state", [RolloutState.SUCCEEDED, RolloutState.DEAD, RolloutState.CANCELLED])
def test_what_was_never_scored_is_missing_and_not_wrong(state: RolloutState) -> None:
    for sheet in (None, RewardBreakdown(signals=())):
        assert episode(attempt(TASK, 1, None, sheet=sheet, state=state), task="t", seed=0) is None


def test_an_agent_that_failed_got_nothing() -> None:
    found = episode(attempt(TASK, 1, None, sheet=None, spans=(), state=RolloutState.FAILED), task="t", seed=0)
    assert found == Episode(task="t", seed=0, reward=0.0, success=0.0, rollout="run-1/t-0")


def test_a_right_answer_that_was_rejected_failed_and_keeps_its_reward() -> None:
    given = attempt(TASK, 1, None, sheet=scored(exact_match=1.0, safety=-2.5), state=RolloutState.FAILED)
    found = episode(given, task="t", seed=0)
    assert found is not None and (found.success, found.reward) == (0.0, -1.5)


@pytest.mark.parametrize("sheet", [scored(success=2.0), scored(success=1.0, safety_cost=-1.0)])
def test_a_signal_out_of_its_range_is_refused_with_the_task(sheet: RewardBreakdown) -> None:
    with pytest.raises(BadRecord, match="episode of calc-0 with seed 3"):
        episode(attempt(TASK, 1, None, sheet=sheet), task="calc-0", seed=3)


def test_only_rollouts_with_a_place_become_episodes_in_the_order_they_came() -> None:
    given = [attempt(Task(name=f"p-{n}", input=n), n, won) for n, won in ((2, 1.0), (0, 0.0), (1, None), (3, 1.0))]
    found = episodes(given, {"p-0": ("a", 0), "p-1": ("b", 0), "p-2": ("a", 1)})
    assert [(one.task, one.seed, one.success) for one in found] == [("a", 1, 1.0), ("a", 0, 0.0)]


def test_what_never_came_back_is_the_worst_for_a_candidate_and_the_best_for_a_baseline() -> None:
    places = {"p-0": ("a", 0), "p-1": ("a", 1), "p-2": ("b", 0)}
    found = episodes([attempt(Task(name="p-1", input=1), 1, 0.0)], places)
    how = ComparisonConfig(reward_range=(-1.0, 2.0), max_cost=3.0)
    worst = missing(found, places, how, is_candidate=True)
    assert worst == [Episode(task=task, seed=0, reward=-1.0, safety_cost=3.0, success=0.0) for task in ("a", "b")]
    best = missing(found, places, how, is_candidate=False)
    assert best == [Episode(task=task, seed=0, reward=2.0, safety_cost=0.0, success=1.0) for task in ("a", "b")]
    assert missing([*found, *worst], places, how, is_candidate=True) == []
