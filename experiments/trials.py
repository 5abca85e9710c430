"""The frame of the experiments with runs: what would stop them is said first, every trial is run once, all is kept."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

import typer

from holdfast.cli.options import check_torch, store_flags
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.workloads.trials import TrialKind

Trial = TypeVar("Trial")
Outcome = TypeVar("Outcome")


def check(name: str, output: Path | None) -> None:
    """What would stop it later, said before anything runs."""
    check_torch(f"experiment {name}")
    if output is not None and output.exists() and not output.is_dir():
        raise BadInput(f"--output {output}", why="is a file", remedy="name a folder")


def carry_out(
    trials: Sequence[Trial], kind: TrialKind[Trial, Outcome], at: tuple[str, str], options: Mapping[str, Any]
) -> tuple[list[Outcome], Path]:
    """What every trial came to, and the folder for the report. Exits where one stopped, with the command to go on: the
    options that are given and set."""
    from holdfast.cli.drive import drive
    from holdfast.store.store import open_store
    from holdfast.workloads.trials import run_all

    with open_store(at[0], project=at[1]) as opened:
        found, code = run_all(opened, trials, kind, drive, lambda line: print(line, file=sys.stderr))
        folder = Path(options.get("output") or opened.reports)
        where = store_flags(opened.url, opened.project)
    if code:
        words = [["python", "-m", "experiments", kind.kind]]
        words += [
            [f"--{key}"] if value is True else [f"--{key}", str(value)] for key, value in options.items() if value
        ]
        again = shlex.join([word for some in words for word in some]) + where
        print(f"{len(found)} of {len(trials)} runs are done; to go on:\n  {again}", file=sys.stderr)
        raise typer.Exit(code)
    return found, folder


def keep(folder: Path, name: str, record: dict[str, Any], draw: Callable[[Path], None] | None = None) -> list[Path]:
    """The picture, where there is one, and the table, in the folder; their places."""
    from json import dumps

    from holdfast.store.artifacts import write_atomically

    folder.mkdir(parents=True, exist_ok=True)
    table, picture = folder / f"{name}.json", folder / f"{name}.png"
    write_atomically(table, (dumps(record, indent=2, allow_nan=False) + "\n").encode())
    if draw is None:
        return [table]
    draw(picture)
    return [picture, table]
