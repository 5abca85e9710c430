"""Whether data is fit to be learnt from: named gates over experiences, each with a severity; errors keep data out.

Nothing is changed or deleted here. Which data is audited, and what a finding leads to, is decided by the caller; a
promotion gate stays closed while a finding blocks. A gate that does not apply to an experience does not count it.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from math import isfinite
from operator import attrgetter
from typing import Any

import numpy as np

from holdfast.contracts.errors import BadInput
from holdfast.contracts.evidence import Finding
from holdfast.contracts.experience import Experience
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.similar import leaks, near_duplicates
from holdfast.contracts.task import task_texts
from holdfast.contracts.trace import ModelCall, SpanKind
from holdfast.privacy import detect

GATES: Mapping[str, str] = {  # name → severity
    "required_fields": "error",  # a task, a decision, a score
    "decided": "error",  # the attempt that decided its rollout, and the agent's own doing
    "rubric_scores": "error",  # every asked for score is there
    "numeric_bounds": "error",
    "known_values": "error",  # roles and finish reasons
    "finite_rewards": "error",
    "logprobs": "error",  # of every token that was decided
    "version_fresh": "error",
    "held_out_leakage": "error",
    "first_action_in_time": "error",  # nothing begins outside of what it belongs to
    "no_pii": "critical",
    "no_secrets": "critical",
    "tenant_hashed": "critical",
    "success_consistent": "warning",
    "tools_or_thoughts": "warning",  # more than 100 tokens without either
    "latency_outlier": "warning",
    "near_duplicate": "warning",  # of another task's
    "reward_varies": "warning",  # what all got the same for teaches nothing
    "token_outlier": "info",
}
BLOCKING = frozenset({"critical", "error"})
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})
FINISHES = frozenset({None, "stop", "length", "tool_calls", "function_call", "content_filter"})
TENANT = frozenset({"tenant", "tenant_id", "tenantId"})
HASHED = re.compile(r"[0-9a-f]{64}")
LONG = 100  # tokens
FAR = 3.0  # times the 99th percentile of the others
FEWEST = 10  # values that an outlier can be told from

Answer = str | None  # why it fails; "" where it passes, None where it is not asked
GateFunction = Callable[[Experience, "Standards"], Answer]


@dataclass(frozen=True, slots=True, kw_only=True)
class Standards:
    """What is asked of data beyond what holds for all."""

    rubric: tuple[str, ...] = ()  # names of scores that every breakdown has to have, each within 0 and 1
    reward_range: tuple[float, float] | None = None  # of the total
    needs_logprobs: bool = True  # False for data that is only imitated
    needs_score: bool = True  # False for data that is scored later, or only imitated
    versions: Collection[str] | None = None  # that are fresh enough; None: any
    likeness: float = 0.9  # above which two are near-duplicates
    calls: Callable[[Experience], Sequence[ModelCall]] = attrgetter("calls")  # whose tokens are learnt from

    def __post_init__(self) -> None:
        low, high = self.reward_range or (0.0, 1.0)
        if not (isfinite(low) and isfinite(high) and low < high):
            raise BadInput(f"reward_range = {self.reward_range}", why="must be finite and in order")
        if not 0.0 < self.likeness <= 1.0:
            raise BadInput(f"likeness = {self.likeness}", why="must be above 0 and at most 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class QualityReport:
    """What every gate found, which rollouts it keeps out, and which are left."""

    findings: tuple[Finding, ...]  # one for each gate, those that found nothing included
    quarantined: Mapping[str, tuple[str, ...]] = field(default_factory=dict)  # gates by rollout
    ready: tuple[str, ...] = ()  # rollouts

    @property
    def is_clean(self) -> bool:
        return not any(finding.count and finding.blocks for finding in self.findings)


def audit(
    experiences: Sequence[Experience],
    *,
    inputs: Mapping[str, Any] | None = None,
    held_out: Iterable[Any] = (),
    standards: Standards | None = None,
) -> QualityReport:
    """Every gate over every experience. `inputs` are the tasks' own, by rollout, `held_out` those kept for proving."""
    standards = standards or Standards()
    every = list(experiences)
    answers: dict[str, list[Answer]] = {
        name: [each(experience, standards) for experience in every] for name, each in _one_by_one().items()
    }
    answers["held_out_leakage"] = _leaked(every, inputs or {}, held_out)
    answers["latency_outlier"] = _far_off([experience.latency_s for experience in every], "s")
    answers["token_outlier"] = _far_off([_tokens(experience) for experience in every], "tokens")
    answers["near_duplicate"] = _duplicates(every, standards.likeness)
    answers["reward_varies"] = _constant(every)
    failed: dict[str, dict[str, None]] = {}  # by rollout: the names of gates, each once and in their order
    for place, experience in enumerate(every):
        names = [name for name, severity in GATES.items() if severity in BLOCKING and answers[name][place]]
        failed.setdefault(experience.rollout, {}).update(dict.fromkeys(names))
    kept_out = {rollout: tuple(names) for rollout, names in failed.items() if names}
    return QualityReport(
        findings=tuple(_finding(name, every, answers[name]) for name in GATES),
        quarantined=kept_out,
        ready=tuple(rollout for rollout in failed if rollout not in kept_out),
    )


