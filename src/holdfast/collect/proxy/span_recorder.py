"""Records every call as a span of its attempt: opened when it begins, amended while it runs, closed at its end.

Spans that were open when this process died stay, marked `partial`, and are never learnt from.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from holdfast.collect.lookups import StoreLookups
from holdfast.collect.proxy.dialect import ModelRequest
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind
from holdfast.store.runs import DesiredStates
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

FIRST = 1_000_001  # the first span number here, far above those of the worker's tracer

# In these states running attempts are interrupted; in a drained or paused run they go on.
STOPPED = frozenset({DesiredState.FROZEN, DesiredState.CANCELLED})
UNKEPT = (BadRecord, RecursionError)  # raised for values that no record can hold

FIXED = frozenset({"role", "type", "id", "call_id", "status"})  # fields of an answer that come at once
NUMBERS = "0123456789().+-/ \t\r\n"
LONGEST_GROUP, MOST_GROUPS = 4, 9  # groups of a bank account number
GROUP = re.compile(rf"(?<!\S)[A-Z0-9]{{1,{LONGEST_GROUP}}}\Z")

Scrub = Callable[[ModelCall], ModelCall]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """Prices of a million tokens, in any currency."""

    read: float
    written: float

    def of(self, call: ModelCall) -> float | None:
        if call.prompt_tokens is None or call.completion_tokens is None:
            return None
        return (call.prompt_tokens * self.read + call.completion_tokens * self.written) / 1e6


class SpanRecorder:
    def __init__(
        self,
        store: Store,
        *,
        clock: Clock,
        scrub: Scrub | None = None,
        scrub_spelt: Scrub | None = None,
        prices: Mapping[str, TokenPrice] | None = None,
        amend_s: float = 0.5,
    ) -> None:
        """`scrub_spelt` is a `scrub` that can spell our own tokens."""
        self._store, self.clock, self.amend_s = store, clock, amend_s
        self._scrub, self._scrub_spelt, self._prices = scrub, scrub_spelt, prices or {}
        self.can_spell = scrub_spelt is not None
        self._orders = DesiredStates(store.runs, store.changes)
        self._lookups = StoreLookups()

    def attempt(self, rollout: str, number: int) -> Attempt:
        """The running attempt; NotFound, or StaleLease if it does not run or its run is stopped."""
        found = self._store.views.attempt(rollout, number)
        wanted = self._orders.of(rollout.partition("/")[0])
        if wanted in STOPPED:  # its worker stops, too, so a new call would be for nothing
            raise StaleLease(f"attempt {found.id}", why=f"its run is {wanted}", remedy="drop this work")
        is_late = found.deadline is not None and found.deadline <= self.clock()  # a late lease is its worker's business
        if found.status is not AttemptState.RUNNING or is_late:
            why = f"it is {found.status}" if found.status is not AttemptState.RUNNING else "its time is up"
            raise StaleLease(f"attempt {found.id}", why=why, remedy="drop this work: it is no longer yours")
        return found

    async def running(self, rollout: str, number: int) -> Attempt:
        """As `attempt`, in a thread beside: a store that hangs costs the requests that ask it, and no other."""
        return await self._lookups.ask(f"attempt {number} at {rollout}", partial(self.attempt, rollout, number))

    async def open(
        self, attempt: Attempt, request: ModelRequest, *, trace_id: str | None, notes: dict[str, Any]
    ) -> CallRecord:
        call = ModelCall(model=request.model, messages=request.messages, response={}, sampling=request.sampling)
        try:
            return CallRecord(self, attempt, await self.scrubbed(call), trace_id, notes)
        except UNKEPT:
            raise BadInput("request", why="is nested too deeply", remedy="send it flatter") from None

    async def scrubbed(self, call: ModelCall, *, is_whole: bool = True, is_spelt: bool = False) -> ModelCall:
        """The call as it may be written; scrubbed in a thread, since other calls must not wait for it.

        An unfinished answer is cut before its last word and the numbers before it, which may be the start of a secret.
        With `is_spelt` the tokens are our own, so only the ids of what was found are removed.
        """
        if self._scrub is None:
            return call
        return await asyncio.to_thread(self._scrubbed, call, is_whole=is_whole, is_spelt=is_spelt)

    def _scrubbed(self, call: ModelCall, *, is_whole: bool, is_spelt: bool) -> ModelCall:
        if self._scrub is None:
            return call
        if not is_whole:
            return self._scrub(_without_last_word(call))
        found = self._scrub(call)
        if found is call or not is_spelt or self._scrub_spelt is None:
            return found
        return self._scrub_spelt(call)

    def cost(self, call: ModelCall, requested_model: str) -> float | None:
        price = self._prices.get(call.model) or self._prices.get(requested_model)
        return None if price is None else price.of(call)

    def write_first(self, attempt: Attempt, span: Span) -> WriteFuture[int]:
        return self._store.traces.open(attempt, span, now=self.clock(), is_json=True)

    def write(self, attempt: Attempt, span: Span) -> WriteFuture[None]:
        return self._store.traces.amend(attempt, span, now=self.clock(), is_json=True)


class CallRecord:
    """The record of one call."""

    def __init__(
        self, recorder: SpanRecorder, attempt: Attempt, call: ModelCall, trace_id: str | None, notes: dict[str, Any]
    ) -> None:
        self._recorder, self._attempt, self.notes = recorder, attempt, notes
        self.started_at = recorder.clock()
        self._first_s: float | None = None
        self._arrivals: list[int] = []
        self._requested, self.is_spelt = call, False
        self._span = Span(
            seq=FIRST,
            kind=SpanKind.MODEL,
            name=f"model.{call.model}",
            started_at=self.started_at,
            attributes={**notes, PARTIAL: "it never ended"},
            model=call,
            trace_id=trace_id,
        )
        self._opening = recorder.write_first(attempt, self._span)
        self.is_closed = False
        self._timer: asyncio.TimerHandle | None = None
        self._amending: WriteFuture[None] | None = None
        self._scrubbing: asyncio.Task[None] | None = None

    async def opened(self) -> None:
        """Waits until it is on disk; StaleLease if the attempt does not run."""
        await self._opening

    async def not_refused(self) -> None:
        """StaleLease if the opening was refused; does not wait for one that is being written."""
        if self._opening.failure is not None:
            await self._opening

    def arrived(self, so_far: Callable[[], ModelCall], *, is_answer: bool) -> None:
        """Notes the time of a piece of the answer, and writes what has come a moment later."""
        if is_answer:
            after_s = self._recorder.clock() - self.started_at
            if self._first_s is None:
                self._first_s = after_s
            if len(self._arrivals) < 10_000:
                self._arrivals.append(round(after_s * 1000))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._recorder.amend_s, self._amend, so_far)

    def _amend(self, so_far: Callable[[], ModelCall]) -> None:
        self._timer = None
        if self.is_closed:
            return
        before = self._opening if self._amending is None else self._amending
        is_busy = self._scrubbing is not None and not self._scrubbing.done()
        if is_busy or not before.settled:  # the disk is slow: try again later
            self._timer = asyncio.get_running_loop().call_later(self._recorder.amend_s, self._amend, so_far)
            return
        if before.failure is not None:
            return  # the end will say so, or the next piece
        with suppress(*UNKEPT):  # the end will say so
            self._scrubbing = asyncio.get_running_loop().create_task(self._write_so_far(so_far()))

    async def _write_so_far(self, call: ModelCall) -> None:
        with suppress(*UNKEPT):
            span = await self._as_span(call, ended_at=None, partial="it never ended")
            if not self.is_closed:
                self._amending = self._recorder.write(self._attempt, span)

    async def close(self, call: ModelCall | None, *, partial: str | None = None) -> None:
        """Writes the end and waits for the disk. Without a call, or with `partial`, it is not learnt from."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.opened()
        ended_at = max(self._recorder.clock(), self.started_at)
        try:
            span = await self._as_span(call, ended_at=ended_at, partial=partial)
            writing = self._recorder.write(self._attempt, span)
        except UNKEPT as error:
            why = f"the answer cannot be kept: {type(error).__name__}"
            writing = self._recorder.write(self._attempt, await self._as_span(None, ended_at=ended_at, partial=why))
        await writing

    async def give_up(self, call: ModelCall | None, why: str) -> None:
        """Like `close`, but without errors of its own: another error is reported already."""
        with suppress(HoldfastError):
            await self.close(call, partial=why)

    async def _as_span(self, call: ModelCall | None, *, ended_at: float | None, partial: str | None) -> Span:
        """The span, with the number that the store gave it."""
        notes = dict(self.notes)
        if partial is not None:
            notes[PARTIAL] = partial
        if self._first_s is not None:
            notes["first_token_s"] = round(self._first_s, 6)
        if len(self._arrivals) > 1:
            notes["arrivals_ms"] = self._arrivals
        if call is None:
            call = self._requested
        else:
            if (cost := self._recorder.cost(call, self._requested.model)) is not None:
                notes["cost"] = cost
            call = await self._recorder.scrubbed(call, is_whole=partial is None, is_spelt=self.is_spelt)
        changes: dict[str, Any] = {"name": f"model.{call.model}", "attributes": notes, "model": call}
        return replace(self._span, seq=self._opening.result(), ended_at=ended_at, **changes)


def _without_last_word(call: ModelCall) -> ModelCall:
    """The unfinished call without its last word and without ids, since it is not learnt from."""
    said = {name: _settled(value, name) for name, value in call.response.items() if name != "tool_calls"}
    return replace(call, response=said, completion_ids=None, logprobs=None, forced=(), scrubbed=())


def _settled(value: Any, name: str = "") -> Any:
    if isinstance(value, str):
        return value if name in FIXED else _settled_text(value)
    if isinstance(value, Mapping):
        return {key: _settled(one, key) for key, one in value.items()}
    if isinstance(value, list | tuple):
        return [_settled(one, name) for one in value]
    return value


def _settled_text(text: str) -> str:
    """The text without its last word and the numbers before it: card and account numbers come in groups."""
    kept = text if text[-1:].isspace() else text[: len(text) - len((text.rsplit(maxsplit=1) or [""])[-1])]
    bare = kept.rstrip(NUMBERS)
    for _ in range(MOST_GROUPS):
        group = GROUP.search(bare[-LONGEST_GROUP - 1 :])
        if group is None:
            break
        bare = bare[: len(bare) - len(group.group())].rstrip(NUMBERS)
    return bare if any(map(str.isdigit, kept[len(bare) :])) else kept
