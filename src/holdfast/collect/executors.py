"""One attempt from the agent's call to its outcome, and the in-process executor: a shared event loop or a thread each.

A slot's `interrupt` makes `run` end, even when the agent blocks or spins. A loop or thread that cannot be interrupted
(it sleeps inside C code) is left behind and replaced.
"""

from __future__ import annotations

import asyncio
import copy
import ctypes
import inspect
import os
import select
import socket
import threading
from asyncio import CancelledError
from collections.abc import Callable, Coroutine, Iterator, Sequence
from contextlib import suppress
from contextvars import ContextVar
from dataclasses import replace
from math import isfinite
from typing import TYPE_CHECKING, Any
from weakref import WeakKeyDictionary

from holdfast.collect.agent import (
    MAX_ERROR,
    Access,
    Connect,
    Context,
    LastWord,
    Score,
    TokenRegistry,
    Tracer,
    failure,
    scored_without,
)
from holdfast.collect.allocation import Allocation
from holdfast.collect.thinking import BudgetTracker, same_for_all
from holdfast.contracts.agent import Agent, answer_of, is_async
from holdfast.contracts.errors import BadRecord, Fault, Interrupted
from holdfast.contracts.executor import Assignment, Executor, Outcome, Record, Report
from holdfast.contracts.reward import AGENT, RewardBreakdown, RewardTerm, is_own
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.task import TaskItem, task_of
from holdfast.contracts.trace import Span

if TYPE_CHECKING:
    import uvicorn

Clock = Callable[[], float]
HIDDEN = ("expected",)  # keys of a task that are the scorer's alone: an agent that saw them could answer from them


async def run_one(agent: Agent, context: Context, score: Score) -> Outcome:
    """Calls the agent, then the scorer. Only the agent's own exception is a failure; our fault never scores zero."""
    trace, task = context.trace, context.assignment.input
    # Scored by what was asked, whatever the agent does to its own copy.
    asked = copy.deepcopy(shown(task))
    context = replace(context, assignment=replace(context.assignment, input=asked))
    try:
        with trace.span("agent.run", attempt=context.assignment.number):
            output = agent(asked, context)
            if inspect.isawaitable(output):
                output = await output
            output = answer_of(output)
    except Fault as fault:
        return _ended(AttemptState.FAULT, str(fault))
    except BaseException as error:  # foreign code may throw anything
        if _is_ours(error, context):
            raise
        if context.access is not None and context.access.fault is not None:  # the client raised our fault
            return _ended(AttemptState.FAULT, str(context.access.fault))
        return _failed(failure(error)["error"], context, score)
    finally:
        context.close()  # before it is scored: what still runs of the agent adds nothing to its trace
    try:
        signals = score(task, output, tuple(trace.spans))
        if inspect.isawaitable(signals):
            signals = await signals
        if not context.assignment.features.turn_rewards:
            signals = [signal for signal in signals if signal.turn is None]
        return _scored(output, (*_own(trace.signals, signals), *signals), score, tuple(trace.spans))
    except BaseException as error:  # foreign code may throw anything
        if _is_ours(error, context):
            raise
        kept = failure(error)
        trace.event("score", **kept)
        return _ended(AttemptState.FAULT, f"scoring: {kept['error']}")


def shown(task: Any) -> Any:
    """The task as the agent sees it, without what only the scorer may know."""
    item = task_of(task)
    if isinstance(item, TaskItem):
        return item.for_agent()
    return {key: value for key, value in task.items() if key not in HIDDEN} if isinstance(task, dict) else task


def _is_ours(error: BaseException, context: Context) -> bool:
    """Whether we stopped the agent: Interrupted, or a CancelledError that we asked for."""
    return isinstance(error, Interrupted) or (isinstance(error, CancelledError) and context.cancelled.is_set())


