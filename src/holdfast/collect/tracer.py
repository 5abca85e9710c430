"""Recording what happens inside an attempt, in order, as it happens.

A span is handed on when it ends and is not waited for: the worker waits for all of them when the attempt ends.
"""

from __future__ import annotations

import itertools
import os
import sysconfig
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from pathlib import Path
from traceback import FrameSummary, TracebackException, extract_tb
from typing import Any

from holdfast.contracts.errors import told
from holdfast.contracts.records import encode
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind, ToolCall

MAX_ERROR = 2000  # letters of an error in one line
MAX_TRACEBACK = 16_000  # bytes
OURS = str(Path(__file__).parent) + os.sep  # what runs agents: of no interest to whoever wrote one
LIBRARIES = tuple({sysconfig.get_path(name) + os.sep for name in ("stdlib", "platstdlib", "purelib", "platlib")})
_parent: ContextVar[int | None] = ContextVar("holdfast_parent", default=None)


class Tracer:
    """One per attempt. Safe to use from any thread or task of the agent."""

    def __init__(self, record: Callable[[Span], None], clock: Callable[[], float]) -> None:
        self._record, self.clock = record, clock
        self._numbers = itertools.count(1)
        self.asked = itertools.count()  # calls of the model that were begun: each takes the next number
        self._root: int | None = None  # the outermost span: around what other threads record, which know of no span
        self.spans: list[Span] = []
        self.signals: list[RewardTerm] = []

    @property
    def calls(self) -> int:
        """How many whole calls of the model there were so far."""
        return sum(span.model is not None and PARTIAL not in span.attributes for span in self.spans)

    @contextmanager
    def span(self, name: str, **attributes: Any) -> Iterator[dict[str, Any]]:
        """Time a stretch of work; add to the yielded dict what is only known at its end."""
        seq, started_at = next(self._numbers), self.clock()
        parent, notes = _parent.get(), dict(attributes)
        token = _parent.set(seq)
        if parent is None:
            self._root = seq
        try:
            yield notes
        except BaseException as error:
            notes |= failure(error) if parent is None else {"error": told(error)}  # the whole of it once
            raise
        finally:
            if parent is None:
                self._root = None
            with suppress(ValueError):  # an agent that is thrown away may end in another context
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
        """Telemetry: seen, never learnt from."""
        self._instant(SpanKind.TELEMETRY, name, None, attributes=attributes)

    def reward(
        self, name: str, value: float, *, source: str = "agent", weight: float = 1.0, turn: int | None = None
    ) -> None:
        """A reward the agent's own world gives; it counts where no scorer judges, and is kept beside elsewhere."""
        # Numbers of other libraries become plain ones: no engine can store those.
        self.signals.append(RewardTerm(name=name, value=float(value), weight=float(weight), source=source, turn=turn))

    def _instant(self, kind: SpanKind, name: str, started_at: float | None, **rest: Any) -> None:
        started = self.clock() if started_at is None else started_at
        inner = _parent.get()
        self._add(next(self._numbers), kind, name, started, self._root if inner is None else inner, **rest)

    def _add(self, seq: int, kind: SpanKind, name: str, started_at: float, parent: int | None, **rest: Any) -> None:
        ended_at = max(self.clock(), started_at)  # a clock that jumps back must not lose the span
        span = Span(seq=seq, kind=kind, name=name, started_at=started_at, ended_at=ended_at, parent=parent, **rest)
        encode(span)  # what no record can hold is refused here, where the agent learns of it
        self._record(span)
        self.spans.append(span)


def failure(error: BaseException) -> dict[str, str]:
    """What is kept of an exception in foreign code: `error`, one line with its place, and the whole `traceback`."""
    try:
        whole = TracebackException.from_exception(error, compact=True)
        stack = whole.stack
        stack[:] = stack[_first(stack) :]
        text = "".join(whole.format())
    except Exception:  # an exception may be as broken as what raised it
        stack = extract_tb(error.__traceback__)
        stack[:] = stack[_first(stack) :]
        text = f"Traceback (most recent call last):\n{''.join(stack.format())}{told(error)}\n"
    place = _place(stack)
    return {"error": _storable(told(error))[: MAX_ERROR - len(place)] + place, "traceback": _cut(_storable(text))}


def _first(stack: list[FrameSummary]) -> int:
    """Where the foreign code begins: behind the frames that called it, ours and those of an event loop among them."""
    ours = [place for place, frame in enumerate(stack) if frame.filename.startswith(OURS)]
    theirs = [place for place, frame in enumerate(stack) if _is_theirs(frame)]
    if theirs:
        return theirs[0]
    return ours[-1] + 1 if ours and ours[-1] + 1 < len(stack) else 0


def _is_theirs(frame: FrameSummary) -> bool:
    return not frame.filename.startswith((OURS, *LIBRARIES, "<frozen"))


def _place(stack: list[FrameSummary]) -> str:
    """The innermost line of whoever wrote the code; a library that it called is not the place to look at first."""
    theirs = [frame for frame in stack if _is_theirs(frame)] or [
        frame for frame in stack[:1] if not frame.filename.startswith(OURS)
    ]
    return f" ({Path(theirs[-1].filename).name}:{theirs[-1].lineno}, in {theirs[-1].name})" if theirs else ""


def _cut(text: str) -> str:
    """At most MAX_TRACEBACK bytes: how it began, and rather more of how it ended."""
    whole = text.encode()
    if len(whole) <= MAX_TRACEBACK:
        return text
    between = "\n  […]\n"
    head, tail = whole[: MAX_TRACEBACK // 4], whole[len(between.encode()) - 3 * MAX_TRACEBACK // 4 :]
    return head.decode(errors="ignore") + between + tail.decode(errors="ignore")


def _storable(text: str) -> str:
    """Half a character and the character zero are in no store."""
    return text.replace("\0", "�").encode(errors="replace").decode()
