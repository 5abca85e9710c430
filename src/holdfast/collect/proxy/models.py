"""Which models the upstreams have and who serves them: asked of each upstream, and remembered for a while.

What an upstream says there tells how its tokens are spelt, for those who scrub them, and how it can be held to a number
of thinking tokens. An upstream that does not say is taken for one that we know nothing of.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import aiohttp
import orjson
from yarl import URL

from holdfast.collect.endpoint import OWNER
from holdfast.collect.proxy.dialect import RETURNED, Dialect
from holdfast.collect.proxy.near import Near
from holdfast.collect.proxy.upstream import Remote, Unreachable, Upstream
from holdfast.collect.reply import BYTES, spell_byte
from holdfast.policies import tokens

PATH = "/v1/models"
TIMEOUT_S = 2.0
FRESH_S, UNKNOWN_S = 60.0, 30.0  # how long an answer, or that there was none, is taken for true
LARGEST = 4 * 2**20  # bytes of a list
MOST = 10_000  # models that are remembered: their names come from callers


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list of models as it came."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def entries(self) -> list[dict[str, Any]]:
        """Those of a list of models; none where it is something else."""
        try:
            found = orjson.loads(self.body) if self.status == 200 else None
        except orjson.JSONDecodeError:
            found = None
        data = found.get("data") if isinstance(found, dict) else None
        return [one for one in data if isinstance(one, dict)] if isinstance(data, list) else []


@dataclass(frozen=True, slots=True, kw_only=True)
class Known:
    """What an upstream says of one of its models."""

    owner: str | None = None  # who serves it: "holdfast", "vllm", …
    is_spelt: bool = False  # its tokens are our own: a byte, or a mark with a name


class UpstreamModels:
    def __init__(self, upstreams: Sequence[Upstream], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstreams, self._clock = upstreams, clock
        self._session: aiohttp.ClientSession | None = None
        self._known: dict[tuple[str, str], tuple[float, asyncio.Task[Known]]] = {}  # until when, and what

    async def listed(self, dialect: Dialect, headers: Mapping[str, str]) -> Listing:
        """Of a single upstream its own answer; of several what each has, and the first's where none has anything."""
        if len(self._upstreams) == 1:
            return await self._ask(self._upstreams[0], dialect, headers)
        asked = (self._ask(one, dialect, headers) for one in self._upstreams)
        found = await asyncio.gather(*asked, return_exceptions=True)
        answers = [one for one in found if isinstance(one, Listing)]
        every = {str(entry.get("id")): entry for answer in reversed(answers) for entry in answer.entries}
        if every:
            return _listing(list(every.values()))
        for one in (*answers, *found):
            if isinstance(one, BaseException):
                raise one
            return one
        raise AssertionError("there is at least one upstream")

    def about(
        self, upstream: Upstream, model: str, dialect: Dialect, headers: Mapping[str, str]
    ) -> asyncio.Future[Known]:
        """What is known of a model: asked for now, should it be needed, while the call itself is on its way."""
        key, now = (upstream.name, model), self._clock()
        until, task = self._known.get(key, (0.0, None))
        if task is None or now >= until:
            task = asyncio.create_task(self._find(upstream, model, dialect, headers))
            if len(self._known) >= MOST:
                self._known.clear()
            self._known[key] = now + FRESH_S, task
        return asyncio.shield(task)  # one of those who wait for it may leave

    def forget(self, upstream: Upstream) -> None:
        """Its weights may be others now."""
        self._known = {key: kept for key, kept in self._known.items() if key[0] != upstream.name}

    async def close(self) -> None:
        for _, task in self._known.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._known.values()), return_exceptions=True)
        self._known = {}
        if self._session is not None:
            await self._session.close()
            self._session = None

    async def _find(self, upstream: Upstream, model: str, dialect: Dialect, headers: Mapping[str, str]) -> Known:
        entries: list[dict[str, Any]] = []
        with suppress(Unreachable):
            entries = (await self._ask(upstream, dialect, headers)).entries
        if not entries:
            self._known[upstream.name, model] = self._clock() + UNKNOWN_S, self._known[upstream.name, model][1]
            return Known()
        named = [one for one in entries if one.get("id") == model] or entries  # a name that is not listed: any of them
        owner = named[0].get("owned_by")
        is_spelt = all(one.get("tokenizer") == BYTES for one in named)
        return Known(owner=owner if isinstance(owner, str) else None, is_spelt=is_spelt)

    async def _ask(self, upstream: Upstream, dialect: Dialect, headers: Mapping[str, str]) -> Listing:
        if isinstance(upstream, Near):
            entry: dict[str, Any] = {"id": upstream.name, "object": "model", "created": 0, "owned_by": OWNER}
            return _listing([entry | ({"tokenizer": BYTES} if upstream.spell is spell_byte else {})])
        return await self._get(upstream, upstream.signed(dialect, headers))

    async def _get(self, upstream: Remote, headers: Mapping[str, str]) -> Listing:
        if self._session is None:
            self._session = aiohttp.ClientSession(
                timeout=aiohttp.ClientTimeout(total=TIMEOUT_S),
                auto_decompress=False,
                skip_auto_headers=("User-Agent", "Accept"),
                cookie_jar=aiohttp.DummyCookieJar(),
            )
        url = URL(upstream.url(PATH), encoded=True)
        try:
            async with self._session.get(url, headers=headers, allow_redirects=False) as answer:
                body = await answer.content.read(LARGEST)
                while not answer.content.at_eof():
                    body += await answer.content.read(LARGEST)
                    if len(body) > LARGEST:
                        raise Unreachable(upstream.name, why=f"its list of models is larger than {LARGEST} bytes")
        except TimeoutError:
            raise Unreachable(upstream.name, why=f"no list of models within {TIMEOUT_S:g} s") from None
        except (aiohttp.ClientError, OSError) as error:
            raise Unreachable(upstream.name, why=f"{type(error).__name__}: {error}"[:300]) from error
        passed = {name.lower(): value for name, value in answer.headers.items() if name.lower() in RETURNED}
        return Listing(status=answer.status, headers=passed, body=body)


def spell(token: int) -> bytes:
    """The bytes of one of our own tokens; LookupError where it is another's."""
    if token >= tokens.VOCABULARY:
        raise LookupError(token)
    return spell_byte(token)


def _listing(entries: Sequence[Mapping[str, Any]]) -> Listing:
    body = orjson.dumps({"object": "list", "data": list(entries)})
    return Listing(status=200, headers={"content-type": "application/json"}, body=body)
