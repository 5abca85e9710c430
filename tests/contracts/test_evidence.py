"""Evidence is finite and whole, and no verdict or closed gate goes without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import Comparison, Decision, Interval, Outcome, Scores, Verdict

NAN, INF = float("nan"), float("inf")


def scores(**changes: Any) -> Scores:
    given = {"version": "v1", "metric": "reward", "tasks": ("a", "b"), "seeds": (1, 2, 3)}
    return Scores(**{**given, "values": ((0.0, 0.5, 1.0), (1.0, 1.0, 1.0)), **changes})


def comparison(**changes: Any) -> Comparison:
    given = {"metric": "reward", "baseline": "v1", "candidate": "v2", "difference": 0.1, "method": "paired bootstrap"}
    return Comparison(**{**given, "interval": Interval(low=0.0, high=0.2), "p_value": 0.04, "pairs": 30, **changes})


BAD: list[tuple[Any, dict[str, Any], str]] = [
    # the ends the wrong way round, or not there
    (Interval, {"low": 2.0, "high": 1.0}, "interval 2.0 to 1.0: the ends must be finite and in order"),
    (Interval, {"low": -INF, "high": 1.0}, "interval -inf to 1.0: the ends must be finite and in order"),
    (Interval, {"low": 0.0, "high": NAN}, "interval 0.0 to nan: the ends must be finite and in order"),
    # a level of certainty, or of nothing
    (Interval, {"low": 0.0, "high": 1.0, "level": 1.0}, "interval: level = 1.0: must be above 0 and below 1"),
    (Interval, {"low": 0.0, "high": 1.0, "level": 0.0}, "interval: level = 0.0: must be above 0 and below 1"),
    # scores of nothing in particular
    (scores, {"version": ""}, "scores of : version and metric 'reward' must not be blank"),
    (scores, {"metric": " "}, "scores of v1: version and metric ' ' must not be blank"),
    # no tasks, no seeds, or one of them twice
    (scores, {"tasks": (), "values": ()}, "scores of v1: tasks: must be there, each of them once"),
    (scores, {"tasks": ("a", "a")}, "scores of v1: tasks: must be there, each of them once"),
    (scores, {"seeds": ()}, "scores of v1: seeds: must be there, each of them once"),
    (scores, {"seeds": (1, 1, 2)}, "scores of v1: seeds: must be there, each of them once"),
    # a matrix with holes
    (scores, {"values": ((0.0, 0.5, 1.0),)}, "scores of v1: values: 1 rows for 2 tasks"),
    (scores, {"values": ((0.0, 0.5, 1.0), (1.0,))}, "scores of v1: task b: 1 values for 3 seeds"),
    (
        scores,
        {"values": ((0.0, NAN, 1.0), (1.0, 1.0, 1.0))},
        "scores of v1: task a: must be finite; leave the task out as missing",
    ),
    # a comparison of nothing, by no method
    (comparison, {"metric": ""}, "comparison: metric: must not be blank"),
    (comparison, {"baseline": ""}, "comparison: baseline: must not be blank"),
    (comparison, {"candidate": ""}, "comparison: candidate: must not be blank"),
    (comparison, {"method": ""}, "comparison: method: must not be blank"),
    (comparison, {"difference": NAN}, "comparison of v2 with v1: difference = nan: must be finite"),
    (comparison, {"p_value": 1.5}, "comparison of v2 with v1: p_value = 1.5: must be between 0 and 1"),
    (comparison, {"p_value": NAN}, "comparison of v2 with v1: p_value = nan: must be between 0 and 1"),
    (comparison, {"pairs": 0}, "comparison of v2 with v1: pairs = 0: must be at least 1"),
    # verdicts
    (Verdict, {"outcome": Outcome.PROMOTE, "reasons": ()}, "verdict promote: must give a reason"),
    (Verdict, {"outcome": Outcome.REJECT, "reasons": ("",)}, "verdict reject: a reason must not be blank"),
    (
        Verdict,
        {"outcome": Outcome.HOLD, "reasons": ("wide",)},
        "verdict hold: needs = None: goes with hold, and hold needs it",
    ),
    (
        Verdict,
        {"outcome": Outcome.PROMOTE, "reasons": ("good",), "needs": 5},
        "verdict promote: needs = 5: goes with hold, and hold needs it",
    ),
    (
        Verdict,
        {"outcome": Outcome.HOLD, "reasons": ("wide",), "needs": 0},
        "verdict hold: needs = 0: must be at least 1",
    ),
    # decisions
    (Decision, {"open": False, "reasons": ()}, "closed decision: must give a reason"),
    (Decision, {"open": True, "reasons": ("fine", " ")}, "decision: a reason must not be blank"),
]


@pytest.mark.parametrize(("build", "changes", "message"), BAD, ids=[message for _, _, message in BAD])
def test_evidence_that_proves_nothing_is_refused(build: Any, changes: dict[str, Any], message: str) -> None:
    with pytest.raises(BadRecord) as refusal:
        build(**changes)
    assert str(refusal.value) == message


def test_the_edges_of_evidence_are_allowed() -> None:
    assert Interval(low=1.0, high=1.0).level == 0.95
    assert scores(tasks=("a",), seeds=(1,), values=((0.0,),)).values == ((0.0,),)
    assert comparison(p_value=0.0, pairs=1).p_value == 0.0
    assert comparison(p_value=1.0).p_value == 1.0


def test_a_verdict_that_holds_says_how_much_more_it_needs() -> None:
    assert Verdict(outcome=Outcome.HOLD, reasons=("interval touches 0",), needs=1).needs == 1


def test_an_open_gate_may_go_without_a_reason_and_a_closed_one_may_not() -> None:
    assert Decision(open=True, reasons=()).open
    assert not Decision(open=False, reasons=("no golden replay",)).open
