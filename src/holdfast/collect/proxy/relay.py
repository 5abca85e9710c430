"""A model behind an upstream as something that answers messages: requests are passed on over the proxy's connections.

What is sent is what was asked for, under the model's own name; token ids and log-probs are asked for where the upstream
gives them, which no model sees. Which model answers which request is the caller's business.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping, Sequence
from typing import Any

import orjson

from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.dialect import ModelRequest, loads
from holdfast.collect.proxy.gate import Busy, UpstreamAnswer
from holdfast.collect.proxy.sse import Splitter
from holdfast.collect.proxy.upstream import LARGEST, BrokenOff, Unreachable, Upstreams
from holdfast.contracts.errors import BadInput, Fault
from holdfast.contracts.trace import ModelCall

REFUSED = frozenset({400, 413, 415, 422})  # the request itself is at fault; with other statuses, whoever serves it
KEYLESS = frozenset({401, 403})  # what such an answer says may have the key in it: callers are not told
TEXTS = ("content", "reasoning_content")
JSON = {"Content-Type": "application/json"}
STREAMED = "stream_options"  # only a stream may have them


class Relay:
    """`await relay(messages, temperature=…)`, or `relay.stream(messages, …)`; whatever else is given is passed on."""

    def __init__(self, upstreams: Upstreams, model: str, *, key: str) -> None:
        """`key` keeps to one of several upstreams."""
        self._upstreams, self._model, self._key, self._chat = upstreams, model, key, Chat()

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        plain = {name: value for name, value in sampling.items() if name != STREAMED}
        asked = self._asked(messages, plain)
        answer = await self._begun(asked)
        try:
            return self._chat.whole(asked, await _read(answer))
        except ValueError as error:
            raise self._fault(f"its answer cannot be read: {error}") from error
        except BrokenOff as error:
            raise self._fault(str(error)) from error
        finally:
            answer.close()

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """The answer as it comes, and the finished call last."""
        asked = self._asked(messages, {**sampling, "stream": True})
        answer = await self._begun(asked)
        whole, splitter = self._chat.stream(asked), Splitter()
        try:
            async for chunk in answer.chunks():
                for event in splitter.feed(chunk):
                    whole.feed(event)
                    if piece := self._piece(event.data):
                        yield piece
                if whole.is_ended:
                    break
            call = whole.result()
            if call.finish_reason is None or whole.has_holes or splitter.is_overfull:
                raise self._fault("its stream broke off")
            yield call
        except BrokenOff as error:
            raise self._fault(str(error)) from error
        finally:
            answer.close()

    def close(self) -> None:
        """The connections are shared with other versions: whoever opened them closes them."""

    def _asked(self, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> ModelRequest:
        return self._chat.read_request(orjson.dumps({"model": self._model, "messages": list(messages), **given}))

    async def _begun(self, asked: ModelRequest) -> UpstreamAnswer:
        try:
            _, answer = await self._upstreams.ask(self._chat, asked, JSON, self._key)
        except (Unreachable, Busy) as error:
            raise self._fault(str(error)) from error
        if answer.status == 200:
            return answer
        if answer.status in KEYLESS:
            answer.close()
            raise self._fault(f"HTTP {answer.status}: the upstream does not take our key")
        try:
            says = _complaint(await _read(answer))
        except BrokenOff:
            says = ""
        finally:
            answer.close()
        if answer.status in REFUSED:
            raise BadInput("request", why=f"the upstream refuses it: {says}", remedy="ask for something else")
        raise self._fault(f"HTTP {answer.status}: {says}")

    def _piece(self, data: bytes) -> dict[str, Any]:
        """What is new in an event, in the form of OpenAI's delta."""
        try:
            chunk = loads(data)
        except ValueError:
            return {}  # the mark of the end, or a hole, which the whole tells of
        if isinstance(chunk, dict) and chunk.get("error"):
            raise self._fault(_complaint(data))
        choices = chunk.get("choices") if isinstance(chunk, dict) else None
        first = choices[0] if isinstance(choices, list) and choices else None
        delta = first.get("delta") if isinstance(first, dict) else None
        if not isinstance(delta, dict):
            return {}
        texts = {name: delta[name] for name in TEXTS if isinstance(delta.get(name), str) and delta[name]}
        calls = delta.get("tool_calls")
        return {**texts, "tool_calls": calls} if isinstance(calls, list) and calls else texts

    def _fault(self, why: str) -> Fault:
        return Fault(f"upstream model {self._model}", why=why, remedy="is the upstream running, and is the key right?")


async def _read(answer: UpstreamAnswer) -> bytes:
    parts, size = [], 0
    async for chunk in answer.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > LARGEST:
            raise BrokenOff("the upstream", why=f"its answer is larger than {LARGEST} bytes")
    return b"".join(parts)


def _complaint(body: bytes) -> str:
    """What an error says, on one line and not too long."""
    try:
        found = loads(body)
    except ValueError:
        found = body.decode(errors="replace")
    error = found.get("error", found) if isinstance(found, Mapping) else found
    text = " ".join(str(error.get("message", error) if isinstance(error, Mapping) else error).split())
    return text if len(text) <= 300 else f"{text[:299]}…"
