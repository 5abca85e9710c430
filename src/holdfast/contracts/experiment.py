"""Versions side by side in real use: who was given which, and what came of each request.

A canary and an A/B experiment are both trials. Which arm a unit gets is `promote`'s business, what the numbers mean is
`prove`'s.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Experiment:
    """Two or more arms, and how large a part of the units each is meant to get."""

    SCHEMA: ClassVar[int] = 1

    name: str
    kind: str  # "canary", "experiment"
    arms: Mapping[str, float]  # weight by arm; they add up to 1. The first is the control
    salt: str  # of the hash that assigns units
    created_at: float
    ended_at: float | None = None
    settings: Mapping[str, Any] = field(default_factory=dict)  # metrics, limits, α: fixed when it begins

    def __post_init__(self) -> None:
        if not self.name.strip() or not self.kind.strip() or not self.salt.strip():
            raise BadRecord(f"trial {self.name!r}", why="name, kind and salt must not be blank")
        weights = list(self.arms.values())
        if len(weights) < 2 or any(not isfinite(one) or one < 0 for one in weights) or abs(sum(weights) - 1) > 1e-9:
            raise BadRecord(f"trial {self.name}: arms", why="two or more are needed, with weights that add up to 1")


@dataclass(frozen=True, slots=True, kw_only=True)
class Exposure:
    """A unit was given an arm; it keeps it."""

    SCHEMA: ClassVar[int] = 1

    trial: str
    unit: str
    arm: str
    at: float  # unix seconds


@dataclass(frozen=True, slots=True, kw_only=True)
class ServedRequest:
    """One request that an arm answered, and what came of it. What nobody has told yet is None."""

    SCHEMA: ClassVar[int] = 1

    id: str  # of the request: feedback comes with it
    trial: str
    arm: str
    unit: str
    at: float  # unix seconds, when it was answered
    error: bool = False
    latency_s: float | None = None
    tokens: int | None = None
    success: float | None = field(default=None, metadata={"minimum": 0, "maximum": 1})
    reward: float | None = None
    safety_cost: float | None = field(default=None, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        for name in ("id", "trial", "arm", "unit"):
            if not getattr(self, name).strip():
                raise BadRecord(f"served request {self.id!r}: {name}", why="must not be blank")
        for name, low, high in (
            ("latency_s", 0.0, None),
            ("success", 0.0, 1.0),
            ("reward", None, None),
            ("safety_cost", 0.0, None),
        ):
            value = getattr(self, name)
            if value is None:
                continue
            is_out = (low is not None and value < low) or (high is not None and value > high)
            if isinstance(value, bool) or not isfinite(value) or is_out:
                why = "must be a finite number in its range"
                raise BadRecord(f"served request {self.id}: {name} = {value}", why=why)
