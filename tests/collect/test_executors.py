"""Seats: whatever an agent gets up to, interrupting it ends the run, and the others go on."""

from __future__ import annotations

import asyncio
import gc
import logging
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from functools import partial
from types import SimpleNamespace
from typing import Any

import pytest

from holdfast.collect.agent import Context
from holdfast.collect.executors import AgentRuntime, AsyncAttempt, InProcess, break_into
from holdfast.contracts.agent import Agent
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Outcome
from holdfast.contracts.rollout import AttemptState
from tests.collect.agents import ones
from tests.collect.scene import PATIENCE_S, Block, Sitting, home_of, until

pytestmark = pytest.mark.usefixtures("short_grace")


class Async:
    async def __call__(self, task: Any, context: Context) -> Any:
        return f"async {task}"


async def answering(task: Any, context: Context) -> Any:
    await asyncio.sleep(0)
    return f"async {task}"


AGENTS: dict[str, tuple[Agent, type]] = {
    "async": (answering, InProcess),
    "object": (Async(), InProcess),
    "plain": (lambda task, context: f"plain {task}", InProcess),
    "awaitable": (lambda task, context: answering(task, context), InProcess),
}


@pytest.mark.parametrize("kind", AGENTS)
async def test_every_kind_of_agent_answers_and_is_scored(kind: str) -> None:
    agent, place = AGENTS[kind]
    with home_of(agent, ones) as home:
        sitting = Sitting(home.executor())
        assert isinstance(sitting.place, place)
        for task in ("one", "two"):  # a seat is used again and again
            outcome = await sitting.run(task)
            assert outcome is not None and (outcome.state, outcome.reward) == (AttemptState.SUCCEEDED, 1.0)
            assert outcome.output == f"{'plain' if kind == 'plain' else 'async'} {task}"
    assert [span.name for span in sitting.spans] == ["agent.run", "agent.run"]


@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_attempts_of_different_versions_run_side_by_side(kind: str) -> None:
    def named(version: str | None) -> Any:
        if version == "lost":
            raise Fault("version lost", why="its weights are gone")
        return SimpleNamespace(model=f"model of {version}")

    async def naming(task: Any, context: Context) -> str:
        return context.model

    home = AgentRuntime(naming if kind == "async" else lambda task, context: context.model, ones, named, time.time)
    try:
        versions = ["v1", "v2", None, "lost"]
        ended = await asyncio.gather(*(Sitting(home.executor()).run("who", version=version) for version in versions))
    finally:
        home.close()
    assert [one.output for one in ended if one] == ["model of v1", "model of v2", "model of None", None]
    assert ended[-1] == Outcome(state=AttemptState.FAULT, error="version lost: its weights are gone")


async def test_nothing_is_kept_of_an_attempt_that_is_over() -> None:
    with home_of(answering, ones) as home:
        sitting = Sitting(home.executor())
        for number in range(20):
            await sitting.run(str(number))
        del sitting
        kept = [one for one in gc.get_objects() if type(one) is AsyncAttempt and one._runtime is home]
        assert len(kept) <= 1  # the place may have its last one


@pytest.mark.parametrize("agent", [answering, lambda task, context: task], ids=["async", "plain"])
async def test_an_async_scorer_is_awaited(agent: Agent) -> None:
    async def score(*arguments: Any) -> Any:
        await asyncio.sleep(0.01)
        return ones(*arguments)

    with home_of(agent, score) as home:
        outcome = await Sitting(home.executor()).run("task")
    assert outcome is not None and outcome.reward == 1.0


