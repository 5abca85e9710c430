"""Who is asking: tokens, the sessions of browsers that showed one, and how often anybody may ask.

A token is 256 random bits, told once and kept nowhere; the store has its hash. What a role may do is for
`contracts.access` to say, and which answer a refusal gets is the app's.
"""

from __future__ import annotations

import hashlib
import secrets
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.access import Role, Token
from holdfast.contracts.errors import BadInput
from holdfast.store.store import Store

Clock = Callable[[], float]  # unix seconds
PREFIX = "hf_"  # so that people and scanners see what it is
KNOWN_S = 0.5  # a token that was good is believed so long: what is revoked is out within a second
MOST_KNOWN = 4096  # tokens, sessions or callers that are remembered
SESSION_S = 12 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """Whoever asks, once it is known who that is."""

    label: str
    role: Role
    token_id: str | None = None  # None: no token was needed, as on the machine that has the store


def mint() -> str:
    """A new token. Who calls this shows it once, and keeps its digest only."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """What of a token may be kept. One round will do: nobody guesses 256 random bits, as they would a password."""
    return hashlib.sha256(token.encode()).hexdigest()


class Guard:
    """Tells who a token belongs to.

    The hash is looked up, not compared letter by letter: how long that takes tells a stranger something of a hash, and
    nothing of any token that has it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._known: OrderedDict[str, tuple[Token, float]] = OrderedDict()  # hash → token, seen when; good ones only

    def who(self, bearer: str | None) -> Caller | None:
        """The caller whose token this is; None without one that is good."""
        if not bearer or not bearer.startswith(PREFIX) or len(bearer) > 100 or not bearer.isascii():
            return None
        return self.by_hash(digest(bearer))

    def by_hash(self, sha256: str) -> Caller | None:
        now = self._clock()
        token, seen = self._known.get(sha256, (None, 0.0))
        if token is None or not 0.0 <= now - seen < KNOWN_S:
            token = self._store.tokens.find(sha256)
            self._known.pop(sha256, None)
            if token is not None and token.is_good(now):
                self._known[sha256] = (token, now)
                _at_most(self._known, MOST_KNOWN)
        if token is None or not token.is_good(now):
            return None
        return Caller(label=token.label, role=token.role, token_id=token.id)

    def has_tokens(self) -> bool:
        """Whether anybody could come in at all."""
        now = self._clock()
        return any(token.is_good(now) for token in self._store.tokens.all())


class Limiter:
    """So many requests a second for each caller, and a few more in a burst: one bucket of tokens for each key."""

    def __init__(self, per_s: float, burst: float, clock: Clock) -> None:
        if not per_s > 0.0 or not burst >= 1.0:
            raise BadInput(f"limit of {per_s} a second, {burst} at once", why="would let nobody through")
        self._per_s, self._burst, self._clock = per_s, float(burst), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → how many were left, when

    def take(self, key: str) -> float:
        """0 when this one may pass, and is counted; else the seconds to wait, for `Retry-After`."""
        wait_s = self.wait_s(key)
        if wait_s == 0.0:
            self.spend(key)
        return wait_s

    def wait_s(self, key: str) -> float:
        """How long until the next may pass; nothing is counted."""
        left = self._now(key)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def spend(self, key: str) -> None:
        """Count one, as for a login that has failed."""
        self._left[key] = (max(0.0, self._now(key) - 1.0), self._clock())
        self._left.move_to_end(key)
        _at_most(self._left, MOST_KNOWN)  # whoever was quiet the longest has a full bucket again

    def _now(self, key: str) -> float:
        left, at = self._left.get(key, (self._burst, self._clock()))
        return min(self._burst, left + max(0.0, self._clock() - at) * self._per_s)


class Sessions:
    """Browsers that showed a token: each has a random cookie, which says nothing and is kept as a hash, in memory.

    A session is its token's: it has the same role, and dies with it, with this process, or after SESSION_S seconds.
    """

    def __init__(self, guard: Guard, clock: Clock, *, lifetime_s: float = SESSION_S) -> None:
        self._guard, self._clock, self._lifetime_s = guard, clock, lifetime_s
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()  # hash of the cookie → hash of its token, until

    def open(self, bearer: str | None) -> str | None:
        """The cookie for whoever has this token; None when it is not good."""
        if bearer is None or self._guard.who(bearer) is None:
            return None
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie)] = (digest(bearer), self._clock() + self._lifetime_s)
        _at_most(self._open, MOST_KNOWN)
        return cookie

    def who(self, cookie: str | None) -> Caller | None:
        found = self._open.get(digest(cookie)) if cookie and cookie.isascii() else None
        if cookie is None or found is None:
            return None
        caller = self._guard.by_hash(found[0]) if self._clock() < found[1] else None
        if caller is None:
            self.close(cookie)
        return caller

    def close(self, cookie: str | None) -> None:
        if cookie:
            self._open.pop(digest(cookie), None)


def _at_most(kept: OrderedDict[str, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
