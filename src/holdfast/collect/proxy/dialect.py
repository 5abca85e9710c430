"""What the dialects share: the protocol, server-sent events split from bytes, and messages assembled in chat form.

A dialect reads an API; it never changes a byte that passes. It may only add fields to a request so that the upstream
gives token ids and log-probs (`ModelRequest.extended`). The same parts give the same message, whether they come as an
answer or come back in a conversation: a second call must contain the first call's answer to be learnt from.
https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NamedTuple, NoReturn, Protocol

import orjson

from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

LARGEST = 64 * 2**20  # bytes of one event; a larger one is passed on unread


class Event(NamedTuple):
    name: str  # "message" if the stream names none
    data: bytes


class Splitter:
    """Server-sent events out of chunks of bytes: `feed` returns the events that a chunk completes."""

    def __init__(self, largest: int = LARGEST) -> None:
        self._rest: list[bytes] = []  # of an incomplete event, joined only when a line ends
        self._size, self._largest = 0, largest
        self._begun = self._is_cr_open = False
        self.is_overfull = False  # an event was too large: nothing is read after it

    def feed(self, chunk: bytes) -> list[Event]:
        if self.is_overfull or not chunk:
            return []
        text = self._lines(chunk)
        self._rest.append(text)
        self._size += len(text)
        if self._size > self._largest:
            self.is_overfull, self._rest = True, []
            return []
        if b"\n" not in text:
            return []
        text = b"".join(self._rest)
        if not self._begun:
            self._begun, text = True, text.removeprefix(b"\xef\xbb\xbf")  # a byte order mark
        *blocks, rest = text.split(b"\n\n")
        self._rest, self._size = [rest], len(rest)
        return [event for block in blocks if (event := _read(block)) is not None]

    def _lines(self, chunk: bytes) -> bytes:
        """The chunk with LF line ends. A LF after a chunk that ended with CR belongs to that CR."""
        if self._is_cr_open and chunk.startswith(b"\n"):
            chunk = chunk[1:]
        self._is_cr_open = chunk.endswith(b"\r")
        if b"\r" not in chunk:
            return chunk
        return chunk.replace(b"\r\n", b"\n").replace(b"\r", b"\n")


def _read(block: bytes) -> Event | None:
    """None for a comment or an event without data."""
    if block.startswith(b"data: ") and b"\n" not in block:  # nearly all of them
        return Event("message", block[6:])
    name, data = "message", []
    for line in block.split(b"\n"):
        key, _, value = line.partition(b":")
        value = value.removeprefix(b" ")
        if key == b"data":
            data.append(value)
        elif key == b"event":
            name = value.decode(errors="replace") or "message"
    return Event(name, b"\n".join(data)) if data else None


MOST = 2**53  # larger whole numbers fit no float and no store column


class MessageBuilder:
    """An assistant's message in chat form, built from parts in their order; texts of one kind are joined."""

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
        """A part without a chat form, such as a search by the upstream: kept as it is."""
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
    """Arguments of a tool call as JSON text; ValueError if they cannot be written."""
    try:
        return orjson.dumps(arguments).decode()
    except orjson.JSONEncodeError:
        try:
            return json.dumps(arguments, separators=(",", ":"), allow_nan=False)  # writes lone surrogates
        except RecursionError:
            raise ValueError("arguments of a tool: nested too deeply") from None


def count(said: Any) -> int | None:
    """The value if it is a plausible count, else None."""
    return said if type(said) is int and 0 <= said <= MOST else None


def part(usage: Any, name: str) -> Any:
    """A member of a value that may be no object."""
    return usage.get(name) if isinstance(usage, dict) else None


def kind(block: Any, otherwise: str = "") -> str:
    """The value's `type`, or `otherwise` if it has none."""
    said = part(block, "type")
    return said if isinstance(said, str) else otherwise


