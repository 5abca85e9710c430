"""Every call as a span of its attempt: opened when it begins, amended while it runs, closed before its last byte.

An attempt that does not run, or whose lease has run out, is refused by the store itself. What was open when this
process died stays as far as it had come, marked `partial`, and is never learnt from. Scrubbing comes before writing.
"""

from __future__ import annotations

import asyncio
import re
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from typing import Any

from holdfast.collect.proxy.dialect import ModelRequest
from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, StaleLease
from holdfast.contracts.rollout import Attempt, AttemptState
from holdfast.contracts.run import DesiredState
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind
from holdfast.store.desired_states import Orders
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

FIRST = 1_000_001  # number of an attempt's first span here: far from those that its worker's tracer gives

STOPPED = frozenset(
    {DesiredState.FROZEN, DesiredState.CANCELLED}
)  # what runs is interrupted; a drained or paused run's goes on
UNKEPT = (BadRecord, RecursionError)  # what is raised by what no record can hold

FIXED = frozenset({"role", "type", "id", "call_id", "status"})  # of an answer and its items: said at once
NUMBERS = "0123456789().+-/ \t\r\n"
LONGEST_GROUP, MOST_GROUPS = 4, 9  # of a bank account's letters
GROUP = re.compile(rf"(?<!\S)[A-Z0-9]{{1,{LONGEST_GROUP}}}\Z")

Scrub = Callable[[ModelCall], ModelCall]
Clock = Callable[[], float]


@dataclass(frozen=True, slots=True, kw_only=True)
class TokenPrice:
    """Of a million tokens, in whatever the owner counts in."""

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
        """`scrub_spelt` is `scrub` with a knowledge of how our own tokens are spelt."""
        self._store, self.clock, self.amend_s = store, clock, amend_s
        self._scrub, self._scrub_spelt, self._prices = scrub, scrub_spelt, prices or {}
        self.can_spell = scrub_spelt is not None
        self._orders = Orders(store.runs, store.changes)

    def attempt(self, rollout: str, number: int) -> Attempt:
        """The attempt, which runs, of a run whose attempts may go on; NotFound, or StaleLease."""
        found = self._store.views.attempt(rollout, number)
        wanted = self._orders.of(rollout.partition("/")[0])
        if wanted in STOPPED:  # its worker is told as well, but a call that begins now would be for nothing
            raise StaleLease(f"attempt {found.id}", why=f"its run is {wanted}", remedy="drop this work")
        if found.status is not AttemptState.RUNNING or found.lease_until <= self.clock():
            why = f"it is {found.status}" if found.status is not AttemptState.RUNNING else "its lease has run out"
            raise StaleLease(f"attempt {found.id}", why=why, remedy="drop this work: it is no longer yours")
        return found

    def open(self, attempt: Attempt, asked: ModelRequest, *, trace_id: str | None, notes: dict[str, Any]) -> CallRecord:
        call = ModelCall(model=asked.model, messages=asked.messages, response={}, sampling=asked.sampling)
        try:
            return CallRecord(self, attempt, self.scrubbed(call), trace_id, notes)
        except UNKEPT:
            raise BadInput("request", why="is nested too deeply", remedy="send it flatter") from None

    def scrubbed(self, call: ModelCall, *, is_whole: bool = True, is_spelt: bool = False) -> ModelCall:
        """What may be written. Of an answer that goes on, the last word is held back, and numbers before it.

        They may begin a secret. With `is_spelt` its tokens are our own, and where something is found, only the ids of
        that are lost.
        """
        if self._scrub is None:
            return call
        if not is_whole:
            return self._scrub(_without_last_word(call))
        found = self._scrub(call)
        if found is call or not is_spelt or self._scrub_spelt is None:
            return found
        return self._scrub_spelt(call)

    def cost(self, call: ModelCall, asked: str) -> float | None:
        price = self._prices.get(call.model) or self._prices.get(asked)
        return None if price is None else price.of(call)

    def write_first(self, attempt: Attempt, span: Span) -> WriteFuture[int]:
        return self._store.traces.open(attempt, span, now=self.clock(), is_json=True)

    def write(self, attempt: Attempt, span: Span) -> WriteFuture[None]:
        return self._store.traces.amend(attempt, span, now=self.clock(), is_json=True)


