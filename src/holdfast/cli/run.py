"""`holdfast run`: rollouts of a config file, more workers for a run, and chat logs to learn from."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.main import ALIASES
from holdfast.cli.options import DEFAULT_STORE, Json, Limit, Project, StoreOptions, settings_of, who
from holdfast.contracts.errors import BadInput, IllegalMove
from holdfast.contracts.records import encode
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import RunState

if TYPE_CHECKING:
    from holdfast.pipeline.importing import Imported
    from holdfast.pipeline.run import RunSpec
    from holdfast.promote.flags import Off
    from holdfast.store.store import Store


OPTIMIZE_EPILOG = "Older names, still accepted, each with a warning:\n\n\b\n" + "\n".join(
    f"{old:<29} now {new}" for old, new in ALIASES.items()
)

Config = Annotated[
    Path | None,
    Option("--config", "--prompt-optimization-config", metavar="FILE", help="The run's settings, JSON or TOML."),
]
StoreFile = Annotated[
    str,
    Option(
        "--store",
        "--prompt-optimization-store-sqlite",
        metavar="STORE",
        envvar="HOLDFAST_STORE",
        help="A file, or postgresql://user@host/name; created when it is not there.",
    ),
]
JsonReport = Annotated[bool, Option("--json", "--prompt-optimization-json", help="Print the report as JSON.")]
_PROXY = "--prompt-optimization-proxy-"


def optimize(
    config: Config = None,
    store: StoreFile = DEFAULT_STORE,
    json: JsonReport = False,
    model: Annotated[str | None, Option(metavar="PROVIDER/NAME", help="The model that answers.")] = None,
    base_url: Annotated[str | None, Option(metavar="URL", help="An OpenAI-compatible endpoint.")] = None,
    agent: Annotated[str | None, Option(metavar="MODULE:FUNCTION", help="An agent, or FILE.py:FUNCTION.")] = None,
    project: Project = "default",
    resume: Annotated[str | None, Option(metavar="RUN", help="Take up a run that stopped.")] = None,
    state_dir: Annotated[
        Path, Option(metavar="FOLDER", help="Where status.json lies when the store is Postgres.")
    ] = Path(".holdfast"),
    proxy_server: Annotated[bool, Option(f"{_PROXY}server", hidden=True)] = False,
    proxy_bind: Annotated[str | None, Option(f"{_PROXY}bind", hidden=True)] = None,
    proxy_upstream_url: Annotated[str | None, Option(f"{_PROXY}upstream-url", hidden=True)] = None,
    proxy_state_dir: Annotated[Path | None, Option(f"{_PROXY}state-dir", hidden=True)] = None,
    proxy_timeout_ms: Annotated[int | None, Option(f"{_PROXY}timeout-ms", hidden=True)] = None,
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
        _proxy(flags_of_proxy, StoreOptions(store, project))
        return
    for name, value in flags_of_proxy.items():
        if value is not None:
            raise BadInput(f"{_PROXY}{name}", why="is for the capture proxy", remedy=f"give {_PROXY}server as well")
    from holdfast.cli.drive import new_salt, wanted_features
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
            _drive(opened, spec, flags_now.off(salt), wanted_features(settings), json, salt=salt)
    else:
        with open_store(store, project=project, state_folder=state_dir, create=False) as opened:
            run = opened.runs.get(str(resume))
            settings = override(settings_of(opened, run), **flags)
            flags_now, key = snapshot_of(opened, clock=time.time, environment=os.environ), key_of(run.id)
            spec = optimize_spec(settings, flags_now.features(key))
            _drive(opened, spec, flags_now.off(key), wanted_features(settings), json, resume=run.id)


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
    from holdfast.cli.drive import drive, report, switched_off

    status, shown, code = drive(store, spec, resume, salt)
    report(status, shown, as_json=json, off=switched_off(store, status.run_id, off, wanted))
    raise typer.Exit(code)


def _proxy(given: Mapping[str, Any], at: StoreOptions) -> None:
    """`holdfast proxy` under its documented flags."""
    from holdfast.cli import serve

    url, timeout_ms = given["upstream-url"], given["timeout-ms"]
    if not (url or "").strip():
        raise BadInput(f"{_PROXY}upstream-url", why="is missing", remedy="give the address that answers the calls")
    if timeout_ms is not None and timeout_ms < 1:
        raise BadInput(f"{_PROXY}timeout-ms {timeout_ms}", why="must be above 0", remedy="give milliseconds")
    host, port = serve.read_bind(given["bind"] or f"{serve.PROXY_HOST}:{serve.PROXY_PORT}")
    serve.proxy(
        upstream=[url.strip()],
        at=at,
        host=host,
        port=port,
        token=os.environ.get("HOLDFAST_TOKEN") or None,
        state_dir=given["state-dir"] or serve.STATE_DIR,
        timeout_ms=timeout_ms or serve.TIMEOUT_MS,
    )


def work(
    run: Annotated[str, Argument(metavar="RUN", help="The run to help with.")],
    at: StoreOptions,
    workers: Annotated[int | None, Option(metavar="N", min=1, max=10_000, help="How many.")] = None,
) -> None:
    """Work on a run until it ends; agent, model and pace are those the run was started with."""
    from holdfast.cli.drive import obeying
    from holdfast.collect.pool import PoolStats
    from holdfast.contracts.settings import override
    from holdfast.pipeline.run import Control, assist
    from holdfast.pipeline.spec import optimize_spec

    with at.open(create=False) as opened:
        found = opened.runs.get(run)
        settings = settings_of(opened, found)
        if found.state is not RunState.RUNNING:
            remedy = f"'holdfast optimize --resume {found.id}' takes it up again"
            raise IllegalMove(f"run {found.id}", why=f"is {found.state}, not running", remedy=remedy)
        spec = optimize_spec(override(settings, worker_count=workers))

        async def main() -> tuple[PoolStats, int]:
            control = Control()
            with obeying(control) as caught:
                tally = await assist(opened, spec, found.id, control, clock=time.time)
            return tally, caught.exit_code

        tally, exit_code = asyncio.run(main())
        print(f"{found.id}: {tally.succeeded} succeeded, {tally.failed} failed, {tally.interrupted} handed back here")
        raise typer.Exit(exit_code)


IMPORT_EPILOG = """Each line of FILE is {"messages": […]}, and may have "reward", "model", "tools" and "metadata".

