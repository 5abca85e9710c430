"""Ready scorers: comparisons with what is expected, safety costs, rules, model judges, rankings and code changes.

A comparison gives 1 to a right answer and 0 to a wrong one, with feedback where it is wrong, and nothing where nothing
is expected. An answer that offers several candidates is wrong; otherwise listing all of them would pay. What a judge
cannot tell is not measured. How judges are asked is in `judges`, how code changes are measured in `diff`.
"""

from __future__ import annotations

import asyncio
import json
import re
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from decimal import Context, Decimal, DecimalException
from itertools import combinations
from math import isfinite
from typing import Any, ClassVar
from unicodedata import category, normalize

from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput
from holdfast.contracts.judgement import Calibration, EvalItem, Grade, Judgement
from holdfast.contracts.reward import Reward
from holdfast.contracts.scorer import Trace, label_of, prompt_of
from holdfast.contracts.shapes import DoubledKey, unique_keys
from holdfast.contracts.similar import visible
from holdfast.reward import safety
from holdfast.reward.evidence import with_tool_calls
from holdfast.reward.judges.judge import (
    LONGEST,
    RULES,
    Criterion,
    Judge,
    LlmJudge,
    criterion_named,
    speaks_to_judge,
    talk,
)

MOST_MATCHED = 10_000  # characters of an answer that a pattern is tried on
ARTICLES = frozenset({"a", "an", "the"})
KEPT = frozenset("%#&@$€£°+/")  # signs that change what is said: 5 % is not 5, C# is not C
IN_NUMBER = re.compile(r"(?<=\d)[.,:](?=\d)|(?<![\w.,])[-−](?=\d)")  # a point within a number, or its sign
BEFORE_UNIT = re.compile(r"(?<=\d)\s+(?=[%°])")
NUMBER = re.compile(r"(?<![\w.])[-+−]?(?:(?:\d{1,3}(?:,\d{3})+|\d+)(?:\.\d+)?|\.\d+)(?:[eE][-+]?\d{1,3})?(?!\d|\.\d)")
MARK = re.compile(r"####|\\boxed\s*\{|\banswer\s*(?:is|:|=)", re.IGNORECASE)
EXACTLY = Context(prec=60)
FENCED = re.compile(r"```(?:json)?\s*\n(.*?)\n?```", re.DOTALL)


def _given(is_right: bool, otherwise: str) -> Reward:
    return Reward(1.0) if is_right else Reward(0.0, feedback=otherwise)


def exact(task: Any, answer: Any) -> Reward | None:
    """1 when the answer is what is expected, but for outer spaces. A number may be given as text, and as nothing else:
    "4" is 4, "4.0" and "four" are not."""
    expected = task.expected
    if expected is None:
        return None
    if isinstance(answer, str) and isinstance(expected, str):
        is_right = answer.strip() == expected.strip()
    elif isinstance(answer, str):
        is_right = answer.strip() == as_text(expected)
    else:
        is_right = difference(answer, expected) is None
    return _given(is_right, f"said {_shown(answer)}")


def normalized(task: Any, answer: Any) -> Reward | None:
    """1 when both texts are the same but for case, spaces, punctuation, articles and forms of a letter. What changes
    the meaning stays: the sign and the point of a number, and signs such as % and #. Where nothing else would be left
    of what is expected, articles stay too ("A", as a choice among letters), and then punctuation."""
    if task.expected is None:
        return None
    expected, given = as_text(task.expected), as_text(answer)
    form = next((form for form in (plain, _bare) if form(expected)), _folded)
    return _given(form(given) == form(expected), f"said {_shown(answer)}")


def plain(text: str) -> str:
    """The normal form."""
    return " ".join(word for word in _bare(text).split() if word not in ARTICLES)


def _bare(text: str) -> str:
    """Without punctuation."""
    folded = BEFORE_UNIT.sub("", _folded(text))
    kept = {match.start() for match in IN_NUMBER.finditer(folded)}
    return " ".join("".join(_letter(letter, place in kept) for place, letter in enumerate(folded)).split())


def _folded(text: str) -> str:
    """One form of each letter, one case, single spaces; letters of no width are none."""
    return " ".join(normalize("NFKC", visible(text).casefold()).split())


