"""What the dialects share, and OpenAI's chat completions, with what vLLM adds for training under vLLM's names.

The same parts give the same message, whether they come as an answer or come back in a conversation: a second call must
contain the first call's answer to be learnt from. https://html.spec.whatwg.org/multipage/server-sent-events.html
"""

from __future__ import annotations

import json
from abc import ABC, abstractmethod
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


def count(value: Any) -> int | None:
    """The value if it is a plausible count, else None."""
    return value if type(value) is int and 0 <= value <= MOST else None


def part(usage: Any, name: str) -> Any:
    """A member of a value that may be no object."""
    return usage.get(name) if isinstance(usage, dict) else None


def kind(block: Any, otherwise: str = "") -> str:
    """The value's `type`, or `otherwise` if it has none."""
    name = part(block, "type")
    return name if isinstance(name, str) else otherwise


FORWARDED = frozenset({"content-type", "x-request-id"})  # request headers passed on, besides credentials
RETURNED = frozenset({"content-type", "content-encoding", "retry-after", "x-request-id", "request-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call as it was requested."""

    model: str
    messages: tuple[Mapping[str, Any], ...]  # in OpenAI's chat form, whatever the dialect
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, tools, …: what else shapes the answer
    is_streamed: bool = False
    body: bytes  # as it was sent
    extended: bytes | None = None  # the body that also asks for ids and log-probs; None if there is no way


class Assembler(ABC):
    """One streamed answer, assembled beside the bytes that pass. It never raises, whatever an event holds."""

    def __init__(self, request: ModelRequest) -> None:
        self._request = request
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

    @abstractmethod
    def _take(self, content: dict[str, Any], name: str) -> None: ...

    @abstractmethod
    def result(self) -> ModelCall:
        """What has come so far; `finish_reason` is None until the answer ended."""


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

    def whole(self, request: ModelRequest, body: bytes) -> ModelCall:
        """The call with its answer; ValueError if the body is none."""
        ...

    def stream(self, request: ModelRequest) -> Assembler: ...


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


# Without influence on the answer, or elsewhere in the record.
APART = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "store", "logprobs"}) | {
    "return_token_ids"
}
ADDED = {"return_token_ids": True, "logprobs": True}
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class OpenAiKey:
    """How OpenAI's dialects identify a caller."""

    key_variable = "OPENAI_API_KEY"
    forwarded = frozenset({"openai-organization", "openai-project", "openai-beta"})

    def credentials(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}


class Chat(OpenAiKey):
    path = "/v1/chat/completions"

    def read_request(self, body: bytes) -> ModelRequest:
        given = read_object(body)
        choices = given.get("n")
        if choices not in (None, 1):
            why = "of several answers nobody could tell which one was gone on with"
            raise BadInput(f"n = {choices!r:.60}", why=why, remedy="ask for one at a time: each is kept")
        return ModelRequest(
            model=model_of(given),
            messages=tuple(messages_of(given)),
            sampling={name: value for name, value in given.items() if name not in APART and value is not None},
            is_streamed=given.get("stream") is True,
            body=body,
            extended=spliced(body, given, ADDED),
        )

    def whole(self, request: ModelRequest, body: bytes) -> ModelCall:
        answer = loads(body)
        try:
            choice = answer["choices"][0]
            message = dict(choice["message"])
        except (LookupError, TypeError, ValueError):
            raise ValueError("no chat completion") from None
        return _call(request, answer, choice, message, choice.get("token_ids"), _entries(choice.get("logprobs")))

    def stream(self, request: ModelRequest) -> Chunks:
        return Chunks(request)


