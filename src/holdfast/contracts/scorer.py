"""The seam for scorers: what one is, what it is shown, and the two kits that it passes.

`check_scorer` is for the tests of whoever writes one: known answers of known worth. `check_scorers` runs before the
first rollout, on the tasks' own expected answers, and says what would go wrong. How several scorers become one reward
is `reward.scorers`' business.
"""

from __future__ import annotations

import asyncio
import inspect
import json
from collections.abc import Awaitable, Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from copy import deepcopy
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from traceback import extract_tb
from typing import Any, Literal, Protocol

from holdfast.contracts import experience
from holdfast.contracts.checks import KnownCase, require
from holdfast.contracts.errors import BadInput, HoldfastError, error_line
from holdfast.contracts.reward import Reward
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, ToolCall

RIGHT = 1.0 - 1e-9  # a gate that pays so much calls the answer right
MOST_TASKS = 64  # that are tried before a run
MOST_EXAMPLES = 3  # of one finding
TOLERATED = 0.1  # share of tasks where a finding warns: one odd task says little about the scorer
PROMPTS = ("prompt", "question", "input", "text", "query", "problem")
NOT_ANSWERS = frozenset({"rubric", "rubrics", "criteria", "tests", "test", "checks", "assertions", "test_cases"})

Check = Literal[
    "gold", "empty", "other", "prompt", "range", "cost", "raises", "deterministic", "changes", "silent", "not_checkable"
]


@dataclass(frozen=True)
class Trace:
    """What happened during the attempt, as a scorer sees it. Nothing is worked out before it is asked for."""

    spans: tuple[Span, ...] = ()

    @cached_property
    def calls(self) -> tuple[ModelCall, ...]:
        """The model calls in order; one that was cut short decided nothing and is left out."""
        return tuple(s.model for s in self._ordered if s.model is not None and PARTIAL not in s.attributes)

    @cached_property
    def tools(self) -> tuple[ToolCall, ...]:
        return tuple(span.tool for span in self._ordered if span.tool is not None)

    @cached_property
    def messages(self) -> tuple[Mapping[str, Any], ...]:
        """The conversation up to the last answer; where no model was called, the messages that were recorded."""
        if not self.calls:
            return experience.messages(self._ordered)
        return (*self.calls[-1].messages, self.calls[-1].response)

    @cached_property
    def _ordered(self) -> tuple[Span, ...]:
        return tuple(sorted(self.spans, key=lambda span: span.seq))


class ScoreFunction(Protocol):
    """Something that says what an answer is worth. It sees what is hidden from the agent.

    The task has `id`, `input`, `expected`, `family` and `metadata`. None means that nothing could be measured: missing
    is not zero. A scorer is deterministic and changes nothing that it is given."""

    def __call__(self, task: Any, answer: Any, trace: Trace, /) -> Reward | Awaitable[Reward | None] | None: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class ScorerFinding:
    """One thing that a check before the run found."""

    scorer: str
    check: Check
    blocks: bool  # nothing should run with such a scorer; False: a person should know
    text: str
    examples: tuple[str, ...] = ()
    remedy: str = ""

    def __str__(self) -> str:
        shown = f" ({'; '.join(self.examples)})" if self.examples else ""
        return f"scorer {self.scorer}: {self.text}{shown}{f'; {self.remedy}' if self.remedy else ''}"


def resolve(value: Any) -> Any:
    """The value itself, or what it comes to where it has to be awaited; also from within a running event loop."""
    if not inspect.isawaitable(value):
        return value

    async def wait() -> Any:
        return await value

    try:
        asyncio.get_running_loop()
    except RuntimeError:
        return asyncio.run(wait())
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(asyncio.run, wait()).result()


def told_error(error: BaseException) -> str:
    """An exception of a scorer in one line, with the file and line that raised it; our own errors say enough."""
    if isinstance(error, HoldfastError):
        return error_line(error)
    frames = extract_tb(error.__traceback__)
    where = f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})" if frames else ""
    return error_line(error) + where


# The kit for whoever writes a scorer