def _own(reported: Sequence[RewardTerm], measured: Sequence[RewardTerm]) -> tuple[RewardTerm, ...]:
    """Rewards that the agent reported itself. They count only where no scorer judged; else they are kept under their
    own names with weight 0, so that no agent can pay itself."""
    marked = [term if is_own(term) else replace(term, source=f"{AGENT}:{term.source}") for term in reported]
    if not measured:
        return tuple(marked)
    return tuple(replace(term, name=f"{AGENT}.{term.name}", weight=0.0) for term in marked)


def _scored(output: Any, signals: Sequence[RewardTerm], score: Score, spans: Sequence[Span]) -> Outcome:
    """The outcome; a scorer's `close` sees all signals and may reject the attempt, which keeps its signals."""
    close: LastWord | None = getattr(score, "close", None)
    rejected = None
    if close is not None:
        signals, rejected = close(signals, spans, output)
    breakdown = RewardBreakdown(signals=tuple(signals))
    if breakdown.total is not None and not isfinite(breakdown.total):
        raise BadRecord("reward", why=f"the signals add up to {breakdown.total}, which is not finite")
    if rejected is not None:
        return Outcome(state=AttemptState.FAILED, output=output, signals=breakdown.signals, error=rejected)
    return Outcome(state=AttemptState.SUCCEEDED, output=output, signals=breakdown.signals)


def _failed(error: str, context: Context, score: Score) -> Outcome:
    """The agent failed and is not scored; signals that the scorer's `close` finds in its spans are kept."""
    close: LastWord | None = getattr(score, "close", None)
    ended = _ended(AttemptState.FAILED, error)
    if close is None or not (terms := close((), tuple(context.trace.spans), None)[0]):
        return ended
    return replace(ended, signals=tuple(terms))


def _ended(state: AttemptState, error: str) -> Outcome:
    return Outcome(state=state, error=error[:MAX_ERROR])


GRACE_S = 1.0  # that an agent has to react before a harder measure is used


class Slot:
    """One slot of a pool: one attempt at a time."""

    def __init__(self, executor: Executor) -> None:
        self._executor = executor
        self._unwanted = asyncio.Event()

    async def run(self, assignment: Assignment, record: Record) -> Outcome | None:
        """The outcome, or None when it was interrupted or cancelled."""
        self._unwanted.clear()
        here = asyncio.get_running_loop()
        ended: asyncio.Future[Outcome | None] = here.create_future()

        def report(outcome: Outcome | None, error: BaseException | None) -> None:
            with suppress(RuntimeError):  # our loop is closed: nobody waits
                here.call_soon_threadsafe(_resolve, ended, outcome, error)

        try:
            measures = self._executor.begin(assignment, record, report)
        except Fault as fault:  # nobody answers for its version: nothing was begun
            return Outcome(state=AttemptState.FAULT, error=str(fault))
        watch = asyncio.create_task(self._press(measures, ended))
        try:
            outcome = await ended
        finally:
            watch.cancel()
        return None if self._unwanted.is_set() else outcome  # an outcome after the interrupt does not count

    async def prepare(self) -> None:
        if not self._executor.is_ready():
            await asyncio.to_thread(self._executor.prepare)

    async def is_hindered(self, within_s: float) -> bool:
        """Whether another agent blocks this one; if so, `run` returns at once."""
        answer = self._executor.hindered()
        await asyncio.sleep(within_s)
        return answer()

    def interrupt(self) -> None:
        """Makes `run` return soon."""
        self._unwanted.set()

    def close(self) -> None:
        self._executor.close()

    async def _press(self, measures: Iterator[None], ended: asyncio.Future[Outcome | None]) -> None:
        await self._unwanted.wait()
        try:
            for _ in measures:
                await asyncio.sleep(GRACE_S)
        finally:  # even if a measure fails, the wait for this attempt must end
            _resolve(ended, None, None)


_attempt: ContextVar[AsyncAttempt | None] = ContextVar("holdfast_attempt", default=None)


