"""What the commands of the town share: a few options, and a word before the first of them is slow."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.contracts.errors import BadInput

RulesAt = Annotated[Path | None, typer.Option("--rules", metavar="FILE", help="TOML that overrides the default rules.")]
Seed = Annotated[int, typer.Option("--seed", metavar="N", min=0, max=2**63 - 1, help="The same seed, the same town.")]
Residents = Annotated[int | None, typer.Option("--residents", metavar="N", min=1, max=256, help="How many live there.")]


def warn() -> None:
    """The first town on a machine, and after a change of its code, keeps people waiting."""
    from holdfast.workloads.townlife import is_cold

    if is_cold():
        typer.echo("compiling the rules of the town, once; this takes about a minute …", err=True)


def check_writable(*paths: Path | None) -> None:
    """Before any work: a result that cannot be kept is of no use."""
    for path in paths:
        if path is not None and not path.resolve().parent.is_dir():
            raise BadInput(str(path), why="its folder does not exist", remedy="make it first")
