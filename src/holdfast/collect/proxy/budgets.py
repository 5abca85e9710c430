"""Thinking budgets of attempts whose calls pass here: granted before a call, told to the upstream, settled after it.

Only calls of runs with `thinking_budgets` are touched, and of those only the request: it is written anew, with the
number of tokens in the upstream's own parameter where it has one, and else as a word to the model. Budget forcing takes
two calls and cannot pass as one. How much there is and when it grows is `budget`'s arithmetic, and `purse` holds it.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any

import orjson

from holdfast.collect.budget_tracker import BudgetTracker
from holdfast.collect.proxy.anthropic import Messages
from holdfast.collect.proxy.dialect import Dialect, ModelRequest
from holdfast.collect.proxy.models import Known
from holdfast.collect.proxy.responses import Responses
from holdfast.collect.thinking import Way, hinted, way_for, wish
from holdfast.contracts.budget import BudgetChange, Mode
from holdfast.contracts.errors import BadInput
from holdfast.contracts.rollout import Attempt
from holdfast.contracts.trace import ModelCall
from holdfast.store.store import Store
from holdfast.store.writer import WriteFuture

MOST = 10_000  # attempts whose budgets are at hand; the others' are in the store
LEAST_ENABLED = 1024  # tokens: with fewer, Anthropic's API does not think at all


class Grant:
    """What one call was granted; it has to be settled, however the call ends."""

    def __init__(self, opened: Opened, tokens: int) -> None:
        self._opened, self.tokens = opened, tokens
        self._writes = opened.taken()
        self._is_settled = False

    def settle(self, call: ModelCall | None) -> dict[str, Any]:
        """What its span tells of it; nothing where it is settled already, or nobody knows what was used."""
        if self._is_settled:
            return {}
        self._is_settled = True
        told = self._opened.purse.settle(self.tokens, call)
        self._writes += self._opened.taken()
        return told

    async def written(self) -> None:
        """Until what this call did to the budget is on disk; where it cannot be, it has not happened."""
        try:
            for write in self._writes:
                await write
        except Exception:
            self._opened.reload()
            raise


class Opened:
    """An attempt's purse, and what of it is on its way to the store."""

    def __init__(self, store: Store, attempt: Attempt, clock: Callable[[], float]) -> None:
        self._store, self._attempt, self._clock = store, attempt, clock
        self._writes: list[WriteFuture[None]] = []
        self._under_way: list[WriteFuture[None]] = []  # all of them, whoever waits
        self.purse = BudgetTracker(attempt.id, store.views.rollout(attempt.rollout).input, self._record, clock)

    def taken(self) -> list[WriteFuture[None]]:
        """What was written since somebody asked: it is that one's to wait for."""
        taken, self._writes = self._writes, []
        return taken

    def catch_up(self) -> None:
        """With what others have changed since: a worker, another proxy, this one before it was started again."""
        if any(write.settled and write.failure is not None for write in self._under_way):
            self.reload()
            return
        self._under_way = [write for write in self._under_way if not write.settled]
        stored, own = self._store.budgets.get(self._attempt.token), self.purse.budget
        if stored is not None and (own is None or own.events < stored.budget.events):
            self.purse.budget = stored.budget

    def reload(self) -> None:
        """A write has failed: only what is in the store has happened."""
        self._under_way = [write for write in self._under_way if not write.settled]
        stored = self._store.budgets.get(self._attempt.token)
        self.purse.budget = None if stored is None else stored.budget

    def _record(self, change: BudgetChange) -> None:
        write = self._store.budgets.record(self._attempt, change, now=self._clock())
        self._writes.append(write)
        self._under_way.append(write)


