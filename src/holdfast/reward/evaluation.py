"""Evaluates one task result: rules, judges, minimal diff, tools and safety, and one score under the outcome gate.

Each part returns a verdict with reasons, or says that it cannot tell. Without a hidden check there is no score. A model
is asked only through the function that is passed in.
"""

from __future__ import annotations

import ctypes
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from threading import Thread
from typing import Any, Literal, TypeVar

from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.judgement import EvalItem
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.trace import Span
from holdfast.reward import safety
from holdfast.reward import tools as tool_use
from holdfast.reward.breakdown import OutcomeGate, normalised, total
from holdfast.reward.diff import minimality, tamper
from holdfast.reward.diff.edits import Change, EditFinding
from holdfast.reward.judges import ensemble
from holdfast.reward.judges.judge import CHANGE, KIND, talk

GRACE_S = 1.0  # for a thread that was told to stop


class TooLong(Exception):
    """The work did not end in time."""


class _Stop(BaseException):
    """Raised inside the work. It is no Exception, so that code inside does not catch it."""


def within(most_s: float, work: Callable[[], T]) -> T:
    """Returns what the work returns, or raises TooLong after so many seconds of wall time. The work runs in a thread
    that is stopped at its next line of Python, so the limit should be far above what is usual."""
    given: list[T] = []
    raised: list[BaseException] = []

    def run() -> None:
        try:
            given.append(work())
        except _Stop:
            pass
        except BaseException as error:  # told to whoever waits
            raised.append(error)

    thread = Thread(target=run, name="within", daemon=True)
    thread.start()
    thread.join(most_s)
    if thread.is_alive() and thread.ident is not None:
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(_Stop))
        thread.join(GRACE_S)
        raise TooLong
    if raised:
        raise raised[0]
    return given[0]


T = TypeVar("T")
OUTCOME, FORMAT, TAMPERING = "success", "format", "tampering"
EVALUATION, SOURCE = "evaluation", "evaluation@1"  # the score as a term, and who says so
OUTCOME_GATE = OutcomeGate(name="evaluation@1", outcome=OUTCOME, cap=0.5, vetoes=(TAMPERING, safety.GATE))
FORMAT_WEIGHT, MINIMAL_WEIGHT = 0.1, 0.3
JUDGED: Mapping[str, float] = {"faithfulness": 0.1, "relevance": 0.1, "safety": 0.1, "minimality": 0.05}
MOST_REASONS = 20  # of one part
MOST_SAID = 4000  # characters that are kept with a term
FILE_S, CHANGE_S = 5.0, 60.0  # to look for tampering: by file, and at most for one change; usual are milliseconds
KINDS = ("text", "json")


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskResult:
    """What was done with a task, and what is known about it."""

    task: str  # what was asked, or its name
    output: str = ""  # the answer; a change has none
    expected: str | None = None  # the right answer, where there is one
    passed: bool | None = None  # what a hidden check said that somebody else has run; None: none was run
    kind: str = "text"  # what the output has to be
    context: str = ""  # what the answer had to go by
    change: Change = field(default_factory=dict)
    references: Mapping[str, str | float] = field(default_factory=dict)  # path → the minimal fix, or what it costs
    files: tuple[str, ...] = ()  # the task's own; empty: any
    tests: Mapping[str, str] = field(default_factory=dict)  # the visible ones, path → text
    spans: tuple[Span, ...] = ()  # what it did
    needs: tuple[str, ...] | None = None  # the tools that the task needs; None: nobody knows
    name: str = ""  # what people call it; no judge sees it

    def __post_init__(self) -> None:
        if not self.task.strip():
            raise BadInput("result: task", why="must not be blank", remedy="say what was asked for")
        if self.kind not in KINDS:
            raise BadInput(f"result: kind = {self.kind!r}", why="is unknown", remedy=f"use {' or '.join(KINDS)}")

    @property
    def label(self) -> str:
        return f"{self.name}: {self.task}" if self.name else self.task


