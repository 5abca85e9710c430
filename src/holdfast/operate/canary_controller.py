"""Moves versions through their stages: the controller after each look at the guard, a person by hand.

What is compared with what: a canary or shadow with the live version, and a live version with its holdback, the version
before it, for as long as it is live. A live version without one (the first, or after a rollback) is compared with
nothing. Both answer at the same time, callers of one population.

The guard (`prove`) detects breaches, the rules (`promote`) choose the response, and the store makes every move in one
transaction, with its reasons in the ledger. Refusals are recorded too.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from math import log
from typing import Any

from holdfast.contracts.errors import BadInput, Refused
from holdfast.contracts.evidence import Decision, Evidence, Reason
from holdfast.contracts.records import decode, loads
from holdfast.contracts.release import Experiment, PolicyKind, Release, ServedRequest, Stage, move
from holdfast.operate.service import settled, trial_of
from holdfast.pipeline.promote import FIRST, adopt
from holdfast.promote.experiment import ALARM, log_e_mismatch
from holdfast.promote.gate import NAMES
from holdfast.promote.release import Response, held_back, next_step, respond, rollback_target
from holdfast.prove.guard import GuardLimits, GuardReading, GuardStatus, limits_from, watch
from holdfast.store.notifications import RELEASES
from holdfast.store.releases import is_undoable, taken_back
from holdfast.store.store import Store, find_release

WHO = "keeper"
GUARD = "guard"  # in the settings of a comparison: the limits that it fixed when it began
LOOK_S = 0.2  # at least, between two looks …
REST = 4.0  # … and at least so many times the duration of the look itself
LIVE_LOOK_S = 5.0  # at least, between two looks at a live version
EPOCH = 20_000  # requests of a live version that are weighed together; each epoch has its part of α
SILENT: dict[str, Any] = {"success": None, "reward": None, "safety": None}  # nobody sees or rates a shadow's answers
TELL = "nobody has told what came of {} yet; send feedback to /v1/feedback"
UNLIVED = "no resident has lived a day by {} yet; 'holdfast town run --policy live' lets them"
NO_SERVICE: dict[str, Any] = {"latency": None, "errors": None, "safety": None}  # a network answers no callers
FALLEN = (Stage.ROLLED_BACK, Stage.REJECTED)


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the controller saw and did."""

    release: Release
    watch: GuardStatus
    response: Response
    at: float


async def run_controller(
    store: Store, policy: str, limits: GuardLimits, *, clock: Callable[[], float], observe: Callable[[Looked], None]
) -> None:
    """Looks repeatedly while two versions answer side by side, else waits for that, until cancelled."""
    loop = asyncio.get_running_loop()
    while True:
        seen, began = store.changes.seen(RELEASES), loop.time()  # a wall clock may be set while it looks
        looked = await check_canary(store, policy, limits, clock=clock)
        if looked is None:
            await store.changes.moved(RELEASES, seen)
            continue
        took_s = loop.time() - began
        observe(looked)
        if looked.release.stage is Stage.LIVE:
            await store.changes.moved(RELEASES, seen, LIVE_LOOK_S)
        await asyncio.sleep(max(LOOK_S, REST * took_s))


async def check_canary(store: Store, policy: str, limits: GuardLimits, *, clock: Callable[[], float]) -> Looked | None:
    """Judges what is compared, if anything is, and acts on it."""
    releases = store.releases.of_policy(policy)
    if (pair := compared(releases)) is None:
        return None
    release, beside = pair
    status = await asyncio.to_thread(judge, store, release, beside, limits, clock())
    response = respond(release, status.breaches, status.is_clear, lacking(status, limits, release.kind))
    try:
        await _act(store, releases, release, beside, response, clock)
    except Refused:  # a person, or another controller, was faster
        response = Response(action="hold", reasons=response.reasons)
    return Looked(release=release, watch=status, response=response, at=clock())


