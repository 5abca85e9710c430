"""Stored rollouts are scored again without an agent, and two scorings are set side by side."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.reward import Reward, RewardTerm
from holdfast.reward.ready import exact, normalized
from holdfast.reward.rescore import StoredRollout, compare_scorings, is_right, rescore
from holdfast.reward.scorers import Scorer, combine


def signal(name: str, value: float, weight: float = 1.0, source: str = "rule:test") -> RewardTerm:
    return RewardTerm(name=name, value=value, weight=weight, source=source)


def stored(number: int, answer: Any = None, **fields: Any) -> StoredRollout:
    task = {"question": f"{number}?", "expected": str(number)}
    given = {"id": f"run-1/{number}", "task": task, "answer": str(number) if answer is None else answer}
    return StoredRollout(**{**given, "signals": (signal("exact_match", 1.0),), **fields})


STRICT = combine([Scorer(exact, gate=True)])


def test_every_rollout_gets_its_signals_in_order_and_a_looser_scorer_is_seen_in_the_comparison() -> None:
    found = rescore([stored(1), stored(2, "two"), stored(3)], STRICT)
    assert [(one.id, one.reward) for one in found] == [("run-1/1", 1.0), ("run-1/2", 0.0), ("run-1/3", 1.0)]
    assert [one.name for one in found[1].signals] == ["success", "gated"]
    assert found[1].signals[0].feedback == "said 'two'"
    records = [stored(n, f" {n}." if n % 2 else str(n)) for n in range(10)]
    loose = combine([Scorer(normalized, gate=True)])
    old, new = ({one.id: one.signals for one in rescore(records, score)} for score in (STRICT, loose))
    compared = compare_scorings(old, new)
    assert (compared.agreement, compared.became_right, compared.became_wrong) == (0.5, 5, 0)


def test_what_a_worker_would_have_kept_is_the_same_as_what_is_kept_now() -> None:
    """A score of the lower kind is taken too, and its last word is asked for."""

    class Closing:
        def __call__(self, task: Any, output: Any, spans: Any) -> Sequence[RewardTerm]:
            return (signal("success", 1.0),)

        def close(
            self, signals: Sequence[RewardTerm], spans: Any, output: Any
        ) -> tuple[Sequence[RewardTerm], str | None]:
            return [replace(one, weight=0.0) for one in signals], f"no {output}"

    (found,) = rescore([stored(1, "bombs")], Closing())
    assert (found.reward, found.rejected) == (0.0, "no bombs")


def test_what_an_agent_paid_itself_does_not_count_beside_a_scorer() -> None:
    own = (signal("found_it", 5.0, source="agent"), signal("agent.more", 2.0, 0.0, source="agent:env"))
    (found,) = rescore([stored(1, signals=own)], STRICT)
    weights = {"agent.found_it": 0.0, "agent.more": 0.0, "success": 1.0, "gated": 0.0}
    assert {one.name: one.weight for one in found.signals} == weights
    (unscored,) = rescore([replace(stored(1, signals=own), task={"question": "?"})], STRICT)
    assert unscored.signals == own  # nobody judged, so it counts


async def later(task: Any, answer: Any) -> float:
    await asyncio.sleep(0)
    if answer == "bad":
        raise KeyError("nope")
    return float(answer == task.expected)


def test_a_scorer_that_raises_spoils_its_own_rollout_alone() -> None:
    def strict(task: Any, answer: Any) -> float:
        return float(answer == task.expected) / (answer != "bad")

    for function, error in ((strict, "ZeroDivisionError: "), (later, "KeyError: 'nope'")):
        found = rescore([stored(1), stored(2, "bad"), stored(3)], combine([Scorer(function, gate=True)]), at_once=2)
        assert [one.reward for one in found] == [1.0, None, 1.0]
        assert (found[1].error or "").startswith(error) and not found[1].signals


class Longest:
    is_group, name = True, "longest"

    def __call__(self, task: Any, answers: Sequence[str]) -> list[Reward]:
        if "bad" in answers:
            raise ValueError("no")
        return [Reward(float(len(answer) == max(map(len, answers)))) for answer in answers]


def test_a_ranking_is_given_the_attempts_of_one_task_together() -> None:
    answers = [("a", "x"), ("abc", "y"), ("ab", "x"), ("b", "y"), ("bad", "z")]
    some = [*(stored(n, answer, group=group) for n, (answer, group) in enumerate(answers, 1)), stored(6, "alone")]
    found = rescore(some, combine([Scorer(Longest())]))
    assert [one.reward for one in found] == [0.0, 1.0, 1.0, 0.0, None, 1.0]
    assert (found[4].error or "").startswith("ValueError: no (test_rescore.py:")


# Side by side


def told(*values: float | None, name: str = "success") -> dict[str, tuple[RewardTerm, ...]]:
    return {str(n): () if value is None else (signal(name, value),) for n, value in enumerate(values)}


def test_agreement_kappa_and_change_are_those_worked_by_hand() -> None:
    # 10 rollouts: both right 4, both wrong 3, became right 1, became wrong 2
    old = told(1, 1, 1, 1, 0, 0, 0, 0, 1, 1)
    new = told(1, 1, 1, 1, 0, 0, 0, 1, 0, 0)
    found = compare_scorings(old, new)
    assert (found.rollouts, found.only_old, found.only_new) == (10, 0, 0)
    assert found.agreement == pytest.approx(0.7) and found.same_reward == pytest.approx(0.7)
    assert found.kappa == pytest.approx((0.7 - 0.5) / 0.5)  # by chance 0.6 · 0.5 + 0.4 · 0.5
    assert (found.became_right, found.became_wrong) == (1, 2)
    assert (found.old_mean, found.new_mean) == (pytest.approx(0.6), pytest.approx(0.5))
    assert found.mean_change == pytest.approx(-0.1)
    assert [(one.id, one.old, one.new) for one in found.changed] == [("7", 0, 1), ("8", 1, 0), ("9", 1, 0)]


def test_the_largest_change_comes_first_and_missing_is_no_zero() -> None:
    found = compare_scorings(told(1, None, 0, 0.5, None), told(0.5, 1, None, 0.5, None))
    assert (found.rollouts, found.only_old, found.only_new) == (2, 1, 1)
    assert [one.id for one in found.changed] == ["0", "1", "2"]
    assert found.mean_change == pytest.approx(-0.25)


def test_scorings_that_never_say_right_or_wrong_agree_by_their_rewards() -> None:
    found = compare_scorings(told(1, 2, name="tone"), told(1, 3, name="tone"))
    assert (found.agreement, found.kappa, found.same_reward) == (None, None, 0.5)
    assert compare_scorings({}, {}).mean_change is None
    assert compare_scorings(told(1, 1), told(1, 1)).kappa is None  # chance alone would agree


def test_the_older_exact_match_is_a_verdict_too_and_other_rollouts_are_refused() -> None:
    assert is_right(told(1, name="exact_match")["0"]) is True and is_right(()) is None
    assert compare_scorings(told(1, 0, name="exact_match"), told(1, 1)).agreement == 0.5
    with pytest.raises(BadInput, match="rollout 1: is in the new scoring alone"):
        compare_scorings(told(1), told(1, 1))


def test_the_gates_difference_is_told_under_each_scoring() -> None:
    # two tasks, two seeds, two arms: 0–3 baseline, 4–7 candidate
    arms = {str(n): ("baseline" if n < 4 else "candidate", "ab"[n % 4 // 2]) for n in range(8)}
    old, new = told(0, 1, 0, 0, 1, 1, 1, 0), told(0, 0, 0, 0, 1, 1, 0, 0)
    found = compare_scorings(old, new, arms=arms).arms
    assert found is not None and (found.tasks, found.primary) == (2, "success")
    assert found.old == pytest.approx((0.5 + 0.5) / 2) and found.old_error == pytest.approx(0.0)
    assert found.new == pytest.approx((1.0 + 0.0) / 2) and found.new_error == pytest.approx(0.5)


def test_whose_agent_failed_counts_as_nothing_in_its_arm() -> None:
    arms = {"0": ("baseline", "a"), "1": ("candidate", "a"), "2": ("candidate", "a")}
    both = told(1, 1, None)
    plain = compare_scorings(both, both, arms=arms).arms
    counted = compare_scorings(both, both, arms=arms, failed={"2"}).arms
    assert plain is not None and counted is not None
    assert (plain.old, counted.old, counted.old_error) == (0.0, -0.5, None)


def test_by_reward_the_whole_reward_is_compared() -> None:
    arms = {"0": ("a", "t"), "1": ("b", "t")}
    found = compare_scorings(
        told(1, 3, name="x"), told(1, 2, name="x"), arms=arms, baseline="a", candidate="b", primary="reward"
    )
    assert found.arms is not None and (found.arms.old, found.arms.new) == (2.0, 1.0)
    assert compare_scorings(told(1, 1), told(1, 1), arms={"0": ("a", "t")}, baseline="a", candidate="b").arms is None