class LoopThread:
    """An event loop in its own thread, so that an agent that blocks it does not block the pool."""

    def __init__(self) -> None:
        self.attempts: set[AsyncAttempt] = set()
        self._owners: WeakKeyDictionary[asyncio.Task[Any], AsyncAttempt | None] = WeakKeyDictionary()
        self.is_left = self._is_over = False
        self.loop = asyncio.new_event_loop()
        self.loop.set_task_factory(self._make_task)
        self.thread = threading.Thread(target=self._run, name="holdfast-agents", daemon=True)
        self.thread.start()

    def call(self, function: Callable[[], Any]) -> None:
        """Calls a function on the loop, if it still runs."""
        with suppress(RuntimeError):
            self.loop.call_soon_threadsafe(function)

    def probe(self) -> threading.Event:
        """An event that is set at the loop's next turn; while it is not set, an agent blocks the loop."""
        passed = threading.Event()
        self.call(passed.set)
        return passed

    def at_work(self) -> AsyncAttempt | None:
        """The attempt whose code the loop runs at this moment."""
        task = asyncio.current_task(self.loop)
        return None if task is None else self._owners.get(task)

    def leave(self) -> None:
        """Ends the loop when its attempts are gone; does not wait."""
        self.is_left = True
        self.call(self.wind_up)

    def wind_up(self) -> None:
        if self.is_left and not self.attempts and not self._is_over:
            self._is_over = True
            self._ending = self.loop.create_task(self._end())

    async def _end(self) -> None:
        others = asyncio.all_tasks() - {asyncio.current_task()}
        for task in others:
            task.cancel()
        if others:
            await asyncio.wait(others, timeout=GRACE_S)
        await self.loop.shutdown_asyncgens()
        self.loop.stop()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        while not self._is_over:
            # Agents share the loop: an exception or a late interrupt of one must not end the others.
            with suppress(Interrupted, SystemExit, KeyboardInterrupt):
                self.loop.run_forever()
        self.loop.close()

    def _make_task(self, loop: asyncio.AbstractEventLoop, work: Any, **how: Any) -> asyncio.Task[Any]:
        """Remembers which attempt started a task."""
        task: asyncio.Task[Any] = asyncio.Task(work, loop=loop, **how)
        self._owners[task] = _attempt.get()
        return task


BACKLOG = 2048  # connections that wait while the server is imported
STOP_S = 5.0
HOST = "127.0.0.1"  # of the gateway
PROXIES = ("http_proxy", "https_proxy", "all_proxy")


class ModelGateway:
    """One small server in each process, with an address for each attempt's own clients. Safe to use from any thread.

    It listens from the first use of an address, and imports the server at the first call: most agents need neither.
    """

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock, self._register = clock, TokenRegistry()
        self._lock = threading.Lock()
        self._listening: socket.socket | None = None
        self._wake: socket.socket | None = None
        self._thread: threading.Thread | None = None
        self._server: uvicorn.Server | None = None
        self._is_stopped = False

    def access(self) -> Access:
        """The access of one attempt."""
        return Access(self._register, self.address)

    def address(self) -> str:
        """The server's address; it listens from now on."""
        with self._lock:
            if self._is_stopped:
                raise Fault("model gateway", why="has been stopped")
            if self._listening is None:
                _bypass_network_proxies()
                self._listening = socket.create_server((HOST, 0), backlog=BACKLOG)
                self._wake, waking = socket.socketpair()
                serve = (self._listening, waking)
                self._thread = threading.Thread(target=self._serve, args=serve, name="holdfast-gateway", daemon=True)
                self._thread.start()
            return f"http://{HOST}:{self._listening.getsockname()[1]}"

    def stop(self) -> None:
        """Ends the server, if it runs. Calls under way are dropped."""
        with self._lock:
            self._is_stopped = True
            if self._server is not None:
                self._server.should_exit = True
            if self._wake is not None:
                self._wake.close()
        if self._thread is not None:
            self._thread.join(STOP_S)

    def _serve(self, listening: socket.socket, waking: socket.socket) -> None:
        """Waits for the first call, then serves until `stop`."""
        ready = select.poll()
        for one in (listening, waking):
            ready.register(one, select.POLLIN)
        ready.poll()
        waking.close()
        with listening:
            if self._is_stopped:
                return
            from holdfast.collect.endpoint import server
            from holdfast.collect.gateway_app import GatewayApp

            with self._lock:
                if self._is_stopped:
                    return
                self._server = server(GatewayApp(self._register, self._clock))
            self._server.run(sockets=[listening])


