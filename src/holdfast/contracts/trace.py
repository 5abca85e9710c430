"""What happened during an attempt: spans in order, decisions (model and tool calls) apart from telemetry.

Token ids and behaviour log-probs are kept as they were sampled: never derived from text afterwards.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord, check_fields


class SpanKind(StrEnum):
    MODEL = "model"  # decision: a call of a language model
    TOOL = "tool"  # decision: a call of a tool
    MESSAGE = "message"  # a message added to the conversation
    TELEMETRY = "telemetry"  # everything else; never learnt from


DECISIONS = frozenset({SpanKind.MODEL, SpanKind.TOOL})
PARTIAL = "partial"  # the attribute of a span that is not whole; its value says why
TAG = "tag"  # the attribute with the agent's own word for a model call: learning can be told to look at these alone
TRUNCATED = "truncated"  # the name of a telemetry span: a limit cut the conversation, which had not come to its end
NEUTRAL = 0  # the token id that stands where one was scrubbed: every vocabulary has it


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCall:
    """One call of a language model. Ids and log-probs are there when the endpoint gave them.

    `scrubbed` are ranges, from start up to before end, counted over prompt_ids and then completion_ids
    (over completion_ids alone where there are no prompt_ids). What was said there is not kept: the ids are NEUTRAL, and
    in the completion they are `forced` with log-prob 0. Equal ids in such ranges do not say that the texts were equal,
    and what follows one was decided after something else than what is there now: nothing may be merged across it."""

    SCHEMA: ClassVar[int] = 1

    model: str
    messages: tuple[Mapping[str, Any], ...]
    response: Mapping[str, Any]  # the assistant message
    finish_reason: str | None = None
    prompt_tokens: int | None = None
    completion_tokens: int | None = None
    thinking_tokens: int | None = None  # of these, inside thoughts; None: nobody counted them
    prompt_ids: tuple[int, ...] | None = None
    completion_ids: tuple[int, ...] | None = None
    logprobs: tuple[float, ...] | None = None  # of completion_ids under the sampling that was in force
    forced: tuple[int, ...] = ()  # places in completion_ids that were put there, not sampled: never learnt from
    scrubbed: tuple[tuple[int, ...], ...] = ()  # (start, end) pairs in order; places in prompt_ids + completion_ids
    sampling: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if self.forced and any(not 0 <= place < len(self.completion_ids or ()) for place in self.forced):
            raise BadRecord("model call: forced", why="must be places in completion_ids")
        for name in ("prompt_ids", "completion_ids"):
            if min(getattr(self, name) or (0,)) < 0:
                raise BadRecord(f"model call: {name}", why="token ids must not be negative")
        if self.logprobs is not None:
            if self.completion_ids is None or len(self.logprobs) != len(self.completion_ids):
                found = "none" if self.completion_ids is None else str(len(self.completion_ids))
                raise BadRecord("model call: logprobs", why=f"{len(self.logprobs)} values for {found} completion ids")
            if not all(map(isfinite, self.logprobs)) or max(self.logprobs, default=0.0) > 0.0:
                raise BadRecord("model call: logprobs", why="must be finite and at most 0")
        if self.scrubbed:
            self._check_scrubbed()

    def _check_scrubbed(self) -> None:
        ids = (*(self.prompt_ids or ()), *(self.completion_ids or ()))
        before, forced, reached = len(self.prompt_ids or ()), set(self.forced), 0
        for pair in self.scrubbed:
            if len(pair) != 2:
                raise BadRecord("model call: scrubbed", why=f"{pair} is not a start and an end")
            start, end = pair
            if not reached <= start < end <= len(ids):
                why = f"({start}, {end}) is empty, out of order or beyond {len(ids)} ids"
                raise BadRecord("model call: scrubbed", why=why)
            if any(token != NEUTRAL for token in ids[start:end]):
                raise BadRecord("model call: scrubbed", why=f"the ids of ({start}, {end}) must be {NEUTRAL}")
            if any(place - before not in forced for place in range(max(start, before), end)):
                raise BadRecord("model call: scrubbed", why=f"completion ids of ({start}, {end}) must be forced")
            reached = end


@dataclass(frozen=True, slots=True, kw_only=True)
class ToolCall:
    """One call of a tool, with what it gave back or why it could not."""

    SCHEMA: ClassVar[int] = 1

    tool: str
    arguments: Mapping[str, Any]
    result: Any = None
    error: str | None = None
    call_id: str | None = None


def tool_call_in(message: Mapping[str, Any], function: Mapping[str, Any]) -> ToolCall:
    """A tool result; it is an error where it begins with "error", or is a JSON object that names one."""
    content = message.get("content")
    given, text = _read_json(content), None
    if isinstance(given, Mapping) and given.get("error"):
        text = str(given["error"])
    elif isinstance(content, str) and re.match(r"error\b", content, re.IGNORECASE):
        text = content
    arguments = _read_json(function.get("arguments"))
    return ToolCall(
        tool=str(function.get("name") or message.get("name") or "tool"),
        arguments=arguments if isinstance(arguments, dict) else {} if arguments is None else {"arguments": arguments},
        result=content if text is None else None,
        error=text,
        call_id=str(message["tool_call_id"]) if message.get("tool_call_id") else None,
    )


def _read_json(given: Any) -> Any:
    """The value of a JSON text; anything else as it is."""
    try:
        return json.loads(given) if isinstance(given, str) else given
    except (ValueError, RecursionError):
        return given


@dataclass(frozen=True, slots=True, kw_only=True)
class SpanEvent:
    """A moment within a span."""

    name: str
    at: float
    attributes: Mapping[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Span:
    """Something that happened, in the attempt's own order."""

    SCHEMA: ClassVar[int] = 1

    seq: int = field(metadata={"minimum": 1})  # 1, 2, … within the attempt, given at the start of the span
    kind: SpanKind
    name: str
    started_at: float
    ended_at: float | None = None
    parent: int | None = field(default=None, metadata={"minimum": 1})  # seq of the enclosing span
    attributes: Mapping[str, Any] = field(default_factory=dict)
    events: tuple[SpanEvent, ...] = ()
    model: ModelCall | None = None
    tool: ToolCall | None = None
    trace_id: str | None = None  # foreign ids, when the span came from another tracer
    span_id: str | None = None

    def __post_init__(self) -> None:
        check_fields(f"span {self.name}", self)
        if self.ended_at is not None and self.ended_at < self.started_at:
            raise BadRecord(f"span {self.name}", why=f"times {self.started_at} to {self.ended_at} are not in order")
        if self.parent is not None and not 1 <= self.parent < self.seq:
            raise BadRecord(f"span {self.name}: parent = {self.parent}", why=f"must be an earlier span than {self.seq}")
        calls = (self.model is not None, self.tool is not None)
        if calls != (self.kind is SpanKind.MODEL, self.kind is SpanKind.TOOL):
            raise BadRecord(f"span {self.name}", why=f"kind {self.kind} does not fit its model or tool call")

    @property
    def is_decision(self) -> bool:
        return self.kind in DECISIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class Turn:
    """One decision with everything it led to before the next one."""

    SCHEMA: ClassVar[int] = 1

    index: int = field(metadata={"minimum": 0})  # 0, 1, …
    decision: Span
    effects: tuple[Span, ...] = ()

    def __post_init__(self) -> None:
        check_fields(f"turn {self.index}", self)
        if self.decision.kind is not SpanKind.MODEL:
            raise BadRecord(f"turn {self.index}", why=f"opens with a {self.decision.kind} span, not a model call")
