"""Watching over a version on its way into service: a breach takes it back, a clear record takes it a step further.

What is a breach is told by the guard (`prove`), what follows by the rules (`promote`), and every move is the store's:
one transaction, with its reasons, in the ledger.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

from holdfast.contracts.errors import Refused
from holdfast.contracts.release import Release, ServedRequest, Stage
from holdfast.operate.service import trial_of
from holdfast.promote.gate import NAMES
from holdfast.promote.release import Response, respond, rollback_target
from holdfast.prove.guard import GuardLimits, GuardReading, GuardStatus, watch
from holdfast.store.notifications import RELEASES
from holdfast.store.store import Store

WHO = "keeper"
LOOK_S = 0.2  # between two looks, however much is served …
REST = 4.0  # … and at least so many times as long as the look itself took
SILENT: dict[str, Any] = {
    "success": None,
    "reward": None,
    "safety": None,
}  # nobody sees a shadow's answers, so nobody tells
TELL = "nobody has told what came of {} yet; send feedback to /v1/feedback"


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What the keeper saw and did."""

    release: Release
    watch: GuardStatus
    response: Response
    at: float


async def keep(
    store: Store, policy: str, limits: GuardLimits, *, clock: Callable[[], float], observe: Callable[[Looked], None]
) -> None:
    """Look again and again while a version is under way, and wait for the next one otherwise, until cancelled."""
    while True:
        seen, began = store.changes.seen(RELEASES), clock()
        looked = await look(store, policy, limits, clock=clock)
        if looked is not None:
            observe(looked)
            await asyncio.sleep(max(LOOK_S, REST * (looked.at - began)))
        else:
            await store.changes.after(RELEASES, seen)


async def look(store: Store, policy: str, limits: GuardLimits, *, clock: Callable[[], float]) -> Looked | None:
    """Judge the version under way, if there is one, and act on it."""
    releases = store.releases.of_policy(policy)
    release = under_way(releases)
    live = next((one for one in releases if one.stage is Stage.LIVE), None)
    if release is None or live is None:
        return None
    found = await asyncio.to_thread(judge, store, release, live, limits)
    response = respond(release, found.breaches, found.is_clear, lacking(found, limits))
    try:
        await _act(store, releases, release, response, clock)
    except Refused:  # a person, or another keeper, was faster
        response = Response(action="hold", reasons=response.reasons)
    return Looked(release=release, watch=found, response=response, at=clock())


def under_way(releases: Sequence[Release]) -> Release | None:
    """The version on its way into service; of two the canary, which answers people."""
    found = {one.stage: one for one in reversed(releases)}
    return found.get(Stage.CANARY) or found.get(Stage.SHADOW)


def judge(store: Store, release: Release, live: Release, limits: GuardLimits) -> GuardStatus:
    """What the requests so far say of it."""
    trial = trial_of(release, live)
    known = {one.name for one in store.trials.all()}
    served = store.trials.served(trial.name) if trial is not None and trial.name in known else []
    ours = [one for one in served if one.arm == release.id]
    theirs = [one for one in served if one.arm == live.id]
    if release.stage is Stage.CANARY and release.share == 100:
        theirs = _as_if_beside(_before(store, release, live), ours)
    return watch(theirs, ours, replace(limits, **SILENT) if release.stage is Stage.SHADOW else limits)


def lacking(found: GuardStatus, limits: GuardLimits) -> tuple[str, ...]:
    """What each metric that is undecided still waits for, in words."""
    return tuple(
        f"{NAMES.get(name, name)}: {_lack(one, limits)}" for name, one in found.readings.items() if one.state == "open"
    )


def _lack(reading: GuardReading, limits: GuardLimits) -> str:
    if reading.canary is None:
        return TELL.format("its answers") if reading.metric in SILENT else "no answers yet"
    if reading.live is None:
        return TELL.format("the live version's") if reading.metric in SILENT else "no answers of the live version yet"
    if not reading.n:
        first = f"the first {limits.least} answers of the live version set the scale"
        return first if reading.metric == "latency" else "no answers of both side by side yet"
    if reading.needs is not None:
        return f"{_answers(reading.n)} so far, about {reading.needs} more"
    means = f"its mean {reading.canary:.3g}, the live version's {reading.live:.3g}"
    return f"{_answers(reading.n)} so far, and no sign yet that it is within its limit ({means})"


def _answers(count: int) -> str:
    return "1 answer" if count == 1 else f"{count} answers"


def _before(store: Store, release: Release, live: Release) -> list[ServedRequest]:
    """What the live one did at the steps before, the last one first: when the canary has all requests, it has none."""
    steps = [
        trial
        for trial in store.trials.all(str(Stage.CANARY))
        if set(trial.arms) == {release.id, live.id} and trial.arms[live.id] > 0
    ]
    return [one for trial in steps for one in store.trials.served(trial.name, arm=live.id)]


def _as_if_beside(theirs: Sequence[ServedRequest], ours: Sequence[ServedRequest]) -> list[ServedRequest]:
    """At the times of the canary's, one by one: with all the requests at the canary there is nothing beside it."""
    return [replace(one, at=beside.at) for one, beside in zip(theirs, ours, strict=False)]


async def _act(
    store: Store, releases: list[Release], release: Release, response: Response, clock: Callable[[], float]
) -> None:
    if response.step is None:
        return
    why = "; ".join(reason.text for reason in response.reasons)
    to, share = response.step
    if response.action == "rollback" and release.stage is Stage.CANARY:
        target = rollback_target(releases, release)
        if target is not None:
            await store.releases.roll_back(
                release.policy,
                failing=release.id,
                to=target.id,
                who=WHO,
                why=why,
                now=clock(),
                reasons=response.reasons,
            )
    else:
        good = True if to is Stage.LIVE else None
        await store.releases.move(
            release.id, to, expect=release.stage, share=share or None, who=WHO, why=why, now=clock(), known_good=good
        )
    live = next(one for one in releases if one.stage is Stage.LIVE)
    if (trial := trial_of(release, live)) is not None and trial.name in {one.name for one in store.trials.all()}:
        await store.trials.end(trial.name, who=WHO, why=why, now=clock())
