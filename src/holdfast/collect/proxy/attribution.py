"""Whose call it is, said in the URL or in the documented headers; and the attribution log, one line of JSON a call.

An attempt's address holds its capability, an HMAC of the attempt under the store's key: whoever has the address may
speak for this attempt and for no other, and needs no token. Log lines are gathered for a moment and appended by a
thread, so no call waits and several processes can share the file.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import quote

import orjson

from holdfast.contracts.artifacts import append_lines
from holdfast.contracts.errors import BadInput, NotFound

if TYPE_CHECKING:  # agents need none of the server
    from starlette.requests import Request

ROLLOUT, ATTEMPT, SEQUENCE, TRACE = b"x-rollout-id", b"x-attempt-id", b"x-sequence-id", b"x-trace-id"
TAG = b"x-tag"
LONGEST_TEXT, LONGEST_NUMBER = 200, 9
NUMBER = re.compile(
    r"(?:(?P<rollout>.+):)?(?:attempt-)?(?P<number>[0-9]{1,9})(?:\.(?P<capability>[0-9a-f]{32}))?", re.DOTALL
)
MOST_SEQUENCE = 2**64 - 1


class BadHeader(BadInput):
    """An attribution header that is missing or cannot be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    rollout: str  # run/name
    number: int  # which attempt: 1, 2, …
    sequence: int | None = None
    trace: str | None = None
    tag: str | None = None  # the agent's own word for the call
    capability: str | None = None  # as it was sent; `endpoint.RequestReader` checks it


def base_url(proxy_url: str, rollout: str, number: int, capability: str | None = None) -> str:
    """The agent's base URL for its model; clients of OpenAI's API want `/v1` after it."""
    attempt = number if capability is None else f"{number}.{capability}"
    return f"{proxy_url.rstrip('/')}/rollout/{quote(rollout, safe='')}/attempt/{attempt}"


def of(request: Request) -> Identity | None:
    """The attempt that the path or the headers of a request name, or None."""
    headers = dict(request.headers.raw)
    if "rollout" in request.path_params:
        return from_path(request.path_params["rollout"], request.path_params["number"], headers)
    return from_headers(headers) if ROLLOUT in headers else None


def from_path(rollout: str, attempt: str, headers: Mapping[bytes, bytes]) -> Identity:
    number, _, given = attempt.partition(".")
    if len(number) > LONGEST_NUMBER:
        raise NotFound(f"attempt {number[:LONGEST_NUMBER]}… at {rollout}", why="there is none")
    return Identity(rollout=rollout, number=int(number), capability=given or None, **_beside(headers))


def from_headers(headers: Mapping[bytes, bytes]) -> Identity:
    rollout, attempt = _required(headers, ROLLOUT), _required(headers, ATTEMPT)
    match = NUMBER.fullmatch(attempt)
    if match is None or match["rollout"] not in (None, rollout):
        raise BadHeader(f"header '{ATTEMPT.decode()}' must name an attempt of the rollout, as in {rollout}:attempt-1")
    return Identity(rollout=rollout, number=int(match["number"]), capability=match["capability"], **_beside(headers))


def _beside(headers: Mapping[bytes, bytes]) -> dict[str, Any]:
    return {
        "sequence": _sequence(headers),
        "trace": _text(headers, TRACE, longest=LONGEST_TEXT),
        "tag": tag_of(headers),
    }


def tag_of(headers: Mapping[bytes, bytes]) -> str | None:
    """The agent's own word for this call, which learning can be told to look at."""
    return _text(headers, TAG, longest=LONGEST_TEXT)


def _required(headers: Mapping[bytes, bytes], name: bytes) -> str:
    if name not in headers:
        raise BadHeader(f"missing required header '{name.decode()}'")
    text = _text(headers, name)
    if text is None:
        raise BadHeader(f"header '{name.decode()}' cannot be empty")
    return text


def _sequence(headers: Mapping[bytes, bytes]) -> int | None:
    text = _text(headers, SEQUENCE)
    if text is None and SEQUENCE not in headers:
        return None
    digits = (text or "").lstrip("0") or (text or "")[:1]  # Python does not read thousands of digits
    if not (digits.isascii() and digits.isdecimal()) or len(digits) > 20 or int(digits) > MOST_SEQUENCE:
        raise BadHeader(f"header '{SEQUENCE.decode()}' must be an unsigned integer")
    return int(digits)


def _text(headers: Mapping[bytes, bytes], name: bytes, longest: int | None = None) -> str | None:
    """None if it is missing or blank."""
    try:
        text = headers[name].decode().strip() or None if name in headers else None
    except UnicodeDecodeError:
        raise BadHeader(f"header '{name.decode()}' must be valid utf-8") from None
    if text is not None and longest is not None and len(text) > longest:
        raise BadHeader(f"header '{name.decode()}' must have at most {longest} characters")
    return text


GATHER_S = 0.1


class AttributionLog:
    def __init__(self, state_folder: Path) -> None:
        self.path = state_folder / "training" / "proxy-attribution.jsonl"
        self.failures = 0
        self._lines: list[bytes] = []
        self._writing: asyncio.Future[None] | None = None
        self._is_due = False

    def add(self, entry: Mapping[str, Any]) -> None:
        """Adds a line; None values are left out."""
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
            append_lines(self.path, lines)
        except OSError:
            self.failures += 1
