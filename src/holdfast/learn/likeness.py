"""Which texts nearly repeat an earlier one. What that means, and for whom, is the caller's business.

Texts are sets of three words in a row, and two are alike as far as these overlap (Jaccard). Who might be alike is found
by MinHash, Broder 1997, in bands: texts that share a whole band are then compared in full, so what is told is exact.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from hashlib import blake2b

import numpy as np
from numpy.typing import NDArray

WORDS = 3
BANDS, ROWS = 10, 7  # texts that overlap by 0.9 share none of these bands with a chance of 0.0015
CROWD = 64  # compared in full within one band at most: without it, many texts of one template take forever

_rng = np.random.default_rng(20)  # fixed: the same texts have the same twins everywhere
_FACTORS = _rng.integers(0, 2**64, size=(BANDS * ROWS, 1), dtype=np.uint64) | np.uint64(1)
_SHIFTS = _rng.integers(0, 2**64, size=(BANDS * ROWS, 1), dtype=np.uint64)


def twins(texts: Sequence[str], *, least: float = 0.9) -> list[int | None]:
    """For each text the place of the first earlier one that it overlaps by at least so much."""
    known: dict[bytes, list[int]] = defaultdict(list)
    seen: dict[str, int] = {}
    shingled: dict[int, frozenset[int]] = {}
    found: list[int | None] = []
    for place, text in enumerate(texts):
        if text in seen:
            found.append(seen[text])
            continue
        seen[text] = place
        mine = shingled[place] = shingles(text)
        keys = _bands(mine)
        near = sorted({other for key in keys for other in known[key][:CROWD]})
        first = next((other for other in near if likeness(mine, shingled[other]) >= least), None)
        found.append(first)
        if first is None:
            for key in keys:
                known[key].append(place)
        else:
            del shingled[place]
            seen[text] = first
    return found


def shingles(text: str) -> frozenset[int]:
    words = text.casefold().split()
    runs = {" ".join(words[at : at + WORDS]) for at in range(max(1, len(words) - WORDS + 1))}
    return frozenset(
        int.from_bytes(blake2b(run.encode("utf-8", "surrogatepass"), digest_size=8).digest()) for run in runs
    )


def likeness(one: frozenset[int], other: frozenset[int]) -> float:
    """|A ∩ B| / |A ∪ B|."""
    shared = len(one & other)
    return shared / (len(one) + len(other) - shared)


def _bands(marks: frozenset[int]) -> list[bytes]:
    hashed = np.fromiter(marks, np.uint64, len(marks))
    least: NDArray[np.uint64] = (hashed * _FACTORS + _SHIFTS).min(axis=1)
    return [bytes([band]) + least[band * ROWS : (band + 1) * ROWS].tobytes() for band in range(BANDS)]