def compared(releases: Sequence[Release]) -> tuple[Release, Release] | None:
    """The version that is watched, and the one that it is compared with: a canary or shadow with the live one, or the
    live one with its holdback."""
    live = next((release for release in releases if release.stage is Stage.LIVE), None)
    if live is None:
        return None
    if (release := under_way(releases)) is not None:
        return release, live
    before = held_back(releases, live)
    return None if before is None else (live, before)


def under_way(releases: Sequence[Release]) -> Release | None:
    """The canary, which answers people, or else the shadow."""
    found = {release.stage: release for release in reversed(releases)}
    return found.get(Stage.CANARY) or found.get(Stage.SHADOW)


def judge(store: Store, release: Release, beside: Release, limits: GuardLimits, now: float) -> GuardStatus:
    """The guard's reading of all requests so far; of a live version, of those of its epoch. Where the comparison has
    limits of its own, these hold: in a town a shadow's days are measured as all others are."""
    trial = trial_of(release, beside)
    known = {experiment.name: experiment.settings.get(GUARD) for experiment in store.trials.all()}
    served: list[ServedRequest] = []
    own = None if trial is None else known.get(trial.name)
    if own is not None:
        limits = limits_from(own)
    elif release.kind is PolicyKind.NETWORK:
        limits = replace(limits, **NO_SERVICE)
    elif release.stage is Stage.SHADOW:
        limits = replace(limits, **SILENT)
    if trial is not None and trial.name in known:
        served, limits = _served(store, trial, release, limits)
    ours = [request for request in served if request.arm == release.id]
    theirs = [request for request in served if request.arm == beside.id]
    status = watch(theirs, ours, limits, now=now)
    if release.stage is Stage.SHADOW or trial is None or (reason := sample_ratio(trial, served)) is None:
        return status
    return replace(status, void=(reason,), is_clear=False)


def _served(
    store: Store, trial: Experiment, release: Release, limits: GuardLimits
) -> tuple[list[ServedRequest], GuardLimits]:
    """The requests that count, and the limits that they are held to. A live version is watched for as long as it is
    live: the k-th epoch is held to α / (k + 1)(k + 2), and all of them together to α."""
    if release.stage is not Stage.LIVE:
        return settled(store.trials.served(trial.name)), limits
    epoch = max(0, store.trials.count(trial.name) - 1) // EPOCH
    served = store.trials.served(trial.name, after=epoch * EPOCH, most=EPOCH)
    return settled(served), replace(limits, alpha=limits.alpha / ((epoch + 1) * (epoch + 2)))


def sample_ratio(trial: Experiment, served: Sequence[ServedRequest]) -> Reason | None:
    """Why the callers were not divided as meant; None while chance explains it."""
    callers = {(request.arm, request.unit) for request in served}
    counts: Mapping[str, int] = {arm: sum(of == arm for of, _ in callers) for arm in trial.arms}
    if (log_e := log_e_mismatch(counts, trial.arms)) < -log(ALARM):
        return None
    shares = ", ".join(f"{arm} {counts[arm]} ({weight:.0%} were meant)" for arm, weight in trial.arms.items())
    text = f"the callers were not divided as meant: {shares}; log e = {log_e:.3g}, alarm at {-log(ALARM):.3g}"
    return Reason(code="canary_sample_ratio_mismatch", text=f"{text}; find out who is missing, and begin again")


def lacking(found: GuardStatus, limits: GuardLimits, kind: PolicyKind | None = None) -> tuple[str, ...]:
    """What each undecided metric still needs, in words; a network has no callers who could tell."""
    undecided = (
        f"{NAMES.get(name, name)}: {_lack(reading, limits, is_network=kind is PolicyKind.NETWORK)}"
        for name, reading in found.readings.items()
        if reading.state == "open"
    )
    return (*(reason.text for reason in found.void), *undecided)


def has_no_answers(found: GuardStatus) -> bool:
    """Whether nothing is known of what it answers: no service sends it requests."""
    return not found.breaches and all(reading.canary is None for reading in found.readings.values())


