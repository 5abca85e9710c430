"""The thinking budget of one attempt while it runs: granted before a call of the model, settled after it.

What one call has been granted, calls at the same time do not have. How much there is, and when it grows, is `budget`'s
arithmetic; changes are handed on as they happen, and kept by whoever holds the attempt.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from holdfast.collect import budget as rules
from holdfast.collect.budget import LIMITS, BudgetAction, TierLimits
from holdfast.contracts.budget import BudgetChange, Mode, ThinkingBudget, Tier, Trigger
from holdfast.contracts.errors import BadInput
from holdfast.contracts.trace import ModelCall


class BudgetTracker:
    """One per attempt. Safe to use from any thread or task of the agent. The first call decides how hard it is."""

    def __init__(
        self,
        attempt: str,
        task: Any,
        record: Callable[[BudgetChange], None],
        clock: Callable[[], float],
        limits: Mapping[Tier, TierLimits] = LIMITS,
    ) -> None:
        self._attempt, self._task, self._record, self._clock = attempt, task, record, clock
        self._limits = limits
        self._lock = threading.Lock()
        self._granted = 0  # to calls under way
        self.budget: ThinkingBudget | None = None  # None: nothing was asked yet

    def grant(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any], wanted: int | None = None) -> int:
        """How many tokens this call may think: all that is free, or what it wants of it. To be settled."""
        wanted = None if wanted is None else rules.checked_limit(wanted)
        with self._lock:
            budget = self.budget or self._allocate(messages, tools)
            free = max(0, budget.left - self._granted)
            granted = free if wanted is None else min(wanted, free)
            self._granted += granted
            return granted

    def settle(self, granted: int, call: ModelCall | None) -> dict[str, Any]:
        """What the call used of it, as its span tells; a call that failed has used nothing that anybody knows of."""
        with self._lock:
            self._granted -= granted
            if call is None or self.budget is None:
                return {}
            mode, used = mode_of(call), rules.thinking_tokens(call)
            action, change = rules.monitor(
                self.budget,
                used,
                now=self._clock(),
                mode=mode,
                confidence=rules.confidence_of(call),
                limits=self._limits,
            )
            self._keep(change)
        budget = change.budget
        told = {"granted": granted, "used": used, "mode": None if mode is None else mode.value, "action": action.value}
        return {**told, "tier": budget.tier.value, "left": budget.left, "overspent": max(0, used - granted)}

    def escalate(self, trigger: Trigger | str, confidence: float | None = None) -> BudgetAction:
        """More tokens, because a check failed or only a part is right; what is refused is recorded with the reason."""
        try:
            known = Trigger(trigger)
        except ValueError:
            words = ", ".join(Trigger)
            raise BadInput(f"trigger {trigger!r:.60}", why="is unknown", remedy=f"use {words}") from None
        with self._lock:
            budget = self.budget or self._allocate((), ())
            action, change = rules.escalate(
                budget, known, now=self._clock(), confidence=confidence, limits=self._limits
            )
            self._keep(change)
            return action

    def _allocate(self, messages: Sequence[Mapping[str, Any]], tools: Sequence[Any]) -> ThinkingBudget:
        found = rules.assess(rules.traits_of(self._task, messages, tools))
        return self._keep(rules.allocate(self._attempt, found, now=self._clock(), limits=self._limits))

    def _keep(self, change: BudgetChange) -> ThinkingBudget:
        self._record(change)  # first: what is not on its way to the store has not happened
        self.budget = change.budget
        return change.budget


def mode_of(call: ModelCall) -> Mode | None:
    """By what the call was held to its limit; None: nobody said."""
    mode = call.sampling.get("thinking_mode")
    return Mode(mode) if isinstance(mode, str) and mode in set(Mode) else None
