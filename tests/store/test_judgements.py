"""Judgements are kept once and found by content; labels only grow; a judge has one role for a policy, for good."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import Conflict, NotFound
from holdfast.contracts.judgement import (
    Calibration,
    Doubtful,
    EvalItem,
    Grade,
    Judgement,
    JudgeStatus,
    Label,
    Maker,
    ReviewRequest,
    Role,
)
from holdfast.contracts.run import RunState
from holdfast.store import admin
from holdfast.store.store import Store
from tests.store.scene import problems

ANSWER = EvalItem(task="What is 2 + 2?", output="4", author="ann")
OTHER = EvalItem(task="What is 2 + 2?", output="5")
ON = "correctness@1"


def judgement(artefact: EvalItem = ANSWER, **changes: Any) -> Judgement:
    given = {"judge": "m", "criterion": ON, "prompt": "a" * 64, "artefact": artefact.sha256, "at": 1.0}
    return Judgement(**{**given, "grade": Grade.YES, "score": 0.9, "why": "it is", **changes})


def label(artefact: EvalItem = ANSWER, holds: bool | None = True, **changes: Any) -> Label:
    given = {"artefact": artefact.sha256, "criterion": ON, "maker": Maker.PERSON, "who": "ann", "at": 2.0}
    return Label(**{**given, "holds": holds, **changes})


def doubt(artefact: EvalItem = ANSWER, **changes: Any) -> ReviewRequest:
    return ReviewRequest(
        **{"artefact": artefact.sha256, "criterion": ON, "reason": Doubtful.ABSTAINED, "at": 1.0, **changes}
    )


def calibration(**changes: Any) -> Calibration:
    given = {"judge": "m", "criterion": ON, "prompt": "a" * 64, "labels": "b" * 64, "makers": {"program": 2}}
    given |= {"n": 2, "xs": (0.1, 0.9), "ys": (0.2, 0.8), "measures": {"kappa": 0.5, "auroc": None}}
    return Calibration(**{**given, "standing": JudgeStatus.TRUSTED, "at": 1.0, **changes})


def test_a_judgement_comes_back_by_what_was_asked(store: Store) -> None:
    given = judgement(tokens=12, cost=0.5, latency_s=0.25, why="it \x00is")
    kept = store.judgements.record(ANSWER, given).result()
    assert kept == replace(given, why="it �is")  # as both engines can keep it
    assert store.judgements.get(given.id) == kept
    assert store.judgements.item(ANSWER.sha256) == ANSWER
    assert store.judgements.get(judgement(judge="n").id) is None
    assert store.judgements.of(ON, judge="m") == [kept]
    assert store.judgements.of(ON, judge="n") == store.judgements.of("safety@1") == []
    assert store.judgements.asked() == [("m", ON, "a" * 64, 1, 0.5, 1.0)]
    assert problems(store) == []


def test_the_first_answer_to_a_question_stays(store: Store) -> None:
    first = store.judgements.record(ANSWER, judgement()).result()
    again = store.judgements.record(ANSWER, judgement(grade=Grade.NO, score=0.1, at=9.0)).result()
    assert again == first
    assert len(store.judgements.of(ON)) == 1


def test_whoever_asks_otherwise_asks_something_else(store: Store) -> None:
    for changes in ({}, {"judge": "n"}, {"criterion": "safety@1"}, {"prompt": "b" * 64}):
        store.judgements.record(ANSWER, judgement(**changes)).result()
    store.judgements.record(OTHER, judgement(OTHER)).result()
    assert len(store.judgements.of(ON)) == 4
    assert len(store.judgements.asked()) == 4


def test_an_abstention_has_neither_grade_nor_score(store: Store) -> None:
    kept = store.judgements.record(ANSWER, judgement(grade=None, score=None, why="unsure")).result()
    assert (kept.grade, kept.score, kept.why) == (None, None, "unsure")


def test_the_same_answer_of_another_author_is_the_same_artefact(store: Store) -> None:
    assert store.judgements.save([ANSWER, replace(ANSWER, author="bob"), OTHER], now=1.0).result() == 2
    assert store.judgements.item(ANSWER.sha256).author == "ann"
    with pytest.raises(NotFound, match="artefact 00000000"):
        store.judgements.item("0" * 64)


def test_labels_are_versioned_and_the_same_again_is_none(store: Store) -> None:
    store.judgements.save([ANSWER], now=1.0)
    assert store.judgements.label([label()]).result() == 1
    assert store.judgements.label([label(at=3.0)]).result() == 0
    assert store.judgements.label([label(holds=False, why="looked again")]).result() == 1
    assert store.judgements.label([label(who="bob"), label(maker=Maker.PROGRAM, who="rule:x")]).result() == 2
    history = store.judgements.labels(ON, history=True)
    assert [(one.who, one.version, one.holds) for one in history] == [
        ("ann", 1, True),
        ("ann", 2, False),
        ("bob", 1, True),
        ("rule:x", 1, True),
    ]
    assert [(one.who, one.version) for one in store.judgements.labels(ON)] == [("ann", 2), ("bob", 1), ("rule:x", 1)]
    assert store.judgements.labels("safety@1") == []
    assert problems(store) == []


def test_a_doubt_waits_until_a_person_has_looked(store: Store) -> None:
    assert store.judgements.request_review(ANSWER, doubt(why="unsure")).result()
    assert not store.judgements.request_review(ANSWER, doubt(reason=Doubtful.DISPUTED)).result()  # it waits already
    assert store.judgements.request_review(OTHER, doubt(OTHER, at=0.5)).result()
    assert [one.artefact for one in store.judgements.doubts()] == [OTHER.sha256, ANSWER.sha256]
    store.judgements.label([label(maker=Maker.PROGRAM, who="rule:x")]).result()
    assert store.judgements.waiting() == 2  # a program is not a person
    store.judgements.label([label()]).result()
    assert [one.artefact for one in store.judgements.doubts(most=5)] == [OTHER.sha256]
    assert not store.judgements.request_review(ANSWER, doubt()).result()  # it was looked at
    assert store.judgements.waiting() == 1


def test_the_newest_calibration_of_exactly_this_judge_counts(store: Store) -> None:
    first, second = calibration(), calibration(standing=JudgeStatus.DIAGNOSTIC, reasons=("kappa 0.1 < 0.4",), at=2.0)
    assert store.judgements.calibration("m", ON, "a" * 64) is None
    for one in (first, second, calibration(prompt="c" * 64)):
        store.judgements.calibrate(one, who="ann").result()
    assert store.judgements.calibration("m", ON, "a" * 64) == second
    assert store.judgements.calibration("m", ON, "c" * 64) == calibration(prompt="c" * 64)
    assert store.judgements.calibration("m", ON, "d" * 64) is None  # asked otherwise: not calibrated
    assert len(store.judgements.calibrations()) == 2
    entry = list(store.ledger.entries())[1]
    assert (entry.kind, entry.who) == ("calibration", "ann")
    assert entry.body["standing"] == "diagnostic only" and entry.body["reasons"] == ["kappa 0.1 < 0.4"]
    assert problems(store) == []


def test_a_judge_that_trains_a_policy_never_evaluates_it(store: Store) -> None:
    at = {"who": "ann", "now": 1.0}
    given = store.judgements.appoint("sprout", "m", Role.TRAIN, **at).result()
    assert store.judgements.appoint("sprout", "m", Role.TRAIN, **at).result() == given
    with pytest.raises(Conflict, match="judge m: is the train judge of policy sprout, and cannot be its audit judge"):
        store.judgements.appoint("sprout", "m", Role.AUDIT, **at).result()
    with pytest.raises(Conflict, match="is the train judge of policy"):
        store.judgements.appoint("Sprout", " M", Role.AUDIT, **at).result()  # it is the same one
    store.judgements.appoint("other", "m", Role.AUDIT, **at).result()  # another policy
    store.judgements.appoint("sprout", "n", Role.AUDIT, **at).result()
    assert [(one.policy, one.judge, one.role) for one in store.judgements.appointments()] == [
        ("other", "m", "audit"),
        ("sprout", "m", "train"),
        ("sprout", "n", "audit"),
    ]
    assert [entry.kind for entry in store.ledger.entries()] == ["judge"] * 3


def test_pruning_runs_leaves_what_was_judged_and_labelled(store: Store) -> None:
    run = store.runs.begin(kind="optimize", model_ref="m", settings={}, salt="a", who="t", now=1.0).result()
    store.judgements.record(ANSWER, judgement()).result()
    store.judgements.label([label()]).result()
    store.runs.end(run.id, RunState.COMPLETED, who="t", now=2.0).result()
    (old,) = admin.old_runs(store, before=9.0)
    list(admin.prune(store, old, who="t", now=9.0))
    assert store.judgements.get(judgement().id) is not None and len(store.judgements.labels(ON)) == 1
    assert admin.stats(store).rows["labels"] == 1
    assert problems(store) == []
