"""What upstreams say of their models, and the thinking budgets of attempts whose calls pass here.

Only calls of runs with `thinking_budgets` are touched: the number goes into the upstream's parameter, or into a
sentence to the model. Budget forcing takes two calls and cannot pass as one.
"""

from __future__ import annotations

import asyncio
import time
from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

import orjson

from holdfast.collect.allocation import FROM_OUTCOMES, Allocation, fit
from holdfast.collect.chat_format import BYTES, spell_byte
from holdfast.collect.client import listed_models
from holdfast.collect.lookups import StoreLookups
from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.dialect import Dialect, ModelRequest
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.proxy.upstream import BrokenOff, Unreachable, Upstream, read
from holdfast.collect.thinking import BudgetTracker, ThinkingControl, capped, hinted, same_for_all, way_for, wish
from holdfast.contracts.budget import BudgetChange, Mode, ThinkingBudget
from holdfast.contracts.errors import BadInput
from holdfast.contracts.flag import WITHOUT, features_without
from holdfast.contracts.rollout import Attempt, Rollout
from holdfast.contracts.trace import ModelCall
from holdfast.policies import tokens
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

PATH = "/v1/models"
TIMEOUT_S = 2.0
FRESH_S, UNKNOWN_S = 60.0, 30.0  # how long a list, or its absence, is remembered
LARGEST = 4 * 2**20  # bytes of a list
MOST_MODELS = 10_000  # remembered models: callers choose the names


@dataclass(frozen=True, slots=True, kw_only=True)
class Listing:
    """A list of models as the upstream sent it."""

    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def entries(self) -> list[Mapping[str, Any]]:
        """The entries; none if it is no list of models."""
        with suppress(orjson.JSONDecodeError):
            return listed_models(orjson.loads(self.body)) if self.status == 200 else []
        return []


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelInfo:
    """What an upstream says of a model."""

    owner: str | None = None  # who serves it: "holdfast", "vllm", …
    is_spelt: bool = False  # its tokens are our own: bytes and named special tokens


class UpstreamModels:
    def __init__(self, upstreams: Sequence[Upstream], *, clock: Callable[[], float] = time.monotonic) -> None:
        self._upstreams, self._clock = upstreams, clock
        self._known: dict[tuple[str, str], tuple[float, asyncio.Task[ModelInfo]]] = {}  # until when, and what

    async def listed(self, dialect: Dialect, headers: Mapping[str, str]) -> Listing:
        """A single upstream's own answer; of several the union, or the first answer if all are empty."""
        if len(self._upstreams) == 1:
            return await self._ask(self._upstreams[0], dialect, headers)
        listings = (self._ask(upstream, dialect, headers) for upstream in self._upstreams)
        found = await asyncio.gather(*listings, return_exceptions=True)
        answers = [listing for listing in found if isinstance(listing, Listing)]
        every = {str(entry.get("id")): entry for answer in reversed(answers) for entry in answer.entries}
        if every:
            body = orjson.dumps({"object": "list", "data": list(every.values())})
            return Listing(status=200, headers={"content-type": "application/json"}, body=body)
        for one in (*answers, *found):
            if isinstance(one, BaseException):
                raise one
            return one
        raise AssertionError("there is at least one upstream")

    def about(
        self, upstream: Upstream, model: str, dialect: Dialect, headers: Mapping[str, str]
    ) -> asyncio.Future[ModelInfo]:
        """What is known of a model; asked now if needed, while the call itself runs."""
        key, now = (upstream.name, model), self._clock()
        until, task = self._known.get(key, (0.0, None))
        if task is None or now >= until:
            task = asyncio.create_task(self._find(upstream, model, dialect, headers))
            if len(self._known) >= MOST_MODELS:
                self._known.clear()
            self._known[key] = now + FRESH_S, task
        return asyncio.shield(task)  # one waiter may be cancelled

    def forget(self, upstream: Upstream) -> None:
        """Its weights may have changed."""
        self._known = {key: kept for key, kept in self._known.items() if key[0] != upstream.name}

    async def close(self) -> None:
        for _, task in self._known.values():
            task.cancel()
        await asyncio.gather(*(task for _, task in self._known.values()), return_exceptions=True)
        self._known = {}

    async def _find(self, upstream: Upstream, model: str, dialect: Dialect, headers: Mapping[str, str]) -> ModelInfo:
        entries: list[Mapping[str, Any]] = []
        with suppress(Unreachable):
            entries = (await self._ask(upstream, dialect, headers)).entries
        if not entries:
            self._known[upstream.name, model] = self._clock() + UNKNOWN_S, self._known[upstream.name, model][1]
            return ModelInfo()
        named = [
            entry for entry in entries if entry.get("id") == model
        ] or entries  # a name that is not listed: all of them
        owner = named[0].get("owned_by")
        is_spelt = all(one.get("tokenizer") == BYTES for one in named)
        return ModelInfo(owner=owner if isinstance(owner, str) else None, is_spelt=is_spelt)

    async def _ask(self, upstream: Upstream, dialect: Dialect, headers: Mapping[str, str]) -> Listing:
        try:
            async with asyncio.timeout(TIMEOUT_S):
                answer = await upstream.get(PATH, upstream.signed(dialect, headers))
                try:
                    return Listing(status=answer.status, headers=answer.headers, body=await read(answer, LARGEST))
                finally:
                    answer.close()
        except TimeoutError:
            raise Unreachable(upstream.name, why=f"no list of models within {TIMEOUT_S:g} s") from None
        except (OSError, BrokenOff) as error:
            raise Unreachable(upstream.name, why=f"{type(error).__name__}: {error}"[:300]) from error