def _lack(reading: GuardReading, limits: GuardLimits, *, is_network: bool) -> str:
    if is_network and (reading.canary is None or reading.live is None):
        return UNLIVED.format("it" if reading.canary is None else "the live version")
    if reading.canary is None:
        return TELL.format("its answers") if reading.metric in SILENT else "no answers yet"
    if reading.live is None:
        return TELL.format("the live version's") if reading.metric in SILENT else "no answers of the live version yet"
    if not reading.n:
        first = f"the first {limits.least} answers of the live version set the scale"
        return first if reading.metric == "latency" else "no answers of both side by side yet"
    answers = "1 answer" if reading.n == 1 else f"{reading.n} answers"
    if reading.needs is not None:
        return f"{answers} so far, about {reading.needs} more"
    means = f"its mean {reading.canary:.3g}, the live version's {reading.live:.3g}"
    if reading.quantiles:
        worst = min(reading.quantiles, key=lambda reading: reading.e_within)
        means = f"its p{100 * worst.quantile:g} {worst.canary:.3g}, the live version's {worst.live:.3g}"
    if reading.canary_told is not None and reading.canary_told < 1.0:
        means += f"; {reading.canary_told:.0%} of its outcomes were told, {reading.live_told or 0.0:.0%} of the others"
    return f"{answers} so far, and no sign yet that it is within its limit ({means})"


async def _act(
    store: Store,
    releases: list[Release],
    release: Release,
    beside: Release,
    response: Response,
    clock: Callable[[], float],
) -> None:
    if response.step is None:
        return
    to, share = response.step
    by: dict[str, Any] = {"who": WHO, "why": "; ".join(reason.text for reason in response.reasons)}
    if response.action == "rollback" and release.stage is not Stage.SHADOW:
        target = beside if release.stage is Stage.LIVE else rollback_target(releases, release)
        if target is not None:
            move_back: dict[str, Any] = {"failing": release.id, "to": target.id, "reasons": response.reasons}
            await store.releases.roll_back(release.policy, now=clock(), **move_back, **by)
    else:
        good = True if to is Stage.LIVE else None
        expected: dict[str, Any] = {"expect": release.stage, "share": share or None, "known_good": good}
        await store.releases.move(release.id, to, now=clock(), **expected, **by)
    if (trial := trial_of(release, beside)) is not None and trial.name in {
        experiment.name for experiment in store.trials.all()
    }:
        await store.trials.end(trial.name, now=clock(), **by)


# By hand -------------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Refusal:
    decision: Decision


def advance(
    store: Store, release: Release, *, to: Stage | None, share: int | None, who: str, why: str, now: float
) -> Release | Refusal:
    """Moves a version one step, or to the named stage. Without proof it stays where it is.

    A shadow that no request has reached may go live as a candidate may: on what the gate decided."""
    live, step = store.releases.live(release.policy), next_step(release)
    if step is None:
        remedy = f"'holdfast release retry {release.id}' gives it a second try" if release.stage in FALLEN else ""
        raise BadInput(f"release {release.id}", why=f"is {release.stage}: there is no step ahead", remedy=remedy)
    stage, part = step if to is None else (move(release, to), 5 if to is Stage.CANARY else 0)
    moved: dict[str, Any] = {"expect": release.stage, "who": who, "now": now}
    if live is None:
        made, measured = _last(store, release)
        if made is None:
            if to not in (None, Stage.LIVE):
                what, why = f"release {release.id}: --to {to}", "nothing of its policy is live to compare it with"
                raise BadInput(what, why=why, remedy="the first version goes live: leave --to out")
            why = f"{FIRST}; {why}"
            return store.releases.move(release.id, Stage.LIVE, why=why, known_good=True, **moved).result()
        if not made.open:
            store.releases.note(release.id, made, evidence=None, who=who, now=now).result()
            return Refusal(made)
        live = adopt(store, store.releases.get(measured), who=who, now=now).result()  # there is a way back
    decision = _decision(store, release, live)
    if decision.open and release.stage in (Stage.SHADOW, Stage.CANARY):
        limits = GuardLimits()
        status = judge(store, release, live, limits, now)
        if not (to is Stage.LIVE and release.stage is Stage.SHADOW and has_no_answers(status)):
            response = respond(release, status.breaches, status.is_clear, lacking(status, limits, release.kind))
            is_open = response.action == "advance"
            decision = Decision(open=is_open, reasons=response.reasons, needs=status.needs or None)
    if not decision.open:
        # The evidence stays, and so does the comparison that a canary is in.
        store.releases.note(release.id, decision, evidence=None, who=who, now=now).result()
        return Refusal(decision)
    moved |= {"why": why, "decision": decision, "known_good": True if stage is Stage.LIVE else None}
    moved["share"] = (share if share is not None else part) if stage is Stage.CANARY else None
    return store.releases.move(release.id, stage, **moved).result()


