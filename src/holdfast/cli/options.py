"""Options that several commands share, the store they open with them, and files that are there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TextIO

from typer import Argument, Option

from holdfast.contracts.errors import BadInput
from holdfast.store.blobs import replacing

if TYPE_CHECKING:
    from holdfast.contracts.run import RunRecord
    from holdfast.contracts.settings import OptimizeSettings
    from holdfast.store.store import Store


DEFAULT_STORE = ".holdfast/training/store.sqlite"

StoreAt = Annotated[
    str, Option("--store", metavar="STORE", envvar="HOLDFAST_STORE", help="A file, or postgresql://user@host/name.")
]
Project = Annotated[str, Option("--project", metavar="NAME", help="Only what belongs to this project.")]
AnyProject = Annotated[
    str | None, Option("--project", metavar="NAME", help="Only this project; without it, all of them.")
]
Json = Annotated[bool, Option("--json", help="Print JSON.")]
Limit = Annotated[int, Option("--limit", metavar="N", min=1, max=10_000, help="At most so many rows.")]
RunText = Annotated[str, Argument(metavar="RUN", help="The run's id, or the beginning of it.")]
RolloutText = Annotated[str, Argument(metavar="RUN/NAME", help="The rollout's id; both parts may be cut short.")]
Why = Annotated[str, Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")]


def existing(store: str, project: str = "default") -> Store:
    """The store, as it is: nothing is created or migrated by looking."""
    from holdfast.store.store import open_store

    return open_store(store, project=project, create=False, migrate=False)


def settings_of(store: Store, run: RunRecord) -> OptimizeSettings:
    """What an `optimize` run was started with."""
    from holdfast.contracts.settings import settings_from

    if run.kind != "optimize":
        why = f"is a {run.kind}, which is driven by its own command"
        raise BadInput(f"run {run.id}", why=why, remedy=f"call 'holdfast {run.kind}' again")
    return settings_from(store.whole(run.settings), f"settings of {run.id}")


def who() -> str:
    """Who gives an order: the user's login name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        import os

        return f"uid {os.getuid()}"


@contextmanager
def needing(extra: str) -> Iterator[None]:
    """What is not installed is said in one line, with what to install."""
    from holdfast.contracts.errors import BadInput

    try:
        yield
    except ModuleNotFoundError as error:
        package = (error.name or "").partition(".")[0]
        if package == "holdfast":
            raise
        raise BadInput(package, why="is not installed", remedy=f"pip install 'holdfast[{extra}]'") from None


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
