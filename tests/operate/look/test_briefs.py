from __future__ import annotations

from dataclasses import replace
from statistics import fmean, stdev
from typing import Any

import pytest
from scipy import stats

from holdfast.contracts.evidence import Decision, Reason
from holdfast.contracts.records import encode
from holdfast.contracts.release import Stage
from holdfast.contracts.rollout import OutcomeKind, RolloutState
from holdfast.contracts.run import DesiredState, LedgerEntry, RunRecord, RunState
from holdfast.operate import briefs
from holdfast.store.dashboard_queries import Moments, Totals
from holdfast.store.store import Store
from tests.operate.stage import Line


def entry(kind: str = "release", *, seq: int = 3, **body: Any) -> LedgerEntry:
    given: dict[str, Any] = {"project": "p", "run": None, "who": "ann", "previous": "0" * 64, "sha256": "1" * 64}
    return LedgerEntry(seq=seq, at=float(seq), kind=kind, body=body, **given)


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
    given: dict[str, Any] = {"state": RunState.RUNNING, "wanted": DesiredState.RUNNING, "settings": {}}
    given |= dict.fromkeys(("queue_limit", "ended_at", "error"))
    run = RunRecord(id="run-1-a", project="p", kind="optimize", model_ref="m", created_at=1.0, beat_at=1.0, **given)
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
ALL_HOLD = "success +0.4; all 9 checks hold"
OPENED = Decision(open=True, reasons=(Reason(code="promotion_allowed", text=ALL_HOLD),))


@pytest.mark.parametrize(
    ("body", "sentence", "outcome"),
    [
        ({"add": "s@1", "source": "shelf:1"}, "s@1 was registered: shelf:1.", "registered"),
        ({"accept": "s@2", "decision": encode(OPENED)}, f"s@2 was accepted: {ALL_HOLD}.", "accepted"),
        ({"refuse": "s@2", "decision": encode(CLOSED)}, "s@2 was refused: p 0.2 > 0.05; few.", "refused"),
        (
            {"move": "s@2", "from": "candidate", "to": "canary", "share": 5, "why": "", "decision": encode(OPENED)},
            f"s@2 went from candidate to canary with 5 %: {ALL_HOLD}.",
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
        ("refusal", {"action": "kill", "subject": "x", "refused": "no flag"}, "kill x was refused: no flag"),
        ("refusal", {"refused": "cannot be read"}, "refusal: refused cannot be read"),
        ("trial", {"begin": "canary:tools@2:5:tools@1:17.0"}, "the canary of tools@2 began"),
        ("trial", {"end": "greeting"}, "the trial greeting ended"),
        ("token", {"add": "tok-1", "label": "ann", "role": "viewer"}, "token tok-1 was made for ann, viewer"),
        (
            "token",
            {"add": "tok-2", "label": "ann", "role": "viewer", "rotate": "tok-1"},
            "token tok-2 was made for ann, viewer, in place of tok-1",
        ),
        ("token", {"revoke": "tok-1"}, "token tok-1 was revoked"),
        ("step", {"step": 3, "name": "0/decide", "sha256": "ab"}, "r-1 recorded its step 0/decide"),
        ("note", {"text": "seen"}, "note: text seen"),
    ],
)
def test_an_entry_is_a_sentence_and_its_reason_apart(kind: str, body: dict[str, Any], what: str) -> None:
    told = briefs.entry_brief(replace(entry(kind, **body, why="enough\nfor now"), run="r-1"))
    assert (told["what"], told["why"]) == (what, "enough\nfor now")


UNDECIDED = Decision(open=False, reasons=(Reason(code="guard_undecided", text="no answers yet"),))
FIRST = {"move": "s@1", "from": "candidate", "to": "live", "why": "the first version", "decision": None}
GATE = {"move": "s@2", "from": "candidate", "to": "shadow", "evidence": "e", "decision": encode(OPENED)}
ACCEPTED = {"accept": "s@2", "stage": "candidate", "evidence": "e", "decision": encode(OPENED)}
HELD = {"refuse": "s@2", "stage": "shadow", "evidence": None, "decision": encode(UNDECIDED)}
WITHIN = "within every limit; next is live with 100 %"
GUARD = {"move": "s@2", "from": "canary", "to": "live", "retired": "s@1", "why": WITHIN, "decision": None}
BACK = {"roll_back": "s@2", "from": "live", "to": "s@1", "why": "it slips"}
AGAIN = {"restore": "s@2", "from": "rolled_back", "retired": "s@1", "why": "it was right"}
CANARY = {"roll_back": "s@2", "from": "canary", "to": "s@1", "why": "errors"}


PUT = "s@1 went from candidate to live: the first version."
BY_GUARD = f"s@2 went from canary to live: within every limit. The gate had opened on {ALL_HOLD}."


def history(*bodies: dict[str, Any]) -> list[LedgerEntry]:
    return [entry(seq=seq, **body) for seq, body in enumerate(bodies, start=1)]


@pytest.mark.parametrize(
    ("bodies", "live", "sentence", "news"),
    [
        ([FIRST], "s@1", PUT, None),
        ([FIRST, {"add": "s@2"}], "s@1", PUT, None),
        ([FIRST, GATE, HELD], "s@1", PUT, "s@2 was held"),
        ([FIRST, GATE, CANARY], "s@1", PUT, "s@2 was taken back"),
        ([FIRST, GATE, HELD, GUARD], "s@2", BY_GUARD, None),
        ([FIRST, ACCEPTED, GUARD], "s@2", BY_GUARD, None),
        ([FIRST, ACCEPTED], "s@1", PUT, "s@2 was accepted"),
        ([FIRST, GATE, GUARD, BACK], "s@1", "s@1 is live again since ann took s@2 back: it slips.", None),
        ([FIRST, GUARD, BACK, AGAIN], "s@2", "s@2 was restored by ann in place of s@1: it was right.", None),
    ],
)
def test_what_put_a_version_live_is_told_of_it_and_of_no_other(
    bodies: list[dict[str, Any]], live: str, sentence: str, news: str | None
) -> None:
    found = history(*bodies)
    told, beside = briefs.live_decision(live, found), briefs.newest_other_decision(live, None, found)
    assert told is not None and told["sentence"] == sentence
    assert (None if beside is None else beside["sentence"].split(";")[0].split(":")[0]) == news


def test_what_the_gate_said_is_not_what_came_after() -> None:
    found = history(FIRST, GATE, HELD, GUARD, BACK)
    gate = briefs.gate_decision("s@2", found)
    assert gate is not None and (gate["outcome"], gate["seq"]) == ("promoted", 2)
    assert [one["outcome"] for one in briefs.decisions_since_gate("s@2", found)] == ["taken back", "moved", "held"]
    assert briefs.gate_decision("s@1", found) is None
    last = briefs.last_decision("s@1", found)
    assert last is not None and last["outcome"] == "taken back"


def test_a_store_tells_it_the_same_way(file_store: Store) -> None:
    line = Line(file_store, versions=2)
    line.go(2, Stage.CANARY, share=5)
    line.back(failing=2, to=1)
    found, _ = file_store.figures.decisions("sprout")
    told, beside = briefs.live_decision("sprout@1", found), briefs.newest_other_decision("sprout@1", None, found)
    assert told is not None and told["sentence"].startswith("sprout@1 went from candidate to live")
    assert beside is not None and (beside["release"], beside["outcome"]) == ("sprout@2", "taken back")