@pytest.mark.parametrize("error", [SystemExit(3), KeyboardInterrupt(), asyncio.CancelledError()])
@pytest.mark.parametrize("kind", ["async", "plain"])
async def test_an_agent_that_tries_to_leave_has_failed_and_the_next_one_runs(kind: str, error: BaseException) -> None:
    def plain(task: Any, context: Context) -> str:
        if task == "leave":
            raise error
        return "stayed"

    async def leaving(task: Any, context: Context) -> str:
        return plain(task, context)

    with home_of(leaving if kind == "async" else plain) as home:
        sitting = Sitting(home.executor())
        first, second = await sitting.run("leave"), await sitting.run("stay")
    assert first is not None and second is not None
    assert first.state is AttemptState.FAILED
    assert (first.error or "").startswith(f"{type(error).__name__}: {error}".rstrip(": ") + " (test_executors.py:")
    assert second.output == "stayed"


# Interrupting


@contextmanager
def interrupted_once(began: threading.Event | Block, sitting: Sitting) -> Iterator[asyncio.Task[Outcome | None]]:
    """The seat's run; it is interrupted as soon as the agent has begun, or is blocked."""
    running = asyncio.create_task(sitting.run("first"))

    async def interrupt() -> None:
        await until(began.is_on if isinstance(began, Block) else began.is_set)
        sitting.seat.interrupt()

    waiting = asyncio.create_task(interrupt())
    yield running
    waiting.cancel()


async def ends_when_interrupted(agent: Agent, began: threading.Event | Block) -> AgentRuntime:
    """What every agent below must do; the home is as it was left."""
    with home_of(agent) as home:
        sitting = Sitting(home.executor())
        with interrupted_once(began, sitting) as running:
            assert await running is None
        return home


async def test_an_async_agent_that_spins_is_broken_into() -> None:
    began = threading.Event()

    async def spinning(task: Any, context: Context) -> str:
        began.set()
        while task == "first":
            pass
        return "the loop goes on"

    with home_of(spinning) as home:
        sitting, loop = Sitting(home.executor()), home.current
        with interrupted_once(began, sitting) as running:
            assert await running is None
        outcome = await sitting.run("second")
    assert outcome is not None and outcome.output == "the loop goes on"
    assert (home.current, home.left_behind) == (loop, 0)


@pytest.mark.usefixtures("untraced")
async def test_a_loop_that_is_blocked_inside_c_is_left_behind_and_the_others_go_on() -> None:
    block = Block()

    async def blocking(task: Any, context: Context) -> str:
        if task == "first":
            block.wait()
        return f"{task} is done"

    with home_of(blocking) as home:
        sitting, stuck = Sitting(home.executor()), home.current
        with interrupted_once(block, sitting) as running:
            assert await running is None
        assert home.left_behind == 1
        outcome = await sitting.run("second")
        assert outcome is not None and outcome.output == "second is done"
        assert stuck.thread.is_alive()
        block.release()
        await until(lambda: not stuck.thread.is_alive())  # it ends as soon as it can


@pytest.mark.usefixtures("untraced")
async def test_those_who_shared_a_loop_that_is_left_behind_are_sent_away_at_once() -> None:
    block = Block()
    waiting: list[str] = []

    async def agent(task: Any, context: Context) -> None:
        if task == "first":
            await until(lambda: len(waiting) == 2)
            block.wait()
        waiting.append(task)
        await asyncio.sleep(PATIENCE_S)

    with home_of(agent) as home:
        others = [Sitting(home.executor()) for _ in range(2)]
        running = [asyncio.create_task(other.run(f"other {n}")) for n, other in enumerate(others)]
        sitting = Sitting(home.executor())
        with interrupted_once(block, sitting) as first:
            assert await first is None
        assert await asyncio.gather(*running) == [None, None]
        block.release()


@dataclass
class Signs:
    began: threading.Event = field(default_factory=threading.Event)
    release: threading.Event = field(default_factory=threading.Event)
    ended: threading.Event = field(default_factory=threading.Event)

    async def wait(self) -> None:
        self.began.set()
        try:
            await asyncio.sleep(PATIENCE_S)
        finally:
            self.ended.set()

    def spin(self) -> None:
        self.began.set()
        try:
            while True:
                pass
        finally:
            self.ended.set()

    async def spin_async(self) -> None:
        self.spin()

    def refuse(self) -> None:
        """Swallows everything and spins."""
        self.began.set()
        while not self.release.is_set():
            try:
                while not self.release.is_set():
                    pass
            except BaseException:
                continue
        self.ended.set()


