"""Who may do what: three roles, each with all that the one before may do, and tokens that give them."""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum
from math import isfinite

from holdfast.contracts.errors import BadRecord, HoldfastError


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
        if not self.label.strip():
            raise BadRecord(f"token {self.id}: label", why="must not be blank")
        if not isfinite(self.created_at) or (self.expires_at is not None and not self.expires_at > self.created_at):
            raise BadRecord(f"token {self.id}", why="must expire after it was made")

    def is_good(self, now: float) -> bool:
        return self.revoked_at is None and (self.expires_at is None or now < self.expires_at)
