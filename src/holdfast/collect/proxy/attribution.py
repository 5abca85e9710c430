"""The attribution log: one line of JSON a call, in `<state folder>/training/proxy-attribution.jsonl`.

Lines are gathered for a moment and written by a thread, whole and at the file's end, so that no call waits for them and
several processes can share the file. It tells who asked when and how it went; what was said is in the store. A log
that cannot be written stops nobody; `failures` counts.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import orjson

GATHER_S = 0.1


class Log:
    def __init__(self, state_folder: Path) -> None:
        self.path = state_folder / "training" / "proxy-attribution.jsonl"
        self.failures = 0
        self._lines: list[bytes] = []
        self._writing: asyncio.Future[None] | None = None
        self._is_due = False

    def add(self, entry: Mapping[str, Any]) -> None:
        """What is None is left out."""
        known = {name: value for name, value in entry.items() if value is not None}
        self._lines.append(orjson.dumps({"schema_version": 1, **known}, option=orjson.OPT_APPEND_NEWLINE))
        if not self._is_due:
            self._is_due = True
            asyncio.get_running_loop().call_later(GATHER_S, self._flush)

    async def close(self) -> None:
        if self._writing is not None:
            await self._writing
        self._write(self._taken())

    def _flush(self) -> None:
        if self._writing is not None and not self._writing.done():
            asyncio.get_running_loop().call_later(GATHER_S, self._flush)
            return
        self._is_due = False
        self._writing = asyncio.get_running_loop().run_in_executor(None, self._write, self._taken())

    def _taken(self) -> bytes:
        lines, self._lines = self._lines, []
        return b"".join(lines)

    def _write(self, lines: bytes) -> None:
        if not lines:
            return
        try:
            self.path.parent.mkdir(parents=True, exist_ok=True)
            file = os.open(self.path, os.O_RDWR | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC, 0o600)
            try:
                size = os.fstat(file).st_size
                if size and os.pread(file, 1, size - 1) != b"\n":  # somebody was cut short
                    lines = b"\n" + lines
                os.write(file, lines)
            finally:
                os.close(file)
        except OSError:
            self.failures += 1
