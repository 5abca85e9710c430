"""Judges for tests: each answers as it was told to, and remembers how it was asked."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from math import log
from typing import Any

from holdfast.contracts.judgement import Calibration, EvalItem, Grade, Judgement, JudgeStatus
from holdfast.contracts.trace import ModelCall
from holdfast.reward.judges.judge import Criterion, JudgeFailed

Messages = Sequence[Mapping[str, Any]]


def call(text: str, *, likely: float | None = None, **fields: Any) -> ModelCall:
    """An answer; `likely` is the probability of its first token."""
    given: dict[str, Any] = {"prompt_tokens": 100, "completion_tokens": 10}
    if likely is not None:
        given |= {"completion_ids": (1, 2), "logprobs": (log(likely), -0.1)}
    return ModelCall(model="m", messages=(), response={"role": "assistant", "content": text}, **{**given, **fields})


@dataclass
class Voice:
    """A model that answers by a function of what it is asked."""

    says: Callable[[Messages], str | ModelCall | Exception]
    delay_s: float = 0.0
    asked: list[Messages] = field(default_factory=list)

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        self.asked.append(messages)
        if self.delay_s:
            await asyncio.sleep(self.delay_s)
        answer = self.says(messages)
        if isinstance(answer, Exception):
            raise answer
        return answer if isinstance(answer, ModelCall) else call(answer)


@dataclass
class Scripted:
    """A judge whose score is a function of the artefact; None: it abstains, an exception: it cannot be had."""

    name: str
    score: Callable[[EvalItem], float | Exception | None]
    count: int = 0

    def prompt(self, criterion: Criterion) -> str:
        return "a" * 64

    async def ask(self, criterion: Criterion, artefact: EvalItem) -> Judgement:
        self.count += 1
        found = self.score(artefact)
        if isinstance(found, Exception):
            raise JudgeFailed(f"judge {self.name}", why=str(found))
        return judgement(artefact, self.name, found, criterion=criterion.id)


def judgement(artefact: EvalItem, judge: str, score: float | None, **changes: Any) -> Judgement:
    grade = None if score is None else (Grade.YES if score >= 0.5 else Grade.NO)
    about = {"judge": judge, "criterion": "correctness@1", "prompt": "a" * 64, "artefact": artefact.sha256, "at": 1.0}
    return Judgement(**{**about, "grade": grade, "score": score, **changes})


def calibration(
    judge: str, *, brier: float = 0.1, trusted: bool = True, criterion: str = "correctness@1"
) -> Calibration:
    """A judge whose word is worth what it says."""
    return Calibration(
        judge=judge,
        criterion=criterion,
        prompt="a" * 64,
        labels="b" * 64,
        makers={"program": 100},
        n=100,
        xs=(0.0, 1.0),
        ys=(0.0, 1.0),
        measures={"brier": brier},
        standing=JudgeStatus.TRUSTED if trusted else JudgeStatus.DIAGNOSTIC,
        reasons=() if trusted else ("kappa 0.10 < 0.4",),
        at=1.0,
    )
