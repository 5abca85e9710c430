"""Reads an attempt's spans for what its tool calls found out and what became of it.

A fact is a number, a day, a name or a key. How long a text is, or how often it says a thing, is never counted.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import groupby
from typing import Any

from holdfast.contracts.experience import turns
from holdfast.contracts.trace import PARTIAL, Span, SpanKind, ToolCall, Turn, tool_call_in

FACT = re.compile(
    r"\d{4}-\d\d-\d\d(?!\w)"  # a day
    r"|(?P<number>\d+(?:,\d{3})*(?:\.\d+)?)(?![^\W_])"
    r"|\w+(?:[.\-/:@]\w+)*"  # a name or a key
)
_COMMON = (  # words that every text has
    "a an and are as at be but by can do does for from had has have he her him his how i if in into is it its me my no"
    " not of on or our she so than that the their them then there they this to up us was we were what when where which"
    " who why will with you your answer error result value key name true false null none ok"
)
COMMON = frozenset(_COMMON.split())


def facts(value: Any) -> frozenset[str]:
    """The set of numbers, days, names and keys in a text or in the values of an object."""
    return frozenset(_facts(value))


def _facts(value: Any) -> Iterator[str]:
    if isinstance(value, str):
        for match in FACT.finditer(value):
            text = match[0].casefold() if match["number"] is None else _number(match["number"])
            if text not in COMMON:
                yield text
    elif isinstance(value, Mapping | list | tuple):
        for item in value.values() if isinstance(value, Mapping) else value:
            yield from _facts(item)
    elif isinstance(value, int | float) and not isinstance(value, bool):
        yield _number(f"{abs(value)}")


def _number(text: str) -> str:
    """12.50 and 12.5, 1,000 and 1000 are one number each."""
    plain = text.replace(",", "")
    return plain.rstrip("0").rstrip(".") if "." in plain else plain


def read(spans: Iterable[Span]) -> tuple[Turn, ...]:
    """The turns as a learner counts them: a model call that was cut short decided nothing, and is none."""
    return turns(span for span in spans if span.kind is not SpanKind.MODEL or PARTIAL not in span.attributes)


def answer_of(spans: Sequence[Span]) -> str:
    """The last message of the model, where it called no tool."""
    for span in sorted(spans, key=lambda span: span.seq, reverse=True):
        if span.kind is SpanKind.MODEL and span.model is not None and PARTIAL not in span.attributes:
            said = span.model.response
            return "" if said.get("tool_calls") else str(said.get("content") or "")
    return ""


def with_tool_calls(spans: Sequence[Span]) -> Sequence[Span]:
    """The same with a span for each tool call of an agent that ran its tools itself, out of our sight: what a tool gave
    it stands in its next request."""
    if any(span.tool is not None for span in spans):
        return spans
    ordered = [span for span in sorted(spans, key=lambda span: span.seq) if PARTIAL not in span.attributes]
    given: dict[str, Mapping[str, Any]] = {}
    for message in (message for span in ordered if span.model is not None for message in span.model.messages):
        if message.get("role") == "tool":
            given.setdefault(str(message.get("tool_call_id")), message)
    found: list[Span] = []
    for span in ordered:
        found.append(replace(span, seq=len(found) + 1, parent=None))
        for call in _asked(span):
            when: dict[str, Any] = {"started_at": span.started_at, "ended_at": span.ended_at}
            made = tool_call_in(given.get(str(call.get("id")), {}), call["function"])
            found.append(Span(seq=len(found) + 1, kind=SpanKind.TOOL, name=f"tool.{made.tool}", tool=made, **when))
    return found


def _asked(span: Span) -> list[Mapping[str, Any]]:
    calls = () if span.model is None else span.model.response.get("tool_calls") or ()
    return [call for call in calls if isinstance(call, Mapping) and isinstance(call.get("function"), Mapping)]


@dataclass(frozen=True, slots=True, kw_only=True)
class CallEvidence:
    """What one tool call brought, and what became of it."""

    turn: int | None  # None: before any model call
    call: ToolCall
    fresh: frozenset[str]  # facts in its result that nobody had said before
    used: frozenset[str]  # of them, those that led to the answer


def evidence(spans: Sequence[Span], answer: Any = None) -> tuple[CallEvidence, ...]:
    """Which facts of each result were new and led to the answer: they stand in it, or in a later call that led to
    it."""
    found = list(_fresh(spans))
    wanted = set(facts(answer_of(spans) if answer is None else answer))
    used: dict[int, frozenset[str]] = {}
    places = range(len(found) - 1, -1, -1)
    for _, together in groupby(places, key=lambda place: found[place][0]):
        asked: frozenset[str] = frozenset()  # calls of one turn did not see one another's results
        for place in together:
            used[place] = found[place][2] & wanted
            if used[place]:
                asked |= facts(found[place][1].arguments)
        wanted |= asked
    return tuple(
        CallEvidence(turn=turn, call=call, fresh=fresh, used=used[place])
        for place, (turn, call, fresh) in enumerate(found)
    )


def _fresh(spans: Sequence[Span]) -> Iterable[tuple[int | None, ToolCall, frozenset[str]]]:
    known: set[str] = set()
    turn, heard = None, 0
    for span in sorted(spans, key=lambda span: span.seq):
        if span.kind is SpanKind.MODEL and span.model is not None:
            if PARTIAL not in span.attributes:
                turn = 0 if turn is None else turn + 1
            told = span.model.messages
            known.update(_facts([message.get("content") for message in told[heard if len(told) >= heard else 0 :]]))
            known.update(_facts(span.model.response.get("content")))
            heard = len(told)
        elif span.kind is SpanKind.MESSAGE and span.attributes.get("role") in ("system", "user"):
            known.update(_facts([span.attributes.get("text"), span.attributes.get("content")]))
        elif span.kind is SpanKind.TOOL and span.tool is not None:
            known.update(_facts(span.tool.arguments))
            said = facts(span.tool.result) if span.tool.error is None else frozenset()
            yield turn, span.tool, said - known
            known |= said
