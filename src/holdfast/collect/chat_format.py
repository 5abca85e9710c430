"""OpenAI's chat format: a request is read and checked to the last field; an answer is written whole or as chunks.

vLLM's additions for training keep vLLM's names; ours are `thinking`, `forced` and an answer's `sampling`. An unknown
field that could change the answer is refused by name. Log-probs are written as they are.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput
from holdfast.contracts.shapes import kind_of
from holdfast.contracts.trace import ModelCall, Span, SpanKind, tool_call_in
from holdfast.policies import tokens

DEEPEST = 100  # levels of nesting in a request
MOST_CHOICES = 128
ROLES = ("system", "developer", "user", "assistant", "tool")
UNUSED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
OURS = frozenset({"model", "messages", "n", "stream", "user", "logprobs", "top_logprobs", "return_token_ids"})
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # accepted only where they change nothing
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False),  # our models call tools one after another anyway
    "modalities": (["text"],),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "verbosity": ("medium",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A request for a chat completion."""

    model: str
    messages: tuple[Mapping[str, Any], ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)  # only what was given
    choices: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    stream: bool = False
    usage: bool = False  # in the last chunk
    user: str | None = None  # the caller, who keeps one version while versions change

    def samplings(self) -> list[Mapping[str, Any]]:
        """One for each choice. A seed is counted up, as in vLLM, so that the choices differ."""
        if not isinstance(self.sampling.get("seed"), int):
            return [self.sampling] * self.choices
        return [{**self.sampling, "seed": self.sampling["seed"] + number} for number in range(self.choices)]


def read_request(body: Any) -> Request:
    """The request in a decoded body; BadInput names the wrong field."""
    given = _given(body)
    _refuse_unknown(given)
    form = _form(given)
    if given.get("stream_options") and not form["stream"]:
        raise BadInput("stream_options", why="are for streams", remedy="set stream to true, or leave them out")
    if form["top_logprobs"] and not form["logprobs"]:
        raise BadInput("top_logprobs", why="need log-probs", remedy="set logprobs to true")
    return Request(messages=_messages(given.get("messages")), sampling=_sampling(given), **form)


def read_passing(body: Any) -> Request:
    """The request in a body that is passed on to another server, which checks the parameters itself."""
    given = _given(body)
    messages = _list(given.get("messages"), "messages")
    if not messages:
        raise BadInput("messages", why="is empty", remedy="give at least one")
    return Request(
        messages=tuple(_object(message, f"messages[{place}]") for place, message in enumerate(messages)),
        sampling={name: value for name, value in given.items() if name not in OURS},
        **_form(given),
    )


def _form(given: Mapping[str, Any]) -> dict[str, Any]:
    """The model, and the fields that say how the answer is written."""
    return {
        "model": _text(given.get("model"), "model"),
        "choices": _whole(given.get("n", 1), "n", 1, MOST_CHOICES),
        "logprobs": _flag(given, "logprobs"),
        "top_logprobs": _whole(given.get("top_logprobs", 0), "top_logprobs", 0, 20),
        "token_ids": _flag(given, "return_token_ids"),
        "stream": _flag(given, "stream"),
        "usage": _flag(_object(given.get("stream_options", {}), "stream_options"), "include_usage", "stream_options."),
        "user": _text(given["user"], "user") if "user" in given else None,
    }


def _given(body: Any) -> dict[str, Any]:
    """The fields that are not null."""
    if not isinstance(body, dict):
        raise BadInput("request", why=f"is {kind_of(body)}, not an object", remedy="send a JSON object")
    if _deeper_than(body, DEEPEST):
        raise BadInput("request", why=f"is nested deeper than {DEEPEST} levels", remedy="send it flatter")
    return {name: value for name, value in body.items() if value is not None}


def _refuse_unknown(given: Mapping[str, Any]) -> None:
    for name, value in given.items():
        if name in NEUTRAL and value not in NEUTRAL[name]:
            raise BadInput(name, why="is not supported here", remedy="leave it out")
        if name not in KNOWN:
            close = difflib.get_close_matches(name, KNOWN, n=1)
            raise BadInput(
                name[:100], why="is unknown", remedy=f"did you mean {close[0]}?" if close else "leave it out"
            )


