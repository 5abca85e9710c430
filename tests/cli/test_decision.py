"""A decision on 80 columns: in one word, with what may still open it, and each reason with its code."""

from __future__ import annotations

import pytest

from holdfast.cli.decision import headline, lines, outcome
from holdfast.contracts.evidence import Decision, Reason

LONG = Reason(code="checkpoint_promotion_blocked_safety_regression", text="safety is worse " * 20)
SHORT = Reason(code="guard_open", text="nothing is proved yet")


@pytest.mark.parametrize(
    ("decision", "word", "line"),
    [
        (Decision(open=True, reasons=(SHORT,)), "promoted", "sprout@2: promoted"),
        (Decision(open=False, reasons=(SHORT,)), "refused", "sprout@2: refused"),
        (
            Decision(open=False, reasons=(SHORT,), needs=120),
            "held",
            "sprout@2: held; about 120 more episodes may open the gate",
        ),
    ],
)
def test_what_became_of_a_version_is_one_word(decision: Decision, word: str, line: str) -> None:
    assert outcome(decision) == word
    assert headline("sprout@2", decision) == line


def test_every_reason_has_its_code_and_is_folded() -> None:
    found = list(lines((SHORT, LONG)))
    assert found[:3] == [
        "  guard_open",
        "    nothing is proved yet",
        "  checkpoint_promotion_blocked_safety_regression",
    ]
    assert max(map(len, found)) <= 79 and len(found) > 6
    assert " ".join(line.strip() for line in found[3:]) == LONG.text.strip()
    assert list(lines((SHORT,), "")) == ["guard_open", "  nothing is proved yet"]
