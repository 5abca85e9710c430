"""`holdfast work`: more hands for a run that another process drives, on this machine or another."""

from __future__ import annotations

from typing import Annotated

import typer

from holdfast.cli.options import DEFAULT_STORE, Project, StoreAt, settings_of


def work(
    run: Annotated[str, typer.Argument(metavar="RUN", help="The run to help with.")],
    store: StoreAt = DEFAULT_STORE,
    project: Project = "default",
    workers: Annotated[int | None, typer.Option("--workers", metavar="N", min=1, max=10_000, help="How many.")] = None,
) -> None:
    """Work on a run until it ends; agent, model and pace are those the run was started with."""
    import asyncio
    import time

    from holdfast.cli.signals import obeying
    from holdfast.collect.pool import PoolStats
    from holdfast.contracts.errors import IllegalMove
    from holdfast.contracts.run import RunState
    from holdfast.contracts.settings import override
    from holdfast.pipeline.run import Control, assist
    from holdfast.pipeline.spec import optimize_spec
    from holdfast.store.store import open_store

    with open_store(store, project=project, create=False) as opened:
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
