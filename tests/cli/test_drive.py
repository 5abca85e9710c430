"""Driving a run from a terminal: how it ends becomes an exit code, and `status.json` always says where it is."""

from __future__ import annotations

import asyncio
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.cli.drive import drive
from holdfast.collect.agent import Context
from holdfast.contracts.agent import Agent
from holdfast.contracts.algorithm import Batch
from holdfast.contracts.errors import BadInput
from holdfast.contracts.records import loads
from holdfast.contracts.run import RunState, Status
from holdfast.pipeline.collect import collect
from holdfast.pipeline.run import DurableRun, RunSpec
from holdfast.store.store import open_store
from tests.conftest import Files
from tests.pipeline.driving import all_of, echo, failing, names, spec_of, work


async def waiting(task: Any, context: Context) -> None:
    await asyncio.sleep(60)


async def interrupting(task: Any, context: Context) -> None:
    """Ctrl-C, once somebody listens: here the terminal and the agents are one process."""
    os.kill(os.getpid(), signal.SIGINT)
    await asyncio.sleep(60)


async def terminating(task: Any, context: Context) -> Any:
    os.kill(os.getpid(), signal.SIGTERM)
    await asyncio.sleep(0.3)
    return task


def three(agent: Agent, **fields: Any) -> RunSpec:
    return spec_of(all_of(work(3), max_attempts=1), agent, workers=1, **fields)


def taught(learn: Any) -> RunSpec:
    """Three tasks, and what is learnt from them."""

    async def program(run: DurableRun) -> None:
        batch = await run.step("1/collect", collect, work(3), 1, None, title="lesson 1")
        await run.step("1/learn", learn, batch, title="lesson 1")

    return spec_of(program)


@pytest.mark.parametrize(
    ("agent", "fields", "state", "code"),
    [
        (echo, {}, RunState.COMPLETED, 0),
        (failing, {}, RunState.FAILED, 3),
        (waiting, {"timeout_s": 0.3}, RunState.TIMED_OUT, 4),
        (interrupting, {}, RunState.CANCELLED, 130),
        (terminating, {}, RunState.CANCELLED, 143),
    ],
    ids=lambda value: getattr(value, "__name__", ""),
)
def test_how_a_run_ended_is_its_exit_code_and_its_status(
    files: Files, agent: Agent, fields: dict[str, Any], state: RunState, code: int
) -> None:
    with open_store(files.fresh()) as store:
        status, shown, exit_code = drive(store, three(agent, **fields), None)
        assert (status.run_state, exit_code) == (state, code)
        assert loads(Status, shown.read_bytes()) == status
        assert shown == store.folder / "status.json"


def test_a_run_that_stopped_is_resumed_by_its_name(files: Files) -> None:
    with open_store(files.fresh()) as store:
        stopped, _, _ = drive(store, three(interrupting), None)
        status, _, code = drive(store, three(echo), stopped.run_id)
        assert (status.run_id, status.succeeded, code) == (stopped.run_id, 3, 0)


def test_the_status_is_shown_as_seen_from_here(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(files.fresh()) as store:
        monkeypatch.chdir(store.folder)
        _, shown, _ = drive(store, three(echo), None)
        assert shown == Path("status.json")


def test_ctrl_c_while_it_learns_ends_the_run(files: Files) -> None:
    def learn(batch: Batch) -> dict[str, Any]:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return {}

    with open_store(files.fresh()) as store:
        status, _, code = drive(store, taught(learn), None)
        assert (status.run_state, status.error) == (RunState.CANCELLED, "interrupted")
        assert (status.lesson, code) == ("lesson 1", 130)
        assert names(store, status.run_id) == ["begin", "1/collect"]


def test_a_learner_that_fails_leaves_the_reason_in_the_status_and_is_raised(files: Files) -> None:
    def learn(batch: Batch) -> dict[str, Any]:
        raise BadInput("lesson 1", why="cannot be learnt", remedy="try another")

    with open_store(files.fresh()) as store:
        with pytest.raises(BadInput, match="lesson 1: cannot be learnt; try another"):
            drive(store, taught(learn), None)
        status = loads(Status, (store.folder / "status.json").read_bytes())
        assert (status.run_state, status.error) == (RunState.FAILED, "lesson 1: cannot be learnt; try another")