def _bypass_network_proxies() -> None:
    """Adds our host to no_proxy: else clients would send their calls to the network's proxy."""
    if not any(os.environ.get(name) or os.environ.get(name.upper()) for name in PROXIES):
        return
    for name in ("no_proxy", "NO_PROXY"):
        hosts = [host for host in os.environ.get(name, "").split(",") if host]
        if HOST not in hosts:
            os.environ[name] = ",".join([*hosts, HOST])


class AgentRuntime:
    """What the in-process executors of a pool share: the agent, the current loop and the model gateway."""

    def __init__(
        self,
        agent: Agent,
        score: Score,
        connect: Connect,
        clock: Clock,
        *,
        proxy_url: str | None = None,
        has_budgets: bool = False,
        allocation: Allocation | None = None,
    ) -> None:
        """`connect` is called for each attempt, so it must be quick."""
        self.agent, self.score, self.connect, self.clock, self.proxy_url = agent, score, connect, clock, proxy_url
        self.has_budgets, self.allocation = has_budgets, allocation  # for thinking
        self._gateway = ModelGateway(clock)
        self.current = LoopThread()
        self.left_behind = 0  # loops and threads that would not end

    def executor(self) -> Executor:
        return InProcess(self)

    def context(self, assignment: Assignment, record: Record) -> Context:
        """The context of one attempt; Fault if no model serves its version."""
        complete = self.connect(assignment.version)
        return Context(
            assignment=assignment,
            trace=Tracer(record, self.clock),
            complete=complete,
            loop=self.current.loop,
            proxy_url=self.proxy_url,
            access=self._gateway.access() if self.proxy_url is None else None,
            budget=BudgetTracker(
                assignment.attempt,
                assignment.input,
                record,
                self.clock,
                scale=getattr(complete, "thinking_scale", 1.0),
                allocation=self.allocation if assignment.features.adaptive else same_for_all,
            )
            if self.has_budgets and assignment.features.budgets
            else None,
        )

    def score_of(self, context: Context) -> Score:
        return scored_without(self.score, context.assignment.features)

    def replace(self, stuck: LoopThread) -> None:
        """Starts a new loop. The attempt that blocks the old loop keeps it; its other attempts are cancelled."""
        if stuck is self.current:
            self.left_behind += 1
            self.current = LoopThread()
        blocking = stuck.at_work()
        for attempt in list(stuck.attempts):
            if attempt is not blocking:
                attempt.send_away()
        stuck.leave()

    def close(self) -> None:
        for attempt in list(self.current.attempts):
            attempt.send_away()
        self.current.leave()
        self.current.thread.join(GRACE_S)
        self._gateway.stop()


