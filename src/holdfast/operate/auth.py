"""Who is asking: tokens, the sessions of browsers that showed one, and how often anybody may ask.

A token is 256 random bits, told once and kept nowhere; the store has its hash. What a role may do is for
`contracts.access` to say, and which answer a refusal gets is the app's.
"""

from __future__ import annotations

import hashlib
import secrets
import threading
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.commands import Role, Token
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


def hash_of(bearer: str | None) -> str | None:
    """The digest of what may be a token; None of what cannot be one, so that nobody looks for it."""
    if not bearer or not bearer.startswith(PREFIX) or len(bearer) > 100 or not bearer.isascii():
        return None
    return digest(bearer)


class TokenGuard:
    """Tells who a token belongs to.

    The hash is looked up, not compared letter by letter: how long that takes tells a stranger something of a hash, and
    nothing of any token that has it.
    """

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._known: OrderedDict[str, tuple[Token, float]] = OrderedDict()  # hash → token, seen when; good ones only
        self._lock = threading.Lock()  # over what is known: several threads may look at once

    def who(self, bearer: str | None) -> Caller | None:
        """The caller whose token this is; None without one that is good. May wait for the store, as `by_hash` does."""
        sha256 = hash_of(bearer)
        return None if sha256 is None else self.by_hash(sha256)

    def recall(self, sha256: str) -> Caller | None:
        """The caller, where that was seen just now: the store is not asked, so this never waits."""
        now = self._clock()
        token, seen = self._known.get(sha256, (None, 0.0))
        return _caller(token, now) if 0.0 <= now - seen < KNOWN_S else None

    def by_hash(self, sha256: str) -> Caller | None:
        """The caller; where that was not seen just now, the store is asked, for as long as it takes."""
        return self.recall(sha256) or self._look(sha256)

    def _look(self, sha256: str) -> Caller | None:
        now = self._clock()  # of before the look: what is revoked during a slow one is not believed the longer
        token = self._store.tokens.find(sha256)
        with self._lock:
            self._known.pop(sha256, None)
            if token is not None and token.is_good(now):
                self._known[sha256] = (token, now)
                _at_most(self._known, MOST_KNOWN)
        return _caller(token, now)

    def has_tokens(self) -> bool:
        """Whether anybody could come in at all."""
        now = self._clock()
        return any(token.is_good(now) for token in self._store.tokens.all())


def _caller(token: Token | None, now: float) -> Caller | None:
    if token is None or not token.is_good(now):
        return None
    return Caller(label=token.label, role=token.role, token_id=token.id)


class RateLimiter:
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

    A session stands for its token: the `TokenGuard` says each time whose that is, and whether it is still good. It
    ends when it is closed, with this process, or after SESSION_S seconds.
    """

    def __init__(self, clock: Clock, *, lifetime_s: float = SESSION_S) -> None:
        self._clock, self._lifetime_s = clock, lifetime_s
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()  # hash of the cookie → hash of its token, until

    def open(self, sha256: str) -> str:
        """A cookie for whoever showed the token with this hash, which was found good."""
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie)] = (sha256, self._clock() + self._lifetime_s)
        _at_most(self._open, MOST_KNOWN)
        return cookie

    def token_of(self, cookie: str | None) -> str | None:
        """The hash of the token that this cookie stands for; None when there is no such session any more."""
        found = self._open.get(digest(cookie)) if cookie and cookie.isascii() else None
        if found is not None and self._clock() < found[1]:
            return found[0]
        self.close(cookie)
        return None

    def close(self, cookie: str | None) -> None:
        if cookie:
            self._open.pop(digest(cookie), None)


def _at_most(kept: OrderedDict[str, Any], most: int) -> None:
    while len(kept) > most:
        kept.popitem(last=False)
