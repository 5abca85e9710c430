"""An assistant's message in OpenAI's chat form, put together from the parts in which other dialects say it.

The same parts give the same message, whether they come as an answer or come back later as part of a conversation: what
is learnt from a second call must find the first call's answer in it. Reading the parts is each dialect's business.
"""

from __future__ import annotations

import json
from typing import Any

import orjson

MOST = 2**53  # beyond it no float and no column of a store holds every whole number


class Said:
    """Parts are added in their order; texts of one kind become one text."""

    def __init__(self) -> None:
        self._texts: dict[str, list[str]] = {}
        self.calls: list[dict[str, Any]] = []
        self._items: list[dict[str, Any]] = []

    def text(self, text: Any, kind: str = "content") -> None:
        if isinstance(text, str):
            self._texts.setdefault(kind, []).append(text)

    def thought(self, text: Any) -> None:
        self.text(text, "reasoning_content")

    def call(self, identity: Any, name: Any, arguments: str) -> None:
        function = {"name": name if isinstance(name, str) else "", "arguments": arguments}
        self.calls.append({"id": identity if isinstance(identity, str) else None, "type": "function"})
        self.calls[-1]["function"] = function

    def item(self, item: dict[str, Any]) -> None:
        """What chat completions have no form for, such as a search by the upstream itself: kept as it is."""
        self._items.append(item)

    def message(self) -> dict[str, Any]:
        texts = {kind: "".join(parts) for kind, parts in self._texts.items()}
        message: dict[str, Any] = {"role": "assistant", "content": texts.pop("content", "") or None}
        message |= {kind: text for kind, text in texts.items() if text}
        if self.calls:
            message["tool_calls"] = self.calls
        if self._items:
            message["items"] = self._items
        return message


def written(arguments: Any) -> str:
    """Arguments that come as an object, in the one form in which they are kept; ValueError where they have none."""
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:
        try:
            return json.dumps(arguments, separators=(",", ":"), allow_nan=False)  # half a character is written as such
        except RecursionError:
            raise ValueError("arguments of a tool: nested too deeply") from None


def count(said: Any) -> int | None:
    """None where it is no number that anybody can have counted to."""
    return said if type(said) is int and 0 <= said <= MOST else None


def part(usage: Any, name: str) -> Any:
    """A member of what may be an object, and may be anything."""
    return usage.get(name) if isinstance(usage, dict) else None


def kind(block: Any, otherwise: str = "") -> str:
    """What it says it is; the other word where it says nothing, or no word."""
    said = part(block, "type")
    return said if isinstance(said, str) else otherwise
