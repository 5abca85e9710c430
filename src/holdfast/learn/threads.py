"""Model calls that go on from one another, end to end; and, where one does not, what came between.

Ids are compared, never made: a break is told apart by the messages that were sent and by the place where the ids part.
What is learnt from a thread is `batch`'s business.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from enum import StrEnum
from itertools import takewhile
from operator import eq
from typing import Any

from holdfast.contracts.trace import ModelCall


class Break(StrEnum):
    """Why a prompt does not begin with the ids of the conversation that it goes on with."""

    TEMPLATE = "template"  # same messages; what the endpoint writes around them has changed
    RETOKENISED = "retokenised"  # same messages; what was sampled came back as other ids
    EDITED = "edited"  # the agent sent other messages, or other tools
    SCRUBBED = "scrubbed"  # the ids are not kept, so nobody can tell that they are the same


class Thread:
    """One conversation so far."""

    def __init__(self) -> None:
        self.ids: list[int] = []
        self.pieces: list[tuple[int, int, ModelCall]] = []  # turn, where its completion begins, the call
        self.scrubbed: int | None = None  # the first place whose id is not kept

    def leads_to(self, call: ModelCall) -> bool:
        """Whether the call's prompt begins with all that was read and said here."""
        return not self._is_veiled(call) and list((call.prompt_ids or ())[: len(self.ids)]) == self.ids

    def add(self, turn: int, call: ModelCall) -> None:
        if self.scrubbed is None and call.scrubbed:
            self.scrubbed = call.scrubbed[0][0]
        self.ids += (call.prompt_ids or ())[len(self.ids) :]
        self.pieces.append((turn, len(self.ids), call))
        self.ids += call.completion_ids or ()

    def is_meant_by(self, call: ModelCall) -> bool:
        """Whether the call's messages begin with all that was said here, whatever its ids."""
        last = self.pieces[-1][2]
        before = [*last.messages, last.response]
        same = len(call.messages) >= len(before) and all(map(_is_same, before, call.messages))
        return same and (last.sampling.get("tools") or None) == (call.sampling.get("tools") or None)

    def parting(self, call: ModelCall) -> Break:
        """Why a call with the same messages does not have the same ids.

        Only what was sampled can come back in other ids: the rest is written by the endpoint, each time from the same
        text. At the ends of an answer, too, it is the template that decides what stands there.
        """
        place = sum(1 for _ in takewhile(bool, map(eq, self.ids, call.prompt_ids or ())))
        hidden = min((at for at in (self.scrubbed, *_first(call)) if at is not None), default=None)
        if hidden is not None and place >= hidden:
            return Break.SCRUBBED
        for _, start, one in self.pieces:
            end = start + len(one.completion_ids or ()) - (one.finish_reason != "length")  # its last id is a mark
            if start < place < end:
                return Break.RETOKENISED
        return Break.TEMPLATE

    def _is_veiled(self, call: ModelCall) -> bool:
        return self.scrubbed is not None or any(at < len(self.ids) for at in _first(call))


def broken(call: ModelCall, threads: Sequence[Thread]) -> Break | None:
    """Why none of the threads leads to the call; None where it begins a conversation of its own.

    Without messages there are only the ids to go by, and those differ.
    """
    if not threads or (call.messages and not any(message.get("role") == "assistant" for message in call.messages)):
        return None
    meant = next((thread for thread in reversed(threads) if thread.is_meant_by(call)), None) if call.messages else None
    return Break.EDITED if meant is None else meant.parting(call)


def _first(call: ModelCall) -> list[int]:
    return [call.scrubbed[0][0]] if call.scrubbed else []


def _is_same(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    return one == other or _said(one) == _said(other)


def _said(message: Mapping[str, Any]) -> tuple[Any, ...]:
    """What a template could show of a message: clients add and leave out fields that are empty."""
    content = message.get("content")
    if isinstance(content, list | tuple):
        content = "".join(str(part.get("text", "")) for part in content if isinstance(part, Mapping))
    thought = message.get("reasoning_content") or message.get("reasoning")
    calls = [_called(call) for call in message.get("tool_calls") or ()]
    return message.get("role"), content or "", thought or "", calls, message.get("tool_call_id") or ""


def _called(call: Any) -> Any:
    function = call.get("function") if isinstance(call, Mapping) else None
    if not isinstance(function, Mapping):
        return call
    return call.get("id"), function.get("name"), function.get("arguments") or ""