def own_token_bytes(token: int) -> bytes:
    """The bytes of one of our own tokens; LookupError for any other."""
    if token >= tokens.VOCABULARY:
        raise LookupError(token)
    return spell_byte(token)


MOST = 10_000  # attempts whose budgets are in memory; others are in the store
LEAST_ENABLED = 1024  # tokens: with fewer, Anthropic's API does not think at all


class Grant:
    """The tokens granted to one call. It must be settled, however the call ends."""

    def __init__(self, opened: AttemptBudget, tokens: int) -> None:
        self._opened, self.tokens = opened, tokens
        self._writes = opened.taken()
        self._is_settled = False

    def settle(self, call: ModelCall | None) -> dict[str, Any]:
        """The notes for its span; empty if it was settled before or the use is unknown."""
        if self._is_settled:
            return {}
        self._is_settled = True
        payload = self._opened.tracker.settle(self.tokens, call)
        self._writes += self._opened.taken()
        return payload

    async def written(self) -> None:
        """Waits until the budget's changes are on disk; if that fails, the budget is reloaded."""
        try:
            for write in self._writes:
                await write
        except Exception:
            await self._opened.reload()
            raise


class AttemptBudget:
    """An attempt's budget tracker and its pending writes."""

    def __init__(
        self,
        store: Store,
        lookups: StoreLookups,
        attempt: Attempt,
        rollout: Rollout,
        clock: Callable[[], float],
        allocation: Allocation | None = None,
    ) -> None:
        self._store, self._lookups, self._attempt, self._clock = store, lookups, attempt, clock
        self._writes: list[WriteFuture[None]] = []
        self._under_way: list[WriteFuture[None]] = []  # all pending writes, whoever waits for them
        self.features = features_without(rollout.metadata.get(WITHOUT, ()))
        chosen = allocation if self.features.adaptive else same_for_all
        self.tracker = BudgetTracker(attempt.id, rollout.input, self._record, clock, allocation=chosen)

    def taken(self) -> list[WriteFuture[None]]:
        """The writes since the last call, for the caller to wait for."""
        taken, self._writes = self._writes, []
        return taken

    async def catch_up(self) -> None:
        """Takes over changes by a worker, another proxy, or this one before a restart."""
        if any(write.settled and write.failure is not None for write in self._under_way):
            await self.reload()
            return
        self._under_way = [write for write in self._under_way if not write.settled]
        stored, own = await self._stored(), self.tracker.budget
        if stored is not None and (own is None or own.events < stored.events):
            self.tracker.budget = stored

    async def reload(self) -> None:
        """Reads the budget again after a failed write."""
        self._under_way = [write for write in self._under_way if not write.settled]
        self.tracker.budget = await self._stored()

    async def _stored(self) -> ThinkingBudget | None:
        look = partial(self._store.budgets.get, self._attempt.token)
        use = await self._lookups.ask(f"thinking budget of attempt {self._attempt.id}", look)
        return None if use is None else use.budget

    def _record(self, change: BudgetChange) -> None:
        write = self._store.budgets.record(self._attempt, change, now=self._clock())
        self._writes.append(write)
        self._under_way.append(write)


