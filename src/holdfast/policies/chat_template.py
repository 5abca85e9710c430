"""How a chat is written in a model's tokens, and read from them: by our own marks, or by a tokenizer's chat template.

A tokenizer comes as an argument, whatever library it is from; the model that speaks belongs to `hub`.
"""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.contracts.errors import BadInput, boundary
from holdfast.policies import tokens
from holdfast.policies.tokens import CALL, END, THINK, Message

DELTA_NAMES = {0: "content", THINK: "reasoning_content"}


class Deltas:
    """Hand it the ids as they come. `stop`: strings that end an answer and do not belong to it."""

    def __init__(self, stop: Sequence[str] = ()) -> None:
        self._letters = {kind: codecs.getincrementaldecoder("utf-8")(errors="replace") for kind in DELTA_NAMES}
        self._kind = 0  # what the next bytes belong to: text, a thought, a call
        self._ended = False
        self._hold = max((len(word.encode()) - 1 for word in stop), default=0)
        self._held: list[int] = []  # may yet turn out to be the beginning of a stop string

    def add(self, ids: Iterable[int]) -> dict[str, str]:
        """What these let be said, by OpenAI's names; nothing where nothing is certain yet."""
        self._held += ids
        certain = len(self._held) - self._hold
        said: dict[str, str] = {}
        for token in self._held[: max(certain, 0)]:
            if token >= 256:
                self._kind = token if token in (THINK, CALL) else 0
                self._ended = self._ended or token == END
            elif self._kind != CALL and not self._ended:
                name = DELTA_NAMES[self._kind]
                said[name] = said.get(name, "") + self._letters[self._kind].decode(bytes([token]))
        del self._held[: max(certain, 0)]
        return {name: text for name, text in said.items() if text}


THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>\s*|$)", re.DOTALL)
CALLED = re.compile(r"\s*<tool_call>\s*(\{.*?\})\s*</tool_call>\s*", re.DOTALL)


