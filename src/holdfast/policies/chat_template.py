"""How a chat is written in a model's tokens, and read from them: by our own marks, or by a tokenizer's chat template.

A tokenizer comes as an argument, whatever library it is from; the model that speaks belongs to `hub`.
"""

from __future__ import annotations

import codecs
import hashlib
import importlib
import json
import re
import threading
from collections import OrderedDict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from holdfast.contracts.errors import BadInput, boundary
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from holdfast.policies.tokens import CALL, END, THINK, Message
from holdfast.policies.tool_formats import FORMS, CallForm, reader_of

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


def imported(name: str) -> Any:
    """A library that only foreign models need."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        raise BadInput(name, why=f"cannot be imported ({error})", remedy="pip install 'holdfast[hub]'") from error


THOUGHT = re.compile(r"\s*<think>(.*?)(?:</think>\s*|$)", re.DOTALL)


class ChatTemplate(Protocol):
    """How a model's chat is written in its tokens.

    `read` leaves out the stop string that ended the answer; `deltas` shows its text as it comes, where it can."""

    ends: frozenset[int]  # an answer ends with one of these
    think: tuple[int, int] | None  # the tokens around a thought, where they are tokens
    call_form: CallForm | None  # how it writes a call of a tool, where that is JSON between marks

    def encode(self, text: str) -> list[int]: ...
    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]: ...
    def answer(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        """The ids of the last message, from where the prompt of those before it ends up to the mark that ends it."""
        ...

    def read(self, ids: Sequence[int], stop: Sequence[str] = ()) -> dict[str, Any]: ...
    def deltas(self, stop: Sequence[str] = ()) -> Deltas | None: ...
    def token_bytes(self, token: int) -> bytes: ...
    def spelled(self, vocabulary: int) -> list[bytes | None]:
        """What each token adds to a text; None of marks, and of what is not known."""
        ...

    def is_mark(self, token: int) -> bool:
        """Whether it is none of what is said or thought: such a token begins or ends a thought."""
        ...

    def save(self, folder: Path) -> None: ...


class ByteTemplate:
    """Our own: bytes and marks."""

    ends = frozenset({tokens.END})
    think: tuple[int, int] | None = (tokens.THINK, tokens.UNTHINK)
    call_form: CallForm | None = None

    def __init__(self, tokenizer: Any = None) -> None:
        self._tokenizer = tokenizer  # the same ids for other programs; None: there is nothing to keep

    def encode(self, text: str) -> list[int]:
        return list(text.encode())

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

    def spelled(self, vocabulary: int) -> list[bytes | None]:
        return [bytes([token]) if token < 256 else None for token in range(vocabulary)]

    def is_mark(self, token: int) -> bool:
        return token >= 256

    def save(self, folder: Path) -> None:
        if self._tokenizer is not None:
            self._tokenizer.save_pretrained(folder)


BYTE = re.compile(r"<0x([0-9A-F]{2})>")


def _spelling(name: str) -> bytes:
    """Of a token that is named as sentencepiece names it."""
    if (byte := BYTE.fullmatch(name)) is not None:
        return bytes([int(byte[1], 16)])
    return name.replace("▁", " ").encode()


def byte_letters() -> dict[int, str]:
    """The letter that stands for each byte in byte-level tokenizers: its own where it can be seen, else a later one."""
    seen = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
    unseen = [byte for byte in range(256) if byte not in seen]
    return {byte: chr(byte) for byte in seen} | {byte: chr(256 + n) for n, byte in enumerate(unseen)}


class JinjaTemplate:
    """The tokenizer's own chat template; calls are read in the form that it writes them in."""

    def __init__(self, tokenizer: Any, ends: frozenset[int]) -> None:
        self._tokenizer, self.ends = tokenizer, ends
        marks = [tokenizer.convert_tokens_to_ids(mark) for mark in ("<think>", "</think>")]
        known = all(isinstance(mark, int) and mark != tokenizer.unk_token_id for mark in marks)
        self.think: tuple[int, int] | None = (marks[0], marks[1]) if known else None
        self._calls_in = reader_of(str(getattr(tokenizer, "chat_template", None)))
        self.call_form = FORMS.get(self._calls_in)

    def encode(self, text: str) -> list[int]:
        return [int(token) for token in self._tokenizer.encode(text, add_special_tokens=False)]

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
        message["content"], found = self._calls_in(message["content"])
        calls = [
            {
                "id": f"call_{number}",
                "type": "function",
                "function": {"name": name, "arguments": json.dumps(given, ensure_ascii=False)},
            }
            for number, (name, given) in enumerate(found)
        ]
        return message | ({"tool_calls": calls} if calls else {})

    def deltas(self, stop: Sequence[str] = ()) -> Deltas | None:
        return None  # what a tokenizer makes of a beginning need not be a beginning of what it makes of all

    def token_bytes(self, token: int) -> bytes:
        return str(self._tokenizer.decode([token])).encode()

    def spelled(self, vocabulary: int) -> list[bytes | None]:
        marks = {*self._tokenizer.all_special_ids, *self._tokenizer.get_added_vocab().values()}
        known = len(self._tokenizer)
        names = self._tokenizer.convert_ids_to_tokens(list(range(min(known, vocabulary))))
        found = [None if token in marks or name is None else _spelling(name) for token, name in enumerate(names)]
        if sum(name is not None and name.startswith("Ġ") for name in names) > 1:  # a byte-level one: a letter a byte
            byte = {letter: number for number, letter in byte_letters().items()}
            spelt = [None if text is None or not set(name) <= byte.keys() else bytes(map(byte.__getitem__, name))
                     for name, text in zip(names, found, strict=True)]  # fmt: skip
            found = spelt
        return [*found, *[None] * (vocabulary - len(found))]

    def is_mark(self, token: int) -> bool:
        return token in self.ends or token in (self.think or ())

    def save(self, folder: Path) -> None:
        self._tokenizer.save_pretrained(folder)


