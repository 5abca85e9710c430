"""What an agent is given: its context, the tracer that records its attempt, and its address at the model gateway.

`contracts.agent` says what an agent is. A `Fault` is our failure, not the agent's, and is retried.
"""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import itertools
import os
import secrets
import sysconfig
import threading
from collections.abc import AsyncGenerator, Awaitable, Callable, Coroutine, Iterator, Mapping, Sequence
from concurrent.futures import wait as wait_for
from contextlib import aclosing, contextmanager, suppress
from contextvars import ContextVar
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from traceback import FrameSummary, TracebackException, extract_tb
from typing import Any, ClassVar, TypeVar

from holdfast.collect.proxy import attribution
from holdfast.collect.thinking import BudgetAction, BudgetTracker, capped, hinted, mode_of, thinking_tokens
from holdfast.contracts.agent import Agent, load_named, refuse_uncallable
from holdfast.contracts.budget import Mode
from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import BadInput, Fault, HoldfastError, Interrupted, error_line
from holdfast.contracts.executor import Assignment
from holdfast.contracts.flag import ALL_ON, Features
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import PARTIAL, TAG, TRUNCATED, ModelCall, Span, SpanKind, ToolCall

MAX_ERROR = 2000  # characters of an error in one line
MAX_TRACEBACK = 16_000  # bytes
OURS = str(Path(__file__).parent) + os.sep  # frames of ours are left out of tracebacks
CONTRACTS = str(Path(__file__).parents[1] / "contracts") + os.sep  # a task that an agent reads
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_parent: ContextVar[int | None] = ContextVar("holdfast_parent", default=None)


class Tracer:
    """Records the spans of one attempt, in order. Safe to use from any thread or task of the agent."""

    def __init__(self, record: Callable[[Span], None], clock: Callable[[], float]) -> None:
        self._record, self.clock = record, clock
        self._numbers = itertools.count(1)
        self.asked = itertools.count()  # numbers for the model calls, in the order in which they begin
        self._root: int | None = None  # the outermost span: the parent of what other threads record
        self.spans: list[Span] = []
        self.signals: list[RewardTerm] = []

    @property
    def calls(self) -> int:
        """The number of complete model calls so far."""
        return sum(span.model is not None and PARTIAL not in span.attributes for span in self.spans)

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[dict[str, Any]]:
        """Times a piece of work. What is only known at its end goes into the yielded dict."""
        seq, started_at = next(self._numbers), self.clock()
        parent, notes = _parent.get(), dict(attributes)
        token = _parent.set(seq)
        if parent is None:
            self._root = seq
        try:
            yield notes
        except BaseException as error:
            notes |= failure(error) if parent is None else {"error": error_line(error)}  # the traceback only once
            raise
        finally:
            if parent is None:
                self._root = None
            with suppress(ValueError):  # a discarded agent may end in another context
                _parent.reset(token)
            self._add(seq, SpanKind.TELEMETRY, name, started_at, parent, attributes=notes)

    def model(self, call: ModelCall, *, started_at: float, **attributes: Any) -> None:
        """A decision: the model answered."""
        self._instant(SpanKind.MODEL, f"model.{call.model}", started_at, model=call, attributes=attributes)

    def tool(self, call: ToolCall, *, started_at: float | None = None) -> None:
        """A decision: a tool was called."""
        self._instant(SpanKind.TOOL, f"tool.{call.tool}", started_at, tool=call)

    def message(self, role: str, text: str) -> None:
        self._instant(SpanKind.MESSAGE, "message.added", None, attributes={"role": role, "text": text})

    def event(self, name: str, **attributes: Any) -> None:
        """Telemetry: shown, never learnt from."""
        self._instant(SpanKind.TELEMETRY, name, None, attributes=attributes)

    def reward(
        self, name: str, value: float, *, source: str = "agent", weight: float = 1.0, turn: int | None = None
    ) -> None:
        """A reward from the agent itself. It counts only where no scorer judges."""
        # float(): no store takes the numbers of other libraries.
        self.signals.append(RewardTerm(name=name, value=float(value), weight=float(weight), source=source, turn=turn))

    def _instant(self, kind: SpanKind, name: str, started_at: float | None, **rest: Any) -> None:
        started = self.clock() if started_at is None else started_at
        inner = _parent.get()
        self._add(next(self._numbers), kind, name, started, self._root if inner is None else inner, **rest)

    def _add(self, seq: int, kind: SpanKind, name: str, started_at: float, parent: int | None, **rest: Any) -> None:
        ended_at = max(self.clock(), started_at)  # the clock may jump back
        span = Span(seq=seq, kind=kind, name=name, started_at=started_at, ended_at=ended_at, parent=parent, **rest)
        encode(span)  # refuses here what cannot be stored, so that the agent gets the error
        self._record(span)
        self.spans.append(span)


