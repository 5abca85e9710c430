"""Serving a policy while its versions change: who answers which request, what came of it, and nobody is interrupted.

A request keeps the version it began with. A new table of versions is made ready aside and then put in place by one
assignment; versions that nobody needs any more are closed once their last request is answered, the one before the
live stays warm. How a version is loaded is handed in; sockets are `collect.endpoint`'s, decisions the keeper's.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from holdfast.contracts.errors import BadInput, HoldfastError, NotFound
from holdfast.contracts.release import Release, Stage
from holdfast.contracts.trace import ModelCall
from holdfast.contracts.trial import Served, Trial
from holdfast.promote.release import Routing, choose, route
from holdfast.store.changes import RELEASES
from holdfast.store.store import Store

FLUSH_S = 0.05
Messages = Sequence[Mapping[str, Any]]
Heard = Callable[[str, str, Messages, ModelCall], None]  # request, release, what was asked, what was answered


class Speaker(Protocol):
    """What answers, at once or piece by piece, until it is closed."""

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall: ...

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class Seated:
    """A version that is loaded, and how many requests it is answering."""

    release: str
    speaker: Speaker
    busy: int = 0
    is_leaving: bool = False

    def leave(self) -> None:
        self.is_leaving = True
        if not self.busy:
            self.speaker.close()


@dataclass(frozen=True, slots=True)
class Table:
    """Who serves now. It is a value: a request holds the one it began with."""

    routing: Routing
    trial: str | None  # what outcomes are counted under; None: nothing is compared
    seats: Mapping[str, Seated]


def trial_of(release: Release, live: Release) -> Trial | None:
    """The comparison with the live one that a version is in at its stage; each step, and each new try, has its own."""
    if release.stage not in (Stage.CANARY, Stage.SHADOW):
        return None
    part = release.share / 100 if release.stage is Stage.CANARY else 0.5  # a shadow answers what the live one does
    return Trial(
        name=f"{release.stage}:{release.id}:{release.share}:{release.changed_at:.3f}",
        kind=str(release.stage),
        arms={live.id: 1.0 - part, release.id: part},
        salt=release.id,
        created_at=release.changed_at,
    )


@dataclass(slots=True)
class Service:
    """`choose_version(key)` is what the endpoint is handed; `run` keeps the table up to date."""

    store: Store
    policy: str
    load: Callable[[Release], Speaker]  # may take its time: it is called in a thread
    request_id: Callable[[], str]  # of the request being answered
    clock: Callable[[], float]
    heard: Heard | None = None
    _table: Table | None = None
    _previous: str | None = None  # the live one before this: kept warm
    _written: list[Served] = field(default_factory=list)
    _shadows: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def routing(self) -> Routing:
        if self._table is None:
            raise NotFound(f"policy {self.policy}", why="it has no live version", remedy="see 'holdfast release list'")
        return self._table.routing

    def choose_version(self, key: str) -> Answering:
        table = self._table
        if table is None:
            raise NotFound(f"policy {self.policy}", why="it has no live version", remedy="see 'holdfast release list'")
        return Answering(self, table, table.seats[choose(table.routing, key)], key)

    async def refresh(self) -> None:
        """Have the versions that the store says; load what is new first, then change over."""
        releases = {one.id: one for one in await asyncio.to_thread(self.store.releases.of_policy, self.policy)}
        routing, old = route(releases.values()), self._table
        if routing is None or (old is not None and old.routing == routing):
            return
        if old is not None and old.routing.live != routing.live:
            self._previous = old.routing.live
        kept = dict(old.seats) if old is not None else {}
        for name in (routing.live, routing.canary, routing.shadow):
            if name is not None and name not in kept:
                kept[name] = Seated(name, await asyncio.to_thread(self.load, releases[name]))
        newcomer = routing.canary or routing.shadow
        trial = None if newcomer is None else trial_of(releases[newcomer], releases[routing.live])
        if trial is not None:
            await self.store.trials.begin(trial, who=f"service of {self.policy}", now=self.clock())
        wanted = {routing.live, routing.canary, routing.shadow, self._previous}
        self._table = Table(
            routing,
            None if trial is None else trial.name,
            {name: seat for name, seat in kept.items() if name in wanted},
        )
        for name in kept.keys() - wanted:
            kept[name].leave()

    async def run(self) -> None:
        """Follow the store's changes, and write down what was served, until cancelled."""
        flushing = asyncio.create_task(self._keep_flushing())
        try:
            while True:
                seen = self.store.changes.seen(RELEASES)
                await self.refresh()
                await self.store.changes.after(RELEASES, seen)
        finally:
            flushing.cancel()
            with suppress(asyncio.CancelledError):
                await flushing

    async def flush(self) -> None:
        """What was served is on disk when this returns."""
        if self._written:
            written, self._written = self._written, []
            await self.store.trials.record(written)

    async def feedback(self, identity: str, said: Mapping[str, float]) -> bool:
        """What came of an answer; False when nothing is known of it."""
        await self.flush()
        return await self.store.trials.feedback(identity, **said)

    async def close(self) -> None:
        for task in list(self._shadows):
            task.cancel()
        await self.flush()
        if self._table is not None:
            for seat in self._table.seats.values():
                seat.leave()

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            await self.flush()

    def note(self, served: Served) -> None:
        self._written.append(served)

    def copy_to_shadow(self, table: Table, identity: str, messages: Messages, sampling: Mapping[str, Any]) -> None:
        shadow = table.routing.shadow
        if shadow is None or table.trial is None or not table.trial.startswith("shadow:"):
            return

        async def ask() -> None:
            with suppress(HoldfastError):
                await Answering(self, table, table.seats[shadow], identity).whole(
                    f"{identity}~shadow", messages, sampling
                )

        task = asyncio.create_task(ask())
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)


