"""Who may call a model through the gateway, and what a call there does: it is asked, and kept, as by `ctx.ask`.

Each attempt has addresses of its own, which end with it. HTTP is `gateway_app`'s business, the server `gateway`'s.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import secrets
import threading
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping, Sequence
from contextlib import aclosing, suppress
from functools import cached_property
from typing import Any, Protocol, TypeVar

from holdfast.collect.tracer import Tracer
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import Fault, HoldfastError
from holdfast.contracts.trace import ModelCall

T = TypeVar("T")
Pieces = AsyncGenerator[Mapping[str, Any] | ModelCall, None]


class Gone(HoldfastError):
    """The attempt has ended: nobody waits for an answer, and none is recorded."""


class Asking(Protocol):
    """What is needed of an attempt's context."""

    @property
    def complete(self) -> Complete | None: ...
    @property
    def model(self) -> str: ...
    @property
    def trace(self) -> Tracer: ...
    async def ask(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> ModelCall: ...
    def stream(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> Pieces: ...


class Register:
    """Who is found under which token. Tokens are signed: of those that have ended none need be kept."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._open: dict[str, Entry] = {}

    def add(self, entry: Entry) -> str:
        nonce = secrets.token_urlsafe(18)
        token = f"{nonce}.{self._sign(nonce)}"
        self._open[token] = entry
        return token

    def find(self, token: str) -> Entry | None:
        """None: there never was anybody."""
        entry = self._open.get(token)
        if entry is not None:
            return entry
        nonce, _, signature = token.partition(".")
        if hmac.compare_digest(signature.encode(), self._sign(nonce).encode()):
            raise Gone("this attempt", why="has ended", remedy="call the model only while the agent runs")
        return None

    def remove(self, token: str) -> None:
        self._open.pop(token, None)

    def _sign(self, nonce: str) -> str:
        return hmac.new(self._secret, nonce.encode(), hashlib.sha256).hexdigest()[:32]


class Access:
    """One attempt's way to the gateway, from its first use until the attempt ends. Safe to use from any thread."""

    def __init__(self, register: Register, address: Callable[[], str]) -> None:
        self._register, self._address = register, address
        self._entries: list[tuple[Entry, str]] = []  # and their tokens
        self._lock = threading.Lock()
        self.is_closed = False
        self.fault: Fault | None = None  # in which the last call ended

    @cached_property
    def key(self) -> str:
        """Made when it is first asked for: most agents never do."""
        return f"hf-{secrets.token_urlsafe(24)}"

    def url(self, context: Asking) -> str:
        """One address for each model that a context of this attempt may have: see `dataclasses.replace`."""
        with self._lock:
            return f"{self._address()}/a/{self._token(context)}"

    def close(self) -> None:
        """Calls from now on are refused, those under way are dropped."""
        with self._lock:
            self.is_closed = True
            for entry, token in self._entries:
                self._register.remove(token)
                entry.drop()

    def _token(self, context: Asking) -> str:
        for entry, token in self._entries:
            if entry.context.complete is context.complete:
                return token
        entry = Entry(context, self)
        token = self._register.add(entry)
        self._entries.append((entry, token))
        if self.is_closed:
            self._register.remove(token)
        return token


class Entry:
    """A model as one attempt's calls reach it."""

    def __init__(self, context: Asking, access: Access) -> None:
        self.context, self.access = context, access
        self.said: list[Mapping[str, Any]] = []  # the tool calls of all answers
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def any_sampling(self) -> bool:
        """Whether the model judges itself what it is asked for."""
        return bool(getattr(self.context.complete, "any_sampling", False))

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        return self._answered(await self._unless_closed(self.context.ask(messages, **sampling)))

    @property
    def stream(self) -> Callable[..., Pieces] | None:
        """None where the model has no stream: its whole answer is then cut into pieces."""
        return self._stream if hasattr(self.context.complete, "stream") else None

    async def _stream(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> Pieces:
        async with aclosing(self.context.stream(messages, **sampling)) as answer:
            while (new := await self._unless_closed(_next(answer))) is not None:
                yield self._answered(new) if isinstance(new, ModelCall) else new

    def drop(self) -> None:
        """Cancels what is under way; may be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the gateway has ended, and its calls with it
                self._loop.call_soon_threadsafe(self._cancel)

    def _cancel(self) -> None:
        for call in self._calls:
            call.cancel()

    def _answered(self, call: ModelCall) -> ModelCall:
        self.said += [one for one in call.response.get("tool_calls") or () if isinstance(one.get("function"), Mapping)]
        self.access.fault = None
        return call

    async def _unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop = asyncio.get_running_loop()
        call = self._loop.create_task(work)
        self._calls.add(call)
        if self.access.is_closed:  # `drop` may have come before there was anything to drop
            call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.access.is_closed and not (task and task.cancelling()):
                raise Gone("this attempt", why="has ended", remedy="nobody waits for the answer") from None
            raise
        except Fault as fault:
            self.access.fault = fault
            raise
        finally:
            self._calls.discard(call)


async def _next(answer: AsyncGenerator[T, None]) -> T | None:
    return await anext(answer, None)
