"""Driving a run from a terminal: progress, signals, `status.json`, and the code it ends with."""

from __future__ import annotations

import asyncio
import os
import secrets
import time
from pathlib import Path

from holdfast.cli.options import who
from holdfast.cli.progress import Progress, stdout_kept_clean
from holdfast.cli.signals import obeying
from holdfast.contracts.run import RunState, Status
from holdfast.operate.lifecycle import write_status
from holdfast.operate.switches import feature_reader, key_of
from holdfast.pipeline.run import Control, RunSpec
from holdfast.pipeline.run import drive as drive_run
from holdfast.store.store import Store


def new_salt() -> str:
    """The end of a new run's id, and its key for shares of flags."""
    return secrets.token_hex(2)


def drive(store: Store, spec: RunSpec, resume: str | None, salt: str | None = None) -> tuple[Status, Path, int]:
    """Run the program to its end: how it ended, where its status lies, and the exit code."""
    salt = salt or new_salt()
    key = salt if resume is None else key_of(resume)
    path = store.folder / "status.json"
    here = Path.cwd()  # before an agent can change it
    shown = path.relative_to(here) if path.is_relative_to(here) else path

    def observe(status: Status) -> None:
        write_status(path, status)
        progress.show(status, store.runs.get(status.run_id).wanted)

    async def main() -> tuple[Status, int]:
        control = Control()
        with obeying(control) as caught:
            status = await drive_run(
                store,
                spec,
                control,
                clock=time.time,
                observe=observe,
                who=who(),
                salt=salt,
                resume=resume,
                features=feature_reader(store, key=key, clock=time.time, environment=os.environ),
            )
        return status, caught.exit_code

    with Progress() as progress, stdout_kept_clean():
        status, signalled = asyncio.run(main())
    codes = {RunState.COMPLETED: 0, RunState.FAILED: 3, RunState.TIMED_OUT: 4, RunState.CANCELLED: signalled or 130}
    return status, shown, codes[status.run_state]