def check_scorer(scorer: ScoreFunction, cases: Sequence[KnownCase]) -> None:
    """Gold answers earn 1, cheats 0, plain ones something between; said twice the same, and nothing is changed."""
    require(bool(cases), "no cases: nothing was checked")
    for case in cases:
        says = f"{case.name}: has no cheats: a scorer that was never tempted is not known to be fair"
        require(bool(case.cheats), says)
        for answer in (case.gold, *case.plain, *case.cheats):
            where = f"{case.name}: {answer.name!r}"
            before = deepcopy((case.task, answer.output))
            first, again = (resolve(scorer(case.task, answer.output, Trace(answer.spans))) for _ in range(2))
            require(isinstance(first, Reward), f"{where}: gives {type(first).__name__}, not a Reward")
            require(first == again, f"{where}: the scorer says something else each time")
            require((case.task, answer.output) == before, f"{where}: the scorer changed what it was given")
            low, high = (1.0, 1.0) if answer is case.gold else (0.0, 0.0) if answer in case.cheats else (0.0, 1.0)
            require(low <= first.value <= high, f"{where}: earns {first.value:g}")


# The check before a run


def check_scorers(
    scorers: Sequence[ScoreFunction],
    tasks: Sequence[Any],
    *,
    safety: Sequence[ScoreFunction] = (),
) -> tuple[ScorerFinding, ...]:
    """Every scorer on a sample of the tasks, with their own expected answers and with answers that must not pay.

    A gate pays 1 to what is expected, and less to an empty answer, to another task's answer and to the task's own
    prompt. Every scorer gives finite numbers, the same ones each time, without raising. Some attributes are read where
    a scorer has them: `name`, `gate`, `takes_trace`; `gold_is_answer` (False: what is expected is a rubric or a test
    suite, never an answer); `asks_model` and `is_group` (not tried: it costs money, or needs a whole group)."""
    step = max(1.0, len(tasks) / MOST_TASKS)
    sample = [tasks[int(place * step)] for place in range(min(len(tasks), MOST_TASKS))]
    findings = [finding for scorer in scorers for finding in _Trial(scorer, sample).findings()]
    return (
        *findings,
        *(finding for function in safety for finding in _Trial(function, sample, is_safety=True).findings()),
    )


def refuse_blocking(findings: Iterable[ScorerFinding]) -> None:
    """BadInput for the first finding that blocks."""
    for finding in findings:
        if finding.blocks:
            why = f"{finding.text} ({'; '.join(finding.examples)})" if finding.examples else finding.text
            raise BadInput(f"scorer {finding.scorer}", why=why, remedy=finding.remedy)


TEXTS: Mapping[Check, tuple[str, str]] = {  # what is said where it fails, and the remedy
    "gold": (
        "does not pay 1 to the expected answer",
        "correct it or these tasks; if `expected` is no answer, set gold_is_answer = False on the function",
    ),
    "empty": ("pays an empty answer", "compare with what is expected"),
    "other": ("pays the answer of another task", "compare with this task's own expected answer"),
    "prompt": ("pays the task's own prompt as an answer", "ask for the answer alone, not for a text that contains it"),
    "range": ("is the gate and gives a number outside 0 to 1", "divide it by the most it can be, or use gate=False"),
    "cost": ("is a safety scorer and gives no cost", "return 0 where nothing was found, and more than 0 where it was"),
    "raises": ("raises", "return a number for every answer; None where nothing can be measured"),
    "deterministic": ("says something else each time", "take the chance out of it: rewards must be computable again"),
    "changes": ("changes the task that it is given", "copy what you want to change"),
    "silent": ("measured nothing on any task", "return a number; does every branch of it return something?"),
}


@dataclass
class _Count:
    """How often something was tried and failed, with the first few examples."""

    tried: int = 0
    failed: int = 0
    examples: list[str] = field(default_factory=list)

    def add(self, has_failed: bool, example: Callable[[], str]) -> None:
        self.tried += 1
        if has_failed:
            self.failed += 1
            if len(self.examples) < MOST_EXAMPLES:
                self.examples.append(example())