def _sampling(given: Mapping[str, Any]) -> dict[str, Any]:
    sampling = {name: read(given[name], name) for name, read in SAMPLING.items() if name in given}
    if "max_completion_tokens" in given:
        most = SAMPLING["max_tokens"](given["max_completion_tokens"], "max_completion_tokens")
        if sampling.setdefault("max_tokens", most) != most:
            raise BadInput("max_tokens", why="differs from max_completion_tokens", remedy="give one of the two")
    choice = given.get("tool_choice", "auto")
    if choice not in ("auto", "none"):
        raise BadInput("tool_choice", why="a model here cannot be made to call a tool", remedy='give "auto" or "none"')
    if "tools" in given:
        tools = _tools(given["tools"])
        if choice == "auto" and tools:  # with "none" the model does not see them
            sampling["tools"] = tools
    return sampling


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise BadInput("messages", why=f"is {kind_of(value)}, not a list with messages", remedy="give at least one")
    for place, message in enumerate(value):
        at = f"messages[{place}]"
        role = _object(message, at).get("role")
        if role not in ROLES:
            raise BadInput(f"{at}.role = {_short(role)}", why="is unknown", remedy=f"use {', '.join(ROLES)}")
        _content(message.get("content"), f"{at}.content", optional=role == "assistant")
        for name in ("reasoning_content", "tool_call_id", "name"):
            if message.get(name) is not None:
                _text(message[name], f"{at}.{name}", blank=True)
        _tool_calls(message.get("tool_calls"), f"{at}.tool_calls")
    return tuple(value)


def _content(value: Any, at: str, *, optional: bool) -> None:
    if isinstance(value, str) or (optional and value is None):
        return
    if not isinstance(value, list):
        raise BadInput(at, why=f"is {kind_of(value)}, not text", remedy="give a string, or a list of text parts")
    for place, part in enumerate(value):
        if _object(part, f"{at}[{place}]").get("type") != "text":
            raise BadInput(f"{at}[{place}].type = {_short(part.get('type'))}", why="only text is read here")
        _text(part.get("text"), f"{at}[{place}].text", blank=True)


def _tool_calls(value: Any, at: str) -> None:
    if value is None:
        return
    for place, call in enumerate(_list(value, at)):
        function = _object(_object(call, f"{at}[{place}]").get("function"), f"{at}[{place}].function")
        # A call without a name is the model's own error, and may be sent back to it.
        _text(function.get("name"), f"{at}[{place}].function.name", blank=True)
        _text(function.get("arguments", ""), f"{at}[{place}].function.arguments", blank=True)


def _tools(value: Any) -> list[Mapping[str, Any]]:
    for place, tool in enumerate(_list(value, "tools")):
        at = f"tools[{place}]"
        if _object(tool, at).get("type", "function") != "function":
            raise BadInput(
                f"{at}.type = {_short(tool['type'])}", why="only functions are known", remedy="give function"
            )
        function = _object(tool.get("function"), f"{at}.function")
        _text(function.get("name"), f"{at}.function.name")
        parameters = _object(function.get("parameters") or {}, f"{at}.function.parameters")
        _object(parameters.get("properties") or {}, f"{at}.function.parameters.properties")
    return list(value)


def _stop(value: Any, name: str) -> tuple[str, ...]:
    words = [value] if isinstance(value, str) else _list(value, name)
    if len(words) > 16:
        raise BadInput(name, why=f"has {len(words)} strings", remedy="give at most 16")
    return tuple(_text(word, f"{name}[{place}]") for place, word in enumerate(words))


def _number(low: float, high: float, *, above: bool = False) -> Callable[[Any, str], float]:
    def read(value: Any, name: str) -> float:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise BadInput(f"{name} = {_short(value)}", why="is not possible", remedy=f"give {low:g} to {high:g}")
        if above and value == low:
            raise BadInput(f"{name} = {value}", why=f"must be above {low:g}", remedy=f"give at most {high:g}")
        return float(value)

    return read


def _whole_from(low: int, high: int = 2**63 - 1) -> Callable[[Any, str], int]:
    return lambda value, name: _whole(value, name, low, high)


def _whole(value: Any, name: str, low: int, high: int) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or not low <= value <= high:
        remedy = f"give a whole number from {low}" + (f" to {high}" if high < 2**63 - 1 else "")
        raise BadInput(f"{name} = {_short(value)}", why="is not possible", remedy=remedy)
    return value


