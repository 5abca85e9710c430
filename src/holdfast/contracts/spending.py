"""What calls of a model may take at most, in tokens or money: a call that could pass the limit is not made.

Before a call, the most that it can take is reserved: each byte that it reads may be a token, and it writes no more than
its `max_tokens`. Afterwards what it took is counted. A call that failed may have been answered all the same, so what
was reserved for it stays spent. What nobody asks through us is not seen here.
"""

from __future__ import annotations

import asyncio
import json
import threading
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping, Sequence
from contextlib import aclosing, asynccontextmanager
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.engine import Complete
from holdfast.contracts.errors import Fault
from holdfast.contracts.trace import ModelCall

LENGTHS = ("max_tokens", "max_completion_tokens")  # the names an endpoint may know for the answer's length
UNSAID, SHARE = 4096, 8  # tokens of an answer whose length nobody bounds, or that part of a small limit
TEMPLATE, WITH_TOOLS = 64, 512  # tokens that a chat template may add of its own
OTHER_PART = 50_000  # tokens of a part of a message that is no text, such as an image behind an address
PART = 20  # of the limit: so much at a time is noted as spent before it is
PROBE = (64, 1)  # tokens of the call that asks whether an endpoint knows its model
WAIT_S = 0.02

Taken = tuple[int, int]  # tokens: read, written


def price(taken: Taken, prices: tuple[float, float]) -> float:
    return (taken[0] * prices[0] + taken[1] * prices[1]) / 1e6


def bound(messages: Any, sampling: Mapping[str, Any]) -> Taken:
    """The most tokens that a call can read and write; its sampling says how long the answer may be."""
    asked = {name: value for name, value in sampling.items() if isinstance(value, Mapping | list | tuple)}  # tools …
    text = json.dumps([messages, asked], ensure_ascii=False, default=str)
    others = sum(
        part.get("type") not in ("text", None)
        for message in messages
        for part in (message.get("content") if isinstance(message.get("content"), list) else ())
        if isinstance(part, Mapping)
    )
    read = len(text.encode(errors="replace")) + (WITH_TOOLS if sampling.get("tools") else TEMPLATE)
    length, choices = (sampling.get(LENGTHS[0]) or sampling.get(LENGTHS[1]), sampling.get("n"))
    written = length if isinstance(length, int) else UNSAID
    return read + OTHER_PART * others, written * (choices if isinstance(choices, int) else 1)


@dataclass(slots=True)
class Reservation:
    """What a call under way may take, and what it took once that is known."""

    most: Taken = (0, 0)
    taken: Taken | None = None


class OutOfBudget(Fault):
    """A call was not made, because it could have passed the limit."""


