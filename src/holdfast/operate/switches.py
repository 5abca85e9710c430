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
from holdfast.contracts.flag import Flag
from holdfast.contracts.release import Experiment
from holdfast.contracts.run import StepRecord
from holdfast.operate.alerts import QUIET, AlarmRule, AlarmState, step
from holdfast.promote.experiment import KIND, ExperimentCall, Ruling, design_of, is_running, settled
from holdfast.promote.flags import SWITCHES, Snapshot, features, snapshot
from holdfast.store.store import Store, open_store

Clock = Callable[[], float]
Environment = Mapping[str, str]
FlagReader = Callable[[Sequence[StepRecord]], Snapshot]
TRIES = 5  # when others change the same flag at the same time
LAST = 6  # updates by which learning is judged
ACTOR = "guard"


def snapshot_of(store: Store, *, clock: Clock, environment: Environment) -> Snapshot:
    return snapshot(store.flags.all(), now=clock(), environment=environment, trials=store.trials.all(KIND))


def snapshot_at(url: str, project: str, *, clock: Clock, environment: Environment) -> Snapshot:
    """Reads the flags of a store; where it is missing or of an older schema, no flag is set."""
    try:
        with open_store(url, project=project, create=False, migrate=False) as opened:
            return snapshot_of(opened, clock=clock, environment=environment)
    except (NotFound, StoreError):
        return snapshot((), now=clock(), environment=environment)


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
    updates = [
        body["update"] for body in (step_record.body for step_record in done) if isinstance(body.get("update"), Mapping)
    ]
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
    """Kills the feature's flag, despite concurrent changes; creates a missing one, which needs no other flag."""
    name, known = SWITCHES[fuse.feature], {flag.name for flag in store.flags.all()}

    def killed(flag: Flag) -> Flag:
        return replace(flag, killed=True) if name in known else replace(flag, killed=True, requires={})

    return change_flag(store, name, killed, ACTOR, why, now, environment)


def _revived_at(store: Store, name: str, done: Sequence[StepRecord]) -> float:
    """When the killed flag was last revived or removed; -inf: never.

    The ledger is read only where the flag has changed since the first of these updates, or is missing."""
    flag = next((flag for flag in store.flags.all() if flag.name == name), None)
    if not done or (flag is not None and flag.changed_at < done[0].at):
        return -inf
    found = -inf
    for entry in store.ledger.entries():
        if entry.kind == "flag" and name in (entry.body.get("put"), entry.body.get("drop")):
            was_killed = (entry.body.get("before") or {}).get("killed", False)
            found = entry.at if was_killed and not (entry.body.get("flag") or {}).get("killed", False) else found
    return found


def flag_reader(store: Store, *, clock: Clock, environment: Environment) -> FlagReader:
    """Returns a reader of the flags before each step of a run. Diverging learning is switched off; experiments whose
    time is over, or whose verdict is to be applied, are ended.

    Updates from before a person revived the flag never kill it again, here or in a process that resumes the run."""
    state = QUIET

    def read(done: Sequence[StepRecord]) -> Snapshot:
        nonlocal state
        since = _revived_at(store, SWITCHES[DIVERGENCE.feature], done)
        if state.fired is not None and since > state.fired.at:
            state = QUIET  # a person has cleared it
        value, n = divergence([step_record for step_record in done if step_record.at > since])
        state, _ = trip(store, DIVERGENCE, state, value, n=n, now=clock(), environment=environment)
        conclude(store, now=clock(), environment=environment)
        return snapshot_of(store, clock=clock, environment=environment)

    return read


def ruling_of(store: Store, trial: Experiment, *, now: float) -> Ruling:
    """Rules on the experiment as it is now."""
    from holdfast.operate.release_views import ruling  # slow to import, and seldom needed

    return ruling(store, trial, now)


def conclude(store: Store, *, now: float, environment: Environment) -> list[tuple[Experiment, Ruling]]:
    """Ends the experiments about flags whose time is over; those that are applied, also at their verdict. Returns what
    was ended. Called by whoever works or serves: looking changes nothing."""
    found = []
    for trial in store.trials.all(KIND):
        if trial.ended_at is not None or not trial.settings.get("flag"):
            continue
        design, is_over = design_of(trial), not is_running(trial, now)
        if not is_over and not design.apply:
            continue
        ruling = ruling_of(store, trial, now=now)
        if is_over or ruling.call is not ExperimentCall.CONTINUE:
            found.append((end(store, trial, ruling, who=ACTOR, now=now, environment=environment), ruling))
    return found


def end(
    store: Store, trial: Experiment, ruling: Ruling, *, who: str, now: float, environment: Environment, why: str = ""
) -> Experiment:
    """Ends an experiment about a flag; where it is to be applied, the flag is changed as the verdict wants it."""
    design = design_of(trial)
    why = why or f"experiment {trial.name}: {ruling.call.replace('_', ' ')}"
    if design.apply:
        change_flag(store, design.flag, lambda flag: settled(flag, ruling), who, why, now, environment)
    until = now if design.until is None else min(now, design.until)
    return store.trials.end(trial.name, who=who, why=why, now=until).result()


def change_flag(
    store: Store,
    name: str,
    change: Callable[[Flag], Flag],
    who: str,
    why: str,
    now: float,
    environment: Environment,
) -> Flag:
    """Changes what is there now, even when somebody else changes it too; one of ours that is missing is made."""
    for _ in range(TRIES):
        known = {flag.name: flag for flag in store.flags.all()}
        usual = {flag.name: flag for flag in features(environment, owner=who)}
        before = known.get(name) or usual.get(name)
        if before is None:
            store.flags.get(name)  # says that there is none
            continue
        if (after := change(before)) == known.get(name):
            return before
        try:
            return store.flags.put(after, who=who, why=why, now=now, seen=known.get(name)).result()
        except Conflict:
            continue
    raise Conflict(f"flag {name}", why="is changed by others all the time", remedy="change it by hand")