class ProxyBudgets:
    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store, self._clock, self._lookups = store, clock, StoreLookups()
        self._runs: dict[str, str | None] = {}  # each run's mode; None: it has no budgets
        self._allocations: dict[str, Allocation] = {}  # of runs that have learnt ones
        self._trackers: OrderedDict[int, AttemptBudget] = OrderedDict()  # by an attempt's token

    async def thinking_mode(self, attempt: Attempt) -> str | None:
        """The mode of the attempt's run; None if it has no thinking budgets, or a flag keeps its unit from one."""
        run = attempt.rollout.partition("/")[0]
        if run in self._runs:
            found = self._runs[run]
        else:
            found, allocation = await self._lookups.ask(run, partial(self._settings, run))
            if len(self._runs) >= MOST:
                self._runs.clear()
                self._allocations.clear()
            self._runs[run] = found
            if allocation is not None:
                self._allocations[run] = allocation
        return found if found is not None and (await self._kept(attempt)).features.budgets else None

    def _settings(self, run: str) -> tuple[str | None, Allocation | None]:
        """The run's mode, None if it has no budgets; and what its budgets have learnt from outcomes, if they do."""
        settings = self._store.runs.get(run).settings
        mode = str(settings.get("thinking_mode") or "auto") if settings.get("thinking_budgets") is True else None
        if settings.get("thinking_allocation") != FROM_OUTCOMES:
            return mode, None
        return mode, fit((use.budget, use.has_failed) for use in self._store.budgets.ended())

    async def grant(
        self, attempt: Attempt, request: ModelRequest, dialect: Dialect, wanted: str, known: Iterable[ModelInfo]
    ) -> tuple[Grant, ModelRequest]:
        """The grant, and the request rewritten with it. `known` is what the upstreams say of the model."""
        given = orjson.loads(request.body)
        opened = await self._kept(attempt)
        await opened.catch_up()
        tools = request.sampling.get("tools") or ()
        grant = Grant(opened, tokens := opened.tracker.grant(request.messages, tools, _own_limit(dialect, given)))
        try:
            rewritten, mode = limited(dialect, given, tokens, way_of(wanted, known))
            again = dialect.read_request(orjson.dumps(rewritten))
        except orjson.JSONEncodeError:
            grant.settle(None)
            raise BadInput("request", why="is nested too deeply", remedy="send it flatter") from None
        except BaseException:
            grant.settle(None)
            raise
        return grant, replace(again, sampling={**request.sampling, "thinking": tokens, "thinking_mode": mode.value})

    async def _kept(self, attempt: Attempt) -> AttemptBudget:
        if attempt.token not in self._trackers:
            rollout = await self._lookups.ask(attempt.rollout, partial(self._store.views.rollout, attempt.rollout))
            if attempt.token not in self._trackers:  # another call of the attempt may have been quicker
                allocation = self._allocations.get(attempt.rollout.partition("/")[0])
                made = AttemptBudget(self._store, self._lookups, attempt, rollout, self._clock, allocation)
                self._trackers[attempt.token] = made
            while len(self._trackers) > MOST:
                self._trackers.popitem(last=False)
        self._trackers.move_to_end(attempt.token)
        return self._trackers[attempt.token]


def way_of(wanted: str, known: Iterable[ModelInfo]) -> ThinkingControl:
    """A parameter if all upstreams have the same one; else a sentence to the model."""
    mode = Mode(wanted) if wanted in (Mode.PARAMETER, Mode.HINT) else None
    ways = {way_for(info.owner, mode) for info in known}
    way = ways.pop() if len(ways) == 1 else ThinkingControl(Mode.HINT)
    return way if way.mode is Mode.PARAMETER else ThinkingControl(Mode.HINT)


def limited(
    dialect: Dialect, given: Mapping[str, Any], limit: int, way: ThinkingControl
) -> tuple[dict[str, Any], Mode]:
    """The request with the limit of thinking tokens, and the mode by which it says so."""
    if dialect.path == Messages.path:
        thinking = given.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") == "enabled":
            enabled = {**thinking, "budget_tokens": limit}
            return {**given, "thinking": enabled if limit >= LEAST_ENABLED else {"type": "disabled"}}, Mode.PARAMETER
        return capped({**given, "system": _with(given.get("system"), limit)}, limit), Mode.HINT
    if dialect.path == Responses.path:
        payload = {**given, "instructions": _with(given.get("instructions"), limit)}
        return capped(payload, limit, "max_output_tokens"), Mode.HINT
    if way.mode is Mode.PARAMETER and not isinstance(given.get(way.field), dict | list | str):
        return {**given, way.field: limit}, Mode.PARAMETER
    return capped({**given, "messages": hinted(given["messages"], limit)}, limit, "max_completion_tokens"), Mode.HINT


def _own_limit(dialect: Dialect, given: Mapping[str, Any]) -> int | None:
    """The limit that the agent itself asks for."""
    thinking = given.get("thinking")
    if dialect.path == Messages.path:
        thinking = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return thinking if isinstance(thinking, int) and not isinstance(thinking, bool) else None


def _with(system: Any, limit: int) -> Any:
    """The system prompt with the sentence on thinking."""
    if isinstance(system, list):
        return [*system, {"type": "text", "text": f"\n{wish(limit)}"}]
    return f"{system}\n{wish(limit)}" if isinstance(system, str) and system else wish(limit)