def way_back(store: Store, policy: str, to: str | None) -> tuple[Release, Release]:
    """The version that a rollback takes back (the canary, or else the live one), and the one that is live then: the
    last known good, or the named one. Naming a version that a person took back undoes that. `control` executes it."""
    releases = store.releases.of_policy(policy)
    canary = under_way([release for release in releases if release.stage is not Stage.SHADOW])
    failing = canary or next((release for release in releases if release.stage is Stage.LIVE), None)
    if failing is None:
        raise BadInput(f"policy {policy}", why="nothing of it is in service")
    target = rollback_target(releases, failing) if to is None else find_release(store, to)
    if target is not None:
        return failing, target
    history = store.releases.history(policy)
    taken = {release.id: taken_back(history, release.id) for release in releases if release.stage is Stage.ROLLED_BACK}
    undoable = next((name for name, body in taken.items() if body is not None and is_undoable(body)), None)
    remedy = "promote another one first"
    if undoable is not None:
        remedy = f"'holdfast release rollback {policy} --to {undoable}' undoes the rollback of {undoable}"
    raise BadInput(f"release {failing.id}", why="no other version of it is known to be good", remedy=remedy)


def try_again(store: Store, release: Release, *, who: str, why: str, now: float) -> Release:
    """Makes a rolled back or rejected version a candidate again; its old proof no longer counts."""
    if release.stage not in FALLEN:
        remedy = "only what was rolled back or rejected gets a second try"
        raise BadInput(f"release {release.id}", why=f"is {release.stage}", remedy=remedy)
    moved = store.releases.move(release.id, Stage.CANDIDATE, expect=release.stage, who=who, why=why, now=now)
    return moved.result()


def _last(store: Store, release: Release) -> tuple[Decision | None, str]:
    """The last gate decision about it that rests on evidence, and the version that it was measured against."""
    made, rests_on = None, ""
    for entry in store.releases.history(release.policy):
        if entry.body.get("move") == release.id and entry.body.get("to") == Stage.CANDIDATE:
            made = None  # a second try begins with nothing
        is_about = release.id in [entry.body.get(name) for name in ("move", "refuse", "accept")]
        if is_about and entry.body.get("evidence") and entry.body.get("decision"):
            made, rests_on = decode(Decision, dict(entry.body["decision"])), str(entry.body["evidence"])
    return made, "" if made is None else loads(Evidence, store.blobs.get(rests_on)).baseline


def _decision(store: Store, release: Release, live: Release) -> Decision:
    """The last gate decision about it that rests on evidence; without one it is closed."""
    made, measured = _last(store, release)
    if made is None:
        text = (
            f"no gate has decided about {release.id} yet; 'holdfast prove run' measures it against {live.id}, "
            "'holdfast release decide' brings that before the gate"
        )
        return Decision(open=False, reasons=(Reason(code="evidence_missing_all", text=text),))
    # The guard compares a canary with the live version; nothing does so for the quality of a shadow.
    if made.open and release.stage in (Stage.CANDIDATE, Stage.SHADOW) and measured != live.id:
        text = f"it was measured against {measured}, and {live.id} is live; 'holdfast prove run' measures it again"
        return Decision(open=False, reasons=(Reason(code="baseline_is_not_live", text=text),))
    return made
