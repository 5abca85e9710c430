"""`holdfast optimize`: settings from the file and the flags, checked whole, then one run."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from holdfast.cli.aliases import ALIASES
from holdfast.cli.options import DEFAULT_STORE, Project
from holdfast.contracts.errors import BadInput

EPILOG = "Older names, still accepted, each with a warning:\n\n\b\n" + "\n".join(
    f"{old:<29} now {new}" for old, new in ALIASES.items()
)

Config = Annotated[
    Path | None, typer.Option("--config", "--prompt-optimization-config", metavar="FILE", help="The run's settings, JSON or TOML.")
]
StoreFile = Annotated[
    str,
    typer.Option(
        "--store",
        "--prompt-optimization-store-sqlite",
        metavar="STORE",
        envvar="HOLDFAST_STORE",
        help="A file, or postgresql://user@host/name; created when it is not there.",
    ),
]
JsonReport = Annotated[bool, typer.Option("--json", "--prompt-optimization-json", help="Print the report as JSON.")]
_PROXY = "--prompt-optimization-proxy-"


def optimize(
    config: Config = None,
    store: StoreFile = DEFAULT_STORE,
    json: JsonReport = False,
    model: Annotated[str | None, typer.Option(metavar="PROVIDER/NAME", help="The model that answers.")] = None,
    base_url: Annotated[str | None, typer.Option(metavar="URL", help="An OpenAI-compatible endpoint.")] = None,
    agent: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="A Python agent.")] = None,
    project: Project = "default",
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Take up a run that stopped.")] = None,
    state_dir: Annotated[Path, typer.Option(metavar="FOLDER", help="Where status.json lies with Postgres.")] = Path(".holdfast"),
    proxy_server: Annotated[bool, typer.Option(f"{_PROXY}server", hidden=True)] = False,
    proxy_bind: Annotated[str | None, typer.Option(f"{_PROXY}bind", hidden=True)] = None,
    proxy_upstream_url: Annotated[str | None, typer.Option(f"{_PROXY}upstream-url", hidden=True)] = None,
    proxy_state_dir: Annotated[Path | None, typer.Option(f"{_PROXY}state-dir", hidden=True)] = None,
    proxy_timeout_ms: Annotated[int | None, typer.Option(f"{_PROXY}timeout-ms", hidden=True)] = None,
) -> None:
    """Run the rollouts of a config file and record how well they did."""
    _refuse_proxy(proxy_server, proxy_bind, proxy_upstream_url, proxy_state_dir, proxy_timeout_ms)
    if config is None:
        raise BadInput("--config", why="is missing", remedy="give the file with the run's settings")
    from holdfast.contracts.settings import load_settings, override

    settings = override(load_settings(config), model=model, base_url=base_url, agent=agent)
    if settings.agent is None and settings.model is None:
        raise BadInput(str(config), why="names neither an agent nor a model", remedy="give --agent or --model")
    raise NotImplementedError("holdfast.loop is not there yet")


def _refuse_proxy(*given: object) -> None:
    if any(value not in (None, False) for value in given):
        raise BadInput(f"{_PROXY}*", why="the capture proxy is not part of this version", remedy="leave these flags out")
