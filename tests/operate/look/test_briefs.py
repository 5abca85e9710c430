from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy import stats

from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import OutcomeKind, RolloutState
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState
from holdfast.operate.look import briefs
from holdfast.store.dashboard_queries import Moments, Totals


def entry(kind: str = "release", **body: Any) -> LedgerEntry:
    return LedgerEntry(
        seq=3, at=1.0, project="p", run=None, kind=kind, who="ann", body=body, previous="0" * 64, sha256="1" * 64
    )


def test_a_rate_has_its_wilson_interval_and_none_of_nothing() -> None:
    told = briefs.rate(8, 10)
    assert (told["value"], told["n"]) == (0.8, 10)
    assert told["low"] == pytest.approx(0.4902, abs=1e-4) and told["high"] == pytest.approx(0.9433, abs=1e-4)
    assert briefs.rate(0, 0) == briefs.NO_RATE


def test_a_mean_has_students_interval() -> None:
    values = [0.1, 0.5, 0.9, 0.3]
    told = briefs.mean(Moments(n=4, total=sum(values), squares=sum(one * one for one in values)))
    reach = stats.t.ppf(0.975, 3) * stdev(values) / 2.0
    assert told["value"] == pytest.approx(fmean(values))
    assert (told["low"], told["high"]) == pytest.approx((fmean(values) - reach, fmean(values) + reach))
    assert briefs.mean(Moments(n=1, total=2.0, squares=4.0)) == {**briefs.NO_RATE, "value": 2.0, "n": 1}
    assert briefs.mean(Moments(n=2, total=float("inf"), squares=float("inf")))["value"] is None


def run_brief(counts: dict[RolloutState, int], outcomes: dict[OutcomeKind, int]) -> briefs.Brief:
    state, wanted = RunState.RUNNING, DesiredState.RUNNING
    run = RunRecord(
        id="run-1-a",
        project="p",
        kind="optimize",
        state=state,
        wanted=wanted,
        model_ref="m",
        settings={},
        queue_limit=None,
        created_at=1.0,
        beat_at=1.0,
        ended_at=None,
        error=None,
    )
    totals = Totals(counts=counts, rewards={}, sizes={}, outcomes=outcomes, is_whole=True)
    return briefs.run_brief(run, totals, now=2.0)


def test_success_is_of_what_ended_by_itself() -> None:
    counts = dict.fromkeys(RolloutState, 1) | {RolloutState.SUCCEEDED: 6, RolloutState.CANCELLED: 50}
    told = run_brief(counts, dict.fromkeys(OutcomeKind, 0))["success"]
    assert (told["value"], told["n"]) == (0.75, 8)


@pytest.mark.parametrize(
    ("outcomes", "value", "n"),
    [
        ({"right": 3, "wrong": 1}, 0.75, 4),
        ({"right": 3, "wrong": 1, "failed": 4, "not_checked": 90, "no_answer": 9}, 0.375, 8),  # a failure is not right
        ({"not_checked": 90, "failed": 4}, None, 0),  # nobody looked
        ({}, None, 0),
    ],
)
def test_right_is_of_what_was_checked_or_failed(outcomes: dict[str, int], value: float | None, n: int) -> None:
    counts, found = dict.fromkeys(RolloutState, 1), {kind: outcomes.get(kind, 0) for kind in OutcomeKind}
    told = run_brief(counts, found)["right"]
    assert (told["value"], told["n"]) == (value, n)


CLOSED = Decision(open=False, reasons=(Reason(code="p_value", text="p 0.2 > 0.05"), Reason(code="few", text="few")))
OPENED = Decision(open=True, reasons=(Reason(code="promotion_allowed", text="all 9 checks hold"),))


@pytest.mark.parametrize(
    ("body", "sentence", "outcome"),
    [
        ({"add": "s@1", "source": "shelf:1"}, "s@1 was registered: shelf:1.", "registered"),
        ({"accept": "s@2", "decision": encode(OPENED)}, "s@2 was accepted: all 9 checks hold.", "accepted"),
        ({"refuse": "s@2", "decision": encode(CLOSED)}, "s@2 was refused: p 0.2 > 0.05; few.", "refused"),
        (
            {"move": "s@2", "from": "candidate", "to": "canary", "share": 5, "why": "", "decision": encode(OPENED)},
            "s@2 went from candidate to canary with 5 %: all 9 checks hold.",
            "promoted",
        ),
        ({"roll_back": "s@2", "to": "s@1", "why": "errors"}, "s@2 was taken back; s@1 is live: errors.", "taken back"),
        ({"restore": "s@2", "retired": "s@1"}, "s@2 is live again; s@1 retired.", "restored"),
        ({"move": "s@2", "to": "candidate", "why": "again"}, "s@2 gets a second try: again.", "moved"),
    ],
)
def test_a_decision_is_one_sentence(body: dict[str, Any], sentence: str, outcome: str) -> None:
    told = briefs.decision_brief(entry(**body))
    assert (told["sentence"], told["outcome"], told["who"]) == (sentence, outcome, "ann")
    assert told["codes"] == [one["code"] for one in told["reasons"]]


@pytest.mark.parametrize(
    ("kind", "body", "what"),
    [
        ("order", {"wanted": "paused", "before": "running"}, "r-1 is to be paused, was running"),
        ("run", {"end": "completed", "error": None}, "r-1 completed"),
        ("run", {"begin": "serve", "model_ref": "tools"}, "r-1 began: serve, tools"),
        ("command", {"action": "pause", "subject": "r-1", "args": {"mode": "freeze"}}, "froze r-1"),
        (
            "command",
            {"action": "rollback", "subject": "tools", "answer": {"after": {"live": "tools@1"}}},
            "rolled back tools; tools@1 is live",
        ),
        ("refusal", {"action": "kill", "subject": "x", "refused": "no such flag"}, "kill x was refused: no such flag"),
        ("refusal", {"refused": "cannot be read"}, "refusal: refused cannot be read"),
        ("trial", {"begin": "canary:tools@2:5:tools@1:17.0"}, "the canary of tools@2 began"),
        ("trial", {"end": "greeting"}, "the trial greeting ended"),
        ("token", {"add": "ann", "role": "viewer"}, "token: add ann, role viewer"),
    ],
)
def test_an_entry_is_a_sentence_and_its_reason_apart(kind: str, body: dict[str, Any], what: str) -> None:
    told = briefs.entry_brief(replace(entry(kind, **body, why="enough\nfor now"), run="r-1"))
    assert (told["what"], told["why"]) == (what, "enough\nfor now")


def test_a_text_that_is_too_long_is_cut() -> None:
    assert briefs.cut("abcd", 3) == "ab…" and briefs.cut("abc", 3) == "abc"