async def deaf(signs: Signs, task: Any, context: Context) -> str:
    """Swallows its cancellation until it is released."""
    if task == "second":
        return "the loop goes on"
    signs.began.set()
    while not signs.release.is_set():
        with suppress(asyncio.CancelledError):
            await asyncio.sleep(0.01)
    signs.ended.set()
    return "never heard"


async def test_an_agent_that_swallows_its_cancellation_is_not_waited_for() -> None:
    signs = Signs()
    with home_of(partial(deaf, signs)) as home:
        sitting, loop = Sitting(home.executor()), home.current
        with interrupted_once(signs.began, sitting) as running:
            assert await running is None
        outcome = await sitting.run("second")
        assert outcome is not None and outcome.output == "the loop goes on"
        assert home.current is loop
        signs.release.set()
        await until(signs.ended.is_set)


async def test_closing_a_home_ends_its_loop_even_with_a_deaf_agent_on_it() -> None:
    signs = Signs()
    home = await ends_when_interrupted(partial(deaf, signs), signs.began)
    await until(lambda: not home.current.thread.is_alive())
    signs.release.set()


@pytest.mark.usefixtures("untraced")
async def test_a_plain_agent_that_sleeps_inside_c_is_left_behind() -> None:
    block = Block()
    home = await ends_when_interrupted(lambda task, context: block.wait(), block)
    assert home.left_behind == 1
    block.release()


async def waits(signs: Signs, task: Any, context: Context) -> None:
    try:
        await signs.wait()
    finally:
        assert context.cancelled.is_set()


async def starts_a_task_that_spins(signs: Signs, task: Any, context: Context) -> None:
    await asyncio.gather(asyncio.sleep(0), signs.spin_async())


async def answers_late(signs: Signs, task: Any, context: Context) -> str:
    with suppress(asyncio.CancelledError):
        await signs.wait()
    return "half an answer"


async def refuses(signs: Signs, task: Any, context: Context) -> None:
    signs.refuse()


def looks_whether_it_is_wanted(signs: Signs, task: Any, context: Context) -> str:
    signs.began.set()
    try:
        context.cancelled.wait(PATIENCE_S)
        return "half an answer"
    finally:
        signs.ended.set()


@pytest.mark.parametrize(
    ("agent", "left_behind"),
    [
        (waits, 0),
        (starts_a_task_that_spins, 0),
        (answers_late, 0),  # what it says then is no answer
        (refuses, 1),  # it keeps its loop
        (lambda signs, task, context: signs.spin(), 0),
        (looks_whether_it_is_wanted, 0),
        (lambda signs, task, context: context.wait(signs.wait()), 0),
        (lambda signs, task, context: signs.wait(), 0),
    ],
    ids=["waits", "task", "late", "refuses", "spins", "looks", "wait", "awaitable"],
)
async def test_an_agent_that_is_interrupted_ends_and_so_does_what_it_waited_for(agent: Any, left_behind: int) -> None:
    signs = Signs()
    home = await ends_when_interrupted(partial(agent, signs), signs.began)
    assert home.left_behind == left_behind
    signs.release.set()
    await until(signs.ended.is_set, PATIENCE_S / 2)


async def test_interrupting_an_idle_seat_does_not_touch_what_runs_on_it_next() -> None:
    with home_of(answering) as home:
        sitting = Sitting(home.executor())
        sitting.seat.interrupt()
        outcome = await sitting.run("task")
    assert outcome is not None and outcome.output == "async task"


# Agents share a loop


