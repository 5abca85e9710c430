"""`holdfast optimize`: settings from the file and the flags, checked whole, then one run of the loop."""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from holdfast.cli.aliases import ALIASES
from holdfast.cli.options import DEFAULT_STORE, Project, settings_of
from holdfast.contracts.errors import BadInput

if TYPE_CHECKING:
    from holdfast.pipeline.run import RunSpec
    from holdfast.promote.flags import Off
    from holdfast.store.store import Store

EPILOG = "Older names, still accepted, each with a warning:\n\n\b\n" + "\n".join(
    f"{old:<29} now {new}" for old, new in ALIASES.items()
)

Config = Annotated[
    Path | None,
    typer.Option("--config", "--prompt-optimization-config", metavar="FILE", help="The run's settings, JSON or TOML."),
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
    agent: Annotated[str | None, typer.Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None,
    project: Project = "default",
    resume: Annotated[str | None, typer.Option(metavar="RUN", help="Take up a run that stopped.")] = None,
    state_dir: Annotated[
        Path, typer.Option(metavar="FOLDER", help="Where status.json lies when the store is Postgres.")
    ] = Path(".holdfast"),
    proxy_server: Annotated[bool, typer.Option(f"{_PROXY}server", hidden=True)] = False,
    proxy_bind: Annotated[str | None, typer.Option(f"{_PROXY}bind", hidden=True)] = None,
    proxy_upstream_url: Annotated[str | None, typer.Option(f"{_PROXY}upstream-url", hidden=True)] = None,
    proxy_state_dir: Annotated[Path | None, typer.Option(f"{_PROXY}state-dir", hidden=True)] = None,
    proxy_timeout_ms: Annotated[int | None, typer.Option(f"{_PROXY}timeout-ms", hidden=True)] = None,
) -> None:
    """Run the rollouts of a config file against a model or a Python agent, and record how well they did.

    The key of the model's endpoint is read from OPENAI_API_KEY. Ctrl-C hands running work back and stops; the
    run can then be taken up with --resume.
    """
    flags_of_proxy = {
        "bind": proxy_bind,
        "upstream-url": proxy_upstream_url,
        "state-dir": proxy_state_dir,
        "timeout-ms": proxy_timeout_ms,
    }
    if proxy_server:
        if config is not None or resume is not None:
            why = "starts the capture proxy, and --config or --resume a run: they cannot be given together"
            raise BadInput(f"{_PROXY}server", why=why, remedy="start the two with two commands")
        _proxy(flags_of_proxy, store, project)
        return
    for name, value in flags_of_proxy.items():
        if value is not None:
            raise BadInput(f"{_PROXY}{name}", why="is for the capture proxy", remedy=f"give {_PROXY}server as well")
    from holdfast.cli.drive import new_salt
    from holdfast.cli.switched import wanted
    from holdfast.contracts.settings import load_settings, override
    from holdfast.operate.switches import key_of, snapshot_at, snapshot_of
    from holdfast.pipeline.spec import optimize_spec
    from holdfast.store.store import open_store

    flags = {"model": model, "base_url": base_url, "agent": agent}
    if resume is not None and (model is not None or agent is not None):
        why = "a run keeps the agent and the model it began with"
        raise BadInput("--resume", why=why, remedy="leave --agent and --model out, or start a new run")
    if (config is None) == (resume is None):
        why = "is missing" if config is None else "and --resume were both given"
        raise BadInput("--config", why=why, remedy="give the file with the run's settings, or --resume RUN")
    if config is not None:
        settings = override(load_settings(config), **flags)
        salt, flags_now = new_salt(), snapshot_at(store, project, clock=time.time, environment=os.environ)
        # Everything is checked before the store is touched.
        spec = optimize_spec(settings, flags_now.features(salt))
        poll_s = settings.poll_interval_ms / 1000
        with open_store(store, project=project, state_folder=state_dir, poll_s=poll_s) as opened:
            _drive(opened, spec, flags_now.off(salt), wanted(settings), json, salt=salt)
    else:
        with open_store(store, project=project, state_folder=state_dir, create=False) as opened:
            run = opened.runs.get(str(resume))
            settings = override(settings_of(opened, run), **flags)
            flags_now, key = snapshot_of(opened, clock=time.time, environment=os.environ), key_of(run.id)
            spec = optimize_spec(settings, flags_now.features(key))
            _drive(opened, spec, flags_now.off(key), wanted(settings), json, resume=run.id)


def _drive(
    store: Store,
    spec: RunSpec,
    off: Mapping[str, Off],  # when it begins
    wanted: Iterable[str],  # features
    json: bool,
    *,
    resume: str | None = None,
    salt: str | None = None,
) -> None:
    from holdfast.cli.drive import drive
    from holdfast.cli.progress import report
    from holdfast.cli.switched import stopped

    status, shown, code = drive(store, spec, resume, salt)
    report(status, shown, as_json=json, off=stopped(store, status.run_id, off, wanted))
    raise typer.Exit(code)


def _proxy(given: Mapping[str, Any], store: str, project: str) -> None:
    """`holdfast proxy` under its documented flags."""
    from holdfast.cli import proxy

    url, timeout_ms = given["upstream-url"], given["timeout-ms"]
    if not (url or "").strip():
        raise BadInput(f"{_PROXY}upstream-url", why="is missing", remedy="give the address that answers the calls")
    if timeout_ms is not None and timeout_ms < 1:
        raise BadInput(f"{_PROXY}timeout-ms {timeout_ms}", why="must be above 0", remedy="give milliseconds")
    proxy.run(
        upstreams=[url.strip()],
        address=proxy.read_bind(given["bind"] or f"{proxy.HOST}:{proxy.PORT}"),
        token=os.environ.get("HOLDFAST_TOKEN") or None,
        state_dir=given["state-dir"] or proxy.STATE_DIR,
        timeout_s=(timeout_ms or proxy.TIMEOUT_MS) / 1000,
        store=store,
        project=project,
    )
