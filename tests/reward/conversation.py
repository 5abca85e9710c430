"""Conversations short to write: what was asked, what was called and what came back, and the answer."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.contracts.trace import ModelCall, Span, SpanKind, ToolCall

ARGUMENTS = {"type": "object", "properties": {"key": {"type": "string"}}, "required": ["key"]}
LOOKUP = {**ARGUMENTS, "additionalProperties": False}
CALC = {
    "type": "object",
    "properties": {"expression": {"type": "string"}},
    "required": ["expression"],
    "additionalProperties": False,
}
SCHEMAS = {"lookup": LOOKUP, "calc": CALC, "clock": {"type": "object", "additionalProperties": False}}


def tool(name: str, result: Any = None, *, error: str | None = None, **arguments: Any) -> ToolCall:
    return ToolCall(tool=name, arguments=arguments, result=result, error=error)


def lookup(key: str, result: Any = None, *, error: str | None = None) -> ToolCall:
    return tool("lookup", result, error=error, key=key)


def calc(expression: str, result: Any = None) -> ToolCall:
    return tool("calc", result, expression=expression)


@dataclass
class Talk:
    """Spans of one attempt, as an agent's tracer would leave them."""

    prompt: str
    spans: list[Span] = field(default_factory=list)
    messages: list[Mapping[str, Any]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.messages.append({"role": "user", "content": self.prompt})

    def _add(self, kind: SpanKind, **fields: Any) -> None:
        at = float(len(self.spans))
        self.spans.append(
            Span(seq=len(self.spans) + 1, kind=kind, name=kind.value, started_at=at, ended_at=at, **fields)
        )

    def _said(self, response: Mapping[str, Any], attributes: Mapping[str, Any] | None = None) -> None:
        call = ModelCall(model="sprout@3", messages=tuple(self.messages), response=response)
        self._add(SpanKind.MODEL, model=call, attributes=attributes or {})
        self.messages.append(response)

    def turn(self, *calls: ToolCall) -> Talk:
        """One model call with the tools it calls."""
        asked = [{"function": {"name": one.tool, "arguments": json.dumps(dict(one.arguments))}} for one in calls]
        self._said({"role": "assistant", "content": None, "tool_calls": asked})
        for one in calls:
            self._add(SpanKind.TOOL, tool=one)
            self.messages.append({"role": "tool", "content": one.error or str(one.result)})
        return self

    def cut(self) -> Talk:
        """A model call that broke off."""
        self._said({"role": "assistant", "content": "Hm"}, {"partial": "timeout"})
        return self

    def answer(self, text: str) -> Talk:
        self._said({"role": "assistant", "content": text})
        return self


def talk(prompt: str, *turns: Any, answer: str | None = None) -> list[Span]:
    """Each turn is a call or a list of calls."""
    told = Talk(prompt)
    for one in turns:
        told.turn(*(one if isinstance(one, list) else [one]))
    return told.spans if answer is None else told.answer(answer).spans
