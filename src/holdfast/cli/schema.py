"""`holdfast schema`: the JSON Schema of everything this program writes for others to read."""

from __future__ import annotations

from importlib import import_module
from typing import Annotated, Any

import typer

from holdfast.cli.options import Json

REPORTS = {  # what --json of a command prints, where it is not a plain record
    "compat-report": ("holdfast.cli.compat", "Report"),
    "store-check": ("holdfast.store.check", "Checked"),
    "store-export": ("holdfast.store.export", "Exported"),
    "store-migration": ("holdfast.store.admin", "Migration"),
    "store-prune": ("holdfast.store.admin", "Pruned"),
    "store-stats": ("holdfast.store.admin", "Stats"),
}
SETTINGS = "optimize-settings"


def schema(
    name: Annotated[str | None, typer.Argument(help="One of the published names; without it they are listed.")] = None,
    json: Json = False,
) -> None:
    """Print the JSON Schema of a published record."""
    from holdfast.cli.show import print_json
    from holdfast.contracts.records import PUBLISHED

    names = sorted([*PUBLISHED, *REPORTS, SETTINGS])
    if name is not None:
        print_json(document(name, names))
    elif json:
        print_json(names)
    else:
        print("\n".join(names))


def document(name: str, names: list[str]) -> dict[str, Any]:
    import difflib

    from holdfast.contracts import records
    from holdfast.contracts.errors import NotFound

    if name == SETTINGS:
        from holdfast.contracts.settings import OptimizeSettings

        return {"$schema": records.DIALECT, **OptimizeSettings.model_json_schema()}
    if name in REPORTS:
        module, attribute = REPORTS[name]
        return records.schema(getattr(import_module(module), attribute))
    if name in records.PUBLISHED:
        return records.schema(records.PUBLISHED[name])
    close = difflib.get_close_matches(name, names, n=1)
    remedy = f"did you mean {close[0]}?" if close else "'holdfast schema' lists the names"
    raise NotFound(f"schema {name!r}", why="is not published", remedy=remedy)
