"""Where calls are answered: endpoints elsewhere, or policies in this process. One gate each; sticky by rollout.

A request that has not begun to be answered may be asked again; one that has, never. While an upstream is held, for
instance because its weights are exchanged, calls wait; those that wait too long are told when to come back.
"""

from __future__ import annotations

import asyncio
import random
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from hashlib import blake2b

from holdfast.collect import address
from holdfast.collect.proxy.connection import Connection, Connections
from holdfast.collect.proxy.dialect import RETURNED, Dialect, ModelRequest
from holdfast.collect.proxy.gate import Gate, UpstreamAnswer
from holdfast.collect.proxy.near import Near
from holdfast.contracts.errors import BadInput, HoldfastError
from holdfast.contracts.rollout import Backoff

PASSING = frozenset({429, 502, 503, 504})  # statuses that may be another next time
STRANGE = frozenset({400, 404, 422})  # what an upstream says to a field that it does not know
PASSED = frozenset(name.encode() for name in RETURNED)
PATIENCE_S = 5.0  # an upstream that asks us to come back later than that: we tell the client instead
LARGEST = 256 * 2**20  # bytes of a whole answer


class Unreachable(HoldfastError):
    """The upstream gave no answer."""


class Silent(Unreachable):
    """It had all the time there was: asking again would only double it."""


class BrokenOff(HoldfastError):
    """The upstream began to answer and did not end."""


class Remote:
    """An HTTP endpoint. Redirects are not followed: calls go where they were sent, and nowhere else."""

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
        self.name = address.checked("upstream", base_url, example="http://127.0.0.1:8000").removesuffix("/v1")
        self.gate = Gate(most, hold_s)
        self._keys, self._timeout_s = keys or {}, max(timeout_s, 1.0)
        self._is_extended = is_extended
        self._knows: dict[tuple[str, str], bool] = {}  # whether it takes our fields, by path and model
        self._connections = Connections(self.name, connect_s=min(self._timeout_s, 10.0), read_s=self._timeout_s)

    def url(self, path: str) -> str:
        return self.name + path

    def signed(self, dialect: Dialect, headers: Mapping[str, str]) -> dict[str, str]:
        """What is sent with a request: the caller's headers, with our own key in place of theirs where there is one."""
        sent = {**headers, "Accept-Encoding": "identity"}
        own = self._keys.get(dialect.key_variable)
        if own is not None:
            for name in ("authorization", "x-api-key"):
                sent.pop(name, None)
            sent.update(dialect.credentials(own))
        return sent

    async def ask(self, dialect: Dialect, asked: ModelRequest, headers: Mapping[str, str], key: str) -> UpstreamAnswer:
        """The answer, once it has begun. The first call for a model that may be extended shows whether it can be."""
        sent = self.signed(dialect, headers)
        path, what = dialect.path, (dialect.path, asked.model)
        known = self._knows.get(what) if self._is_extended and asked.extended is not None else False
        if known is False or asked.extended is None:
            return await self._post(path, asked.body, sent)
        answer = await self._post(path, asked.extended, sent)
        if known is None:
            if answer.status in STRANGE:
                answer.close()  # first: with one place only, the next call would wait for it
                answer = await self._post(path, asked.body, sent)
                if answer.status < 300:
                    self._remember(what, False)
                return answer
            if answer.status < 300:
                self._remember(what, True)
        return answer

    def _remember(self, what: tuple[str, str], does: bool) -> None:
        if len(self._knows) < 10_000:  # names of models come from callers
            self._knows[what] = does

    async def _post(self, path: str, body: bytes, headers: Mapping[str, str]) -> UpstreamAnswer:
        await self.gate.enter()
        try:
            return HttpAnswer(await self._connections.post(path, headers, body), self._connections, self.gate.leave)
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


class HttpAnswer:
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


Upstream = Remote | Near


class Upstreams:
    """All of them; each rollout keeps to one as long as that one answers, so that what it has read is read once."""

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
        """Its own first. Of several, each has its share, and one more or less moves only its own share."""
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
