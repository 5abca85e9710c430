"""Serves a policy while its versions change: routes requests, records outcomes, and interrupts nobody; and captures
served conversations with feedback as rollouts.

A request keeps the version it began with. A new table of versions is loaded aside and put in place by one assignment.
Unused versions are closed after their last request; the previous live one stays loaded. How a version is loaded is an
argument. An answer without feedback is forgotten after a while: without a reward nothing can be learnt from it.

Every call that a comparison counts has an outcome, also one that never ends: a caller that leaves is a failure after
the time it waited, and a call that is still under way counts as taking that long already.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
from collections import OrderedDict
from collections.abc import AsyncGenerator, Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from holdfast.collect.chat_format import conversation_spans, opening
from holdfast.contracts.errors import BadInput, BadRecord, Conflict, Fault, NotFound, StoreError
from holdfast.contracts.release import Experiment, Release, ServedRequest, Stage
from holdfast.contracts.reward import RewardTerm
from holdfast.contracts.rollout import AttemptState, Claim, Split, Task
from holdfast.contracts.trace import ModelCall
from holdfast.operate.lifecycle import SERVED
from holdfast.promote.release import HOLDBACK, WATCHED, Routing, choose, is_counted, route
from holdfast.store.notifications import RELEASES
from holdfast.store.store import Store

FLUSH_S, RETRY_S = 0.05, 1.0  # between two writes, and after one that failed
MOST_WAITING = 100_000  # outcomes kept while the store is full or gone; the oldest are dropped first
MOST_SHADOWS = 64  # concurrent copies: a slow shadow gets fewer
WAITING_S = (
    10.0  # after which a call that has not ended is written down as taking at least so long; again after twice it
)
FAILED, WAITING = "~failed", "~waiting"  # after the id of a request
Messages = Sequence[Mapping[str, Any]]
Heard = Callable[[str, str, str, ModelCall], None]  # request, release, who asked, answer


class ChatModel(Protocol):
    """Answers whole or in pieces, until it is closed."""

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall: ...

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]: ...

    def close(self) -> None: ...


@dataclass(slots=True, eq=False)
class LoadedModel:
    """A loaded version, and its number of running requests."""

    release: str
    model: ChatModel
    busy: int = 0
    is_leaving: bool = False
    is_closed: bool = False

    def leave(self) -> None:
        """Closes now, or with the last request."""
        self.is_leaving = True
        self._close_when_idle()

    def end(self) -> None:
        self.busy -= 1
        self._close_when_idle()

    def _close_when_idle(self) -> None:
        if self.is_leaving and not self.busy and not self.is_closed:
            self.is_closed = True
            self.model.close()


class FailedModel:
    """In place of a version that could not be loaded: every request fails and is counted, so that the guard takes the
    version back."""

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
    """The versions in service. A request keeps the table it began with."""

    routing: Routing
    experiment: str | None  # the experiment of the outcomes; None: nothing is compared
    loaded: Mapping[str, LoadedModel]

    @property
    def is_shadowed(self) -> bool:
        return self.experiment is not None and self.experiment.startswith("shadow:")


@dataclass(slots=True, eq=False)
class _Flight:
    """A call that may be under way."""

    identity: str
    began: float
    due_s: float = WAITING_S  # after so long it is written down, again
    notes: int = 0  # how often it was


def trial_of(release: Release, live: Release) -> Experiment | None:
    """The comparison of a canary or shadow with the live version, or of a live one with its holdback; each step, and
    each new try, has its own. Its arms are parts of the callers that are counted."""
    if release.stage not in (Stage.CANARY, Stage.SHADOW, Stage.LIVE) or release.id == live.id:
        return None
    part = 0.5  # a shadow answers what the live one does
    if release.stage is Stage.CANARY:
        part = min(release.share, 100 - HOLDBACK) / 100
    elif release.stage is Stage.LIVE:
        part = 1.0 - HOLDBACK / WATCHED
    return Experiment(
        name=f"{release.stage}:{release.id}:{release.share}:{live.id}:{release.changed_at:.3f}",
        kind=str(release.stage),
        arms={live.id: 1.0 - part, release.id: part},
        salt=release.id,
        created_at=release.changed_at,
    )


def settled(served: Sequence[ServedRequest]) -> list[ServedRequest]:
    """Each request as it is known by now: what came of it, or how long it has been waited for."""
    latest = {(request.id.partition(WAITING)[0].removesuffix(FAILED), request.arm): request for request in served}
    return list(latest.values())


@dataclass(slots=True)
class Service:
    """The endpoint calls `choose_version(key)`; `run` keeps the table up to date."""

    store: Store
    policy: str
    load: Callable[[Release], ChatModel]  # may be slow: called in a thread
    request_id: Callable[[], str]  # of the request being answered
    clock: Callable[[], float]
    heard: Heard | None = None
    as_stored: Callable[[str], str] = str  # a caller's name as it may be written
    keeps_holdback: bool = True  # a part of the callers stays with the version before, which stays loaded
    is_ending: Callable[[], bool] = lambda: False  # then a call that is cut off says nothing about its version
    _table: ServingTable | None = None
    _previous: str | None = None  # the previous live version: stays loaded
    _written: list[ServedRequest] = field(default_factory=list)
    _flights: dict[_Flight, Answering] = field(default_factory=dict)
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
        """Whether all versions in service have byte tokens; others have no common spelling."""
        models = [version.model for version in self.table.loaded.values() if not isinstance(version.model, FailedModel)]
        return all(getattr(model, "speaks_bytes", False) for model in models)

    def choose_version(self, key: str) -> Answering:
        table = self.table
        return Answering(self, table, table.loaded[choose(table.routing, key)], key)

    async def refresh(self) -> None:
        """Loads the versions that the store names, then switches to them; on failure the old ones serve on."""
        releases = {
            release.id: release for release in await asyncio.to_thread(self.store.releases.of_policy, self.policy)
        }
        routing, old = route(releases.values(), keeps_holdback=self.keeps_holdback), self._table
        if routing is None:
            return
        newcomer, live = routing.canary or routing.shadow, releases[routing.live]
        trial = None if newcomer is None else trial_of(releases[newcomer], live)
        if routing.holdback is not None:
            trial = trial_of(live, releases[routing.holdback])
        name = None if trial is None else trial.name
        if old is not None and (old.routing, old.experiment) == (routing, name):
            return
        if trial is not None:
            with suppress(Conflict):  # it has ended already; late requests are counted all the same
                await self.store.trials.begin(trial, who=f"service of {self.policy}", now=self.clock())
        loaded = dict(old.loaded) if old is not None else {}
        for wanted in (routing.live, routing.canary, routing.shadow, routing.holdback):
            if wanted is not None and (wanted not in loaded or isinstance(loaded[wanted].model, FailedModel)):
                loaded[wanted] = await self._loaded(releases[wanted])
        if old is not None and old.routing.live != routing.live:
            self._previous = old.routing.live
        stay = {routing.live, routing.canary, routing.shadow, routing.holdback, self._previous}
        self._table = ServingTable(routing, name, {name: version for name, version in loaded.items() if name in stay})
        for left in loaded.keys() - stay:
            loaded[left].leave()

    async def _loaded(self, release: Release) -> LoadedModel:
        try:
            return LoadedModel(release.id, await asyncio.to_thread(self.load, release))
        except Exception as error:
            if release.stage is Stage.LIVE:
                raise
            return LoadedModel(release.id, FailedModel(release.id, error))

    async def run(self) -> None:
        """Follows the store's changes and records outcomes, until cancelled."""
        flushing = asyncio.create_task(self._keep_flushing())
        try:
            while True:
                seen = self.store.changes.seen(RELEASES)
                await self.refresh()
                await self.store.changes.moved(RELEASES, seen)
        finally:
            flushing.cancel()
            with suppress(asyncio.CancelledError):
                await flushing

    async def flush(self) -> None:
        """Writes the outcomes to disk."""
        async with self._writing:
            self._note_flights()
            written, self._written = self._written, []
            if not written:
                return
            try:
                await self.store.trials.record(written)
            except BaseException:  # also on cancellation; a repeated write is ignored
                self._written = [*written, *self._written][-MOST_WAITING:]
                raise

    def _note_flights(self) -> None:
        """Calls that take long are in the comparison before they end, as slow as they are by now."""
        now = self.clock()
        for flight, asked in list(self._flights.items()):
            if now - flight.began >= flight.due_s:
                flight.due_s, flight.notes = 2.0 * (now - flight.began), flight.notes + 1
                asked.note(flight, None, is_over=False)

    async def feedback(self, identity: str, values: Mapping[str, float]) -> bool:
        """Records feedback on an answer; False for an unknown one."""
        await self.flush()
        return await self.store.trials.feedback(identity, **values)

    async def close(self) -> None:
        shadows = list(self._shadows)
        for task in shadows:
            task.cancel()
        await asyncio.gather(*shadows, return_exceptions=True)
        table, self._table = self._table, None
        for version in () if table is None else table.loaded.values():
            version.leave()
        await self.flush()

    async def _keep_flushing(self) -> None:
        while True:
            await asyncio.sleep(FLUSH_S)
            try:
                await self.flush()
            except StoreError:  # keep answering, and keep the outcomes until the store is back
                await asyncio.sleep(RETRY_S)

    def copy_to_shadow(
        self, table: ServingTable, identity: str, messages: Messages, sampling: Mapping[str, Any]
    ) -> None:
        shadow = table.routing.shadow
        if shadow is None or not table.is_shadowed:
            return
        if len(self._shadows) >= MOST_SHADOWS:
            return

        async def ask() -> None:
            asked = Answering(self, table, table.loaded[shadow], identity)
            with suppress(Exception):  # counted as the shadow's failure; nobody waits for the answer
                _ = [piece async for piece in asked.measured(f"{identity}~shadow", messages, sampling)]

        task = asyncio.create_task(ask())
        self._shadows.add(task)
        task.add_done_callback(self._shadows.discard)


