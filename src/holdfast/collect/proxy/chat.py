"""OpenAI's chat completions, with what vLLM adds for training under vLLM's names. The rest of the dialect is passed on.

Several choices (`n`) are refused: we could not know which one the agent went on with.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from holdfast.collect.proxy.dialect import (
    Assembler,
    Event,
    ModelRequest,
    count,
    loads,
    messages_of,
    model_of,
    read_object,
    spliced,
    text_of,
    token_ids,
)
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

# Without influence on the answer, or elsewhere in the record.
APART = frozenset({"model", "messages", "stream", "stream_options", "user", "metadata", "store", "logprobs"}) | {
    "return_token_ids"
}
ADDED = {"return_token_ids": True, "logprobs": True}
TEXTS = ("content", "reasoning_content", "reasoning", "refusal")


class Chat:
    path = "/v1/chat/completions"
    key_variable = "OPENAI_API_KEY"
    forwarded = frozenset({"openai-organization", "openai-project", "openai-beta"})

    def credentials(self, key: str) -> Mapping[str, str]:
        return {"Authorization": f"Bearer {key}"}

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
            user=given["user"] if isinstance(given.get("user"), str) else None,
            body=body,
            extended=spliced(body, given, ADDED),
        )

    def whole(self, asked: ModelRequest, body: bytes) -> ModelCall:
        answer = loads(body)
        try:
            choice = answer["choices"][0]
            message = dict(choice["message"])
        except (LookupError, TypeError, ValueError):
            raise ValueError("no chat completion") from None
        return _call(asked, answer, choice, message, choice.get("token_ids"), _entries(choice.get("logprobs")))

    def stream(self, asked: ModelRequest) -> Chunks:
        return Chunks(asked)


class Chunks(Assembler):
    """The chunks of one completion."""

    def __init__(self, asked: ModelRequest) -> None:
        super().__init__(asked)
        self._head: dict[str, Any] = {}  # fields of the answer, not of a choice
        self._choice: dict[str, Any] = {}
        self._texts: dict[str, list[str]] = {}
        self._calls: dict[int, dict[str, Any]] = {}
        self._ids: list[int] | None = None
        self._entries: list[Any] | None = None

    def feed(self, event: Event) -> None:
        if event.data == b"[DONE]":
            self.is_ended = True
        else:
            super().feed(event)

    def _take(self, chunk: dict[str, Any], name: str) -> None:
        for key in ("model", "usage", "prompt_token_ids", "error"):
            if chunk.get(key) is not None:
                self._head[key] = chunk[key]
        choices = chunk.get("choices")
        for choice in choices if isinstance(choices, list) else ():
            if isinstance(choice, dict) and choice.get("index", 0) == 0:
                self._choose(choice)

    def _choose(self, choice: dict[str, Any]) -> None:
        for name in ("finish_reason", "forced"):
            if choice.get(name) is not None:
                self._choice[name] = choice[name]
        if isinstance(choice.get("token_ids"), list):
            self._ids = self._ids or []
            self._ids += choice["token_ids"]  # in place: a long answer has a hundred thousand pieces
        entries = _entries(choice.get("logprobs"))
        if entries is not None:
            self._entries = self._entries or []
            self._entries += entries
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

    def result(self) -> ModelCall:
        message: dict[str, Any] = {"role": "assistant", "content": None}
        message |= {name: "".join(parts) for name, parts in self._texts.items() if name == "content" or any(parts)}
        if self._calls:
            message["tool_calls"] = [_joined(call) for _, call in sorted(self._calls.items())]
        return _call(self._asked, self._head, self._choice, message, self._ids, self._entries)


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


def _joined(call: dict[str, Any]) -> dict[str, Any]:
    return {**call, "function": {name: "".join(parts) for name, parts in call["function"].items()}}


def _call(
    asked: ModelRequest,
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
    forced = token_ids(choice.get("forced")) or ()
    return ModelCall(
        model=text_of(answer.get("model"), asked.model),
        messages=asked.messages,
        response=message,
        finish_reason=reason if isinstance(reason, str) else None,
        prompt_tokens=_count(usage.get("prompt_tokens"), prompt_ids),
        completion_tokens=_count(usage.get("completion_tokens"), completion_ids),
        thinking_tokens=count(details.get("reasoning_tokens")) if isinstance(details, dict) else None,
        prompt_ids=prompt_ids,
        completion_ids=completion_ids,
        logprobs=logprobs,
        forced=tuple(place for place in forced if place < len(completion_ids or ())),
        sampling=asked.sampling,
    )


def _count(said: Any, ids: tuple[int, ...] | None) -> int | None:
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
