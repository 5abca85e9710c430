"""What every kernel uses: compiling with a cache on disk, random numbers without state, and the ring of events.

The cache is thrown away when any file of the town has changed: numba looks only at the file of a function, not at those
of the functions that it calls. A random number is a function of (seed, world, tick, stream, who), in any order. Events
are read by views and narration; no future depends on them.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba
import numpy as np

HERE = Path(__file__).parent
STAMP = "town.stamp"

F = TypeVar("F", bound=Callable[..., Any])


def _drop_stale() -> None:
    cache = HERE / "__pycache__"
    now = hashlib.sha256(b"".join(path.read_bytes() for path in sorted(HERE.glob("*.py")))).hexdigest()
    stamp = cache / STAMP
    try:
        if stamp.is_file() and stamp.read_text() == now:
            return
        for path in (*cache.glob("*.nbi"), *cache.glob("*.nbc")):
            path.unlink(missing_ok=True)
        cache.mkdir(exist_ok=True)
        stamp.write_text(now)
    except OSError:  # a folder that cannot be written: numba keeps its cache elsewhere, or none
        return


_drop_stale()


def is_cold() -> bool:
    """Whether the kernels have yet to be compiled, which takes a while."""
    return not any((HERE / "__pycache__").glob("env.advance-*.nbi"))


OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def jit(function: F) -> F:
    """For code that makes no arrays: without the counting of references, which would take most of its time."""
    return cast(F, numba.njit(**OPTIONS)(function))


def inlined(function: F) -> F:
    """For what every resident does at every tick: to hand over all that it needs would take longer than the doing."""
    return cast(F, numba.njit(**OPTIONS, forceinline=True)(function))


@inlined
def index(number: int) -> int:
    """The same number, for an index that is never negative: one that might be takes several instructions more."""
    return number & 0x7FFF_FFFF


ORDER_STREAM, CHAT_STREAM, TROUBLE_STREAM, SPAWN_STREAM, SCRIPT_STREAM, MEETING_STREAM, START_STREAM = range(1, 8)
HOOK_STREAM = 8

_A, _B, _C = np.uint64(0x9E3779B97F4A7C15), np.uint64(0xBF58476D1CE4E5B9), np.uint64(0x94D049BB133111EB)
_30, _27, _31, _32 = np.uint64(30), np.uint64(27), np.uint64(31), np.uint64(32)


@inlined
def mix(x: np.uint64) -> np.uint64:
    """The finaliser of splitmix64: a bijection in which every bit depends on every other."""
    x = (x ^ (x >> _30)) * _B
    x = (x ^ (x >> _27)) * _C
    return x ^ (x >> _31)


@inlined
def draw(seed: np.uint64, tick: int, stream: int, who: int) -> np.uint64:
    """64 random bits; `seed` is that of one world."""
    x = mix(seed + _A * np.uint64(tick + 1))
    return mix(x + _A * (np.uint64(stream) * np.uint64(65_537) + np.uint64(who + 1)))


@inlined
def below(bits: np.uint64, n: int) -> int:
    """From 0 up to before n."""
    return int(np.int64(((bits >> _32) * np.uint64(n)) >> _32))


def world_seed(seed: int, world: int) -> int:
    """The seed of one world of many."""
    mask = (1 << 64) - 1
    x = (seed + 0x9E3779B97F4A7C15 * (world + 1)) & mask
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        x = ((x ^ (x >> shift)) * factor) & mask
    return x ^ (x >> 31)


KINDS = (
    "none", "started", "finished", "failed", "aborted", "chat", "rebuff", "shared_meal", "help", "conflict",
    "ghost_step", "exit", "arrival", "late", "absent", "fired", "hired", "rent_unpaid", "trouble_begins",
    "trouble_ends", "met", "missed", "restock", "queued", "handover", "departed_early", "avoided",
)  # fmt: skip
(
    NONE, STARTED, FINISHED, FAILED, ABORTED, CHAT, REBUFF, SHARED_MEAL, HELP, CONFLICT, GHOST_STEP, EXIT, ARRIVAL,
    LATE, ABSENT, FIRED, HIRED, RENT_UNPAID, TROUBLE_BEGINS, TROUBLE_ENDS, MET, MISSED, RESTOCK, QUEUED, HANDOVER,
    DEPARTED_EARLY, AVOIDED,
) = range(len(KINDS))  # fmt: skip


EVENTS = 256  # the newest that a world remembers; a power of two


@jit
def tell(town: Any, ring: Any, kind: int, a: int, b: int, value: int) -> None:
    event = ring[town.events & (EVENTS - 1)]
    event.tick, event.kind, event.a, event.b, event.value = town.tick, kind, a, b, value
    town.events += 1
