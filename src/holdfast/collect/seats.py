"""Places where an agent runs: a shared event loop for async agents, a thread for plain ones, a process of its own.

All keep the same promise: a seat's `run` gives the outcome, and `interrupt` makes it end, even when the agent blocks or
spins. A loop or thread that cannot be interrupted (it sleeps inside C code) is left behind and replaced; a process is
killed. Who is interrupted, and why, is the pool's business.
"""

from __future__ import annotations

import asyncio
import ctypes
import inspect
import threading
from collections.abc import Callable, Coroutine, Iterator
from typing import Any, Protocol

from holdfast.collect.agent import Agent, Assignment, Context, Score, is_async
from holdfast.collect.tracer import Tracer
from holdfast.collect.worker import Clock, Outcome, run_one
from holdfast.contracts.errors import Interrupted
from holdfast.contracts.policy import Complete
from holdfast.contracts.trace import Span

GRACE_S = 1.0  # how long an agent may take to react before a harder measure is used
Record = Callable[[Span], None]
Report = Callable[[Outcome | None, BaseException | None], None]  # may be called from any thread


class Place(Protocol):
    def prepare(self) -> None:
        """Get ready to begin; may take a while, and is called from a thread of its own."""
        ...

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        """Start the work; the iterator holds ever harder measures to end it, each step one of them."""
        ...

    def hindered(self) -> Callable[[], bool]:
        """Start looking whether another agent keeps this one from running; a moment later the answer says so."""
        ...

    def close(self) -> None: ...


class Seat:
    """One slot of a pool: one attempt at a time."""

    def __init__(self, place: Place) -> None:
        self._place = place
        self._unwanted = asyncio.Event()

    async def run(self, assignment: Assignment, record: Record) -> Outcome | None:
        """The outcome, or None when it was interrupted."""
        self._unwanted.clear()
        here = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome | None] = here.create_future()

        def report(outcome: Outcome | None, error: BaseException | None) -> None:
            here.call_soon_threadsafe(_resolve, ended, outcome, error)

        measures = self._place.begin(assignment, record, report)
        watch = asyncio.create_task(self._press(measures, ended))
        try:
            return await ended
        finally:
            watch.cancel()

    async def prepare(self) -> None:
        await asyncio.to_thread(self._place.prepare)

    async def is_hindered(self, within_s: float) -> bool:
        """Whether it is another agent's fault that this one makes no progress."""
        answer = self._place.hindered()
        await asyncio.sleep(within_s)
        return answer()

    def interrupt(self) -> None:
        """The work is no longer wanted: `run` returns soon."""
        self._unwanted.set()

    def close(self) -> None:
        self._place.close()

    async def _press(self, measures: Iterator[None], ended: asyncio.Future[Outcome | None]) -> None:
        await self._unwanted.wait()
        for _ in measures:
            await asyncio.sleep(GRACE_S)
        _resolve(ended, None, None)


class LoopThread:
    """An event loop in a thread of its own, so that what blocks it does not block whoever watches it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self.thread = threading.Thread(target=self._run, name="holdfast-agents", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()
        self.loop.close()

    def leave(self) -> None:
        """Let it end when it can; nobody waits for it."""
        if not self.loop.is_closed():
            self.loop.call_soon_threadsafe(lambda: self.loop.create_task(self._wind_up()))

    async def _wind_up(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        await asyncio.gather(*others, return_exceptions=True)
        self.loop.stop()


class Home:
    """What the in-process places of a pool share: the agent and the current agents' loop."""

    def __init__(self, agent: Agent, score: Score, model: Complete | None, clock: Clock) -> None:
        self.agent, self.score, self.model, self.clock = agent, score, model, clock
        self.current = LoopThread()
        self.left_behind = 0  # loops and threads that would not end

    def place(self) -> Place:
        return LoopPlace(self) if is_async(self.agent) else ThreadPlace(self)

    def context(self, assignment: Assignment, record: Record) -> Context:
        trace = Tracer(record, self.clock)
        return Context(assignment=assignment, trace=trace, model=self.model, loop=self.current.loop)

    def replace(self, stuck: LoopThread) -> None:
        if stuck is self.current:
            self.left_behind += 1
            self.current = LoopThread()
        stuck.leave()

    def close(self) -> None:
        close_model = getattr(self.model, "close", None)
        if close_model is not None:
            asyncio.run_coroutine_threadsafe(close_model(), self.current.loop).result(GRACE_S)
        self.current.leave()
        self.current.thread.join(GRACE_S)