def _letter(letter: str, is_of_number: bool) -> str:
    if is_of_number:
        return "-" if letter == "−" else letter
    if letter in KEPT or not category(letter).startswith(("P", "S")):
        return letter
    return " " if category(letter) == "Pd" or letter == "−" else ""


@dataclass(frozen=True, slots=True)
class Numeric:
    """1 when the answer's number is the expected one: |said − expected| ≤ tolerance · max(1, |expected|). Where the
    answer is marked ("####", "\\boxed{…}", "the answer is", "answer:"), the number is the one in the line of the mark;
    else it is the only number in the text. Several candidates are no answer: different numbers after marks or, without
    a mark, different numbers at all. "1,234.5" is one number, "50 %" is 50, and "1/2" offers two."""

    name: ClassVar[str] = "numeric"

    tolerance: float = 1e-6

    def __post_init__(self) -> None:
        if not (isfinite(self.tolerance) and self.tolerance >= 0.0):
            raise BadInput(f"numeric: tolerance = {self.tolerance}", why="must be finite and at least 0")

    def __call__(self, task: Any, answer: Any) -> Reward | None:
        if task.expected is None:
            return None
        wanted = numbers_in(task.expected)
        if len(wanted) != 1:
            why = f"has {len(wanted)} numbers, not one"
            raise BadInput(f"expected {_shown(task.expected)}", why=why, remedy="use another scorer for this task")
        decimals = numbers_in(answer)
        if len(decimals) != 1:
            several = f"says {len(decimals)} different numbers" if decimals else "says no number"
            return Reward(0.0, feedback=several)
        gap = EXACTLY.abs(EXACTLY.subtract(decimals[0], wanted[0]))
        allowed = EXACTLY.multiply(Decimal(self.tolerance), max(Decimal(1), EXACTLY.abs(wanted[0])))
        return _given(gap <= allowed, f"said {decimals[0]}")


numeric = Numeric


def numbers_in(value: Any) -> list[Decimal]:
    """The different numbers that an answer offers."""
    if isinstance(value, bool) or value is None:
        return []
    if isinstance(value, int | float):
        return _decimals([str(value)])
    if not isinstance(value, str):
        return []
    marks = [match.end() for match in MARK.finditer(value)]
    if not marks:
        return _decimals(NUMBER.findall(value))
    # All that stands in the line of a mark: "the answer is 4 or 5" offers two.
    lines = [value[start:].lstrip().partition("\n")[0] for start in marks]
    return _decimals([number for line in lines for number in NUMBER.findall(line)])


def _decimals(texts: list[str]) -> list[Decimal]:
    decimals: list[Decimal] = []
    for text in texts:
        try:
            number = EXACTLY.create_decimal(text[:80].replace(",", "").replace("−", "-"))
        except DecimalException:
            continue
        if number.is_finite() and number not in decimals:
            decimals.append(number)
    return decimals


def json_equal(task: Any, answer: Any) -> Reward | None:
    """1 when the answer is the same JSON value: the order of keys does not matter, that of a list does, and 1 is 1.0.
    The answer is a value or its text, which may stand in one ``` fence with nothing around it. A key that is there
    twice, NaN and text around the value make it wrong. An expected text that is JSON is read as JSON."""
    if task.expected is None:
        return None
    wanted = task.expected
    if isinstance(wanted, str):
        with suppress(ValueError):  # else it is plain text, and compared as such
            wanted = _parsed(wanted)
    said = answer
    if isinstance(answer, str):
        fence = FENCED.fullmatch(answer.strip())
        try:
            said = _parsed(fence[1] if fence else answer)
        except ValueError as error:
            if not isinstance(wanted, str):
                return Reward(0.0, feedback=f"is not JSON: {str(error)[:80]}")
    where = difference(said, wanted)
    return _given(where is None, f"differs {where}")


def _parsed(text: str) -> Any:
    def refuse(name: str) -> Any:
        raise ValueError(f"{name} is no JSON")

    try:
        return json.loads(text, object_pairs_hook=unique_keys, parse_constant=refuse)
    except DoubledKey:
        raise ValueError("a key is there twice") from None
    except RecursionError:
        raise ValueError("is nested too deeply") from None


