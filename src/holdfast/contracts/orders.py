"""What people ask of a run, and what a run tells people. Obeying the one and showing the other is `operate`'s work."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One order of a person or a rule to a run, with who gave it and why."""

    SCHEMA: ClassVar[int] = 1

    id: str
    action: str  # "pause", "drain", "requeue", …
    run: str
    who: str
    why: str
    at: float  # unix seconds
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        for name in ("id", "action", "run", "who", "why"):
            if not getattr(self, name).strip():
                raise BadRecord(f"command {self.id}: {name}", why="must not be blank")
        if not isfinite(self.at):
            raise BadRecord(f"command {self.id}: at = {self.at}", why="must be finite")


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something a person should know of; it stands until it is cleared."""

    SCHEMA: ClassVar[int] = 1

    code: str  # stable, for filters: "queue-stalled"
    severity: Severity
    message: str
    at: float  # unix seconds
    run: str | None = None  # None: of the whole installation
    cleared_at: float | None = None

    def __post_init__(self) -> None:
        if not self.code.strip() or not self.message.strip():
            raise BadRecord(f"alert {self.code!r}", why=f"code and message {self.message!r} must not be blank")
        if not isfinite(self.at) or (self.cleared_at is not None and not self.at <= self.cleared_at < float("inf")):
            raise BadRecord(
                f"alert {self.code}", why=f"times {self.at} to {self.cleared_at} are not finite and in order"
            )
