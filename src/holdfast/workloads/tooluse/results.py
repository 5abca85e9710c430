"""The results of a quickstart run: rates before and after with intervals, the difference, and the curve.

Everything is read from the run's steps; `plots` draws it.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np

from holdfast.contracts.evidence import Interval
from holdfast.contracts.run import LESSON, StepRecord
from holdfast.pipeline.prove import ARMS, PHASE
from holdfast.prove.estimate import difference, wilson
from holdfast.store.store import Store
from holdfast.workloads.tooluse.quickstart import MARKS, PRACTICE, WARM_UP

Episodic = Mapping[str, Any]  # an episode as it is kept
BASELINE, TRAINED = "baseline", "trained"  # phases of versions before durable steps

RATES = {"success": "tasks solved", "adoption": "tool adoption", "format": "style kept"}


@dataclass(frozen=True, slots=True)
class MeasuredVersions:
    """Marks and episodes of both versions."""

    tries: int
    before: Mapping[str, Any]
    after: Mapping[str, Any]
    old: Sequence[Episodic]
    new: Sequence[Episodic]


@dataclass(frozen=True, slots=True, kw_only=True)
class SuccessRate:
    right: int
    of: int
    interval: Interval

    @property
    def value(self) -> float:
        return self.right / self.of if self.of else 0.0


@dataclass(frozen=True, slots=True, kw_only=True)
class RateChange:
    """One rate before and after."""

    name: str
    baseline: SuccessRate
    trained: SuccessRate

    @property
    def is_lifted(self) -> bool:
        """The intervals do not overlap."""
        return self.trained.interval.low > self.baseline.interval.high


@dataclass(frozen=True, slots=True, kw_only=True)
class Point:
    """One step of the curve."""

    step: int
    phase: str
    success: float | None
    adoption: float | None
    reward: float | None = None
    kl: float | None = None
    entropy: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    changes: Mapping[str, RateChange]  # by rate
    families: Mapping[str, tuple[SuccessRate, SuccessRate]]  # success by family of tasks, before and after
    gain: Interval  # of the success rate, task by task
    curve: Sequence[Point]
    silent: Mapping[str, int]  # why rollouts of the practice gave no gradient
    practised: int  # rollouts


def measured(store: Store, steps: Sequence[StepRecord]) -> MeasuredVersions | None:
    """What the run has kept of both versions; None while one of them is missing. Versions before durable steps kept
    each in a body of its own."""
    old = {str(one.body.get("phase")): one.body for one in steps if one.function == LESSON}
    if BASELINE in old and TRAINED in old:
        before, after = (old[name]["marks"] for name in (BASELINE, TRAINED))
        return MeasuredVersions(
            int(old[BASELINE]["tries"]), before, after, *(old[name]["episodes"] for name in (BASELINE, TRAINED))
        )
    marks = next((one.body for one in steps if one.name == MARKS), {})
    looked = [one.body for one in steps if one.body.get("phase") == PHASE and "look" in one.body]
    if not all(arm in marks for arm in ARMS) or not looked:
        return None
    kept = json.loads(store.blobs.get(looked[-1]["episodes"]))
    return MeasuredVersions(int(marks["tries"]), *(marks[arm] for arm in ARMS), *(kept[arm] for arm in ARMS))


def results(store: Store, updates: Sequence[StepRecord], *, rng: np.random.Generator) -> Results | None:
    """None while one of the two measurements is missing."""
    both = measured(store, updates)
    if both is None:
        return None
    before, after = both.before, both.after
    rate = partial(_rate, tries=both.tries)
    audits = [update.body["audit"] for update in updates if "audit" in update.body]
    silent: dict[str, int] = {}
    for found in audits:
        for reason, count in found["counts"].items():
            silent[reason] = silent.get(reason, 0) + count
    return Results(
        changes={name: RateChange(name=name, baseline=rate(before[name]), trained=rate(after[name])) for name in RATES},
        families={
            name: (rate(before["families"][name]["success"]), rate(after["families"][name]["success"]))
            for name in before["families"]
            if name in after["families"]
        },
        gain=_gain(both.old, both.new, rng),
        curve=curve(updates),
        silent=silent,
        practised=sum(found["rollouts"] for found in audits),
    )


def turned(store: Store, updates: Sequence[StepRecord]) -> list[tuple[str, str]]:
    """Rollouts of held-out tasks, before and after, that were wrong and then right; in the order of the tasks."""
    both = measured(store, updates)
    sides = ((), ()) if both is None else (both.old, both.new)
    old, new = ({(one["task"], one["seed"]): one for one in side if one["rollout"] is not None} for side in sides)
    return [
        (str(old[key]["rollout"]), str(one["rollout"]))
        for key, one in new.items()
        if key in old and not old[key]["success"] and one["success"]
    ]


def curve(updates: Sequence[StepRecord]) -> list[Point]:
    """The warm-up and the practice, step by step."""
    points = []
    for update in updates:
        body = update.body
        if str(body.get("phase")).partition(" ")[0] in (WARM_UP, PRACTICE):
            made: Mapping[str, Any] = body.get("update") or {}
            points.append(
                Point(
                    step=update.step,
                    phase=str(body["phase"]).partition(" ")[0],
                    success=body.get("success"),
                    adoption=body.get("adoption"),
                    reward=body.get("reward"),
                    kl=made.get("approx_kl"),
                    entropy=made.get("entropy", body.get("entropy")),
                )
            )
    return points


def _gain(
    before: Sequence[Mapping[str, Any]], after: Sequence[Mapping[str, Any]], rng: np.random.Generator
) -> Interval:
    """Over the tasks marked both times; the widest interval where there are fewer than two."""
    old, new = _solved(before), _solved(after)
    both = [task for task in old if task in new]
    if len(both) < 2:
        return Interval(low=-1.0, high=1.0)
    column = [np.asarray([[side[task]] for task in both]) for side in (old, new)]
    return difference(column[0], column[1], rng=rng)


def _solved(episodes: Sequence[Episodic]) -> dict[str, float]:
    """How often each task was solved, of its tries."""
    tries: dict[str, list[float]] = {}
    for one in episodes:
        tries.setdefault(str(one["task"]), []).append(float(one["success"] or 0.0))
    return {task: sum(some) / len(some) for task, some in tries.items()}


def _rate(counted: Sequence[int], tries: int) -> SuccessRate:
    """Several tries at one task are not independent: the interval is that of as many trials as there are tasks."""
    right, of = counted
    return SuccessRate(
        right=right, of=of, interval=wilson(right / tries, of / tries) if of else Interval(low=0.0, high=1.0)
    )