@pytest.mark.parametrize("how", ["exit", "stop", "late interruption"])
async def test_what_one_agent_throws_at_the_shared_loop_ends_nobody_else(
    how: str, caplog: pytest.LogCaptureFixture
) -> None:
    async def leave() -> None:
        sys.exit(1)

    async def agent(task: Any, context: Context) -> str:
        loop = asyncio.get_running_loop()
        if task == "steady":
            await asyncio.sleep(0.5)
        elif how == "exit":
            context.resources["kept"].append(loop.create_task(leave()))  # type: ignore[attr-defined]
        elif how == "stop":
            loop.stop()
        else:
            loop.call_later(0.1, break_into, threading.current_thread())
        return f"{task} is done"

    with caplog.at_level(logging.CRITICAL), home_of(agent) as home:
        steady, wild = Sitting(home.executor()), Sitting(home.executor())
        running = asyncio.create_task(steady.run("steady"))
        await wild.run("wild", resources={"kept": []})
        outcome = await running
        again = await wild.run("steady")
    for found in (outcome, again):
        assert found is not None and found.output == "steady is done"


@pytest.mark.usefixtures("untraced")
async def test_an_agent_kept_from_running_by_another_says_so_and_is_sent_away() -> None:
    block = Block()

    async def agent(task: Any, context: Context) -> None:
        if task == "blocking":
            block.wait()
        await asyncio.sleep(PATIENCE_S)

    with home_of(agent) as home:
        victim, blocker = Sitting(home.executor()), Sitting(home.executor())
        suffering = asyncio.create_task(victim.run("waiting"))
        await asyncio.sleep(0.05)
        blocking = asyncio.create_task(blocker.run("blocking"))
        await until(block.is_on)
        assert not await blocker.seat.is_hindered(0.1)  # it is its own doing
        assert await victim.seat.is_hindered(0.1)
        assert await suffering is None
        assert not blocking.done()
        block.release()
        await asyncio.sleep(0.05)
        assert not blocking.done()  # whoever blocked keeps the loop, and goes on there
        blocker.seat.interrupt()
        assert await blocking is None


async def test_an_agent_that_just_takes_its_time_is_not_hindered() -> None:
    async def agent(task: Any, context: Context) -> None:
        await asyncio.sleep(PATIENCE_S)

    with home_of(agent) as home:
        sitting = Sitting(home.executor())
        running = asyncio.create_task(sitting.run())
        await asyncio.sleep(0.05)
        assert not await sitting.seat.is_hindered(0.5)
        sitting.seat.interrupt()
        assert await running is None


@pytest.mark.usefixtures("untraced")
async def test_a_block_that_nobody_can_be_named_for_excuses_nobody() -> None:
    block = Block()

    async def agent(task: Any, context: Context) -> None:
        asyncio.get_running_loop().call_soon(block.wait)  # no task's code
        await asyncio.sleep(PATIENCE_S)

    with home_of(agent) as home:
        sitting = Sitting(home.executor())
        running = asyncio.create_task(sitting.run())
        await until(block.is_on)
        assert not await sitting.seat.is_hindered(0.1)
        sitting.seat.interrupt()
        assert await running is None
        assert home.left_behind == 1
        block.release()


# Ends


@pytest.mark.usefixtures("untraced")
def test_an_agent_left_behind_that_ends_after_everyone_has_gone_disturbs_nobody(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    raised: list[Any] = []
    monkeypatch.setattr(threading, "excepthook", raised.append)
    block = Block()
    threads: list[threading.Thread] = []

    def sleeping(task: Any, context: Context) -> None:
        threads.append(threading.current_thread())
        block.wait()

    asyncio.run(ends_when_interrupted(sleeping, block))  # whose event loop is closed now
    assert threads[0].is_alive()
    block.release()
    threads[0].join(PATIENCE_S / 2)
    assert not threads[0].is_alive()
    assert raised == []


async def test_nothing_can_begin_in_a_home_that_is_closed() -> None:
    with home_of(answering) as home:
        pass
    with pytest.raises(RuntimeError, match="closed"):
        await Sitting(home.executor()).run()


def test_a_break_in_finds_no_thread_that_has_ended() -> None:
    thread = threading.Thread(target=lambda: None)
    break_into(thread)  # not begun
    thread.start()
    thread.join()
    break_into(thread)
