"""Alert rules with hysteresis: an alert is raised after its condition held for a while, and cleared further down.

Pure functions: the measured value, its number of cases and the time are arguments; the caller keeps the state.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from math import isfinite

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmRule:
    """When to raise and when to clear an alert; a value between the two changes nothing."""

    name: str  # the alert's code
    fires_above: float | None = None  # one of these two
    fires_below: float | None = None
    clears_at: float  # back to this, or beyond
    hold_s: float = 0.0  # the condition must hold so long
    least: int = 1  # fewer cases are no evidence
    severity: Severity = Severity.WARNING

    def __post_init__(self) -> None:
        where = f"alert {self.name!r}"
        if not self.name.strip():
            raise BadInput(where, why="has no name")
        if (self.fires_above is None) == (self.fires_below is None):
            raise BadInput(where, why="fires above a value or below one", remedy="give one of fires_above, fires_below")
        sign = 1.0 if self.fires_above is not None else -1.0
        limit = self.fires_above if self.fires_above is not None else self.fires_below or 0.0
        if not (isfinite(limit) and isfinite(self.clears_at) and isfinite(self.hold_s)):
            raise BadInput(where, why="its numbers must be finite")
        if self.hold_s < 0.0 or self.least < 1:
            raise BadInput(where, why=f"hold_s = {self.hold_s}, least = {self.least}: must be at least 0 and 1")
        if sign * (limit - self.clears_at) < 0.0:
            raise BadInput(where, why=f"would clear at {self.clears_at} while it fires at {limit}")

    def is_bad(self, value: float) -> bool:
        if self.fires_above is not None:
            return value > self.fires_above
        return self.fires_below is not None and value < self.fires_below

    def is_good(self, value: float) -> bool:
        return value <= self.clears_at if self.fires_above is not None else value >= self.clears_at


@dataclass(frozen=True, slots=True, kw_only=True)
class AlarmState:
    """The state of a rule."""

    fired: Alert | None = None  # None: no active alert
    since: float | None = None  # since when the opposite condition has held


QUIET = AlarmState()


def step(
    rule: AlarmRule, state: AlarmState, value: float | None, now: float, *, n: int | None = None, run: str | None = None
) -> tuple[AlarmState, Alert | None]:
    """The next state, and the alert where it was just raised or cleared.

    No value, or too few cases, is no evidence: nothing changes, and the condition must hold anew.
    """
    if value is not None and not isfinite(value):
        raise BadInput(f"alert {rule.name}: value = {value}", why="must be finite", remedy="give None for no evidence")
    if value is None or (n is not None and n < rule.least):
        return replace(state, since=None), None
    is_turning = rule.is_bad(value) if state.fired is None else rule.is_good(value)
    if not is_turning:
        return replace(state, since=None), None
    since = now if state.since is None or now < state.since else state.since  # a clock may be set back
    if now - since < rule.hold_s:
        return replace(state, since=since), None
    if state.fired is None:
        limit = f"above {rule.fires_above:g}" if rule.fires_above is not None else f"below {rule.fires_below:g}"
        message = f"{rule.name}: {value:.4g} is {limit}{'' if n is None else f' (of {n})'}"
        alert = Alert(code=rule.name, severity=rule.severity, message=message, at=now, run=run)
        return AlarmState(fired=alert), alert
    return QUIET, replace(state.fired, cleared_at=max(now, state.fired.at))


# Adoption has certainly fallen: the two intervals do not overlap (`reward.tools`), on enough tasks.
ADOPTION_DROP = AlarmRule(name="adoption-drop", fires_above=0.0, clears_at=-0.02, least=30)