@dataclass(frozen=True, slots=True)
class PartVerdict:
    """What one part found. `holds` is None where it could not tell."""

    part: str
    holds: bool | None
    signals: tuple[RewardTerm, ...] = ()
    reasons: tuple[str, ...] = ()
    is_needed: bool = False  # where it could not tell, nothing is passed


@dataclass(frozen=True, slots=True)
class Evaluation:
    task: str
    verdicts: tuple[PartVerdict, ...]
    breakdown: RewardBreakdown | None  # None: nothing gates it
    score: float | None  # from 0 to 1, as a share of what a faultless result earns
    decision: Literal["pass", "fail", "unknown"]
    reasons: tuple[str, ...]


Part = Callable[[TaskResult], PartVerdict | None]  # None: it has nothing to do with such a result
Judge = Callable[[EvalItem], Sequence[ensemble.Opinion]]  # by each criterion


def parts(
    features: Features = ALL_ON,
    *,
    judge: Judge | None = None,
    policy: safety.SafetyPolicy = safety.SafetyPolicy(),  # noqa: B008 - frozen
) -> tuple[Part, ...]:
    """What is looked at. What a flag has switched off is not even called: all is as it was before the feature."""
    found: list[Part] = [rules, safety_part(policy), tampering]  # no flag turns off what protects
    found += [partial(diff, has_scaffolding=features.scaffolding)] if features.minimal_diff else []
    found += [tools] if features.tool_rewards else []
    found += [judge_part(judge, counts=features.combined)] if features.judges and judge is not None else []
    return tuple(found)


def evaluate(result: TaskResult, looked_at: Sequence[Part], guard: OutcomeGate = OUTCOME_GATE) -> Evaluation:
    """Every part's verdict, and the one score: a failed check is worth 0, a veto too, whatever else was found."""
    verdicts = tuple(verdict for part in looked_at if (verdict := part(result)) is not None)
    signals = [signal for verdict in verdicts for signal in _explained(verdict)]
    if not any(signal.name == guard.outcome for signal in signals):
        why = "no hidden check was run and no answer is known: what nothing gates is not paid"
        return _unknown(result, verdicts, why)
    breakdown = total(signals, guard)
    vetoed = [signal.name for signal in signals if signal.name in guard.vetoes and signal.value > 0.0]
    has_passed = any(signal.name == guard.outcome and signal.value == 1.0 for signal in signals)
    untold = [verdict for verdict in verdicts if verdict.is_needed and verdict.holds is None]
    if untold and has_passed and not vetoed:
        return _unknown(
            result, verdicts, *(f"{verdict.part}: {reason}" for verdict in untold for reason in verdict.reasons)
        )
    reasons = [
        f"{verdict.part}: {reason}" for verdict in verdicts if verdict.holds is False for reason in verdict.reasons
    ]
    score = normalised(breakdown, _faultless(signals, guard))
    decision: Literal["pass", "fail"] = "pass" if has_passed and not vetoed else "fail"
    return Evaluation(result.label, verdicts, breakdown, score, decision, tuple(reasons))


def _explained(verdict: PartVerdict) -> list[RewardTerm]:
    """Its signals; the first says in words what is wrong, if nothing is said yet."""
    signals = list(verdict.signals)
    if signals and verdict.holds is not True and signals[0].feedback is None:
        signals[0] = replace(signals[0], feedback="; ".join(verdict.reasons)[:MOST_SAID])
    return signals


def terms_of(evaluation: Evaluation) -> tuple[RewardTerm, ...]:
    """What is stored of it: every term, and its score with the decision in words, which counts for nothing by itself.
    Nothing where nothing gated it."""
    if evaluation.breakdown is None or evaluation.score is None:
        return ()
    message = "; ".join([evaluation.decision, *evaluation.reasons])[:MOST_SAID]
    score = RewardTerm(name=EVALUATION, value=evaluation.score, weight=0.0, source=SOURCE, feedback=message)
    return (*evaluation.breakdown.signals, score)


def _unknown(result: TaskResult, verdicts: tuple[PartVerdict, ...], *reasons: str) -> Evaluation:
    return Evaluation(result.label, verdicts, None, None, "unknown", reasons)