class ProxyBudgets:
    def __init__(self, store: Store, *, clock: Callable[[], float]) -> None:
        self._store, self._clock = store, clock
        self._runs: dict[str, str | None] = {}  # the mode that each wants; None: it has no budgets
        self._purses: OrderedDict[int, Opened] = OrderedDict()  # by an attempt's token

    def wanted(self, attempt: Attempt) -> str | None:
        """The mode that the attempt's run wants; None: its attempts may think as they like."""
        run = attempt.rollout.partition("/")[0]
        if run not in self._runs:
            if len(self._runs) >= MOST:
                self._runs.clear()
            settings = self._store.runs.get(run).settings
            mode = str(settings.get("thinking_mode") or "auto")
            self._runs[run] = mode if settings.get("thinking_budgets") is True else None
        return self._runs[run]

    def grant(
        self, attempt: Attempt, asked: ModelRequest, dialect: Dialect, wanted: str, known: Iterable[Known]
    ) -> tuple[Grant, ModelRequest]:
        """The call's share, and the call as it is asked for with it. `known` is what the upstreams say of the model."""
        given = orjson.loads(asked.body)
        opened = self._purse(attempt)
        tools = asked.sampling.get("tools") or ()
        grant = Grant(opened, tokens := opened.purse.grant(asked.messages, tools, _own_limit(dialect, given)))
        try:
            rewritten, mode = limited(dialect, given, tokens, way_of(wanted, known))
            again = dialect.read_request(orjson.dumps(rewritten))
        except orjson.JSONEncodeError:
            grant.settle(None)
            raise BadInput("request", why="is nested too deeply", remedy="send it flatter") from None
        except BaseException:
            grant.settle(None)
            raise
        return grant, replace(again, sampling={**asked.sampling, "thinking": tokens, "thinking_mode": mode.value})

    def _purse(self, attempt: Attempt) -> Opened:
        kept = self._purses.get(attempt.token)
        if kept is None:
            kept = self._purses[attempt.token] = Opened(self._store, attempt, self._clock)
            while len(self._purses) > MOST:
                self._purses.popitem(last=False)
        self._purses.move_to_end(attempt.token)
        kept.catch_up()
        return kept


def way_of(wanted: str, known: Iterable[Known]) -> Way:
    """A parameter where all upstreams have the same one; a word to the model everywhere else."""
    mode = Mode(wanted) if wanted in (Mode.PARAMETER, Mode.HINT) else None
    ways = {way_for(one.owner, mode) for one in known}
    way = ways.pop() if len(ways) == 1 else Way(Mode.HINT)
    return way if way.mode is Mode.PARAMETER else Way(Mode.HINT)


def limited(dialect: Dialect, given: Mapping[str, Any], limit: int, way: Way) -> tuple[dict[str, Any], Mode]:
    """The request, with at most so many tokens of thought as far as it can say so; and by what it says it."""
    if dialect.path == Messages.path:
        thinking = given.get("thinking")
        if isinstance(thinking, dict) and thinking.get("type") == "enabled":
            enabled = {**thinking, "budget_tokens": limit}
            return {**given, "thinking": enabled if limit >= LEAST_ENABLED else {"type": "disabled"}}, Mode.PARAMETER
        return {**given, "system": _with(given.get("system"), limit)}, Mode.HINT
    if dialect.path == Responses.path:
        return {**given, "instructions": _with(given.get("instructions"), limit)}, Mode.HINT
    if way.mode is Mode.PARAMETER and not isinstance(given.get(way.field), dict | list | str):
        return {**given, way.field: limit}, Mode.PARAMETER
    return {**given, "messages": hinted(given["messages"], limit)}, Mode.HINT


def _own_limit(dialect: Dialect, given: Mapping[str, Any]) -> int | None:
    """What the agent itself asks for."""
    thinking = given.get("thinking")
    if dialect.path == Messages.path:
        thinking = thinking.get("budget_tokens") if isinstance(thinking, dict) else None
    return thinking if isinstance(thinking, int) and not isinstance(thinking, bool) else None


def _with(system: Any, limit: int) -> Any:
    """What is said before everything else, with a word on thinking."""
    if isinstance(system, list):
        return [*system, {"type": "text", "text": f"\n{wish(limit)}"}]
    return f"{system}\n{wish(limit)}" if isinstance(system, str) and system else wish(limit)
