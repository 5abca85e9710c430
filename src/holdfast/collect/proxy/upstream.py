"""Where calls are answered: HTTP endpoints with a gate and kept connections each; a rollout keeps to one of them.

A request may be asked again until its answer has begun. While an upstream is held, calls wait. Our own HTTP/1.1 costs
a tenth of a general client: no redirects, cookies, compression or proxies.
"""

from __future__ import annotations

import asyncio
import random
import re
import select
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b
from typing import Any

import httptools
import orjson
from yarl import URL

from holdfast.collect import client
from holdfast.collect.proxy.dialect import RETURNED, Chat, Dialect, ModelRequest, Splitter, loads
from holdfast.contracts.errors import BadInput, Fault, HoldfastError
from holdfast.contracts.rollout import Backoff
from holdfast.contracts.trace import ModelCall

PASSING = frozenset({429, 502, 503, 504})  # statuses that are worth another try
STRANGE = frozenset({400, 404, 422})  # statuses for an unknown field
PASSED = frozenset(name.encode() for name in RETURNED)
TRIES = 3  # of one request
PATIENCE_S = 5.0  # a longer Retry-After is passed to the client
LARGEST = 256 * 2**20  # bytes of a whole answer


class Busy(HoldfastError):
    """The upstream is held or full."""

    retry_after_s = 1


