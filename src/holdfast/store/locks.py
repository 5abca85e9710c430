"""One process at a time: a lock on a file, which ends with whoever holds it, killed or not.

It holds on one machine. What a transaction can guard is guarded by that, on every machine.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from holdfast.contracts.errors import StoreError


@contextmanager
def locked(path: Path) -> Iterator[None]:
    """Wait until nobody else holds the file, be it another process or another thread, and hold it meanwhile."""
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise StoreError(f"file {path}", why=error.strerror or str(error), remedy="make it writable") from error
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX)
        yield
    finally:
        os.close(descriptor)
