"""Where calls are answered: HTTP endpoints or policies in this process, one gate each; a rollout keeps to one of them.

A request may be asked again until its answer has begun. While an upstream is held, for instance to exchange its
weights, calls wait; those that wait too long are told when to come back. `Relay` is a model behind upstreams as a
`Complete`: it sends what was asked for under the model's own name, with token ids and log-probs where there are any.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import orjson

from holdfast.collect import client
from holdfast.collect.proxy.chat import Chat
from holdfast.collect.proxy.connection import Busy, Connection, Connections, Gate
from holdfast.collect.proxy.dialect import RETURNED, Dialect, ModelRequest, Splitter, loads
from holdfast.contracts.errors import BadInput, Fault, HoldfastError
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall

PASSING = frozenset({429, 502, 503, 504})  # statuses that are worth another try
STRANGE = frozenset({400, 404, 422})  # statuses for an unknown field
PASSED = frozenset(name.encode() for name in RETURNED)
PATIENCE_S = 5.0  # a longer Retry-After is passed to the client
LARGEST = 256 * 2**20  # bytes of a whole answer


class Unreachable(HoldfastError):
    """The upstream gave no answer."""


class Silent(Unreachable):
    """No answer within the timeout: another try would only double it."""


class BrokenOff(HoldfastError):
    """The upstream began its answer and did not end it."""


class Upstream:
    """An HTTP endpoint. Redirects are not followed."""

    def __init__(
        self,
        base_url: str,
        *,
        keys: Mapping[str, str] | None = None,  # by the name of a dialect's variable
        timeout_s: float = 30.0,
        hold_s: float = 30.0,
        most: int = 512,
        is_extended: bool = True,
    ) -> None:
        if not base_url.startswith(("http://", "https://")):
            why = "is not an http or https address without a password"
            raise BadInput(f"upstream {base_url.rpartition('@')[2]!r}", why=why, remedy="as in http://127.0.0.1:8000")
        self.name = client.checked("upstream", base_url, example="http://127.0.0.1:8000").removesuffix("/v1")
        self.gate = Gate(most, hold_s)
        self._keys, self._timeout_s = keys or {}, max(timeout_s, 1.0)
        self._is_extended = is_extended
        self._knows: dict[tuple[str, str], bool] = {}  # whether it takes our added fields, by path and model
        self._connections = Connections(self.name, connect_s=min(self._timeout_s, 10.0), read_s=self._timeout_s)

    def url(self, path: str) -> str:
        return self.name + path

    def signed(self, dialect: Dialect, headers: Mapping[str, str]) -> dict[str, str]:
        """The headers to send: the caller's, with our own key in place of theirs if we have one."""
        sent = {**headers, "Accept-Encoding": "identity"}
        own = self._keys.get(dialect.key_variable)
        if own is not None:
            for name in ("authorization", "x-api-key"):
                sent.pop(name, None)
            sent.update(dialect.credentials(own))
        return sent

    async def ask(self, dialect: Dialect, asked: ModelRequest, headers: Mapping[str, str], key: str) -> UpstreamAnswer:
        """The answer, once it has begun. The first call of a model shows whether it takes our added fields."""
        sent = self.signed(dialect, headers)
        path, what = dialect.path, (dialect.path, asked.model)
        known = self._knows.get(what) if self._is_extended and asked.extended is not None else False
        if known is False or asked.extended is None:
            return await self._post(path, asked.body, sent)
        answer = await self._post(path, asked.extended, sent)
        if known is None:
            if answer.status in STRANGE:
                answer.close()  # first: with a single place the next call would wait for it
                answer = await self._post(path, asked.body, sent)
                if answer.status < 300:
                    self._remember(what, False)
                return answer
            if answer.status < 300:
                self._remember(what, True)
        return answer

    def _remember(self, what: tuple[str, str], does: bool) -> None:
        if len(self._knows) < 10_000:  # callers choose the names
            self._knows[what] = does

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> UpstreamAnswer:
        await self.gate.enter()
        try:
            return UpstreamAnswer(await self._connections.post(path, headers, body), self._connections, self.gate.leave)
        except TimeoutError:
            self.gate.leave()
            raise Silent(self.name, why=f"no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            self.gate.leave()
            raise Unreachable(self.name, why=f"{type(error).__name__}: {error}"[:300]) from error
        except BaseException:
            self.gate.leave()
            raise

    async def close(self) -> None:
        self._connections.close()


class UpstreamAnswer:
    """An answer that has begun. It must be closed, however it ends."""

    def __init__(self, connection: Connection, connections: Connections, leave: Callable[[], None]) -> None:
        self._connection, self._connections, self._leave = connection, connections, leave
        self.status = connection.status
        self.headers: Mapping[str, str] = {
            name.decode("latin-1"): value.decode("latin-1")
            for name, value in connection.headers.items()
            if name in PASSED or name.startswith(b"x-ratelimit-")
        }
        self._is_closed = False

    async def chunks(self) -> AsyncIterator[bytes]:
        try:
            while chunk := await self._connection.read():
                yield chunk
        except TimeoutError:
            raise BrokenOff("the upstream", why="was silent for too long") from None
        except OSError as error:
            raise BrokenOff("the upstream", why=f"{type(error).__name__}: {error}"[:300]) from error

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._connections.rest(self._connection)
            self._leave()


class Upstreams:
    """All upstreams. A rollout keeps to one while it answers, so that its prompt cache is used."""

    def __init__(
        self, each: Sequence[Upstream], *, tries: int = 3, backoff: Backoff = Backoff(initial_s=0.2, cap_s=2.0)
    ) -> None:
        if not each:
            raise BadInput("upstream", why="there is none", remedy="give --upstream URL")
        if len({one.name for one in each}) < len(each):
            raise BadInput("upstream", why="one is there twice", remedy="name each once")
        self.each, self._tries, self._backoff = tuple(each), tries, backoff
        self._chance = random.Random()  # spreads retries; no result depends on it

    def ordered(self, rollout: str) -> Sequence[Upstream]:
        """The rollout's own upstream first (rendezvous hashing: adding one moves only its share)."""
        if len(self.each) == 1:
            return self.each
        return sorted(
            self.each, key=lambda one: blake2b(f"{one.name} {rollout}".encode(), digest_size=8).digest(), reverse=True
        )

    async def ask(
        self, dialect: Dialect, asked: ModelRequest, headers: Mapping[str, str], rollout: str
    ) -> tuple[Upstream, UpstreamAnswer]:
        order = self.ordered(rollout)
        for number in range(1, self._tries + 1):
            one = order[(number - 1) % len(order)]
            is_last = number == self._tries
            try:
                answer = await one.ask(dialect, asked, headers, rollout)
            except Unreachable as error:
                if is_last or isinstance(error, Silent):
                    raise
                wait_s = self._backoff.delay_s(number, self._chance.random())
            else:
                wait_s = self._again_in(answer, number)
                if is_last or answer.status not in PASSING or wait_s > PATIENCE_S:
                    return one, answer
                answer.close()
            if len(order) == 1 or number >= len(order):
                await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _again_in(self, answer: UpstreamAnswer, number: int) -> float:
        said = answer.headers.get("retry-after", "")
        if said.isdecimal():
            return float(said)
        return self._backoff.delay_s(number, self._chance.random())

    def named(self, name: str) -> Upstream:
        for one in self.each:
            if one.name == name.rstrip("/").removesuffix("/v1"):
                return one
        raise BadInput(
            f"upstream {name!r}", why="is unknown", remedy=f"there is {', '.join(o.name for o in self.each)}"
        )

    async def close(self) -> None:
        for one in self.each:
            await one.close()


REFUSED = frozenset({400, 413, 415, 422})  # the request is wrong; with other statuses the server is
KEYLESS = frozenset({401, 403})  # such an answer may repeat our key, so callers do not see it
TEXTS = ("content", "reasoning_content")
JSON = {"Content-Type": "application/json"}
STREAMED = "stream_options"  # only for streams


class Relay:
    """`await relay(messages, temperature=…)` or `relay.stream(messages, …)`; all parameters are passed on."""

    def __init__(self, upstreams: Upstreams, model: str, *, key: str) -> None:
        """`key` selects one of several upstreams."""
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
        """The pieces of the answer, and the finished call last."""
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
        """Nothing: the connections are shared, and their owner closes them."""

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
        """The new part in an event, as OpenAI's delta."""
        try:
            chunk = loads(data)
        except ValueError:
            return {}  # the end mark, or an event that the assembler reports as a hole
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
    """An error's message on one short line."""
    try:
        found = loads(body)
    except ValueError:
        found = body.decode(errors="replace")
    error = found.get("error", found) if isinstance(found, Mapping) else found
    text = " ".join(str(error.get("message", error) if isinstance(error, Mapping) else error).split())
    return text if len(text) <= 300 else f"{text[:299]}…"
