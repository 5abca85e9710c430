"""Files that are there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from holdfast.contracts.errors import BadInput


@contextmanager
def written_whole(path: Path) -> Iterator[TextIO]:
    """Write aside, sync, then rename; when the block fails, what was at the path before is still there."""
    path = path.resolve()
    try:
        if path.exists() and not path.is_file():
            if path.is_dir():
                raise BadInput(f"file {path}", why="is a folder", remedy="give the path of a file")
            with path.open("w", encoding="utf-8") as device:  # a pipe or a device: there is nothing to rename
                yield device
            return
        path.parent.mkdir(parents=True, exist_ok=True)
        descriptor, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name[:20]}.", text=True)
        aside = Path(name)
        try:
            with os.fdopen(descriptor, "w", encoding="utf-8") as file:
                yield file
                file.flush()
                os.fsync(file.fileno())
            aside.chmod(0o666 & ~_umask())
            aside.replace(path)
        except BaseException:
            aside.unlink(missing_ok=True)
            raise
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise BadInput(f"file {path}", why=why, remedy="make room, or choose another place") from error


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
