"""Rewards: one named number is a signal, the signals of an attempt are its sheet."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord

MAX_TURN = 2**31 - 1  # what a column can hold
CHECKED = ("success", "exact_match")  # the signals that say whether an attempt was right; the first that is there
RIGHT = 1.0 - 1e-9


@dataclass(frozen=True, slots=True, kw_only=True)
class Signal:
    """One named number that somebody measured on purpose, and how much it counts."""

    SCHEMA: ClassVar[int] = 1

    name: str
    value: float
    weight: float = 1.0
    source: str  # "rule:exact_match", "judge:tone@3", "env"
    turn: int | None = field(default=None, metadata={"minimum": 0, "maximum": MAX_TURN})  # None: of the whole attempt
    feedback: str | None = None  # in words: shown, and read by whoever improves the policy

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.source.strip():
            raise BadRecord(f"signal {self.name!r}", why=f"name and source {self.source!r} must not be blank")
        if not (isfinite(self.value) and isfinite(self.weight)):
            raise BadRecord(f"signal {self.name}", why=f"value {self.value} and weight {self.weight} must be finite")
        if self.turn is not None and not 0 <= self.turn <= MAX_TURN:
            raise BadRecord(f"signal {self.name}: turn = {self.turn}", why=f"must be between 0 and {MAX_TURN}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Sheet:
    """All signals of one attempt; the total is their weighted sum."""

    SCHEMA: ClassVar[int] = 1

    signals: tuple[Signal, ...]

    @property
    def total(self) -> float | None:
        """None when nothing was measured: missing is not zero."""
        return sum(s.value * s.weight for s in self.signals) if self.signals else None


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


def outcome_of(signals: Iterable[Signal]) -> str | None:
    """Whether the attempt was right or wrong; None: nobody checked it. An agent's own word is no check."""
    measured = {one.name: one.value for one in signals if one.source.partition(":")[0] != "agent"}
    for name in CHECKED:
        if name in measured:
            return "right" if measured[name] >= RIGHT else "wrong"
    return None