def _top_k(value: Any, name: str) -> int:
    return max(_whole(value, name, -1, 2**31 - 1), 0)  # vLLM writes "all" as -1


def _text(value: Any, name: str, *, blank: bool = False) -> str:
    if not isinstance(value, str):
        raise BadInput(
            name, why="is missing" if value is None else f"is {kind_of(value)}, not text", remedy="give a string"
        )
    if not blank and not value:
        raise BadInput(name, why="is empty", remedy="give a string")
    return value


def _flag(given: Mapping[str, Any], name: str, at: str = "") -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise BadInput(f"{at}{name}", why=f"is {kind_of(value)}", remedy="give true or false")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(name, why="is missing" if value is None else f"is {kind_of(value)}", remedy="give an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadInput(name, why=f"is {kind_of(value)}", remedy="give a list")
    return value


def _short(value: Any) -> str:
    text = repr(value)
    return text if len(text) <= 60 else text[:59] + "…"


def _deeper_than(value: Any, limit: int) -> bool:
    level = [value]
    for _ in range(limit):
        level = [
            inner
            for outer in level
            for inner in (outer.values() if isinstance(outer, dict) else outer)
            if isinstance(inner, dict | list)
        ]
        if not level:
            return False
    return True


SAMPLING: Mapping[str, Callable[[Any, str], Any]] = {
    "temperature": _number(0, 2),
    "top_p": _number(0, 1, above=True),
    "top_k": _top_k,
    "max_tokens": _whole_from(1, 2**31 - 1),
    "stop": _stop,
    "seed": _whole_from(0, 2**63 - 1 - MOST_CHOICES),
    "thinking": _whole_from(0, 2**31 - 1),  # ours: the limit of tokens in <think>
}
KNOWN = frozenset(
    {*SAMPLING, *UNUSED, *NEUTRAL, "model", "messages", "max_completion_tokens", "tools", "tool_choice", "n"}
    | {"logprobs", "top_logprobs", "return_token_ids", "stream", "stream_options"}
)


BYTES = "bytes"  # the list of models' name for the tokens that `spell_byte` spells
TokenBytes = Callable[[int], bytes]  # the bytes of one token
Piece = Mapping[str, Any]  # OpenAI's delta, with the token_ids and logprobs of its text


@dataclass(frozen=True, slots=True, kw_only=True)
class Envelope:
    """What all parts of one answer share."""

    id: str
    created: int  # unix seconds
    token_bytes: TokenBytes | None = None

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
            **_tokens(request, call.completion_ids, call.logprobs, envelope.token_bytes),
            **_drawn(request, call),
        }
        for index, call in enumerate(calls)
    ]
    answer["usage"] = usage(calls)
    if request.token_ids:
        answer["prompt_token_ids"] = _listed(calls[0].prompt_ids)
    return answer


def finish_reason(call: ModelCall) -> str:
    """OpenAI's word for it: an answer that stops with a tool call ends in `tool_calls`."""
    reason = call.finish_reason or "stop"
    return "tool_calls" if reason == "stop" and call.response.get("tool_calls") else reason


def usage(calls: Sequence[ModelCall]) -> dict[str, Any] | None:
    """Prompt tokens once and completion tokens of all choices; None if the model does not count them."""
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
        """The last chunk of a choice: the finish reason, and the tokens that came with no piece."""
        self._done[index], sent = call, self._sent[index]
        ids = None if call.completion_ids is None else call.completion_ids[sent:]
        logprobs = None if call.logprobs is None else call.logprobs[sent:]
        chunk = self._chunk(index, {}, **self._tokens(ids, logprobs), **_drawn(self._request, call))
        chunk["choices"][0]["finish_reason"] = finish_reason(call)
        chunk["model"] = call.model  # the version that answered is known only now
        if self._request.token_ids:
            chunk["prompt_token_ids"] = _listed(call.prompt_ids)
        return chunk

    def _tokens(self, ids: Sequence[int] | None, logprobs: Sequence[float] | None) -> dict[str, Any]:
        return _tokens(self._request, ids, logprobs, self._envelope.token_bytes)

    def _chunk(self, index: int, delta: Mapping[str, Any], **more: Any) -> dict[str, Any]:
        choice = {"index": index, "delta": delta, "finish_reason": None, **more}
        return {**self._envelope.head("chat.completion.chunk", self._request.model), "choices": [choice]}