def failure(error: BaseException) -> dict[str, str]:
    """What is kept of an exception in an agent or scorer: `error`, one line with its place, and the `traceback`."""
    try:
        whole = TracebackException.from_exception(error, compact=True)
        stack = whole.stack
        stack[:] = stack[_first(stack) :]
        text = "".join(whole.format())
    except Exception:  # the exception itself may be broken
        stack = extract_tb(error.__traceback__)
        stack[:] = stack[_first(stack) :]
        text = f"Traceback (most recent call last):\n{''.join(stack.format())}{error_line(error)}\n"
    place = _place(stack)
    return {"error": _storable(error_line(error))[: MAX_ERROR - len(place)] + place, "traceback": _cut(_storable(text))}


def _first(stack: list[FrameSummary]) -> int:
    """The index of the first frame of the agent's code, after our frames and those of the event loop."""
    ours = [place for place, frame in enumerate(stack) if frame.filename.startswith(OURS)]
    theirs = [place for place, frame in enumerate(stack) if _is_theirs(frame)]
    if theirs:
        return theirs[0]
    return ours[-1] + 1 if ours and ours[-1] + 1 < len(stack) else 0


def _is_theirs(frame: FrameSummary) -> bool:
    return not frame.filename.startswith((OURS, CONTRACTS, *LIBRARIES, "<frozen"))


def _place(stack: list[FrameSummary]) -> str:
    """The innermost line of the agent's own code, not of a library that it called."""
    theirs = [frame for frame in stack if _is_theirs(frame)] or [
        frame for frame in stack[:1] if not frame.filename.startswith(OURS)
    ]
    return f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno}, in {theirs[-1].name})" if theirs else ""


