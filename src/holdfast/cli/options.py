"""Options that several commands share, and the store they open with them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

if TYPE_CHECKING:
    from holdfast.store.store import Store

DEFAULT_STORE = ".holdfast/training/store.sqlite"

StoreAt = Annotated[
    str,
    typer.Option("--store", metavar="STORE", envvar="HOLDFAST_STORE", help="A file, or postgresql://user@host/name."),
]
Project = Annotated[str, typer.Option("--project", metavar="NAME", help="Only what belongs to this project.")]
AnyProject = Annotated[
    str | None, typer.Option("--project", metavar="NAME", help="Only this project; without it, all of them.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Limit = Annotated[int, typer.Option("--limit", metavar="N", min=1, max=10_000, help="At most so many rows.")]
Why = Annotated[str, typer.Option("--why", metavar="TEXT", help="The reason, kept in the ledger.")]


def existing(store: str, project: str = "default") -> Store:
    """The store, as it is: nothing is created or migrated by looking."""
    from holdfast.store.store import open_store

    return open_store(store, project=project, create=False, migrate=False)


def who() -> str:
    """Who gives an order: the user's login name."""
    import getpass

    try:
        return getpass.getuser()
    except (KeyError, OSError):  # a container's user without a name
        import os

        return f"uid {os.getuid()}"