class ConversationIds:
    """Prompts that go on from the very ids that were sampled.

    A later prompt of a conversation is what was read and said before it, id by id, and only what is new is made into
    tokens: an answer that is read and written again by the template often comes back in other ids, and is then no
    longer what was decided. Where the template writes the beginning otherwise than before (some leave out earlier
    thoughts), its own rendering is taken. What a stop string ended is not remembered: its text lacks the string."""

    def __init__(self, template: ChatTemplate, *, most: int = 2048) -> None:
        self._template, self._most = template, most  # 0: nothing is remembered
        self._kept: OrderedDict[bytes, tuple[tuple[int, ...], bool]] = OrderedDict()
        self._lock = threading.Lock()

    def prompt(self, messages: Sequence[Message], tools: Sequence[Mapping[str, Any]] = ()) -> list[int]:
        whole = self._template.prompt(messages, tools)
        marks = _marks(messages, tools) if self._most else []
        for count in range(len(marks), 1, -1):
            if messages[count - 1].get("role") != "assistant":
                continue
            with self._lock:
                known = self._kept.get(marks[count - 1])
            if known is not None:
                more = self._onward(messages, count, tools, whole, is_ended=known[1])
                return whole if more is None else [*known[0], *more]
        return whole

    def _onward(
        self,
        messages: Sequence[Message],
        count: int,
        tools: Sequence[Mapping[str, Any]],
        whole: list[int],
        *,
        is_ended: bool,
    ) -> list[int] | None:
        """What follows the end of an answer; None where the template writes differently what is up to there."""
        before = self._template.prompt(messages[:count], tools)
        place = next((at for at in range(len(before) - 1, -1, -1) if before[at] in self._template.ends), None)
        if place is None or whole[: place + 1] != before[: place + 1]:
            return None
        return whole[place + is_ended :]

    def add(self, call: ModelCall, tools: Sequence[Mapping[str, Any]] = ()) -> ModelCall:
        """Remembers an answer, which comes back in later messages; gives it back."""
        prompt, ids = call.prompt_ids or (), call.completion_ids or ()
        is_ended = bool(ids) and ids[-1] in self._template.ends
        if not self._most or not (is_ended or call.finish_reason == "length"):
            return call
        mark = _marks([*call.messages, call.response], tools)[-1]
        with self._lock:
            self._kept[mark] = (*prompt, *ids), is_ended
            self._kept.move_to_end(mark)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
        return call


def _marks(messages: Sequence[Message], tools: Sequence[Mapping[str, Any]]) -> list[bytes]:
    """A hash of each beginning of the conversation; fields that clients add or leave out when empty do not count."""
    found: list[bytes] = []
    last = hashlib.blake2b(json.dumps(list(tools), sort_keys=True, default=str).encode(), digest_size=16).digest()
    for message in messages:
        payload = {key: value for key, value in message.items() if value not in (None, "", [], ())}
        last = hashlib.blake2b(
            last + json.dumps(payload, sort_keys=True, default=str).encode(), digest_size=16
        ).digest()
        found.append(last)
    return found


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
