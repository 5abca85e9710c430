"""Files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TextIO

from holdfast.contracts.errors import BadInput
from holdfast.store.artifacts import replacing


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
        with replacing(path, mode=0o666 & ~_umask()) as file:
            text = TextIOWrapper(file, encoding="utf-8")
            yield text
            text.flush()
            text.detach()  # else it closes the file, which is not its own
    except OSError as error:
        why = f"cannot be written: {error.strerror or error}"
        raise BadInput(f"file {path}", why=why, remedy="make room, or choose another place") from error


def _umask() -> int:
    found = os.umask(0)
    os.umask(found)
    return found
