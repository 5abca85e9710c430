"""Rewards: a scorer gives a reward; one named number is a reward term; the terms of an attempt are its breakdown."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord, check_fields

MAX_TURN = 2**31 - 1  # what a column can hold
CHECKED = ("success", "exact_match")  # the signals that say whether an attempt was right; the first that is there
RIGHT = 1.0 - 1e-9
TURN_REWARD, PROGRESS = "turn_reward", "progress"  # what a turn was worth in all; its part of the outcome
TURN_SOURCES = ("rule:turn@1", "rule:evidence")  # who says that and its parts: by these weights; what was found out


@dataclass(frozen=True, slots=True)
class Reward:
    """What a scorer gives for one answer. The value counts; terms and turns say how it came about.

    Numbers of other libraries become plain floats here, so that whatever is wrong with them is found where they are
    made and no later."""

    value: float
    terms: Mapping[str, float] = field(default_factory=dict)  # named parts, kept beside the value
    feedback: str = ""  # in words: shown to people, and read by prompt search
    turns: Mapping[int, Mapping[str, float]] | None = None  # named numbers of single model calls, counted from 0

    def __post_init__(self) -> None:
        object.__setattr__(self, "value", _number("value", self.value))
        object.__setattr__(self, "terms", _numbers("terms", self.terms))
        if not isinstance(self.feedback, str):
            raise BadRecord("reward: feedback", why=f"is {type(self.feedback).__name__}, not text", remedy="give text")
        if self.turns is None:
            return
        for turn in self.turns:
            if type(turn) is not int or not 0 <= turn <= MAX_TURN:
                raise BadRecord(f"reward: turn {turn!r}", why="is not a whole number from 0", remedy="count from 0")
        turns = {turn: _numbers(f"turn {turn}", named) for turn, named in self.turns.items()}
        object.__setattr__(self, "turns", turns)


def _numbers(where: str, named: Any) -> dict[str, float]:
    if not isinstance(named, Mapping):
        raise BadRecord(f"reward: {where}", why=f"is {type(named).__name__}, not an object", remedy="name each number")
    for name in named:
        if not isinstance(name, str) or not name.strip():
            raise BadRecord(f"reward: {where}: {name!r}", why="is not a name", remedy="name each number")
    return {name: _number(f"{where}: {name}", value) for name, value in named.items()}


def _number(where: str, value: Any) -> float:
    if type(value) is not float:
        try:
            # A text that reads like a number was meant as text.
            value = float("nan") if isinstance(value, str | bytes) else float(value)
        except (TypeError, ValueError, OverflowError):
            value = float("nan")
    if not isfinite(value):
        raise BadRecord(f"reward: {where}", why="is not a finite number", remedy="give a finite number")
    plain: float = value
    return plain


LARGEST_REWARD = 1000.0  # of what callers tell over HTTP: one of them must not outweigh all others


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardTerm:
    """One named number that somebody measured on purpose, and how much it counts."""

    SCHEMA: ClassVar[int] = 1

    name: str
    value: float
    weight: float = 1.0
    source: str  # "rule:exact_match", "judge:tone@3", "env"
    turn: int | None = field(default=None, metadata={"minimum": 0, "maximum": MAX_TURN})  # None: of the whole attempt
    feedback: str | None = None  # what the scorer says in words; it counts for nothing

    def __post_init__(self) -> None:
        turn, is_number = self.turn, type(self.value) is float and type(self.weight) is float
        is_turn = turn is None or (type(turn) is int and 0 <= turn <= MAX_TURN)
        is_named = self.name.strip() and self.source.strip()
        # What is usual is found out quickly: an attempt of many turns has hundreds of them.
        if not (is_turn and is_named and is_number and isfinite(self.value + self.weight)):
            check_fields(f"signal {self.name}", self, filled=("name", "source"))


@dataclass(frozen=True, slots=True, kw_only=True)
class RewardBreakdown:
    """All signals of one attempt; the total is their weighted sum."""

    SCHEMA: ClassVar[int] = 1

    signals: tuple[RewardTerm, ...]

    @property
    def total(self) -> float | None:
        """None when nothing was measured: missing is not zero. A term of a turn that is not paid does not count."""
        measured = [s for s in self.signals if s.turn is None or s.weight]
        return sum(s.value * s.weight for s in measured) if measured else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Scoring:
    """What another set of scorers said about the rollouts of a run; its signals lie beside those of the attempts."""

    SCHEMA: ClassVar[int] = 1

    run: str
    name: str
    scorers: Mapping[str, Any]  # what was used, as it describes itself
    who: str
    at: float  # unix seconds
    rollouts: int  # that have a signal
    sha256: str  # of the scorers and of all signals


AGENT = "agent"  # the source of what an agent reports itself, whatever else it calls it


def is_own(signal: RewardTerm) -> bool:
    """Whether the agent itself reported it."""
    return signal.source.partition(":")[0] == AGENT


def check_in(signals: Iterable[RewardTerm]) -> RewardTerm | None:
    """The signal that says whether the attempt was right; None: nobody checked it. An agent's own word is no check."""
    measured = {signal.name: signal for signal in signals if not is_own(signal)}
    return next((measured[name] for name in CHECKED if name in measured), None)


def outcome_of(signals: Iterable[RewardTerm]) -> str | None:
    """Whether the attempt was right or wrong; None: nobody checked it."""
    check = check_in(signals)
    return None if check is None else "right" if check.value >= RIGHT else "wrong"
