"""The verdict is closed by what failed, by what could not be told, and where nothing was looked at."""

from __future__ import annotations

import pytest

from holdfast.collect.endpoint_probe import DoctorFinding, FindingState, failed, skipped, unknown, verdict

FINE = DoctorFinding(check="usage", detail="as many as there are ids")


def test_what_passed_is_fit() -> None:
    decision = verdict([FINE, FINE])
    assert decision.open and [(one.code, one.text) for one in decision.reasons] == [("endpoint_fit", "2 checks passed")]


@pytest.mark.parametrize(
    ("finding", "is_open"),
    [
        (failed("usage", "usage_differs", "3 and 4"), False),
        (unknown("top_k", "no_samples", "nothing came"), False),
        (skipped("tool_calls", "not asked for"), True),
        (DoctorFinding(check="repeatable", state=FindingState.WARNING, code="not_repeatable", detail="2 of 3"), True),
    ],
    ids=lambda given: given.state.value if isinstance(given, DoctorFinding) else "",
)
def test_each_reason_is_named(finding: DoctorFinding, is_open: bool) -> None:
    decision = verdict([FINE, finding])
    assert decision.open is is_open
    assert is_open or [(one.code, one.text) for one in decision.reasons] == [(finding.code, finding.detail)]


@pytest.mark.parametrize("findings", [[], [skipped("usage", "no reason")]])
def test_where_nothing_was_looked_at_the_answer_is_no(findings: list[DoctorFinding]) -> None:
    decision = verdict(findings)
    assert not decision.open and decision.reasons[0].code == "nothing_examined"
