"""One rollout turn by turn, with its rewards and budget; and the rollouts of one group side by side.

Everything is shown as stored: nothing is scored again, and text is never markup.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from statistics import fmean, pstdev
from typing import Any

from holdfast.contracts.errors import NotFound
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import Attempt, Rollout
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind
from holdfast.operate.briefs import Brief, attempt_brief, cut, pick, rollout_brief
from holdfast.policies.tokens import SPELLING, VOCABULARY
from holdfast.store.store import Store

TEXT = 100_000  # letters of one text that are shown
TOKENS = 4_000  # of one turn
TURNS = 200
SPANS = 500  # on the timeline
SIDE_BY_SIDE = 32


def rollout(store: Store, rollout_id: str, *, now: float, attempt: int | None = None) -> Brief:
    """One rollout, by its deciding attempt or the requested one.

    {"rollout": rollout (see `briefs`) + {"input", "metadata", "priority", "timeout_s", "resources", "faults",
                "final_attempt"},
     "attempts": [attempt + {"is_final", "is_shown"}], "shown": number|None, "output",
     "opening": [message], before the model's first turn: {"role", "text", "name", "tool_calls"},
     "turns": [{"index", "seq", "model", "started_at", "took_s", "finish_reason", "is_partial",
                "heard": [message] (new since the turn before, tool results aside),
                "thinking", "text", "tool_calls": [{"id", "name", "arguments"}] (as asked for),
                "calls": [{"seq", "id", "tool", "arguments", "result", "error", "started_at", "took_s"}] (as made),
                "prompt_tokens", "completion_tokens", "thinking_tokens",
                "tokens": [{"id", "text"|None, "logprob"|None, "is_forced", "is_scrubbed"}]|None, "tokens_left_out",
                "signals": [signal]}],
     "loose": [call] made before any turn, "sheet": {"signals": [signal], "total"}|None,
     "scorings": {name: sheet} that were made later, oldest first,
     "budget": {"tier", "confidence", "reasons", "ceiling", "cap", "allowed", "spent", "overspent", "calls",
                "escalations", "mode", "waste", "events": [{"seq", "kind", "at", "tokens", "allowed", "spent", "mode",
                "trigger", "why"}]}|None,
     "failures": [{"seq", "name", "error", "traceback"}] (exceptions in the agent and its scorer),
     "timeline": [{"seq", "kind", "name", "depth", "started_at", "ended_at", "text"}], "left_out": turns and spans}

    signal: {"name", "value", "weight", "paid", "source", "turn", "feedback"}. Texts are cut at 100,000 letters.
    """
    found = store.views.rollout(rollout_id)
    tries = store.views.attempts(found.id)
    shown = shown_attempt(found, tries, attempt)
    spans = [] if shown is None else sorted(store.traces.spans(shown.token), key=lambda span: span.seq)
    breakdown = None if shown is None else store.traces.breakdown(shown.token)
    turns, opening, loose = _turns(spans, breakdown)
    return {
        "rollout": {
            **rollout_brief(found, store.views.key(found.run, found.name)),
            **pick(found, "input priority timeout_s resources faults final_attempt"),
            "metadata": dict(found.metadata),
        },
        "attempts": [
            {**attempt_brief(attempt, now), "is_final": attempt.id == found.final_attempt, "is_shown": attempt == shown}
            for attempt in tries[-100:]
        ],
        "shown": None if shown is None else shown.number,
        "output": None if shown is None else store.views.output(shown),
        "opening": opening,
        "turns": turns[:TURNS],
        "loose": loose,
        "sheet": None if breakdown is None else _sheet(breakdown),
        "scorings": {
            name: _sheet(RewardBreakdown(signals=signals))
            for name, signals in store.scorings.of_rollout(found.id).items()
        },
        "budget": None if shown is None else _budget(store, shown),
        "failures": [one for span in spans if (one := _failure(span)) is not None][:TURNS],
        "timeline": _timeline(spans[:SPANS]),
        "left_out": max(0, len(turns) - TURNS) + max(0, len(spans) - SPANS),
    }


def group(store: Store, run_id: str, name: str, *, now: float, near: int | None = None) -> Brief:
    """The rollouts of a group side by side, best first: answers and rewards.

    {"run": id, "group", "asked", "mean", "spread", "rollouts": [rollout (see `briefs`) + {"answer", "thinking",
     "turns", "calls", "completion_tokens", "signals": [signal], "advantage"|None}]}

    `near` is the key of one of them: the search starts around it, else at the newest rollouts. `advantage` is
    (reward − mean) / spread, None where all rewards are equal.
    """
    run = store.runs.get(run_id).id
    page = store.figures.group(run, name, near=near, most=SIDE_BY_SIDE).rollouts
    if not page:
        try:
            page = ((0, store.views.rollout(f"{run}/{name}")),)  # a rollout without a group is a group of one
        except NotFound:
            why = "none of it is where it was looked for"
            remedy = "go there from one of its rollouts, which tells where it lies"
            raise NotFound(f"group {name!r} of {run}", why=why, remedy=remedy) from None
    paid = [one.reward for _, one in page if one.reward is not None]
    middle = fmean(paid) if paid else None
    spread = pstdev(paid) if len(paid) > 1 else 0.0
    told = [_side(store, key, one, middle, spread) for key, one in page]
    told.sort(key=lambda one: (one["reward"] is None, -(one["reward"] or 0.0), one["name"]))
    return {
        "run": run,
        "group": name,
        "asked": told[0]["asked"],
        "mean": middle,
        "spread": spread if paid else None,
        "rollouts": told,
    }


def _side(store: Store, key: int, one: Rollout, middle: float | None, spread: float) -> Brief:
    shown = shown_attempt(one, store.views.attempts(one.id))
    spans = [] if shown is None else sorted(store.traces.spans(shown.token), key=lambda span: span.seq)
    breakdown = None if shown is None else store.traces.breakdown(shown.token)
    calls = [span.model for span in spans if span.model is not None]
    last = calls[-1].response if calls else {}
    advantage = None if one.reward is None or middle is None or not spread else (one.reward - middle) / spread
    return {
        **rollout_brief(one, key or None),
        "answer": _text(last.get("content")),
        "thinking": _text(last.get("reasoning_content")),
        "turns": len(calls),
        "calls": [cut(span.tool.tool, 100) for span in spans if span.tool is not None][:SPANS],
        "completion_tokens": sum(call.completion_tokens or 0 for call in calls),
        "signals": [] if breakdown is None else [_signal(signal) for signal in breakdown.signals],
        "advantage": advantage,
    }


def shown_attempt(found: Rollout, tries: Sequence[Attempt], number: int | None = None) -> Attempt | None:
    """The requested attempt, else the deciding one, else the last."""
    if number is None:
        return next((attempt for attempt in tries if attempt.id == found.final_attempt), tries[-1] if tries else None)
    for attempt in tries:
        if attempt.number == number:
            return attempt
    raise NotFound(f"attempt {number} of {found.id}", why=f"it has {len(tries)}", remedy="leave --attempt out")


def _turns(spans: Sequence[Span], breakdown: RewardBreakdown | None) -> tuple[list[Brief], list[Brief], list[Brief]]:
    """Turns, the messages before the first, and calls that belong to none."""
    turns, opening, loose = list[Brief](), list[Brief](), list[Brief]()
    seen, whole = 0, 0  # signals count whole turns: a call that was cut short decided nothing
    for span in spans:
        if span.model is not None:
            messages = [_message(message) for message in span.model.messages]
            if not turns:
                opening = messages
            heard = (
                []
                if not turns
                else [message for message in messages[seen:] if message["role"] not in ("assistant", "tool")]
            )
            seen = len(messages)
            is_partial = PARTIAL in span.attributes
            own = (
                [signal for signal in breakdown.signals if signal.turn == whole]
                if breakdown is not None and not is_partial
                else []
            )
            turns.append(_turn(len(turns), span, span.model, heard, own, is_partial))
            whole += not is_partial
        elif span.tool is not None:
            (turns[-1]["calls"] if turns else loose).append(_call(span))
    return turns, opening, loose


def _turn(
    index: int, span: Span, call: ModelCall, heard: list[Brief], own: Sequence[RewardTerm], is_partial: bool
) -> Brief:
    said = _message(call.response)
    tokens = _tokens(call, said)
    return {
        "index": index,
        **pick(span, "seq started_at"),
        "took_s": _took_s(span),
        **pick(call, "model finish_reason prompt_tokens completion_tokens thinking_tokens"),
        "is_partial": is_partial,
        "heard": heard,
        "thinking": _text(call.response.get("reasoning_content")),
        "text": said["text"],
        "tool_calls": said["tool_calls"],
        "calls": [],
        "tokens": tokens,
        "tokens_left_out": 0 if tokens is None else len(call.completion_ids or ()) - len(tokens),
        "signals": [_signal(term) for term in own],
    }


def _message(message: Mapping[str, Any]) -> Brief:
    calls = []
    for call in message.get("tool_calls") or ():
        known = call if isinstance(call, Mapping) else {}
        function = known.get("function") or {}
        given = function.get("arguments")
        arguments = cut("" if given is None else str(given), TEXT)
        calls.append({"id": known.get("id"), "name": str(function.get("name") or ""), "arguments": arguments})
    return {
        "role": str(message.get("role") or ""),
        "text": _text(message.get("content")),
        "name": message.get("name") if isinstance(message.get("name"), str) else None,
        "tool_calls": calls,
    }


def _text(content: Any) -> str:
    """A text, or the parts of one, joined."""
    if isinstance(content, list | tuple):
        parts = [one.get("text") if isinstance(one, Mapping) else one for one in content]
        content = "\n".join(str(part) if part is not None else "[not text]" for part in parts)
    return cut("" if content is None else str(content), TEXT)


def _call(span: Span) -> Brief:
    assert span.tool is not None
    tool = span.tool
    return {
        **pick(span, "seq started_at"),
        **pick(tool, "tool error"),
        "id": tool.call_id,
        "arguments": dict(tool.arguments),
        "result": cut(tool.result, TEXT) if isinstance(tool.result, str) else tool.result,
        "took_s": _took_s(span),
    }


def _took_s(span: Span) -> float | None:
    return None if span.ended_at is None else span.ended_at - span.started_at


def _tokens(call: ModelCall, said: Brief) -> list[Brief] | None:
    """Tokens with log-probs; with text only where the ids are bytes and spell the message."""
    if call.completion_ids is None:
        return None
    ids, before = call.completion_ids, len(call.prompt_ids or ())
    texts = _spelled(ids)
    if said["text"] not in "".join(texts or ()):
        texts = None
    forced = set(call.forced)
    hidden = {place - before for start, end in call.scrubbed for place in range(start, end)}
    return [
        {
            "id": token,
            "text": None if texts is None else texts[place],
            "logprob": None if call.logprobs is None else call.logprobs[place],
            "is_forced": place in forced,
            "is_scrubbed": place in hidden,
        }
        for place, token in enumerate(ids[:TOKENS])
    ]


def _spelled(ids: Sequence[int]) -> list[str] | None:
    """The text of each id; a letter of several bytes is at its first."""
    if not ids or max(ids) >= VOCABULARY:
        return None
    texts, start = [""] * len(ids), 0
    while start < len(ids):
        if ids[start] in SPELLING:
            texts[start], start = SPELLING[ids[start]], start + 1
            continue
        end = start + 1
        while end < len(ids) and 0x80 <= ids[end] < 0xC0:
            end += 1
        texts[start], start = bytes(ids[start:end]).decode(errors="replace"), end
    return texts


def _sheet(breakdown: RewardBreakdown) -> Brief:
    return {"signals": [_signal(signal) for signal in breakdown.signals], "total": breakdown.total}


def _signal(signal: RewardTerm) -> Brief:
    return {**pick(signal, "name value weight source turn feedback"), "paid": signal.value * signal.weight}


def _budget(store: Store, attempt: Attempt) -> Brief | None:
    use = store.budgets.get(attempt.token)
    if use is None:
        return None
    budget = use.budget
    events = store.budgets.events(use)[-200:]
    kept = ("seq", "kind", "at", "tokens", "allowed", "spent", "mode", "trigger", "why")
    return {
        "tier": str(budget.tier),
        "confidence": budget.assessment.confidence,
        "reasons": list(budget.assessment.reasons),
        **pick(budget, "ceiling cap allowed spent overspent calls escalations"),
        "mode": None if budget.mode is None else str(budget.mode),
        "waste": use.waste,
        "events": [{name: payload[name] for name in kept} for payload in (encode(event) for event in events)],
    }


def _failure(span: Span) -> Brief | None:
    """An exception with its traceback; None where the span has none."""
    error, text = span.attributes.get("error"), span.attributes.get("traceback")
    if span.kind is not SpanKind.TELEMETRY or not isinstance(text, str):
        return None
    texts = {"error": cut(error, TEXT) if isinstance(error, str) else None, "traceback": cut(text, TEXT)}
    return {**pick(span, "seq name"), **texts}


def _timeline(spans: Sequence[Span]) -> list[Brief]:
    depths: dict[int, int] = {}
    told = []
    for span in spans:
        depths[span.seq] = depths.get(span.parent, -1) + 1 if span.parent is not None else 0
        text = span.attributes.get("text")
        shown = {"text": cut(text, 400) if isinstance(text, str) else None, "depth": depths[span.seq]}
        told.append({**pick(span, "seq name started_at ended_at"), "kind": str(span.kind), **shown})
    return told
