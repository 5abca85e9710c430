"""An answer in OpenAI's chat format: whole, or in the chunks of a stream.

What vLLM adds for training is there under vLLM's names (`prompt_token_ids`, `token_ids`), and `forced` beside them.
Numbers are written as they are: a log-prob read back is the log-prob that was recorded. Sockets: `endpoint`.
"""

from __future__ import annotations

import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass
from functools import partial
from typing import Any, Protocol

from holdfast.collect.request import Request
from holdfast.contracts.engine import Complete
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens

BYTES = "bytes"  # what the list of models calls the tokens that `spell_byte` spells
Spell = Callable[[int], bytes]  # the bytes that one token stands for
Piece = Mapping[str, Any]  # new text in the form of OpenAI's delta; token_ids and logprobs of what it was made from


class Streaming(Protocol):
    """What a Complete may offer besides: the answer while it is made, as an async generator.

    Its pieces say a beginning of the message and carry a beginning of its tokens, or none; the finished call is last.
    """

    def stream(
        self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any
    ) -> AsyncGenerator[Piece | ModelCall, None]: ...


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all parts of one answer have in common."""

    id: str
    created: int  # unix seconds
    spell: Spell | None = None

    def head(self, kind: str, model: str) -> dict[str, Any]:
        return {"id": self.id, "object": kind, "created": self.created, "model": model}


def completion(request: Request, calls: Sequence[ModelCall], envelope: Envelope) -> dict[str, Any]:
    """The whole answer, one choice for each call."""
    answer = envelope.head("chat.completion", calls[0].model)
    answer["choices"] = [
        {
            "index": index,
            "message": dict(call.response),
            "finish_reason": finish_reason(call),
            **_tokens(request, call.completion_ids, call.logprobs, envelope.spell),
            **_forced(request, call),
        }
        for index, call in enumerate(calls)
    ]
    answer["usage"] = usage(calls)
    if request.token_ids:
        answer["prompt_token_ids"] = _listed(calls[0].prompt_ids)
    return answer


def finish_reason(call: ModelCall) -> str:
    """OpenAI's word: an answer that ends by itself with a call of a tool ended for that."""
    reason = call.finish_reason or "stop"
    return "tool_calls" if reason == "stop" and call.response.get("tool_calls") else reason


def usage(calls: Sequence[ModelCall]) -> dict[str, Any] | None:
    """Tokens read once and written in all choices; nothing when the model does not count them."""
    read = calls[0].prompt_tokens
    written = [call.completion_tokens for call in calls if call.completion_tokens is not None]
    if read is None or len(written) < len(calls):
        return None
    counted = {"prompt_tokens": read, "completion_tokens": sum(written), "total_tokens": read + sum(written)}
    thought = [call.thinking_tokens for call in calls if call.thinking_tokens is not None]
    return {**counted, "completion_tokens_details": {"reasoning_tokens": sum(thought)}} if thought else counted


