"""Thinking budgets: how many tokens an attempt may think, when it gets more, and how a model is held to the number.

The arithmetic is on records: the same task gives the same budget. An endpoint is held to a number by a parameter; by
stopping its answer, closing the thought and continuing (budget forcing; Muennighoff et al. 2025, s1); or by a sentence
in the prompt. Tokens that we insert are `forced` and never learnt from.
"""

from __future__ import annotations

import json
import re
import threading
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum
from math import exp
from typing import Any

from holdfast.contracts.budget import (
    LARGEST_CAP,
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
from holdfast.contracts.spending import LENGTHS
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
    """Tokens that a trigger adds, and seconds until it may add more."""

    tokens: int
    cooldown_s: float


@dataclass(frozen=True, slots=True)
class TierLimits:
    """A tier's first allowance, its limit, and what may enlarge it."""

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
        LARGEST_CAP,
        {
            Trigger.LOW_CONFIDENCE: TriggerRule(2000, 10.0),
            Trigger.PARTIAL_SUCCESS: TriggerRule(4000, 10.0),
            Trigger.VERIFIER_REJECTION: TriggerRule(4000, 30.0),
        },
    ),
}


class BudgetAction(StrEnum):
    """What the caller should do next."""

    CONTINUE = "continue"
    ESCALATE = "escalate"  # the budget was enlarged
    EXHAUST = "exhaust"  # nothing is left: answer without thinking


def assess(traits: Traits) -> Assessment:
    """The highest tier of which any rule holds. Several turns alone do not raise it."""
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


def same_for_all(traits: Traits, attempt: str) -> Assessment:
    """The allocation without looking at the task."""
    return Assessment(tier=Tier.STANDARD, confidence=1.0, reasons=("the same for every task",), traits=traits)


def _met(traits: Traits, tools: int, context: int, steps: int) -> list[str]:
    least = (("tool_count", tools), ("context_size", context), ("step_count", steps))
    return [f"{name} {getattr(traits, name)} ≥ {at}" for name, at in least if getattr(traits, name) >= at]


def traits_of(task: Any, messages: Sequence[Mapping[str, Any]] = (), tools: Sequence[Any] = ()) -> Traits:
    """From the task and the first request; what the task itself says under `traits` has priority.

    Steps are numbered or bulleted lines, or else the words that lead from one step to the next. A tool makes
    external calls if its name or description mentions the network.
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


def allocate(attempt: str, assessment: Assessment, *, now: float, scale: float = 1.0) -> BudgetChange:
    """A fresh budget with its tier's ceiling. `scale` is for models whose thoughts are shorter than the table's."""
    own = LIMITS[assessment.tier]
    ceiling, cap = (max(1, round(tokens * scale)) for tokens in (own.ceiling, own.cap))
    budget = ThinkingBudget(
        attempt=attempt,
        assessment=assessment,
        ceiling=ceiling,
        cap=cap,
        allowed=ceiling,
        created_at=now,
        changed_at=now,
    )
    why = f"{assessment.tier}: {', '.join(assessment.reasons)}"
    born = _event(budget, 1, BudgetEventKind.ALLOCATE, now, tokens=ceiling, why=why)
    return BudgetChange(budget=budget, events=(born,))


def spend(
    budget: ThinkingBudget, tokens: int, *, now: float, mode: Mode | None = None, confidence: float | None = None
) -> BudgetChange:
    """Count the thinking tokens of one call; those beyond the allowance are counted as overspent."""
    if tokens < 0:
        raise BadInput(f"budget of {budget.attempt}: {tokens} tokens", why="is negative")
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
    budget: ThinkingBudget, trigger: Trigger, *, now: float, confidence: float | None = None
) -> tuple[BudgetAction, BudgetChange]:
    """More tokens if the tier has a rule for this trigger, little is left, the cooldown is over and the cap is not
    reached. A refusal is an event, too, and says why."""
    rule, last = LIMITS[budget.tier].rules.get(trigger), budget.escalated_at.get(trigger)
    if rule is None:
        why = f"{trigger} is nothing that makes a {budget.tier} budget larger"
    elif budget.allowed >= budget.cap:
        why = f"it is at its cap of {budget.cap}"
    elif not _is_pressed(budget):
        why = f"{budget.left} of {budget.allowed} tokens are left"
    elif last is not None and 0 <= now - last < rule.cooldown_s:  # a clock that was set back cools nothing
        why = f"the last one was {now - last:.3g} s ago, and {rule.cooldown_s:g} s lie between two"
    else:
        scaled = max(1, round(rule.tokens * budget.cap / LIMITS[budget.tier].cap))
        more = min(scaled, budget.cap - budget.allowed)
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
    is_cut: bool = False,
) -> tuple[BudgetAction, BudgetChange]:
    """Count what one call used; a trigger, or a low confidence when little is left, may enlarge the budget.

    An answer after a thought that was cut is no confident one, whatever its tokens say."""
    used = spend(budget, tokens, now=now, mode=mode, confidence=confidence)
    is_unsure = is_cut or (confidence is not None and confidence < UNSURE)
    if trigger is None and is_unsure and _may_grow(used.budget):
        trigger = Trigger.LOW_CONFIDENCE
    if trigger is None:
        return _standing(used.budget), used
    action, grown = escalate(used.budget, trigger, now=now, confidence=confidence)
    return action, BudgetChange(budget=grown.budget, events=used.events + grown.events)


def thinking_tokens(call: ModelCall) -> int:
    """Tokens inside thoughts: as counted by the endpoint, or else estimated from the length of the texts."""
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
    """A number of thinking tokens that an agent gave; BadInput where it is none."""
    if not isinstance(limit, int) or isinstance(limit, bool) or limit < 0:
        raise BadInput(f"thinking = {limit!r:.60}", why="is not a whole number of tokens", remedy="give 0 or more")
    return limit


def confidence_of(call: ModelCall) -> float | None:
    """The geometric mean of the sampled tokens' probabilities; None without log-probs."""
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


