"""A judge abstains or says something in range; an artefact is its content; a label says who made it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from holdfast.contracts.errors import BadRecord
from holdfast.contracts.judgement import (
    Calibration,
    Doubtful,
    EvalItem,
    Grade,
    JudgeAssignment,
    Judgement,
    JudgeStatus,
    Label,
    Maker,
    ReviewRequest,
    Role,
)

NAN = float("nan")
HASH = "a" * 64


def judgement(**changes: Any) -> Judgement:
    given = {"judge": "m", "criterion": "c@1", "prompt": HASH, "artefact": HASH, "at": 1.0}
    return Judgement(**{**given, "grade": Grade.YES, "score": 0.9, **changes})


def label(**changes: Any) -> Label:
    given = {"artefact": HASH, "criterion": "c@1", "maker": Maker.PERSON, "who": "ann", "holds": True, "at": 1.0}
    return Label(**{**given, **changes})


def calibration(**changes: Any) -> Calibration:
    given = {"judge": "m", "criterion": "c@1", "prompt": HASH, "labels": HASH, "makers": {}, "n": 1, "at": 1.0}
    given |= {"xs": (0.0, 1.0), "ys": (0.1, 0.9), "measures": {}, "standing": JudgeStatus.TRUSTED}
    return Calibration(**{**given, **changes})


def doubt(**changes: Any) -> ReviewRequest:
    return ReviewRequest(**{"artefact": HASH, "criterion": "c@1", "reason": Doubtful.ASKED, "at": 1.0, **changes})


def artefact(**changes: Any) -> EvalItem:
    return EvalItem(**{"task": "t", "output": "o", **changes})


def appointment(**changes: Any) -> JudgeAssignment:
    return JudgeAssignment(**{"policy": "p", "judge": "m", "role": Role.TRAIN, "at": 1.0, **changes})


@pytest.mark.parametrize(
    ("build", "changes"),
    [
        (artefact, {"task": " "}),
        (judgement, {"judge": ""}),
        (judgement, {"criterion": " "}),
        (judgement, {"prompt": "A" * 64}),
        (judgement, {"artefact": "a"}),
        (judgement, {"grade": None}),  # a score without a grade
        (judgement, {"score": None}),
        (judgement, {"score": 1.1}),
        (judgement, {"score": NAN}),
        (judgement, {"tokens": -1}),
        (judgement, {"cost": NAN}),
        (judgement, {"latency_s": -0.1}),
        (judgement, {"at": NAN}),
        (label, {"who": ""}),
        (label, {"criterion": ""}),
        (label, {"version": 0}),
        (label, {"artefact": "x" * 64}),
        (label, {"at": NAN}),
        (doubt, {"criterion": ""}),
        (doubt, {"at": NAN}),
        (calibration, {"judge": " "}),
        (calibration, {"labels": ""}),
        (calibration, {"xs": (0.0,)}),
        (calibration, {"ys": (0.9, 0.1)}),  # it falls
        (calibration, {"ys": (0.1, 1.1)}),
        (calibration, {"xs": (1.0, 0.0)}),
        (calibration, {"standing": JudgeStatus.DIAGNOSTIC}),  # and does not say why
        (calibration, {"reasons": ("kappa",)}),  # trusted, with something against it
        (calibration, {"n": -1}),
        (appointment, {"judge": ""}),
        (appointment, {"at": NAN}),
    ],
)
def test_what_is_none_is_refused(build: Any, changes: dict[str, Any]) -> None:
    build()
    with pytest.raises(BadRecord) as refusal:
        build(**changes)
    assert "\n" not in str(refusal.value)


def test_an_artefact_is_its_content_and_not_its_author() -> None:
    first = artefact(detail={"b": 1, "a": 2})
    assert first.sha256 == artefact(detail={"a": 2, "b": 1}, author="ann").sha256
    others = [replace(first, **{name: "x"}) for name in ("task", "output", "context", "expected")]
    assert len({one.sha256 for one in (first, *others, replace(first, detail={}))}) == 6
    assert artefact(task="ab", output="c").sha256 != artefact(task="a", output="bc").sha256


def test_a_judgement_is_known_by_what_was_asked_of_whom() -> None:
    first = judgement()
    assert first.id == judgement(grade=Grade.NO, score=0.0, at=9.0, why="else").id
    changed = [judgement(**{name: value}) for name, value in (("judge", "n"), ("criterion", "d@1"))]
    changed += [judgement(**{name: "b" * 64}) for name in ("prompt", "artefact")]
    assert len({first.id, *(one.id for one in changed)}) == 5


def test_who_abstains_has_neither_grade_nor_score() -> None:
    assert judgement(grade=None, score=None, why="unsure").grade is None
    assert label(holds=None).holds is None
