"""A chat completion that was asked for, in OpenAI's format: read from a decoded body and checked to the last field.

What vLLM adds for training is known under vLLM's names (`return_token_ids`, `top_k`), and `thinking`, our own. A field
that would change the answer and that we do not know is refused by name. How the answer is written: `reply`.
"""

from __future__ import annotations

import difflib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from holdfast.contracts.errors import BadInput
from holdfast.contracts.shapes import NAMES

DEEPEST = 100  # levels of a request
MOST_CHOICES = 128
ROLES = ("system", "developer", "user", "assistant", "tool")
UNUSED = frozenset({"user", "metadata", "store", "service_tier", "safety_identifier", "prompt_cache_key"})
OURS = frozenset({"model", "messages", "n", "stream", "user", "logprobs", "top_logprobs", "return_token_ids"})
NEUTRAL: Mapping[str, tuple[Any, ...]] = {  # accepted only where they change nothing
    "frequency_penalty": (0,),
    "presence_penalty": (0,),
    "logit_bias": ({},),
    "response_format": ({"type": "text"},),
    "parallel_tool_calls": (True, False),  # one call after the other is what models here do anyway
    "modalities": (["text"],),
    "min_p": (0,),
    "repetition_penalty": (1,),
    "verbosity": ("medium",),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """A chat completion that was asked for."""

    model: str
    messages: tuple[Mapping[str, Any], ...]
    sampling: Mapping[str, Any] = field(default_factory=dict)  # only what was given: the rest is the model's default
    choices: int = 1
    logprobs: bool = False
    top_logprobs: int = 0
    token_ids: bool = False
    stream: bool = False
    usage: bool = False  # in the last chunk
    user: str | None = None  # who asks: keeps one version while versions change

    def samplings(self) -> list[Mapping[str, Any]]:
        """One for each choice. A seed is counted up, as in vLLM: several times the same answer is of no use."""
        if not isinstance(self.sampling.get("seed"), int):
            return [self.sampling] * self.choices
        return [{**self.sampling, "seed": self.sampling["seed"] + number} for number in range(self.choices)]


def read_request(body: Any) -> Request:
    """The request in a decoded body; BadInput names the field that is wrong."""
    given = _given(body)
    _refuse_unknown(given)
    stream = _flag(given, "stream")
    options = _object(given.get("stream_options", {}), "stream_options")
    if options and not stream:
        raise BadInput("stream_options", why="are for streams", remedy="set stream to true, or leave them out")
    logprobs, top = _flag(given, "logprobs"), _whole(given.get("top_logprobs", 0), "top_logprobs", 0, 20)
    if top and not logprobs:
        raise BadInput("top_logprobs", why="need log-probs", remedy="set logprobs to true")
    return Request(
        model=_text(given.get("model"), "model"),
        messages=_messages(given.get("messages")),
        sampling=_sampling(given),
        choices=_whole(given.get("n", 1), "n", 1, MOST_CHOICES),
        logprobs=logprobs,
        top_logprobs=top,
        token_ids=_flag(given, "return_token_ids"),
        stream=stream,
        usage=_flag(options, "include_usage", "stream_options."),
        user=_text(given["user"], "user") if "user" in given else None,
    )


def read_passing(body: Any) -> Request:
    """The same of a body that is passed on to another server: that one knows what it takes, and we look at no more
    than we need. What shapes the answer goes on as it came."""
    given = _given(body)
    messages = _list(given.get("messages"), "messages")
    if not messages:
        raise BadInput("messages", why="is empty", remedy="give at least one")
    return Request(
        model=_text(given.get("model"), "model"),
        messages=tuple(_object(message, f"messages[{place}]") for place, message in enumerate(messages)),
        sampling={name: value for name, value in given.items() if name not in OURS},
        choices=_whole(given.get("n", 1), "n", 1, MOST_CHOICES),
        logprobs=_flag(given, "logprobs"),
        top_logprobs=_whole(given.get("top_logprobs", 0), "top_logprobs", 0, 20),
        token_ids=_flag(given, "return_token_ids"),
        stream=_flag(given, "stream"),
        usage=_flag(_object(given.get("stream_options", {}), "stream_options"), "include_usage", "stream_options."),
        user=_text(given["user"], "user") if "user" in given else None,
    )


def _given(body: Any) -> dict[str, Any]:
    """The fields that say something."""
    if not isinstance(body, dict):
        raise BadInput("request", why=f"is {_kind(body)}, not an object", remedy="send a JSON object")
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
        if choice == "auto" and tools:  # with "none" the model is not told that there are any
            sampling["tools"] = tools
    return sampling


def _messages(value: Any) -> tuple[Mapping[str, Any], ...]:
    if not isinstance(value, list) or not value:
        raise BadInput("messages", why=f"is {_kind(value)}, not a list with messages", remedy="give at least one")
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
        raise BadInput(at, why=f"is {_kind(value)}, not text", remedy="give a string, or a list of text parts")
    for place, part in enumerate(value):
        if _object(part, f"{at}[{place}]").get("type") != "text":
            raise BadInput(f"{at}[{place}].type = {_short(part.get('type'))}", why="only text is read here")
        _text(part.get("text"), f"{at}[{place}].text", blank=True)


def _tool_calls(value: Any, at: str) -> None:
    if value is None:
        return
    for place, call in enumerate(_list(value, at)):
        function = _object(_object(call, f"{at}[{place}]").get("function"), f"{at}[{place}].function")
        # A call without a name is a slip of the model's own, and may come back to it.
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
            name, why="is missing" if value is None else f"is {_kind(value)}, not text", remedy="give a string"
        )
    if not blank and not value:
        raise BadInput(name, why="is empty", remedy="give a string")
    return value


def _flag(given: Mapping[str, Any], name: str, at: str = "") -> bool:
    value = given.get(name, False)
    if not isinstance(value, bool):
        raise BadInput(f"{at}{name}", why=f"is {_kind(value)}", remedy="give true or false")
    return value


def _object(value: Any, name: str) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise BadInput(name, why="is missing" if value is None else f"is {_kind(value)}", remedy="give an object")
    return value


def _list(value: Any, name: str) -> list[Any]:
    if not isinstance(value, list):
        raise BadInput(name, why=f"is {_kind(value)}", remedy="give a list")
    return value


def _kind(value: Any) -> str:
    return NAMES.get(type(value), type(value).__name__)


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
    "thinking": _whole_from(0, 2**31 - 1),  # ours: the budget of tokens in <think>
}
KNOWN = frozenset(
    {*SAMPLING, *UNUSED, *NEUTRAL, "model", "messages", "max_completion_tokens", "tools", "tool_choice", "n"}
    | {"logprobs", "top_logprobs", "return_token_ids", "stream", "stream_options"}
)