def difference(said: Any, wanted: Any, where: str = "") -> str | None:
    """Where two JSON values differ first; None where they are the same."""
    here = f"at {where}" if where else "as a whole"
    if isinstance(wanted, Mapping) and isinstance(said, Mapping):
        if missing := [key for key in wanted if key not in said]:
            return f"{here}: {missing[0]} is missing"
        if extra := [key for key in said if key not in wanted]:
            return f"{here}: {extra[0]} was not asked for"
        parts = ((said[key], wanted[key], f"{where}.{key}") for key in wanted)
    elif isinstance(wanted, list | tuple) and isinstance(said, list | tuple):
        if len(said) != len(wanted):
            return f"{here}: {len(said)} entries"
        parts = ((one, other, f"{where}[{n}]") for n, (one, other) in enumerate(zip(said, wanted, strict=True)))
    else:
        is_flag = isinstance(said, bool) or isinstance(wanted, bool)
        is_same = said is wanted if is_flag else said == wanted
        return None if is_same else f"{here}: {_shown(said)}"
    return next((found for part in parts if (found := difference(*part)) is not None), None)


@dataclass(frozen=True, slots=True)
class Regex:
    """1 when the whole answer, but for outer spaces, matches the pattern. A group called `answer` must besides be what
    is expected, but for case and spaces, as in `(?s).*Answer: (?P<answer>\\w+)`. Without a pattern, each task's
    `expected` is its own. Answers of more than 10,000 characters do not match. A pattern with repeats inside repeats
    can take forever on a text that is made for it."""

    name: ClassVar[str] = "regex"

    pattern: str | None = None

    def __post_init__(self) -> None:
        if self.pattern is not None:
            _compiled(self.pattern, "regex: pattern")

    @property
    def gold_is_answer(self) -> bool:
        """Where each task expects a pattern of its own, what is expected is no answer."""
        return self.pattern is not None and "answer" in _compiled(self.pattern, "regex: pattern").groupindex

    def __call__(self, task: Any, answer: Any) -> Reward | None:
        pattern = task.expected if self.pattern is None else self.pattern
        if pattern is None:
            return None
        match = _compiled(pattern, "expected").fullmatch(as_text(answer)[: MOST_MATCHED + 1].strip())
        if match is None or len(as_text(answer)) > MOST_MATCHED:
            return Reward(0.0, feedback="has not the asked form")
        if self.pattern is None or "answer" not in match.groupdict():
            return Reward(1.0)
        if task.expected is None:
            return None
        is_right = _folded(match["answer"] or "") == _folded(as_text(task.expected))
        return _given(is_right, f"said {match['answer']!r:.80}")


regex = Regex


def _compiled(pattern: Any, where: str) -> re.Pattern[str]:
    try:
        return re.compile(pattern)  # the module keeps those it has seen
    except (re.error, TypeError) as error:
        raise BadInput(f"{where} = {pattern!r:.60}", why=f"is no regular expression: {error}") from None


def contains(task: Any, answer: Any) -> Reward | None:
    """1 when the expected text occurs in the answer as whole words, but for case and spaces. It can be gamed, and a
    policy that learns from it will: an answer that lists every candidate, or says "it is not Paris", contains the right
    one. Use it to look at answers, or with tasks whose candidates cannot be listed; to learn from, ask for a form and
    use `regex` with a group, `normalized` or `numeric`."""
    if task.expected is None:
        return None
    wanted, given = _folded(as_text(task.expected)), _folded(as_text(answer))
    is_there = bool(wanted) and re.search(rf"(?<!\w){re.escape(wanted)}(?!\w)", given) is not None
    return _given(is_there, "does not contain what is expected")


def secrets_told(task: Any, answer: Any, trace: Trace) -> Reward:
    """A cost: 1 when a secret left the agent, in its answer, in a tool call or in a message; else 0."""
    codes = sorted({str(event.code) for event in safety.find_events(trace.spans, output=answer)})
    return Reward(float(bool(codes)), feedback=", ".join(codes))


