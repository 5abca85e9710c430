"""Ready scorers made of what judges, rules and diffs can tell.

A judge may be any model, embedded or behind an address; how it is asked and read is in `judges`, and how code changes
are measured in `diff`. What a judge cannot tell is not measured, and a judge that cannot be had is a fault of ours.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any, ClassVar

from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import EvalItem, Grade
from holdfast.contracts.reward import Reward
from holdfast.contracts.scorer import label_of, prompt_of
from holdfast.reward.judges import calibration
from holdfast.reward.judges.judge import LONGEST, RULES, Criterion, Judge, LlmJudge, criterion_named, speaks_to_judge
from holdfast.reward.ready import as_text

AT_ONCE = 8  # questions to a judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudge:
    """See `judge`."""

    asks_model: ClassVar[bool] = True
    feature: ClassVar[str] = "judges"

    criterion: Criterion
    made: Callable[[], Judge]
    shows_expected: bool
    name: str = "judge"

    @property
    def gold_is_answer(self) -> bool:
        return False

    async def __call__(self, task: Any, answer: Any) -> Reward | None:
        artefact = _artefact(task, answer, shows_expected=self.shows_expected)
        if (why := _against(artefact)) is not None:
            return Reward(0.0, feedback=why)
        given = await self.made().ask(self.criterion, artefact)
        return None if given.score is None else Reward(given.score, feedback=given.why)


def judge(
    complete: Complete | Judge | None = None,
    *,
    connect: Callable[[], Complete] | None = None,
    criterion: str | Criterion = "correctness",
    question: str | None = None,
    shows_expected: bool = True,
    clock: Callable[[], float] = time.time,
) -> ModelJudge:
    """A model that says how likely it is that the criterion holds, from 0 to 1.

    `complete` answers messages, or is a judge itself (an embedded verifier, `judges.judge.Measured`); `connect` makes
    one in each process that needs it. `question` is a criterion of one's own, to be answered with yes or no. The judge
    sees what is expected, if there is something and `shows_expected`. An answer that is blank or speaks to its judge
    earns 0 unseen. Before you learn from it, measure it: `holdfast judge calibrate`.
    """
    return ModelJudge(
        criterion=_criterion(criterion, question),
        made=_maker(complete, connect, clock),
        shows_expected=shows_expected,
    )


def _criterion(criterion: str | Criterion, question: str | None) -> Criterion:
    if question is not None:
        anchors = {Grade.YES: "it is so", Grade.NO: "it is not so"}
        return Criterion(name="question", question=question, anchors=anchors)
    return criterion if isinstance(criterion, Criterion) else criterion_named(criterion)


def _maker(
    complete: Complete | Judge | None, connect: Callable[[], Complete] | None, clock: Callable[[], float]
) -> Callable[[], Judge]:
    if (complete is None) == (connect is None):
        raise BadInput("judge", why="needs one of complete and connect", remedy="give the model that is asked")
    return _Made(complete, connect, clock)


class _Made:
    """A judge that is made once in each process, when it is first asked."""

    def __init__(self, complete: Any, connect: Callable[[], Complete] | None, clock: Callable[[], float]) -> None:
        self._complete, self._connect, self._clock = complete, connect, clock
        self._judge: Judge | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_judge": None}

    def __call__(self) -> Judge:
        if self._judge is None:
            asked: Any = self._complete if self._connect is None else self._connect()
            name = str(getattr(asked, "name", None) or getattr(asked, "model", None) or type(asked).__name__)
            is_judge = hasattr(asked, "ask") and hasattr(asked, "prompt")
            made: Judge = asked if is_judge else LlmJudge(name=name, complete=asked, clock=self._clock)
            self._judge = made
        return self._judge


def _artefact(task: Any, answer: Any, *, shows_expected: bool) -> EvalItem:
    expected = None if task.expected is None or not shows_expected else as_text(task.expected)
    asked = prompt_of(task) or as_text(task.input)
    return EvalItem(task=asked if asked.strip() else label_of(task, 0), output=as_text(answer), expected=expected)


def _against(artefact: EvalItem) -> str | None:
    """Why an answer is worth nothing before anybody is asked."""
    if not artefact.output.strip():
        return "there is no answer"
    if (words := speaks_to_judge(artefact)) is not None:
        return f"speaks to its judge: {words!r}"
    return None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ranking:
    """See `rank`."""

    is_group: ClassVar[bool] = True
    asks_model: ClassVar[bool] = True
    feature: ClassVar[str] = "judges"

    criterion: Criterion
    made: Callable[[], Judge]
    rounds: int | None
    name: str = "rank"

    async def __call__(self, task: Any, answers: Sequence[Any]) -> list[Reward | None]:
        found = [_artefact(task, answer, shows_expected=False) for answer in answers]
        bad = [_against(one) for one in found]
        room = asyncio.Semaphore(AT_ONCE)

        async def meet(i: int, j: int) -> float | None:
            async with room:
                return await self._preferred(found, bad, i, j)

        pairs = schedule(len(found), self.rounds)
        results = await asyncio.gather(*(meet(i, j) for i, j in pairs))
        won: list[list[float]] = [[] for _ in found]
        for (i, j), p in zip(pairs, results, strict=True):
            if p is not None:
                won[i].append(p)
                won[j].append(1.0 - p)
        return [_ranked(shares, why) for shares, why in zip(won, bad, strict=True)]

    async def _preferred(self, found: Sequence[EvalItem], bad: Sequence[str | None], i: int, j: int) -> float | None:
        """The probability that the first is better. Nobody is asked where it is known."""
        if bad[i] is not None or bad[j] is not None or found[i].output == found[j].output:
            return 0.5 + 0.5 * ((bad[j] is not None) - (bad[i] is not None))
        if max(len(found[i].output), len(found[j].output)) > LONGEST:
            return None
        asked = self.made()
        if isinstance(asked, LlmJudge):
            return await calibration.both_ways(calibration.asked(asked, self.criterion), found[i], found[j])
        scores = {one.sha256: (await asked.ask(self.criterion, one)).score for one in (found[i], found[j])}
        return await calibration.by_scores(lambda artefact: scores[artefact.sha256])(found[i], found[j])


def rank(
    complete: Complete | Judge | None = None,
    *,
    connect: Callable[[], Complete] | None = None,
    criterion: str | Criterion = "relevance",
    question: str | None = None,
    rounds: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Ranking:
    """A judge that ranks the attempts at one task against one another: for tasks without a gold answer.

    It is a group scorer: it is given all answers to a task and returns a reward for each, the mean probability of being
    better than another attempt. Each pair is asked in both orders and averaged, which takes away what the order adds.
    `rounds`: each attempt meets so many others, in place of all; n attempts cost n · rounds questions then, and
    n · (n − 1) else. What cannot be compared (a single attempt, a judge that abstains) has no reward.
    """
    if rounds is not None and rounds < 1:
        raise BadInput(f"rank: rounds = {rounds}", why="must be at least 1", remedy="leave it out to compare all")
    return Ranking(criterion=_criterion(criterion, question), made=_maker(complete, connect, clock), rounds=rounds)


def schedule(n: int, rounds: int | None) -> list[tuple[int, int]]:
    """Who meets whom: all, or each about `rounds` others, by growing distance around a circle."""
    every = list(combinations(range(n), 2))
    if rounds is None or rounds >= n - 1:
        return every
    near = {(min(i, (i + step) % n), max(i, (i + step) % n)) for step in range(1, rounds // 2 + 1) for i in range(n)}
    if rounds % 2:
        near |= {(i, i + (n + 1) // 2) for i in range(n // 2)}
    return [pair for pair in every if pair in near]


def _ranked(shares: Sequence[float], why: str | None) -> Reward | None:
    if not shares:
        return None
    better = sum(share > 0.5 for share in shares)
    return Reward(sum(shares) / len(shares), feedback=why or f"better than {better} of {len(shares)}")


@dataclass(frozen=True, slots=True)
class RuleCheck:
    """See `rules`."""

    criteria: tuple[str, ...]
    name: str = "rules"

    def __call__(self, task: Any, answer: Any) -> Reward:
        artefact = _artefact(task, answer, shows_expected=True)
        found = [(name, told) for name in self.criteria if (told := RULES[name](artefact)) is not None]
        against = [f"{name}: {why}" for name, (grade, why) in found if grade is Grade.NO]
        return Reward(float(not against), feedback="; ".join(against))


def rules(criteria: Sequence[str] = tuple(RULES)) -> RuleCheck:
    """1 where no rule objects, else 0 with the reasons; the rules are those of `judges.rules`.

    Without an expected answer, that no rule objects proves nothing: use it beside a gate.
    """
    if unknown := [name for name in criteria if name not in RULES]:
        raise BadInput(f"rules: {unknown[0]!r}", why="is unknown", remedy=f"use {', '.join(RULES)}")
    return RuleCheck(tuple(criteria))


def diff(task: Any, answer: Any) -> Reward:
    """How close a change of code comes to the least one that is known, from 0 to 1; tampering with tests earns 0.

    The task's input has `files` (path → text before) and perhaps `tests` (path → text, visible); `expected` is the
    least fix and the answer what was made of it, each an object of path → text. How small a change is says nothing
    about whether it works: use it beside a gate. It needs the extra `reward`.
    """
    from holdfast.reward.diff import minimality, tamper

    before = _texts(task.get("files"), "task: files")
    if not _is_texts(answer):
        return Reward(0.0, feedback="the answer is not an object of paths and texts")
    after = {**before, **answer}
    change = {path: (before.get(path), text) for path, text in after.items() if before.get(path) != text}
    least = {path: text for path, text in _texts(task.expected or {}, "expected").items() if before.get(path) != text}
    if not change:
        return Reward(float(not least), feedback="nothing was changed" if least else "")
    tests = _texts(task.get("tests") or {}, "task: tests")
    signals = minimality.signals(change, references=least, files=tuple(before), uses=tuple(tests.values()))
    terms = {one.name: one.value for one in signals}
    found = tamper.inspect(change, tests=tests)
    if found:
        places = "; ".join(f"{one.path}:{one.line} {one.rule}, {one.what}" for one in found[:5])
        return Reward(0.0, {**terms, "tampering": 1.0}, f"tampers: {places}")
    extra = terms["excess_edits"]
    return Reward(terms["minimality"], terms, f"{extra:.3g} edits beyond the least fix" if extra > 0.0 else "")


def _texts(value: Any, where: str) -> dict[str, str]:
    if not _is_texts(value):
        raise BadInput(where, why="is not an object of paths and texts", remedy='give {"path": "text"}')
    return dict(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
