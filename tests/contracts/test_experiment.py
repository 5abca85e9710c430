"""A trial has arms whose weights add up, and what was served is finite and in its range, or not told yet."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.release import Experiment, ServedRequest

NAN, INF = float("nan"), float("inf")
ARMS = "trial t: arms: two or more are needed, with weights that add up to 1"
BLANK = "name, kind and salt must not be blank"
RANGE = "must be a finite number in its range"


def trial(**changes: Any) -> Experiment:
    given = {"name": "t", "kind": "experiment", "arms": {"a": 0.5, "b": 0.5}, "salt": "s", "created_at": 1.0}
    return Experiment(**{**given, **changes})


def served(**changes: Any) -> ServedRequest:
    return ServedRequest(**{"id": "r1", "trial": "t", "arm": "a", "unit": "ann", "at": 1.0, **changes})


@pytest.mark.parametrize(
    ("build", "changes", "message"),
    [
        (trial, {"name": " "}, f"trial ' ': {BLANK}"),
        (trial, {"kind": ""}, f"trial 't': {BLANK}"),
        (trial, {"salt": ""}, f"trial 't': {BLANK}"),
        (trial, {"arms": {}}, ARMS),
        (trial, {"arms": {"a": 1.0}}, ARMS),  # nothing to compare with
        (trial, {"arms": {"a": 0.5, "b": 0.6}}, ARMS),
        (trial, {"arms": {"a": 1.5, "b": -0.5}}, ARMS),
        (trial, {"arms": {"a": NAN, "b": 1.0}}, ARMS),
        (served, {"id": ""}, "served request '': id: must not be blank"),
        (served, {"trial": " "}, "served request 'r1': trial: must not be blank"),
        (served, {"arm": ""}, "served request 'r1': arm: must not be blank"),
        (served, {"unit": ""}, "served request 'r1': unit: must not be blank"),
        (served, {"latency_s": -0.1}, f"served request r1: latency_s = -0.1: {RANGE}"),
        (served, {"latency_s": INF}, f"served request r1: latency_s = inf: {RANGE}"),
        (served, {"success": 1.5}, f"served request r1: success = 1.5: {RANGE}"),
        (served, {"success": True}, f"served request r1: success = True: {RANGE}"),  # a flag is not a number
        (served, {"reward": NAN}, f"served request r1: reward = nan: {RANGE}"),
        (served, {"safety_cost": -1.0}, f"served request r1: safety_cost = -1.0: {RANGE}"),
    ],
)
def test_what_is_none_is_refused(build: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        build(**changes)
    assert str(refusal.value) == message


def test_the_edges_are_allowed() -> None:
    assert list(trial(arms={"a": 1.0, "b": 0.0}).arms) == ["a", "b"]
    assert sum(trial(arms={"a": 0.1, "b": 0.2, "c": 0.7}).arms.values()) == pytest.approx(1)
    assert served(latency_s=0.0, success=1.0, reward=-3.0, safety_cost=0.0).success == 1.0


def test_what_nobody_told_is_none_and_not_zero() -> None:
    bare = served()
    assert (bare.latency_s, bare.tokens, bare.success, bare.reward, bare.safety_cost) == (None,) * 5
    assert bare.error is False