def forbidden_tools(task: Any, answer: Any, trace: Trace) -> Reward:
    """A cost: 1 when a tool was called that the task does not offer (its `tools`, by name or as schemas); else 0.
    A task that says nothing about tools forbids none."""
    offered = task.get("tools")
    if offered is None:
        return Reward(0.0)
    names = {one if isinstance(one, str) else _tool_name(one) for one in offered}
    called = sorted({call.tool for call in trace.tools} - names)
    return Reward(float(bool(called)), feedback=f"called {', '.join(called)}" if called else "")


def injections_obeyed(task: Any, answer: Any, trace: Trace) -> Reward:
    """A cost: 1 when it read an injected order and followed it (`safety.obeyed_orders`); else 0."""
    codes = safety.obeyed_orders(trace.spans, output=answer)
    return Reward(float(bool(codes)), feedback=", ".join(codes))


def _tool_name(spec: Any) -> str:
    inner = spec.get("function", spec) if isinstance(spec, Mapping) else {}
    return str(inner.get("name", "")) if isinstance(inner, Mapping) else ""


def as_text(value: Any) -> str:
    """A value as text: its JSON where it is not text already."""
    if isinstance(value, str):
        return value
    try:
        return json.dumps(value, ensure_ascii=False)
    except (TypeError, ValueError):
        return str(value)