def _finding(name: str, every: Sequence[Experience], answers: Sequence[Answer]) -> Finding:
    failed = [f"{experience.rollout}: {answer}" for experience, answer in zip(every, answers, strict=True) if answer]
    asked = sum(answer is not None for answer in answers)
    severity = GATES[name]
    return Finding(
        name=name,
        severity=severity,
        count=len(failed),
        of=asked,
        detail=failed[0] if failed else "",
        blocks=severity in BLOCKING,
    )


def _one_by_one() -> dict[str, GateFunction]:
    personal: dict[str, frozenset[str]] = {}  # the same system prompt is in every experience: read once
    secret: dict[str, frozenset[str]] = {}

    def found(one: Experience, known: dict[str, frozenset[str]], look: Callable[[str], frozenset[str]]) -> str:
        hits: set[str] = set()
        for text in _texts(one):
            if text not in known:
                known[text] = look(text)
            hits |= known[text]
        return ", ".join(sorted(hits))

    return {
        "required_fields": _lacking,
        "decided": _undecided,
        "rubric_scores": _unscored,
        "numeric_bounds": _out_of_bounds,
        "known_values": _unknown,
        "finite_rewards": _infinite,
        "logprobs": _without_logprobs,
        "version_fresh": _stale,
        "first_action_in_time": _out_of_time,
        "no_pii": lambda experience, _: found(experience, personal, detect.personal),
        "no_secrets": lambda experience, _: found(experience, secret, detect.secrets),
        "tenant_hashed": _tenant_in_clear,
        "success_consistent": _inconsistent,
        "tools_or_thoughts": _idle,
    }


def _texts(one: Experience) -> Iterator[str]:
    """Everything that was said, asked and answered, and what was noted beside it; each text once."""
    parts: list[Any] = []
    for span in one.spans:
        parts += [span.name, span.attributes, *(event.attributes for event in span.events)]
        if span.model is not None:
            parts += [span.model.messages, span.model.response]
        if span.tool is not None:
            parts += [span.tool.arguments, span.tool.result, span.tool.error]
    return iter(set(detect.texts(parts)))


def _signal(one: Experience, name: str) -> float | None:
    return next((signal.value for signal in one.signals if signal.name == name), None)


def _lacking(one: Experience, standards: Standards) -> Answer:
    lacks = {
        "task": not one.task.strip(),
        "decision": not any(span.is_decision for span in one.spans),
        "score": standards.needs_score and one.reward is None,
    }
    return ", ".join(f"no {what}" for what, is_lacking in lacks.items() if is_lacking)


def _undecided(one: Experience, _: Standards) -> Answer:
    if not one.is_final:
        return "another attempt decided it"
    return "" if one.state in (RolloutState.SUCCEEDED, RolloutState.FAILED) else f"is {one.state}"


def _unscored(one: Experience, standards: Standards) -> Answer:
    if not standards.rubric:
        return None
    missing = [name for name in standards.rubric if _signal(one, name) is None]
    return f"no score for {', '.join(missing)}" if missing else ""


def _out_of_bounds(one: Experience, standards: Standards) -> Answer:
    total = one.reward
    if standards.reward_range is not None and total is not None:
        low, high = standards.reward_range
        if not low <= total <= high:
            return f"reward {total:g} is not from {low:g} to {high:g}"
    for name in ("success", *standards.rubric):
        value = _signal(one, name)
        if value is not None and not 0.0 <= value <= 1.0:
            return f"{name} {value:g} is not from 0 to 1"
    for call in standards.calls(one):
        for counted, ids in ((call.prompt_tokens, call.prompt_ids), (call.completion_tokens, call.completion_ids)):
            if counted is not None and (counted < 0 or (ids is not None and counted != len(ids))):
                return f"{counted} tokens are counted" + ("" if ids is None else f" and {len(ids)} are there")
    return ""


def _unknown(one: Experience, standards: Standards) -> Answer:
    for call in standards.calls(one):
        if call.finish_reason not in FINISHES:
            return f"finish reason {call.finish_reason!r}"
        for message in (*call.messages, {"role": "assistant", **call.response}):
            if message.get("role") not in ROLES:
                return f"role {message.get('role')!r}"
    return "" if one.calls else None


def _infinite(one: Experience, _: Standards) -> Answer:
    total = one.reward
    if total is None:
        return None
    return "" if isfinite(total) else f"reward {total}"


def _without_logprobs(one: Experience, standards: Standards) -> Answer:
    calls = standards.calls(one)
    if not standards.needs_logprobs or not calls:
        return None
    bare = sum(call.logprobs is None for call in calls)
    return f"{bare} of {len(calls)} model calls have none" if bare else ""


