"""How much an attempt may think: how hard its task is, what that is worth, and when it gets more.

All of it is arithmetic on records: the same task gives the same budget. Who holds a model to it is `purse` and
`thinking`; where budgets are kept is the store's business.

A tier's `ceiling` is what it begins with, its `cap` what no escalation goes beyond. Tokens that a model used beyond
its allowance are counted as they are, apart from the rest.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from typing import Any

from holdfast.contracts.budget import (
    Assessment,
    BudgetChange,
    BudgetEvent,
    BudgetEventKind,
    Mode,
    ThinkingBudget,
    Tier,
    Traits,
    Trigger,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

UNSURE = 0.5  # below, an answer's confidence is low
PRESSED = 0.8  # from this part of the allowance on, a budget may grow, and is warned of
LETTERS = 4  # of a text make a token, where nobody counts them
LONGEST = 20_000  # letters in which steps are looked for: what is longer is complex anyway, and looking takes its time
STEP = re.compile(r"^\s*(?:\d+[.)]|[-*•]|step\s+\d+)\s", re.IGNORECASE | re.MULTILINE)
AND_THEN = re.compile(r"\b(?:then|after that|afterwards|finally)\b", re.IGNORECASE)
OUTSIDE = re.compile(
    r"https?|\burls?\b|\bweb|\bapi\b|internet|online|network|remote|download|fetch|browse|e-?mail", re.IGNORECASE
)


@dataclass(frozen=True, slots=True)
class TriggerRule:
    """What a trigger gives, and how long it gives nothing more."""

    tokens: int
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class TierLimits:
    """What a tier begins with, where it ends, and what may make it grow."""

    ceiling: int
    cap: int
    rules: Mapping[Trigger, TriggerRule]


LIMITS: Mapping[Tier, TierLimits] = {
    Tier.TRIVIAL: TierLimits(500, 1000, {Trigger.LOW_CONFIDENCE: TriggerRule(250, 10.0)}),
    Tier.STANDARD: TierLimits(
        2000, 4000, {Trigger.LOW_CONFIDENCE: TriggerRule(1000, 10.0), Trigger.PARTIAL_SUCCESS: TriggerRule(1000, 10.0)}
    ),
    Tier.COMPLEX: TierLimits(
        8000,
        16000,
        {
            Trigger.LOW_CONFIDENCE: TriggerRule(2000, 10.0),
            Trigger.PARTIAL_SUCCESS: TriggerRule(4000, 10.0),
            Trigger.VERIFIER_REJECTION: TriggerRule(4000, 30.0),
        },
    ),
}


class BudgetAction(StrEnum):
    """What follows from how a budget stands."""

    CONTINUE = "continue"
    ESCALATE = "escalate"  # it has just been made larger
    EXHAUST = "exhaust"  # nothing is left of it: answer without thinking


def assess(traits: Traits) -> Assessment:
    """The tier, by the first level of which any rule holds; several turns alone make nothing harder."""
    tools, context, steps = traits.tool_count, traits.context_size, traits.step_count
    both = "multi_turn and external_calls"
    complex_ = _met(traits, 3, 5000, 5) + ([both] if traits.multi_turn and traits.external_calls else [])
    if complex_:
        return Assessment(
            tier=Tier.COMPLEX, confidence=0.7 if complex_ == [both] else 0.95, reasons=tuple(complex_), traits=traits
        )
    standard = _met(traits, 1, 1000, 2) + (["external_calls"] if traits.external_calls else [])
    if standard:
        sure = 0.9 if 1 <= tools <= 2 and 1000 <= context < 5000 else 0.75 if tools >= 1 or context >= 1000 else 0.65
        return Assessment(tier=Tier.STANDARD, confidence=sure, reasons=tuple(standard), traits=traits)
    sure = 0.95 if context < 500 and steps <= 1 else 0.8
    return Assessment(tier=Tier.TRIVIAL, confidence=sure, reasons=("no rule for more",), traits=traits)


def _met(traits: Traits, tools: int, context: int, steps: int) -> list[str]:
    least = (("tool_count", tools), ("context_size", context), ("step_count", steps))
    return [f"{name} {getattr(traits, name)} ≥ {at}" for name, at in least if getattr(traits, name) >= at]


def traits_of(task: Any, messages: Sequence[Mapping[str, Any]] = (), tools: Sequence[Any] = ()) -> Traits:
    """From the task and what the model is first asked; what the task says of itself under `traits` goes over it.

    Steps are numbered or bulleted lines, or else the words that lead from one step to the next. A tool whose name or
    description tells of the world outside makes external calls.
    """
    given: Mapping[str, Any] = task if isinstance(task, Mapping) else {}
    offered = list(tools) or _list(given.get("tools"))
    asked = "\n".join(_text(message) for message in messages if message.get("role") == "user") or _prompt(task)
    everything = "".join(_text(message) for message in messages) or _prompt(task)
    letters = len(everything) + sum(len(json.dumps(tool, default=str)) for tool in offered)
    turns = sum(message.get("role") == "user" for message in messages)
    found = {
        "tool_count": len(offered),
        "context_size": -(-letters // LETTERS),
        "step_count": _steps(given.get("steps"), asked),
        "multi_turn": turns > 1 or len(_list(given.get("turns"))) > 1,
        "external_calls": any(OUTSIDE.search(_about(tool)) for tool in offered),
    }
    told = given.get("traits")
    return Traits(**{**found, **(_checked(told) if told is not None else {})})


def allocate(
    attempt: str, assessment: Assessment, *, now: float, limits: Mapping[Tier, TierLimits] = LIMITS
) -> BudgetChange:
    """A fresh budget: what its tier begins with."""
    own = limits[assessment.tier]
    budget = ThinkingBudget(
        attempt=attempt,
        assessment=assessment,
        ceiling=own.ceiling,
        cap=own.cap,
        allowed=own.ceiling,
        created_at=now,
        changed_at=now,
    )
    why = f"{assessment.tier}: {', '.join(assessment.reasons)}"
    born = _event(budget, 1, BudgetEventKind.ALLOCATE, now, tokens=own.ceiling, why=why)
    return BudgetChange(budget=budget, events=(born,))


def spend(
    budget: ThinkingBudget, tokens: int, *, now: float, mode: Mode | None = None, confidence: float | None = None
) -> BudgetChange:
    """A call of the model thought so many tokens. None of them is forgotten, however many there were."""
    if tokens < 0:
        raise BadInput(f"budget of {budget.attempt}: {tokens} tokens", why="nobody thinks less than nothing")
    after = replace(
        budget,
        spent=budget.spent + tokens,
        overspent=budget.overspent + max(0, tokens - budget.left),
        calls=budget.calls + 1,
        mode=mode or budget.mode,
        changed_at=now,
    )
    kinds = [BudgetEventKind.SPEND]
    if _is_pressed(after) and not _is_pressed(budget):
        kinds.append(BudgetEventKind.WARN)
    if after.is_exhausted and not budget.is_exhausted:
        kinds.append(BudgetEventKind.EXHAUST)
    after = replace(after, events=budget.events + len(kinds))
    events = tuple(
        _event(
            after,
            budget.events + place,
            kind,
            now,
            tokens=tokens if kind is BudgetEventKind.SPEND else 0,
            mode=mode,
            confidence=confidence,
        )
        for place, kind in enumerate(kinds, 1)
    )
    return BudgetChange(budget=after, events=events)


def escalate(
    budget: ThinkingBudget,
    trigger: Trigger,
    *,
    now: float,
    confidence: float | None = None,
    limits: Mapping[Tier, TierLimits] = LIMITS,
) -> tuple[BudgetAction, BudgetChange]:
    """More tokens, if its tier lets this trigger give some, it is pressed, the last ones were not just now, and it is
    below its cap. A refusal is an event too, and says why."""
    rule, last = limits[budget.tier].rules.get(trigger), budget.escalated_at.get(trigger)
    if rule is None:
        why = f"{trigger} is nothing that makes a {budget.tier} budget larger"
    elif budget.allowed >= budget.cap:
        why = f"it is at its cap of {budget.cap}"
    elif not _is_pressed(budget):
        why = f"{budget.left} of {budget.allowed} tokens are left"
    elif last is not None and 0 <= now - last < rule.cooldown_s:  # a clock that was set back cools nothing
        why = f"the last one was {now - last:.3g} s ago, and {rule.cooldown_s:g} s lie between two"
    else:
        more = min(rule.tokens, budget.cap - budget.allowed)
        after = replace(
            budget,
            allowed=budget.allowed + more,
            escalations=budget.escalations + 1,
            escalated_at={**budget.escalated_at, trigger.value: now},
            events=budget.events + 1,
            changed_at=now,
        )
        how: dict[str, Any] = {"tokens": more, "trigger": trigger, "confidence": confidence}
        grown = _event(after, after.events, BudgetEventKind.ESCALATE, now, **how)
        return BudgetAction.ESCALATE, BudgetChange(budget=after, events=(grown,))
    same = replace(budget, events=budget.events + 1, changed_at=now)
    how = {"trigger": trigger, "confidence": confidence, "why": why}
    refused = _event(same, same.events, BudgetEventKind.REFUSE, now, **how)
    return _standing(budget), BudgetChange(budget=same, events=(refused,))


def monitor(
    budget: ThinkingBudget,
    tokens: int,
    *,
    now: float,
    mode: Mode | None = None,
    confidence: float | None = None,
    trigger: Trigger | None = None,
    limits: Mapping[Tier, TierLimits] = LIMITS,
) -> tuple[BudgetAction, BudgetChange]:
    """One more iteration: what it used is counted, and what it came to may make the budget larger.

    Without a trigger, a confidence that is low is one. An unsure answer asks for nothing while enough is left.
    """
    used = spend(budget, tokens, now=now, mode=mode, confidence=confidence)
    if trigger is None and confidence is not None and confidence < UNSURE and _may_grow(used.budget, limits):
        trigger = Trigger.LOW_CONFIDENCE
    if trigger is None:
        return _standing(used.budget), used
    action, grown = escalate(used.budget, trigger, now=now, confidence=confidence, limits=limits)
    return action, BudgetChange(budget=grown.budget, events=used.events + grown.events)


def thinking_tokens(call: ModelCall) -> int:
    """Tokens inside thoughts: as they were counted, or else the thought's part of all that was written."""
    if call.thinking_tokens is not None:
        return call.thinking_tokens
    thought = str(call.response.get("reasoning_content") or call.response.get("reasoning") or "")
    if not thought:
        return 0
    said = len(str(call.response.get("content") or "")) + len(json.dumps(call.response.get("tool_calls") or ""))
    if call.completion_tokens is not None:
        return -(-call.completion_tokens * len(thought) // (len(thought) + said))
    return -(-len(thought) // LETTERS)


def checked_limit(limit: Any) -> int:
    """A number of thinking tokens, as an agent may give it."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise BadInput(f"thinking = {limit!r:.60}", why="is not a whole number of tokens", remedy="give 0 or more")
    return limit


def confidence_of(call: ModelCall) -> float | None:
    """How sure the model was of what it drew: the geometric mean of the probabilities. None: nobody said."""
    if not call.logprobs:
        return None
    forced = set(call.forced)
    drawn = [logprob for place, logprob in enumerate(call.logprobs) if place not in forced]
    return exp(sum(drawn) / len(drawn)) if drawn else None


def _event(budget: ThinkingBudget, seq: int, kind: BudgetEventKind, at: float, **rest: Any) -> BudgetEvent:
    standing: dict[str, Any] = {"allowed": budget.allowed, "spent": budget.spent, "overspent": budget.overspent}
    return BudgetEvent(attempt=budget.attempt, seq=seq, kind=kind, at=at, **standing, **rest)


def _is_pressed(budget: ThinkingBudget) -> bool:
    return budget.spent >= PRESSED * budget.allowed


def _may_grow(budget: ThinkingBudget, limits: Mapping[Tier, TierLimits]) -> bool:
    """Whether an unsure answer is worth a word: a refusal at every call would say nothing new."""
    return _is_pressed(budget) and budget.allowed < budget.cap and Trigger.LOW_CONFIDENCE in limits[budget.tier].rules


def _standing(budget: ThinkingBudget) -> BudgetAction:
    return BudgetAction.EXHAUST if budget.is_exhausted else BudgetAction.CONTINUE


def _steps(given: Any, asked: str) -> int:
    if isinstance(given, list):
        return len(given)
    if isinstance(given, int) and not isinstance(given, bool) and given >= 0:
        return given
    asked = asked[:LONGEST]
    lines = len(STEP.findall(asked))
    return lines if lines > 1 else 1 + len(AND_THEN.findall(asked))


def _prompt(task: Any) -> str:
    if isinstance(task, Mapping):
        task = next((task[name] for name in ("prompt", "question", "input") if isinstance(task.get(name), str)), task)
    return task if isinstance(task, str) else "" if task is None else json.dumps(task, default=str)


def _text(message: Mapping[str, Any]) -> str:
    content = message.get("content")
    if isinstance(content, list):
        return "".join(str(part.get("text") or "") for part in content if isinstance(part, Mapping))
    return str(content or "")


def _about(tool: Any) -> str:
    """A tool's name and what is told of it, names taken apart: fetch_url is a fetch of a url."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {"name": str(tool)}
    told = (str(function.get(name) or "") for name in ("name", "description")) if isinstance(function, Mapping) else ()
    return " ".join(told).replace("_", " ")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _checked(told: Any) -> dict[str, Any]:
    """What a task says of itself, each of the type it should be."""
    if not isinstance(told, Mapping):
        raise BadInput("the task's traits", why="are not an object", remedy=f"use {', '.join(KINDS)}")
    for name, value in told.items():
        if name not in KINDS:
            raise BadInput(f"the task's traits.{name}", why="is unknown", remedy=f"use {', '.join(KINDS)}")
        if type(value) is not KINDS[name]:
            what = "a whole number" if KINDS[name] is int else "true or false"
            raise BadInput(f"the task's traits.{name} = {value!r:.60}", why=f"is not {what}")
    return dict(told)


KINDS: Mapping[str, type] = {
    "tool_count": int,
    "context_size": int,
    "step_count": int,
    "multi_turn": bool,
    "external_calls": bool,
}
