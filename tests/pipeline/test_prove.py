"""Looks at the evidence: what they keep, when they decide, and that nobody gains by not finishing."""

from __future__ import annotations

import json

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Episode, Outcome, Verdict
from holdfast.pipeline.prove import Look, ProveConfig, judged
from holdfast.prove.comparison import ComparisonConfig

HOW = ComparisonConfig(max_safety_regression=0.9)


def episodes(values: list[float]) -> list[Episode]:
    return [Episode(task=f"t{place}", seed=0, reward=value, success=value) for place, value in enumerate(values)]


def test_a_look_comes_back_from_its_record() -> None:
    verdict = Verdict(outcome=Outcome.HOLD, reasons=("not yet",), needs=5)
    look = Look(
        look=2,
        iteration=1,
        tasks=8,
        planned=16,
        missing={"baseline": 0, "candidate": 1},
        episodes="ab" * 32,
        earlier=("cd" * 32,),
        difference=0.25,
        verdict=verdict,
    )
    assert Look.from_record(json.loads(json.dumps(look.record()))) == look
    assert look.blobs == ("cd" * 32, "ab" * 32) and not look.is_decided


def test_two_tasks_of_both_are_needed_to_say_anything() -> None:
    assert judged(episodes([0.0]), episodes([1.0]), HOW) == {"tasks": 1}
    assert judged([], [], HOW) == {"tasks": 0}


def test_a_certain_gain_decides_and_none_does_not() -> None:
    better = judged(episodes([0.0] * 40), episodes([1.0] * 40), HOW)
    assert better["verdict"].outcome is Outcome.PROMOTE and better["difference"] == 1.0
    same = judged(episodes([0.5] * 40), episodes([0.5] * 40), HOW)
    assert same["verdict"].outcome is Outcome.HOLD and same["difference"] == 0.0


def test_a_batch_has_a_task_at_least() -> None:
    with pytest.raises(BadInput, match="must be at least 1"):
        ProveConfig(batch=0)