def _may_grow(budget: ThinkingBudget) -> bool:
    """Whether a low confidence can enlarge it: a refusal event at every call would say nothing new."""
    return _is_pressed(budget) and budget.allowed < budget.cap and Trigger.LOW_CONFIDENCE in LIMITS[budget.tier].rules


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
    """A tool's name and description, with names split into words: fetch_url is a fetch of a url."""
    function = tool.get("function", tool) if isinstance(tool, Mapping) else {"name": str(tool)}
    told = (str(function.get(name) or "") for name in ("name", "description")) if isinstance(function, Mapping) else ()
    return " ".join(told).replace("_", " ")


def _list(value: Any) -> list[Any]:
    return list(value) if isinstance(value, list | tuple) else []


def _checked(told: Any) -> dict[str, Any]:
    """The task's own traits, each checked for its type."""
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


class BudgetTracker:
    """The budget of one running attempt, thread-safe. The first call decides the tier.

    Tokens granted to a call under way are not granted to others. Changes are handed to `record` as they happen.
    Where it is not adaptive, every task gets the standard tier.
    """

    def __init__(
        self,
        attempt: str,
        task: Any,
        record: Callable[[BudgetChange], None],
        clock: Callable[[], float],
        *,
        scale: float = 1.0,
        allocation: Callable[[Traits, str], Assessment] | None = None,  # None: the table
    ) -> None:
        self._attempt, self._task, self._record, self._clock = attempt, task, record, clock
        self._scale, self._allocation = scale, allocation
        self._lock = threading.Lock()
        self._granted = 0  # to calls under way
        self.budget: ThinkingBudget | None = None  # None: nothing was asked yet

    def grant(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], wanted: int | None = None) -> int:
        """How many tokens this call may think: all that are free, or at most `wanted`. The caller must settle it.

        Refused where an endpoint that can only be asked has thought beyond its budget and nothing is left."""
        wanted = None if wanted is None else checked_limit(wanted)
        with self._lock:
            budget = self.budget or self._allocate(messages, tools)
            if budget.mode is Mode.HINT and budget.overspent and not budget.left:
                why = f"{budget.spent} of {budget.allowed} tokens are spent, and the endpoint does not keep to a limit"
                raise BadInput("thinking budget", why=why, remedy='end the attempt, or set "thinking_mode"')
            free = max(0, budget.left - self._granted)
            granted = free if wanted is None else min(wanted, free)
            self._granted += granted
            return granted

    def settle(self, granted: int, call: ModelCall | None, repeated: int = 0) -> dict[str, Any]:
        """What the call used, for its span; nothing is counted for a call that failed.

        `repeated` tokens are those of an earlier call that this one began with again: they are counted already."""
        with self._lock:
            self._granted -= granted
            if call is None or self.budget is None:
                return {}
            mode, used = mode_of(call), thinking_tokens(call)
            is_cut, new = bool(call.forced) and 0 < granted + repeated <= used, max(0, used - repeated)
            how: dict[str, Any] = {"mode": mode, "confidence": confidence_of(call), "is_cut": is_cut}
            action, change = monitor(self.budget, new, now=self._clock(), **how)
            self._keep(change)
        budget = change.budget
        payload = {
            "granted": granted,
            "used": used,
            "mode": None if mode is None else mode.value,
            "action": action.value,
        }
        payload |= {"cut": True} if is_cut else {}
        return {**payload, "tier": budget.tier.value, "left": budget.left, "overspent": max(0, new - granted)}

    def escalate(self, trigger: Trigger | str, confidence: float | None = None) -> BudgetAction:
        """More tokens because a check failed or only a part is right; a refusal is recorded with its reason."""
        try:
            known = Trigger(trigger)
        except ValueError:
            words = ", ".join(Trigger)
            raise BadInput(f"trigger {trigger!r:.60}", why="is unknown", remedy=f"use {words}") from None
        with self._lock:
            budget = self.budget or self._allocate((), ())
            action, change = escalate(budget, known, now=self._clock(), confidence=confidence)
            self._keep(change)
            return action

    def _allocate(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> ThinkingBudget:
        traits = traits_of(self._task, messages, tools)
        assessment = assess(traits) if self._allocation is None else self._allocation(traits, self._attempt)
        return self._keep(allocate(self._attempt, assessment, now=self._clock(), scale=self._scale))

    def _keep(self, change: BudgetChange) -> ThinkingBudget:
        self._record(change)  # first: if this fails, the budget has not changed
        self.budget = change.budget
        return change.budget


def mode_of(call: ModelCall) -> Mode | None:
    """How the call was held to its limit; None if it was not."""
    mode = call.sampling.get("thinking_mode")
    return Mode(mode) if isinstance(mode, str) and mode in set(Mode) else None


Messages = Sequence[Mapping[str, Any]]
Ask = Callable[[Messages, Mapping[str, Any]], Awaitable[ModelCall]]  # one request to the endpoint, as it is
OPEN, CLOSE = "<think>\n", "\n</think>\n\n"
OPENAI_OWNERS = ("openai", "openai-internal", "system")  # whose newer models refuse the older name
ANSWER_ROOM = 1024  # tokens of an answer beside the thinking


@dataclass(frozen=True, slots=True)
class ThinkingControl:
    """How one endpoint is held to a number of thinking tokens."""

    mode: Mode
    field: str = "thinking"  # the parameter's name, where there is one
    length: str = LENGTHS[0]  # what it calls the length of an answer


def way_for(owner: str | None, wanted: Mode | None = None) -> ThinkingControl:
    """The way for a server, by the owner that its list of models names; unknown servers are only asked.

    vLLM's parameter needs a server that was started for it and is ignored by others, so it is used only where it is
    wanted; else answers are stopped and continued, which every such server can do.
    """
    ours = owner == "holdfast"
    if wanted is None:
        wanted = Mode.PARAMETER if ours else Mode.FORCING if owner in ("vllm", "sglang") else Mode.HINT
    length = LENGTHS[1] if owner in OPENAI_OWNERS else LENGTHS[0]
    return ThinkingControl(wanted, "thinking" if ours else "thinking_token_budget", length)


async def limited(
    ask: Ask, messages: Messages, sampling: Mapping[str, Any], limit: int, way: ThinkingControl
) -> ModelCall:
    """The answer, held to `limit` thinking tokens as far as the way allows."""
    limit = checked_limit(limit)
    if way.mode is Mode.PARAMETER:
        call = await ask(messages, {**sampling, way.field: limit})
    elif way.mode is Mode.FORCING:
        call = await _forced(ask, messages, sampling, limit)
    else:
        call = await ask(hinted(messages, limit), capped(sampling, limit, way.length))
    return replace(call, sampling={**sampling, "thinking": limit, "thinking_mode": way.mode.value})


def capped(sampling: Mapping[str, Any], limit: int, default: str = LENGTHS[0]) -> dict[str, Any]:
    """The sampling with a hard ceiling: an endpoint that can only be asked to think less gets no more than its limit
    and the room for an answer."""
    name = next((name for name in (*LENGTHS, default) if sampling.get(name) is not None), default)
    given, most = sampling.get(name), limit + ANSWER_ROOM
    return {**sampling, name: min(given, most) if isinstance(given, int) and not isinstance(given, bool) else most}


def wish(limit: int) -> str:
    """The sentence for a model that can only be asked."""
    return f"Think for at most {limit} tokens, then answer." if limit else "Answer at once, without thinking."


def hinted(messages: Messages, limit: int) -> list[Mapping[str, Any]]:
    """The conversation with that sentence in its system message."""
    word = wish(limit)
    first = messages[0] if messages else {}
    if first.get("role") not in ("system", "developer"):
        return [{"role": "system", "content": word}, *messages]
    content = first.get("content") or ""
    if isinstance(content, list):
        return [{**first, "content": [*content, {"type": "text", "text": f"\n{word}"}]}, *messages[1:]]
    return [{**first, "content": f"{content}\n{word}".lstrip()}, *messages[1:]]


async def _forced(ask: Ask, messages: Messages, sampling: Mapping[str, Any], limit: int) -> ModelCall:
    """Stop at the limit; close the thought if it is still open; continue with the answer."""
    whole = next((sampling[name] for name in LENGTHS if sampling.get(name) is not None), None)
    if limit == 0:
        return await ask(_begun(messages, OPEN.rstrip() + CLOSE), {**sampling, **CONTINUED})
    if whole is not None and whole <= limit:
        return await ask(messages, sampling)
    first = await ask(messages, _of_length(sampling, limit))
    if first.finish_reason != "length":
        return first
    thought, message, is_open = _parts(first.response)
    if first.response.get("tool_calls"):  # half a call cannot be continued: it is sampled again after the same thought
        message, is_open = "", False
    begun = f"{OPEN}{thought}{CLOSE}{message}" if thought else message
    if not begun:
        return await ask(messages, sampling)  # nothing that could be continued
    left = None if whole is None else max(1, whole - (first.completion_tokens or limit))
    second = await ask(_begun(messages, begun), {**_of_length(sampling, left), **CONTINUED})
    return _joined(messages, first, second, thought, message, is_open)


CONTINUED: Mapping[str, Any] = {"continue_final_message": True, "add_generation_prompt": False}


def _begun(messages: Messages, text: str) -> list[Mapping[str, Any]]:
    return [*messages, {"role": "assistant", "content": text}]


def _of_length(sampling: Mapping[str, Any], length: int | None) -> dict[str, Any]:
    name = next((name for name in LENGTHS if name in sampling), LENGTHS[0])
    rest = {key: value for key, value in sampling.items() if key not in LENGTHS}
    return rest if length is None else {**rest, name: length}


def _parts(message: Mapping[str, Any]) -> tuple[str, str, bool]:
    """The thought, the text after it, and whether the answer stopped inside the thought."""
    thought, text = str(message.get("reasoning_content") or message.get("reasoning") or ""), message.get("content")
    text = str(text or "")
    if not thought and text.lstrip().startswith(OPEN.strip()):
        thought, closed, text = text.lstrip().removeprefix(OPEN.strip()).partition(CLOSE.strip())
        return thought.strip("\n"), text.lstrip("\n"), not closed
    return thought.strip("\n"), text, bool(thought) and not text


def _joined(
    messages: Messages, first: ModelCall, second: ModelCall, thought: str, said: str, is_open: bool
) -> ModelCall:
    """One answer of both parts, with the sampled ids and the inserted ones between them.

    Where the second prompt does not begin with the first part's ids, the second call stands alone: its prompt holds the
    thought.
    """
    more, after, _ = _parts(second.response)
    if more and not after and not second.response.get("tool_calls"):
        more, after = "", more  # a parser that takes everything unclosed for a thought
    message = {**second.response, "content": said + after}
    message.pop("reasoning", None)
    message.pop("reasoning_content", None)
    if thought or more:
        message["reasoning_content"] = thought + more
    used = (first.completion_tokens or 0) if is_open else thinking_tokens(first)
    counts = (first.completion_tokens, second.completion_tokens)
    call = replace(
        second,
        messages=tuple(dict(message) for message in messages),
        response=message,
        prompt_tokens=first.prompt_tokens,
        completion_tokens=None if None in counts else sum(filter(None, counts)),
        thinking_tokens=used + thinking_tokens(second) if more else used,
    )
    read, wrote, again = first.prompt_ids, first.completion_ids, second.prompt_ids
    if read is None or wrote is None or again is None or second.completion_ids is None:
        return call
    start = len(read) + len(wrote)
    if first.response.get("tool_calls") or again[:start] != (*read, *wrote):
        return replace(call, messages=second.messages)
    put = again[start:]
    known = first.logprobs is not None and second.logprobs is not None
    return replace(
        call,
        prompt_ids=read,
        completion_ids=(*wrote, *put, *second.completion_ids),
        completion_tokens=len(wrote) + len(put) + len(second.completion_ids),
        logprobs=(*(first.logprobs or ()), *[0.0] * len(put), *(second.logprobs or ())) if known else None,
        forced=(
            *first.forced,
            *range(len(wrote), len(wrote) + len(put)),
            *(place + len(wrote) + len(put) for place in second.forced),
        ),
    )
