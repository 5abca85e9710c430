"""What the proxy has to know about an API in order to keep its calls: how one is asked for, and how an answer is read.

A dialect reads; it never changes a byte of what is passed on. The one thing it may say about the request is what could
be added to it, so that the upstream gives token ids and log-probs (`ModelRequest.extended`). `app` and `upstream` move
the bytes, `sse` splits a stream into events.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, NoReturn, Protocol

import orjson

from holdfast.collect.proxy.said import MOST
from holdfast.collect.proxy.sse import Event
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall

FORWARDED = frozenset({"content-type", "x-request-id"})  # of a request, in every dialect; besides them its credentials
RETURNED = frozenset({"content-type", "content-encoding", "retry-after", "x-request-id", "request-id"})


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelRequest:
    """A model call as it was asked for."""

    model: str
    messages: tuple[Mapping[str, Any], ...]  # in OpenAI's chat form, whatever the dialect
    sampling: Mapping[str, Any] = field(default_factory=dict)  # temperature, tools, …: all else that shapes the answer
    is_streamed: bool = False
    user: str | None = None  # who asks: keeps one version while versions change
    body: bytes  # as it came
    extended: bytes | None = None  # the same with ids and log-probs asked for; None: nothing to add, or no way to ask


class Assembler(Protocol):
    """One streamed answer, put together beside the bytes that pass. It never raises, whatever an event holds."""

    is_ended: bool  # the stream has said that it is over: the bytes that said so are the last that matter
    has_begun: bool  # something of the answer itself has come: the moment is the time to the first token
    has_holes: bool  # an event could not be read: what it said is missing, and nobody knows where

    def feed(self, event: Event) -> None: ...

    def result(self) -> ModelCall:
        """What has come so far, at any moment; `finish_reason` is None until the answer ended."""
        ...


class Dialect(Protocol):
    """An API as it is spoken at one path."""

    path: str  # "/v1/chat/completions"
    key_variable: str  # the environment's variable with the upstream's key
    forwarded: frozenset[str]  # request headers that are passed on, in small letters; credentials are apart

    def credentials(self, key: str) -> Mapping[str, str]:
        """The headers that carry an upstream's own key."""
        ...

    def read_request(self, body: bytes) -> ModelRequest:
        """BadInput where it is no request of this dialect: what is not understood cannot be kept."""
        ...

    def whole(self, asked: ModelRequest, body: bytes) -> ModelCall:
        """The call with its answer; ValueError where the body is none."""
        ...

    def stream(self, asked: ModelRequest) -> Assembler: ...


def read_object(body: bytes) -> dict[str, Any]:
    """The JSON object of a request; BadInput says what it is instead."""
    try:
        found = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        raise BadInput("request", why=f"is not JSON: {error}") from None
    if not isinstance(found, dict):
        raise BadInput("request", why="is not an object", remedy="send a JSON object")
    return found


def loads(text: bytes) -> Any:
    """JSON as upstreams write it, half a character included; ValueError where it is none."""
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
    """The object with members put before its own, nothing else touched: what it says already it goes on saying."""
    new = {name: value for name, value in added.items() if name not in given}
    if not new or not given:
        return None
    opening = body.index(b"{") + 1
    return body[:opening] + orjson.dumps(new)[1:-1] + b"," + body[opening:]


def token_ids(value: Any) -> tuple[int, ...] | None:
    """Ids, or None where it is anything else."""
    if not isinstance(value, list) or not set(map(type, value)) <= {int} or min(value, default=0) < 0:
        return None
    # The sum is reckoned sooner than the largest is found, and of a prompt's ids it is small enough.
    return tuple(value) if sum(value) <= MOST or max(value) <= MOST else None