class Gate:
    """Lets so many calls in at a time, and none while it is held."""

    def __init__(self, most: int, hold_s: float) -> None:
        self._most, self._hold_s = most, hold_s
        self.inside = 0
        self.is_held = False
        self._waiting: list[asyncio.Future[None]] = []

    def hold(self) -> None:
        """New calls wait; those inside go on."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._let_in()

    async def enter(self) -> None:
        """Waits for a place; Busy if that takes too long."""
        if not self.is_held and self.inside < self._most and not self._waiting:
            self.inside += 1
            return
        place = asyncio.get_running_loop().create_future()
        self._waiting.append(place)
        try:
            async with asyncio.timeout(self._hold_s):
                await place
        except BaseException as error:
            if place in self._waiting:
                self._waiting.remove(place)
            elif place.done() and not place.cancelled():
                self.leave()  # it was let in at the moment it gave up
            if isinstance(error, TimeoutError):
                why = "is held" if self.is_held else f"has {self.inside} calls under way"
                raise Busy("the upstream", why=why, remedy="come back a little later") from None
            raise

    def leave(self) -> None:
        self.inside -= 1
        self._let_in()

    def _let_in(self) -> None:
        while self._waiting and not self.is_held and self.inside < self._most:
            place = self._waiting.pop(0)
            if not place.done():
                self.inside += 1
                place.set_result(None)


KEEP_S = 30.0  # an idle connection is not used again after this
MOST_HEAD = 2**17  # bytes that are no body: before, between and after its pieces
MOST_WAITING = 2**19  # unread bytes of a body; beyond them we stop reading
LISTEN_S = 0.01
UNFIT = re.compile(r"[\x00-\x08\x0a-\x1f\x7f]")  # in a header


class BrokenConnection(OSError):
    """The upstream does not speak HTTP, or stopped in the middle."""


class Connections:
    """The connections to one address."""

    def __init__(self, base: str, *, connect_s: float, read_s: float) -> None:
        url = URL(base, encoded=True)
        self._host, self._port, self._below = url.host or "", url.port or 0, url.raw_path.rstrip("/")
        self._named = url.host_port_subcomponent or ""
        self._tls = ssl.create_default_context() if url.scheme == "https" else None
        self._connect_s, self._read_s = connect_s, read_s
        self._resting: list[Connection] = []  # the last used comes last

    async def send(self, method: str, path: str, headers: Mapping[str, str], body: bytes = b"") -> Connection:
        """The connection once the answer's head is there; TimeoutError or OSError if none comes."""
        lines = [f"{method} {self._below}{path} HTTP/1.1", f"Host: {self._named}", f"Content-Length: {len(body)}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        for line in lines:
            if UNFIT.search(line):
                raise BadInput(f"header {line.partition(':')[0][:60]!r}", why="has a letter that no header can hold")
        connection = self._rested() or await self._new()
        try:
            await connection.ask("\r\n".join([*lines, "\r\n"]).encode("latin-1", "replace") + body)
        except BaseException:
            connection.abort()
            raise
        return connection

    def rest(self, connection: Connection) -> None:
        """Keeps a connection whose answer was read; closes any other."""
        if not connection.can_rest:
            connection.abort()
            return
        connection.rested_at = now = asyncio.get_running_loop().time()
        self._resting.append(connection)
        while now - self._resting[0].rested_at > KEEP_S:
            self._resting.pop(0).abort()

    def close(self) -> None:
        while self._resting:
            self._resting.pop().abort()

    def _rested(self) -> Connection | None:
        while self._resting:
            connection = self._resting.pop()
            if connection.is_quiet and asyncio.get_running_loop().time() - connection.rested_at <= KEEP_S:
                return connection
            connection.abort()
        return None

    async def _new(self) -> Connection:
        loop = asyncio.get_running_loop()
        async with asyncio.timeout(self._connect_s):
            return (
                await loop.create_connection(
                    lambda: Connection(loop, self._read_s), self._host, self._port, ssl=self._tls
                )
            )[1]


class Connection(asyncio.Protocol):
    """`status` and `headers` are those of the last answer."""

    def __init__(self, loop: asyncio.AbstractEventLoop, read_s: float) -> None:
        self._loop, self._read_s = loop, read_s
        self._transport: Any = None
        self._parser: Any = None  # while an answer is expected
        self._waiter: asyncio.Future[None] | None = None
        self._timer: asyncio.TimerHandle | None = None
        self.is_lost = False
        self.rested_at = 0.0

    @property
    def can_rest(self) -> bool:
        return self._is_whole and self._is_kept and not self._is_paused and not self.is_lost

    @property
    def is_quiet(self) -> bool:
        """Open, and without unread data, which would be taken for the next answer."""
        if self.is_lost or self._transport.is_closing():
            return False
        poll = select.poll()
        poll.register(self._transport.get_extra_info("socket").fileno(), select.POLLIN)
        return not poll.poll(0)

    async def ask(self, request: bytes) -> None:
        self.status, self.headers = 0, dict[bytes, bytes]()
        self._parts: list[bytes] = []
        self._waiting = self._bare = 0
        self._has_head = self._is_whole = self._is_kept = self._is_framed = self._is_paused = False
        self._error: BaseException | None = None
        self._parser = httptools.HttpResponseParser(self)
        self._transport.write(request)
        self._heard = self._loop.time()
        self._timer = self._loop.call_later(self._read_s, self._late)
        while not self._has_head:
            await self._more()

    async def read(self) -> bytes:
        """The bytes since the last read; empty at the end. TimeoutError or OSError if it breaks off."""
        while not self._parts:
            if self._is_whole:
                return b""
            await self._more()
        found = self._parts[0] if len(self._parts) == 1 else b"".join(self._parts)
        self._parts.clear()
        self._waiting = 0
        if self._is_paused and not self.is_lost:
            self._is_paused, self._heard = False, self._loop.time()
            self._transport.resume_reading()
        return found

    async def _more(self) -> None:
        if self._error is not None:
            raise self._error
        self._waiter = self._loop.create_future()
        try:
            await self._waiter
        finally:
            self._waiter = None

    def abort(self) -> None:
        self._rest()
        self.is_lost = True
        if self._transport is not None:
            self._transport.abort()

    def _rest(self) -> None:
        self._parser = None
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _late(self, is_sure: bool = False) -> None:
        """Times out after silence; while we pause reading, the upstream is not silent."""
        now = self._loop.time()
        left_s = self._read_s if self._is_paused else self._heard + self._read_s - now
        if left_s > 0:
            self._timer = self._loop.call_later(left_s, self._late)
        elif not is_sure:  # data may be waiting while this loop was busy
            self._timer = self._loop.call_later(LISTEN_S, self._late, True)
        else:
            self._fail(TimeoutError())

    def _fail(self, error: BaseException) -> None:
        if self._parser is not None:
            self._error = error
            self._wake()
        self.abort()

    def _wake(self) -> None:
        if self._waiter is not None and not self._waiter.done():
            self._waiter.set_result(None)

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self._transport = transport

    def data_received(self, data: bytes) -> None:
        if self._parser is None:
            self.abort()  # without a request
            return
        self._heard = self._loop.time()
        self._bare += len(data)
        try:
            self._parser.feed_data(data)
        except (httptools.HttpParserError, httptools.HttpParserUpgrade) as error:
            why = error.__context__
            self._fail(
                why if isinstance(why, BrokenConnection) else BrokenConnection(f"its answer is no HTTP: {error}")
            )
            return
        if self._bare > MOST_HEAD and not self._is_whole:
            what = "what it sends between the pieces of its answer" if self._has_head else "the head of its answer"
            self._fail(BrokenConnection(f"{what} is larger than {MOST_HEAD} bytes"))
        elif self._waiting > MOST_WAITING and not self._is_paused and not self.is_lost:
            self._is_paused = True
            self._transport.pause_reading()

    def connection_lost(self, error: Exception | None) -> None:
        if self._parser is not None and self._has_head and not self._is_framed and error is None:
            self._is_whole = True  # its end is the connection's end
            self._rest()
            self._wake()
        self._fail(error if isinstance(error, OSError) else BrokenConnection("it hung up"))

    def on_message_begin(self) -> None:
        if self._is_whole:
            raise BrokenConnection("it says more than it was asked")

    def on_header(self, name: bytes, value: bytes) -> None:
        if self._has_head:
            return  # a trailer must not change the head
        name = name.lower()
        self._is_framed |= name in (b"content-length", b"transfer-encoding")
        self.headers[name] = value

    def on_headers_complete(self) -> None:
        self.status = self._parser.get_status_code()
        if self.status == 101 or not 100 <= self.status <= 599:
            raise BrokenConnection(f"its status is {self.status}")
        if self.status >= 200:  # below: an interim response
            self._has_head = True
            self._is_framed |= self.status in (204, 304)
            self._wake()

    def on_body(self, body: bytes) -> None:
        self._bare = 0
        self._parts.append(body)
        self._waiting += len(body)
        self._wake()

    def on_message_complete(self) -> None:
        if self._has_head:
            self._is_whole, self._is_kept = True, self._parser.should_keep_alive()
            self._rest()
            self._wake()
        else:
            self.headers.clear()
            self._is_framed = False


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

    async def ask(
        self, dialect: Dialect, request: ModelRequest, headers: Mapping[str, str], key: str
    ) -> UpstreamAnswer:
        """The answer, once it has begun. The first call of a model shows whether it takes our added fields."""
        sent = self.signed(dialect, headers)
        path, what = dialect.path, (dialect.path, request.model)
        known = self._knows.get(what) if self._is_extended and request.extended is not None else False
        if known is False or request.extended is None:
            return await self._post(path, request.body, sent)
        answer = await self._post(path, request.extended, sent)
        if known is None:
            if answer.status in STRANGE:
                answer.close()  # first: with a single place the next call would wait for it
                answer = await self._post(path, request.body, sent)
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
            return UpstreamAnswer(
                await self._connections.send("POST", path, headers, body), self._connections, self.gate.leave
            )
        except TimeoutError:
            self.gate.leave()
            raise Silent(self.name, why=f"no answer within {self._timeout_s:g} s") from None
        except OSError as error:
            self.gate.leave()
            raise Unreachable(self.name, why=f"{type(error).__name__}: {error}"[:300]) from error
        except BaseException:
            self.gate.leave()
            raise

    async def get(self, path: str, headers: Mapping[str, str]) -> UpstreamAnswer:
        """An answer outside the gate, for short questions about the upstream itself."""
        return UpstreamAnswer(await self._connections.send("GET", path, headers), self._connections, lambda: None)

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

    def __init__(self, each: Sequence[Upstream], *, backoff: Backoff = Backoff(initial_s=0.2, cap_s=2.0)) -> None:
        if not each:
            raise BadInput("upstream", why="there is none", remedy="give --upstream URL")
        if len({upstream.name for upstream in each}) < len(each):
            raise BadInput("upstream", why="one is there twice", remedy="name each once")
        self.each, self._backoff = tuple(each), backoff
        self._chance = random.Random()  # spreads retries; no result depends on it

    def ordered(self, rollout: str) -> Sequence[Upstream]:
        """The rollout's own upstream first (rendezvous hashing: adding one moves only its share)."""
        if len(self.each) == 1:
            return self.each
        return sorted(
            self.each,
            key=lambda upstream: blake2b(f"{upstream.name} {rollout}".encode(), digest_size=8).digest(),
            reverse=True,
        )

    async def ask(
        self, dialect: Dialect, request: ModelRequest, headers: Mapping[str, str], rollout: str
    ) -> tuple[Upstream, UpstreamAnswer]:
        order = self.ordered(rollout)
        for number in range(1, TRIES + 1):
            upstream = order[(number - 1) % len(order)]
            is_last = number == TRIES
            try:
                answer = await upstream.ask(dialect, request, headers, rollout)
            except Unreachable as error:
                if is_last or isinstance(error, Silent):
                    raise
                wait_s = self._backoff.delay_s(number, self._chance.random())
            else:
                wait_s = self._again_in(answer, number)
                if is_last or answer.status not in PASSING or wait_s > PATIENCE_S:
                    return upstream, answer
                answer.close()
            if len(order) == 1 or number >= len(order):
                await asyncio.sleep(wait_s)
        raise AssertionError("the last try returns or raises")

    def _again_in(self, answer: UpstreamAnswer, number: int) -> float:
        wait = answer.headers.get("retry-after", "")
        if wait.isdecimal():
            return float(wait)
        return self._backoff.delay_s(number, self._chance.random())

    def named(self, name: str) -> Upstream:
        for upstream in self.each:
            if upstream.name == name.rstrip("/").removesuffix("/v1"):
                return upstream
        raise BadInput(
            f"upstream {name!r}", why="is unknown", remedy=f"there is {', '.join(o.name for o in self.each)}"
        )

    async def close(self) -> None:
        for upstream in self.each:
            await upstream.close()


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
        request = self._request(messages, plain)
        answer = await self._begun(request)
        try:
            return self._chat.whole(request, await read(answer))
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
        request = self._request(messages, {**sampling, "stream": True})
        answer = await self._begun(request)
        whole, splitter = self._chat.stream(request), Splitter()
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

    def _request(self, messages: Sequence[Mapping[str, Any]], given: Mapping[str, Any]) -> ModelRequest:
        return self._chat.read_request(orjson.dumps({"model": self._model, "messages": list(messages), **given}))

    async def _begun(self, request: ModelRequest) -> UpstreamAnswer:
        try:
            _, answer = await self._upstreams.ask(self._chat, request, JSON, self._key)
        except (Unreachable, Busy) as error:
            raise self._fault(str(error)) from error
        if answer.status == 200:
            return answer
        if answer.status in KEYLESS:
            answer.close()
            raise self._fault(f"HTTP {answer.status}: the upstream does not take our key")
        try:
            says = client.complaint(await read(answer))
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
            raise self._fault(client.complaint(data))
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


async def read(answer: UpstreamAnswer, largest: int = LARGEST) -> bytes:
    """The whole body; BrokenOff if it is larger."""
    parts, size = [], 0
    async for chunk in answer.chunks():
        parts.append(chunk)
        size += len(chunk)
        if size > largest:
            raise BrokenOff("the upstream", why=f"its answer is larger than {largest} bytes")
    return b"".join(parts)
