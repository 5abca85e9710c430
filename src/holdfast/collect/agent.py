"""What an agent is given, and how it is found: `contracts.agent` says what one is, and there is nothing to subclass.

A `Fault` is our failure and not the agent's, and is retried.
"""

from __future__ import annotations

import asyncio
import os
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import aclosing, contextmanager
from dataclasses import dataclass, field, replace
from typing import Any, TypeVar

from holdfast.collect.access import Access
from holdfast.collect.budget import thinking_tokens
from holdfast.collect.budget_tracker import BudgetTracker, mode_of
from holdfast.collect.proxy import identity
from holdfast.collect.thinking import hinted
from holdfast.collect.tracer import Tracer
from holdfast.contracts.agent import Agent, load_named, refuse_uncallable
from holdfast.contracts.budget import Mode
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, Fault, Interrupted, told
from holdfast.contracts.executor import Assignment
from holdfast.contracts.flag import Features
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import PARTIAL, ModelCall, Span

T = TypeVar("T")
Connect = Callable[[str | None], Complete | None]  # a policy version (None: the one in force) to who answers for it
Score = Callable[[Any, Any, Sequence[Span]], Sequence[RewardTerm] | Awaitable[Sequence[RewardTerm]]]
# A scorer may have one as its `close`: from all signals of an attempt, the agent's own too, what it did and what it
# answered (None: it failed) to the signals that count, and why the attempt is rejected, if it is.
LastWord = Callable[[Sequence[RewardTerm], Sequence[Span], Any], tuple[Sequence[RewardTerm], str | None]]
SEED_STEP = 0x9E3779B97F4A7C15  # far apart, so that no two calls draw the same numbers
UNNAMED = "default"  # what a model is called that has no name of its own


def no_model(version: str | None = None) -> None:
    """The Connect of a run that has no model."""
    return


class OneModel:
    """The same model for every version, opened when first asked for. It travels to another process unopened."""

    def __init__(self, open_model: Callable[[], Complete | None]) -> None:
        self._open = open_model
        self._opened: list[Complete | None] = []

    def __call__(self, version: str | None = None) -> Complete | None:
        if not self._opened:
            self._opened.append(self._open())
        return self._opened[0]

    def __reduce__(self) -> tuple[type[OneModel], tuple[Callable[[], Complete | None]]]:
        return OneModel, (self._open,)


@dataclass(frozen=True, slots=True, kw_only=True)
class Context:
    """What an agent may use. `complete` is the model as a function; it is None when the run has no model."""

    assignment: Assignment
    trace: Tracer
    complete: Complete | None
    cancelled: threading.Event = field(default_factory=threading.Event)  # set when the work is no longer wanted
    loop: asyncio.AbstractEventLoop | None = None  # where `wait` runs awaitables for a plain agent
    proxy_url: str | None = None  # of the capture proxy, when the run has one
    access: Access | None = None  # to the gateway, where no proxy is; None: nobody runs this one
    budget: BudgetTracker | None = None  # what it may think, when the run has thinking budgets

    @property
    def model(self) -> str:
        """The name to send: `model=ctx.model`."""
        return str(getattr(self.complete, "model", None) or UNNAMED)

    @property
    def seed(self) -> int:
        """This attempt's own random key."""
        return self.assignment.seed

    @property
    def resources(self) -> Mapping[str, Any]:
        """The named resources (prompts and the like) of the version in force."""
        return self.assignment.resources

    def prompt(self, name: str) -> str:
        """A named text of the version in force."""
        found = self.resources.get(name)
        if isinstance(found, str):
            return found
        texts = ", ".join(sorted(key for key, value in self.resources.items() if isinstance(value, str)))
        why = "is not among the resources of this version" if found is None else f"is {type(found).__name__}, not text"
        raise BadInput(f"prompt {name!r}", why=why, remedy=f"it has: {texts or 'none'}")

    def reward(self, name: str, value: float, *, turn: int | None = None) -> None:
        """A reward term of one turn: the current one (the last model call so far) when `turn` is not given.

        Before the first call it belongs to the whole attempt. Beside a scorer it is shown and has weight 0.
        """
        calls = self.trace.calls
        self.trace.reward(name, value, turn=calls - 1 if turn is None and calls else turn)

    def check(self) -> None:
        """Raise Interrupted when the work is no longer wanted; for long stretches that call nothing of ours."""
        if self.cancelled.is_set():
            raise Interrupted("cancelled")

    @property
    def base_url(self) -> str:
        """For any client of OpenAI's API, and for Anthropic's: what is asked there is asked, and kept, as by `ask`."""
        return f"{self.anthropic_base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The same address without `/v1`, which Anthropic's client adds itself."""
        if self.proxy_url is not None:
            return identity.base_url(self.proxy_url, self.assignment.rollout, self.assignment.number)
        if self.access is None:
            raise BadInput("this context", why="has no address: no pool runs its agent", remedy="use ctx.ask")
        return self.access.url(self)

    @property
    def api_key(self) -> str:
        """For `base_url`. A capture proxy may pass the key on to its upstream: there it is the environment's."""
        if self.proxy_url is not None or self.access is None:
            return os.environ.get("OPENAI_API_KEY") or "none"
        return self.access.key

    def cancel(self) -> None:
        """The work is no longer wanted: `check` says so, and calls of the model are dropped."""
        self.cancelled.set()
        self.close()

    def close(self) -> None:
        """The attempt has ended: its address answers no more."""
        if self.access is not None:
            self.access.close()

    async def ask(self, messages: Sequence[Mapping[str, Any]], **sampling: Any) -> ModelCall:
        """Call the model and record the call as a decision.

        `thinking=` is how many tokens it may think. With thinking budgets it is all that is left of this attempt's, or
        as much of that as is asked for.
        """
        complete = self._model()
        with self._recorded(messages, sampling) as answer:
            asked, given = _limited(complete, messages, sampling)
            answer.call = _held(await complete(asked, **given), complete, sampling)
        return answer.call

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """The same while the answer is made: its pieces, and the finished call last, for a model that has a `stream`.

        Whoever stops listening ends the call: what had come until then is recorded as partial, and never learnt from.
        """
        complete = self._model()
        with self._recorded(messages, sampling) as answer:
            asked, given = _limited(complete, messages, sampling)
            async with aclosing(complete.stream(asked, **given)) as news:  # type: ignore[attr-defined]
                async for new in news:
                    if isinstance(new, ModelCall):
                        answer.call = _held(new, complete, sampling)
                        break
                    answer.pieces.append(new)
                    yield new
            if answer.call is None:
                raise Fault("model", why="its stream broke off", remedy="ask again")
        yield answer.call

    def _model(self) -> Complete:
        if self.complete is None:
            raise BadInput("this agent", why="needs a model and none was given", remedy="give --model and --base-url")
        return self.complete

    @contextmanager
    def _recorded(self, messages: Sequence[Mapping[str, Any]], sampling: dict[str, Any]) -> Iterator[PendingCall]:
        """Around one call: what it may think is granted before and settled after it, then it is in the trace."""
        started_at, granted, answer = self.trace.clock(), 0, PendingCall()
        if getattr(self.complete, "takes_seed", False) and sampling.get("seed") is None:
            # By the attempt and the call: the same chance again after a fault, and for both versions of a proof.
            sampling["seed"] = (self.seed + next(self.trace.asked) * SEED_STEP) % 2**63
        if self.budget is not None:
            granted = self.budget.grant(messages, sampling.get("tools") or (), sampling.get("thinking"))
            sampling["thinking"] = granted
        thought, notes = dict[str, Any](), dict[str, Any]()
        try:
            yield answer
        except BaseException as error:
            if answer.pieces and not (self.access is not None and self.access.is_closed):
                answer.call = answer.so_far(self.model, messages, sampling)
                has_left = isinstance(error, GeneratorExit | asyncio.CancelledError)
                notes = {PARTIAL: "nobody listened to its end" if has_left else told(error)}
            raise
        finally:
            if self.budget is not None:
                thought = self.budget.settle(granted, answer.call)
            if answer.call is not None:
                if not thought and (mode := mode_of(answer.call)) is not None:
                    used = thinking_tokens(answer.call)
                    thought = {"granted": sampling.get("thinking"), "mode": mode.value, "used": used}
                notes |= {"thinking": thought} if thought else {}
                self.trace.model(answer.call, started_at=started_at, **notes)

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
                self.check()
                wait_for([future], timeout=0.1)
            return future.result()
        finally:
            future.cancel()  # when we are interrupted here, what we waited for must not go on


