"""Runs that this process drives: beside a running event loop, stopped, and gone on with."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import holdfast as hf
from holdfast.contracts.run import RunState
from tests.api import scene
from tests.api.scene import short
from tests.endpoint import Endpoint


async def test_it_works_inside_a_running_event_loop(endpoint: Endpoint, at: Path) -> None:
    run = hf.start(scene.agent, scene.questions(30), **short(endpoint, at))
    states = [status.run_state for status in await asyncio.to_thread(lambda: list(run.events()))]
    assert states[0] is RunState.RUNNING and states[-1] is RunState.COMPLETED
    assert run.wait().release == "support@2" and run.is_over


def test_what_is_stopped_goes_on_by_the_same_call(endpoint: Endpoint, at: Path) -> None:
    is_slow = [True]

    async def agent(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(0.2 if is_slow[0] else 0.0)
        return await scene.agent(task, ctx)

    run = hf.start(agent, scene.questions(30), **short(endpoint, at))
    for status in run.events():
        if status.succeeded:
            break
    run.stop()
    with pytest.raises(hf.HoldfastError, match="the same call goes on from there"):
        run.wait()
    is_slow[0] = False
    again = hf.start(agent, scene.questions(30), **short(endpoint, at))
    result = again.wait()
    assert again.id == run.id and again.resumed == run.id and result.release == "support@2"
    anew = hf.start(agent, scene.questions(30), **short(endpoint, at))
    assert anew.wait().run.id != run.id  # what came to its end is not gone on with


def test_another_call_is_another_run(endpoint: Endpoint, at: Path) -> None:
    async def slow(task: Any, ctx: hf.Context) -> str:
        await asyncio.sleep(30)
        return ""

    run = hf.start(slow, scene.questions(30), **short(endpoint, at))
    assert run.id
    run.stop()
    with pytest.raises(hf.HoldfastError):
        run.wait()
    other = hf.improve(scene.agent, scene.questions(30), **short(endpoint, at))
    assert other.run.id != run.id
