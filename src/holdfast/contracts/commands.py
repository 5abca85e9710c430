"""Commands of people and rules, the roles that may give them, what a run may be told, and the alerts that it raises.

Taking commands and showing alerts is `operate`'s work; both are kept by the store.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from typing import Any, ClassVar

from holdfast.contracts.errors import BadInput, BadRecord, HoldfastError, IllegalMove, check_fields
from holdfast.contracts.run import DesiredState, RunState


class Role(StrEnum):
    VIEWER = "viewer"  # looks
    OPERATOR = "operator"  # pauses, resumes, cancels, rolls back
    ADMIN = "admin"  # gives out and takes back tokens

    def may(self, needed: Role) -> bool:
        return _ORDER[self] >= _ORDER[needed]


_ORDER = {role: place for place, role in enumerate(Role)}


class Forbidden(HoldfastError):
    """Whoever asks may not do this."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Token:
    """What is known of a token: never the token itself, only its hash. No SCHEMA: it is not to leave the store."""

    id: str  # "tok-3": for people and the ledger
    label: str  # whose it is
    role: Role
    sha256: str
    created_at: float  # unix seconds
    expires_at: float | None = None  # None: never
    revoked_at: float | None = None

    def __post_init__(self) -> None:
        check_fields(f"token {self.id}", self, filled=("label",))
        if self.expires_at is not None and not self.expires_at > self.created_at:
            raise BadRecord(f"token {self.id}", why="must expire after it was made")

    def is_good(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)


LONGEST = 100  # id of a command
LONGEST_WHY = 2000  # letters of a reason


def check_why(what: str, why: str) -> None:
    """A reason is read by people: there is one, and it is no book. Not asked of records, for older ones were longer."""
    if not why.strip():
        raise BadInput(f"{what}: why", why="is missing, or blank", remedy="say the reason in a sentence")
    if len(why) > LONGEST_WHY:
        raise BadInput(f"{what}: why", why=f"is longer than {LONGEST_WHY} letters", remedy="say it in a sentence")


@dataclass(frozen=True, slots=True, kw_only=True)
class Command:
    """One order of a person or a rule, with who gave it and why. The same id again is the same order again."""

    SCHEMA: ClassVar[int] = 1

    id: str
    action: str  # "pause", "drain", "requeue", …
    subject: str  # what it is about: a run, "RUN/NAME" of a rollout, a policy, a flag, an alert's code
    who: str
    why: str
    at: float  # unix seconds
    args: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        check_fields(f"command {self.id}", self, filled=("id", "action", "subject", "who", "why"))
        if len(self.id) > LONGEST or not self.id.isprintable():
            raise BadRecord(f"command {self.id[:LONGEST]!r}: id", why=f"must be at most {LONGEST} letters to be seen")


@dataclass(frozen=True, slots=True, kw_only=True)
class Overrides:
    """What a learner that follows others is told beside its settings, by the documented names; None: as those say."""

    enabled: bool | None = None  # False: it learns nothing until it is true again
    update_interval_rollouts: int | None = None  # so many new rollouts are waited for
    max_rollouts_per_update: int | None = None  # so many are taken at most

    def __post_init__(self) -> None:
        if self.enabled is not None and not isinstance(self.enabled, bool):
            raise BadRecord("enabled", why="must be true or false")
        for name in ("update_interval_rollouts", "max_rollouts_per_update"):
            value = getattr(self, name)
            if value is not None and (type(value) is not int or not 0 < value < 2**53):
                raise BadRecord(f"{name} = {value!r:.60}", why="must be a whole number above 0")


class Severity(StrEnum):
    CRITICAL = "critical"
    WARNING = "warning"
    INFO = "info"


@dataclass(frozen=True, slots=True, kw_only=True)
class Alert:
    """Something a person should know of; it stands until it is cleared. Acknowledged: a person knows of it."""

    SCHEMA: ClassVar[int] = 1

    code: str  # stable, for filters: "queue-stalled"
    severity: Severity
    message: str
    at: float  # unix seconds
    run: str | None = None  # None: of the whole installation
    cleared_at: float | None = None
    id: str | None = None  # "alert-7": the store's, once it is kept
    acknowledged_at: float | None = None
    acknowledged_by: str | None = None

    def __post_init__(self) -> None:
        check_fields(f"alert {self.code!r}", self, filled=("code", "message"))
        if self.cleared_at is not None and self.cleared_at < self.at:
            raise BadRecord(f"alert {self.code}", why=f"times {self.at} to {self.cleared_at} are not in order")


# What a run may be told -----------------------------------------------------------------------------------------------

WANTS: Mapping[str, DesiredState] = {  # order → what is wanted from then on
    "resume": DesiredState.RUNNING,
    "pause": DesiredState.PAUSED,
    "freeze": DesiredState.FROZEN,
    "drain": DesiredState.DRAINING,
    "cancel": DesiredState.CANCELLED,
}
RUN_COMMANDS = (*WANTS, "recover")
REASONS: Mapping[str, tuple[str, str]] = {  # letter → why not, and the remedy
    "c": ("is cancelled", "start a new run"),
    "d": ("is completed", "there is nothing left to order"),
    "s": ("is {state}, not running", "the command that began it takes it up again"),
}
_STOPPED: Mapping[DesiredState, str] = {
    # it may yet be taken up again, until somebody cancels it for good
    DesiredState.RUNNING: "ssss+=",
    DesiredState.PAUSED: "ssss+=",
    DesiredState.FROZEN: "ssss+=",
    DesiredState.DRAINING: "ssss+=",
    DesiredState.CANCELLED: "cccc=c",
}
# By what a run is and what is wanted of it: a letter for each of ORDERS. "+" is done, "=" is so already, "?" is done
# when nobody drives the run any more, and the others are refused with their reason.
GUARDS: Mapping[RunState, Mapping[DesiredState, str]] = {
    RunState.RUNNING: {
        DesiredState.RUNNING: "=++++?",
        DesiredState.PAUSED: "+=+++?",
        DesiredState.FROZEN: "++=++?",
        DesiredState.DRAINING: "+++=+?",
        DesiredState.CANCELLED: "cccc=?",
    },
    RunState.COMPLETED: {
        DesiredState.RUNNING: "dddddd",
        DesiredState.PAUSED: "dddddd",
        DesiredState.FROZEN: "dddddd",
        DesiredState.DRAINING: "dddddd",
        DesiredState.CANCELLED: "ccccdc",
    },
    RunState.FAILED: _STOPPED,
    RunState.CANCELLED: _STOPPED,
    RunState.TIMED_OUT: _STOPPED,
}


def guarded(run: str, state: RunState, wanted: DesiredState, order: str) -> str:
    """The order's letter, one of "+=?", or IllegalMove with the reason."""
    letter = GUARDS[state][wanted][RUN_COMMANDS.index(order)]
    if letter in REASONS:
        why, remedy = REASONS[letter]
        raise IllegalMove(f"run {run}", why=why.format(state=state), remedy=remedy)
    return letter
