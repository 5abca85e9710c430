"""Thinking budgets: how many tokens an attempt may think, what it did with them, and what was changed on the way.

How a task is judged and when a budget grows is `collect.thinking`'s business; these are the records.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import ClassVar

from holdfast.contracts.errors import COUNT, SHARE, BadRecord, check_fields

LARGEST_CAP = 16_000  # tokens: no tier of the table goes beyond


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

    tool_count: int = field(default=0, metadata=COUNT)
    context_size: int = field(default=0, metadata=COUNT)  # tokens
    step_count: int = field(default=1, metadata=COUNT)
    multi_turn: bool = False
    external_calls: bool = False

    def __post_init__(self) -> None:
        check_fields("traits", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class Assessment:
    """How hard a task is taken to be, and why."""

    tier: Tier
    confidence: float = field(metadata=SHARE)
    reasons: tuple[str, ...]  # a factor each: "tool_count 4 ≥ 3"
    traits: Traits

    def __post_init__(self) -> None:
        check_fields("assessment", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class ThinkingBudget:
    """What one attempt may think, and has thought. Nothing that was spent is ever taken back."""

    SCHEMA: ClassVar[int] = 1

    attempt: str
    assessment: Assessment
    ceiling: int = field(metadata=COUNT)  # tokens it began with
    cap: int = field(metadata=COUNT)  # no escalation goes beyond
    allowed: int = field(metadata=COUNT)  # tokens, escalations included
    spent: int = field(default=0, metadata=COUNT)  # all of them, those beyond the allowance too
    overspent: int = field(default=0, metadata=COUNT)  # of these: beyond what was allowed at the time
    calls: int = field(default=0, metadata=COUNT)  # of the model
    escalations: int = field(default=0, metadata=COUNT)
    escalated_at: Mapping[str, float] = field(default_factory=dict)  # by trigger, unix seconds: its last escalation
    mode: Mode | None = None  # in force at the last call that said so
    events: int = field(default=1, metadata={"minimum": 1})  # how many there are
    created_at: float
    changed_at: float

    def __post_init__(self) -> None:
        where = f"budget of {self.attempt}"
        check_fields(where, self)
        if not self.ceiling <= self.allowed <= self.cap:
            why = f"{self.allowed} tokens are not between its ceiling {self.ceiling} and its cap {self.cap}"
            raise BadRecord(where, why=why)
        if self.overspent > self.spent:
            raise BadRecord(where, why=f"{self.overspent} of {self.spent} tokens cannot be too many")

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
    tokens: int = field(default=0, metadata=COUNT)  # given (allocate, escalate) or used (spend)
    allowed: int = field(metadata=COUNT)
    spent: int = field(metadata=COUNT)
    overspent: int = field(metadata=COUNT)
    mode: Mode | None = None
    trigger: Trigger | None = None
    confidence: float | None = None
    why: str = ""

    def __post_init__(self) -> None:
        check_fields(f"event {self.seq} of the budget of {self.attempt}", self)


@dataclass(frozen=True, slots=True, kw_only=True)
class BudgetChange:
    """A budget as it is now, and what led there since it was last told."""

    budget: ThinkingBudget
    events: tuple[BudgetEvent, ...]
