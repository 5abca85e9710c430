"""Bytes as tokens, and the template that turns a chat into them and back.

    <system>text<end><user>text<end><assistant><think>…</think>text<call>name {json}<end><tool>result<end><assistant>…

Text can never spell a mark: marks lie above the bytes. A well-formed answer read back and rendered again gives the ids
it was read from, so the prompt of a later turn begins with what was really sampled in the earlier ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from holdfast.contracts.errors import BadInput

SYSTEM, USER, ASSISTANT, TOOL, THINK, UNTHINK, CALL, END = range(256, 264)
VOCABULARY = 264
SPELLING = {
    SYSTEM: "<|system|>",
    USER: "<|user|>",
    ASSISTANT: "<|assistant|>",
    TOOL: "<|tool|>",
    THINK: "<|think|>",
    UNTHINK: "<|/think|>",
    CALL: "<|call|>",
    END: "<|end|>",
}
MARKS = {"system": SYSTEM, "developer": SYSTEM, "user": USER, "assistant": ASSISTANT, "tool": TOOL}

Message = Mapping[str, Any]


def prompt(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
    """The ids that ask for the next answer: the conversation, then the assistant's mark."""
    return [*render(messages, tools)[0], ASSISTANT]


def render(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> tuple[list[int], list[bool]]:
    """The conversation as ids, and which of them the assistant decided (all after its mark, its end included)."""
    ids: list[int] = []
    decided: list[bool] = []
    for place, message in enumerate(_with_tools(messages, tools)):
        mark = MARKS.get(str(message.get("role")))
        if mark is None:
            raise BadInput(
                f"messages[{place}].role = {message.get('role')!r}", why="is unknown", remedy=f"use {', '.join(MARKS)}"
            )
        body = answer(message) if mark == ASSISTANT else [*_text(message, place), END]
        ids += [mark, *body]
        decided += [False, *([mark == ASSISTANT] * len(body))]
    return ids, decided


def answer(message: Message) -> list[int]:
    """The ids of an assistant's message, from after its mark to its end."""
    ids: list[int] = []
    if message.get("reasoning_content"):
        ids += [THINK, *_bytes(str(message["reasoning_content"])), UNTHINK]
    ids += _text(message, 0)
    for call in message.get("tool_calls") or ():
        function = call["function"]
        arguments = function.get("arguments") or ""
        ids += [CALL, *_bytes(f"{function['name']} {arguments}" if arguments else str(function["name"]))]
    return [*ids, END]


def read(ids: Iterable[int]) -> dict[str, Any]:
    """The assistant's message that the ids spell. What is malformed is kept as text; nothing is repaired."""
    parts: dict[int, list[bytes]] = {0: [], THINK: [], CALL: []}  # 0: plain text
    current, piece = 0, bytearray()
    for token in ids:
        if token < 256:
            piece.append(token)
            continue
        parts[current].append(bytes(piece))
        piece = bytearray()
        current = token if token in (THINK, CALL) else 0
        if token == END:
            break
    else:
        parts[current].append(bytes(piece))
    message: dict[str, Any] = {"role": "assistant", "content": _decode(parts[0])}
    if thought := _decode(parts[THINK]):
        message["reasoning_content"] = thought
    if parts[CALL]:
        message["tool_calls"] = [_call(number, _decode([text])) for number, text in enumerate(parts[CALL])]
    return message


def _call(number: int, text: str) -> dict[str, Any]:
    name, _, arguments = text.partition(" ")
    return {"id": f"call_{number}", "type": "function", "function": {"name": name, "arguments": arguments}}


def _decode(pieces: Sequence[bytes]) -> str:
    return b"".join(pieces).decode(errors="replace")


def _with_tools(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[Message]:
    """Puts the signatures of the tools first in the system message."""
    if not tools:
        return list(messages)
    line = "tools: " + " ".join(_signature(tool["function"]) for tool in tools)
    if messages and MARKS.get(str(messages[0].get("role"))) == SYSTEM:
        first, *rest = messages
        return [{**first, "content": f"{line}\n{bytes(_text(first, 0)).decode()}".rstrip("\n")}, *rest]
    return [{"role": "system", "content": line}, *messages]


def _signature(function: Mapping[str, Any]) -> str:
    return f"{function['name']}({','.join((function.get('parameters') or {}).get('properties') or ())})"


def _text(message: Message, place: int) -> list[int]:
    content = message.get("content")
    if isinstance(content, list):  # OpenAI's parts
        content = "".join(part.get("text", "") for part in content if isinstance(part, Mapping))
    if content is not None and not isinstance(content, str):
        raise BadInput(f"messages[{place}].content", why="is not text", remedy="give a string")
    return list(_bytes(content or ""))


def _bytes(text: str) -> bytes:
    """Half a letter (a lone surrogate, which JSON lets through) becomes a question mark."""
    return text.encode(errors="replace")
