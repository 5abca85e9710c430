"""Versions on their way into service and out of it, and experiments that serve several side by side.

`promote` decides whether a version may move and which arm a unit gets; the store records it; `prove` reads the numbers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from math import isfinite
from typing import Any, ClassVar

from holdfast.contracts.errors import BadInput, BadRecord, IllegalMove, check_fields


class Stage(StrEnum):
    CANDIDATE = "candidate"  # registered; nobody is served by it
    SHADOW = "shadow"  # answers copies of requests, and nobody sees its answers
    CANARY = "canary"  # answers a share of the requests
    LIVE = "live"  # answers all others; one of each policy
    RETIRED = "retired"  # was live, and a better one took its place
    ROLLED_BACK = "rolled_back"  # was taken back
    REJECTED = "rejected"  # a gate or a guard refused it before it was live


S = Stage
MOVES: Mapping[Stage, frozenset[Stage]] = {
    S.CANDIDATE: frozenset({S.SHADOW, S.CANARY, S.LIVE, S.REJECTED}),
    S.SHADOW: frozenset({S.CANARY, S.LIVE, S.REJECTED}),
    S.CANARY: frozenset({S.CANARY, S.LIVE, S.ROLLED_BACK}),  # to itself: with another share
    S.LIVE: frozenset({S.RETIRED, S.ROLLED_BACK}),
    S.RETIRED: frozenset({S.LIVE}),  # by a rollback to it
    S.ROLLED_BACK: frozenset({S.CANDIDATE}),  # a second try, with new evidence
    S.REJECTED: frozenset({S.CANDIDATE}),
}
LONGEST = 100  # name of a policy, a flag or an experiment
SHARES = (5, 25, 50, 100)  # percent of the requests that a canary answers, step by step


class PolicyKind(StrEnum):
    PROMPT = "prompt"
    ADAPTER = "adapter"
    WEIGHTS = "weights"
    NETWORK = "network"  # drives the residents of a town, or an environment's actor


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """One version of a policy, and how far it has come."""

    SCHEMA: ClassVar[int] = 1

    id: str  # "sprout@3": policy and number
    project: str
    policy: str  # the line it belongs to: "sprout"
    number: int = field(metadata={"minimum": 1})
    kind: PolicyKind
    source: str  # what serves it: "checkpoint:run-1-20-ab12…", "resources:3", "shelf:sprout-weak"
    parent: str | None = None  # the release that it grew from
    stage: Stage
    share: int = field(default=0, metadata={"minimum": 0, "maximum": 100})  # percent; of a canary, or 100 when live
    is_known_good: bool = False  # it came to be live through every stage, or was live without a breach
    evidence: str | None = None  # sha256 of the blob that its last decision rests on
    manifest: Mapping[str, Any] = field(default_factory=dict)
    created_at: float
    changed_at: float

    def __post_init__(self) -> None:
        if self.id != f"{self.policy}@{self.number}":
            raise BadRecord(f"release {self.id}", why=f"must be called {self.policy}@{self.number}")
        check_fields(f"release {self.id}", self, filled=("policy", "source"))


def check_name(what: str, name: str) -> None:
    """Refuse names that cannot be told apart when they are read, or that an id could not be made of."""
    why = ""
    if not name or name != name.strip():
        why = "must not be blank, nor begin or end with a blank"
    elif len(name) > LONGEST:
        why = f"has {len(name)} characters, {LONGEST} at most are allowed"
    elif not name.isprintable():  # control characters, and those that turn the direction of what follows
        why = "has characters in it that cannot be seen"
    elif "@" in name:
        why = "'@' comes before the number of a release"
    if why:
        shown = name if len(name) <= LONGEST else f"{name[:LONGEST]}…"
        raise BadInput(f"{what} {shown!r}", why=why, remedy="give it a plain name")


def move(release: Release, to: Stage) -> Stage:
    """The new stage, or IllegalMove with what would have been allowed."""
    if to not in MOVES[release.stage]:
        allowed = ", ".join(sorted(MOVES[release.stage]))
        why = f"cannot go from {release.stage} to {to}"
        raise IllegalMove(f"release {release.id}", why=why, remedy=f"from {release.stage} it may go to {allowed}")
    return to


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
        check_fields(f"trial {self.name!r}", self, filled=("name", "kind", "salt"))
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
    latency_s: float | None = field(default=None, metadata={"minimum": 0})
    tokens: int | None = None
    success: float | None = field(default=None, metadata={"minimum": 0, "maximum": 1})
    reward: float | None = None
    safety_cost: float | None = field(default=None, metadata={"minimum": 0})

    def __post_init__(self) -> None:
        check_fields(f"served request {self.id!r}", self, filled=("id", "trial", "arm", "unit"))
