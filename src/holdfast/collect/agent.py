"""What an agent is, and what it is given: a function `agent(task, context)`, async or plain, and nothing to subclass.

It returns its answer (any JSON). An exception is a failed try, and is data; a `Fault` is our failure, and is retried.
"""

from __future__ import annotations

import asyncio
import importlib
import inspect
import sys
import threading
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import redirect_stdout
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, TypeVar

from holdfast.collect.budget import thinking_tokens
from holdfast.collect.proxy import identity
from holdfast.collect.purse import Purse, mode_of
from holdfast.collect.thinking import hinted
from holdfast.collect.tracer import Tracer, told
from holdfast.contracts.budget import Mode
from holdfast.contracts.errors import BadInput, Interrupted
from holdfast.contracts.policy import Complete
from holdfast.contracts.reward import Signal
from holdfast.contracts.trace import ModelCall, Span

T = TypeVar("T")
Agent = Callable[[Any, "Context"], Any]
Score = Callable[[Any, Any, Sequence[Span]], Sequence[Signal] | Awaitable[Sequence[Signal]]]
# A scorer may have one as its `close`: from all signals of an attempt, the agent's own too, what it did and what it
# answered (None: it failed) to the signals that count, and why the attempt is rejected, if it is.
LastWord = Callable[[Sequence[Signal], Sequence[Span], Any], tuple[Sequence[Signal], str | None]]


@dataclass(frozen=True, slots=True, kw_only=True)
class Assignment:
    """One claim as the agent's side sees it: plain data, so that it can travel to another process."""

    rollout: str
    attempt: str
    number: int  # which try this is: 1, 2, …
    split: str | None
    input: Any
    resources: Mapping[str, Any]
    seed: int  # this attempt's own random key


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an agent may use. `model` is None when no endpoint was given."""

    assignment: Assignment
    trace: Tracer
    model: Complete | None
    cancelled: threading.Event = field(default_factory=threading.Event)  # set when the work is no longer wanted
    loop: asyncio.AbstractEventLoop | None = None  # where `wait` runs awaitables for a plain agent
    proxy_url: str | None = None  # of the capture proxy, when the run has one
    budget: Purse | None = None  # what it may think, when the run has thinking budgets

    @property
    def resources(self) -> Mapping[str, Any]:
        """The named resources (prompts and the like) of the version in force."""
        return self.assignment.resources

    @property
    def base_url(self) -> str | None:
        """For any client of OpenAI's API: calls that go there are kept as this attempt's own. None without a proxy."""
        if self.proxy_url is None:
            return None
        return f"{identity.base_url(self.proxy_url, self.assignment.rollout, self.assignment.number)}/v1"

    async def ask(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> ModelCall:
        """Call the model and record the call as a decision.

        `thinking=` is how many tokens it may think. With thinking budgets it is all that is left of this attempt's, or
        as much of that as is asked for.
        """
        if self.model is None:
            raise BadInput("this agent", why="needs a model and none was given", remedy="give --model and --base-url")
        started_at, granted = self.trace.clock(), 0
        call: ModelCall | None = None
        if self.budget is not None:
            granted = self.budget.grant(messages, sampling.get("tools") or (), sampling.get("thinking"))
            sampling["thinking"] = granted
        thought: dict[str, Any] = {}
        try:
            call = await self._limited(self.model, messages, sampling)
        finally:
            if self.budget is not None:
                thought = self.budget.settle(granted, call)
        if not thought and (mode := mode_of(call)) is not None:
            thought = {"granted": sampling.get("thinking"), "mode": mode.value, "used": thinking_tokens(call)}
        self.trace.model(call, started_at=started_at, **({"thinking": thought} if thought else {}))
        return call

    async def _limited(
        self, model: Complete, messages: Sequence[Mapping[str, Any]], sampling: dict[str, Any]
    ) -> ModelCall:
        """A model that cannot be held to a number of tokens is asked to keep to it."""
        limit = sampling.get("thinking")
        if limit is None or getattr(model, "limits_thinking", True):
            return await model(messages, **sampling)
        rest = {name: value for name, value in sampling.items() if name != "thinking"}
        call = await model(hinted(messages, limit), **rest)
        return replace(call, sampling={**call.sampling, "thinking": limit, "thinking_mode": Mode.HINT.value})

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """For plain agents: run an awaitable, such as `context.ask(messages)`, to its end."""
        if self.loop is None:
            return asyncio.run(work)
        if _is_running(self.loop):
            work.close()
            raise BadInput(
                "context.wait", why="this is an async agent: it would wait for itself", remedy="write await instead"
            )
        future = asyncio.run_coroutine_threadsafe(work, self.loop)
        try:
            while not future.done():
                if self.cancelled.is_set():
                    raise Interrupted("cancelled")
                wait_for([future], timeout=0.1)
            return future.result()
        finally:
            future.cancel()  # when we are interrupted here, what we waited for must not go on


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def is_async(agent: Agent) -> bool:
    """Whether calling it gives a coroutine, so that it can share one event loop with others."""
    return inspect.iscoroutinefunction(agent) or inspect.iscoroutinefunction(getattr(agent, "__call__", None))  # noqa: B004


def load_agent(reference: str) -> Agent:
    """The function that `module:function` names; the current folder is searched first."""
    module_name, _, name = reference.partition(":")
    if not module_name or not name:
        raise BadInput(
            f"agent {reference!r}", why="is not of the form module:function", remedy="for example my_agents:answer"
        )
    here = str(Path.cwd())
    if here not in sys.path:
        sys.path.insert(0, here)
    try:
        with redirect_stdout(sys.stderr):  # stdout is the report's
            found: Any = importlib.import_module(module_name)
    except ImportError as error:
        raise BadInput(
            f"agent {reference}", why=f"cannot import {module_name}: {error}", remedy="check the name and the folder"
        ) from error
    except KeyboardInterrupt:
        raise
    except BaseException as error:  # foreign code may throw anything
        raise BadInput(f"agent {reference}", why=f"importing {module_name} failed: {told(error)}") from error
    for part in name.split("."):
        found = getattr(found, part, None)
    if not callable(found):
        public = ", ".join(
            n for n, v in vars(sys.modules[module_name]).items() if inspect.isfunction(v) and not n.startswith("_")
        )
        raise BadInput(
            f"agent {reference}", why=f"{module_name} has no function {name}", remedy=f"it has: {public or 'none'}"
        )
    try:
        inspect.signature(found).bind({}, None)
    except ValueError:
        pass  # some of those written in C do not say what they take
    except TypeError as error:
        raise BadInput(f"agent {reference}", why=f"cannot be called with (task, context): {error}") from error
    agent: Agent = found
    return agent
