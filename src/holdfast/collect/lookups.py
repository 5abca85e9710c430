"""Looks into the store from an event loop: one that hangs costs the request that asked, and no other.

They run in threads, and end after a while for whoever waits. Writes have a thread of their own in the store.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from holdfast.contracts.errors import StoreBusy

T = TypeVar("T")

LOOKUP_S, LOOKUPS = 10.0, 8  # how long one look may take, and how many go on at a time


class StoreLookups:
    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(LOOKUPS, "holdfast-lookup")

    async def ask(self, what: str, look: Callable[[], T]) -> T:
        """What `look` gives; StoreBusy about `what` where that takes too long."""
        looking = asyncio.get_running_loop().run_in_executor(self._threads, look)
        try:
            # `wait_for` of CPython 3.11 swallows a cancellation that comes with the answer.
            async with asyncio.timeout(LOOKUP_S):
                return await looking
        except TimeoutError:
            why = f"the store did not answer within {LOOKUP_S:g} s"
            raise StoreBusy(what, why=why, remedy="ask again") from None
