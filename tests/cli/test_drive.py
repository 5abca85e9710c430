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
from holdfast.collect.agent import Agent, Context, no_model
from holdfast.collect.plan import Learnt, Lesson, Plan, once
from holdfast.collect.seats import Home, Seat
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Task
from holdfast.contracts.run import RunState
from holdfast.operate.status import read_status
from holdfast.store.store import open_store
from tests.collect.agents import no_score
from tests.collect.scene import PACE
from tests.conftest import Files

TASKS = [Task(name=f"t{n}", input=n, max_attempts=1) for n in range(3)]


async def echo(task: Any, context: Context) -> Any:
    return task


async def failing(task: Any, context: Context) -> None:
    raise ValueError("no")


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


def plan_of(agent: Agent, **fields: Any) -> Plan:
    home = Home(agent, no_score, no_model, time.time)
    given: dict[str, Any] = {
        "course": once(TASKS),
        "resources": {},
        "model_ref": "agent/test",
        "settings": {},
        "seats": lambda: Seat(home.place()),
        "close": home.close,
        "workers": 1,
        "pace": PACE,
        "look_s": 0.01,
    }
    return Plan(**{**given, **fields})


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
        status, shown, exit_code = drive(store, plan_of(agent, **fields), None)
        assert (status.run_state, exit_code) == (state, code)
        assert read_status(shown) == status
        assert shown == store.folder / "status.json"


def test_a_run_that_stopped_is_resumed_by_its_name(files: Files) -> None:
    with open_store(files.fresh()) as store:
        stopped, _, _ = drive(store, plan_of(interrupting), None)
        status, _, code = drive(store, plan_of(echo), stopped.run_id)
        assert (status.run_id, status.succeeded, code) == (stopped.run_id, 3, 0)


def test_the_status_is_shown_as_seen_from_here(files: Files, monkeypatch: pytest.MonkeyPatch) -> None:
    with open_store(files.fresh()) as store:
        monkeypatch.chdir(store.folder)
        _, shown, _ = drive(store, plan_of(echo), None)
        assert shown == Path("status.json")


def test_ctrl_c_while_it_learns_ends_the_run(files: Files) -> None:
    def learn(experiences: Any) -> Learnt:
        os.kill(os.getpid(), signal.SIGINT)
        time.sleep(0.3)
        return Learnt(body={})

    with open_store(files.fresh()) as store:
        lesson = Lesson(name="lesson 1", tasks=TASKS, learn=learn)
        status, _, code = drive(store, plan_of(echo, course=lambda standing: None if standing.done else lesson), None)
        assert (status.run_state, status.error, status.lesson, code) == (
            RunState.CANCELLED,
            "interrupted",
            "lesson 1",
            130,
        )
        assert store.steps.of_run(status.run_id) == []


def test_a_learner_that_fails_leaves_the_reason_in_the_status_and_is_raised(files: Files) -> None:
    def learn(experiences: Any) -> Learnt:
        raise BadInput("lesson 1", why="cannot be learnt", remedy="try another")

    with open_store(files.fresh()) as store:
        lesson = Lesson(name="lesson 1", tasks=TASKS, learn=learn)
        with pytest.raises(BadInput, match="lesson 1: cannot be learnt; try another"):
            drive(store, plan_of(echo, course=lambda standing: lesson), None)
        status = read_status(store.folder / "status.json")
        assert (status.run_state, status.error) == (RunState.FAILED, "lesson 1: cannot be learnt; try another")