class CallRecord:
    """One call on its way into the store."""

    def __init__(
        self,
        recorder: SpanRecorder,
        attempt: Attempt,
        call: ModelCall,
        trace_id: str | None,
        notes: dict[str, Any],
    ) -> None:
        self._recorder, self._attempt, self.notes = recorder, attempt, notes
        self.started_at = recorder.clock()
        self._first_s: float | None = None
        self._arrivals: list[int] = []
        self._asked, self.is_spelt = call, False
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

    async def opened(self) -> None:
        """Until it is on disk; StaleLease where the attempt does not run."""
        await self._opening

    async def not_refused(self) -> None:
        """StaleLease where the opening has been refused; one that is still on its way is not waited for."""
        if self._opening.failure is not None:
            await self._opening

    def arrived(self, so_far: Callable[[], ModelCall], *, is_answer: bool) -> None:
        """Another piece of the answer: timed, and written down a moment later with what came besides."""
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
        if not before.settled:  # the disk is slow, and perhaps no other piece comes for long
            self._timer = asyncio.get_running_loop().call_later(self._recorder.amend_s, self._amend, so_far)
            return
        if before.failure is not None:
            return  # the end will say so, or the next piece
        with suppress(*UNKEPT):  # the end will say so
            self._amending = self._recorder.write(
                self._attempt, self._as_span(so_far(), ended_at=None, partial="it never ended")
            )

    async def close(self, call: ModelCall | None, *, partial: str | None = None) -> None:
        """The end of it, on disk when this returns. Without a call, or with `partial`, it counts for nothing."""
        if self.is_closed:
            return
        self.is_closed = True
        if self._timer is not None:
            self._timer.cancel()
        await self.opened()
        ended_at = max(self._recorder.clock(), self.started_at)
        try:
            writing = self._recorder.write(self._attempt, self._as_span(call, ended_at=ended_at, partial=partial))
        except UNKEPT as error:
            why = f"the answer cannot be kept: {type(error).__name__}"
            writing = self._recorder.write(self._attempt, self._as_span(None, ended_at=ended_at, partial=why))
        await writing

    async def give_up(self, call: ModelCall | None, why: str) -> None:
        """As `close`, where something else has gone wrong already and is what is told."""
        with suppress(HoldfastError):
            await self.close(call, partial=why)

    def _as_span(self, call: ModelCall | None, *, ended_at: float | None, partial: str | None) -> Span:
        """With the number that the opening has got."""
        notes = dict(self.notes)
        if partial is not None:
            notes[PARTIAL] = partial
        if self._first_s is not None:
            notes["first_token_s"] = round(self._first_s, 6)
        if len(self._arrivals) > 1:
            notes["arrivals_ms"] = self._arrivals
        if call is None:
            call = self._asked
        else:
            if (cost := self._recorder.cost(call, self._asked.model)) is not None:
                notes["cost"] = cost
            call = self._recorder.scrubbed(call, is_whole=partial is None, is_spelt=self.is_spelt)
        changes: dict[str, Any] = {"name": f"model.{call.model}", "attributes": notes, "model": call}
        return replace(self._span, seq=self._opening.result(), ended_at=ended_at, **changes)


def _without_last_word(call: ModelCall) -> ModelCall:
    """As far as it is known to be whole; nothing is learnt from it, so its ids need not be kept."""
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
    """Without the last word, and without the numbers before it: a card's come in groups, a bank account's too."""
    kept = text if text[-1:].isspace() else text[: len(text) - len((text.rsplit(maxsplit=1) or [""])[-1])]
    bare = kept.rstrip(NUMBERS)
    for _ in range(MOST_GROUPS):
        group = GROUP.search(bare[-LONGEST_GROUP - 1 :])
        if group is None:
            break
        bare = bare[: len(bare) - len(group.group())].rstrip(NUMBERS)
    return bare if any(map(str.isdigit, kept[len(bare) :])) else kept
