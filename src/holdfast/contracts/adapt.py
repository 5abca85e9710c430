"""From what happened to what is learnt from: spans become triplets, messages, turns and trajectories.

Telemetry is never learnt from, and a reward in a trajectory is always a signal that somebody scored on purpose. Which
attempts may be learnt from, and joining the token ids of a step's span to it, is left to `learn`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.episode import Ended, Step, Trajectory, advance, begin, terminate, truncate
from holdfast.contracts.errors import BadRecord
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import Span, SpanKind, ToolCall, Turn

# Attributes are asked in this order; where a span has none of them, its model or tool call answers.
PROMPT = ("prompt", "input")
RESPONSE = ("response", "assistant_text", "output")
REWARD = ("reward", "reward_value")
CONTENT = ("content", "text")
LOGPROB = ("logprob", "action_logprob")
VALUE = ("value_estimate", "value")
OBSERVATION = {  # of a tool span, the input is what was decided and the output what came of it
    SpanKind.MODEL: ("observation", "state", *PROMPT),
    SpanKind.TOOL: ("observation", "state"),
}
ACTION = {
    SpanKind.MODEL: ("action", "tool_call", *RESPONSE, "text"),
    SpanKind.TOOL: ("action", "tool_call"),
}
ROLES = ("system", "user", "assistant")
NOTHING: tuple[Any, ...] = (None, "", [], {})

Cut = tuple[Span, tuple[Span, ...]]  # a decision and what followed it


@dataclass(frozen=True, slots=True, kw_only=True)
class Triplet:
    """What was asked, what was answered, and what it was worth."""

    SCHEMA: ClassVar[int] = 1

    prompt: Any
    response: Any
    reward: float | None = None  # None: nothing was measured

    def __post_init__(self) -> None:
        if self.reward is not None and not isfinite(self.reward):
            raise BadRecord(f"triplet: reward = {self.reward}", why="must be finite")


def triplets(spans: Iterable[Span]) -> tuple[Triplet, ...]:
    """One for each model call, and for each message that carries a prompt and its response; a half is left out.

    The reward is the span's own, else that of the first span after it that has one. A tool's input and output are no
    prompt and response: an agent must not learn to invent results."""
    found: list[Triplet] = []
    reward: float | None = None
    for span in reversed(_in_order(spans)):
        if span.kind is SpanKind.TELEMETRY:
            continue
        own = _number(span, REWARD)
        reward = reward if own is None else own
        call = span.model
        prompt = _first(span, PROMPT, _plain(call.messages) if call else None)
        response = _first(span, RESPONSE, dict(call.response) if call else None)
        if span.kind is not SpanKind.TOOL and prompt not in NOTHING and response not in NOTHING:
            found.append(Triplet(prompt=prompt, response=response, reward=reward))
    return tuple(reversed(found))


def messages(spans: Iterable[Span]) -> tuple[dict[str, Any], ...]:
    """The conversation, from its message spans. A role that is unknown is taken as the assistant's."""
    found = []
    for span in _in_order(spans):
        if span.kind is not SpanKind.MESSAGE:
            continue
        role, content = span.attributes.get("role"), _first(span, CONTENT, "")
        if role == "tool":
            call_id, tool = _first(span, ("tool_call_id",), "tool-call"), _first(span, ("tool_name",), "tool")
            found.append(_tool_message(call_id, tool, content, is_error=span.attributes.get("is_error") is True))
        else:
            found.append({"role": role if role in ROLES else "assistant", "content": content})
    return tuple(found)


def turns(spans: Iterable[Span]) -> tuple[Turn, ...]:
    """Each model call with all that follows it up to the next; what came before the first belongs to no turn."""
    cut = _cut(_in_order(spans), SpanKind.MODEL)
    return tuple(Turn(index=i, decision=decision, effects=effects) for i, (decision, effects) in enumerate(cut))


def trajectory(
    rollout_id: str,
    attempt_id: str,
    spans: Iterable[Span],
    signals: Iterable[RewardTerm],
    *,
    ended: Ended,
    task: str | None = None,
    discount: float = 0.99,
) -> Trajectory:
    """One transition for each turn; where no model was called at all, one for each tool call.

    A tool called within a turn is what the turn's decision led to, not a second decision. Signals of a turn go to its
    transition, those of the whole attempt to the last one; without any signal there is no reward, which is not zero."""
    where = f"attempt {attempt_id}"
    if ended not in ("terminated", "truncated"):
        raise BadRecord(f"{where}: ended = {ended!r}", why="must be 'terminated' or 'truncated'")
    ordered = _in_order(spans)
    cut = _cut(ordered, SpanKind.MODEL) or _cut(ordered, SpanKind.TOOL)
    if not cut:
        raise BadRecord(
            where, why=f"has no decision among its {len(ordered)} spans", remedy="record model or tool calls"
        )
    return Trajectory(
        id=f"{rollout_id}::{attempt_id}",
        rollout=rollout_id,
        attempt=attempt_id,
        task=task,
        steps=_steps(cut, _credit(where, signals, len(cut)), terminate if ended == "terminated" else truncate),
        discount=discount,
        created_at=max(span.started_at if span.ended_at is None else span.ended_at for span in ordered),
    )