class Chunks(Assembler):
    """The chunks of one completion."""

    def __init__(self, request: ModelRequest) -> None:
        super().__init__(request)
        self.head: dict[str, Any] = {}  # fields of the answer, not of a choice
        self.choice: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self.ids: list[int] | None = None
        self.entries: list[Any] | None = None
        self.has_choice = False

    def feed(self, event: Event) -> None:
        if event.data == b"[DONE]":
            self.is_ended = True
        else:
            super().feed(event)

    def _take(self, chunk: dict[str, Any], name: str) -> None:
        for key in ("model", "usage", "prompt_token_ids", "error"):
            if chunk.get(key) is not None:
                self.head[key] = chunk[key]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._choose(choice)

    def _choose(self, choice: dict[str, Any]) -> None:
        self.has_choice = True
        for name in ("finish_reason", "forced", "sampling"):
            if choice.get(name) is not None:
                self.choice[name] = choice[name]
        if isinstance(choice.get("token_ids"), list):
            self.ids = self.ids or []
            self.ids += choice["token_ids"]  # in place: a long answer has a hundred thousand pieces
        entries = _entries(choice.get("logprobs"))
        if entries is not None:
            self.entries = self.entries or []
            self.entries += entries
        delta = choice.get("delta")
        if isinstance(delta, dict):
            self._add(delta)

    def _add(self, delta: dict[str, Any]) -> None:
        for name in TEXTS:
            text = delta.get(name)
            if isinstance(text, str):
                self._texts.setdefault(name, []).append(text)
                self.has_begun |= text != ""
        calls = delta.get("tool_calls")
        for part in calls if isinstance(calls, list) else ():
            if isinstance(part, dict):
                self.has_begun = True
                _join(self._calls, part)

    def message(self) -> dict[str, Any]:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items() if name == "content" or any(parts)}
        if self._calls:
            message["tool_calls"] = [_joined_call(call) for _, call in sorted(self._calls.items())]
        return message

    def result(self) -> ModelCall:
        return _call(self._request, self.head, self.choice, self.message(), self.ids, self.entries)


def _join(calls: dict[int, dict[str, Any]], part: dict[str, Any]) -> None:
    """Adds a part to the call with its index: ids and names come once, arguments in pieces."""
    index = part.get("index")
    call = calls.setdefault(
        index if type(index) is int else len(calls),
        {"id": None, "type": "function", "function": {"name": [], "arguments": []}},
    )
    for name in ("id", "type"):
        if isinstance(part.get(name), str):
            call[name] = part[name]
    function = part.get("function")
    if isinstance(function, dict):
        for name in ("name", "arguments"):
            if isinstance(function.get(name), str):
                call["function"][name].append(function[name])


def _joined_call(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "function": {name: "".join(parts) for name, parts in call["function"].items()}}


def _call(
    request: ModelRequest,
    answer: Mapping[str, Any],
    choice: Mapping[str, Any],
    message: dict[str, Any],
    ids: Any,
    entries: Any,
) -> ModelCall:
    """The recorded call. Impossible values, such as a log-prob above 0, are left out, never repaired."""
    usage, reason = answer.get("usage"), choice.get("finish_reason")
    usage = usage if isinstance(usage, dict) else {}
    completion_ids, told = token_ids(ids), count(usage.get("completion_tokens"))
    if completion_ids is not None and told not in (None, len(completion_ids)):
        completion_ids = None  # some are missing, or belong to something else
    logprobs = None if entries is None or completion_ids is None else _logprobs(entries, len(completion_ids))
    prompt_ids = token_ids(answer.get("prompt_token_ids"))
    details = usage.get("completion_tokens_details")
    forced, in_force = token_ids(choice.get("forced")) or (), choice.get("sampling")
    return ModelCall(
        model=text_of(answer.get("model"), request.model),
        messages=request.messages,
        response=message,
        finish_reason=reason if isinstance(reason, str) else None,
        prompt_tokens=_counted(usage.get("prompt_tokens"), prompt_ids),
        completion_tokens=_counted(usage.get("completion_tokens"), completion_ids),
        thinking_tokens=count(details.get("reasoning_tokens")) if isinstance(details, dict) else None,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=logprobs,
        forced=tuple(place for place in forced if place < len(completion_ids or ())),
        sampling={**in_force, **request.sampling} if isinstance(in_force, dict) else request.sampling,
    )


def _counted(said: Any, ids: tuple[int, ...] | None) -> int | None:
    told = count(said)
    return told if told is not None or ids is None else len(ids)


def _entries(logprobs: Any) -> list[Any] | None:
    content = logprobs.get("content") if isinstance(logprobs, dict) else None
    return content if isinstance(content, list) else None


def _logprobs(entries: list[Any], wanted: int) -> tuple[float, ...] | None:
    try:
        values = [entry["logprob"] for entry in entries]
    except (TypeError, LookupError):  # an entry without a log-prob
        return None
    if len(values) != wanted or not set(map(type, values)) <= {int, float}:
        return None
    if min(values, default=0.0) <= -1e300 or max(values, default=0.0) >= 1e-3:
        return None
    return tuple(min(float(value), 0.0) for value in values)  # just above 0 is a rounding error
