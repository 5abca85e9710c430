"""Thinking budgets: how many tokens an attempt may think, what it did with them, and what was changed on the way.

How a task is judged and when a budget grows is `collect.thinking`'s business; these are the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import ClassVar

from holdfast.contracts.errors import BadRecord, check_fields


class Tier(StrEnum):
    TRIVIAL = "trivial"
    STANDARD = "standard"
    COMPLEX = "complex"


class Mode(StrEnum):
    """By what thinking is held to its limit."""

    HARD = "hard"  # while decoding: the end of the thought is put in place of the next token
    PARAMETER = "parameter"  # the endpoint is told, and does it
    FORCING = "forcing"  # the answer is stopped, the thought closed, and the answer continued
    HINT = "hint"  # the model is asked to; it may not listen


class Trigger(StrEnum):
    """What may make a budget larger."""

    LOW_CONFIDENCE = "low-confidence"
    PARTIAL_SUCCESS = "partial-success"
    VERIFIER_REJECTION = "verifier-rejection"


class BudgetEventKind(StrEnum):
    ALLOCATE = "allocate"
    SPEND = "spend"
    WARN = "warn"  # most of the allowance is gone
    EXHAUST = "exhaust"  # all of it is
    ESCALATE = "escalate"
    REFUSE = "refuse"  # an escalation that was asked for and not given


@dataclass(frozen=True, slots=True, kw_only=True)
class Traits:
    """What is known of a task before anybody has thought about it."""

    tool_count: int = 0
    context_size: int = 0  # tokens
    step_count: int = 1
    multi_turn: bool = False
    external_calls: bool = False

    def __post_init__(self) -> None:
        check_fields("traits", self, natural=("tool_count", "context_size", "step_count"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """How hard a task is taken to be, and why."""

    tier: Tier
    confidence: float
    reasons: tuple[str, ...]  # a factor each: "tool_count 4 ≥ 3"
    traits: Traits

    def __post_init__(self) -> None:
        if not 0.0 <= self.confidence <= 1.0:
            raise BadRecord(f"assessment: confidence = {self.confidence}", why="must be from 0 to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """What one attempt may think, and has thought. Nothing that was spent is ever taken back."""

    SCHEMA: ClassVar[int] = 1

    attempt: str
    assessment: Assessment
    ceiling: int = field(metadata={"minimum": 0})  # tokens it began with
    cap: int = field(metadata={"minimum": 0})  # no escalation goes beyond
    allowed: int = field(metadata={"minimum": 0})  # tokens, escalations included
    spent: int = field(default=0, metadata={"minimum": 0})  # all of them, those beyond the allowance too
    overspent: int = field(default=0, metadata={"minimum": 0})  # of these: beyond what was allowed at the time
    calls: int = field(default=0, metadata={"minimum": 0})  # of the model
    escalations: int = field(default=0, metadata={"minimum": 0})
    escalated_at: Mapping[str, float] = field(default_factory=dict)  # by trigger, unix seconds: its last escalation
    mode: Mode | None = None  # in force at the last call that said so
    events: int = field(default=1, metadata={"minimum": 1})  # how many there are
    created_at: float
    changed_at: float

    def __post_init__(self) -> None:
        where = f"budget of {self.attempt}"
        check_fields(where, self, natural=("ceiling", "cap", "allowed", "spent", "overspent", "calls", "escalations"))
        if self.events < 1:
            raise BadRecord(f"{where}: events = {self.events}", why="must be at least 1")
        if not self.ceiling <= self.allowed <= self.cap:
            why = f"{self.allowed} tokens are not between its ceiling {self.ceiling} and its cap {self.cap}"
            raise BadRecord(where, why=why)
        if self.overspent > self.spent:
            raise BadRecord(where, why=f"{self.overspent} of {self.spent} tokens cannot be too many")
        if not isfinite(self.created_at) or not isfinite(self.changed_at):
            raise BadRecord(where, why="its times must be finite")

    @property
    def tier(self) -> Tier:
        return self.assessment.tier

    @property
    def consumed(self) -> int:
        """Tokens within the allowance: never more than the cap."""
        return self.spent - self.overspent

    @property
    def left(self) -> int:
        return max(0, self.allowed - self.spent)

    @property
    def is_exhausted(self) -> bool:
        return self.spent >= self.allowed

    def waste(self, *, has_failed: bool) -> int:
        """Tokens for nothing: all of a failed attempt, and else those beyond the allowance."""
        return self.spent if has_failed else self.overspent


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetEvent:
    """One thing that happened to a budget, and how it stood afterwards. They are only ever added."""

    SCHEMA: ClassVar[int] = 1

    attempt: str
    seq: int = field(metadata={"minimum": 1})  # 1, 2, … within the budget
    kind: BudgetEventKind
    at: float
    tokens: int = field(default=0, metadata={"minimum": 0})  # given (allocate, escalate) or used (spend)
    allowed: int = field(metadata={"minimum": 0})
    spent: int = field(metadata={"minimum": 0})
    overspent: int = field(metadata={"minimum": 0})
    mode: Mode | None = None
    trigger: Trigger | None = None
    confidence: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        where = f"event {self.seq} of the budget of {self.attempt}"
        if self.seq < 1:
            raise BadRecord(where, why="they are numbered from 1")
        check_fields(where, self, natural=("tokens", "allowed", "spent", "overspent"), finite=("at", "confidence"))


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChange:
    """A budget as it is now, and what led there since it was last told."""

    budget: ThinkingBudget
    events: tuple[BudgetEvent, ...]