def _faultless(signals: Sequence[RewardTerm], guard: OutcomeGate) -> RewardBreakdown:
    """The most that a result with these signals can earn: everything that can count for it at 1, nothing against it."""

    def best(one: RewardTerm) -> float:
        is_credit = one.weight > 0.0 and one.source != safety.SOURCE and one.name not in guard.vetoes
        return max(1.0, one.value) if is_credit else 0.0

    return total(
        [replace(signal, value=1.0 if signal.name == guard.outcome else best(signal)) for signal in signals], guard
    )


def rules(result: TaskResult) -> PartVerdict:
    """The outcome, from the hidden check or from the known answer; and whether the output is what was asked for."""
    signals, reasons = [], []
    passed = result.passed
    if passed is None and result.expected is not None:
        passed = result.output.strip().casefold() == result.expected.strip().casefold()
        reasons += [] if passed else ["the answer is not the expected one"]
    elif passed is False:
        reasons.append("the hidden check did not pass")
    if passed is not None:
        signals.append(RewardTerm(name=OUTCOME, value=float(passed), source="rule:outcome@1"))
    if not result.change:
        wrong = _misshapen(result)
        reasons += [wrong] if wrong else []
        signals.append(RewardTerm(name=FORMAT, value=float(not wrong), weight=FORMAT_WEIGHT, source="rule:format@1"))
    said = tuple(reasons) or (("as expected",) if passed else ("nothing to compare with",))
    return PartVerdict("rules", False if reasons else passed, tuple(signals), said)


def _misshapen(result: TaskResult) -> str:
    if not result.output.strip():
        return "there is no answer"
    if result.kind == "json":
        try:
            json.loads(result.output)
        except (ValueError, RecursionError) as error:
            return f"the answer is not JSON: {str(error)[:80]}"
    return ""


def tampering(result: TaskResult, *, file_s: float = FILE_S) -> PartVerdict | None:
    """Whether the change works on the check instead of on the task. What could not be looked at in time is not passed:
    else the way around it would be a file that takes long."""
    if not result.change:
        return None
    findings = _in_time(result, file_s, partial(tamper.inspect, result.change, tests=dict(result.tests)))
    if isinstance(findings, str):
        return PartVerdict("tampering", None, reasons=(findings,), is_needed=True)
    reasons = tuple(map(str, findings[:MOST_REASONS])) or ("nothing was found",)
    return PartVerdict("tampering", not findings, tamper.signals(findings), reasons, is_needed=True)


def _in_time(result: TaskResult, file_s: float, look: Callable[[], T]) -> T | str:
    """What was found, or why the change could not be looked at."""
    most_s = min(file_s * len(result.change), CHANGE_S)
    try:
        return within(most_s, look)
    except TooLong:
        return f"looking at the change took longer than {most_s:g} s"
    except (RecursionError, MemoryError) as error:
        return f"the change could not be looked at: {type(error).__name__}"


def diff(result: TaskResult, *, file_s: float = FILE_S, has_scaffolding: bool = True) -> PartVerdict | None:
    """How much more was changed than needed. What could not be measured in time is not taken to be small."""
    if not result.change:
        return None

    def measure() -> tuple[tuple[EditFinding, ...], tuple[RewardTerm, ...]]:
        known = dict(result.references) or None
        how: Any = {"weight": MINIMAL_WEIGHT, "has_scaffolding": has_scaffolding}
        measured = minimality.signals(result.change, references=known, files=result.files, **how)
        findings = minimality.scaffolding(result.change, files=result.files) if has_scaffolding else ()
        return tuple(findings), measured

    looked = _in_time(result, file_s, measure)
    if isinstance(looked, str):
        none = RewardTerm(name="minimality", value=0.0, weight=MINIMAL_WEIGHT, source=minimality.SOURCE)
        return PartVerdict("minimal diff", None, (none,), (looked,))
    added, measured = looked
    excess = next((term.value for term in measured if term.name == "excess_edits"), 0.0)
    reasons = [str(edit) for edit in added[:MOST_REASONS]]
    if excess > 0.0 and result.references:
        reasons.append(f"{excess:.3g} edits beyond the minimal fix")
    return PartVerdict("minimal diff", not reasons, measured, tuple(reasons) or ("no larger than needed",))