class InProcess:
    """What both kinds of place in this process have in common."""

    def __init__(self, home: Home) -> None:
        self._home = home

    def prepare(self) -> None:
        """There is nothing to wait for."""

    def hindered(self) -> Callable[[], bool]:
        return lambda: False

    def close(self) -> None:
        """There is nothing of its own."""


class LoopPlace(InProcess):
    """For async agents: a task on the shared loop."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        home, host = self._home, self._home.current
        context = home.context(assignment, record)
        tasks: list[asyncio.Task[Outcome]] = []

        def done(task: asyncio.Task[Outcome]) -> None:
            error = None if task.cancelled() else task.exception()
            report(None if task.cancelled() or error else task.result(), error)

        def start() -> None:
            tasks.append(host.loop.create_task(run_one(home.agent, context, home.score)))
            tasks[0].add_done_callback(done)

        def cancel() -> None:  # runs after start, in the loop's own order
            tasks[0].cancel()

        def is_stuck() -> bool:
            return not tasks or asyncio.current_task(host.loop) is tasks[0]

        def measures() -> Iterator[None]:
            context.cancelled.set()
            host.loop.call_soon_threadsafe(cancel)
            yield
            if tasks and is_stuck():
                break_into(host.thread)
            yield
            if is_stuck():
                home.replace(host)

        self._host, self._tasks = host, tasks
        host.loop.call_soon_threadsafe(start)
        return measures()

    def hindered(self) -> Callable[[], bool]:
        host, tasks, passed = self._host, self._tasks, threading.Event()
        host.loop.call_soon_threadsafe(passed.set)

        def answer() -> bool:
            stuck = not passed.is_set() and (not tasks or asyncio.current_task(host.loop) is not tasks[0])
            if stuck:
                self._home.replace(host)  # for all who come after; whoever blocks it keeps it
            return stuck

        return answer


class ThreadPlace(InProcess):
    """For plain agents: a thread per attempt."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        home = self._home
        context = home.context(assignment, record)

        def work() -> None:
            outcome: Outcome | None = None
            error: BaseException | None = None
            try:
                outcome = finish_now(run_one(plainly(home.agent), context, plainly(home.score)))
            except BaseException as raised:
                error = raised
            report(outcome, error)

        def measures() -> Iterator[None]:
            context.cancelled.set()
            break_into(thread)
            yield
            home.left_behind += thread.is_alive()

        thread = threading.Thread(target=work, name=f"holdfast-agent-{assignment.attempt}", daemon=True)
        thread.start()
        return measures()


def _resolve(ended: asyncio.Future[Outcome | None], outcome: Outcome | None, error: BaseException | None) -> None:
    if ended.done():
        return
    if error is None or isinstance(error, Interrupted):
        ended.set_result(outcome)
    else:
        ended.set_exception(error)


def break_into(thread: threading.Thread) -> None:
    """Raise Interrupted in another thread, at its next line of Python."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; should it give an awaitable after all, that is run to its end here and now."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        return asyncio.run(_await(result)) if inspect.isawaitable(result) else result

    return call


async def _await(work: Any) -> Any:
    return await work


def finish_now(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Run a coroutine that never waits: one step takes it to its end."""
    try:
        work.send(None)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    raise RuntimeError("a plain agent's attempt tried to wait")