class SpendLimit:
    """The limit of one run, for calls from any thread and event loop.

    `note` is told how much may be spent by now, before it is spent: whoever takes up a run that was killed begins
    there."""

    def __init__(
        self,
        limits: Mapping[str, float],  # "tokens", "money"
        prices: tuple[float, float] | None = None,
        *,
        spent: Mapping[str, float] | None = None,
        note: Callable[[Mapping[str, float]], None] = lambda spent: None,
    ) -> None:
        self.limits, self._prices, self._note = dict(limits), prices or (0.0, 0.0), note
        known = self._in_units(PROBE) if spent is None else spent
        self.spent = {name: float(known.get(name, 0.0)) for name in self.limits}
        self.noted = dict(self.spent)
        self.refusal: OutOfBudget | None = None  # the first one
        self._reserved = dict.fromkeys(self.limits, 0.0)
        self._under_way = 0
        self._lock, self._noting = threading.Lock(), threading.Lock()

    def bounded(self, sampling: Mapping[str, Any], default: int | None = None) -> tuple[dict[str, Any], bool]:
        """The sampling with a length of the answer; whether it is ours, so that an answer that reaches it was cut."""
        if any(sampling.get(name) is not None for name in LENGTHS):
            return dict(sampling), False
        if default is not None:  # what the model does anyway
            return {**sampling, LENGTHS[0]: default}, False
        each = self._in_units((0, 1))
        rooms = [int(limit / SHARE / each[name]) for name, limit in self.limits.items() if each[name]]
        return {**sampling, LENGTHS[0]: max(1, min([UNSAID, *rooms]))}, True

    @asynccontextmanager
    async def reserve(self, messages: Any, sampling: Mapping[str, Any]) -> AsyncIterator[Reservation]:
        """Around one request. It waits for others to end where there may be room then, and is refused where not."""
        held = Reservation(bound(messages, sampling), taken=(0, 0))
        need = self._in_units(held.most)
        while True:  # no event: callers come from several loops and threads
            if self._take(need):
                break
            await asyncio.sleep(WAIT_S)
        try:
            if self._is_due():
                await asyncio.to_thread(self._noted)
            held.taken = None
            yield held
        finally:
            taken = self._in_units(held.most if held.taken is None else held.taken)
            with self._lock:
                self._under_way -= 1
                for name in self.limits:
                    self._reserved[name] -= need[name]
                    self.spent[name] += taken[name]

    def refuse(self, why: str, remedy: str) -> OutOfBudget:
        message = ", ".join(f"{name} = {limit:,.6g}" for name, limit in self.limits.items())
        refusal = OutOfBudget(f"budget: {message}", why=why, remedy=remedy)
        self.refusal = self.refusal or refusal
        return refusal

    def check_whole(self, call: ModelCall, length: Any, *, is_ours: bool) -> ModelCall:
        """The call; refused where our own bound cut the answer: nothing is measured that would not be so in service."""
        if is_ours and call.finish_reason == "length":
            why = f"an answer was longer than the {length} tokens that were reserved for it"
            raise self.refuse(why, "give more, or max_tokens in the call")
        return call

    def _in_units(self, taken: Taken) -> dict[str, float]:
        known = {"tokens": float(sum(taken)), "money": price(taken, self._prices)}
        return {name: known[name] for name in self.limits}

    def _take(self, need: Mapping[str, float]) -> bool:
        with self._lock:
            left = {name: limit - self.spent[name] for name, limit in self.limits.items()}
            if all(need[name] <= left[name] - self._reserved[name] for name in need):
                self._under_way += 1
                for name in need:
                    self._reserved[name] += need[name]
                return True
            if self._under_way and all(need[name] <= left[name] for name in need):
                return False
        name = next(name for name in need if need[name] > left[name] or not self._under_way)
        why = f"the next call can take {need[name]:,.6g}, and {max(0.0, left[name]):,.6g} are left"
        raise self.refuse(why, "give more, or a smaller max_tokens in the call")

    def _is_due(self) -> bool:
        with self._lock:
            return any(self.spent[name] + self._reserved[name] > self.noted[name] for name in self.limits)

    def _noted(self) -> None:
        """A part more than is under way is noted, so that not every call writes."""
        with self._noting:
            if self._is_due():
                more = {
                    name: self.spent[name] + self._reserved[name] + limit / PART for name, limit in self.limits.items()
                }
                noted = {name: min(self.limits[name], more[name]) for name in more}
                self._note(noted)  # first: what is not kept may not be spent
                self.noted = noted

    def close(self) -> None:
        """What was spent, to the token: nothing is under way any more."""
        if self.spent != self.noted:
            self.noted = dict(self.spent)
            self._note(self.noted)


def limited_by(limit: SpendLimit, complete: Complete) -> Complete:
    """The same model, held to the limit; one that sends several requests for a call reserves for each of them."""
    within: Callable[[SpendLimit], Complete] | None = getattr(complete, "within", None)
    return LimitedModel(limit, complete) if within is None else within(limit)


class LimitedModel:
    """A model whose call is one request."""

    def __init__(self, limit: SpendLimit, complete: Complete) -> None:
        self._limit, self._complete = limit, complete

    def __getattr__(self, name: str) -> Any:
        return getattr(self._complete, name)

    async def __call__(self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any) -> ModelCall:
        asked, is_ours = self._limit.bounded(sampling, getattr(self._complete, "max_tokens", None))
        async with self._limit.reserve(messages, asked) as held:
            call = await self._complete(messages, **asked)
            held.taken = taken_by(call)
        return self._limit.check_whole(call, asked.get(LENGTHS[0]), is_ours=is_ours)

    @property
    def stream(self) -> Any:
        """As the model's own, where it has one."""
        return self._streamed if hasattr(self._complete, "stream") else self.__getattr__("stream")

    async def _streamed(
        self, messages: Sequence[Mapping[str, Any]], /, **sampling: Any
    ) -> AsyncGenerator[Mapping[str, Any] | ModelCall, None]:
        asked, is_ours = self._limit.bounded(sampling, getattr(self._complete, "max_tokens", None))
        stream = self._complete.stream(messages, **asked)  # type: ignore[attr-defined]
        async with self._limit.reserve(messages, asked) as held, aclosing(stream) as news:
            async for new in news:
                if isinstance(new, ModelCall):
                    held.taken = taken_by(new)
                    self._limit.check_whole(new, asked.get(LENGTHS[0]), is_ours=is_ours)
                yield new


def taken_by(call: ModelCall) -> Taken | None:
    """What a call took; None where its answer does not say."""
    read = call.prompt_tokens or len(call.prompt_ids or ())
    wrote = call.completion_tokens or len(call.completion_ids or ())
    return (read, wrote) if read else None
