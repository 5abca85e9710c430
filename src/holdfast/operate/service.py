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

from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, NotFound, StoreError
from holdfast.contracts.release import Experiment, Release, ServedRequest, Stage
from holdfast.contracts.trace import ModelCall
from holdfast.promote.release import Routing, choose, route
from holdfast.store.notifications import RELEASES
from holdfast.store.store import Store

FLUSH_S, RETRY_S = 0.05, 1.0  # between two writes, and after one that failed
MOST_WAITING = 100_000  # outcomes that a store which is full or gone is waited for with; the oldest go first
MOST_SHADOWS = 64  # copies under way at once: a slow shadow gets fewer of them
Messages = Sequence[Mapping[str, Any]]
Heard = Callable[[str, str, Messages, ModelCall], None]  # request, release, what was asked, what was answered


class ChatModel(Protocol):
    """What answers, at once or piece by piece, until it is closed."""

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall: ...

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A version that is loaded, and how many requests it is answering."""

    release: str
    speaker: ChatModel
    busy: int = 0
    is_leaving: bool = False
    is_closed: bool = False

    def leave(self) -> None:
        """Closed now, or with its last request."""
        self.is_leaving = True
        self._close_when_idle()

    def begin(self) -> None:
        self.busy += 1

    def end(self) -> None:
        self.busy -= 1
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self.is_leaving and not self.busy and not self.is_closed:
            self.is_closed = True
            self.speaker.close()


class FailedModel:
    """In place of a version that could not be loaded: it fails what it is asked, which is counted, and so is taken
    back as any other that fails."""

    def __init__(self, release: str, error: Exception) -> None:
        self._fault = Fault(f"release {release}", why=f"could not be loaded: {error}", remedy="take it back")

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        raise self._fault

    async def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        raise self._fault
        yield

    def close(self) -> None:
        pass


@dataclass(frozen=True, slots=True)
class ServingTable:
    """Who serves now. It is a value: a request holds the one it began with."""

    routing: Routing
    trial: str | None  # what outcomes are counted under; None: nothing is compared
    seats: Mapping[str, LoadedModel]


def trial_of(release: Release, live: Release) -> Experiment | None:
    """The comparison with the live one that a version is in at its stage; each step, and each new try, has its own."""
    if release.stage not in (Stage.CANARY, Stage.SHADOW):
        return None
    part = release.share / 100 if release.stage is Stage.CANARY else 0.5  # a shadow answers what the live one does
    return Experiment(
        name=f"{release.stage}:{release.id}:{release.share}:{live.id}:{release.changed_at:.3f}",
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
    load: Callable[[Release], ChatModel]  # may take its time: it is called in a thread
    request_id: Callable[[], str]  # of the request being answered
    clock: Callable[[], float]
    heard: Heard | None = None
    _table: ServingTable | None = None
    _previous: str | None = None  # the live one before this: kept warm
    _written: list[ServedRequest] = field(default_factory=list)
    _writing: asyncio.Lock = field(default_factory=asyncio.Lock)
    _shadows: set[asyncio.Task[None]] = field(default_factory=set)

    @property
    def table(self) -> ServingTable:
        if self._table is None:
            raise NotFound(f"policy {self.policy}", why="it has no live version", remedy="see 'holdfast release list'")
        return self._table

    @property
    def routing(self) -> Routing:
        return self.table.routing

    @property
    def speaks_bytes(self) -> bool:
        """Whether the tokens of all versions in service are bytes and marks; others have no common spelling."""
        speakers = [seat.speaker for seat in self.table.seats.values() if not isinstance(seat.speaker, FailedModel)]
        return all(getattr(speaker, "speaks_bytes", False) for speaker in speakers)

    def choose_version(self, key: str) -> Answering:
        table = self.table
        return Answering(self, table, table.seats[choose(table.routing, key)], key)

    async def refresh(self) -> None:
        """Have the versions that the store says; load what is new first, then change over.

        What was served before is served on where this fails."""
        releases = {one.id: one for one in await asyncio.to_thread(self.store.releases.of_policy, self.policy)}
        routing, old = route(releases.values()), self._table
        if routing is None:
            return
        newcomer = routing.canary or routing.shadow
        trial = None if newcomer is None else trial_of(releases[newcomer], releases[routing.live])
        name = None if trial is None else trial.name
        if old is not None and (old.routing, old.trial) == (routing, name):
            return
        if trial is not None:
            with suppress(Conflict):  # it was ended already: what is still served under it is counted all the same
                await self.store.trials.begin(trial, who=f"service of {self.policy}", now=self.clock())
        seats = dict(old.seats) if old is not None else {}
        for wanted in (routing.live, routing.canary, routing.shadow):
            if wanted is not None and (wanted not in seats or isinstance(seats[wanted].speaker, FailedModel)):
                seats[wanted] = await self._seat(releases[wanted])
        if old is not None and old.routing.live != routing.live:
            self._previous = old.routing.live
        stay = {routing.live, routing.canary, routing.shadow, self._previous}
        self._table = ServingTable(routing, name, {name: seat for name, seat in seats.items() if name in stay})
        for left in seats.keys() - stay:
            seats[left].leave()

    async def _seat(self, release: Release) -> LoadedModel:
        try:
            return LoadedModel(release.id, await asyncio.to_thread(self.load, release))
        except Exception as error:
            if release.stage is Stage.LIVE:
                raise
            return LoadedModel(release.id, FailedModel(release.id, error))

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
        async with self._writing:
            written, self._written = self._written, []
            if not written:
                return
            try:
                await self.store.trials.record(written)
            except BaseException:  # cancelled too: what was written all the same is not written twice
                self._written = [*written, *self._written][-MOST_WAITING:]
                raise

    async def feedback(self, identity: str, said: Mapping[str, float]) -> bool:
        """What came of an answer; False when nothing is known of it."""
        await self.flush()
        return await self.store.trials.feedback(identity, **said)

    async def close(self) -> None:
        shadows = list(self._shadows)
        for task in shadows:
            task.cancel()
        await asyncio.gather(*shadows, return_exceptions=True)
        table, self._table = self._table, None
        for seat in () if table is None else table.seats.values():
            seat.leave()
        await self.flush()

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except StoreError:  # requests are answered on; what was noted is kept until the store is back
                await asyncio.sleep(RETRY_S)

    def note(self, served: ServedRequest) -> None:
        self._written.append(served)

    def copy_to_shadow(
        self, table: ServingTable, identity: str, messages: Messages, sampling: Mapping[str, Any]
    ) -> None:
        shadow = table.routing.shadow
        if shadow is None or table.trial is None or not table.trial.startswith("shadow:"):
            return
        if len(self._shadows) >= MOST_SHADOWS:
            return

        async def ask() -> None:
            with suppress(Exception):  # it is noted as the shadow's failure, and nobody waits for the answer
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
    table: ServingTable
    seat: LoadedModel
    key: str

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        identity, place = self.service.request_id(), self._seated()
        self.service.copy_to_shadow(place.table, identity, messages, sampling)
        try:
            return await place.whole(identity, messages, sampling)
        except Exception as error:
            instead = place._instead()
            if instead is None:
                raise
            answer = await instead.whole(identity, messages, sampling)
            place._own(identity, error)
            return answer

    async def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        """Once the first piece is out, the version that began has to end it."""
        identity, place = self.service.request_id(), self._seated()
        self.service.copy_to_shadow(place.table, identity, messages, sampling)
        failed: list[tuple[Answering, Exception]] = []
        begun = False
        while True:
            try:
                async with aclosing(place._pieces(identity, messages, sampling)) as pieces:
                    async for piece in pieces:
                        begun = True
                        yield piece
                break
            except Exception as error:
                instead = None if begun else place._instead()
                if instead is None:
                    raise
                failed.append((place, error))
                place = instead
        for before, why in failed:
            before._own(identity, why)

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
        service, seat, began, is_whole = self.service, self.seat, self.service.clock(), False
        seat.begin()
        try:
            async with aclosing(answer) as pieces:
                async for piece in pieces:
                    if isinstance(piece, ModelCall):
                        is_whole = True
                        self._note(identity, began, piece)
                        if service.heard is not None and seat.release != self.table.routing.shadow:
                            service.heard(identity, seat.release, messages, piece)
                    yield piece
            if not is_whole:
                raise Fault("model", why="its stream broke off", remedy="ask again")
        except Exception as error:
            if not _is_refusal(error):
                self._note(identity, began, None)
            raise
        finally:
            seat.end()

    def _note(self, identity: str, began: float, call: ModelCall | None) -> None:
        if self.table.trial is None:
            return
        now = self.service.clock()
        self.service.note(
            ServedRequest(
                # The id is of who answers in its place.
                id=identity if call is not None else f"{identity}~failed",
                trial=self.table.trial,
                arm=self.seat.release,
                unit=self.key if self.key.strip() else identity,
                at=now,
                error=call is None,
                latency_s=max(0.0, now - began),
                tokens=None if call is None or call.completion_ids is None else len(call.completion_ids),
                success=0.0 if call is None else None,  # an answer that never came was no help
            )
        )

    def _own(self, identity: str, error: Exception) -> None:
        """A request that another could answer was not a bad one: it is this version that refused it."""
        if _is_refusal(error):
            self._note(identity, self.service.clock(), None)

    def _seated(self) -> Answering:
        """Itself, or chosen again where its version has left before the request began."""
        return self.service.choose_version(self.key) if self.seat.is_closed else self

    def _instead(self) -> Answering | None:
        """The live one; what it answers for another is not counted for it. None when it is the one that failed."""
        table = self.service.table
        live = table.seats[table.routing.live]
        if live is self.seat:
            return None
        return Answering(self.service, replace(table, trial=None), live, self.key)


def _is_refusal(error: Exception) -> bool:
    """Whether it is the request that was found bad; an answer that breaks its own contract is the version's fault."""
    return isinstance(error, BadInput) and not isinstance(error, BadRecord)
