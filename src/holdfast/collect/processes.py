"""A process per seat: an agent that blocks, spins, leaks or crashes there harms nobody, and can be killed.

The child holds no lease and no store: it gets assignments and sends spans and the outcome through a pipe. It ends when
the pipe does, so it never outlives its parent.
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
from holdfast.contracts.errors import Fault
from holdfast.contracts.executor import Assignment, Outcome, Record, Report
from holdfast.contracts.records import dumps
from holdfast.contracts.rollout import AttemptState
from holdfast.contracts.trace import Span

_spawn = multiprocessing.get_context("spawn")
LOST = (EOFError, OSError)  # what a pipe raises when the other end is gone
PR_SET_PDEATHSIG = 1


@dataclass(frozen=True, slots=True)
class ProcessRecipe:
    """How a child makes what it needs; everything here can be pickled."""

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
        """Have a child that has loaded the agent: its start is not on any attempt's time."""
        ours, theirs = _spawn.Pipe()
        self._child = _spawn.Process(target=work, args=(theirs, self._recipe), name="holdfast-agent", daemon=True)
        # A child begins with its maker's mask: Ctrl-C, which reaches the whole group, must not meet it half started.
        resource_tracker.ensure_running()  # now, since that unblocks the signal
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            self._child.start()
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        theirs.close()
        self._pipe = ours
        try:
            ours.recv()
        except LOST:
            self._child.join()
            raise Fault(
                f"agent {self._recipe.agent}",
                why=f"its process ended with {_exit_text(self._child.exitcode)} before it was ready",
                remedy="see its message above",
            ) from None

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
                        continue  # a thread that an earlier attempt left behind still talks
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
            self._child = None  # not to be used again, however long its end takes
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
    """The child's life: take an assignment, send what happens, send the outcome; end when the parent does."""
    os.setsid()  # what the agent starts ends with it: see _signal
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGINT})
    if sys.platform == "linux":  # the pipe's end is not seen while an agent holds the interpreter; the kernel's word is
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGKILL)
    inbox: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    home = AgentRuntime(
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
            os._exit(1)  # an agent that forked: the copy has no business here
        if isinstance(message, Span):
            dumps(message)  # what cannot be written is refused on this side, where the agent learns of it
        with one_at_a_time:  # an agent may record from many threads
            pipe.send((attempt, message))

    pipe.send("ready")
    while True:
        assignment = inbox.get()
        send(assignment.attempt, _outcome(home, assignment, partial(send, assignment.attempt)))


def _outcome(home: AgentRuntime, assignment: Assignment, record: Record) -> Outcome:
    try:
        context = home.context(assignment, record)
    except Fault as fault:  # nobody answers for its version: nothing was begun
        return Outcome(state=AttemptState.FAULT, error=str(fault))
    _point_clients(context)
    if not is_async(home.agent):
        return finish_now(run_one(plainly(home.agent), context, plainly(home.score)))
    return asyncio.run_coroutine_threadsafe(run_one(home.agent, context, home.score), home.current.loop).result()


def _point_clients(context: Context) -> None:
    """An agent that knows nothing of us asks where its environment says; a process has one attempt at a time."""
    os.environ["OPENAI_BASE_URL"] = context.base_url
    os.environ["ANTHROPIC_BASE_URL"] = context.anthropic_base_url
    if context.access is not None:  # behind a capture proxy the keys are those of its upstreams
        os.environ["OPENAI_API_KEY"] = os.environ["ANTHROPIC_API_KEY"] = context.api_key
        # One of its frameworks sends traces to its vendor as soon as there is a key, and this one is only ours.
        os.environ.setdefault("OPENAI_AGENTS_DISABLE_TRACING", "1")


def _receive(pipe: Connection, inbox: queue.SimpleQueue[Assignment]) -> None:
    try:
        while True:
            inbox.put(pipe.recv())
    except LOST:
        os._exit(0)


def _signal(child: Any, number: signal.Signals) -> None:
    """To the child and all it has started."""
    with suppress(ProcessLookupError):
        os.killpg(child.pid, number)
    with suppress(ProcessLookupError):
        os.kill(child.pid, number)  # it may not have come to have a group of its own


def _exit_text(code: int | None) -> str:
    if code is None:
        return "its pipe closed"
    if code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
