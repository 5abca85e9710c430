"""What judges say of what was answered, what is known to be true of it, and how far a judge may be believed.

A judge's word is a judgement; what somebody knows is a label, and says who made it. How a judge is asked, and what its
numbers are worth, is `reward`'s business; these are the records.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import COUNT, HEX, SHARE, BadRecord, check_fields


class Grade(StrEnum):
    """The answer to a criterion's question."""

    YES = "yes"
    PARTLY = "partly"
    NO = "no"


WORTH: Mapping[Grade, float] = {Grade.YES: 1.0, Grade.PARTLY: 0.5, Grade.NO: 0.0}


class Maker(StrEnum):
    """Who made a label. What a program made is never called a person's."""

    PROGRAM = "program"
    MODEL = "model"
    PERSON = "person"


class Role(StrEnum):
    """What a judge does for a policy: one that trains it never evaluates it."""

    TRAIN = "train"
    AUDIT = "audit"


class JudgeStatus(StrEnum):
    """Whether a judge counts."""

    TRUSTED = "trusted"
    DIAGNOSTIC = "diagnostic only"  # it is shown, and weighs nothing


class Doubtful(StrEnum):
    """Why somebody should look at an answer."""

    ABSTAINED = "abstained"
    DISPUTED = "disputed"
    ASKED = "asked"  # somebody wants a label of it


@dataclass(frozen=True, slots=True, kw_only=True)
class EvalItem:
    """What is judged. Who wrote it is kept and never shown to a judge."""

    SCHEMA: ClassVar[int] = 1

    task: str
    output: str
    context: str = ""  # what the answer had to go by: records, results of tools, a document
    expected: str | None = None
    author: str = ""
    detail: Mapping[str, Any] = field(default_factory=dict)  # for judges that are not asked by text: a conversation

    def __post_init__(self) -> None:
        if not self.task.strip():
            raise BadRecord("artefact: task", why="must not be blank", remedy="say what was asked for")

    @property
    def sha256(self) -> str:
        """Of all but the author: the same answer is the same artefact, whoever gave it."""
        told = [self.task, self.output, self.context, self.expected, self.detail]
        return hashlib.sha256(json.dumps(told, sort_keys=True, separators=(",", ":")).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """What one judge said of one artefact by one criterion. No grade: it abstained, and `why` says for what reason."""

    SCHEMA: ClassVar[int] = 1

    judge: str  # "rules", "gpt-x", "verifier@…": the same model with another prompt is the same judge
    criterion: str  # with its version: "faithfulness@1"
    prompt: str = field(metadata=HEX)  # hash of how it was asked, sampling included
    artefact: str = field(metadata=HEX)
    grade: Grade | None = None
    score: float | None = field(default=None, metadata=SHARE)  # probability that it holds, as the judge has it
    why: str = ""
    tokens: int = field(default=0, metadata=COUNT)
    cost: float = field(default=0.0, metadata=COUNT)  # in whatever the price was given in
    latency_s: float = field(default=0.0, metadata=COUNT)
    at: float  # unix seconds

    def __post_init__(self) -> None:
        where = f"judgement of {self.judge or '?'} on {self.criterion or '?'}"
        check_fields(where, self, filled=("judge", "criterion"))
        if (self.grade is None) != (self.score is None):
            raise BadRecord(where, why="a grade and a score go together; who abstains has neither")

    @property
    def id(self) -> str:
        return judgement_id(self.judge, self.criterion, self.prompt, self.artefact)


def judgement_id(judge: str, criterion: str, prompt: str, artefact: str) -> str:
    """What was asked of whom: the same question has the same answer."""
    return hashlib.sha256(json.dumps([judge, criterion, prompt, artefact]).encode()).hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """What somebody knows of an artefact by a criterion. Labels are only added: the last of a maker counts."""

    SCHEMA: ClassVar[int] = 1

    artefact: str = field(metadata=HEX)
    criterion: str  # with its version
    maker: Maker
    who: str  # "rule:tooluse", a model's name, a login
    version: int = field(default=1, metadata={"minimum": 1})  # 1, 2, … of one maker on one artefact and criterion
    holds: bool | None  # None: it cannot be told
    why: str = ""
    at: float  # unix seconds

    def __post_init__(self) -> None:
        where = f"label of {self.artefact[:12]} on {self.criterion or '?'}"
        check_fields(where, self, filled=("criterion", "who"))


@dataclass(frozen=True, slots=True, kw_only=True)
class ReviewRequest:
    """An artefact that waits for a label, and why."""

    SCHEMA: ClassVar[int] = 1

    artefact: str = field(metadata=HEX)
    criterion: str
    reason: Doubtful
    why: str = ""
    at: float

    def __post_init__(self) -> None:
        check_fields(f"doubt about {self.artefact[:12]}", self, filled=("criterion",))


@dataclass(frozen=True, slots=True, kw_only=True)
class Calibration:
    """How a judge compares with labels: bound to the judge, the criterion, the way it was asked, and the labels."""

    SCHEMA: ClassVar[int] = 1

    judge: str
    criterion: str
    prompt: str = field(metadata=HEX)
    labels: str = field(metadata=HEX)  # hash of the label set
    makers: Mapping[str, int]  # how many labels each kind of maker made
    n: int = field(metadata=COUNT)  # judged and labelled
    abstained: int = field(default=0, metadata=COUNT)
    xs: tuple[float, ...]  # the isotonic map: scores, rising …
    ys: tuple[float, ...]  # … and what they are worth
    measures: Mapping[str, float | None]  # base_rate, kappa, kappa_low, brier, ece, auroc, sensitivity …
    biases: Mapping[str, Any] = field(default_factory=dict)
    standing: JudgeStatus
    reasons: tuple[str, ...] = ()  # why it is diagnostic only
    at: float

    def __post_init__(self) -> None:
        where = f"calibration of {self.judge or '?'} on {self.criterion or '?'}"
        check_fields(where, self, filled=("judge", "criterion"))
        if len(self.xs) != len(self.ys) or list(self.xs) != sorted(self.xs) or list(self.ys) != sorted(self.ys):
            raise BadRecord(where, why="its map must rise, with a value for each score")
        if any(not isfinite(x) for x in self.xs) or any(not 0.0 <= y <= 1.0 for y in self.ys):
            raise BadRecord(where, why="its map must be finite, with values from 0 to 1")
        if (self.standing is JudgeStatus.DIAGNOSTIC) != bool(self.reasons):
            raise BadRecord(where, why="what is diagnostic only says why, and nothing else does")


@dataclass(frozen=True, slots=True, kw_only=True)
class JudgeAssignment:
    """What a judge is to a policy, for good."""

    SCHEMA: ClassVar[int] = 1

    policy: str
    judge: str
    role: Role
    at: float

    def __post_init__(self) -> None:
        check_fields(f"judge {self.judge!r} of {self.policy!r}", self, filled=("policy", "judge"))
