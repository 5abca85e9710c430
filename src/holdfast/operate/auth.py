"""Tokens and browser sessions.

A token is 256 random bits, shown once; the store has only its hash. `contracts.commands` defines what a role may do.
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
from holdfast.store.store import Store

Clock = Callable[[], float]  # unix seconds
PREFIX = "hf_"  # recognisable to people and secret scanners
KNOWN_S = 0.5  # a good token is cached so long: a revoked one is out within a second
MOST_KNOWN = 4096  # cached tokens or sessions
SESSION_S = 12 * 3600.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Caller:
    """An identified caller."""

    label: str
    role: Role
    token_id: str | None = None  # None: no token was needed, as on the machine of the store


def mint() -> str:
    """A new token, to be shown once; keep only its digest."""
    return PREFIX + secrets.token_urlsafe(32)


def digest(token: str) -> str:
    """The hash to store. One round is enough: 256 random bits cannot be guessed as a password can."""
    return hashlib.sha256(token.encode()).hexdigest()


def hash_of(bearer: str | None) -> str | None:
    """The digest of a possible token; None for anything that cannot be one."""
    if not bearer or not bearer.startswith(PREFIX) or len(bearer) > 100 or not bearer.isascii():
        return None
    return digest(bearer)


class TokenGuard:
    """Finds the caller of a token. Looking a hash up leaks at most something about the hash, never about the token."""

    def __init__(self, store: Store, clock: Clock) -> None:
        self._store, self._clock = store, clock
        self._known: OrderedDict[str, tuple[Token, float]] = OrderedDict()  # hash → token, time; good ones only
        self._lock = threading.Lock()  # several threads may look at once

    def who(self, bearer: str | None) -> Caller | None:
        """The caller of a good token, else None. May wait for the store."""
        sha256 = hash_of(bearer)
        return None if sha256 is None else self.by_hash(sha256)

    def recall(self, sha256: str) -> Caller | None:
        """The cached caller; never waits for the store."""
        now = self._clock()
        token, seen = self._known.get(sha256, (None, 0.0))
        return _caller(token, now) if 0.0 <= now - seen < KNOWN_S else None

    def by_hash(self, sha256: str) -> Caller | None:
        """The cached caller, or the store's answer."""
        return self.recall(sha256) or self._look(sha256)

    def _look(self, sha256: str) -> Caller | None:
        now = self._clock()  # before the query: a slow one must not prolong a revoked token
        token = self._store.tokens.find(sha256)
        with self._lock:
            self._known.pop(sha256, None)
            if token is not None and token.is_good(now):
                self._known[sha256] = (token, now)
                _at_most(self._known, MOST_KNOWN)
        return _caller(token, now)

    def has_tokens(self) -> bool:
        """Whether any token is good."""
        now = self._clock()
        return any(token.is_good(now) for token in self._store.tokens.all())


def _caller(token: Token | None, now: float) -> Caller | None:
    if token is None or not token.is_good(now):
        return None
    return Caller(label=token.label, role=token.role, token_id=token.id)


class Sessions:
    """Browser sessions in memory, by the hash of a random cookie; each maps to the hash of its token.

    `TokenGuard` checks the token at every request. A session ends when it is closed, with this process, or after
    SESSION_S seconds.
    """

    def __init__(self, clock: Clock, *, lifetime_s: float = SESSION_S) -> None:
        self._clock, self._lifetime_s = clock, lifetime_s
        self._open: OrderedDict[str, tuple[str, float]] = OrderedDict()  # hash of the cookie → hash of its token, end

    def open(self, sha256: str) -> str:
        """A cookie for a good token with this hash."""
        cookie = secrets.token_urlsafe(32)
        self._open[digest(cookie)] = (sha256, self._clock() + self._lifetime_s)
        _at_most(self._open, MOST_KNOWN)
        return cookie

    def token_of(self, cookie: str | None) -> str | None:
        """The token hash of this cookie; None without such a session."""
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
