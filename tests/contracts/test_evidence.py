"""Evidence is finite and whole, and no verdict or gate goes without a reason."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.evidence import (
    Band,
    Decision,
    Episode,
    Evidence,
    Finding,
    Interval,
    MetricComparison,
    Outcome,
    Reason,
    Scores,
    Verdict,
)
from holdfast.contracts.records import decode, encode

NAN, INF = float("nan"), float("inf")


def scores(**changes: Any) -> Scores:
    given = {"version": "v1", "metric": "reward", "tasks": ("a", "b"), "seeds": (1, 2, 3)}
    return Scores(**{**given, "values": ((0.0, 0.5, 1.0), (1.0, 1.0, 1.0)), **changes})


def comparison(**changes: Any) -> MetricComparison:
    given = {"metric": "reward", "baseline": "v1", "candidate": "v2", "difference": 0.1, "method": "paired bootstrap"}
    return MetricComparison(
        **{**given, "interval": Interval(low=0.0, high=0.2), "p_value": 0.04, "pairs": 30, **changes}
    )


def episode(**changes: Any) -> Episode:
    return Episode(**{"task": "add", "seed": 7, "reward": 1.0, **changes})


def band(**changes: Any) -> Band:
    spreads = {"p_value_spread": 0.01, "delta_spread": 0.02, "most_p_value_spread": 0.05, "most_delta_spread": 0.1}
    return Band(**{"kind": "seed", "within": True, "of": 2, **spreads, **changes})


def evidence(**changes: Any) -> Evidence:
    given = {"policy": "sprout", "baseline": "v1", "candidate": "v2", "suite": "tooluse@1 3f2a", "primary": "success"}
    return Evidence(**{**given, "episodes": 30, **changes})


FINE = Reason(code="promotion_allowed", text="p 0.01 < 0.05")


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
    # a margin that is none
    (comparison, {"margin": -0.1}, "comparison of v2 with v1: margin = -0.1: must be finite and not negative"),
    (comparison, {"margin": INF}, "comparison of v2 with v1: margin = inf: must be finite and not negative"),
    # reasons without a code or a sentence
    (Reason, {"code": " ", "text": "fine"}, "reason ' ': code and text must not be blank"),
    (Reason, {"code": "ok", "text": ""}, "reason 'ok': code and text must not be blank"),
    # decisions: open or closed, there is a reason; only a closed gate may be opened by more episodes
    (Decision, {"open": False, "reasons": ()}, "closed decision: must give a reason"),
    (Decision, {"open": True, "reasons": ()}, "open decision: must give a reason"),
    (
        Decision,
        {"open": True, "reasons": (FINE,), "needs": 5},
        "decision: needs = 5: at least 1, and only while closed",
    ),
    (
        Decision,
        {"open": False, "reasons": (FINE,), "needs": 0},
        "decision: needs = 0: at least 1, and only while closed",
    ),
    # episodes of nothing, or without a worth
    (episode, {"task": " "}, "episode of   with seed 7: the task must not be blank"),
    (episode, {"reward": NAN}, "episode of add with seed 7: reward = nan: must be a finite number"),
    (episode, {"reward": True}, "episode of add with seed 7: reward = True: must be a finite number"),
    (episode, {"success": 1.1}, "episode of add with seed 7: success = 1.1: must be a finite number in its range"),
    (episode, {"success": True}, "episode of add with seed 7: success = True: must be a finite number in its range"),
    (
        episode,
        {"safety_cost": -1.0},
        "episode of add with seed 7: safety_cost = -1.0: must be a finite number in its range",
    ),
    (episode, {"latency_s": INF}, "episode of add with seed 7: latency_s = inf: must be a finite number in its range"),
    (episode, {"tokens": -1}, "episode of add with seed 7: tokens = -1: must be a finite number in its range"),
    # bands of one run, or with a spread that is none
    (band, {"of": 1}, "band seed: of = 1: must be at least 2"),
    (band, {"delta_spread": -0.1}, "band seed: delta_spread = -0.1: must be finite and not negative"),
    (band, {"most_p_value_spread": NAN}, "band seed: most_p_value_spread = nan: must be finite and not negative"),
    (Finding, {"name": "pii", "severity": "error", "count": -1, "of": 3}, "finding pii: -1 of 3: must not be negative"),
    # evidence about nothing, or of a version against itself
    (evidence, {"suite": ""}, "evidence: suite: must not be blank"),
    (evidence, {"episodes": -1}, "evidence: episodes = -1: must not be negative"),
    (evidence, {"candidate": "v1"}, "evidence: candidate v1: is compared with itself"),
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


def test_a_gate_says_why_whether_it_is_open_or_closed() -> None:
    assert Decision(open=True, reasons=(FINE,)).reasons[0].code == "promotion_allowed"
    closed = Decision(open=False, reasons=(Reason(code="evidence_missing_golden", text="no golden replay"),), needs=1)
    assert (closed.open, closed.needs) == (False, 1)


def test_a_decision_of_the_first_version_is_not_read_as_one_of_the_second() -> None:
    """Its reasons were sentences without codes."""
    with pytest.raises(BadRecord, match=r"schema_version = 1: is not a supported version: \[2\]"):
        decode(Decision, {"open": True, "reasons": []})
    assert encode(Decision(open=True, reasons=(FINE,)))["schema_version"] == 2


def test_what_was_not_measured_is_missing_and_not_zero() -> None:
    assert (episode().success, episode().latency_s, episode().tokens) == (None, None, None)
    assert episode(success=0.0, latency_s=0.0, tokens=0).success == 0.0
    bare = evidence()
    assert (bare.verdict, bare.golden, bare.audit, bare.samples) == (None, None, None, None)
    assert (bare.comparisons, bare.bands) == ({}, {})
