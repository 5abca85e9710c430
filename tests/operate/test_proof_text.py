"""What a proof's page says: units, signs, the sentence of each verdict, and what would change it."""

from __future__ import annotations

import pytest

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import (
    BETTING,
    Decision,
    Interval,
    MetricComparison,
    Outcome,
    Reason,
    Verdict,
    comparison_row,
)
from holdfast.contracts.lines import printable
from holdfast.operate import proof_view
from holdfast.operate.proof_view import GateCriterion, MetricSequence
from tests.operate.views import course, view


@pytest.mark.parametrize(
    ("metric", "value", "level", "difference"),
    [
        ("success", 0.125, "12.50 %", "+12.5 points"),
        ("reward", -0.25, "−0.2500", "−0.250"),
        ("safety", -0.02, "0.0200", "+0.020"),  # 0.02 more of a cost is a rise, and worse
        ("latency", -1.5, "1.500 s", "+1.50 s"),
        ("cost", -1234.0, "1,234.00", "+1,234.0"),
        ("charm", 0.5, "0.5000", "+0.500"),  # one that nobody knew of
    ],
)
def test_every_metric_is_written_in_its_own_unit(metric: str, value: float, level: str, difference: str) -> None:
    assert (proof_view.amount(metric, value), proof_view.change(metric, value)) == (level, difference)


def test_nothing_has_no_sign_and_a_range_names_its_unit_once() -> None:
    for value in (0.0, -0.0, 1e-9, -1e-9):
        assert proof_view.change("reward", value) == "0" and proof_view.change("success", value) == "0 points"
    assert proof_view.tick("success", 0.0) == "0"
    assert proof_view.range_of("success", -0.077, 0.402) == "−7.7 to +40.2 points"


def test_what_is_better_when_less_rises_and_falls_as_people_know_it() -> None:
    assert proof_view.range_of("safety", -0.02, 0.05) == "−0.050 to +0.020"  # 0.05 better is a fall by 0.05
    assert proof_view.tick("latency", 0.5) == "−0.5"
    assert (proof_view.less("safety"), proof_view.less("reward")) == ("less is better", "")
    cost = proof_view.cards(view())[1]
    assert (cost.title, cost.value) == ("Safety cost, change", "+0.004")
    assert cost.note == "less is better; 95 % interval −0.008 to +0.016; up to +0.050 would be accepted"


def test_levels_that_are_shown_differ_by_the_change_that_is_shown() -> None:
    before, after = -72.44, -70.86  # in whole tokens it would say: from 72 to 71, better by 2
    assert (proof_view.amount("cost", before), proof_view.amount("cost", after)) == ("72.44", "70.86")
    assert proof_view.change("cost", after - before) == "−1.6"


def test_a_reader_is_warned_of_reasons_that_turn_safety_round() -> None:
    for text, is_turned in (("safety +0.1 (+0.06", True), ("safety cost +0.1", False), ("p 0.1", False)):
        assert proof_view.speaks_turned(["success +0.1", text]) is is_turned


def test_texts_are_as_exact_as_they_need_to_be_and_break_no_line() -> None:
    assert [proof_view.p(value) for value in (0.00001, 0.0031, 0.5, 1.0)] == ["< 0.0001", "0.0031", "0.50", "1.00"]
    assert printable("a\nb\u202ec\ud800\x00é漢") == "a�b�c��é漢"
    assert proof_view.short("x" * 50, 10) == "x" * 9 + "…" and proof_view.short("x" * 10, 10) == "x" * 10


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("promote", "sprout@2 succeeds more often than sprout@1: +10.5 points, and safety is proved to hold."),
        ("blocked", "sprout@2 succeeds more often than sprout@1: +10.5 points, but the gate stays closed."),
        ("reject", "sprout@2 is proved not to be better than sprout@1: −12.8 points."),
        ("hold", "It is not proved yet that sprout@2 succeeds more often than sprout@1: +1.2 points so far."),
    ],
)
def test_the_headline_is_the_verdict_in_one_sentence(kind: str, expected: str) -> None:
    made = view(kind)
    assert proof_view.status_of(made).kind == kind
    assert proof_view.headline(made) == expected


def test_without_a_gate_a_criterion_that_is_not_met_blocks_and_one_that_only_tells_does_not() -> None:
    lacking = GateCriterion(name="Gain in reward", required="at least 0.05", measured="+0.0100", is_met=False)
    blocked = view("promote", decision=None, criteria=(lacking,))
    assert proof_view.status_of(blocked).kind == "blocked"
    assert proof_view.headline(blocked).endswith("but not every criterion is met.")
    assert proof_view.open_points(blocked)[0] == "Not met: gain in reward +0.0100, wanted at least 0.05."
    telling = GateCriterion(name="Other seeds", required="within 0.05", measured="0.2", is_met=False, blocks=False)
    assert proof_view.status_of(view("promote", decision=None, criteria=(telling,))).kind == "promote"
    asked = view("promote", criteria=(lacking,))  # the gate was asked, and is open …
    assert proof_view.status_of(asked).kind == "promote"
    # … which does not make up for a missing proof.
    assert proof_view.status_of(view("hold", decision=view("promote").decision)).kind == "hold"