Exit codes: 0 done, 1 nothing passed the gates, 2 a line that cannot be read: then nothing was stored."""


def import_(
    file: Annotated[Path, Argument(metavar="FILE", help="Conversations as JSON, one a line.")],
    at: StoreOptions,
    split: Annotated[Split, Option(help="What they are for.")] = Split.TRAIN,
    model: Annotated[str, Option(metavar="NAME", help="Who answered, where a line does not say.")] = "imported",
    scrub: Annotated[
        bool, Option("--scrub/--no-scrub", help="Replace secrets and personal data; without it --yes is asked for.")
    ] = True,
    yes: Annotated[bool, Option("--yes", help="Really keep what was said as it was said.")] = False,
    limit: Limit = 20,
    json: Json = False,
) -> None:
    """Take in chat logs: scrubbed, through the data gates, each conversation once."""
    if not scrub and not yes:
        remedy = "leave it out, or add --yes"
        raise BadInput("--no-scrub", why="would store secrets and personal data as they are", remedy=remedy)
    from holdfast.pipeline.importing import import_logs, read_logs

    rows = read_logs(file)
    with at.open() as opened:
        found = import_logs(
            opened, rows, split=split, model=model, scrub=scrub, who=who(), clock=time.time, progress=show.progress
        )
    _tell(found, limit=limit, json=json)
    if found.is_fruitless:
        raise typer.Exit(1)


def _tell(found: Imported, *, limit: int, json: bool) -> None:
    run, left, counted, audit = found.run, found.quarantined, found.scrubbed, found.audit
    imported, repeated = found.stored, found.repeated
    if json:
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
