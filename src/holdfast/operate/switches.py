"""Which features are on, read from the flags; and fuses, which switch a harmful feature off.

A feature's value is of one snapshot and one key: a run's or a result's. A blown fuse kills the flag of its feature,
with the reason in the ledger. The flag stays killed until a person revives it: a feature that is off gives no numbers
that could clear it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf

from holdfast.contracts.commands import Alert, Severity
from holdfast.contracts.errors import BadInput, Conflict, NotFound, StoreError
from holdfast.contracts.flag import Features, Flag
from holdfast.contracts.run import StepRecord
from holdfast.operate.alerts import QUIET, AlarmRule, AlarmState, step
from holdfast.promote.flags import SWITCHES, Snapshot, features, snapshot
from holdfast.store.store import Store, open_store

Clock = Callable[[], float]
Environment = Mapping[str, str]
TRIES = 5  # when others change the same flag at the same time
LAST = 6  # updates by which learning is judged
ACTOR = "guard"


def snapshot_of(store: Store, *, clock: Clock, environment: Environment) -> Snapshot:
    return snapshot(store.flags.all(), now=clock(), environment=environment)


def snapshot_at(url: str, project: str, *, clock: Clock, environment: Environment) -> Snapshot:
    """Of a store that may be missing or of an older schema: then no flag is set."""
    try:
        with open_store(url, project=project, create=False, migrate=False) as opened:
            return snapshot_of(opened, clock=clock, environment=environment)
    except (NotFound, StoreError):
        return snapshot((), now=clock(), environment=environment)


def key_of(run: str) -> str:
    """The key that a share of runs is drawn by: the end of a run's id, known before the run has its number."""
    return run.rpartition("-")[2]


@dataclass(frozen=True, slots=True, kw_only=True)
class Fuse:
    """A feature, and the rule that switches it off."""

    feature: str  # a field of Features
    rule: AlarmRule

    def __post_init__(self) -> None:
        if self.feature not in SWITCHES:
            known = ", ".join(SWITCHES)
            raise BadInput(f"fuse of {self.feature!r}", why="there is no such feature", remedy=f"use {known}")


def _slow(feature: str, most_ms: float) -> Fuse:
    """The 95th percentile must be within so many milliseconds; it clears at three quarters of that."""
    name = f"{feature.replace('_', '-')}-slow"
    rule = AlarmRule(
        name=name, fires_above=most_ms, clears_at=0.75 * most_ms, hold_s=60.0, least=20, severity=Severity.CRITICAL
    )
    return Fuse(feature=feature, rule=rule)


LATENCY: Mapping[str, Fuse] = {  # the documented budgets, of the 95th percentile in milliseconds
    name: _slow(name, most_ms)
    for name, most_ms in {"budgets": 50.0, "minimal_diff": 200.0, "judges": 500.0, "tool_rewards": 50.0}.items()
}
DIVERGENCE = Fuse(
    feature="learning",
    rule=AlarmRule(name="learning-diverges", fires_above=0.5, clears_at=0.2, least=3, severity=Severity.CRITICAL),
)


def p95(took_ms: Sequence[float]) -> float | None:
    """The 95th percentile; None without values."""
    ordered = sorted(took_ms)
    return ordered[min(len(ordered) - 1, int(0.95 * len(ordered)))] if ordered else None


def divergence(done: Sequence[StepRecord]) -> tuple[float | None, int]:
    """The share of restored updates among the last ones, and their number."""
    updates = [body["update"] for body in (one.body for one in done) if isinstance(body.get("update"), Mapping)]
    last = updates[-LAST:]
    return (sum(one.get("restored") is not None for one in last) / len(last) if last else None), len(last)


def trip(
    store: Store, fuse: Fuse, state: AlarmState, value: float | None, *, n: int, now: float, environment: Environment
) -> tuple[AlarmState, Alert | None]:
    """Evaluates the rule of a fuse; kills the flag when the alert is raised."""
    state, alert = step(fuse.rule, state, value, now, n=n)
    if alert is not None and alert.cleared_at is None:
        pull(store, fuse, why=alert.message, now=now, environment=environment)
    return state, alert


def pull(store: Store, fuse: Fuse, *, why: str, now: float, environment: Environment) -> Flag:
    """Kills the feature's flag, despite concurrent changes; creates a missing one."""
    name = SWITCHES[fuse.feature]
    for _ in range(TRIES):
        known = {flag.name: flag for flag in store.flags.all()}
        try:
            if name in known:
                flag = known[name]
                return store.flags.put(replace(flag, killed=True), who=ACTOR, why=why, now=now, seen=flag).result()
            made = {flag.name: flag for flag in features(environment, owner=ACTOR)}
            return store.flags.put(replace(made[name], requires={}, killed=True), who=ACTOR, why=why, now=now).result()
        except Conflict:
            continue
    raise Conflict(f"flag {name}", why="is changed by others all the time", remedy="kill it by hand")


def _revived_at(store: Store, name: str, done: Sequence[StepRecord]) -> float:
    """When the killed flag was last revived or removed; -inf: never.

    The ledger is read only where the flag has changed since the first of these updates, or is missing."""
    flag = next((one for one in store.flags.all() if one.name == name), None)
    if not done or (flag is not None and flag.changed_at < done[0].at):
        return -inf
    found = -inf
    for entry in store.ledger.entries():
        if entry.kind == "flag" and name in (entry.body.get("put"), entry.body.get("drop")):
            was_killed = (entry.body.get("before") or {}).get("killed", False)
            found = entry.at if was_killed and not (entry.body.get("flag") or {}).get("killed", False) else found
    return found


def feature_reader(
    store: Store, *, key: str, clock: Clock, environment: Environment
) -> Callable[[Sequence[StepRecord]], Features]:
    """Returns a reader of the features before each step of a run; diverging learning is switched off.

    Updates from before a person revived the flag never kill it again, here or in a process that resumes the run."""
    state = QUIET

    def read(done: Sequence[StepRecord]) -> Features:
        nonlocal state
        since = _revived_at(store, SWITCHES[DIVERGENCE.feature], done)
        if state.fired is not None and since > state.fired.at:
            state = QUIET  # a person has cleared it
        value, n = divergence([one for one in done if one.at > since])
        state, _ = trip(store, DIVERGENCE, state, value, n=n, now=clock(), environment=environment)
        return snapshot_of(store, clock=clock, environment=environment).features(key)

    return read