class _Trial:
    """One scorer on a sample of tasks."""

    def __init__(self, scorer: ScoreFunction, tasks: Sequence[Any], *, is_safety: bool = False) -> None:
        self.scorer, self.tasks, self.is_safety = scorer, tasks, is_safety
        self.name = str(getattr(scorer, "name", None) or getattr(scorer, "__name__", type(scorer).__name__))
        self.is_gate = bool(getattr(scorer, "gate", False))
        self.takes_trace = bool(getattr(scorer, "takes_trace", True))
        self.counts: dict[Check, _Count] = {check: _Count() for check in TEXTS}
        self.measured = 0

    def findings(self) -> Iterator[ScorerFinding]:
        if (reason := self._untried()) is not None:
            yield self._told("not_checkable", False, f"was not tried: {reason}", ())
            return
        for place, task in enumerate(self.tasks):
            self._try(place, task)
        if self.tasks and not self.measured and not self.counts["raises"].failed:
            self.counts["silent"].add(True, lambda: f"{len(self.tasks)} tasks were tried")
        golds = self.counts["gold"]
        if self.is_gate and self.tasks and not golds.tried:
            yield self._told("not_checkable", False, "no expected answer could be tried: none of them is one", ())
        for check, count in self.counts.items():
            if count.failed:
                yield self._finding(check, count)

    def _untried(self) -> str | None:
        if getattr(self.scorer, "is_group", False):
            return "it compares the attempts of a group"
        if getattr(self.scorer, "asks_model", False):
            return "it asks a model, which costs time or money"
        return None

    def _finding(self, check: Check, count: _Count) -> ScorerFinding:
        text, remedy = TEXTS[check]
        if check == "gold" and count.failed == count.tried and self._is_unfair():
            why = "its gold answers come without a trace, or are no plain answers"
            return self._told("not_checkable", False, f"pays 1 to no expected answer; {why}", count.examples)
        is_rare = check in ("gold", "other", "prompt") and count.failed <= TOLERATED * count.tried
        is_excused = check == "raises" and self.takes_trace  # a real attempt has a trace, and these have none
        unit = "answers" if check in ("raises", "range", "cost") else "tasks"
        counted = f"{text} on {count.failed} of {count.tried} {unit}" if check != "silent" else text
        return self._told(check, not (is_rare or is_excused), counted, count.examples, remedy)

    def _is_unfair(self) -> bool:
        """Whether failing all gold answers may be the answers' fault."""
        golds = [expected_of(task) for task in self.tasks]
        return self.takes_trace or all(isinstance(gold, Mapping | list | tuple) for gold in golds if gold is not None)

    def _told(self, check: Check, blocks: bool, text: str, examples: Sequence[str], remedy: str = "") -> ScorerFinding:
        return ScorerFinding(
            scorer=self.name, check=check, blocks=blocks, text=text, examples=tuple(examples), remedy=remedy
        )

    def _try(self, place: int, task: Any) -> None:
        before = deepcopy(task)
        label = label_of(task, place)
        golds = self._golds(task)
        form = self._gold(task, golds, label) if golds else 0
        self._bait("empty", task, "", label, skip=_same(expected_of(task), ""))
        if self.is_gate and golds:
            is_text = isinstance(golds[form], str)
            other = next((one for one in self._others(place, is_text) if not _same(one, golds[0])), None)
            self._bait("other", task, other, label, skip=other is None)
            prompt = prompt_of(task)
            self._bait("prompt", task, prompt, label, skip=prompt is None or _same(prompt, golds[0]))
        if golds:
            first, again = (self._ask(task, golds[form], label) for _ in range(2))
            self.counts["deterministic"].add(first != again, lambda: f"{label}: {_said(first)}, then {_said(again)}")
        self.counts["changes"].add(before != task, lambda: label)

    def _golds(self, task: Any) -> list[Any]:
        """The forms in which the expected answer might be handed in; none where it is no answer."""
        expected = expected_of(task)
        if expected is None or not getattr(self.scorer, "gold_is_answer", True) or not is_answer(expected):
            return []
        return [expected] if isinstance(expected, str) else [expected, json.dumps(expected)]

    def _others(self, place: int, is_text: bool) -> Iterator[Any]:
        """The other tasks' gold answers, as text where this one is taken as text."""
        for task in (*self.tasks[place + 1 :], *self.tasks[:place]):
            yield from self._golds(task)[-1:] if is_text else self._golds(task)[:1]

    def _gold(self, task: Any, golds: Sequence[Any], label: str) -> int:
        """Which form of the gold answer the scorer pays most."""
        given = [self._ask(task, gold, label, counts=False) for gold in golds]
        worth = [reward.value if isinstance(reward, Reward) else None for reward in given]
        known = [value for value in worth if value is not None]
        if not known:  # all forms raise, or nothing is measured: the tries that count will tell
            return 0
        best = max(known)
        form = worth.index(best)
        self._number(best, label)
        self.measured += 1
        if self.is_gate:
            self.counts["gold"].add(best < RIGHT, lambda: f"{label}: {_cut(golds[form])} earns {best:g}")
        return form

    def _bait(self, check: Check, task: Any, answer: Any, label: str, *, skip: bool) -> None:
        if skip:
            return
        given = self._ask(task, answer, label)
        if isinstance(given, Reward):
            self.measured += 1
            self._number(given.value, label)
            is_paid = self.is_gate and given.value >= RIGHT
            self.counts[check].add(is_paid, lambda: f"{label}: {_cut(answer)} earns {given.value:g}")

    def _number(self, value: float, label: str) -> None:
        if self.is_gate:
            self.counts["range"].add(not 0.0 <= value <= 2.0 - RIGHT, lambda: f"{label}: {value:g}")
        if self.is_safety:
            self.counts["cost"].add(value < 0.0, lambda: f"{label}: {value:g}")

    def _ask(self, task: Any, answer: Any, label: str, *, counts: bool = True) -> Reward | str | None:
        """What it gives, or the text of what it raised."""
        try:
            given = resolve(self.scorer(task, answer, Trace()))
            raised = None if given is None or isinstance(given, Reward) else f"gives {type(given).__name__}, no Reward"
        except Exception as error:  # foreign code may raise anything
            given, raised = None, told_error(error)
        if counts:
            self.counts["raises"].add(raised is not None, lambda: f"{label}, answer {_cut(answer)}: {raised}")
            if self.is_safety and raised is None:
                self.counts["cost"].add(given is None, lambda: f"{label}: nothing was measured")
        return raised if raised is not None else given