def _in_order(spans: Iterable[Span]) -> tuple[Span, ...]:
    ordered = tuple(sorted(spans, key=lambda span: span.seq))
    for one, other in pairwise(ordered):
        if one.seq == other.seq:
            raise BadRecord(
                f"span {other.name}: seq = {other.seq}", why="is there twice", remedy="give one attempt's spans"
            )
    return ordered


def _cut(spans: Sequence[Span], kind: SpanKind) -> list[Cut]:
    """Each span of that kind with those after it, up to the next of the kind."""
    starts = [i for i, span in enumerate(spans) if span.kind is kind]
    return [(spans[a], tuple(spans[a + 1 : b])) for a, b in pairwise([*starts, len(spans)])]


def _credit(where: str, signals: Iterable[RewardTerm], count: int) -> list[float]:
    parts: list[list[float]] = [[] for _ in range(count)]
    for signal in signals:
        if signal.turn is not None and signal.turn >= count:
            raise BadRecord(f"{where}: signal {signal.name}: turn = {signal.turn}", why=f"there are only {count} turns")
        parts[-1 if signal.turn is None else signal.turn].append(signal.value * signal.weight)
    if not any(parts):
        raise BadRecord(where, why="has no signal, and a missing reward is not zero", remedy="score it first")
    return [sum(part, 0.0) for part in parts]


def _steps(cut: Sequence[Cut], rewards: Sequence[float], finish: Callable[[float, Any], Step]) -> tuple[Step, ...]:
    steps = []
    step = begin(_observation(cut[0][0], None))
    for (decision, effects), (following, _), reward in zip(cut, cut[1:], rewards, strict=False):
        steps.append(_decide(step, decision))
        step = advance(reward, _observation(following, _outcome(decision, effects)))
    decision, effects = cut[-1]
    return (*steps, _decide(step, decision), finish(rewards[-1], _outcome(decision, effects)))


def _decide(step: Step, span: Span) -> Step:
    call = span.model
    action = _first(span, ACTION[span.kind], dict(call.response) if call else _order(span.tool))
    logprob = sum(call.logprobs) if call and call.logprobs is not None else _number(span, LOGPROB)
    return step.act(action, logprob, _number(span, VALUE), span=span.seq)


def _observation(decision: Span, before: Any) -> Any:
    """What the decision was taken on: a model saw its messages, a tool's caller saw what came of the call before."""
    return _first(decision, OBSERVATION[decision.kind], _plain(decision.model.messages) if decision.model else before)


def _outcome(decision: Span, effects: Iterable[Span]) -> Any:
    """What stood there after the decision: the conversation with the answer and the tools' results, or one result."""
    if decision.model is None:
        return _result(decision.tool)
    results = [span.tool for span in effects if span.tool is not None]
    told = [
        _tool_message(call.call_id or "tool-call", call.tool, _result(call), is_error=call.error is not None)
        for call in results
    ]
    return [*_plain(decision.model.messages), dict(decision.model.response), *told]


def _order(call: ToolCall | None) -> dict[str, Any] | None:
    return None if call is None else {"tool": call.tool, "arguments": dict(call.arguments)}


def _result(call: ToolCall | None) -> Any:
    return None if call is None else call.result if call.error is None else call.error


def _tool_message(call_id: Any, tool: Any, content: Any, *, is_error: bool) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "tool_name": tool, "content": content, "is_error": is_error}


def _plain(messages: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    return [dict(message) for message in messages]


def _first(span: Span, keys: Iterable[str], default: Any) -> Any:
    return next((span.attributes[key] for key in keys if span.attributes.get(key) is not None), default)


def _number(span: Span, keys: Iterable[str]) -> float | None:
    """A number that is there but cannot be used is refused: passing over it would credit the span with another's."""
    number = _first(span, keys, None)
    if number is None:
        return None
    if isinstance(number, bool) or not isinstance(number, (int, float)) or not isfinite(number):
        raise BadRecord(f"span {span.name}: {' or '.join(keys)} = {number!r}", why="must be a finite number")
    return float(number)