def test_a_candidate_that_is_better_but_unsafe_is_rejected_for_that() -> None:
    unsafe = course("safety", [-0.2] * 200, bar=-0.05, wide=0.5)
    assert unsafe.refuted_at is not None
    rejected = Verdict(outcome=Outcome.REJECT, reasons=("unsafe",))
    made = view("promote", verdict=rejected, decision=None, safety=unsafe, criteria=())
    assert proof_view.headline(made) == "sprout@2 is proved to be less safe than sprout@1 by more than is allowed."
    (told,) = proof_view.open_points(made)
    assert told.startswith(
        "Safety cost differs by +0.165 to +0.235 (less is better), where it has to be below +0.050; more tasks like "
    )


def test_one_that_is_better_and_may_be_unsafe_waits_for_that() -> None:
    open_yet = course("safety", [0.0] * 200, bar=-0.05, wide=2.0)
    hold = Verdict(outcome=Outcome.HOLD, reasons=("open",), needs=1400)
    made = view("promote", verdict=hold, decision=None, safety=open_yet, criteria=())
    assert proof_view.headline(made).endswith("+10.5 points, but it is not proved yet that it is safe.")
    assert proof_view.open_points(made) == [
        "About 1,400 more episodes of each version, should they go as these did.",
        "Safety cost differs by −0.141 to +0.141 (less is better), as far as is known; it has to be below +0.050.",
    ]


def test_one_that_does_worse_so_far_needs_a_gain_first() -> None:
    worse = course("success", [-0.1] * 60, bar=0.0, wide=2.0)
    told = proof_view.open_points(view("hold", sequence=worse, decision=None, criteria=()))
    assert told[0] == "More episodes that go as these did would not prove it."


def test_a_promotion_says_how_much_more_could_not_have_been_asked_for() -> None:
    made = view("promote")
    gain, rise = f"{100 * made.sequence.low[-1]:+.1f} points", f"{-made.safety.low[-1]:.3f}"  # type: ignore[union-attr]
    assert proof_view.open_points(made)[0] == (
        f"Had a gain above {gain} or a rise in safety cost below {rise} been asked for, it would not be proved."
    )


def test_safety_that_is_proved_better_is_no_rise_below_nothing() -> None:
    safer = course("safety", [0.2] * 200, bar=-0.05, wide=1.0)
    told = proof_view.open_points(view("promote", safety=safer))[0]
    assert told.endswith("or a fall in safety cost beyond 0.129 been asked for, it would not be proved.")


def test_a_course_says_that_it_holds_however_often_one_looks() -> None:
    told = proof_view.course_told(course("safety", [0.0] * 200, bar=-0.05, wide=0.5))
    assert told.startswith(
        "After 200 tasks safety cost differs by 0 (less is better), and 95 % surely by −0.035 to +0.035."
    )
    assert told.endswith("That it is below +0.050 was proved after 101 tasks, however often one looks.")
    assert "is not proved after 60 tasks" in proof_view.course_told(course("success", [0.0] * 60, bar=0.0))


def test_a_closed_gate_names_its_first_reasons_and_counts_the_rest() -> None:
    reasons = tuple(Reason(code=f"code_{n}", text=f"reason {n}") for n in range(5))
    told = proof_view.open_points(view("promote", decision=Decision(open=False, reasons=reasons)))[0]
    assert told == "The gate is closed: reason 0; reason 1; reason 2; and 2 more below."


@pytest.mark.parametrize(
    ("differences", "low", "high"),
    [((), (), ()), ((0.0, 1.0), (0.0,), (1.0, 1.0)), ((0.0,), (0.0,), ()), ((), (0.0,), (1.0,))],
    ids=["empty", "a low bound is missing", "the high bound is missing", "bounds of nothing"],
)
def test_a_course_with_holes_is_refused(
    differences: tuple[float, ...], low: tuple[float, ...], high: tuple[float, ...]
) -> None:
    why = f"{len(differences)} differences, {len(low)} and {len(high)} bounds"
    with pytest.raises(BadInput, match=why):
        MetricSequence(metric="success", differences=differences, low=low, high=high, bar=0.0)


@pytest.mark.parametrize(
    ("metric", "gain", "low", "high", "p", "row"),
    [
        ("latency", -0.31, -0.4, -0.2, 1.0, ("latency (s)", "+0.310", "+0.200 to +0.400", "worse")),  # slower
        ("cost", 12.0, 3.0, 20.0, 0.01, ("tokens", "-12.000", "-20.000 to -3.000", "better")),
        ("reward", 0.1, -0.1, 0.3, 0.2, ("reward", "+0.100", "-0.100 to +0.300", "unclear")),
        ("safety", 0.0, -0.06, 0.06, 0.04, ("safety cost", "+0.000", "below +0.05", "no worse")),  # as it was tested
        ("safety", -0.02, -0.09, 0.04, 0.2, ("safety cost", "+0.020", "not surely below +0.05", "unclear")),
        ("safety", -0.2, -0.3, -0.1, 1.0, ("safety cost", "+0.200", "not surely below +0.05", "worse")),
    ],
)
def test_a_worse_candidate_reads_as_worse_in_units_that_people_know(
    metric: str, gain: float, low: float, high: float, p: float, row: tuple[str, ...]
) -> None:
    is_safety = metric == "safety"
    found = comparison_row(
        MetricComparison(
            metric=metric,
            baseline="a@1",
            candidate="a@2",
            difference=gain,
            interval=Interval(low=low, high=high, level=0.95),
            p_value=p,
            pairs=40,
            method=BETTING if is_safety else "paired permutation",
            margin=0.05 if is_safety else 0.0,
        )
    )
    assert (found.metric, found.difference, found.sure, found.candidate) == row
