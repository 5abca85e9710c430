"""What a learner is given of one attempt: what it decided, what came of it, and where it belongs."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from holdfast.contracts.episode import Ended
from holdfast.contracts.reward import RewardBreakdown, RewardTerm
from holdfast.contracts.rollout import RolloutState, Split
from holdfast.contracts.trace import PARTIAL, ModelCall, Span, SpanKind


@dataclass(frozen=True, slots=True, kw_only=True)
class Experience:
    """One attempt as read from the store."""

    rollout: str
    run: str
    task: str  # attempts at one task are compared with one another
    split: Split | None
    is_final: bool  # the attempt that decided its rollout
    state: RolloutState
    spans: tuple[Span, ...]
    sheet: RewardBreakdown | None  # None: never scored
    version: str | None = None  # of the policy that acted
    input: Any = None  # what was asked, with what was hidden from the agent
    ended: Ended | None = None  # None: truncated where the last call ran into its limit of tokens, else terminated

    @property
    def calls(self) -> tuple[ModelCall, ...]:
        """The model calls in order: call i is turn i. One that was cut short decided nothing, and is no turn."""
        whole = (s for s in self.spans if s.kind is SpanKind.MODEL and PARTIAL not in s.attributes)
        ordered = sorted(whole, key=lambda s: s.seq)
        return tuple(span.model for span in ordered if span.model is not None)

    @property
    def reward(self) -> float | None:
        """The weighted sum of all that was measured; None: nothing was."""
        return None if self.sheet is None else self.sheet.total

    @property
    def is_truncated(self) -> bool:
        if self.ended is not None:
            return self.ended == "truncated"
        calls = self.calls
        return bool(calls) and calls[-1].finish_reason == "length"


@dataclass(frozen=True, slots=True, kw_only=True)
class ScoredRollout:
    """A rollout that an attempt decided: all that a scorer needs to judge it again."""

    rollout: str  # id
    input: Any
    output: Any  # None: the attempt failed, or answered nothing
    error: str | None  # why it failed
    split: Split | None
    status: RolloutState  # succeeded or failed
    metadata: Mapping[str, Any]
    reward: float | None
    outcome: str | None
    step: str | None
    version: str | None  # of the policy that had to act
    signals: tuple[RewardTerm, ...]  # of the deciding attempt, in their order
    spans: tuple[Span, ...] = ()  # only where they were asked for