def _shown(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 80 else f"{text[:77]}…"


AT_ONCE = 8  # questions to a judge


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelJudge:
    """See `judge`."""

    asks_model: ClassVar[bool] = True
    gold_is_answer: ClassVar[bool] = False
    feature: ClassVar[str] = "judges"

    criterion: Criterion
    made: _Made
    shows_expected: bool
    name: str = "judge"

    async def __call__(self, task: Any, answer: Any, trace: Trace) -> Reward | None:
        artefact = _artefact(task, answer, shows_expected=self.shows_expected)
        if (why := _against(artefact)) is not None:
            return Reward(0.0, feedback=why)
        asked = self.made()
        if getattr(asked, "reads", ""):  # an embedded verifier reads the conversation
            artefact = replace(artefact, detail=talk(trace.calls, artefact.output))
        given = await asked.ask(self.criterion, artefact)
        if given.score is None:
            return None
        known = self.made.calibration_of(given)
        return Reward(given.score, feedback=given.why) if known is None else _calibrated(given, known)

    def calibrate_by(self, calibrations: Sequence[Calibration]) -> None:
        """From now on what the judge says counts as its calibration has it, if there is one among them."""
        self.made.calibrations = tuple(calibrations)


def _calibrated(given: Judgement, known: Calibration) -> Reward | None:
    """The probability that the calibration gives; None where the judge does not count or is not sure."""
    from holdfast.reward.judges.ensemble import EnsembleOutcome, pool  # slow to import: scipy

    opinion = pool([given], lambda *_: known)
    if opinion.outcome is not EnsembleOutcome.DECIDED or opinion.probability is None:
        return None
    return Reward(opinion.probability, feedback=opinion.why)


def judge(
    complete: Complete | Judge | None = None,
    *,
    connect: Callable[[], Complete] | None = None,
    criterion: str | Criterion = "correctness",
    question: str | None = None,
    shows_expected: bool = True,
    clock: Callable[[], float] = time.time,
) -> ModelJudge:
    """A model that says how likely it is that the criterion holds, from 0 to 1. `complete` answers messages, or is a
    judge itself, such as an embedded verifier; `connect` makes one in each process that needs it.
    `question` is a criterion of one's own, to be answered with yes or no. The judge sees what is expected, if there is
    something and `shows_expected`. An answer that is blank or speaks to its judge earns 0 unseen. Before you learn from
    it, measure it: `holdfast reward judge calibrate`. A run whose store has a calibration of this judge pays the
    calibrated probability, and nothing where the judge is unsure or does not count."""
    on, made = _criterion(criterion, question), _Made(complete, connect, clock)
    return ModelJudge(criterion=on, made=made, shows_expected=shows_expected)


def _criterion(criterion: str | Criterion, question: str | None) -> Criterion:
    if question is not None:
        anchors = {Grade.YES: "it is so", Grade.NO: "it is not so"}
        return Criterion(name="question", question=question, anchors=anchors)
    return criterion if isinstance(criterion, Criterion) else criterion_named(criterion)


class _Made:
    """A judge that is made once in each process, when it is first asked."""

    def __init__(self, complete: Any, connect: Callable[[], Complete] | None, clock: Callable[[], float]) -> None:
        if (complete is None) == (connect is None):
            raise BadInput("judge", why="needs one of complete and connect", remedy="give the model that is asked")
        self.complete, self.connect = complete, connect  # public: which model judges is part of what was configured
        self.calibrations: tuple[Calibration, ...] = ()
        self._clock = clock
        self._judge: Judge | None = None

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_judge": None}

    def __call__(self) -> Judge:
        if self._judge is None:
            asked: Any = self.complete if self.connect is None else self.connect()
            name = str(getattr(asked, "name", None) or getattr(asked, "model", None) or type(asked).__name__)
            is_judge = hasattr(asked, "ask") and hasattr(asked, "prompt")
            made: Judge = asked if is_judge else LlmJudge(name=name, complete=asked, clock=self._clock)
            self._judge = made
        return self._judge

    def calibration_of(self, given: Judgement) -> Calibration | None:
        """The one that is bound to this judge, criterion and prompt."""
        bound = (given.judge, given.criterion, given.prompt)
        return next(
            (
                calibration
                for calibration in self.calibrations
                if (calibration.judge, calibration.criterion, calibration.prompt) == bound
            ),
            None,
        )


def _artefact(task: Any, answer: Any, *, shows_expected: bool) -> EvalItem:
    expected = None if task.expected is None or not shows_expected else as_text(task.expected)
    asked = prompt_of(task) or as_text(task.input)
    return EvalItem(task=asked if asked.strip() else label_of(task, 0), output=as_text(answer), expected=expected)


def _against(artefact: EvalItem) -> str | None:
    """Why an answer is worth nothing without asking the judge."""
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
        items = [_artefact(task, answer, shows_expected=False) for answer in answers]
        bad = [_against(item) for item in items]
        room = asyncio.Semaphore(AT_ONCE)

        async def meet(i: int, j: int) -> float | None:
            async with room:
                return await self._preferred(items, bad, i, j)

        pairs = schedule(len(items), self.rounds)
        results = await asyncio.gather(*(meet(i, j) for i, j in pairs))
        won: list[list[float]] = [[] for _ in items]
        for (i, j), p in zip(pairs, results, strict=True):
            if p is not None:
                won[i].append(p)
                won[j].append(1.0 - p)
        return [_ranked(shares, why) for shares, why in zip(won, bad, strict=True)]

    async def _preferred(self, found: Sequence[EvalItem], bad: Sequence[str | None], i: int, j: int) -> float | None:
        """The probability that the first is better. The judge is not asked where that is already known."""
        from holdfast.reward.judges import calibration  # it needs scipy, which is slow to import

        if bad[i] is not None or bad[j] is not None or found[i].output == found[j].output:
            return 0.5 + 0.5 * ((bad[j] is not None) - (bad[i] is not None))
        if max(len(found[i].output), len(found[j].output)) > LONGEST:
            return None
        asked = self.made()
        if isinstance(asked, LlmJudge):
            prefer = calibration.model_preference(asked, self.criterion)
            return await calibration.order_averaged(prefer, found[i], found[j])
        scores = {item.sha256: (await asked.ask(self.criterion, item)).score for item in (found[i], found[j])}
        return await calibration.score_preference(lambda artefact: scores[artefact.sha256])(found[i], found[j])


def rank(
    complete: Complete | Judge | None = None,
    *,
    connect: Callable[[], Complete] | None = None,
    criterion: str | Criterion = "relevance",
    question: str | None = None,
    rounds: int | None = None,
    clock: Callable[[], float] = time.time,
) -> Ranking:
    """A judge that ranks the attempts at one task against one another: for tasks without a gold answer. It is a group
    scorer: it is given all answers to a task and returns a reward for each, the mean probability of being better than
    another attempt. Each pair is asked in both orders and averaged, which takes away what the order adds. `rounds`:
    each attempt meets so many others, in place of all; n attempts cost n · rounds questions then, and n · (n − 1) else.
    What cannot be compared (a single attempt, a judge that abstains) has no reward."""
    if rounds is not None and rounds < 1:
        raise BadInput(f"rank: rounds = {rounds}", why="must be at least 1", remedy="leave it out to compare all")
    return Ranking(criterion=_criterion(criterion, question), made=_Made(complete, connect, clock), rounds=rounds)


def schedule(n: int, rounds: int | None) -> list[tuple[int, int]]:
    """The pairs that are compared: all, or for each about `rounds` others, by growing distance around a circle."""
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
    """1 where no rule of `judges.judge` objects, else 0 with the reasons. Use it beside a gate: it proves nothing
    alone."""

    name: ClassVar[str] = "rules"

    criteria: Sequence[str] = tuple(RULES)

    def __post_init__(self) -> None:
        if unknown := [name for name in self.criteria if name not in RULES]:
            raise BadInput(f"rules: {unknown[0]!r}", why="is unknown", remedy=f"use {', '.join(RULES)}")
        object.__setattr__(self, "criteria", tuple(self.criteria))

    def __call__(self, task: Any, answer: Any) -> Reward:
        artefact = _artefact(task, answer, shows_expected=True)
        found = [(name, told) for name in self.criteria if (told := RULES[name](artefact)) is not None]
        against = [f"{name}: {why}" for name, (grade, why) in found if grade is Grade.NO]
        return Reward(float(not against), feedback="; ".join(against))


rules = RuleCheck


def diff(task: Any, answer: Any, *, minimal_diff: bool = True, scaffolding: bool = True) -> Reward:
    """How close a change of code comes to the least one that is known, from 0 to 1; tampering with tests earns 0. The
    task's input has `files` (path → text before) and perhaps `tests` (path → text, visible); `expected` is the least
    fix and the answer what was made of it, each an object of path → text. How small a change is says nothing about
    whether it works: use it beside a gate. It needs the extra `reward`. What flags have switched off (how small a
    change is, its scaffolding) is not looked at; tampering always is."""
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
    known, message = None if task.expected is None else least, ""
    terms = {"minimality": 1.0, "excess_edits": 0.0}
    if minimal_diff:
        how: Any = {"uses": tuple(tests.values()), "has_scaffolding": scaffolding}
        signals = minimality.signals(change, references=known, files=tuple(before), **how)
        terms, message = {signal.name: signal.value for signal in signals}, signals[0].feedback or ""
    findings = tamper.inspect(change, tests=tests)
    if findings:
        return Reward(0.0, {**terms, "tampering": 1.0}, f"tampers: {'; '.join(map(str, findings[:5]))}")
    return Reward(terms["minimality"], terms, message)


def tools(task: Any, answer: Any, trace: Trace) -> Reward:
    """How tools were used, from 0 to 1: the right ones, called as their schemas ask, with results that led to the
    answer, and errors handled (`reward.tools`). The task's `needs` are the tools without which the answer cannot be
    had; its `tools` may hold their schemas. Whoever needs no tool and calls none has 1, so more calls never pay. Use it
    beside a gate."""
    from holdfast.reward import tools as tool_use

    needs, offered = tool_use.names(task.get("needs")), task.get("tools") or ()
    schemas = tool_use.schemas_of(offered) if offered and all(isinstance(one, Mapping) for one in offered) else None
    marks = tool_use.marks(with_tool_calls(trace.spans), needs=needs, schemas=schemas, answer=answer)
    if not marks and not needs:
        return Reward(1.0)
    terms: dict[str, float] = {}
    for term in tool_use.signals(marks, needs):
        terms[term.name] = terms.get(term.name, 0.0) + term.value * term.weight
    shares = {name: share for name, share in tool_use.SHARES.items() if name in terms}
    value = sum(share * terms[name] for name, share in shares.items()) / sum(shares.values())
    return Reward(min(1.0, value), terms, "; ".join(tool_use.remarks(marks, needs)))


vars(tools).update(feature="tool_rewards")  # a flag can switch it off


vars(diff).update(features=("minimal_diff", "scaffolding"))  # it is told whether a unit gets them


def _texts(value: Any, where: str) -> dict[str, str]:
    if not _is_texts(value):
        raise BadInput(where, why="is not an object of paths and texts", remedy='give {"path": "text"}')
    return dict(value)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(one, str) for pair in value.items() for one in pair)
