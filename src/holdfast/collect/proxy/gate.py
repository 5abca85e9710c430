"""The way into an upstream: so many calls at a time, and none while it is held."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from typing import Protocol

from holdfast.contracts.errors import HoldfastError


class Busy(HoldfastError):
    """The upstream is held, or has as many calls as it may have."""

    retry_after_s = 1


class UpstreamAnswer(Protocol):
    """An answer that has begun. It must be closed, however it ends."""

    @property
    def status(self) -> int: ...

    @property
    def headers(self) -> Mapping[str, str]:
        """Those that are passed on."""
        ...

    def chunks(self) -> AsyncIterator[bytes]: ...

    def close(self) -> None: ...


class Gate:
    """So many at a time, and none while it is held."""

    def __init__(self, most: int, hold_s: float) -> None:
        self._most, self._hold_s = most, hold_s
        self.inside = 0
        self.is_held = False
        self._waiting: list[asyncio.Future[None]] = []
        self._idle = asyncio.Event()
        self._idle.set()

    def hold(self) -> None:
        """Who is inside goes on; who comes waits."""
        self.is_held = True

    def release(self) -> None:
        self.is_held = False
        self._let_in()

    async def idle(self) -> None:
        """Until nobody is inside."""
        await self._idle.wait()

    async def enter(self) -> None:
        """Busy where that takes longer than it may."""
        if not self.is_held and self.inside < self._most and not self._waiting:
            self._take()
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
                self.leave()  # it was let in at the very moment it gave up
            if isinstance(error, TimeoutError):
                why = "is held" if self.is_held else f"has {self.inside} calls under way"
                raise Busy("the upstream", why=why, remedy="come back a little later") from None
            raise

    def leave(self) -> None:
        self.inside -= 1
        if self.inside == 0:
            self._idle.set()
        self._let_in()

    def _take(self) -> None:
        self.inside += 1
        self._idle.clear()

    def _let_in(self) -> None:
        while self._waiting and not self.is_held and self.inside < self._most:
            place = self._waiting.pop(0)
            if not place.done():
                self._take()
                place.set_result(None)
