"""One rollout as it can be read: what was asked, then turn by turn what the model thought, said and called, and what it
was paid; and the rollouts of one group side by side.

Everything is as it was stored: nothing is scored again, and no text is taken for anything but text.
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
from holdfast.operate.look.briefs import Brief, attempt_brief, cut, rollout_brief
from holdfast.policies.tokens import SPELLING, VOCABULARY
from holdfast.store.store import Store

TEXT = 100_000  # letters of one text that are shown
TOKENS = 4_000  # of one turn
TURNS = 200
SPANS = 500  # on the timeline
SIDE_BY_SIDE = 32


def rollout(store: Store, rollout_id: str, *, now: float, attempt: int | None = None) -> Brief:
    """The whole story of one rollout, by the attempt that decided it, or by the one asked for.

    {"rollout": rollout (see `briefs`) + {"input", "metadata", "priority", "timeout_s", "resources", "faults",
                "final_attempt"},
     "attempts": [attempt + {"is_final", "is_shown"}], "shown": number|None, "output",
     "opening": [message], before the model's first word: {"role", "text", "name", "tool_calls"},
     "turns": [{"index", "seq", "model", "started_at", "took_s", "finish_reason", "is_partial",
                "heard": [message] (new since the turn before, tool results aside),
                "thinking", "text", "tool_calls": [{"id", "name", "arguments"}] (as asked for),
                "calls": [{"seq", "id", "tool", "arguments", "result", "error", "started_at", "took_s"}] (as made),
                "prompt_tokens", "completion_tokens", "thinking_tokens",
                "tokens": [{"id", "text"|None, "logprob"|None, "is_forced", "is_scrubbed"}]|None, "tokens_left_out",
                "signals": [signal]}],
     "loose": [call] made before any turn, "sheet": {"signals": [signal], "total"}|None,
     "budget": {"tier", "confidence", "reasons", "ceiling", "cap", "allowed", "spent", "overspent", "calls",
                "escalations", "mode", "waste", "events": [{"seq", "kind", "at", "tokens", "allowed", "spent", "mode",
                "trigger", "why"}]}|None,
     "failures": [{"seq", "name", "error", "traceback"}] (exceptions in the agent and its scorer),
     "timeline": [{"seq", "kind", "name", "depth", "started_at", "ended_at", "text"}], "left_out": turns and spans}

    signal: {"name", "value", "weight", "paid", "source", "turn", "feedback"}. Texts are cut at 100,000 letters.
    """
    found = store.views.rollout(rollout_id)
    tries = store.views.attempts(found.id)
    shown = _shown(found, tries, attempt)
    spans = [] if shown is None else sorted(store.traces.spans(shown.token), key=lambda one: one.seq)
    sheet = None if shown is None else store.traces.sheet(shown.token)
    turns, opening, loose = _turns(spans, sheet)
    left_out = max(0, len(turns) - TURNS) + max(0, len(spans) - SPANS)
    names = ("input", "priority", "timeout_s", "resources", "faults", "final_attempt")
    return {
        "rollout": {
            **rollout_brief(found, store.views.key(found.run, found.name)),
            **{name: getattr(found, name) for name in names},
            "metadata": dict(found.metadata),
        },
        "attempts": [
            {**attempt_brief(one, now), "is_final": one.id == found.final_attempt, "is_shown": one == shown}
            for one in tries[-100:]
        ],
        "shown": None if shown is None else shown.number,
        "output": None if shown is None else store.views.output(shown),
        "opening": opening,
        "turns": turns[:TURNS],
        "loose": loose,
        "sheet": None if sheet is None else {"signals": [_signal(one) for one in sheet.signals], "total": sheet.total},
        "budget": None if shown is None else _budget(store, shown),
        "failures": [one for span in spans if (one := _failure(span)) is not None][:TURNS],
        "timeline": _timeline(spans[:SPANS]),
        "left_out": left_out,
    }


def group(store: Store, run_id: str, name: str, *, now: float, near: int | None = None) -> Brief:
    """The rollouts of a group side by side, the best first: what they answered, and what they were paid for.

    {"run": id, "group", "asked", "mean", "spread", "rollouts": [rollout (see `briefs`) + {"answer", "thinking",
     "turns", "calls", "completion_tokens", "signals": [signal], "advantage"|None}]}

    `near` is the key of one of them: the group is looked for around it, else among the newest rollouts. `advantage` is
    (reward − mean) / spread, None where all are alike.
    """
    run = store.runs.get(run_id).id
    page = store.figures.group(run, name, near=near, most=SIDE_BY_SIDE).rollouts
    if not page:
        try:
            page = ((0, store.views.rollout(f"{run}/{name}")),)  # one that names no group is one by itself
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
    shown = _shown(one, store.views.attempts(one.id), None)
    spans = [] if shown is None else sorted(store.traces.spans(shown.token), key=lambda span: span.seq)
    sheet = None if shown is None else store.traces.sheet(shown.token)
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
        "signals": [] if sheet is None else [_signal(each) for each in sheet.signals],
        "advantage": advantage,
    }


def _shown(found: Rollout, tries: Sequence[Attempt], number: int | None) -> Attempt | None:
    """The one asked for, else the one that decided, else the last."""
    if number is not None:
        for one in tries:
            if one.number == number:
                return one
        raise NotFound(f"attempt {number} at {found.id}", why=f"it has {len(tries)}", remedy="leave the number out")
    decided = [one for one in tries if one.id == found.final_attempt]
    return next(iter(decided or tries[-1:]), None)


def _turns(spans: Sequence[Span], sheet: RewardBreakdown | None) -> tuple[list[Brief], list[Brief], list[Brief]]:
    """Turns, what was said before the first, and calls that belong to none."""
    turns: list[Brief] = []
    opening: list[Brief] = []
    loose: list[Brief] = []
    seen = 0
    whole = 0  # signals count whole turns: a call that was cut short decided nothing
    for span in spans:
        if span.model is not None:
            messages = [_message(one) for one in span.model.messages]
            if not turns:
                opening = messages
            heard = [] if not turns else [one for one in messages[seen:] if one["role"] not in ("assistant", "tool")]
            seen = len(messages)
            is_partial = PARTIAL in span.attributes
            own = [one for one in sheet.signals if one.turn == whole] if sheet is not None and not is_partial else []
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
        "seq": span.seq,
        "model": call.model,
        "started_at": span.started_at,
        "took_s": None if span.ended_at is None else span.ended_at - span.started_at,
        "finish_reason": call.finish_reason,
        "is_partial": is_partial,
        "heard": heard,
        "thinking": _text(call.response.get("reasoning_content")),
        "text": said["text"],
        "tool_calls": said["tool_calls"],
        "calls": [],
        "prompt_tokens": call.prompt_tokens,
        "completion_tokens": call.completion_tokens,
        "thinking_tokens": call.thinking_tokens,
        "tokens": tokens,
        "tokens_left_out": 0 if tokens is None else len(call.completion_ids or ()) - len(tokens),
        "signals": [_signal(one) for one in own],
    }


def _message(message: Mapping[str, Any]) -> Brief:
    calls = []
    for call in message.get("tool_calls") or ():
        function = call.get("function") or {} if isinstance(call, Mapping) else {}
        given = function.get("arguments")
        calls.append(
            {
                "id": call.get("id") if isinstance(call, Mapping) else None,
                "name": str(function.get("name") or ""),
                "arguments": _text(given if isinstance(given, str) else given and str(given)),
            }
        )
    return {
        "role": str(message.get("role") or ""),
        "text": _text(message.get("content")),
        "name": message.get("name") if isinstance(message.get("name"), str) else None,
        "tool_calls": calls,
    }


def _text(content: Any) -> str:
    """Of a plain text, or of the parts of one."""
    if isinstance(content, list | tuple):
        parts = [one.get("text") if isinstance(one, Mapping) else one for one in content]
        content = "\n".join(str(part) if part is not None else "[not text]" for part in parts)
    return cut("" if content is None else str(content), TEXT)


def _call(span: Span) -> Brief:
    assert span.tool is not None
    tool = span.tool
    return {
        "seq": span.seq,
        "id": tool.call_id,
        "tool": tool.tool,
        "arguments": dict(tool.arguments),
        "result": cut(tool.result, TEXT) if isinstance(tool.result, str) else tool.result,
        "error": tool.error,
        "started_at": span.started_at,
        "took_s": None if span.ended_at is None else span.ended_at - span.started_at,
    }


def _tokens(call: ModelCall, said: Brief) -> list[Brief] | None:
    """Each with its log-prob; its text only where the ids are bytes and marks, and spell what was said."""
    if call.completion_ids is None:
        return None
    ids, before = call.completion_ids, len(call.prompt_ids or ())
    texts = _spelled(ids) if said["text"] and said["text"] in "".join(_spelled(ids) or ()) else None
    if texts is None and not said["text"]:
        texts = _spelled(ids)
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
    """A text for each: a letter of several bytes stands with its first."""
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


def _signal(signal: RewardTerm) -> Brief:
    told = {name: getattr(signal, name) for name in ("name", "value", "weight", "source", "turn", "feedback")}
    return {**told, "paid": signal.value * signal.weight}


def _budget(store: Store, attempt: Attempt) -> Brief | None:
    use = store.budgets.get(attempt.token)
    if use is None:
        return None
    budget = use.budget
    events = store.budgets.events(use)[-200:]
    names = ("ceiling", "cap", "allowed", "spent", "overspent", "calls", "escalations")
    kept = ("seq", "kind", "at", "tokens", "allowed", "spent", "mode", "trigger", "why")
    return {
        "tier": str(budget.tier),
        "confidence": budget.assessment.confidence,
        "reasons": list(budget.assessment.reasons),
        **{name: getattr(budget, name) for name in names},
        "mode": None if budget.mode is None else str(budget.mode),
        "waste": use.waste,
        "events": [{name: told[name] for name in kept} for told in (encode(one) for one in events)],
    }


def _failure(span: Span) -> Brief | None:
    """An exception with its traceback; None where the span has none."""
    error, text = span.attributes.get("error"), span.attributes.get("traceback")
    if span.kind is not SpanKind.TELEMETRY or not isinstance(text, str):
        return None
    return {
        "seq": span.seq,
        "name": span.name,
        "error": cut(error, TEXT) if isinstance(error, str) else None,
        "traceback": cut(text, TEXT),
    }


def _timeline(spans: Sequence[Span]) -> list[Brief]:
    depths: dict[int, int] = {}
    told = []
    for span in spans:
        depths[span.seq] = depths.get(span.parent, -1) + 1 if span.parent is not None else 0
        shown = {name: getattr(span, name) for name in ("seq", "name", "started_at", "ended_at")}
        text = span.attributes.get("text")
        shown["text"] = cut(text, 400) if isinstance(text, str) else None
        told.append({**shown, "kind": str(span.kind), "depth": depths[span.seq]})
    return told