@dataclass(slots=True)
class PendingCall:
    """A call of the model while it is under way."""

    call: ModelCall | None = None  # the finished one
    pieces: list[Mapping[str, Any]] = field(default_factory=list)  # of a stream, so far

    def so_far(self, model: str, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> ModelCall:
        """What has come of an answer that nobody will hear to its end."""
        message: dict[str, Any] = {"role": "assistant"}
        for name in ("content", "reasoning_content"):
            message[name] = "".join(piece.get(name) or "" for piece in self.pieces)
        ids = tuple(token for piece in self.pieces for token in piece.get("token_ids") or ())
        logprobs = tuple(one for piece in self.pieces for one in piece.get("logprobs") or ())
        return ModelCall(
            model=model,
            messages=tuple(messages),
            response={name: text for name, text in message.items() if text},
            completion_tokens=len(ids) or None,
            completion_ids=ids or None,
            logprobs=logprobs if ids and len(ids) == len(logprobs) else None,
            sampling=dict(sampling),
        )


def _limited(
    complete: Complete, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]
) -> tuple[Sequence[Mapping[str, Any]], dict[str, Any]]:
    """What is asked for: a model that cannot be held to a number of tokens is told to keep to it."""
    limit = sampling.get("thinking")
    if limit is None or getattr(complete, "limits_thinking", True):
        return messages, dict(sampling)
    return hinted(messages, limit), {name: value for name, value in sampling.items() if name != "thinking"}


def _held(call: ModelCall, complete: Complete, sampling: Mapping[str, Any]) -> ModelCall:
    """The call with the limit that it was only told of."""
    limit = sampling.get("thinking")
    if limit is None or getattr(complete, "limits_thinking", True):
        return call
    return replace(call, sampling={**call.sampling, "thinking": limit, "thinking_mode": Mode.HINT.value})


def _is_running(loop: asyncio.AbstractEventLoop) -> bool:
    try:
        return asyncio.get_running_loop() is loop
    except RuntimeError:
        return False


def scored_by(
    scorer: Callable[[Features], Score],
    rewards: tuple[float, float] = (0.0, 1.0),
    tools: Sequence[Mapping[str, Any]] = (),
) -> Callable[[T], T]:
    """Marks an agent with what it brings along: its scorer, the least and the most that this one pays, and the tools
    that its tasks may name."""

    def mark(agent: T) -> T:
        vars(agent).update(scorer=scorer, rewards=rewards, tools=tuple(tools))
        return agent

    return mark


def load_agent(reference: str) -> Agent:
    """The function that `module:function` or `path/to/file.py:function` names; the current folder is searched first."""
    found = load_named(reference, "agent")
    refuse_uncallable(found, reference)
    agent: Agent = found
    return agent
