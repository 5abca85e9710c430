"""Compiled code that is compiled once: kept on disk, and thrown away when any file of the town has changed.

numba looks only at the file of a function, not at those of the functions that it calls.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar, cast

import numba

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
    return not any((HERE / "__pycache__").glob("step.tick-*.nbi"))


OPTIONS: dict[str, Any] = {"cache": True, "error_model": "numpy", "_nrt": False}


def jit(function: F) -> F:
    """For code that makes no arrays: without the counting of references, which would take most of its time."""
    return cast(F, numba.njit(**OPTIONS)(function))


def inlined(function: F) -> F:
    """For what every resident does at every tick: to hand over all that it needs would take longer than the doing."""
    return cast(F, numba.njit(**OPTIONS, forceinline=True)(function))
