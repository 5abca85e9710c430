"""A process per seat: an agent that blocks, spins, leaks or crashes there harms nobody, and can be killed.

The child holds no lease and no store: it gets assignments and sends spans and the outcome through a pipe. It ends when
the pipe does, so it never outlives its parent.
"""

from __future__ import annotations

import asyncio
import multiprocessing
import os
import queue
import signal
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from multiprocessing.connection import Connection
from typing import Any

from holdfast.collect.agent import Assignment, Score, is_async, load_agent
from holdfast.collect.seats import Home, Record, Report, finish_now, plainly
from holdfast.collect.worker import Outcome, run_one
from holdfast.contracts.errors import Fault
from holdfast.contracts.policy import Complete
from holdfast.contracts.rollout import AttemptState

_spawn = multiprocessing.get_context("spawn")


@dataclass(frozen=True, slots=True)
class Recipe:
    """How a child makes what it needs; everything here can be pickled."""

    agent: str  # module:function
    score: Score
    connect: Callable[[], Complete | None]


class ProcessPlace:
    def __init__(self, recipe: Recipe) -> None:
        self._recipe = recipe
        self._child: Any = None
        self._pipe: Connection | None = None

    def prepare(self) -> None:
        """Have a child that has loaded the agent: its start is not on any attempt's time."""
        if self._child is not None and self._child.is_alive():
            return
        ours, theirs = _spawn.Pipe()
        self._child = _spawn.Process(target=work, args=(theirs, self._recipe), name="holdfast-agent", daemon=True)
        self._child.start()
        theirs.close()
        self._pipe = ours
        try:
            ours.recv()
        except EOFError:
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
                while not isinstance(message := pipe.recv(), Outcome):
                    record(message)
            except (EOFError, OSError):
                child.join(1.0)
                died = Outcome(
                    state=AttemptState.FAULT, error=f"the agent's process ended with {_exit_text(child.exitcode)}"
                )
                report(None if interrupted.is_set() else died, None)
            except Exception as error:
                report(None, error)
            else:
                report(message, None)

        def measures() -> Iterator[None]:
            interrupted.set()
            child.terminate()
            yield
            child.kill()

        threading.Thread(target=listen, name=f"holdfast-pipe-{child.pid}", daemon=True).start()
        return measures()

    def close(self) -> None:
        if self._pipe is not None:
            self._pipe.close()
        if self._child is not None:
            self._child.kill()
            self._child.join()


def work(pipe: Connection, recipe: Recipe) -> None:
    """The child's life: take an assignment, send what happens, send the outcome; end when the parent does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)  # Ctrl-C reaches the whole group; the parent decides
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    inbox: queue.SimpleQueue[Assignment] = queue.SimpleQueue()
    threading.Thread(target=_receive, args=(pipe, inbox), daemon=True).start()
    home = Home(load_agent(recipe.agent), recipe.score, recipe.connect(), time.time)
    pipe.send("ready")
    while True:
        context = home.context(inbox.get(), pipe.send)
        if is_async(home.agent):
            done = asyncio.run_coroutine_threadsafe(run_one(home.agent, context, home.score), home.current.loop)
            pipe.send(done.result())
        else:
            pipe.send(finish_now(run_one(plainly(home.agent), context, plainly(home.score))))


def _receive(pipe: Connection, inbox: queue.SimpleQueue[Assignment]) -> None:
    try:
        while True:
            inbox.put(pipe.recv())
    except (EOFError, OSError):
        os._exit(0)


def _exit_text(code: int | None) -> str:
    if code is not None and code < 0:
        return f"signal {-code} ({signal.Signals(-code).name})"
    return f"exit code {code}"
