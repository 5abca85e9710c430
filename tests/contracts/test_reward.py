"""Signals and rewards are finite and say where they come from; a sheet without signals has no total."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.records import decode, encode
from holdfast.contracts.reward import Reward, RewardBreakdown, RewardTerm


def signal(**changes: Any) -> RewardTerm:
    return RewardTerm(**{"name": "match", "value": 1.0, "source": "rule:match", **changes})


REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"name": " "}, "signal ' ': name and source 'rule:match' must not be blank"),
    ({"source": ""}, "signal 'match': name and source '' must not be blank"),
    ({"value": float("nan")}, "signal match: value nan and weight 1.0 must be finite"),
    ({"weight": float("inf")}, "signal match: value 1.0 and weight inf must be finite"),
    ({"turn": -1}, "signal match: turn = -1: must be between 0 and 2147483647"),
    ({"turn": 2**31}, "signal match: turn = 2147483648: must be between 0 and 2147483647"),
]


@pytest.mark.parametrize(("changes", "message"), REFUSED)
def test_a_signal_that_cannot_be_added_up_is_refused(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        signal(**changes)
    assert str(refusal.value) == message


def test_the_first_turn_is_zero() -> None:
    assert signal(turn=0).turn == 0


def test_a_total_is_the_weighted_sum() -> None:
    assert RewardBreakdown(signals=(signal(value=2.0, weight=0.5), signal(value=-1.0, turn=0))).total == 0.0


def test_nothing_measured_is_not_zero() -> None:
    assert RewardBreakdown(signals=()).total is None


def test_feedback_is_kept_in_words_and_a_signal_of_before_has_none() -> None:
    told = signal(feedback="said 5, not 4")
    assert decode(RewardTerm, encode(told)) == told
    assert decode(RewardTerm, {"name": "match", "value": 1.0, "source": "rule:match"}).feedback is None


def test_a_reward_is_a_value_and_may_say_more() -> None:
    plain = Reward(1.0)
    assert (plain.value, plain.terms, plain.feedback, plain.turns) == (1.0, {}, "", None)
    full = Reward(0.5, {"tone": 1}, "too long", {0: {"looked_up": True}})
    assert (full.value, full.terms, full.feedback, full.turns) == (
        0.5,
        {"tone": 1.0},
        "too long",
        {0: {"looked_up": 1.0}},
    )


def test_numbers_of_other_libraries_become_plain_ones() -> None:
    reward = Reward(np.float32(0.5), {"flag": np.bool_(True)})
    assert type(reward.value) is float and type(reward.terms["flag"]) is float


UNFIT: list[tuple[dict[str, Any], str]] = [
    ({"value": float("nan")}, "reward: value: is not a finite number"),
    ({"value": float("inf")}, "reward: value: is not a finite number"),
    ({"value": 10**400}, "reward: value: is not a finite number"),  # no float is so large
    ({"value": "1"}, "reward: value: is not a finite number"),
    ({"value": None}, "reward: value: is not a finite number"),
    ({"value": 1.0, "terms": {"tone": float("nan")}}, "reward: terms: tone: is not a finite number"),
    ({"value": 1.0, "terms": {" ": 1.0}}, "reward: terms: ' ': is not a name"),
    ({"value": 1.0, "terms": [1.0]}, "reward: terms: is list, not an object"),
    ({"value": 1.0, "feedback": 3}, "reward: feedback: is int, not text"),
    ({"value": 1.0, "turns": {-1: {}}}, "reward: turn -1: is not a whole number from 0"),
    ({"value": 1.0, "turns": {"0": {}}}, "reward: turn '0': is not a whole number from 0"),
    ({"value": 1.0, "turns": {0: {"x": float("inf")}}}, "reward: turn 0: x: is not a finite number"),
]


@pytest.mark.parametrize(("fields", "message"), UNFIT)
def test_a_reward_that_could_not_be_kept_is_refused_where_it_is_made(fields: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        Reward(**fields)
    assert str(refusal.value).startswith(message)