FORWARDED = frozenset({"content-type", "x-request-id"})  # request headers passed on, besides credentials
RETURNED = frozenset({"content-type", "content-encoding", "retry-after", "x-request-id", "request-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call as it was requested."""

    model: str
    messages: tuple[Mapping[str, Any], ...]  # in OpenAI's chat form, whatever the dialect
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, tools, …: what else shapes the answer
    is_streamed: bool = False
    user: str | None = None  # the caller
    body: bytes  # as it was sent
    extended: bytes | None = None  # the body that also asks for ids and log-probs; None if there is no way


class Assembler:
    """One streamed answer, assembled beside the bytes that pass. It never raises, whatever an event holds."""

    def __init__(self, asked: ModelRequest) -> None:
        self._asked = asked
        self.is_ended = False  # the stream said that it is over: later bytes do not matter
        self.has_begun = False  # a part of the answer itself has come: the time to the first token
        self.has_holes = False  # an event could not be read, so a part of the answer is missing

    def feed(self, event: Event) -> None:
        try:
            content = loads(event.data)
        except ValueError:
            content = None  # passed on as it is
        if isinstance(content, dict):
            self._take(content, event.name)
        else:
            self.has_holes = True

    def _take(self, content: dict[str, Any], name: str) -> None:
        raise NotImplementedError

    def result(self) -> ModelCall:
        """What has come so far; `finish_reason` is None until the answer ended."""
        raise NotImplementedError


class Dialect(Protocol):
    """An API at one path."""

    path: str  # "/v1/chat/completions"
    key_variable: str  # the environment's variable with the upstream's key
    forwarded: frozenset[str]  # request headers that are passed on, in lower case, besides credentials

    def credentials(self, key: str) -> Mapping[str, str]:
        """The headers that carry an upstream's own key."""
        ...

    def read_request(self, body: bytes) -> ModelRequest:
        """BadInput if it is no request of this dialect, since it could not be recorded."""
        ...

    def whole(self, asked: ModelRequest, body: bytes) -> ModelCall:
        """The call with its answer; ValueError if the body is none."""
        ...

    def stream(self, asked: ModelRequest) -> Assembler: ...


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request, or BadInput."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInput("request", why=f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput("request", why="is not an object", remedy="send a JSON object")
    return found


def loads(text: bytes) -> Any:
    """JSON as upstreams write it, lone surrogates included; ValueError if it is none."""
    try:
        return orjson.loads(text)
    except orjson.JSONDecodeError:
        try:
            return json.loads(text, parse_constant=_refuse, parse_float=_finite)
        except RecursionError:
            raise ValueError("nested too deeply") from None


def _refuse(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is no JSON")


def _finite(number: str) -> float:
    found = float(number)
    return found if isfinite(found) else _refuse(number)


def spliced(body: bytes, given: Mapping[str, Any], added: Mapping[str, Any]) -> bytes | None:
    """The body with new members before its own and nothing else changed; members that it has stay."""
    new = {name: value for name, value in added.items() if name not in given}
    if not new or not given:
        return None
    opening = body.index(b"{") + 1
    return body[:opening] + orjson.dumps(new)[1:-1] + b"," + body[opening:]


def token_ids(value: Any) -> tuple[int, ...] | None:
    """Token ids, or None for anything else."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        return None
    # sum() is faster than max(), and for real ids it is small enough.
    return tuple(value) if sum(value) <= MOST or max(value) <= MOST else None


def model_of(given: Mapping[str, Any]) -> str:
    model = given.get("model")
    if not isinstance(model, str) or not model:
        raise BadInput("model", why="is missing, or no text", remedy="name the model")
    return model


def messages_of(given: Mapping[str, Any]) -> list[dict[str, Any]]:
    messages = given.get("messages")
    if not isinstance(messages, list) or not all(isinstance(message, dict) for message in messages):
        raise BadInput("messages", why="is missing, or no list of objects", remedy="give at least one message")
    return messages


def text_of(value: Any, otherwise: Any = None) -> Any:
    """The value where it is a text that says something."""
    return value if isinstance(value, str) and value else otherwise


def joined(parts: list[dict[str, Any]]) -> str | list[dict[str, Any]]:
    """One text where all parts are texts; else the parts."""
    return "".join(one["text"] for one in parts) if all(one.get("type") == "text" for one in parts) else parts