def _stale(one: Experience, standards: Standards) -> Answer:
    if standards.versions is None:
        return None
    return "" if one.version in standards.versions else f"version {one.version or 'unknown'}"


def _out_of_time(one: Experience, _: Standards) -> Answer:
    spans = {span.seq: span for span in one.spans}
    for span in one.spans:
        outer = None if span.parent is None else spans.get(span.parent)
        if outer is None:
            continue
        if span.started_at < outer.started_at or (outer.ended_at is not None and span.started_at > outer.ended_at):
            return f"span {span.seq} begins outside of span {outer.seq}"
    return "" if one.spans else None


def _tenant_in_clear(one: Experience, _: Standards) -> Answer:
    values = [span.attributes[key] for span in one.spans for key in TENANT & span.attributes.keys()]
    if not values:
        return None
    clear = [value for value in values if not isinstance(value, str) or not HASHED.fullmatch(value)]
    return "a tenant is named without a hash" if clear else ""


def _inconsistent(one: Experience, _: Standards) -> Answer:
    success, quality = _signal(one, "success"), _signal(one, "quality")
    quality = one.reward if quality is None else quality
    if success is None or quality is None:
        return None
    is_odd = quality < 0.5 if success >= 0.5 else quality > 0.8
    return f"success {success:g} with a quality of {quality:g}" if is_odd else ""


def _idle(one: Experience, _: Standards) -> Answer:
    tokens = _tokens(one)
    if tokens is None:
        return None
    acted = any(span.kind is SpanKind.TOOL for span in one.spans)
    acted = acted or any(
        call.response.get("tool_calls") or call.response.get("reasoning_content") for call in one.calls
    )
    return f"{tokens:.0f} tokens without a tool or a thought" if tokens > LONG and not acted else ""


def _tokens(one: Experience) -> float | None:
    counts = [call.completion_tokens for call in one.calls if call.completion_tokens is not None]
    return float(sum(counts)) if counts else None


def _far_off(values: Sequence[float | None], unit: str) -> list[Answer]:
    """Above three times the 99th percentile of all others: with itself among them, one of a few is never far off."""
    answers: list[Answer] = [None if value is None else "" for value in values]
    measured = sorted((value, place) for place, value in enumerate(values) if value is not None)
    if len(measured) < FEWEST:
        return [None] * len(values)
    ordered = np.array([value for value, _ in measured])
    for at in range(len(measured) - 1, 0, -1):
        value, place = measured[at]
        limit = FAR * float(np.quantile(np.delete(ordered, at), 0.99))
        if value <= limit:
            break  # nor is any smaller one
        answers[place] = f"{value:.4g} {unit}, above {limit:.4g}"
    return answers


def _leaked(every: Sequence[Experience], inputs: Mapping[str, Any], held_out: Iterable[Any]) -> list[Answer]:
    """By what was asked, of a task's input and in its first call, where that is all that is known; nearly the same is
    the same (`similar`)."""
    kept = [task_texts(task)[0] for task in held_out]
    lines: list[str] = []
    whose: list[int] = []
    for place, experience in enumerate(every):
        texts = [
            *_asked(experience),
            *([task_texts(inputs[experience.rollout])[0]] if experience.rollout in inputs else []),
        ]
        lines += texts
        whose += [place] * len(texts)
    hit = {whose[at] for some in (leaks(lines, kept) if kept else {}).values() for at in some}
    answers: list[Answer] = []
    for place, experience in enumerate(every):
        if experience.split in (Split.VAL, Split.TEST):
            answers.append(f"is of split {experience.split}")
        else:
            answers.append(None if not kept else "its task is held out" if place in hit else "")
    return answers


def _asked(one: Experience) -> list[str]:
    """What the user said in the first call."""
    said = [
        message.get("content") for call in one.calls[:1] for message in call.messages if message.get("role") == "user"
    ]
    return [text for text in said if isinstance(text, str) and text.strip()]


def _duplicates(every: Sequence[Experience], least: float) -> list[Answer]:
    """Question and answers nearly those of another task. Several tries at one task may well be the same."""
    lines = []
    for experience in every:
        answered = [text for call in experience.calls for text in detect.texts(call.response)]
        lines.append(" ".join([*_asked(experience), *answered]))
    found = near_duplicates(lines, least=least)
    answers: list[Answer] = []
    for experience, text, twin in zip(every, lines, found, strict=True):
        other = None if twin is None else every[twin]
        is_repeated = other is not None and (other.task != experience.task or other.rollout == experience.rollout)
        answers.append(None if not text.strip() else f"repeats {other.rollout}" if is_repeated and other else "")
    return answers


def _constant(every: Sequence[Experience]) -> list[Answer]:
    totals = [experience.reward for experience in every]
    known = [total for total in totals if total is not None]
    if len(known) < 2:
        return [None] * len(every)
    answer = f"all {len(known)} rewards are {known[0]:g}" if len(set(known)) == 1 else ""
    return [None if total is None else answer for total in totals]