class ChatTemplate(Protocol):
    """How a model's chat is written in its tokens.

    `read` leaves out the stop string that ended the answer; `deltas` shows its text as it comes, where it can."""

    ends: frozenset[int]  # an answer ends with one of these
    think: tuple[int, int] | None  # the tokens around a thought, where they are tokens

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]: ...
    def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The ids of the last message, from where the prompt of those before it ends up to the mark that ends it."""
        ...

    def read(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, Any]: ...
    def deltas(self, stop: Sequence[str] = ()) -> Deltas | None: ...
    def token_bytes(self, token: int) -> bytes: ...
    def is_mark(self, token: int) -> bool:
        """Whether it is none of what is said or thought: such a token begins or ends a thought."""
        ...

    def save(self, folder: Path) -> None: ...


class ByteTemplate:
    """Our own: bytes and marks."""

    ends = frozenset({tokens.END})
    think: tuple[int, int] | None = (tokens.THINK, tokens.UNTHINK)

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer  # the same ids for other programs; None: there is nothing to keep

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return tokens.prompt(messages, tools)

    def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return tokens.answer(messages[-1])

    def read(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, Any]:
        for word in sorted((word.encode(errors="replace") for word in stop), key=len, reverse=True):
            if tuple(ids[-len(word) :]) == tuple(word):
                return tokens.read(ids[: -len(word)])
        return tokens.read(ids)

    def deltas(self, stop: Sequence[str] = ()) -> Deltas | None:
        return Deltas(stop)

    def token_bytes(self, token: int) -> bytes:
        return bytes([token]) if token < 256 else tokens.SPELLING[token].encode()

    def is_mark(self, token: int) -> bool:
        return token >= 256

    def save(self, folder: Path) -> None:
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)


class JinjaTemplate:
    """The tokenizer's own chat template; thoughts and calls are read in the form that most templates teach."""

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        self._tokenizer, self.ends = tokenizer, ends
        marks = [tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>")]
        known = all(isinstance(mark, int) and mark != tokenizer.unk_token_id for mark in marks)
        self.think: tuple[int, int] | None = (marks[0], marks[1]) if known else None

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        return [int(token) for token in self._render(messages, tools, is_asking=True)]

    def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """As the template renders it: the same rendering that later prompts have, so what is taught is what is sampled.

        Where a tokenizer joins the end of the prompt with the beginning of the answer, the answer's text is cut off
        and made into tokens by itself: sampling, too, begins after the prompt's last token."""
        before, whole = self.prompt(messages[:-1], tools), [int(one) for one in self._render(messages, tools)]
        if whole[: len(before)] == before:
            ids = whole[len(before) :]
        else:
            asked = self._render(messages[:-1], tools, is_asking=True, is_text=True)
            text = self._render(messages, tools, is_text=True)
            if not text.startswith(asked):
                why = "renders the beginning of an answer otherwise than it asks for one"
                raise BadInput("chat template", why=why, remedy="nothing can be taught by it")
            ids = self._tokenizer.encode(text[len(asked) :], add_special_tokens=False)
        place = next((place for place, token in enumerate(ids) if token in self.ends), None)
        if place is None:  # the template leaves it to the sampler to end an answer
            return [*ids, self._end]
        if self._tokenizer.decode(ids[place + 1 :], skip_special_tokens=False).strip():
            raise BadInput("an answer", why="spells the mark that ends one", remedy="take the mark out of its text")
        return ids[: place + 1]

    @property
    def _end(self) -> int:
        named = self._tokenizer.eos_token_id
        return int(named) if named in self.ends else min(self.ends)

    def _render(
        self,
        messages: Sequence[Message],
        tools: Sequence[Mapping[str, Any]],
        *,
        is_asking: bool = False,
        is_text: bool = False,
    ) -> Any:
        with boundary(BadInput, "chat template"):
            return self._tokenizer.apply_chat_template(
                [_for_template(message) for message in messages],
                tools=list(tools) or None,
                add_generation_prompt=is_asking,
                tokenize=not is_text,
                return_dict=False,
            )

    def read(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, Any]:
        """The message; a call that is no JSON stays in the text."""
        text: str = self._tokenizer.decode([token for token in ids if token not in self.ends])
        text = text[: min((place for word in stop if (place := text.find(word)) >= 0), default=None)]
        message: dict[str, Any] = {"role": "assistant", "content": text}
        if thought := THOUGHT.match(text):
            message |= {"content": text[thought.end() :], "reasoning_content": thought.group(1).strip()}
        calls: list[dict[str, Any]] = []

        def take(found: re.Match[str]) -> str:
            try:
                call = json.loads(found.group(1))
                name, arguments = str(call["name"]), json.dumps(call.get("arguments", {}), ensure_ascii=False)
            except (ValueError, KeyError):
                return found.group()
            function = {"name": name, "arguments": arguments}
            calls.append({"id": f"call_{len(calls)}", "type": "function", "function": function})
            return ""

        message["content"] = CALLED.sub(take, message["content"])
        return message | ({"tool_calls": calls} if calls else {})

    def deltas(self, stop: Sequence[str] = ()) -> Deltas | None:
        return None  # what a tokenizer makes of a beginning need not be a beginning of what it makes of all

    def token_bytes(self, token: int) -> bytes:
        return str(self._tokenizer.decode([token])).encode()

    def is_mark(self, token: int) -> bool:
        return token in self.ends or token in (self.think or ())

    def save(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(folder)


def thinking_tokens(template: ChatTemplate, prompt: Sequence[int], ids: Sequence[int]) -> int | None:
    """How many of an answer's tokens are inside thoughts, the marks around them left out; a prompt may have begun one.

    None: no token of this model begins a thought."""
    if template.think is None:
        return None
    inside = next((token == template.think[0] for token in reversed(prompt) if template.is_mark(token)), False)
    count = 0
    for token in ids:
        if template.is_mark(token):
            inside = token == template.think[0]
        else:
            count += inside
    return count


def _for_template(message: Message) -> dict[str, Any]:
    """Templates want plain text, and arguments as objects."""
    plain = {key: value for key, value in message.items() if value is not None}
    if isinstance(content := plain.get("content", ""), list):
        content = "".join(str(part.get("text", "")) for part in content)
    plain["content"] = content
    if calls := plain.get("tool_calls"):
        plain["tool_calls"] = [{**call, "function": _with_object(call["function"])} for call in calls]
    return plain


def _with_object(function: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return {**function, "arguments": json.loads(function.get("arguments") or "{}")}
    except ValueError:  # malformed, as it was sampled
        return dict(function)
