"""Runs as the traffic of experiments about feature flags: who was given which arm, and what came of it.

A unit is a task or the user it is for; of an experiment about learning, a run. Who is exposed is kept before the work
begins, so that work that is lost in one arm shows in the sample ratio. What follows is `promote.experiment`'s business.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from contextlib import suppress
from typing import Any

from holdfast.contracts.errors import IllegalMove
from holdfast.contracts.flag import ARMS, run_unit, unit_of
from holdfast.contracts.release import ServedRequest
from holdfast.contracts.rollout import OutcomeKind, Rollout, RolloutState
from holdfast.store.store import Store


def expose(store: Store, units: Mapping[tuple[str, str], str], *, now: float) -> None:
    """Keep who was given which arm, by experiment and unit; one that ended meanwhile takes nobody more."""
    for write in [store.trials.expose(trial, unit, arm, now=now) for (trial, unit), arm in units.items()]:
        with suppress(IllegalMove):
            write.result()


async def tell_outcomes(store: Store, rollouts: Iterable[Rollout]) -> None:
    """Records the outcome of each rollout for every experiment of its unit; repeating it is harmless."""
    served = [
        ServedRequest(
            id=f"{one.id}@{trial}",
            trial=trial,
            arm=arm,
            unit=unit_of(one.input),
            at=one.ended_at,
            error=one.status is not RolloutState.SUCCEEDED,
            latency_s=None if one.started_at is None else max(0.0, one.ended_at - one.started_at),
            success={"right": 1.0, "wrong": 0.0}.get(str(one.outcome)),
            reward=one.reward,
        )
        for one in rollouts
        if one.ended_at is not None and one.status is not RolloutState.CANCELLED
        for trial, arm in one.metadata.get(ARMS, {}).items()
    ]
    if served:
        await store.trials.record(served)


async def tell_run(store: Store, arms: Mapping[str, str], run: str, *, now: float) -> None:
    """Records the outcome of a run that is itself a unit: its share of right answers and its mean reward."""
    if not arms:
        return
    counts, rewards = store.views.outcomes(run), store.views.rewards(run).values()
    right, wrong = counts[OutcomeKind.RIGHT], counts[OutcomeKind.WRONG] + counts[OutcomeKind.FAILED]
    paid = sum(one.rewarded for one in rewards)
    told: dict[str, Any] = {
        "success": right / (right + wrong) if right + wrong else None,
        "reward": sum((one.mean_reward or 0.0) * one.rewarded for one in rewards) / paid if paid else None,
    }
    served = [
        ServedRequest(id=f"{run}@{trial}", trial=trial, arm=arm, unit=run_unit(run), at=now, **told)
        for trial, arm in arms.items()
    ]
    await store.trials.record(served)
