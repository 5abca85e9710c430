"""How often, how many and how long: rates, refusals on record, open streams, and tokens that nobody guesses."""

from __future__ import annotations

import time
from collections import Counter, OrderedDict
from collections.abc import Callable

from holdfast.contracts.errors import BadInput

SHORTEST_TOKEN = 20
MOST_KNOWN = 4096  # keys that a limiter remembers
GUESSES_PER_S, GUESSES = 0.1, 5.0  # wrong tokens of one address
REFUSALS_PER_S, REFUSALS_AT_ONCE = 1 / 60, 30.0  # of one caller that are recorded


def check_token(token: str, what: str = "token") -> str:
    """Refuses a token that can be guessed, or cannot stand in a header."""
    remedy = "python -c 'import secrets; print(secrets.token_urlsafe(32))' makes one"
    if not (token.isascii() and token.isprintable() and token.split() == [token]):
        raise BadInput(what, why="cannot stand in a header", remedy=remedy)
    if len(token) < SHORTEST_TOKEN:
        raise BadInput(what, why=f"has {len(token)} characters, and needs {SHORTEST_TOKEN}", remedy=remedy)
    return token


class RateLimiter:
    """A token bucket for each key: so many requests a second, and a burst."""

    def __init__(self, per_s: float, burst: float, clock: Callable[[], float] = time.monotonic) -> None:
        self._per_s, self._burst, self._clock = per_s, float(burst), clock
        self._left: OrderedDict[str, tuple[float, float]] = OrderedDict()  # key → how many were left, when

    def take(self, key: str) -> float:
        """Counts a request and returns 0, or returns the seconds to wait."""
        wait_s = self.wait_s(key)
        if wait_s == 0.0:
            self.spend(key)
        return wait_s

    def wait_s(self, key: str) -> float:
        """Seconds until the next may pass; counts nothing."""
        left = self._now(key)
        return 0.0 if left >= 1.0 else (1.0 - left) / self._per_s

    def spend(self, key: str) -> None:
        """Counts one, whatever is left."""
        self._left[key] = (max(0.0, self._now(key) - 1.0), self._clock())
        self._left.move_to_end(key)
        while len(self._left) > MOST_KNOWN:  # the longest quiet keys have full buckets again
            self._left.popitem(last=False)

    def _now(self, key: str) -> float:
        now = self._clock()
        left, at = self._left.get(key, (self._burst, now))
        if now < at:  # the clock was set back: it is counted from here on, and nobody waits for the old time to come
            self._left[key] = left, now
        return min(self._burst, left + max(0.0, now - at) * self._per_s)


class RefusalLimiter:
    """Which refusals are recorded: some of a caller, then one a minute, which says how many were left out."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._limit, self._left_out = RateLimiter(REFUSALS_PER_S, REFUSALS_AT_ONCE, clock), Counter[str]()

    def record(self, caller: str, why: str) -> str | None:
        """The reason as it is to be recorded; None: it is only counted."""
        if self._limit.take(caller):
            self._left_out[caller] += 1
            return None
        left_out = self._left_out.pop(caller, 0)
        return f"{why} ({left_out} more were refused since the last entry)" if left_out else why


class StreamLimiter:
    """At most so many open streams for each key."""

    def __init__(self, most: int) -> None:
        self._most, self._open = most, Counter[str]()

    def open(self, key: str) -> bool:
        """Counts one more, unless all are in use."""
        if self._open[key] >= self._most:
            return False
        self._open[key] += 1
        return True

    def close(self, key: str) -> None:
        self._open[key] -= 1
        self._open += Counter()  # forgets keys without a stream