def tools(result: TaskResult) -> PartVerdict | None:
    """How tools were used, with weight 0: more calls must not pay."""
    if not result.spans:
        return None
    marks = tool_use.marks(result.spans, needs=result.needs, answer=result.output)
    reasons = tool_use.remarks(marks, result.needs)
    terms = tuple(replace(term, weight=0.0) for term in tool_use.signals(marks, result.needs))
    return PartVerdict("tools", not reasons, terms, tuple(reasons[:MOST_REASONS]) or ("every call was of use",))


def safety_part(policy: safety.SafetyPolicy) -> Part:
    """A part that looks for what must not leave: in the answer, in what a change adds, and in every turn there was."""

    def watch(result: TaskResult) -> PartVerdict:
        lines = [result.output, *(_added(before, after) for before, after in result.change.values())]
        codes = [code for text in lines if text for code in safety.screen(text, safety.SafetyStage.OUTBOUND)]
        events = [safety.SafetyEvent(stage=safety.SafetyStage.OUTBOUND, code=code) for code in codes]
        events += [*safety.reported_events(result.spans), *safety.find_events(result.spans)]
        finding = safety.judge(events, policy)
        reasons = (*finding.codes, *((f"{finding.blocked} blocked",) if finding.blocked else ()))
        return PartVerdict("safety", not events, safety.signals(finding, policy), reasons or ("nothing was found",))

    return watch


def _added(before: str | None, after: str | None) -> str:
    """The lines that were not there before; in one pass, for a diff of a rewritten file can take seconds."""
    known = set((before or "").splitlines())
    return "\n".join(line for line in (after or "").splitlines() if line not in known)


def _shown(before: str | None, after: str | None) -> str:
    """What went and what came."""
    sides = (("-", _added(after, before)), ("+", _added(before, after)))
    return "\n".join(f"{sign}{line}" for sign, text in sides for line in text.splitlines())


def judge_part(judge: Judge, *, counts: bool = True) -> Part:
    """A part that asks judges. Decided opinions count; abstentions and disputes are shown with weight 0, as all of them
    are where what judges say does not count beside the rules."""

    def ask(result: TaskResult) -> PartVerdict:
        opinions = list(judge(eval_item(result)))
        weights = JUDGED if counts else dict.fromkeys(JUDGED, 0.0)
        terms = tuple(replace(term, name=f"judged_{term.name}") for term in ensemble.signals(opinions, weights))
        against = [opinion for opinion in opinions if opinion.holds is False]
        holds = False if against else True if any(opinion.holds for opinion in opinions) else None
        reasons = tuple(
            f"{opinion.criterion} {opinion.outcome}: {opinion.why[:120]}" for opinion in against or opinions
        )
        return PartVerdict("judges", holds, terms, reasons[:MOST_REASONS])

    return ask


def eval_item(result: TaskResult) -> EvalItem:
    """What a judge is shown, without the author and the hidden answer."""
    changed = "\n".join(f"{path}\n{_shown(before, after)}" for path, (before, after) in result.change.items())
    calls = [span.model for span in result.spans if span.model is not None]
    detail = {KIND: CHANGE} if changed and not result.output else talk(calls, result.output)
    return EvalItem(task=result.task, output=result.output or changed, context=result.context, detail=detail)


def as_rollout(result: TaskResult) -> tuple[dict[str, Any], Any]:
    """A result as the input and the output of a rollout, as the scorers `diff`, `rules` and `judge` read them."""
    before = {path: text for path, (text, _) in result.change.items() if text is not None}
    given: dict[str, Any] = {"prompt": result.task, "context": result.context, "kind": result.kind}
    given |= {"files": before, "tests": dict(result.tests), "expected": dict(result.references) or result.expected}
    if not result.change:
        return {key: value for key, value in given.items() if value and key != "files"}, result.output
    return {key: value for key, value in given.items() if value or key == "files"}, {
        path: text for path, (_, text) in result.change.items()
    }


