"""Where published reports lie, and when: what the commands of `holdfast report` share."""

from __future__ import annotations

from datetime import datetime
from pathlib import Path
from typing import Annotated

import typer

from holdfast.contracts.errors import BadInput

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


def moment_of(written: str | None) -> datetime:
    from datetime import UTC

    from holdfast.prove.reports.document import moment, read_moment

    if written is None:
        return datetime.now(UTC)
    why = moment(written)
    if why is not None:
        raise BadInput(f"--generated-at {written!r}", why=why)
    return read_moment(written)