@dataclass(slots=True)
class Answering:
    """One request, answered by the version it was given. Where a canary fails, the live one answers in its place."""

    service: Service
    table: Table
    seat: Seated
    key: str

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        identity = self.service.request_id()
        self.service.copy_to_shadow(self.table, identity, messages, sampling)
        try:
            return await self.whole(identity, messages, sampling)
        except BadInput:
            raise
        except Exception:
            if self.seat.release == self.table.routing.live:
                raise
            return await self._instead().whole(identity, messages, sampling)

    async def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        """Once the first piece is out, the version that began has to end it."""
        identity = self.service.request_id()
        self.service.copy_to_shadow(self.table, identity, messages, sampling)
        begun, place = False, self
        while True:
            try:
                async with aclosing(place._pieces(identity, messages, sampling)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                return
            except BadInput:
                raise
            except Exception:
                if begun or place.seat.release == self.table.routing.live:
                    raise
                place = self._instead()

    async def whole(self, identity: str, messages: Messages, sampling: Mapping[str, Any]) -> ModelCall:
        async with aclosing(self._measured(identity, messages, self._once(messages, sampling))) as answer:
            calls: list[ModelCall] = [call async for call in answer]
        return calls[-1]

    async def _once(self, messages: Messages, sampling: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        yield await self.seat.speaker(messages, **sampling)

    def _pieces(self, identity: str, messages: Messages, sampling: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        return self._measured(identity, messages, self.seat.speaker.stream(messages, **sampling))

    async def _measured(
        self, identity: str, messages: Messages, answer: AsyncGenerator[Any, None]
    ) -> AsyncGenerator[Any, None]:
        """The answer as it comes, and at its end a note of what it took. A bad request is nobody's failure."""
        service, seat, began = self.service, self.seat, self.service.clock()
        seat.busy += 1
        try:
            async with aclosing(answer) as pieces:
                async for piece in pieces:
                    if isinstance(piece, ModelCall):
                        self._note(identity, began, piece)
                        if service.heard is not None:
                            service.heard(identity, seat.release, messages, piece)
                    yield piece
        except BadInput:
            raise
        except Exception:
            self._note(identity, began, None)
            raise
        finally:
            seat.busy -= 1
            if seat.is_leaving and not seat.busy:
                seat.speaker.close()

    def _note(self, identity: str, began: float, call: ModelCall | None) -> None:
        if self.table.trial is None:
            return
        now = self.service.clock()
        self.service.note(
            Served(
                id=identity
                if call is not None
                else f"{identity}~failed",  # the one that answered in its place has the id
                trial=self.table.trial,
                arm=self.seat.release,
                unit=self.key,
                at=now,
                error=call is None,
                latency_s=max(0.0, now - began),
                tokens=None if call is None or call.completion_ids is None else len(call.completion_ids),
                success=0.0 if call is None else None,  # an answer that never came was no help
            )
        )

    def _instead(self) -> Answering:
        """The live one; what it answers for another is not counted for it."""
        uncounted = replace(self.table, trial=None)
        return Answering(self.service, uncounted, self.table.seats[self.table.routing.live], self.key)