def result_of(
    task: Any, output: Any, *, name: str, asked: str, passed: bool | None, spans: Sequence[Span] = ()
) -> TaskResult:
    """From a stored rollout. `task` is as a scorer sees it. Where it has `files` and the answer is an object of path →
    text, the answer is a change of them (null: the file is gone)."""
    before, needs, change = task.get("files"), task.get("needs"), {}
    if isinstance(before, Mapping) and isinstance(output, Mapping):
        after = {**before, **output}
        change = {path: (before.get(path), text) for path, text in after.items() if before.get(path) != text}
    known = task.expected if isinstance(task.expected, Mapping) else {}
    kind = task.get("kind")
    return TaskResult(
        name=name,
        task=asked if asked.strip() else name,
        output="" if output is None or change else output if isinstance(output, str) else json.dumps(output),
        passed=passed,
        expected=task.expected if passed is None and isinstance(task.expected, str) else None,
        kind=kind if kind in KINDS else "text",
        context=str(task.get("context") or ""),
        change=change,
        references={path: text for path, text in known.items() if path in change and isinstance(text, str)},
        files=tuple(before) if change else (),
        tests=_texts(task.get("tests") or None, "test_visible.py", f"{name}: tests") if change else {},
        spans=tuple(spans),
        needs=tuple(map(str, needs)) if isinstance(needs, list | tuple) else None,
    )


def result_from(given: Any, where: str) -> TaskResult:
    """From one line of a file: `before` and `after` are texts, or objects of path → text."""
    if not isinstance(given, Mapping):
        raise BadInput(where, why="is not an object", remedy='write {"task": "…", "output": "…"}')
    known = {"task", "output", "expected", "passed", "kind", "context", "before", "after", "path", "reference"}
    if unknown := sorted(set(given) - known - {"files", "tests"}):
        remedy = f"use {', '.join(sorted(known | {'files', 'tests'}))}"
        raise BadInput(f"{where}: {unknown[0]}", why="is unknown", remedy=remedy)
    passed = given.get("passed")
    if passed is not None and not isinstance(passed, bool):
        raise BadInput(f"{where}: passed = {passed!r:.40}", why="must be true or false", remedy="or leave it out")
    files = given.get("files") or []
    if not isinstance(files, list) or not all(isinstance(file, str) for file in files):
        raise BadInput(f"{where}: files", why="must be a list of texts")
    defaults = {"task": "", "output": "", "context": "", "kind": "text", "path": "solution.py"}
    texts: dict[str, Any] = {name: _text(given, name, where, default) for name, default in defaults.items()}
    path = texts.pop("path")
    return TaskResult(
        **texts,
        expected=None if given.get("expected") is None else _text(given, "expected", where, ""),
        passed=passed,
        change=_change(given, path, where),
        references=_texts(given.get("reference"), path, f"{where}: reference"),
        files=tuple(files),
        tests=_texts(given.get("tests"), "test_visible.py", f"{where}: tests"),
    )


def _text(given: Mapping[str, Any], name: str, where: str, default: str) -> str:
    value = given.get(name, default)
    if not isinstance(value, str):
        raise BadInput(f"{where}: {name}", why=f"must be a text, not {type(value).__name__}")
    return value


def _change(given: Mapping[str, Any], path: str, where: str) -> dict[str, tuple[str | None, str | None]]:
    if ("before" in given) != ("after" in given):
        raise BadInput(where, why="before and after go together", remedy="give both, or neither")
    before, after = (_texts(given.get(name), path, f"{where}: {name}") for name in ("before", "after"))
    paths = [one for one in dict.fromkeys((*before, *after)) if before.get(one) != after.get(one)]
    return {path: (before.get(path), after.get(path)) for path in paths}


def _texts(value: Any, path: str, where: str) -> dict[str, str]:
    """A text under the given path, or an object of path → text."""
    if value is None:
        return {}
    if isinstance(value, str):
        return {path: value}
    if not isinstance(value, Mapping) or not all(isinstance(one, str) for one in value.values()):
        raise BadInput(where, why="must be a text, or an object of path → text")
    return dict(value)