@dataclass(slots=True)
class Answering:
    """One request and its version. Where a canary fails, the live version answers in its place."""

    service: Service
    table: ServingTable
    version: LoadedModel
    key: str

    async def __call__(self, messages: Messages, /, **sampling: Any) -> ModelCall:
        async with aclosing(self._answer(messages, sampling)) as answer:
            calls: list[ModelCall] = [call async for call in answer]
        return calls[-1]

    def stream(self, messages: Messages, /, **sampling: Any) -> AsyncGenerator[Any, None]:
        return self._answer(messages, sampling, is_streamed=True)

    async def _answer(
        self, messages: Messages, sampling: Mapping[str, Any], *, is_streamed: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Once the first piece is out, the same version has to finish."""
        identity, place = self.service.request_id(), self._current()
        self.service.copy_to_shadow(place.table, identity, messages, sampling)
        failed: list[tuple[Answering, Exception]] = []
        begun = False
        while True:
            try:
                measured = place.measured(identity, messages, sampling, is_streamed=is_streamed)
                async with aclosing(measured) as pieces:
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

    async def measured(
        self, identity: str, messages: Messages, sampling: Mapping[str, Any], *, is_streamed: bool = False
    ) -> AsyncGenerator[Any, None]:
        """Passes the answer on and records its outcome. A bad request is no failure of the version."""
        service, version, is_whole, is_begun = self.service, self.version, False, False

        async def once() -> AsyncGenerator[Any, None]:
            yield await version.model(messages, **sampling)

        version.busy += 1
        flight = self._begin(identity)
        try:
            if self.table.experiment is not None and self.key.strip():  # off the event loop; a scrub remembers it
                await asyncio.to_thread(service.as_stored, self.key)
            async with aclosing(version.model.stream(messages, **sampling) if is_streamed else once()) as pieces:
                async for piece in pieces:
                    is_begun = True
                    if isinstance(piece, ModelCall):
                        is_whole = True
                        self.note(flight, piece)
                        if service.heard is not None and version.release != self.table.routing.shadow:
                            service.heard(identity, version.release, self.key, piece)
                    yield piece
            if not is_whole:
                raise Fault("model", why="its stream broke off", remedy="ask again")
        except (asyncio.CancelledError, GeneratorExit):  # the caller left, or its patience ended
            if not is_whole and not service.is_ending():
                self.note(flight, None, is_error=not is_begun)  # a person may also have read enough of a stream
            raise
        except Exception as error:
            if not _is_refusal(error):
                self.note(flight, None)
            raise
        finally:
            service._flights.pop(flight, None)
            version.end()

    def _begin(self, identity: str) -> _Flight:
        flight = _Flight(identity, self.service.clock())
        if self._is_counted:
            self.service._flights[flight] = self
        return flight

    @property
    def _is_counted(self) -> bool:
        """A shadow answers what the live version does. A canary is compared with the live version on callers that
        could have met either, which those without a key could not."""
        table = self.table
        return table.experiment is not None and (table.is_shadowed or is_counted(table.routing, self.key))

    def note(self, flight: _Flight, call: ModelCall | None, *, is_over: bool = True, is_error: bool = True) -> None:
        """Writes down what came of the call, or that it is still under way."""
        service, now = self.service, self.service.clock()
        if not self._is_counted or self.table.experiment is None:
            return
        is_failed = is_over and call is None
        # The plain id belongs to the version that answers in its place.
        mark = "" if call is not None else FAILED if is_over else f"{WAITING}{flight.notes}"
        outcome = ServedRequest(
            id=f"{flight.identity}{mark}",
            trial=self.table.experiment,
            arm=self.version.release,
            unit=service.as_stored(self.key) if self.key.strip() else flight.identity,
            at=now,
            error=is_failed and is_error,
            latency_s=max(0.0, now - flight.began),
            tokens=None if call is None or call.completion_ids is None else len(call.completion_ids),
            success=0.0 if is_failed else None,  # no answer is no success
        )
        service._written.append(outcome)

    def _own(self, identity: str, error: Exception) -> None:
        """Counts a refusal as this version's failure: another version could answer."""
        if _is_refusal(error):
            self.note(_Flight(identity, self.service.clock()), None)

    def _current(self) -> Answering:
        """Returns itself, or a new choice if its version was closed before the request began."""
        return self.service.choose_version(self.key) if self.version.is_closed else self

    def _instead(self) -> Answering | None:
        """The live version, without counting the answer for it; None where it is the one that failed."""
        table = self.service.table
        live = table.loaded[table.routing.live]
        if live is self.version:
            return None
        return Answering(self.service, replace(table, experiment=None), live, self.key)


def _is_refusal(error: Exception) -> bool:
    """Whether the request was bad; an answer that breaks its contract is the version's failure."""
    return isinstance(error, BadInput) and not isinstance(error, BadRecord)


KIND = SERVED  # of the run
WORKER, LEASE_S = "service", 60.0
MOST_LEFT = 16  # rollouts claimed at once: this one, and any left behind
SOURCE = "feedback"


@dataclass(frozen=True, slots=True)
class AnsweredRequest:
    """A request that was answered, while it waits for feedback."""

    release: str
    user: str  # "": nobody said
    call: ModelCall
    at: float
    end: bytes  # a hash of the conversation, this answer included


class Capture:
    """Stores served conversations that get feedback, scrubbed: one finished rollout each, with a turn for every answer
    that this process gave in it."""

    def __init__(
        self,
        store: Store,
        run: str,
        *,
        clock: Callable[[], float],
        scrub: Callable[[ModelCall], ModelCall] | None = None,
        as_stored: Callable[[str], str] = str,  # a caller's name as it may be written
        most: int = 10_000,
    ) -> None:
        self._store, self._run, self._clock, self._most = store, run, clock, most
        self._scrub, self._as_stored = scrub, as_stored
        self._waiting: OrderedDict[str, AnsweredRequest] = OrderedDict()  # by request
        self._ends: dict[bytes, str] = {}  # the newest request that led to a conversation
        self._kept: OrderedDict[str, dict[str, float]] = OrderedDict()  # feedback of stored ones
        self._alone = asyncio.Lock()  # the claimed rollout must be the enqueued one

    def heard(self, identity: str, release: str, user: str, call: ModelCall) -> None:
        end = _chain([*call.messages, {"role": "assistant", **call.response}])[-1]
        self._waiting[identity] = AnsweredRequest(release, user, call, self._clock(), end)
        self._ends[end] = identity
        while len(self._waiting) > self._most:
            self._forget(next(iter(self._waiting)))

    async def save_feedback(self, identity: str, values: Mapping[str, float]) -> bool:
        """Stores the conversation with its feedback; False where it is unknown, or neither reward nor success is given.

        Repeating the same feedback is harmless; another value is a Conflict."""
        async with self._alone:
            if identity in self._kept:
                return _is_same(identity, self._kept[identity], values)
            if identity not in self._waiting or not values.keys() & {"reward", "success"}:
                return False
            last, turns = self._waiting[identity], self._turns(identity)
            calls = await asyncio.to_thread(self._scrubbed, [turn.call for turn in turns.values()])
            claim = await self._claim(identity, last, calls[-1])
            at = {place: (call, turn.at) for (place, turn), call in zip(turns.items(), calls, strict=True)}
            await self._finish(claim, calls[-1], at, _signals(values))
            for turn in turns.values():  # an answer is learnt from once
                self._forget(self._ends.get(turn.end, ""))
            self._forget(identity)
            self._kept[identity] = dict(values)
            while len(self._kept) > self._most:
                self._kept.popitem(last=False)
            return True

    def _turns(self, identity: str) -> dict[int, AnsweredRequest]:
        """The answers of a conversation by their places in it, up to the one named."""
        last = self._waiting[identity]
        ends = enumerate(_chain(last.call.messages))
        earlier = {place: self._waiting[self._ends[end]] for place, end in ends if end in self._ends}
        return {**earlier, len(last.call.messages): last}

    def _forget(self, identity: str) -> None:
        request = self._waiting.pop(identity, None)
        if request is not None and self._ends.get(request.end) == identity:
            del self._ends[request.end]

    def _scrubbed(self, calls: Sequence[ModelCall]) -> list[ModelCall]:
        return [call if self._scrub is None else self._scrub(call) for call in calls]

    async def _claim(self, identity: str, last: AnsweredRequest, call: ModelCall) -> Claim:
        now, asked = self._clock(), opening(call.messages)
        tools, user = call.sampling.get("tools"), last.user.strip()
        user = user and await asyncio.to_thread(self._as_stored, last.user)
        about = {"group": _chain(asked)[-1].hex()[:16], "release": last.release, "scrubbed": self._scrub is not None}
        task = Task(
            name=identity,
            input={"messages": asked, **({"tools": tools} if tools else {})},
            split=Split.TRAIN,
            max_attempts=1,
            max_faults=0,  # the caller cannot be asked again
            metadata={**about, **({"user": user} if user else {})},
        )
        await self._store.queue.enqueue(self._run, [task], now=now)
        for claim in await self._store.queue.claim(self._run, WORKER, now=now, lease_s=LEASE_S, most=MOST_LEFT):
            if claim.rollout.name == identity:
                return claim
            # Left behind by feedback that failed: its sender knows.
            await self._store.queue.finish(claim.attempt, AttemptState.FAULT, now=now, error="was not told to the end")
        raise Fault(f"answer {identity}", why=f"{self._run} takes nothing at the moment", remedy="tell it again later")

    async def _finish(
        self,
        claim: Claim,
        last: ModelCall,
        calls: Mapping[int, tuple[ModelCall, float]],
        signals: tuple[RewardTerm, ...],
    ) -> None:
        from holdfast.pipeline.importing import finish_conversation  # slow to import: commands to runs need no service

        now = self._clock()
        spans = conversation_spans([*last.messages, {"role": "assistant", **last.response}], calls, now)
        await finish_conversation(self._store, claim, spans, last.response.get("content"), signals, now=now)


def _chain(messages: Messages) -> list[bytes]:
    """A hash of the conversation up to each message. Callers send answers back without what they do not use, so only
    text and tool calls count."""
    marks, running = [], hashlib.sha256()
    for message in messages:
        functions = [call.get("function") for call in message.get("tool_calls") or () if isinstance(call, Mapping)]
        said = [message.get("role"), message.get("content") or "", message.get("tool_call_id"), functions]
        running.update(json.dumps(said, sort_keys=True, default=str).encode())
        marks.append(running.digest())
    return marks


def _is_same(identity: str, before: Mapping[str, float], said: Mapping[str, float]) -> bool:
    for name in said.keys() & before.keys():
        if before[name] != said[name]:
            raise Conflict(f"answer {identity}", why=f"{name} was told before: {before[name]:g}, not {said[name]:g}")
    return said.keys() <= before.keys()


def _signals(said: Mapping[str, float]) -> tuple[RewardTerm, ...]:
    """The reward counts, or success where there is no reward; a cost has weight 0."""
    paid = "reward" if "reward" in said else "success"
    return tuple(
        RewardTerm(name=name, value=value, weight=1.0 if name == paid else 0.0, source=SOURCE)
        for name, value in said.items()
    )
