"""What the checks of an endpoint found, and whether that is enough to train on it.

A check that should have told something and could not is as good as failed.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from enum import StrEnum

from holdfast.contracts.evidence import Decision, Reason

CHECKS = {
    "completion": "it answers",
    "token_ids": "ids of the prompt and of the answer come with it",
    "logprobs": "a log-prob comes with each id",
    "ids_of_text": "the ids are those of the text",
    "usage": "tokens are counted right",
    "repeatable": "temperature 0 gives the same answer again",
    "stream": "a stream says what the whole answer says",
    "template": "a later prompt begins with what was read and said before",
    "tool_calls": "calls of tools come back, and go in again unchanged",
    "temperature": "log-probs are those at the temperature in force",
    "top_k": "log-probs are renormalised under top-k",
    "top_p": "log-probs are renormalised under top-p",
    "draws": "tokens are drawn as often as their log-probs say",
    "trainer_gap": "the trainer finds the same log-probs",
}


class FindingState(StrEnum):
    OK = "ok"
    WARNING = "warning"  # worth knowing
    FAILED = "failed"
    UNKNOWN = "unknown"  # it should have been seen, and was not
    SKIPPED = "skipped"  # not asked for, or idle after what failed before


@dataclass(frozen=True, slots=True, kw_only=True)
class DoctorFinding:
    """What one check found."""

    check: str
    state: FindingState = FindingState.OK
    code: str = "ok"  # stable, for programs
    detail: str = ""
    figures: Mapping[str, float] = field(default_factory=dict)


def verdict(findings: Sequence[DoctorFinding]) -> Decision:
    """Whether to train on it. Closed by what failed, by what could not be seen, and where nothing was looked at."""
    bad = [one for one in findings if one.state in (FindingState.FAILED, FindingState.UNKNOWN)]
    if bad:
        return Decision(open=False, reasons=tuple(Reason(code=one.code, text=one.detail) for one in bad))
    if not any(one.state is FindingState.OK for one in findings):
        return Decision(open=False, reasons=(Reason(code="nothing_examined", text="no check was made"),))
    passed = sum(one.state is FindingState.OK for one in findings)
    return Decision(open=True, reasons=(Reason(code="endpoint_fit", text=f"{passed} checks passed"),))


def failed(check: str, code: str, detail: str, **figures: float) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.FAILED, code=code, detail=detail, figures=figures)


def unknown(check: str, code: str, detail: str) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.UNKNOWN, code=code, detail=detail)


def skipped(check: str, why: str) -> DoctorFinding:
    return DoctorFinding(check=check, state=FindingState.SKIPPED, code="skipped", detail=why)
