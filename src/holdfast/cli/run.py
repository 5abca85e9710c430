"""`holdfast run`: rollouts of a config file, more workers for a run, and chat logs to learn from."""

from __future__ import annotations

import asyncio
import os
import time
from collections.abc import Iterator
from dataclasses import dataclass, fields
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer import Argument, Option

from holdfast.cli import show
from holdfast.cli.main import ALIASES
from holdfast.cli.options import (
    CONFIG,
    DEFAULT_STORE,
    Leave,
    Limit,
    Output,
    Project,
    StoreOptions,
    Text,
    TokenOptions,
    classes_left,
    settings_of,
    who,
)
from holdfast.cli.prompts import PromptOptions, searched_in
from holdfast.contracts.errors import BadInput, IllegalMove
from holdfast.contracts.rollout import Split
from holdfast.contracts.run import RunState

if TYPE_CHECKING:
    from holdfast.pipeline.importing import Imported


OPTIMIZE_EPILOG = "Older names, still accepted, each with a warning:\n\n\b\n" + "\n".join(
    f"{old:<29} now {new}" for old, new in ALIASES.items()
)

Config = Annotated[
    Path | None,
    Option("--config", "--prompt-optimization-config", metavar="FILE", help="The same as CONFIG."),
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


@dataclass(frozen=True, slots=True, kw_only=True)
class ProxyFlags:
    """The documented flags of the capture proxy, which `holdfast proxy` starts."""

    proxy_server: Annotated[bool, Option(f"{_PROXY}server", hidden=True)] = False
    proxy_bind: Annotated[str | None, Option(f"{_PROXY}bind", hidden=True)] = None
    proxy_upstream_url: Annotated[str | None, Option(f"{_PROXY}upstream-url", hidden=True)] = None
    proxy_state_dir: Annotated[Path | None, Option(f"{_PROXY}state-dir", hidden=True)] = None
    proxy_timeout_ms: Annotated[int | None, Option(f"{_PROXY}timeout-ms", hidden=True)] = None

    def check(self, is_run: bool) -> None:
        if self.proxy_server and is_run:
            why = "starts the capture proxy, and --config or --resume a run: they cannot be given together"
            raise BadInput(f"{_PROXY}server", why=why, remedy="start the two with two commands")
        for field in () if self.proxy_server else fields(self)[1:]:
            if getattr(self, field.name) is not None:
                flag = f"--prompt-optimization-{field.name.replace('_', '-')}"
                raise BadInput(flag, why="is for the capture proxy", remedy=f"give {_PROXY}server as well")

    def start(self, at: StoreOptions) -> None:
        from holdfast.cli import serve

        url, timeout_ms = self.proxy_upstream_url, self.proxy_timeout_ms
        if not (url or "").strip():
            raise BadInput(f"{_PROXY}upstream-url", why="is missing", remedy="give the address that answers the calls")
        if timeout_ms is not None and timeout_ms < 1:
            raise BadInput(f"{_PROXY}timeout-ms {timeout_ms}", why="must be above 0", remedy="give milliseconds")
        host, port = serve.read_bind(self.proxy_bind or f"{serve.PROXY_HOST}:{serve.PROXY_PORT}")
        serve.proxy(
            upstream=[str(url).strip()],
            at=at,
            host=host,
            port=port,
            tokens=TokenOptions(),
            state_dir=self.proxy_state_dir or serve.STATE_DIR,
            timeout_ms=timeout_ms or serve.TIMEOUT_MS,
        )


def optimize(
    proxy: ProxyFlags,
    search: PromptOptions,
    file: Annotated[
        Path | None, Argument(metavar="CONFIG", help="The settings, JSON or TOML; else holdfast.toml.")
    ] = None,
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
) -> None:
    """Run the rollouts of a config file against a model or a Python agent, and record how well they did.

    With --search, or a `prompt_search` block in the file, prompts are proposed and raced on the `optimize` tasks, and
    the best one is proved on the `validate` tasks.

    The key of the model's endpoint is read from OPENAI_API_KEY. Ctrl-C hands running work back and stops; the
    run can then be taken up with --resume.
    """
    if file is not None and config is not None:
        raise BadInput("CONFIG", why="and --config were both given", remedy="keep one of the two")
    config = file if config is None else config
    proxy.check(config is not None or resume is not None)
    if proxy.proxy_server:
        return proxy.start(StoreOptions(store, project))
    if config is None and resume is None and Path(CONFIG).is_file():
        config = Path(CONFIG)
    from holdfast.contracts.settings import load_settings, override

    flags = {"model": model, "base_url": base_url, "agent": agent}
    if resume is not None and (model is not None or agent is not None):
        why = "a run keeps the agent and the model it began with"
        raise BadInput("--resume", why=why, remedy="leave --agent and --model out, or start a new run")
    if (config is None) == (resume is None):
        why = "is missing" if config is None else "and --resume were both given"
        raise BadInput("CONFIG", why=why, remedy="give the file with the run's settings, or --resume RUN")
    settings = None if config is None else override(load_settings(config), **flags)
    with show.progress("loading", None):  # the file first: the rest takes seconds
        from holdfast.cli.drive import drive, report, switched_off
        from holdfast.operate.switches import snapshot_of
        from holdfast.pipeline.spec import optimize_spec
        from holdfast.store.store import open_store
    if settings is None:
        search.refuse("--resume")
    else:
        settings = search.over(settings, is_asked=settings.prompt_search is not None)
    # All is checked before the store is touched.
    spec = None if settings is None else optimize_spec(settings)
    how: dict[str, Any] = {} if settings is None else {"poll_s": settings.poll_interval_ms / 1000}
    with open_store(store, project=project, state_folder=state_dir, create=resume is None, **how) as opened:
        if resume is not None:
            run = opened.runs.get(resume)
            settings, resume = override(settings_of(opened, run), **flags), run.id
            spec = optimize_spec(settings)
        assert settings is not None and spec is not None
        begun = snapshot_of(opened, clock=time.time, environment=os.environ)
        status, shown, code = drive(opened, spec, resume)
        off = switched_off(opened, status.run_id, spec, begun)
        report(status, shown, as_json=json, off=off, searched=searched_in(opened, status.run_id))
        raise typer.Exit(code)


def work(
    run: Annotated[str, Argument(metavar="RUN", help="The run to help with.")],
    at: StoreOptions,
    workers: Annotated[int | None, Option(metavar="N", min=1, max=10_000, help="How many.")] = None,
) -> None:
    """Add a worker to a run until it ends; it uses the agent, model and timing that the run was started with."""
    from holdfast.cli.drive import obeying
    from holdfast.collect.pool import PoolStats
    from holdfast.contracts.settings import override
    from holdfast.pipeline.run import Control, assist
    from holdfast.pipeline.spec import optimize_spec

    with at.open(create=False) as opened:
        found = opened.runs.get(run)
        settings = settings_of(opened, found)
        if found.state is not RunState.RUNNING:
            remedy = f"'holdfast run start --resume {found.id}' takes it up again"
            raise IllegalMove(f"run {found.id}", why=f"is {found.state}, not running", remedy=remedy)
        search = settings.prompt_search
        if search is not None and (search.tokens or search.money):
            why = "has a budget in tokens or money, which the process that drives it keeps"
            raise BadInput(f"run {found.id}", why=why, remedy="let that one do the work")
        spec = optimize_spec(override(settings, worker_count=workers))

        async def main() -> tuple[PoolStats, int]:
            control = Control()
            with obeying(control) as caught:
                tally = await assist(opened, spec, found.id, control, clock=opened.clock)
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
    leave: Leave = None,
    yes: Annotated[bool, Option("--yes", help="Really keep what was said as it was said.")] = False,
    limit: Limit = 20,
) -> Output:
    """Import chat logs: scrub them, check their quality, store each conversation once."""
    if not scrub and not yes:
        remedy = "leave it out, or add --yes"
        raise BadInput("--no-scrub", why="would store secrets and personal data as they are", remedy=remedy)
    from holdfast.pipeline.importing import import_logs, read_logs

    rows = read_logs(file)
    with at.open() as opened:
        imported = import_logs(
            opened,
            rows,
            split=split,
            model=model,
            scrub=scrub,
            leave=classes_left(leave),
            who=who(),
            clock=time.time,
            progress=show.progress,
        )
    data: dict[str, Any] = {"run": imported.run, "imported": imported.stored, "repeated": imported.repeated}
    data |= {
        "quarantined": dict(sorted(imported.quarantined.items())),
        "scrubbed": dict(sorted(imported.scrubbed.items())),
    }
    data["findings"] = [finding for finding in imported.audit.findings if finding.count]
    return Output(data, _import_lines(imported, limit), int(imported.is_fruitless))


def _import_lines(imported: Imported, limit: int) -> Iterator[Text]:
    left = [(n, ", ".join(gates)) for n, gates in sorted(imported.quarantined.items())]
    counted = f"{show.count(imported.stored, 'conversation')} imported"
    counted += f", {imported.repeated} there already, {len(left)} quarantined"
    yield counted if imported.run is None else f"{imported.run}: {counted}"
    if imported.scrubbed:
        yield "scrubbed: " + ", ".join(f"{n} {kind}" for kind, n in sorted(imported.scrubbed.items()))
    if warned := [
        (finding.name, finding.severity, finding.count, finding.of)
        for finding in imported.audit.findings
        if finding.count
    ]:
        yield from ("", show.table(("gate", "severity", ">failed", ">of"), warned))
    if left:
        yield from ("", show.table((">line", "~quarantined by"), left[:limit]))
        yield from show.left_out(left, limit)
