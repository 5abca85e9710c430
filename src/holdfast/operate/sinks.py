"""Where alerts are told besides the store: a file of JSON lines, or a webhook. When, is the watchman's business.

A sink that cannot deliver raises OSError once it has tried as often as it does; nobody waits for it.
"""

from __future__ import annotations

import asyncio
import json
import os
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from pathlib import Path

from holdfast.contracts.commands import Alert
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import encode

TRIES = 3
PAUSE_S = 0.5  # before the second try, then twice as long
TIMEOUT_S = 5.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Lines:
    """One line of JSON for each alert, appended at once: several processes may share the file."""

    path: Path

    async def __call__(self, alert: Alert, /) -> None:
        await asyncio.to_thread(self._append, json.dumps(encode(alert), ensure_ascii=False) + "\n")

    def _append(self, line: str) -> None:
        self.path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o644)
        try:
            os.write(descriptor, line.encode(errors="replace"))
        finally:
            os.close(descriptor)


@dataclass(frozen=True, slots=True, kw_only=True)
class Webhook:
    """POSTs each alert as JSON; anything below 300 is delivered. Redirects are not followed."""

    url: str
    tries: int = TRIES
    timeout_s: float = TIMEOUT_S
    pause: Callable[[float], Awaitable[None]] = asyncio.sleep

    def __post_init__(self) -> None:
        if not self.url.startswith(("http://", "https://")):
            raise BadInput(f"webhook {self.url!r}", why="is not an address of the web", remedy="begin with https://")
        if self.tries < 1 or not self.timeout_s > 0:
            raise BadInput(f"webhook: tries = {self.tries}, timeout_s = {self.timeout_s}", why="must be above 0")

    async def __call__(self, alert: Alert, /) -> None:
        import aiohttp

        limit = aiohttp.ClientTimeout(total=self.timeout_s)
        why = ""
        async with aiohttp.ClientSession(timeout=limit) as session:
            for tried in range(self.tries):
                if tried:
                    await self.pause(PAUSE_S * 2.0 ** (tried - 1))
                try:
                    async with session.post(self.url, json=encode(alert), allow_redirects=False) as answer:
                        if answer.status < 300:
                            return
                        why = f"answered {answer.status}"
                except (aiohttp.ClientError, TimeoutError) as error:
                    why = type(error).__name__
        raise OSError(f"webhook {self.url}: {why}, after {self.tries} tries")
