"""Where published reports lie, what people call them, and when: what the commands of `holdfast report` share."""

from __future__ import annotations

import re
from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.onward import near
from holdfast.contracts.errors import BadInput

WIDTH = 79
NUMBERED = re.compile(r"(.+)-([0-9]{1,9})([a-z][0-9]*|)")  # a run, its version, and which proof of it

ReportsAt = Annotated[
    Path | None,
    typer.Option(
        "--reports", metavar="FOLDER", envvar="HOLDFAST_REPORTS", help="Where they lie; without it, beside the store."
    ),
]


def reports_folder(reports: Path | None, store: str) -> Path:
    """The folder that was given, or the one beside the store; it need not be there."""
    from holdfast.store.store import STATE_FOLDER

    if reports is not None:
        return reports
    if "://" in store:
        return STATE_FOLDER / "reports"
    folder = Path(store).parent
    return (folder.parent if folder.absolute().name == "training" else folder) / "reports"


def find_proof(what: str, folder: Path) -> Path:
    """The proof that is meant: a file, the id of its reports, a release (RUN@NUMBER), or a run and then its last.

    Ids may be cut short, as everywhere: `run-1` is run 1 and never run 10, `run-1-8` is the only run that starts so.
    """
    from holdfast.prove.reports.document import PROOF, catalogue

    if what.endswith(".json") or "/" in what:
        return Path(what)
    proofs: dict[str, Path] = {}
    for found in catalogue(folder):  # active ones first
        if found.kind == PROOF:
            proofs.setdefault(found.run, found.path)
    if what in proofs:
        return proofs[what]
    run, _, number = what.partition("@")
    begin = "".join(letter if letter.isascii() and letter.isalnum() else "-" for letter in run.lower())
    begin = begin if begin.startswith("m24-") else f"m24-{begin}"
    numbered = [(named[1], int(named[2]), named[3], one) for one in proofs if (named := NUMBERED.fullmatch(one))]
    if number:
        numbered = [one for one in numbered if str(one[1]) == number]
    meant = _starting(begin, numbered)
    if not meant or not run:
        why = f"there is no proof of it in {near(folder)}"
        raise BadInput(f"run {what}", why=why, remedy="'holdfast report list' shows all")
    if len({run for run, *_ in meant}) > 1:
        raise BadInput(f"run {what}", why="several start so", remedy="write more of it: 'holdfast report list'")
    return proofs[max(meant)[-1]]


def _starting(begin: str, numbered: list[tuple[str, int, str, str]]) -> list[tuple[str, int, str, str]]:
    """Those of the run that is called so, else of runs whose id goes on after a hyphen, else of those that start so."""
    for fits in (begin.__eq__, lambda run: run.startswith(f"{begin}-")):
        if found := [one for one in numbered if fits(one[0])]:
            return found
    if re.fullmatch(r"m24-run-\d+", begin):  # a number is whole
        return []
    return [one for one in numbered if one[0].startswith(begin)]


def fold(text: str, indent: str = "") -> str:
    """A sentence in lines of 80 columns; paths and codes stay whole."""
    from textwrap import fill

    return fill(
        text,
        WIDTH,
        initial_indent=indent,
        subsequent_indent=f"{indent}  ",
        break_long_words=False,
        break_on_hyphens=False,
    )


def moment_of(written: str | None) -> datetime:
    from datetime import UTC

    from holdfast.prove.reports.document import moment, read_moment

    if written is None:
        return datetime.now(UTC)
    why = moment(written)
    if why is not None:
        raise BadInput(f"--generated-at {written!r}", why=why)
    return read_moment(written)
