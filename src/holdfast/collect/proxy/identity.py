"""Whose call it is: said in the URL, so that an agent only needs a base URL, or in the documented headers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from urllib.parse import quote

from holdfast.contracts.errors import BadInput

ROLLOUT, ATTEMPT, SEQUENCE, TRACE = b"x-rollout-id", b"x-attempt-id", b"x-sequence-id", b"x-trace-id"
NUMBER = re.compile(r"(?:(?P<rollout>.+):)?(?:attempt-)?(?P<number>\d{1,9})", re.DOTALL)
MOST_SEQUENCE = 2**64 - 1


class BadHeader(BadInput):
    """An attribution header that is missing, or says nothing that can be used."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Identity:
    rollout: str  # run/name
    number: int  # which attempt: 1, 2, …
    sequence: int | None = None
    trace: str | None = None


def base_url(proxy_url: str, rollout: str, number: int) -> str:
    """What an agent is given in place of its model's address; clients of OpenAI's API want `/v1` behind it."""
    return f"{proxy_url.rstrip('/')}/rollout/{quote(rollout, safe='')}/attempt/{number}"


def from_path(rollout: str, number: int, headers: Mapping[bytes, bytes]) -> Identity:
    return Identity(rollout=rollout, number=number, sequence=_sequence(headers), trace=_text(headers, TRACE))


def from_headers(headers: Mapping[bytes, bytes]) -> Identity:
    rollout, attempt = _required(headers, ROLLOUT), _required(headers, ATTEMPT)
    found = NUMBER.fullmatch(attempt)
    if found is None or found["rollout"] not in (None, rollout):
        raise BadHeader(f"header '{ATTEMPT.decode()}' must name an attempt of the rollout, as in {rollout}:attempt-1")
    return Identity(
        rollout=rollout, number=int(found["number"]), sequence=_sequence(headers), trace=_text(headers, TRACE)
    )


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
    if text is None or not (text.isascii() and text.isdecimal()) or int(text[:21]) > MOST_SEQUENCE:
        raise BadHeader(f"header '{SEQUENCE.decode()}' must be an unsigned integer")
    return int(text)


def _text(headers: Mapping[bytes, bytes], name: bytes) -> str | None:
    """None where it is not there, or blank."""
    try:
        return headers[name].decode().strip() or None if name in headers else None
    except UnicodeDecodeError:
        raise BadHeader(f"header '{name.decode()}' must be valid utf-8") from None
