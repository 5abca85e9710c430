"""A conversation at the terminal: what is typed, what is heard, tools that really run, and orders that begin with `/`.

The model and the tools come as arguments; where lines come from and how the program ends is `sprout`'s business.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.trace import ModelCall

ROUNDS = 8  # answers to one question: a model that calls tools for ever is stopped
ORDERS = {
    "/system TEXT": "give it other instructions; without text, take them away",
    "/tools [on|off|NAMES]": "which tools it has",
    "/think [on|off|N]": "ask it to think first, forbid it, or let it use at most N tokens",
    "/new": "forget what was said",
    "/help": "this list",
    "/quit": "the end",
}


class Quit(Exception):
    """The person has left."""


class Talk:
    """What was said so far, and how the next answer is to be made."""

    def __init__(
        self,
        complete: Complete,
        *,
        tools: Mapping[str, Mapping[str, Any]],
        call: Callable[[str, str], str],
        write: Callable[[str], object],
        system: str | None = None,
        think: str = "",
        sampling: Mapping[str, Any],
    ) -> None:
        self._complete, self._tools, self._call, self._write = complete, tools, call, write
        self.system, self.sampling, self.offered = system, dict(sampling), list(tools)
        self._think, self.is_thinking = think, False  # the words that ask for it, and whether they are said
        self.messages: list[Mapping[str, Any]] = []
        self._last = ""  # what kind of thing was written last

    def order(self, line: str) -> str:
        """Obey a line that begins with `/`; the answer to it."""
        name, _, words = line.strip().partition(" ")
        obey = {
            "/system": self._order_system,
            "/tools": self._order_tools,
            "/think": self._order_think,
            "/new": self._order_new,
            "/help": lambda words: "\n".join(f"{order:<22} {what}" for order, what in ORDERS.items()),
            "/quit": self._order_quit,
        }.get(name)
        if obey is None:
            raise BadInput(name, why="is no order", remedy="/help lists them")
        return obey(words.strip())

    def _order_system(self, words: str) -> str:
        self.system = words or None
        return f"instructions: {words or 'none'}"

    def _order_tools(self, words: str) -> str:
        names = words.replace(",", " ").split()
        if unknown := [name for name in names if name not in (*self._tools, "on", "off")]:
            raise BadInput(f"tool {unknown[0]}", why="is unknown", remedy=f"there are {', '.join(self._tools)}")
        if names:
            self.offered = {"on": list(self._tools), "off": []}.get(names[0], names)
        return "\n".join(
            f"{'on ' if name in self.offered else 'off'} {name}: {tool['function'].get('description', '')}"
            for name, tool in self._tools.items()
        )

    def _order_think(self, words: str) -> str:
        if words not in ("", "on", "off") and not words.isdecimal():
            raise BadInput(f"/think {words}", why="is not a number", remedy="give on, off or a number of tokens")
        self.is_thinking = words != "off"
        self.sampling.pop("thinking", None)
        if words not in ("", "on"):
            self.sampling["thinking"] = int(words) if self.is_thinking else 0
        return (
            f"thinking: at most {self.sampling['thinking']} tokens"
            if words.isdecimal()
            else f"thinking: {words or 'on'}"
        )

    def _order_new(self, words: str) -> str:
        self.messages.clear()
        return "forgotten"

    def _order_quit(self, words: str) -> str:
        raise Quit

    @property
    def opening(self) -> str:
        """The system message; empty: there is none."""
        return " ".join(filter(None, [self._think if self.is_thinking else "", self.system]))

    async def say(self, text: str) -> list[ModelCall]:
        """Ask, run the tools that are called, and go on until there is an answer. A failed question is taken back."""
        before = len(self.messages)
        self.messages.append({"role": "user", "content": text})
        calls: list[ModelCall] = []
        try:
            for _ in range(ROUNDS):
                call = await self._hear()
                calls.append(call)
                self.messages.append(call.response)
                asked = call.response.get("tool_calls") or ()
                if not asked:
                    break
                self.messages += [self._answered(one) for one in asked]
        except BaseException:
            del self.messages[before:]
            raise
        finally:
            self._end()
        return calls

    async def _hear(self) -> ModelCall:
        from holdfast.collect.chat_format import pieces

        opening = [{"role": "system", "content": self.opening}] if self.opening else []
        offered = [self._tools[name] for name in self.offered]
        how = {**self.sampling, **({"tools": offered} if offered else {})}
        if "seed" in how:
            how["seed"] += len(self.messages)  # each answer its own chance
        async for piece in pieces(self._complete, [*opening, *self.messages], **how):
            if isinstance(piece, ModelCall):
                return piece
            self._show("thought", piece.get("reasoning_content") or "")
            self._show("answer", piece.get("content") or "")
            for delta in piece.get("tool_calls") or ():
                function = delta.get("function") or {}
                if function.get("name"):
                    self._end()
                    self._show("call", f"{function['name']} ")
                self._show("call", function.get("arguments") or "")
        raise HoldfastError("model", why="its answer broke off", remedy="ask again")

    def _answered(self, asked: Mapping[str, Any]) -> Mapping[str, Any]:
        function = asked["function"]
        name, arguments = str(function["name"]), str(function.get("arguments") or "")
        result = self._call(name, arguments) if name in self.offered else "error: unknown tool"
        self._end()
        self._show("result", result)
        return {"role": "tool", "tool_call_id": str(asked.get("id") or "call_0"), "content": result}

    def _show(self, kind: str, text: str) -> None:
        if not text:
            return
        if self._last != kind:
            self._end()
            self._write({"thought": "(", "answer": "", "call": "-> ", "result": "<- "}[kind])
        self._last = kind
        self._write("".join(letter if letter.isprintable() or letter in "\n\t" else "�" for letter in text))

    def _end(self) -> None:
        if self._last:
            self._write(")\n" if self._last == "thought" else "\n")
        self._last = ""


def record(said: str, messages: Sequence[Mapping[str, Any]], calls: Sequence[ModelCall], *, system: str) -> str:
    """One question and all that came of it, as a line of JSON."""
    last = calls[-1]
    return json.dumps(
        {
            "system": system or None,
            "say": said,
            "answer": last.response.get("content"),
            "finish_reason": last.finish_reason,
            "model": last.model,
            "messages": list(messages),
            "tokens": sum(call.completion_tokens or 0 for call in calls),
        },
        ensure_ascii=False,
    )
