"""A decision on 80 columns: in one word, with what may still open it, and each reason with its code."""

from __future__ import annotations

import pytest

from holdfast.cli.story import headline, lines, outcome, told
from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.release import PolicyKind, Release, Stage
from holdfast.promote.release import UNDECIDED

LONG = Reason(code="checkpoint_promotion_blocked_safety_regression", text="safety is worse " * 20)
MET = Reason(code="promotion_allowed", text="success +0.4; all is met")
SHORT = Reason(code="guard_undecided", text="nothing is proved yet")


@pytest.mark.parametrize(
    ("decision", "word", "line"),
    [
        (Decision(open=True, reasons=(SHORT,)), "promoted", "sprout@2: promoted"),
        (Decision(open=False, reasons=(LONG,)), "refused", "sprout@2: refused"),
        (Decision(open=False, reasons=(SHORT,)), "held", "sprout@2: held"),  # a guard goes on looking
        (
            Decision(open=False, reasons=(SHORT,), needs=40),
            "held",
            "sprout@2: held; about 40 more answers may decide it",
        ),
        (
            Decision(open=False, reasons=(LONG,), needs=120),
            "held",
            "sprout@2: held; about 120 more episodes may open the gate",
        ),
    ],
)
def test_what_became_of_a_version_is_one_word(decision: Decision, word: str, line: str) -> None:
    assert outcome(decision) == word
    assert headline("sprout@2", decision) == line


def release(stage: Stage, share: int = 0) -> Release:
    return Release(
        id="sprout@2",
        project="default",
        policy="sprout",
        number=2,
        kind=PolicyKind.WEIGHTS,
        source="shelf:sprout",
        stage=stage,
        share=share,
        created_at=0.0,
        changed_at=0.0,
    )


@pytest.mark.parametrize(
    ("now", "line"),
    [
        (release(Stage.SHADOW), "sprout@2: promoted to shadow; it serves nobody yet"),
        (release(Stage.CANARY, 5), "sprout@2: promoted to canary; it answers 5 % of the callers"),
        (release(Stage.LIVE, 100), "sprout@2: promoted to live; it answers the callers"),
        (release(Stage.CANDIDATE), "sprout@2: accepted; it stays candidate"),
        (release(Stage.RETIRED), "sprout@2: promoted; it is retired by now"),
    ],
)
def test_where_a_promoted_version_is_now_is_said(now: Release, line: str) -> None:
    assert headline("sprout@2", Decision(open=True, reasons=(MET,)), now) == line


def test_what_is_not_promoted_stays_where_it_is() -> None:
    decision = Decision(open=False, reasons=(LONG,), needs=7)
    told_so = "sprout@2: held; it stays candidate; about 7 more episodes may open the gate"
    assert headline("sprout@2", decision, release(Stage.CANDIDATE)) == told_so
    assert list(told("sprout@2", decision, release(Stage.CANDIDATE), "  "))[:2] == [
        f"  {told_so}",
        f"    {LONG.code}",
    ]
    assert list(told("sprout@2", decision, at=" --store s.db"))[-1] == (
        "  holdfast prove more sprout@2 --tasks FILE --store s.db"
    )
    guard = Decision(open=False, reasons=(Reason(code=UNDECIDED, text="no answers yet"),))
    assert not any("prove more" in line for line in told("sprout@2", guard))  # it waits for callers


def test_of_an_open_gate_only_the_sum_is_told_and_a_code_stands_once() -> None:
    assert list(lines((MET, Reason(code="promotion_allowed", text="400 pairs")))) == ["  success +0.4; all is met"]
    assert list(lines((SHORT, SHORT))) == ["  guard_undecided", *["    nothing is proved yet"] * 2]


def test_every_reason_has_its_code_and_is_folded() -> None:
    found = list(lines((SHORT, LONG)))
    assert found[:3] == [
        "  guard_undecided",
        "    nothing is proved yet",
        "  checkpoint_promotion_blocked_safety_regression",
    ]
    assert max(map(len, found)) <= 79 and len(found) > 6
    assert " ".join(line.strip() for line in found[3:]) == LONG.text.strip()
    assert list(lines((SHORT,), "")) == ["guard_undecided", "  nothing is proved yet"]
