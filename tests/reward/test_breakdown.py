from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.contracts.errors import BadInput, BadRecord
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.reward.breakdown import OutcomeGate, normalised, total

GUARD = OutcomeGate(cap=0.5, vetoes=("tampered",))


def signal(name: str, value: float, weight: float = 1.0, turn: int | None = None) -> RewardTerm:
    return RewardTerm(name=name, value=value, weight=weight, source="rule:test", turn=turn)


def passed(value: bool | float = True, weight: float = 1.0) -> RewardTerm:
    return signal("success", float(value), weight)


NUMBERS = st.floats(-100, 100)
SHAPING = st.lists(
    st.builds(signal, st.sampled_from(["format", "cost", "gain"]), NUMBERS, st.floats(-3, 3), st.none() | st.just(0)),
    max_size=6,
)
ANY_GUARD = st.builds(OutcomeGate, cap=st.floats(0, 0.99), vetoes=st.just(("tampered",)))


def test_shaping_is_paid_to_those_who_passed_alone_and_says_that_it_was_gated() -> None:
    shaping = [signal("format", 1.0, 0.1), signal("cost", -1.0, 0.2)]
    assert total([passed(), *shaping], GUARD).total == pytest.approx(0.9)
    assert total([passed(False), *shaping], GUARD).total == pytest.approx(
        -0.2
    )  # the cost stays, the format is not paid
    _, shaped, gate = total([passed(False), signal("format", 1.0, 0.1, turn=2)], GUARD).signals
    assert (shaped.value, shaped.weight, shaped.turn) == (1.0, 0.0, 2)
    assert (gate.name, gate.value, gate.weight, gate.source) == ("gated", 1.0, 0.0, "guard:outcome@1")
    assert total([passed()], GUARD).signals[-1].value == 0.0


def test_all_shaping_together_is_capped_and_keeps_its_proportions() -> None:
    breakdown = total([passed(), signal("format", 3.0), signal("gain", 1.0)], GUARD)  # 4, and ½ is allowed
    assert breakdown.total == pytest.approx(1.5)
    assert [one.value * one.weight for one in breakdown.signals[1:3]] == pytest.approx([0.375, 0.125])


def test_a_veto_leaves_nothing_whatever_else_is_earned_and_is_told() -> None:
    assert total([passed(), signal("format", 1.0), signal("tampered", 1.0, 2.0)], GUARD).total == -2.0
    assert total([passed(), signal("tampered", 0.0)], GUARD).total == 1.0
    gated = {(1.0, 0.0): 0.0, (0.0, 0.0): 1.0, (1.0, 1.0): 2.0, (0.0, 3.0): 2.0}  # by success and veto
    for (success, tampered), value in gated.items():
        assert total([passed(success), signal("tampered", tampered, 0.0)], GUARD).signals[-1].value == value


def test_under_a_graded_guard_half_right_has_its_grade_and_nothing_else() -> None:
    graded = OutcomeGate(cap=0.5, graded=True)
    breakdown = total([passed(0.5), signal("format", 1.0, 0.1), signal("cost", -1.0, 0.2)], graded)
    assert breakdown.total == pytest.approx(0.3)  # the grade less the cost; the format is not paid
    assert breakdown.signals[-1].value == 1.0  # it did not pass
    assert total([passed(1.0), signal("format", 1.0, 0.1)], graded).total == pytest.approx(1.1)
    for value, guard in ((0.5, GUARD), (1.5, graded), (-0.1, graded)):
        with pytest.raises(BadRecord):
            total([passed(value)], guard)


@given(SHAPING, SHAPING, ANY_GUARD, st.floats(0.1, 10))
def test_no_shaping_lifts_a_failure_above_a_success(
    good: list[RewardTerm], bad: list[RewardTerm], guard: OutcomeGate, weight: float
) -> None:
    won = total([*good, passed(weight=weight)], guard).total
    lost = total([passed(False, weight), *bad], guard).total
    vetoed = total([passed(weight=weight), signal("tampered", 1.0, 0.0), *bad], guard).total
    assert won is not None and lost is not None and vetoed is not None
    assert lost <= 0.0 and vetoed <= 0.0
    assert weight * (1 - guard.cap) - 1e-9 <= won <= weight * (1 + guard.cap) + 1e-9


@given(SHAPING, ANY_GUARD, st.booleans())
def test_the_guard_only_lowers_weights(shaping: list[RewardTerm], guard: OutcomeGate, is_right: bool) -> None:
    given_ = [passed(is_right), *shaping]
    breakdown = total(given_, guard)
    for before, after in zip(given_, breakdown.signals[:-1], strict=True):
        assert replace(after, weight=before.weight) == before
        assert abs(after.weight) <= abs(before.weight) and after.weight * before.weight >= 0.0
    assert breakdown.total == sum(one.value * one.weight for one in breakdown.signals)


def test_a_share_is_of_what_the_gold_answer_earns_and_nothing_measured_has_none() -> None:
    gold = total([passed(), signal("format", 1.0, 0.25)], GUARD)
    assert normalised(gold, gold) == 1.0
    assert normalised(total([passed()], GUARD), gold) == pytest.approx(0.8)
    assert normalised(total([passed(False), signal("cost", -1.0)], GUARD), gold) == 0.0
    assert total([], GUARD) == RewardBreakdown(signals=())
    for breakdown, of in ((RewardBreakdown(signals=()), gold), (gold, total([passed(False)], GUARD))):
        with pytest.raises(BadRecord, match="a share needs a total"):
            normalised(breakdown, of)


@pytest.mark.parametrize(
    ("signals", "why"),
    [
        ([signal("format", 1.0)], "has 0 signals called success"),
        ([passed(), passed()], "has 2 signals called success"),
        ([passed(0.5)], "passes \\(1\\) or not \\(0\\)"),
        ([passed(weight=0.0)], "must count"),
        ([passed(False), signal("tampered", -5.0)], "tampered: is -5; a veto is 0"),  # below 0 it would pay
        ([passed(False), signal("tampered", 1.0), signal("tampered", -5.0)], "tampered: is -5; a veto is 0"),
        ([passed(), signal("tampered", 1e200, 1e200)], "adds up to -inf"),
    ],
)
def test_a_sheet_without_one_clear_outcome_is_refused(signals: list[RewardTerm], why: str) -> None:
    with pytest.raises(BadRecord, match=why):
        total(signals, GUARD)


def test_impossible_guards_and_numbers_are_refused() -> None:
    with pytest.raises(BadInput, match="cap = 1.0"):
        OutcomeGate(cap=1.0)
    with pytest.raises(BadInput, match="outcome and veto"):
        OutcomeGate(vetoes=("success",))
    with pytest.raises(BadRecord, match="must be finite"):
        signal("format", float("nan"))
