"""`holdfast import`: chat logs become finished rollouts, scrubbed and through the gates, ready to be learnt from.

What becomes of them is `pipeline.importing`'s business.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from holdfast.cli import show
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreAt, who
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Split

if TYPE_CHECKING:
    from holdfast.pipeline.importing import Imported

EPILOG = """Each line of FILE is {"messages": […]}, and may have "reward", "model", "tools" and "metadata".

Exit codes: 0 done, 1 nothing passed the gates, 2 a line that cannot be read: then nothing was stored."""


def take_in(
    file: Annotated[Path, typer.Argument(metavar="FILE", help="Conversations as JSON, one a line.")],
    split: Annotated[Split, typer.Option(help="What they are for.")] = Split.TRAIN,
    model: Annotated[str, typer.Option(metavar="NAME", help="Who answered, where a line does not say.")] = "imported",
    scrub: Annotated[
        bool,
        typer.Option("--scrub/--no-scrub", help="Replace secrets and personal data; without it --yes is asked for."),
    ] = True,
    yes: Annotated[bool, typer.Option("--yes", help="Really keep what was said as it was said.")] = False,
    limit: Limit = 20,
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    json: Json = False,
) -> None:
    """Take in chat logs: scrubbed, through the data gates, each conversation once."""
    if not scrub and not yes:
        remedy = "leave it out, or add --yes"
        raise BadInput("--no-scrub", why="would store secrets and personal data as they are", remedy=remedy)
    from holdfast.pipeline.importing import import_logs, read_logs
    from holdfast.store.store import open_store

    rows = read_logs(file)
    with open_store(store, project=project) as opened:
        found = import_logs(
            opened,
            rows,
            split=split,
            model=model,
            scrub=scrub,
            who=who(),
            clock=time.time,
            progress=show.progress,
        )
    _tell(found, limit=limit, json=json)
    if found.is_fruitless:
        raise typer.Exit(1)


def _tell(found: Imported, *, limit: int, json: bool) -> None:
    run, left, counted, audit = found.run, found.quarantined, found.scrubbed, found.audit
    imported, repeated = found.stored, found.repeated
    if json:
        from holdfast.contracts.records import encode

        show.print_json(
            {
                "run": run,
                "imported": imported,
                "repeated": repeated,
                "quarantined": {str(line): list(names) for line, names in sorted(left.items())},
                "scrubbed": dict(sorted(counted.items())),
                "findings": [encode(finding) for finding in audit.findings if finding.count],
            }
        )
        return
    told = f"{show.count(imported, 'conversation')} imported, {repeated} there already, {len(left)} quarantined"
    print(told if run is None else f"{run}: {told}")
    if counted:
        print("scrubbed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(counted.items())))
    warned = [
        (finding.name, finding.severity, finding.count, finding.of) for finding in audit.findings if finding.count
    ]
    if warned:
        print()
        show.print_table(("gate", "severity", ">failed", ">of"), warned)
    if left:
        print()
        show.print_table((">line", "~quarantined by"), [(n, ", ".join(left[n])) for n in sorted(left)[:limit]])
        if len(left) > limit:
            print(f"and {len(left) - limit} more; --limit {len(left)} shows them all")