class Chunks:
    """The parts of a streamed answer, in order: `begin`, `add` what comes, `close`."""

    def __init__(self, request: Request, envelope: Envelope) -> None:
        self._request, self._envelope = request, envelope
        self._sent = [0] * request.choices  # tokens
        self._done: dict[int, ModelCall] = {}

    def begin(self) -> Iterator[dict[str, Any]]:
        for index in range(self._request.choices):
            yield self._chunk(index, {"role": "assistant", "content": ""})

    def add(self, index: int, new: Piece | ModelCall) -> dict[str, Any]:
        if isinstance(new, ModelCall):
            return self._end(index, new)
        delta = {name: new[name] for name in ("content", "reasoning_content", "tool_calls") if name in new}
        ids = new.get("token_ids") or ()
        self._sent[index] += len(ids)
        return self._chunk(index, delta, **self._tokens(ids, new.get("logprobs")) if ids else {})

    def close(self) -> Iterator[dict[str, Any]]:
        if self._request.usage:
            calls = [call for _, call in sorted(self._done.items())]
            head = self._envelope.head("chat.completion.chunk", calls[0].model)
            yield {**head, "choices": [], "usage": usage(calls)}

    def _end(self, index: int, call: ModelCall) -> dict[str, Any]:
        """The reason it ended, and the tokens that came with no piece: all parts together have them all, once."""
        self._done[index], sent = call, self._sent[index]
        ids = None if call.completion_ids is None else call.completion_ids[sent:]
        logprobs = None if call.logprobs is None else call.logprobs[sent:]
        chunk = self._chunk(index, {}, **self._tokens(ids, logprobs), **_forced(self._request, call))
        chunk["choices"][0]["finish_reason"] = finish_reason(call)
        chunk["model"] = call.model  # which version answered is known only now
        if self._request.token_ids:
            chunk["prompt_token_ids"] = _listed(call.prompt_ids)
        return chunk

    def _tokens(self, ids: Sequence[int] | None, logprobs: Sequence[float] | None) -> dict[str, Any]:
        return _tokens(self._request, ids, logprobs, self._envelope.spell)

    def _chunk(self, index: int, delta: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return {**self._envelope.head("chat.completion.chunk", self._request.model), "choices": [choice]}


def spell_byte(token: int) -> bytes:
    """The spelling of our own models: a token is a byte, or a mark with a name."""
    return bytes([token]) if token < 256 else tokens.SPELLING.get(token, f"<|{token}|>").encode()


async def pieces(
    complete: Complete, messages: Sequence[Mapping[str, Any]], **sampling: Any
) -> AsyncGenerator[Piece | ModelCall, None]:
    """The answer piece by piece, the finished call last.

    A Complete with a `stream` is heard while it speaks. One without is waited for, and its finished answer is cut into
    words: the form of a stream, not its timing. In both cases the pieces say all that the finished message says.
    """
    stream = getattr(complete, "stream", None) or partial(_at_once, complete)
    said, calls = {"content": 0, "reasoning_content": 0}, 0
    async with aclosing(stream(messages, **sampling)) as answer:
        async for new in answer:
            if isinstance(new, ModelCall):
                rest = {name: (new.response.get(name) or "")[length:] for name, length in said.items()}
                for piece in cut({**rest, "tool_calls": () if calls else new.response.get("tool_calls")}):
                    yield piece
            else:
                said = {name: length + len(new.get(name) or "") for name, length in said.items()}
                calls += len(new.get("tool_calls") or ())
            yield new


async def _at_once(
    complete: Complete, messages: Sequence[Mapping[str, Any]], **sampling: Any
) -> AsyncGenerator[ModelCall, None]:
    yield await complete(messages, **sampling)


def cut(message: Mapping[str, Any]) -> Iterator[Piece]:
    """A finished message as pieces: its thought and its text word by word, then its calls."""
    for name in ("reasoning_content", "content"):
        for word in re.findall(r"\s*\S+\s*|\s+", message.get(name) or ""):
            yield {name: word}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.get("id"), "type": "function", "function": opening}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function.get("arguments") or ""}}]}


def _tokens(
    request: Request, ids: Sequence[int] | None, logprobs: Sequence[float] | None, spell: Spell | None
) -> dict[str, Any]:
    """Ids and log-probs of a choice, where they were asked for; null where the model did not give them."""
    shown: dict[str, Any] = {"logprobs": None}
    if request.logprobs and ids is not None and logprobs is not None:
        pairs = zip(ids, logprobs, strict=True)
        shown["logprobs"] = {"content": [_entry(request, *pair, spell) for pair in pairs], "refusal": None}
    if request.token_ids:
        shown["token_ids"] = _listed(ids)
    return shown


def _entry(request: Request, token: int, logprob: float, spell: Spell | None) -> dict[str, Any]:
    """A token with its log-prob. Of the likeliest others none is kept: the list has at most the token itself."""
    if spell is None:
        entry: dict[str, Any] = {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}  # as vLLM spells ids
    else:
        letters = spell(token)
        entry = {"token": letters.decode(errors="replace"), "logprob": logprob, "bytes": list(letters)}
    return {**entry, "top_logprobs": [dict(entry)] if request.top_logprobs else []}


def _forced(request: Request, call: ModelCall) -> dict[str, Any]:
    return {"forced": list(call.forced)} if request.token_ids and call.forced else {}


def _listed(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)
