"""Earlier tries of the live version as a control variate: a candidate's try is compared with the mean of all of them.

The mean of a task's fresh and earlier tries has the expectation of one fresh try, so the difference of a task is as it
was without them, and only varies less. A version became live because it did well: its own proof makes its mean too
high, if anything, which is against the candidate. Several candidates that are compared with the same tries depend on
one another, which the account of errors allows (`promote.alpha_account`). Where enough earlier tries of a task are
known, the live version is run on a few of the tasks only, to see whether it still does as it did. That sees large
drifts alone: all of this holds only while nothing that the live version depends on has changed, so it is off unless it
is asked for (`reuse_live`; docs/decisions/0019).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import fmean
from typing import Any, TypeVar

from holdfast.contracts.evidence import Episode
from holdfast.prove.sequential import crossed_at

ENOUGH = 10  # earlier tries of a task for each of the candidate's: a tenth of its variance, and no fresh one is needed
WATCHED = 5  # of so many tasks with enough of them, the live version is run on one all the same
DRIFT = 0.05  # α of "it still does as it did"
VALUES = ("success", "reward", "safety_cost")  # of an episode, that have a mean
BEST = {"success": 1.0, "safety_cost": 0.0}  # assumed of the live version where none of its fresh tries tells it

Number = TypeVar("Number", float, Any)


@dataclass(frozen=True, slots=True, kw_only=True)
class EarlierTries:
    """What the tries of one version at one task came to."""

    count: int
    means: Mapping[str, float]  # by value; without success where that was not told

    def record(self) -> dict[str, Any]:
        return {"count": self.count, "means": dict(self.means)}

    @classmethod
    def from_record(cls, record: Mapping[str, Any]) -> EarlierTries:
        return cls(count=record["count"], means=record["means"])


def earlier_tries(episodes: Sequence[Episode]) -> EarlierTries | None:
    """Of one task. What has no rollout was not measured, and counts for nothing."""
    seen = [episode for episode in episodes if episode.rollout]
    if not seen:
        return None
    payload = {name: [getattr(episode, name) for episode in seen] for name in VALUES}
    means = {name: fmean(values) for name, values in payload.items() if None not in values}
    return EarlierTries(count=len(seen), means=means)


def pooled_mean(fresh: Number, n: int, earlier: Number, count: int) -> Number:
    """(n x̄ + h ȳ)/(n + h), of n fresh and h earlier tries."""
    return (n * fresh + count * earlier) / (n + count)


def pooled(
    fresh: Sequence[Episode], earlier: Mapping[str, EarlierTries], seeds: Mapping[str, Sequence[int]]
) -> list[Episode]:
    """The baseline's episodes, one for each task and seed: where earlier tries are known, each with the mean of all.
    `seeds` are those of the candidate's episodes, by task."""
    by_task: dict[str, list[Episode]] = {}
    for episode in fresh:
        by_task.setdefault(episode.task, []).append(episode)
    episodes = []
    for task, wanted in seeds.items():
        tries, known = by_task.get(task, []), earlier.get(task)
        if known is None:
            episodes += tries
            continue
        drawn = {episode.seed: episode for episode in tries}
        means = _means(tries, known)
        is_missing = any(episode.is_missing for episode in tries)  # the mean of all rests on what was assumed of one
        blank = Episode(task=task, seed=0, reward=0.0)
        episodes += [replace(drawn.get(seed, blank), seed=seed, is_missing=is_missing, **means) for seed in wanted]
    return episodes


def _means(tries: Sequence[Episode], known: EarlierTries) -> dict[str, Any]:
    means: dict[str, Any] = {"success": None}
    for name, mean in known.means.items():
        values = [value for episode in tries if (value := getattr(episode, name)) is not None]
        if tries and not values:
            values = [BEST[name]] * len(tries)
        means[name] = pooled_mean(fmean(values) if values else 0.0, len(values), mean, known.count)
    return means


def is_spared(place: int, known: EarlierTries | None, seeds: int) -> bool:
    """Whether the live version need not be run on the task at this place; on some it is, however much is known."""
    return known is not None and known.count >= ENOUGH * seeds and place % WATCHED != 0


def has_drifted(fresh: Sequence[Episode], earlier: Mapping[str, EarlierTries], metric: str, reach: float) -> bool:
    """Whether the live version does otherwise than it did, by its fresh tries at tasks of which earlier ones are known.
    Looked at after every task, in either direction with half of the error rate."""
    by_task: dict[str, list[float]] = {}
    for episode in fresh:
        if episode.task in earlier and episode.rollout and getattr(episode, metric) is not None:
            by_task.setdefault(episode.task, []).append(getattr(episode, metric))
    moved = [
        fmean(some) - earlier[task].means[metric] for task, some in by_task.items() if metric in earlier[task].means
    ]
    how: Any = {"low": -reach, "high": reach, "alpha": DRIFT / 2}
    return any(crossed_at([sign * one for one in moved], **how) is not None for sign in (1.0, -1.0))