def expected_of(task: Any) -> Any:
    """What the task expects, of a record or of a plain object with that key."""
    if hasattr(task, "expected"):
        return task.expected
    return task.get("expected") if isinstance(task, Mapping) else None


def prompt_of(task: Any) -> str | None:
    """The text that the agent is asked with: the usual keys first, then the longest text there is."""
    asked = getattr(task, "input", task)
    if isinstance(asked, str):
        return asked
    if not isinstance(asked, Mapping):
        return None
    texts = {key: value for key, value in asked.items() if isinstance(value, str) and key != "expected"}
    return next((texts[key] for key in PROMPTS if key in texts), max(texts.values(), key=len, default=None))


def label_of(task: Any, place: int) -> str:
    """How a task is named to people."""
    named = getattr(task, "id", None) or (task.get("id") if isinstance(task, Mapping) else None)
    return str(named) if named else f"task {place + 1}"


def is_answer(expected: Any) -> bool:
    """Whether an agent could hand this in: no rubric, no test suite."""
    if isinstance(expected, Mapping):
        return not NOT_ANSWERS & {str(key).lower() for key in expected}
    if isinstance(expected, str):
        return not ("def test_" in expected or expected.lstrip().startswith("assert "))
    return True


def _same(one: Any, other: Any) -> bool:
    if isinstance(one, str) and isinstance(other, str):
        return one.strip().casefold() == other.strip().casefold()
    return bool(one == other)


def _said(given: Reward | str | None) -> str:
    return f"{given.value:g}" if isinstance(given, Reward) else str(given)


def _cut(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}…"