class AsyncAttempt:
    """One attempt on a shared loop: its task and the tasks that it starts."""

    def __init__(self, runtime: AgentRuntime, context: Context, report: Report) -> None:
        self._runtime, self._context, self._report = runtime, context, report
        self._loop_thread = runtime.current
        self._loop_thread.attempts.add(self)
        self._task: asyncio.Task[Outcome] | None = None
        self._loop_thread.loop.call_soon_threadsafe(self._start)

    def measures(self) -> Iterator[None]:
        self._context.cancel()
        self._loop_thread.call(self._cancel)
        yield
        if self._loop_thread.at_work() is self:
            break_into(self._loop_thread.thread)
        passed = self._loop_thread.probe()
        yield
        if not passed.is_set():
            self._runtime.replace(self._loop_thread)
            self._leave()

    def hindered(self) -> Callable[[], bool]:
        passed = self._loop_thread.probe()

        def answer() -> bool:
            # If no blocker is known, nobody is excused: else attempts would blame one another for ever.
            is_so = not passed.is_set() and self._loop_thread.at_work() not in (None, self)
            if is_so:
                self._runtime.replace(self._loop_thread)
            return is_so

        return answer

    def send_away(self) -> None:
        self._context.cancel()
        self._loop_thread.call(self._cancel)
        self._leave()
        self._report(None, None)

    def _start(self) -> None:
        _attempt.set(self)  # in this callback's context and in every task started from it
        runtime = self._runtime
        self._task = self._loop_thread.loop.create_task(
            run_one(runtime.agent, self._context, runtime.score_of(self._context))
        )
        self._task.add_done_callback(self._done)

    def _cancel(self) -> None:
        if self._task is not None:
            self._task.cancel()

    def _done(self, task: asyncio.Task[Outcome]) -> None:
        self._task = None  # the loop maps tasks to attempts; a reference back would keep both alive
        self._leave()
        error = None if task.cancelled() else task.exception()
        self._report(None if task.cancelled() or error else task.result(), error)

    def _leave(self) -> None:
        self._loop_thread.attempts.discard(self)
        if self._loop_thread.is_left:
            self._loop_thread.call(self._loop_thread.wind_up)


class InProcess:
    """A task on the shared loop for an async agent; a thread per attempt for a plain one."""

    def __init__(self, runtime: AgentRuntime) -> None:
        self._runtime = runtime
        self._attempt: AsyncAttempt | None = None

    def is_ready(self) -> bool:
        return True

    def prepare(self) -> None:
        """Always ready."""

    def hindered(self) -> Callable[[], bool]:
        return (lambda: False) if self._attempt is None else self._attempt.hindered()

    def close(self) -> None:
        """There is nothing of its own."""

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        runtime = self._runtime
        context = runtime.context(assignment, record)
        if is_async(runtime.agent):
            self._attempt = AsyncAttempt(runtime, context, report)
            return self._attempt.measures()

        def work() -> None:
            outcome: Outcome | None = None
            error: BaseException | None = None
            try:
                outcome = finish_now(run_one(plainly(runtime.agent), context, plainly(runtime.score_of(context))))
            except BaseException as raised:
                error = raised
            report(outcome, error)

        def measures() -> Iterator[None]:
            if context.cancel():
                # Its client's call is ended and wakes it. To break in while it still sleeps in C would, on Python 3.11
                # under a tracer, stop every other thread, also the one that is about to wake it.
                yield
            break_into(thread)
            yield
            runtime.left_behind += thread.is_alive()

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
    """Raises Interrupted in another thread, at its next line of Python."""
    if thread.ident is not None and thread.is_alive():
        ctypes.pythonapi.PyThreadState_SetAsyncExc(ctypes.c_ulong(thread.ident), ctypes.py_object(Interrupted))


def plainly(function: Callable[..., Any]) -> Callable[..., Any]:
    """The same function; if it returns an awaitable, that is run to its end here."""

    def call(*arguments: Any) -> Any:
        result = function(*arguments)
        return asyncio.run(_attended(result)) if inspect.isawaitable(result) else result

    if (close := getattr(function, "close", None)) is not None:
        call.close = close  # type: ignore[attr-defined]
    return call


async def _attended(work: Any) -> Any:
    """Awaits in short steps: an Interrupted raised in a thread only lands while it runs Python."""
    task = asyncio.ensure_future(work)
    while not task.done():
        await asyncio.wait([task], timeout=0.1)
    return task.result()


def finish_now(work: Coroutine[Any, Any, Outcome]) -> Outcome:
    """Runs a coroutine that never waits: one step takes it to its end."""
    try:
        work.send(None)
    except StopIteration as stop:
        outcome: Outcome = stop.value
        return outcome
    raise RuntimeError("a plain agent's attempt tried to wait")
