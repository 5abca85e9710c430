"""A process per slot: an agent that blocks, spins, leaks or crashes there harms nobody and can be killed.

The child gets assignments and sends spans and the outcome through a pipe. It ends with the pipe.
"""

from __future__ import annotations

import asyncio
import ctypes
import multiprocessing
import os
import queue
import signal
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from multiprocessing import resource_tracker
from multiprocessing.connection import Connection
from typing import Any

from holdfast.collect.agent import Connect, Context, Score, load_agent
from holdfast.collect.executors import AgentRuntime, finish_now, plainly, run_one
from holdfast.contracts.agent import is_async
from holdfast.contracts.budget import BudgetChange
from holdfast.contracts.errors import Fault, Killed
from holdfast.contracts.executor import Assignment, Outcome, Record, Report
from holdfast.contracts.records import dumps
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import Span

_spawn = multiprocessing.get_context("spawn")
LOST = (EOFError, OSError)  # what a pipe raises when the other end is gone
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessRecipe:
    """What a child needs to build its agent; all of it can be pickled."""

    agent: str  # module:function, or file.py:function
    score: Score
    connect: Connect
    proxy_url: str | None = None  # where the agent's own clients find their model: see _point_clients
    has_budgets: bool = False  # for thinking


class ProcessExecutor:
    def __init__(self, recipe: ProcessRecipe) -> None:
        self._recipe = recipe
        self._child: Any = None
        self._pipe: Connection | None = None

    def is_ready(self) -> bool:
        return self._child is not None and bool(self._child.is_alive())

    def prepare(self) -> None:
        """Starts a child that has loaded the agent, so that no attempt's time includes it."""
        try:
            self._child, ours = self._started()
        except OSError as error:  # no process, memory or file is to be had just now
            why, remedy = (
                f"its process cannot be started: {error.strerror or error}",
                "take fewer workers, or raise limits",
            )
            raise Killed(f"agent {self._recipe.agent}", why=why, remedy=remedy) from error
        self._pipe = ours
        try:
            ours.recv()
        except LOST:
            self._child.join()
            code = self._child.exitcode
            kind: type[Fault] = Fault
            remedy = "see its message above"
            if code is not None and code < 0:  # nothing is wrong with the agent: the kernel, or somebody, was in need
                kind, remedy = Killed, "see whether memory is short, or who kills it"
            why = f"its process ended with {_exit_text(code)} before it was ready"
            raise kind(f"agent {self._recipe.agent}", why=why, remedy=remedy) from None

    def _started(self) -> tuple[Any, Connection]:
        ours, theirs = _spawn.Pipe()
        with theirs:
            child = _spawn.Process(target=work, args=(theirs, self._recipe), name="holdfast-agent", daemon=True)
            # A child inherits the signal mask: Ctrl-C reaches the whole group and must not hit it half started.
            resource_tracker.ensure_running()  # before masking, since it unblocks the signal
            before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
            try:
                child.start()
            finally:
                signal.pthread_sigmask(signal.SIG_SETMASK, before)
        return child, ours

    def hindered(self) -> Callable[[], bool]:
        return lambda: False

    def begin(self, assignment: Assignment, record: Record, report: Report) -> Iterator[None]:
        child, pipe = self._child, self._pipe
        assert pipe is not None
        interrupted = threading.Event()

        def listen() -> None:
            try:
                pipe.send(assignment)
                while True:
                    attempt, message = pipe.recv()
                    if attempt != assignment.attempt:
                        continue  # from a thread that an earlier attempt left behind
                    if isinstance(message, Outcome):
                        break
                    record(message)
            except LOST:
                child.join(1.0)
                died = Outcome(
                    state=AttemptState.FAULT, error=f"the agent's process ended with {_exit_text(child.exitcode)}"
                )
                self._give_up(child)
                report(None if interrupted.is_set() else died, None)
            except Exception as error:
                self._give_up(child)
                report(None, error)
            else:
                report(message, None)

        def measures() -> Iterator[None]:
            interrupted.set()
            self._child = None  # not used again, however long it takes to end
            _signal(child, signal.SIGTERM)
            yield
            _signal(child, signal.SIGKILL)
            yield

        threading.Thread(target=listen, name=f"holdfast-pipe-{child.pid}", daemon=True).start()
        return measures()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._child is not None:
            self._give_up(self._child)

    def _give_up(self, child: Any) -> None:
        _signal(child, signal.SIGKILL)
        child.join()
        if self._child is child:
            self._child = None


def work(pipe: Connection, recipe: ProcessRecipe) -> None:
    """The child's main loop: receives an assignment, sends spans and the outcome; ends with its parent."""
    os.setsid()  # so that what the agent starts ends with it: see _signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":  # an agent that holds the interpreter does not notice the closed pipe
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    inbox: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    runtime = AgentRuntime(
        load_agent(recipe.agent),
        recipe.score,
        recipe.connect,
        time.time,
        proxy_url=recipe.proxy_url,
        has_budgets=recipe.has_budgets,
    )
    one_at_a_time, me = threading.Lock(), os.getpid()

    def send(attempt: str, message: Span | BudgetChange | Outcome) -> None:
        if os.getpid() != me:
            os._exit(1)  # an agent that forked: its copy must not use our pipe
        if isinstance(message, Span):
            dumps(message)  # refuses here what cannot be stored, so that the agent gets the error
        with one_at_a_time:  # an agent may record from many threads
            pipe.send((attempt, message))

    pipe.send("ready")
    while True:
        assignment = inbox.get()
        send(assignment.attempt, _outcome(runtime, assignment, partial(send, assignment.attempt)))


def _outcome(runtime: AgentRuntime, assignment: Assignment, record: Record) -> Outcome:
    try:
        context = runtime.context(assignment, record)
    except Fault as fault:  # no model serves its version
        return Outcome(state=AttemptState.FAULT, error=str(fault))
    _point_clients(context)
    if not is_async(runtime.agent):
        return finish_now(run_one(plainly(runtime.agent), context, plainly(runtime.score_of(context))))
    return asyncio.run_coroutine_threadsafe(
        run_one(runtime.agent, context, runtime.score_of(context)), runtime.current.loop
    ).result()


def _point_clients(context: Context) -> None:
    """Points the clients of an agent that does not use its context: a process has one attempt at a time."""
    os.environ["OPENAI_BASE_URL"] = context.base_url
    os.environ["ANTHROPIC_BASE_URL"] = context.anthropic_base_url
    if context.access is not None:  # behind a capture proxy the keys are those of its upstreams
        os.environ["OPENAI_API_KEY"] = os.environ["ANTHROPIC_API_KEY"] = context.api_key
        # The Agents SDK would send traces to its vendor with this key, which is only ours.
        os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")


def _receive(pipe: Connection, inbox: queue.SimpleQueue[Assignment]) -> None:
    try:
        while True:
            inbox.put(pipe.recv())
    except LOST:
        os._exit(0)


def _signal(child: Any, number: signal.Signals) -> None:
    """Signals the child and all that it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
    with suppress(ProcessLookupError):
        os.kill(child.pid, number)  # it may not have its own group yet


def _exit_text(code: int | None) -> str:
    if code is None:
        return "its pipe closed"
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