def _cut(text: str) -> str:
    """At most MAX_TRACEBACK bytes: a quarter from the beginning, the rest from the end."""
    whole = text.encode()
    if len(whole) <= MAX_TRACEBACK:
        return text
    between = "\n  […]\n"
    head, tail = whole[: MAX_TRACEBACK // 4], whole[len(between.encode()) - 3 * MAX_TRACEBACK // 4 :]
    return head.decode(errors="ignore") + between + tail.decode(errors="ignore")


def _storable(text: str) -> str:
    """Without lone surrogates and zero characters, which no store takes."""
    return text.replace("\0", "�").encode(errors="replace").decode()


T = TypeVar("T")
Pieces = AsyncGenerator[Mapping[str, Any] | ModelCall, None]


class AttemptEnded(HoldfastError):
    """The attempt has ended, so its calls are refused."""


class TokenRegistry:
    """Entries by token. Tokens are signed, so those of ended attempts need not be kept."""

    def __init__(self) -> None:
        self._secret = secrets.token_bytes(32)
        self._open: dict[str, ModelEntry] = {}

    def add(self, entry: ModelEntry) -> str:
        nonce = secrets.token_urlsafe(18)
        token = f"{nonce}.{self._sign(nonce)}"
        self._open[token] = entry
        return token

    def find(self, token: str) -> ModelEntry | None:
        """None for a token that was never given; Gone for one of an ended attempt."""
        entry = self._open.get(token)
        if entry is not None:
            return entry
        nonce, _, signature = token.partition(".")
        if hmac.compare_digest(signature.encode(), self._sign(nonce).encode()):
            raise AttemptEnded("this attempt", why="has ended", remedy="call the model only while the agent runs")
        return None

    def remove(self, token: str) -> None:
        self._open.pop(token, None)

    def _sign(self, nonce: str) -> str:
        return hmac.new(self._secret, nonce.encode(), hashlib.sha256).hexdigest()[:32]


class Access:
    """One attempt's addresses at the model gateway; they end with the attempt. Safe to use from any thread."""

    def __init__(self, register: TokenRegistry, address: Callable[[], str]) -> None:
        self._register, self._address = register, address
        self._entries: list[tuple[ModelEntry, str]] = []  # and their tokens
        self._lock = threading.Lock()
        self.is_closed = False
        self.fault: Fault | None = None  # of the last call, if it ended in one

    @cached_property
    def key(self) -> str:
        """Made at first use: most agents need none."""
        return f"hf-{secrets.token_urlsafe(24)}"

    def url(self, context: Context) -> str:
        """The address for this context's model; a copy of the context with another model has its own."""
        with self._lock:
            return f"{self._address()}/a/{self._token(context)}"

    def close(self) -> bool:
        """Refuses new calls and drops those under way; whether there were any."""
        with self._lock:
            self.is_closed = True
            for _, token in self._entries:
                self._register.remove(token)
            dropped = [entry.drop() for entry, _ in self._entries]  # all of them
            return any(dropped)

    def _token(self, context: Context) -> str:
        for entry, token in self._entries:
            if entry.context.complete is context.complete:
                return token
        entry = ModelEntry(context, self)
        token = self._register.add(entry)
        self._entries.append((entry, token))
        if self.is_closed:
            self._register.remove(token)
        return token


class ModelEntry:
    """The model as one attempt's calls reach it: asked and recorded as by `ctx.ask`."""

    def __init__(self, context: Context, access: Access) -> None:
        self.context, self.access = context, access
        self.tool_calls: list[Mapping[str, Any]] = []  # the tool calls of all answers
        self._calls: set[asyncio.Task[Any]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None

    @property
    def any_sampling(self) -> bool:
        """Whether the model checks the parameters of a request itself."""
        return bool(getattr(self.context.complete, "any_sampling", False))

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        return self._answered(await self._unless_closed(self.context.ask(messages, **sampling)))

    @property
    def stream(self) -> Callable[..., Pieces] | None:
        """None if the model cannot stream: its whole answer is then cut into pieces."""
        return self._stream if hasattr(self.context.complete, "stream") else None

    async def _stream(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> Pieces:
        async with aclosing(self.context.stream(messages, **sampling)) as answer:
            while (new := await self._unless_closed(_next(answer))) is not None:
                yield self._answered(new) if isinstance(new, ModelCall) else new

    def drop(self) -> bool:
        """Cancels the calls under way and says whether there were any; may be called from any thread."""
        if self._loop is not None:
            with suppress(RuntimeError):  # the gateway has ended, and its calls with it
                self._loop.call_soon_threadsafe(self._cancel)
        return bool(self._calls)

    def _cancel(self) -> None:
        for call in self._calls:
            call.cancel()

    def _answered(self, call: ModelCall) -> ModelCall:
        self.tool_calls += [
            one for one in call.response.get("tool_calls") or () if isinstance(one.get("function"), Mapping)
        ]
        self.access.fault = None
        return call

    async def _unless_closed(self, work: Coroutine[Any, Any, T]) -> T:
        self._loop = asyncio.get_running_loop()
        call = self._loop.create_task(work)
        self._calls.add(call)
        if self.access.is_closed:  # `drop` may have run before this call was added
            call.cancel()
        try:
            return await call
        except asyncio.CancelledError:
            task = asyncio.current_task()
            if self.access.is_closed and not (task and task.cancelling()):
                raise AttemptEnded("this attempt", why="has ended", remedy="nobody waits for the answer") from None
            raise
        except Fault as fault:
            self.access.fault = fault
            raise
        finally:
            self._calls.discard(call)


async def _next(answer: AsyncGenerator[T, None]) -> T | None:
    return await anext(answer, None)


Connect = Callable[[str | None], Complete | None]  # a policy version (None: the one in force) to who answers for it
Score = Callable[[Any, Any, Sequence[Span]], Sequence[RewardTerm] | Awaitable[Sequence[RewardTerm]]]


@dataclass(frozen=True, slots=True)
class OwnScore:
    """The scorer that an agent brings along, made for the features that a unit gets. It can be sent to other processes
    where its maker can."""

    made: Callable[[Features], Score]
    uses: ClassVar[frozenset[str]] = frozenset({"tool_rewards"})  # the features that decide what it measures

    def __call__(self, task: Any, output: Any, spans: Sequence[Span]) -> Any:
        return self.made(ALL_ON)(task, output, spans)

    def without(self, features: Features) -> Score:
        return self.made(features)


def scored_without(score: T, features: Features) -> T:
    """The scorer for a unit that does not get every feature. One that has a method `without` knows what to leave out,
    and refuses where it cannot do without a feature."""
    if features == ALL_ON or not hasattr(score, "without"):
        return score
    made: T = score.without(features)
    return made


# A scorer may have one as its `close`: from all signals of an attempt, the agent's own too, what it did and what it
# answered (None: it failed) to the signals that count, and why the attempt is rejected, if it is.
LastWord = Callable[[Sequence[RewardTerm], Sequence[Span], Any], tuple[Sequence[RewardTerm], str | None]]
# From a task, the answer (None: it failed), what happened and the signals so far to all signals, those of turns too.
TurnTerms = Callable[[Any, Any, Sequence[Span], Sequence[RewardTerm]], Sequence[RewardTerm]]
SEED_STEP = 0x9E3779B97F4A7C15  # far apart, so that no two calls draw the same numbers
UNNAMED = "default"  # what a model is called that has no name of its own


def no_model(version: str | None = None) -> None:
    """The Connect of a run without a model."""
    return


class OneModel:
    """The same model for every version, opened at first use. It is pickled unopened."""

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

    def truncate(self, why: str) -> None:
        """Says that a limit cut the conversation short, as in `ctx.truncate("max_turns")`, before the agent returns.

        It is then no end of its own: a critic estimates what would have followed."""
        self.trace.event(TRUNCATED, why=why)

    def check(self) -> None:
        """Raises Interrupted when the attempt was cancelled; for long work that calls nothing of ours."""
        if self.cancelled.is_set():
            raise Interrupted("cancelled")

    @property
    def base_url(self) -> str:
        """For any client of OpenAI's API; calls there are made and recorded as by `ask`."""
        return f"{self.anthropic_base_url}/v1"

    @property
    def anthropic_base_url(self) -> str:
        """The same address without `/v1`, which Anthropic's client adds itself."""
        if self.proxy_url is not None:
            return self._at_proxy(self.proxy_url)
        if self.access is None:
            raise BadInput("this context", why="has no address: no pool runs its agent", remedy="use ctx.ask")
        return self.access.url(self)

    def _at_proxy(self, url: str) -> str:
        given = self.assignment
        return attribution.base_url(url, given.rollout, given.number, given.capability)

    @property
    def api_key(self) -> str:
        """For `base_url`. Behind a capture proxy it is the environment's key, which the proxy may pass on."""
        if self.proxy_url is not None or self.access is None:
            return os.environ.get("OPENAI_API_KEY") or "none"
        return self.access.key

    def cancel(self) -> bool:
        """Makes `check` raise and drops the model calls under way; whether there were any."""
        self.cancelled.set()
        return self.close()

    def close(self) -> bool:
        """Ends the attempt's address; whether a model call was under way."""
        return self.access is not None and self.access.close()

    async def ask(
        self, messages: Sequence[Mapping[str, Any]], /, *, tag: str | None = None, **sampling: Any
    ) -> ModelCall:
        """Calls the model and records the call as a decision.

        `tag` is a word of your own for such calls: `train_on` can choose them. `thinking=` limits the thinking tokens.
        With thinking budgets the default is all that is left of the attempt's; where its thought was cut and the budget
        has grown for it, the model is asked once more.
        """
        complete, again = self._model(), dict(sampling)
        with self._recorded(messages, sampling, tag) as answer:
            asked, given = _limited(complete, messages, sampling)
            call = answer.call = _held(await complete(asked, **given), complete, sampling)
        if answer.thought.get("action") == BudgetAction.ESCALATE and answer.thought.get("cut"):
            # The same seed thinks the same again, and then goes on: only what is new is counted.
            again |= {"seed": sampling.get("seed")} if "seed" in sampling else {}
            with self._recorded(messages, again, tag, answer.thought["used"]) as once_more:
                asked, given = _limited(complete, messages, again)
                call = once_more.call = _held(await complete(asked, **given), complete, again)
        return call

    async def stream(
        self, messages: Sequence[Mapping[str, Any]], /, *, tag: str | None = None, **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        """Like `ask`, streamed: the pieces, and the finished call last. The model must have a `stream`.

        If the caller stops early, the call ends and what had come is recorded as partial, which is never learnt from.
        """
        complete = self._model()
        with self._recorded(messages, sampling, tag) as answer:
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
    def _recorded(
        self,
        messages: Sequence[Mapping[str, Any]],
        sampling: dict[str, Any],
        tag: str | None = None,
        repeated: int = 0,
    ) -> Iterator[PendingCall]:
        """Around one call: grants its thinking tokens, settles them after it, and records the call."""
        started_at, granted, answer = self.trace.clock(), 0, PendingCall()
        if getattr(self.complete, "takes_seed", False) and sampling.get("seed") is None:
            # By attempt and call: the same seed after a fault, and for both versions of a proof.
            sampling["seed"] = (self.seed + next(self.trace.asked) * SEED_STEP) % 2**63
        if self.budget is not None:
            granted = self.budget.grant(messages, sampling.get("tools") or (), sampling.get("thinking"))
            sampling["thinking"] = granted + repeated
        thought: dict[str, Any] = {}
        notes: dict[str, Any] = {} if tag is None else {TAG: tag}
        try:
            yield answer
        except BaseException as error:
            if answer.pieces and not (self.access is not None and self.access.is_closed):
                answer.call = answer.so_far(self.model, messages, sampling)
                has_left = isinstance(error, GeneratorExit | asyncio.CancelledError)
                notes |= {PARTIAL: "nobody listened to its end" if has_left else error_line(error)}
            raise
        finally:
            if self.budget is not None:
                answer.thought = thought = self.budget.settle(granted, answer.call, repeated)
            if answer.call is not None:
                if not thought and (mode := mode_of(answer.call)) is not None:
                    used = thinking_tokens(answer.call)
                    thought = {"granted": sampling.get("thinking"), "mode": mode.value, "used": used}
                notes |= {"thinking": thought} if thought else {}
                self.trace.model(answer.call, started_at=started_at, **notes)

    def wait(self, work: Coroutine[Any, Any, T]) -> T:
        """For plain agents: runs an awaitable, such as `context.ask(messages)`, to its end."""
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
            future.cancel()  # if we are interrupted here, the awaited work must end, too


@dataclass(slots=True)
class PendingCall:
    """A model call under way."""

    call: ModelCall | None = None  # the finished one
    thought: Mapping[str, Any] = field(default_factory=dict)  # what its budget says
    pieces: list[Mapping[str, Any]] = field(default_factory=list)  # of a stream, so far

    def so_far(self, model: str, messages: Sequence[Mapping[str, Any]], sampling: Mapping[str, Any]) -> ModelCall:
        """The part of an answer that came before its stream was left."""
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
    """The request; a model that cannot be held to a number of thinking tokens is asked to keep to it."""
    limit = sampling.get("thinking")
    if limit is None or getattr(complete, "limits_thinking", True):
        return messages, dict(sampling)
    rest = {name: value for name, value in sampling.items() if name != "thinking"}
    return hinted(messages, limit), capped(rest, limit)


def _held(call: ModelCall, complete: Complete, sampling: Mapping[str, Any]) -> ModelCall:
    """The call with the limit that its model was only asked to keep."""
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
    """Marks an agent with its scorer, the range of its rewards, and the tools that its tasks may name."""

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
