"""The one hash that divides keys into buckets: who is in a canary, in an arm, or behind a flag.

What a bucket means is the caller's business. A key keeps its bucket for good, and whoever takes the buckets below a
growing share only ever adds keys. Each salt divides anew: what two salts do with one key has nothing to do with one
another.
"""

from __future__ import annotations

from hashlib import sha256

BITS = 53  # what a float holds exactly: every bucket is a whole number of 2⁻⁵³, and 1 is never reached
BUCKETS = 1 << BITS


def bucket(key: str, salt: str) -> float:
    """The place of the key in [0, 1), evenly distributed; sha256, so that keys cannot be chosen to fall well."""
    # The salt's length goes first: salt "a" with key "bc" must not be salt "ab" with key "c".
    salted = salt.encode("utf-8", "surrogatepass")
    text = b"%d:%b" % (len(salted), salted) + key.encode("utf-8", "surrogatepass")
    return (int.from_bytes(sha256(text).digest()[:8]) >> (64 - BITS)) / BUCKETS
