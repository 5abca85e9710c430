"""Policies of this process as an upstream: they answer with the endpoint's own code, and are kept as any other."""

from __future__ import annotations

import secrets
import time
from collections.abc import AsyncIterator, Callable, Mapping
from typing import Any

import orjson
from starlette.responses import StreamingResponse

from holdfast.collect.endpoint import answered
from holdfast.collect.proxy.dialect import Dialect, ModelRequest
from holdfast.collect.proxy.gate import Gate, UpstreamAnswer
from holdfast.collect.reply import Envelope, Spell
from holdfast.collect.request import read_request
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput


class Near:
    """Policies in this process, chosen for each call: a call that has begun ends with the one it began with."""

    name = "local"

    def __init__(
        self,
        choose_version: Callable[[str], Complete],
        *,
        spell: Spell | None = None,
        clock: Callable[[], float] = time.time,
        hold_s: float = 30.0,
        most: int = 512,
    ) -> None:
        self._choose_version, self.spell, self._clock = choose_version, spell, clock
        self.gate = Gate(most, hold_s)

    def url(self, path: str) -> str:
        return f"local:{path}"

    async def ask(self, dialect: Dialect, asked: ModelRequest, headers: Mapping[str, str], key: str) -> UpstreamAnswer:
        if dialect.path != "/v1/chat/completions":
            raise BadInput(dialect.path, why="is not spoken by local policies", remedy="use /v1/chat/completions")
        request = read_request(orjson.loads(asked.extended or asked.body))
        envelope = Envelope(id=f"chatcmpl-{secrets.token_hex(12)}", created=int(self._clock()), spell=self.spell)
        await self.gate.enter()
        try:
            return NearAnswer(
                await answered(self._choose_version(asked.user or key), request, envelope), self.gate.leave
            )
        except BaseException:
            self.gate.leave()
            raise

    async def close(self) -> None:
        """There is nothing of its own."""


class NearAnswer:
    def __init__(self, response: Any, leave: Callable[[], None]) -> None:
        self._response, self._leave, self._is_closed = response, leave, False
        self.status: int = response.status_code
        self.headers: Mapping[str, str] = {"content-type": response.headers["content-type"]}

    async def chunks(self) -> AsyncIterator[bytes]:
        if not isinstance(self._response, StreamingResponse):
            yield self._response.body
            return
        try:
            async for chunk in self._response.body_iterator:
                yield chunk  # type: ignore[misc]
        finally:
            await self._response.body_iterator.aclose()  # type: ignore[attr-defined]

    def close(self) -> None:
        if not self._is_closed:
            self._is_closed = True
            self._leave()