def spell_byte(token: int) -> bytes:
    """The bytes of one of our own tokens: a byte, or a named special token."""
    return bytes([token]) if token < 256 else tokens.SPELLING.get(token, f"<|{token}|>").encode()


async def pieces(
    complete: Complete, messages: Sequence[Mapping[str, Any]], **sampling: Any
) -> AsyncGenerator[Piece | ModelCall, None]:
    """The answer in pieces, the finished call last; together the pieces are the whole message.

    A Complete may have a `stream` of pieces that ends with the finished call. The answer of one without is cut into
    words when it is finished.
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
    """A finished message as pieces: thought and text word by word, then tool calls."""
    for name in ("reasoning_content", "content"):
        for word in re.findall(r"\s*\S+\s*|\s+", message.get(name) or ""):
            yield {name: word}
    for index, call in enumerate(message.get("tool_calls") or ()):
        function = call["function"]
        opening = {"name": function["name"], "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": call.get("id"), "type": "function", "function": opening}]}
        yield {"tool_calls": [{"index": index, "function": {"arguments": function.get("arguments") or ""}}]}


def _tokens(
    request: Request, ids: Sequence[int] | None, logprobs: Sequence[float] | None, spell: TokenBytes | None
) -> dict[str, Any]:
    """Ids and log-probs of a choice, if asked for; null if the model gives none."""
    shown: dict[str, Any] = {"logprobs": None}
    if request.logprobs and ids is not None and logprobs is not None:
        pairs = zip(ids, logprobs, strict=True)
        shown["logprobs"] = {"content": [_entry(request, *pair, spell) for pair in pairs], "refusal": None}
    if request.token_ids:
        shown["token_ids"] = _listed(ids)
    return shown


def _entry(request: Request, token: int, logprob: float, spell: TokenBytes | None) -> dict[str, Any]:
    """A token with its log-prob; other likely tokens are not kept, so the top list has only the token itself."""
    if spell is None:
        entry: dict[str, Any] = {"token": f"token_id:{token}", "logprob": logprob, "bytes": None}  # as vLLM spells ids
    else:
        letters = spell(token)
        entry = {"token": letters.decode(errors="replace"), "logprob": logprob, "bytes": list(letters)}
    return {**entry, "top_logprobs": [dict(entry)] if request.top_logprobs else []}


def _drawn(request: Request, call: ModelCall) -> dict[str, Any]:
    """The places that were not drawn, and the parameters in force, with the defaults that nobody asked for."""
    if not request.token_ids:
        return {}
    return {"sampling": dict(call.sampling), **({"forced": list(call.forced)} if call.forced else {})}


def _listed(ids: Sequence[int] | None) -> list[int] | None:
    return None if ids is None else list(ids)


def opening(messages: Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    """What was said before the first answer: the task of a conversation."""
    roles = [message.get("role") for message in messages]
    return list(messages[: roles.index("assistant") if "assistant" in roles else len(roles)])


def conversation_spans(
    messages: Sequence[Mapping[str, Any]], calls: Mapping[int, tuple[ModelCall, float]], at: float
) -> tuple[Span, ...]:
    """The spans of a conversation: the recorded calls, by the place of their answer among the messages and with their
    time, and a call of its tool for each tool result."""
    spans: list[Span] = []
    asked: dict[str, Mapping[str, Any]] = {}
    for place, message in enumerate(messages):
        seq = len(spans) + 1
        if message["role"] == "assistant":
            for tool_call in message.get("tool_calls") or ():
                if isinstance(tool_call, Mapping):
                    asked[str(tool_call.get("id"))] = tool_call.get("function") or {}
            if place in calls:
                call, at = calls[place]
                spans.append(Span(seq=seq, kind=SpanKind.MODEL, name="chat", model=call, started_at=at, ended_at=at))
        elif message["role"] == "tool":
            tool = tool_call_in(message, asked.get(str(message.get("tool_call_id")), {}))
            spans.append(Span(seq=seq, kind=SpanKind.TOOL, name=tool.tool, tool=tool, started_at=at, ended_at=at))
    return tuple(spans)
