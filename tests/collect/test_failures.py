"""What is kept of an exception in an agent or a scorer: where it was raised, and the whole traceback."""

from __future__ import annotations

import asyncio
import json
import time
from pathlib import Path
from typing import Any

import pytest

from holdfast.collect.agent import MAX_ERROR, MAX_TRACEBACK, Context, failure, load_agent, no_model
from holdfast.collect.executors import AgentRuntime
from holdfast.collect.processes import ProcessExecutor, ProcessRecipe
from holdfast.contracts.agent import Agent
from holdfast.contracts.rollout import AttemptState
from tests.collect.agents import no_score, ones
from tests.collect.scene import Sitting, home_of

CODE = """\
import asyncio, json

def inner(task):
    return {}["nope"]

def plain(task, context):
    return inner(task)

async def later(task, context):
    await asyncio.sleep(0)
    return inner(task)

def awaitable(task, context):
    return later(task, context)

def reading(task, context):
    return json.loads("{")

def score(task, output, spans):
    return inner(output)
"""
PLACE = "KeyError: 'nope' (mine.py:4, in inner)"


@pytest.fixture
def mine(tmp_path: Path) -> str:
    (tmp_path / "mine.py").write_text(CODE)
    return f"{tmp_path}/mine.py"


def is_whole(text: str) -> bool:
    """File, line and code of the agent's frames, and none of ours before them."""
    lines = text.splitlines()
    frames = [line for line in lines if line.startswith("  File ")]
    assert lines[0] == "Traceback (most recent call last):" and lines[-1] == "KeyError: 'nope'"
    assert all("mine.py" in frame for frame in frames) and frames[-1].endswith("line 4, in inner")
    return '    return {}["nope"]' in lines


@pytest.mark.parametrize("name", ["plain", "later", "awaitable"])
async def test_an_exception_leaves_its_place_and_its_traceback(mine: str, name: str) -> None:
    with home_of(load_agent(f"{mine}:{name}"), ones) as home:
        sitting = Sitting(home.executor())
        ended = await sitting.run("task")
    assert ended is not None and (ended.state, ended.error) == (AttemptState.FAILED, PLACE)
    (span,) = sitting.spans
    assert (span.name, span.attributes["error"]) == ("agent.run", PLACE)
    assert is_whole(span.attributes["traceback"])


@pytest.mark.parametrize("name", ["plain", "later"])
async def test_so_does_one_in_a_process(mine: str, name: str) -> None:
    sitting = Sitting(ProcessExecutor(ProcessRecipe(f"{mine}:{name}", no_score, no_model)))
    try:
        await sitting.seat.prepare()
        ended = await sitting.run("task")
    finally:
        sitting.seat.close()
    assert ended is not None and (ended.state, ended.error) == (AttemptState.FAILED, PLACE)
    assert is_whole(sitting.spans[-1].attributes["traceback"])


async def test_so_does_one_in_a_scorer(mine: str) -> None:
    score: Any = load_agent(f"{mine}:plain").__globals__["score"]
    home = AgentRuntime(lambda task, context: "fine", score, no_model, time.time)
    sitting = Sitting(home.executor())
    ended = await sitting.run("task")
    home.close()
    assert ended is not None and (ended.state, ended.error) == (AttemptState.FAULT, f"scoring: {PLACE}")
    assert [span.name for span in sitting.spans] == ["agent.run", "score"]
    assert sitting.spans[1].attributes["error"] == PLACE and is_whole(sitting.spans[1].attributes["traceback"])


async def test_the_place_is_in_the_agents_own_code_and_the_library_is_in_the_traceback(mine: str) -> None:
    with home_of(load_agent(f"{mine}:reading")) as home:
        sitting = Sitting(home.executor())
        ended = await sitting.run("task")
    assert ended is not None and ended.error is not None and ended.error.startswith("JSONDecodeError: Expecting")
    assert ended.error.endswith("(mine.py:17, in reading)")
    assert f'File "{json.decoder.__file__}"' in sitting.spans[0].attributes["traceback"]


async def test_an_exception_of_one_span_is_told_whole_once() -> None:
    def agent(task: Any, context: Context) -> None:
        with context.trace.span("inside"):
            raise ValueError("no")

    with home_of(agent) as home:
        sitting = Sitting(home.executor())
        await sitting.run("task")
    inside, outside = sitting.spans
    assert set(inside.attributes) == {"error"} and "in agent" in outside.attributes["traceback"]


def raised(agent: Agent) -> dict[str, str]:
    try:
        asyncio.run(agent(None, None))
    except BaseException as error:
        return failure(error)
    raise AssertionError("it was to raise")


class Broken(Exception):
    @property
    def __notes__(self) -> Any:
        raise RuntimeError("not even notes")


async def endless(task: Any, context: Any, depth: int = 0) -> Any:
    if depth % 2:
        return await endless(task, context, depth + 1)
    else:
        return await endless(task, context, depth + 1)


async def huge(task: Any, context: Any) -> Any:
    raise ValueError("ä" * 100_000)


async def unstorable(task: Any, context: Any) -> Any:
    raise ValueError("half \ud800 nothing \0")


async def broken(task: Any, context: Any) -> Any:
    raise Broken


@pytest.mark.parametrize("agent", [endless, huge, unstorable, broken])
def test_whatever_an_exception_is_there_is_an_end_to_it_and_a_store_can_hold_it(agent: Agent) -> None:
    kept = raised(agent)
    assert 0 < len(kept["error"]) <= MAX_ERROR and "test_failures.py" in kept["error"]
    text = kept["traceback"].encode()  # strict: half a character is refused
    assert len(text) <= MAX_TRACEBACK and b"\0" not in text
    assert text.startswith(b"Traceback (most recent call last):")
